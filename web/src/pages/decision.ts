// SPDX-License-Identifier: Apache-2.0
// One decision: every candidate with its cost by term, what was left out and why,
// what came of it, and what would have changed it.
import { html, useEffect, useState } from "../lib/html.ts";
import { REPLAYABLE, ask, cli } from "../lib/api.ts";
import { clock, count, known, ms, pct, words } from "../lib/format.ts";
import { Copy, Empty, Page, Panel, Track, byName } from "../lib/ui.ts";
import type { Candidate, Decision } from "../lib/types.ts";

const TERMS = ["pending", "ahead", "memory_wait", "prefill", "steps", "behind", "to_come", "streams", "evicted", "decode", "memory_price", "adapter", "followers"];
const WHAT: Record<string, string> = {
  pending: "prefill that is queued there", ahead: "requests that go first", memory_wait: "wait for KV memory", prefill: "its own uncached prompt", steps: "decode steps in between",
  behind: "delay of requests behind it", to_come: "delay of requests that are expected", streams: "delay of running streams", evicted: "cache of others that it pushes out", decode: "its own answer", memory_price: "memory that it pins", adapter: "loading the adapter", followers: "less: paid for by earlier requests",
};

const signal = (c: Candidate, name: string) => c.signals?.find((s) => s.name === name);
const value = (c: Candidate, name: string) => signal(c, name)?.value ?? null;
const scrapeAge = (c: Candidate) => ["running", "waiting", "kv_usage"].map((n) => signal(c, n)?.age_ms).find(known) ?? null;
const byCost = (d: Decision) => (a: Candidate, b: Candidate) =>
  (a.cost_ms ?? Infinity) - (b.cost_ms ?? Infinity) || (a.endpoint === d.chosen ? -1 : b.endpoint === d.chosen ? 1 : byName(a.endpoint, b.endpoint));

function Bars({ c, most }: { c: Candidate; most: number }) {
  const terms = (c.terms ?? []).filter((t) => t.ms > 0);
  const text = terms.map((t) => `${words(t.name)} ${ms(t.ms)}`).join(", ");
  return html`<div class="terms" role="img" aria-label=${text || "no cost"}>${terms.map((t) => html`<i key=${t.name} class=${"t" + TERMS.indexOf(t.name)} style=${{ width: (100 * t.ms) / most + "%" }} title=${`${words(t.name)} ${ms(t.ms)}: ${WHAT[t.name] ?? ""}`}></i>`)}</div>`;
}

function sum(c: Candidate): number {
  return (c.terms ?? []).reduce((s, t) => s + Math.max(0, t.ms), 0);
}

function Candidates({ d }: { d: Decision }) {
  const [numbers, setNumbers] = useState(false);
  const rows = d.candidates.filter((c) => !c.dropped).sort(byCost(d));
  const dropped = d.candidates.filter((c) => c.dropped);
  const priced = rows.some((c) => c.terms?.length);
  const most = Math.max(1, ...rows.map(sum));
  const used = TERMS.filter((t) => rows.some((c) => c.terms?.some((x) => x.name === t)));
  return html`<${Panel} title="Candidates" sub=${priced ? "expected cost of sending it there, by term" : "this policy prices nothing"} right=${priced && html`<button class="btn" aria-pressed=${numbers} onClick=${() => setNumbers(!numbers)}>All numbers</button>`} cli=${"penstock explain " + d.id}>
    ${priced && html`<div class="legend" style=${{ marginBottom: "8px" }}>${used.map((t) => html`<span key=${t} title=${WHAT[t]}><i class=${"sw t" + TERMS.indexOf(t)} aria-hidden="true"></i>${words(t)}</span>`)}</div>`}
    <div class="scroll" tabindex="0" role="group" aria-label="candidates"><table>
      <thead><tr><th scope="col">Replica</th>${priced && !numbers && html`<th scope="col">Cost by term</th>`}${numbers && used.map((t) => html`<th scope="col" class="num">${words(t)}</th>`)}<th scope="col" class="num">Cost</th>
        <th scope="col" class="num">Cached</th><th scope="col" class="num">In flight</th><th scope="col" class="num">Waiting</th><th scope="col" class="num">KV</th><th scope="col" class="num">Signal age</th><th scope="col">Its own metrics</th></tr></thead>
      <tbody>
        ${rows.map((c) => html`<tr key=${c.endpoint} class=${c.endpoint === d.chosen ? "won" : ""}>
          <th scope="row" class="id">${c.endpoint}${c.endpoint === d.chosen ? html`<span class="vh"> chosen</span>` : ""}</th>
          ${priced && !numbers && html`<td class="wide"><${Bars} c=${c} most=${most} /></td>`}
          ${numbers && used.map((t) => html`<td class="num">${known(c.terms?.find((x) => x.name === t)?.ms) ? ms(c.terms!.find((x) => x.name === t)!.ms) : ""}</td>`)}
          <td class="num"><b>${ms(c.cost_ms)}</b></td><td class="num">${count(value(c, "cached"))}</td><td class="num">${count(value(c, "in_flight"))}</td><td class="num">${count(value(c, "waiting"))}</td>
          <td class="num">${pct(value(c, "kv_usage"))}</td><td class="num">${ms(scrapeAge(c))}</td><td><a href=${`/replicas/${encodeURIComponent(c.endpoint)}/metrics${d.pool ? "?pool=" + encodeURIComponent(d.pool) : ""}`}>as it is now</a></td></tr>`)}
        ${dropped.map((c) => html`<tr key=${c.endpoint} class="off"><th scope="row" class="id">${c.endpoint}</th><td colspan=${(numbers ? used.length : priced ? 1 : 0) + 6}>left out: ${words(c.dropped!)}</td><td></td></tr>`)}
      </tbody></table></div>
    ${d.candidates_omitted ? html`<p class="dim">and ${count(d.candidates_omitted)} more, dearer than these</p>` : null}
  <//>`;
}

function Pair({ name, predicted, actual, format }: { name: string; predicted: number | null; actual: number | null; format: (v: number | null) => string }) {
  const most = Math.max(1e-9, predicted ?? 0, actual ?? 0);
  return html`<div class="pair"><h3>${name}</h3>
    <div class="row"><span class="dim">predicted</span><${Track} value=${known(predicted) ? predicted / most : null} kind="grey" /><b>${format(predicted)}</b></div>
    <div class="row"><span class="dim">actual</span><${Track} value=${known(actual) ? actual / most : null} /><b>${format(actual)}</b></div></div>`;
}

function Came({ d }: { d: Decision }) {
  const o = d.outcome;
  if (!o) return html`<${Panel} title="What came"><${Empty} title="It runs still">The outcome is recorded when the answer ends.<//><//>`;
  return html`<${Panel} title="Predicted and actual" sub=${`${words(o.kind)}${o.status ? ", status " + o.status : ""}`}>
    <div class="stack">
      <${Pair} name="Time to first token" predicted=${d.predicted_ttft_ms ?? null} actual=${o.ttft_ms} format=${ms} />
      <${Pair} name="Cached prompt tokens" predicted=${o.predicted_cached_tokens} actual=${o.cached_tokens} format=${count} />
      <dl class="deflist"><dt>prompt</dt><dd>${count(o.prompt_tokens)} tokens${known(o.cached_tokens) && o.prompt_tokens ? `, ${pct(o.cached_tokens / o.prompt_tokens)} cached` : ""}</dd><dt>answer</dt><dd>${count(o.output_tokens)} tokens, all after ${ms(o.e2e_ms)}</dd>
        <dt>held by the router</dt><dd>${ms(o.queue_ms)}</dd>${(o.attempts ?? []).map((a) => html`<dt>failed attempt</dt><dd>${a.endpoint}: ${words(a.kind)} after ${ms(a.after_ms)}</dd>`)}${o.maybe_duplicate ? html`<dt>note</dt><dd>a failed attempt may have been executed as well</dd>` : null}</dl>
    </div><//>`;
}

interface Repicked { policy: string; recorded: string; picks: string; share: number; extra_ms: number; estimated?: string }

function Again({ d }: { d: Decision }) {
  const [policy, setPolicy] = useState("");
  const [answer, setAnswer] = useState<{ data?: Repicked; error?: string }>({});
  useEffect(() => {
    let on = true;
    setAnswer({});
    if (policy) void ask<Repicked>(`/api/v1/decisions/${encodeURIComponent(d.id)}/repick?policy=${encodeURIComponent(policy)}`).then((a) => on && setAnswer("data" in a ? a : { error: "error" in a ? a.error : "this server cannot" }));
    return () => { on = false; };
  }, [policy, d.id]);
  const r = answer.data;
  return html`<${Panel} title="What would have changed it">
    <div class="stack">
      ${d.would_change_if.length ? html`<ul class="plain">${d.would_change_if.map((w, i) => html`<li><span class="dim">${i ? "or" : "if"}</span><code>${w}</code></li>`)}</ul>` : html`<p class="dim">No change of a single signal would have.</p>`}
      <div class="legend"><label>Ask again under <select class="field" value=${policy} onChange=${(e: Event) => setPolicy((e.target as HTMLSelectElement).value)}><option value="">another policy</option>${REPLAYABLE.map((p) => html`<option key=${p} value=${p}>${p}</option>`)}</select></label></div>
      ${answer.error && html`<p role="alert" class="dim">${answer.error}</p>`}
      ${r && html`<p>${r.picks === r.recorded ? html`<b>${r.policy}</b> picks the same replica, <b>${r.recorded}</b>.` : r.picks ? html`<b>${r.policy}</b> picks <b>${r.picks}</b> instead of ${r.recorded}${r.share < 1 ? ` in ${pct(r.share)} of the draws` : ""}: ${r.extra_ms >= 0 ? "predicted to be " + ms(r.extra_ms) + " dearer" : "predicted to be " + ms(-r.extra_ms) + " cheaper"}.` : html`<b>${r.policy}</b> picks none.`}${r.estimated ? html` <span class="dim">Estimated: ${r.estimated}.</span>` : ""}</p>`}
    </div><//>`;
}

function markdown(d: Decision): string {
  const rows = d.candidates.filter((c) => !c.dropped).sort(byCost(d));
  const lines = [`**${d.id}** ${d.request.model}, ${count(d.request.prompt_tokens)} prompt tokens, ${d.time}`, ``, `-> **${d.chosen || "no replica"}**: ${d.why ?? ""}${known(d.margin_ms) ? `, ${ms(d.margin_ms)} before the next` : ""}`, ``,
    `| replica | cost | cached | in flight | waiting | KV | terms |`, `|---|---|---|---|---|---|---|`,
    ...rows.map((c) => `| ${c.endpoint === d.chosen ? "**" + c.endpoint + "**" : c.endpoint} | ${ms(c.cost_ms)} | ${count(value(c, "cached"))} | ${count(value(c, "in_flight"))} | ${count(value(c, "waiting"))} | ${pct(value(c, "kv_usage"))} | ${(c.terms ?? []).map((t) => `${words(t.name)} ${ms(t.ms)}`).join(", ")} |`)];
  for (const c of d.candidates) if (c.dropped) lines.push(`| ${c.endpoint} | left out: ${words(c.dropped)} | | | | | |`);
  if (d.outcome) lines.push(``, `Outcome: ${words(d.outcome.kind)}, first token after ${ms(d.outcome.ttft_ms)} (predicted ${ms(d.predicted_ttft_ms)}), ${count(d.outcome.cached_tokens)} of ${count(d.outcome.prompt_tokens)} prompt tokens cached (predicted ${count(d.outcome.predicted_cached_tokens)})`);
  if (d.would_change_if.length) lines.push(``, `Would change if: ${d.would_change_if.join(", or ")}`);
  lines.push(``, "`" + cli("penstock explain " + d.id) + "`");
  return lines.join("\n");
}

export function DecisionPage({ id }: { id: string }) {
  const [a, set] = useState<{ data?: Decision; error?: string }>({});
  useEffect(() => {
    void ask<Decision>("/api/v1/decisions/" + encodeURIComponent(id)).then((r) => set("data" in r ? r : { error: "error" in r ? r.error : "there is no such decision" }));
  }, [id]);
  const d = a.data;
  if (!d) return html`<${Page} title=${"Decision " + id}>${a.error ? html`<${Empty} title="There is no record of it" code=${cli("penstock explain --last")}>${a.error}. Longer memory: journal.memory, or a directory in journal.dir.<//>` : html`<p class="dim">Asking the server.</p>`}<//>`;
  const next = d.candidates.filter((c) => !c.dropped && c.endpoint !== d.chosen && known(c.cost_ms)).sort(byCost(d))[0];
  const q = d.request;
  return html`<${Page} title=${"Why " + (d.chosen || "no replica")} lead=${html`<span class="id">${d.id}</span> at ${clock(d.time, true)}: ${q.model}${q.adapter ? ", adapter " + q.adapter : ""}${q.tenant ? ", tenant " + q.tenant : ""}, ${count(q.prompt_tokens)} prompt tokens; policy ${d.policy}, snapshot ${d.snapshot.version} (${ms(d.snapshot.age_ms)} old)`}
    right=${html`<div class="legend"><${Copy} label="Copy as Markdown" text=${() => markdown(d)} /><${Copy} label="JSON" text=${() => JSON.stringify(d, null, 2)} /></div>`}>
    <section class="panel" aria-label="the answer"><div class="body"><p class="answer">${d.chosen ? html`It went to <b>${d.chosen}</b>${d.why ? html`: ${d.why}` : ""}.` : html`No replica took it: ${d.why}.`}
      ${d.tie && d.tie.candidates > 1 ? ` ${d.tie.candidates} candidates were equal; the hash ${d.tie.key} decided.` : next && known(d.margin_ms) ? html` It was <b>${ms(d.margin_ms)}</b> cheaper than ${next.endpoint}.` : ""}
      ${d.demoted_by_load ? " A warmer replica was passed over because of its load." : ""}</p></div></section>
    <${Candidates} d=${d} />
    <div class="cols"><${Came} d=${d} /><${Again} d=${d} /></div>
  <//>`;
}
