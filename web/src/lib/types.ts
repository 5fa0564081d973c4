// SPDX-License-Identifier: Apache-2.0
// Shapes of the admin API, as far as the pages read them. Null is unknown.
export type Num = number | null;

export interface Verdict { state: string; sentence: string; binding?: string; command: string; since: string }
export interface Finding {
  code: string; severity: "error" | "warning" | "note"; object: string; message: string; remedy: string; docs: string;
  evidence: { name: string; value: unknown; unit?: string; age?: string }[];
}
export interface Mark { time: string; pool?: string; kind: string; text: string }
export interface Replica {
  id: string; phase: string; phase_s?: number; reason?: string; slow?: boolean; run: Num; wait: Num; in_flight: number; kv: Num; hit: Num;
  ttft_p95_ms: Num; age_ms: Num; adapters?: string[]; dropped?: string; note?: string;
}
export interface AdapterSummary { name: string; listed: number; holders: number; at: { replica: string; state: string; age_ms: number }[] }
export interface Pool {
  name: string; policy: string; models: string[]; verdict: Verdict; slo: { ttft_ms: Num; itl_ms: Num };
  recent: { requests: number; failed: number; ttft_p50_ms: Num; ttft_p95_ms: Num; hit: Num; hit_random: Num; hit_best: Num };
  now: Record<string, Num>; phases: Record<string, number>; replicas: Replica[]; adapters?: AdapterSummary[];
  counters: { arrived: number; sent: number; refused: number; retried: number; demoted_by_load: number };
  snapshot: { version: number; age_ms: number } | null;
}
export interface Live {
  time: string; router?: string; version: string; uptime_s: number; ready: boolean; reason?: string; pools: Pool[]; findings: Finding[]; marks: Mark[];
  parts: string[];
  listen: { http: string; admin?: string; epp?: string }; config: { file?: string; digest: string; reload_ok: boolean; error?: string };
}
export interface Row {
  id: string; time: string; pool: string; tenant?: string; model: string; adapter?: string; replica: string; why: string; kind: string; status: number;
  ttft_ms: Num; e2e_ms: Num; queue_ms: number; prompt: number; cached: Num; predicted: number; output: Num;
}
export interface Span { pool?: string; replica?: string; phase?: string; reason?: string; from: string; to: string | null }
export interface Series {
  end: number; step_s: number; pools: { name: string; slo: { ttft_ms: Num; itl_ms: Num }; columns: Record<string, Num[]> }[];
  marks: Mark[]; phases: Span[]; findings: (Finding & { from: string; to: string | null })[];
}
export interface Candidate {
  endpoint: string; dropped?: string; cost_ms: Num; terms?: { name: string; ms: number }[];
  signals?: { name: string; value: Num; unit: string; age_ms: Num }[];
}
export interface Decision {
  id: string; time: string; pool?: string; policy: string; chosen: string; why?: string; margin_ms: Num; predicted_ttft_ms?: number;
  demoted_by_load?: boolean; tie?: { candidates: number; key: string }; candidates: Candidate[]; candidates_omitted?: number; would_change_if: string[];
  request: { tenant: string; model: string; adapter: string; prompt_tokens: number; max_tokens?: number; surface?: string; stream?: boolean };
  snapshot: { version: number; age_ms: Num };
  outcome?: {
    status: number; kind: string; ttft_ms: Num; e2e_ms: Num; queue_ms: number; prompt_tokens: Num; cached_tokens: Num; output_tokens: Num;
    predicted_cached_tokens: number; attempts?: { endpoint: string; kind: string; after_ms: number }[]; maybe_duplicate?: boolean;
  };
}
export interface Recommendation {
  pool: string; time: string; mode?: string; hand?: string; sentence?: string; current: Num; ready: Num;
  pending?: { id: string; phase: string; since?: string; ready_at?: string; expected?: string; overdue?: boolean; reason?: string }[];
  signals?: { name: string; value: Num; unit?: string; target?: Num; ratio?: Num; desired?: Num; age_ms?: Num; note?: string }[];
  raw: Num; constraints?: { name: string; before: number; after: number; detail?: string; why?: string; until?: string }[]; desired?: Num; final?: Num; binding?: string;
  rule?: { name?: string; cost?: Num; misses?: Num } | null; next_cheaper?: { name?: string; cost?: Num; misses?: Num; why_not?: string } | null;
  scale_down_blocked?: { until?: string; why?: string } | null; next_evaluation?: string; applied?: { at?: string; ok?: boolean; error?: string } | null;
  victims?: string[]; paused?: boolean; pinned?: Num | boolean; reason?: string; no_opinion?: string; owner?: string; blocked?: string; conditions?: { code: string; message: string; since?: string }[];
  attainment?: Num; attained?: Num; start_p50_s?: Num; start_p90_s?: Num; reversals_1h?: Num; offered?: Num; per_replica?: Num; unit?: string; known_for_s?: Num;
}
