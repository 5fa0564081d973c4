// SPDX-License-Identifier: Apache-2.0
// Rollouts: the canary against its baseline, with the evidence.
import { html, useState } from "../lib/html.ts";
import { ask } from "../lib/api.ts";
import { clock, count, known, ms, pct } from "../lib/format.ts";
import { usePart, usePoll } from "../lib/live.ts";
import { Empty, Page, Panel, State, Track } from "../lib/ui.ts";
import type { Num } from "../lib/types.ts";

interface Evidence { baseline: Num; canary: Num; n?: Num | { baseline: Num; canary: Num }; verdict?: string }
interface Roll { name: string; model: string; state: string; weight: Num; sticky?: string; since?: string; baseline?: string; canary?: string; evidence?: Record<string, Evidence>; steps?: { time: string; from: Num; to: Num; why?: string; evidence?: string[] }[] }

const show = (name: string, v: Num): string => (name === "errors" ? pct(v, 2) : ms(v));
const stateOf: Record<string, string> = { running: "starting", promoted: "good", done: "good", held: "strained", hold: "strained", aborted: "degraded", rolled_back: "degraded" };

function One({ r }: { r: Roll }) {
  const [said, say] = useState("");
  const act = async (what: string) => {
    const a = await ask(`/api/v1/rollout/${encodeURIComponent(r.name)}/${what}`, {});
    say("error" in a ? a.error : "absent" in a ? "this server cannot" : "done");
  };
  const weight = known(r.weight) ? (r.weight > 1 ? r.weight / 100 : r.weight) : null;
  return html`<${Panel} title=${r.name} sub=${html`<${State} state=${stateOf[r.state] ?? "idle"} /> ${r.state}; ${r.model}${r.sticky ? `, sticky per ${r.sticky}` : ""}${r.since ? `, since ${clock(r.since)}` : ""}`} cli=${"penstock rollout status " + r.name}
    right=${html`<span role="status" class="dim">${said}</span>${["promote", "hold", "abort"].map((w) => html`<button class="btn" key=${w} onClick=${() => void act(w)}>${w}</button>`)}`}>
    <div class="stack"><div class="kv" style=${{ gridTemplateColumns: "minmax(0,160px) minmax(0,1fr) 60px" }}><span>${r.canary ?? "canary"} gets</span><${Track} value=${weight} /><b>${pct(weight)}</b></div>
    <div class="scroll" tabindex="0" role="group" aria-label="evidence"><table><thead><tr><th scope="col">Evidence</th><th scope="col" class="num">${r.baseline ?? "baseline"}</th><th scope="col" class="num">${r.canary ?? "canary"}</th><th scope="col" class="num">Requests</th><th scope="col">Verdict</th></tr></thead>
      <tbody>${Object.entries(r.evidence ?? {}).map(([k, e]) => html`<tr key=${k}><th scope="row">${k.toUpperCase()}</th><td class="num">${show(k, e.baseline)}</td><td class="num">${show(k, e.canary)}</td><td class="num">${typeof e.n === "object" && e.n ? `${count(e.n.baseline)} / ${count(e.n.canary)}` : count(e.n as Num)}</td><td>${e.verdict ?? "–"}</td></tr>`)}</tbody></table></div>
    ${r.steps?.length ? html`<ul class="events" tabindex="0" aria-label="steps">${[...r.steps].reverse().map((s) => html`<li key=${s.time}><time dateTime=${s.time}>${clock(s.time)}</time><span class="kind">${pct(known(s.from) && s.from > 1 ? s.from / 100 : s.from)} → ${pct(known(s.to) && s.to > 1 ? s.to / 100 : s.to)}</span><span>${s.why ?? ""}${s.evidence?.length ? html` <span class="dim">${s.evidence.join("; ")}</span>` : ""}</span></li>`)}</ul>` : null}</div><//>`;
}

export function Rollout() {
  const a = usePoll<{ rollouts?: Roll[] }>(usePart("rollout", "/api/v1/rollout"), 2000);
  const list = a.data?.rollouts ?? [];
  return html`<${Page} title="Rollout" lead="A canary beside its baseline: what each gives users, and what was done about it.">
    ${list.map((r) => html`<${One} key=${r.name} r=${r} />`)}
    ${list.length === 0 && html`<${Panel} title="Rollouts">${a.loading ? html`<p class="dim">Asking the server.</p>` : html`<${Empty} title="No rollout runs" code="penstock rollout --help">${a.error ? a.error + ". " : ""}A rollout gives a new model or version a share of the traffic, compares its time to first token, time between tokens and errors with the old one, and holds or rolls back by itself.<//>`}<//>`}
  <//>`;
}
