// SPDX-License-Identifier: Apache-2.0
// One scaling decision: what each signal asks for, and how the number came to be.
import { html, useState } from "../lib/html.ts";
import { ask } from "../lib/api.ts";
import { clock, count, known, ms, pct, secs, words } from "../lib/format.ts";
import { usePart, usePoll, useScale, useStore, whoIs } from "../lib/live.ts";
import { Cli, Empty, Page, Panel, State } from "../lib/ui.ts";
import type { Num, Recommendation } from "../lib/types.ts";

const plain = (v: Num | undefined): string => (known(v) ? (Math.abs(v) >= 100 || Number.isInteger(v) ? count(v) : v.toFixed(2)) : "–");
const withUnit = (v: Num | undefined, unit?: string): string => (!known(v) ? "–" : unit === "ms" ? ms(v) : unit === "s" ? ms(1000 * v) : unit === "ratio" || unit === "share" ? pct(v) : plain(v) + (unit ? " " + unit : ""));

function Waterfall({ r }: { r: Recommendation }) {
  const steps = r.constraints;
  const most = Math.max(1, r.raw, r.desired ?? 0, ...steps.map((s) => Math.max(s.before, s.after)));
  const w = (n: number) => (100 * n) / most + "%";
  return html`<div class="fall" role="list">
    <div class="step" role="listitem"><div><b>asked for</b><small>${r.rule?.name ?? "the rule in charge"}</small></div><div class="bed"><i class="full" style=${{ left: 0, width: w(r.raw) }}></i></div><b>${count(r.raw)}</b></div>
    ${steps.map((s) => {
      const low = Math.min(s.before, s.after), d = s.after - s.before;
      return html`<div class="step" role="listitem" key=${s.name}><div>${words(s.name)}<small>${s.detail ?? ""}${s.until ? ` until ${clock(s.until)}` : ""}</small></div>
        <div class="bed"><i class="rest" style=${{ left: 0, width: w(low) }}></i>${d !== 0 && html`<i class=${d < 0 ? "cut" : "add"} style=${{ left: w(low), width: w(Math.abs(d)) }}></i>`}</div>
        <b>${d === 0 ? html`<span class="dim">${s.after}</span>` : `${d > 0 ? "+" : "−"}${Math.abs(d)} → ${s.after}`}</b></div>`;
    })}
    <div class="step" role="listitem"><div><b>wanted</b><small>${r.binding ? "decided by " + words(r.binding) : ""}</small></div><div class="bed"><i class="full" style=${{ left: 0, width: w(r.desired ?? 0) }}></i></div><b>${count(r.desired)}</b></div>
  </div>`;
}

function Signals({ r }: { r: Recommendation }) {
  const list = r.signals;
  if (!list.length) return html`<${Empty} title="No signal is known yet">The scaler holds what is there until it has seen traffic.<//>`;
  const top = Math.max(...list.map((s) => s.desired ?? -1));
  return html`<div class="scroll" tabindex="0" role="group" aria-label="signals"><table><thead><tr><th scope="col">Signal</th><th scope="col" class="num">Value</th><th scope="col" class="num">Target</th><th scope="col" class="num">Ratio</th><th scope="col" class="num">Asks for</th><th scope="col" class="num">Age</th></tr></thead>
    <tbody>${list.map((s) => html`<tr key=${s.name} class=${known(s.desired) && s.desired === top && top > 0 ? "won" : ""}><th scope="row">${words(s.name)}${s.note ? html`<br /><span class="dim">${s.note}</span>` : ""}</th>
      <td class="num">${withUnit(s.value, s.unit)}</td><td class="num">${s.target ? withUnit(s.target, s.unit) : "–"}</td><td class="num">${s.ratio ? s.ratio.toFixed(2) : "–"}</td><td class="num">${s.desired ? count(s.desired) : "–"}</td><td class="num">${ms(s.age_ms)}</td></tr>`)}</tbody></table></div>`;
}

function Rules({ r }: { r: Recommendation }) {
  const cell = (x: Num | undefined) => (known(x) ? (x < 1 ? pct(x, 2) : plain(x)) : "–");
  if (!r.rule && !r.next_cheaper) return null;
  return html`<${Panel} title="The rule in charge" sub="the cheapest one whose remembered misses meet the budget"><dl class="deflist">
    ${r.rule && html`<dt>in charge</dt><dd>${r.rule.name ?? ""}: ${r.rule.cost ? plain(r.rule.cost) : "not yet known"} replicas in the mean, ${cell(r.rule.misses)} missed</dd>`}
    ${r.next_cheaper && html`<dt>next cheaper</dt><dd>${r.next_cheaper.name ?? ""}: ${r.next_cheaper.cost ? plain(r.next_cheaper.cost) : "not yet known"} replicas, ${cell(r.next_cheaper.misses)} missed${r.next_cheaper.why_not ? html`<br /><span class="dim">${r.next_cheaper.why_not}</span>` : ""}</dd>`}
  </dl><//>`;
}

function Learned({ r }: { r: Recommendation }) {
  return html`<${Panel} title="What it knows"><dl class="deflist"><dt>offered work</dt><dd>${plain(r.offered)}${r.unit ? html` <span class="dim">${r.unit}</span>` : ""}; one replica carries ${plain(r.per_replica)}</dd>
    <dt>attainment</dt><dd>${pct(r.attained, 1)} since the start, aimed at ${pct(r.attainment, 1)}</dd><dt>start of a replica</dt><dd>${secs(r.start_p50_s)} in the middle, ${secs(r.start_p90_s)} at p90</dd><dt>traffic seen for</dt><dd>${secs(r.known_for_s)}; ${count(r.reversals_1h)} reversals in the last hour</dd></dl><//>`;
}

function Pending({ r, now }: { r: Recommendation; now: string }) {
  const list = r.pending;
  return html`<${Panel} title="On the way" sub=${list.length ? "counted already" : ""}>
    ${list.length === 0 ? html`<p class="dim">Nothing is pending.</p>` : html`<div class="scroll" tabindex="0" role="group" aria-label="pending replicas"><table><thead><tr><th scope="col">Replica</th><th scope="col">Phase</th><th scope="col" class="num">Since</th><th scope="col" class="num">Ready in</th></tr></thead><tbody>
      ${list.map((p) => html`<tr key=${p.id}><th scope="row" class="id">${p.id}</th><td>${p.phase}${p.reason ? html` <span class="dim">${p.reason}</span>` : ""}</td><td class="num">${p.since ? secs((Date.parse(now) - Date.parse(p.since)) / 1000) : "–"}</td><td class="num">${p.overdue ? html`<b style=${{ color: "var(--red)" }}>overdue</b>` : p.ready_at ? secs(Math.max(0, (Date.parse(p.ready_at) - Date.parse(now)) / 1000)) : "–"}</td></tr>`)}
    </tbody></table></div>`}
    ${r.victims.length ? html`<p class="dim">Would go first: ${r.victims.slice(0, 5).join(", ")}</p>` : null}
  <//>`;
}

function History({ pool }: { pool: string }) {
  const a = usePoll<{ recommendations: Recommendation[] }>(`/api/v1/scale/${encodeURIComponent(pool)}/history?limit=50`, 5000);
  const rows = a.data?.recommendations ?? []; // newest first
  if (!rows.length) return null;
  return html`<${Panel} title="Before" cli=${"penstock explain scale " + pool}><div class="scroll tall" tabindex="0" role="group" aria-label="earlier recommendations"><table><thead><tr><th scope="col">Time</th><th scope="col" class="num">Current</th><th scope="col" class="num">Asked</th><th scope="col" class="num">Wanted</th><th scope="col">Why</th></tr></thead>
    <tbody>${rows.map((r) => html`<tr key=${r.time}><td class="id">${clock(r.time)}</td><td class="num">${count(r.current)}</td><td class="num">${count(r.raw)}</td><td class="num"><b>${count(r.desired)}</b></td><td>${r.sentence || words(r.binding ?? "")}</td></tr>`)}</tbody></table></div><//>`;
}

function Controls({ r, reload }: { r: Recommendation; reload: () => void }) {
  const [said, say] = useState("");
  const act = async (what: string) => {
    const body = what === "pin" ? { replicas: r.desired ?? r.current } : {};
    const a = await ask(`/api/v1/scale/${encodeURIComponent(r.pool)}/${what}`, body);
    say("error" in a ? a.error : "absent" in a ? "this server cannot" : "done");
    reload();
  };
  if (!whoIs().operate) return null;
  const held = r.paused || known(r.pinned);
  return html`<div class="legend">${held ? html`<button class="btn" onClick=${() => void act("resume")}>Resume</button>` : html`<button class="btn" onClick=${() => void act("pause")}>Pause</button><button class="btn" onClick=${() => void act("pin")}>Pin at ${count(r.desired)}</button>`}<span role="status">${said}</span></div>`;
}

function One({ pool }: { pool: string }) {
  const s = useStore(1000);
  const [n, again] = useState(0);
  const a = usePoll<Recommendation>(usePart("scale", `/api/v1/scale/${encodeURIComponent(pool)}${n ? "?again=" + n : ""}`), 2000);
  if (!a.data) return a.loading ? html`<${Page} title=${"Scaling " + pool}><p class="dim">Asking the server.</p><//>` : html`<${Page} title=${"Scaling " + pool}><${Nothing} error=${a.error} /><//>`;
  const r = a.data, now = s.live?.time ?? r.time;
  const blocked = r.scale_down_blocked;
  return html`<${Page} title=${"Scaling " + pool} lead=${`evaluated ${clock(r.time)}${r.next_evaluation ? ", again " + clock(r.next_evaluation) : ""}; mode ${r.mode}${r.hand ? ", hand " + r.hand : ""}`} right=${html`<${Controls} r=${r} reload=${() => again(n + 1)} />`}>
    <section class="panel" aria-label="the answer"><div class="body"><p class="answer">${r.sentence || `${count(r.current)} replicas, wants ${count(r.desired)}.`}</p>
      <p class="dim">${count(r.ready)} ready of ${count(r.current)}${r.paused ? "; paused" : ""}${blocked?.why || blocked?.until ? `; scale-down waits${blocked.until ? " until " + clock(blocked.until) : ""}${blocked.why ? ": " + blocked.why : ""}` : ""}${r.applied?.error ? `; the last change failed: ${r.applied.error}` : r.applied?.at ? `; last change ${clock(r.applied.at)}` : ""}</p>${r.no_opinion ? html`<p class="dim">No opinion: ${r.no_opinion}</p>` : null}${r.owner ? html`<p class="dim">${r.owner} moves this object; the scaler does not act against it.</p>` : null}${r.blocked ? html`<p class="dim">Nothing can be added: ${r.blocked}</p>` : null}
      ${r.conditions.map((c) => html`<p key=${c.code} class="dim"><b>${c.code}</b>: ${c.message}</p>`)}<${Cli} cmd=${"penstock explain scale " + pool} /></div></section>
    <div class="cols"><${Panel} title="From asked to wanted"><${Waterfall} r=${r} /><//><${Panel} title="Signals" sub="what each would ask for by itself"><${Signals} r=${r} /><//></div>
    <div class="cols"><${Pending} r=${r} now=${now} /><div class="stack"><${Rules} r=${r} /><${Learned} r=${r} /></div></div>
    <${History} pool=${pool} />
  <//>`;
}

function Nothing({ error }: { error?: string }) {
  if (error) return html`<${Empty} title="Not known" code="penstock scale status">The answer is missing: ${error}.<//>`;
  return html`<${Empty} title="No scaler runs here" code=${"pools:\n  - name: chat\n    scale: {mode: recommend, min: 1, max: 8, attainment: 99%}"}>With mode recommend a pool shows what it would have and changes nothing; with mode act a hand moves the replicas.<//>`;
}

export function Scaling({ pool }: { pool: string }) {
  return pool ? html`<${One} pool=${pool} key=${pool} />` : html`<${List} />`;
}

function List() {
  const s = useStore(1000);
  const { list, error } = useScale();
  return html`<${Page} title="Scaling" lead="How many replicas each pool has, how many it wants, and what decided it.">
    <${Panel} title="Pools" cli="penstock explain scale">
      ${list.length === 0 ? html`<${Nothing} error=${error} />` : html`<div class="scroll" tabindex="0" role="group" aria-label="pools"><table><thead><tr><th scope="col">Pool</th><th scope="col">State</th><th scope="col" class="num">Ready</th><th scope="col" class="num">Current</th><th scope="col" class="num">Wanted</th><th scope="col">Why</th></tr></thead>
        <tbody>${list.map((r) => { const p = s.live?.pools.find((x) => x.name === r.pool); return html`<tr key=${r.pool}><th scope="row"><a href=${"/scale/" + encodeURIComponent(r.pool)}>${r.pool}</a></th><td>${p && html`<${State} state=${p.verdict.state} />`}</td><td class="num">${count(r.ready)}</td><td class="num">${count(r.current)}</td><td class="num"><b>${count(r.desired)}</b></td><td>${r.sentence || words(r.binding ?? "")}</td></tr>`; })}</tbody></table></div>`}
    <//>
  <//>`;
}
