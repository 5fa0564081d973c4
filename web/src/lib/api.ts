// SPDX-License-Identifier: Apache-2.0
// The admin API. An answer is data, "absent" where this server has no such part,
// or an error with the server's own sentence.
export type Answer<T> = { data: T } | { absent: true } | { error: string };

export function ask<T>(path: string, body?: unknown): Promise<Answer<T>> {
  if (body === undefined) return answer(path, { headers: { Accept: "application/json" } });
  return answer(path, { method: "POST", headers: { Accept: "application/json", "Content-Type": "application/json" }, body: JSON.stringify(body) });
}

/** Sends a file as it is. */
export function upload<T>(path: string, file: File): Promise<Answer<T>> {
  return answer(path, { method: "POST", headers: { Accept: "application/json", "Content-Type": "application/x-ndjson" }, body: file });
}

async function answer<T>(path: string, init: RequestInit): Promise<Answer<T>> {
  try {
    const res = await fetch(path, init);
    const type = res.headers.get("Content-Type") ?? "";
    if (res.status === 401 && !location.pathname.startsWith("/login")) {
      location.assign("/login");
      return { error: "signing in" };
    }
    if (!type.includes("json")) return res.status === 404 ? { absent: true } : { error: `the server answered ${res.status}` };
    const data = await res.json();
    if (res.ok) return { data: data as T };
    const e = data?.error;
    if (res.status === 404 && (e?.code === "not_found" || e?.code === "not_built")) return { absent: true };
    return { error: e?.message ?? `the server answered ${res.status}` };
  } catch {
    return { error: "the server does not answer" };
  }
}

/** Policies that can be asked again about a record: their pick follows from what it holds. */
export const REPLAYABLE = ["penstock", "least-requests", "min-ttft", "gaie-111", "llm-d-322", "lmetric"];

/** The command that shows the same in a terminal, with the address of this server where it is not the default. */
export function cli(command: string): string {
  const here = location.origin;
  const usual = here === "http://127.0.0.1:9900" || here === "http://localhost:9900" || location.protocol === "file:";
  const asks = /^penstock (status|top|explain|diagnose|drain|scale|rollout)\b/.test(command);
  return command + (usual || !asks ? "" : ` --server ${here}`);
}
