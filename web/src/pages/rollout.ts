// SPDX-License-Identifier: Apache-2.0
// Rollouts: the canary against its baseline, with the evidence.
import { html, useState } from "../lib/html.ts";
import { ask } from "../lib/api.ts";
import { clock, count, known, ms, pct, words } from "../lib/format.ts";
import { usePart, usePoll, whoIs } from "../lib/live.ts";
import { Empty, Page, Panel, State, Track } from "../lib/ui.ts";
import type { Num } from "../lib/types.ts";

interface Arm { model: string; pool?: string; requests: number; failed: number; prompt_tokens: number; output_tokens: number }
interface Comparison { name: string; unit: string; baseline: Num; canary: Num; n: number; n_baseline: number; low: Num; high: Num; margin: number; verdict: string }
interface Roll {
  name: string; model: string; state: string; weight: number; next_weight: Num; sticky: string; since: string; auto: boolean; baseline: Arm; canary: Arm;
  evidence: { ttft: Comparison | null; itl: Comparison | null; errors: Comparison | null };
  steps: { time: string; state: string; from: number; to: number; why: string; by?: string; evidence: Comparison[] | null }[];
  shadow?: { share: number; tokens_per_hour: number; running: number; sent: number; skipped: number; tokens: number; left: number };
}

const stateOf: Record<string, string> = { running: "starting", promoted: "good", held: "strained", blocked: "strained", aborted: "degraded", rolled_back: "degraded" };
const verdictOf: Record<string, string> = { fine: "good", open: "idle", suspect: "warning", worse: "error" };
const value = (c: Comparison, v: Num): string => (c.unit === "share" ? pct(v, 2) : known(v) ? ms(1000 * v) : ms(v));
const bound = (c: Comparison, v: Num): string => (!known(v) ? "–" : c.unit === "share" ? (v > 0 ? "+" : "") + pct(v, 2) : v.toFixed(2) + "×");
const names: Record<string, string> = { ttft: "Time to first token", itl: "Time between tokens", errors: "Errors" };

function One({ r }: { r: Roll }) {
  const [said, say] = useState("");
  const act = async (what: string) => {
    const a = await ask(`/api/v1/rollout/${encodeURIComponent(r.name)}/${what}`, {});
    say("error" in a ? a.error : "absent" in a ? "this server cannot" : "done");
  };
  const arms: [string, Arm][] = [["baseline", r.baseline], ["canary", r.canary]];
  const rows = (Object.entries(r.evidence ?? {}) as [string, Comparison | null][]).filter((x): x is [string, Comparison] => !!x[1]);
  const over = ["promoted", "aborted", "rolled_back"].includes(r.state);
  return html`<${Panel} title=${r.name} sub=${html`<${State} state=${stateOf[r.state] ?? "idle"} word=${words(r.state)} /> ${r.model}${r.sticky ? `, sticky per ${r.sticky}` : ""}, since ${clock(r.since)}${r.auto ? ", promotes by itself" : ""}`} cli=${"penstock rollout status " + r.name}
    right=${html`<span role="status" class="dim">${said}</span>${whoIs().operate && !over && ["promote", "hold", "abort"].map((w) => html`<button class="btn" key=${w} onClick=${() => void act(w)}>${w}</button>`)}`}>
    <div class="stack">
      <div class="kv" style=${{ gridTemplateColumns: "minmax(0, max-content) minmax(90px, 1fr) 50px" }}><span>${r.canary.model} gets</span><${Track} value=${r.weight} label=${`the canary gets ${pct(r.weight)}`} /><b>${pct(r.weight)}</b></div>
      <dl class="deflist">${arms.map(([name, a]) => html`<dt>${name}</dt><dd>${a.model}${a.pool ? ` in ${a.pool}` : ""}: ${count(a.requests)} requests, ${count(a.failed)} failed</dd>`)}${known(r.next_weight) && !over ? html`<dt>next step</dt><dd>${pct(r.next_weight)}</dd>` : null}</dl>
      ${rows.length === 0 ? html`<p class="dim">Not enough requests yet to compare.</p>` : html`<div class="scroll" tabindex="0" role="group" aria-label="evidence"><table><thead><tr><th scope="col">Evidence</th><th scope="col" class="num">Baseline</th><th scope="col" class="num">Canary</th><th scope="col" class="num" title="of the baseline / of the canary">Observations</th><th scope="col" class="num" title="bounds of the canary over the baseline, at the confidence of the guard">Canary over baseline</th><th scope="col">Verdict</th></tr></thead>
      <tbody>${rows.map(([k, c]) => html`<tr key=${k}><th scope="row">${names[k] ?? c.name}</th><td class="num">${value(c, c.baseline)}</td><td class="num">${value(c, c.canary)}</td><td class="num">${count(c.n_baseline)} / ${count(c.n)}</td><td class="num">${known(c.low) || known(c.high) ? `${bound(c, c.low)} to ${bound(c, c.high)}` : "–"}</td><td><${State} state=${verdictOf[c.verdict] ?? "idle"} word=${c.verdict} /></td></tr>`)}</tbody></table></div>`}
      ${r.shadow && html`<p class="dim">Shadow: copies of ${pct(r.shadow.share)} of requests, ${count(r.shadow.sent)} sent, ${count(r.shadow.skipped)} skipped, ${count(r.shadow.tokens)} tokens of ${count(r.shadow.tokens_per_hour)} an hour.</p>`}
      ${r.steps?.length ? html`<ul class="events" tabindex="0" aria-label="steps">${[...r.steps].reverse().map((s) => html`<li key=${s.time}><time dateTime=${s.time}>${clock(s.time)}</time><span class="kind">${pct(s.from)} → ${pct(s.to)}</span><span>${s.why}${s.by ? html` <span class="dim">by ${s.by}</span>` : ""}</span></li>`)}</ul>` : null}
    </div><//>`;
}

export function Rollout() {
  const a = usePoll<{ rollouts?: Roll[] }>(usePart("rollout", "/api/v1/rollout"), 2000);
  const list = a.data?.rollouts ?? [];
  return html`<${Page} title="Rollout" lead="A canary beside its baseline: what each gives users, and what was done about it.">
    ${list.map((r) => html`<${One} key=${r.name} r=${r} />`)}
    ${list.length === 0 && html`<${Panel} title="Rollouts">${a.loading ? html`<p class="dim">Asking the server.</p>` : a.error ? html`<${Empty} title="Not known" code="penstock rollout status">The answer is missing: ${a.error}.<//>` : html`<${Empty} title="No rollout runs" code="penstock rollout --help">A rollout gives a new model or version a share of the traffic, compares its time to first token, time between tokens and errors with the old one, and holds or rolls back by itself.<//>`}<//>`}
  <//>`;
}
