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
interface ScaleRule { name: string; cost: number; misses: number; why_not?: string }
export interface Recommendation {
  pool: string; time: string; mode: string; hand: string; sentence: string; current: number; ready: number; raw: number; desired: Num; binding: string;
  pending: { id: string; phase: string; since: string | null; ready_at: string | null; overdue: boolean; reason?: string }[];
  signals: { name: string; value: Num; unit: string; target?: number; ratio?: number; desired?: number; age_ms?: number; note?: string }[];
  constraints: { name: string; before: number; after: number; detail?: string; until?: string }[];
  rule?: ScaleRule; next_cheaper?: ScaleRule; scale_down_blocked?: { until: string | null; why: string };
  next_evaluation: string | null; applied?: { at: string | null; ok: boolean; error?: string };
  victims: string[]; paused: boolean; pinned?: number; no_opinion?: string; owner?: string; blocked?: string; conditions: { code: string; message: string }[];
  attainment: number; attained?: number; start_p50_s: number; start_p90_s: number; reversals_1h: number; offered: number; per_replica: number; unit: string; known_for_s: number;
}
