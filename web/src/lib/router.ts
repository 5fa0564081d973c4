// SPDX-License-Identifier: Apache-2.0
// Addresses: the path says which page, the query what it shows.
import { useEffect, useState } from "./html.ts";

const listeners = new Set<() => void>();
addEventListener("popstate", () => listeners.forEach((f) => f()));

export function go(to: string, replace = false): void {
  if (replace) history.replaceState(null, "", to);
  else history.pushState(null, "", to);
  listeners.forEach((f) => f());
}

export function usePath(): string {
  const [path, set] = useState(location.pathname);
  useEffect(() => {
    const f = () => set(location.pathname);
    listeners.add(f);
    return () => void listeners.delete(f);
  }, []);
  return path;
}

/** Values of the query, which stay in the address. */
export function useQuery(): [URLSearchParams, (changes: Record<string, string | null>) => void] {
  const [query, set] = useState(location.search);
  useEffect(() => {
    const f = () => set(location.search);
    listeners.add(f);
    return () => void listeners.delete(f);
  }, []);
  return [new URLSearchParams(query), (changes) => {
    const q = new URLSearchParams(location.search);
    for (const [k, v] of Object.entries(changes)) v === null || v === "" ? q.delete(k) : q.set(k, v);
    const text = q.toString();
    go(location.pathname + (text ? "?" + text : ""), true);
  }];
}
