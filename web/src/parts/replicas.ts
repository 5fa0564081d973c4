// SPDX-License-Identifier: Apache-2.0
// The replicas of a pool: tiles, or a table where there are many.
import { Component, html, useMemo, useState } from "../lib/html.ts";
import { DASH, count, known, ms, pct, secs } from "../lib/format.ts";
import { Empty, Panel, Track, byName, kvKind } from "../lib/ui.ts";
import type { Pool, Replica } from "../lib/types.ts";

export const PHASES = ["ready", "warming", "loading", "pulling", "pending", "draining", "asleep", "failed"];
const MOST_TILES = 48;
const PAGE = 100;

function elapsed(r: Replica): string {
  return r.phase_s === undefined ? r.phase : `${r.phase} ${secs(r.phase_s)}`;
}

const staleMS = 15_000;
function age(r: Replica): string {
  return known(r.age_ms) ? ms(r.age_ms) + (r.age_ms > staleMS ? " old" : "") : "never";
}

function Tile({ r }: { r: Replica }) {
  const say = [r.reason, r.dropped && "takes nothing: " + r.dropped, r.slow && "slow: probes time out", r.note && "metrics: " + r.note, known(r.age_ms) && r.age_ms > staleMS && `signals ${secs(r.age_ms / 1000)} old`].filter(Boolean);
  return html`<li class=${"tile t-" + r.phase + (known(r.age_ms) && r.age_ms > staleMS ? " stale" : "")}>
    <div class="head"><i class=${"pip p-" + (r.slow ? "slow" : r.phase)} aria-hidden="true"></i><b title=${r.id}>${r.id}</b><span>${elapsed(r)}</span></div>
    <div class="kv"><span>KV</span><${Track} value=${r.kv} kind=${kvKind(r.kv)} /><b>${pct(r.kv)}</b></div>
    <div class="nums"><div><b>${count(r.run)}</b>running</div><div><b>${count(r.wait)}</b>waiting</div><div><b>${pct(r.hit)}</b>hit</div><div><b>${known(r.ttft_p95_ms) ? ms(r.ttft_p95_ms) : DASH}</b>p95</div></div>
    ${r.adapters?.length ? html`<div class="chips">${r.adapters.map((a) => html`<span class="chip" key=${a}>${a}</span>`)}</div>` : null}
    ${say.length > 0 && html`<div class="say">${say.join("; ")}</div>`}
  </li>`;
}

const columns: [string, string, (r: Replica) => number | string, boolean][] = [
  ["id", "Replica", (r) => r.id, false], ["phase", "Phase", (r) => r.phase, false], ["run", "Running", (r) => r.run ?? -1, true],
  ["wait", "Waiting", (r) => r.wait ?? -1, true], ["in_flight", "In flight", (r) => r.in_flight, true], ["kv", "KV", (r) => r.kv ?? -1, true],
  ["hit", "Hit", (r) => r.hit ?? -1, true], ["ttft", "TTFT p95", (r) => r.ttft_p95_ms ?? -1, true], ["age", "Signal age", (r) => r.age_ms ?? 1e12, true],
];

/** A row that renders only when what it shows has changed: there may be hundreds. */
class RowView extends Component<{ r: Replica }> {
  private text = "";
  private cells(r: Replica): string[] {
    return [r.id, r.slow ? "slow" : r.phase, r.reason ?? "", count(r.run), count(r.wait), count(r.in_flight), pct(r.kv), pct(r.hit), ms(r.ttft_p95_ms), known(r.age_ms) && r.age_ms < 2000 ? "< 2 s" : age(r)];
  }
  override shouldComponentUpdate(next: { r: Replica }): boolean {
    return this.cells(next.r).join("|") !== this.text;
  }
  override render() {
    const r = this.props.r, c = this.cells(r);
    this.text = c.join("|");
    return html`<tr><td class="id">${c[0]}</td><td><i class=${"pip p-" + c[1]} style=${{ display: "inline-block", marginRight: "7px" }} aria-hidden="true"></i>${c[1]}${c[2] && html` <span class="dim">${c[2]}</span>`}</td>
      <td class="num">${c[3]}</td><td class="num">${c[4]}</td><td class="num">${c[5]}</td><td class="num">${c[6]}</td><td class="num">${c[7]}</td><td class="num">${c[8]}</td><td class="num">${c[9]}</td></tr>`;
  }
}

function Table({ replicas }: { replicas: Replica[] }) {
  const [sort, setSort] = useState<[string, boolean]>(["id", false]);
  const [filter, setFilter] = useState("");
  const [most, setMost] = useState(PAGE);
  const get = columns.find((c) => c[0] === sort[0])![2];
  const rows = useMemo(() => {
    const f = filter.toLowerCase();
    const list = replicas.filter((r) => !f || r.id.toLowerCase().includes(f) || r.phase.includes(f) || (r.adapters ?? []).some((a) => a.toLowerCase().includes(f)));
    list.sort((a, b) => {
      const x = get(a), y = get(b);
      const d = typeof x === "number" && typeof y === "number" ? x - y : byName(String(x), String(y));
      return (sort[1] ? -d : d) || byName(a.id, b.id);
    });
    return list;
  }, [replicas, filter, sort]);
  return html`<div class="stack">
    <div class="legend"><input class="field" type="search" placeholder="replica, phase or adapter" aria-label="filter replicas" value=${filter} onInput=${(e: Event) => setFilter((e.target as HTMLInputElement).value)} /><span>${count(rows.length)} of ${count(replicas.length)}</span></div>
    <div class="scroll tall" tabindex="0" role="group" aria-label="replicas"><table>
      <thead><tr>${columns.map(([key, name, , num]) => html`<th scope="col" class=${num ? "num" : ""} aria-sort=${sort[0] === key ? (sort[1] ? "descending" : "ascending") : undefined}><button onClick=${() => setSort([key, sort[0] === key ? !sort[1] : num])}>${name}${sort[0] === key ? (sort[1] ? " ↓" : " ↑") : ""}</button></th>`)}</tr></thead>
      <tbody>${rows.slice(0, most).map((r) => html`<${RowView} key=${r.id} r=${r} />`)}</tbody>
    </table></div>
    ${rows.length > most && html`<button class="btn" onClick=${() => setMost(most + 400)}>Show ${count(Math.min(400, rows.length - most))} more</button>`}
  </div>`;
}

export function Replicas({ pool }: { pool: Pool }) {
  const here = PHASES.filter((p) => pool.phases[p]);
  const legend = html`<div class="legend">${here.map((p) => html`<span key=${p}><i class=${"pip p-" + p} aria-hidden="true"></i>${pool.phases[p]} ${p}</span>`)}</div>`;
  let body;
  if (pool.replicas.length === 0) body = html`<${Empty} title="No replica was found" code="penstock config show">The pool names where replicas are found: a list, a file, DNS, or Kubernetes. None was listed there.<//>`;
  else if (pool.replicas.length > MOST_TILES) body = html`<${Table} replicas=${pool.replicas} />`;
  else body = html`<ul class="tiles" aria-label="replicas">${pool.replicas.map((r) => html`<${Tile} key=${r.id} r=${r} />`)}</ul>`;
  return html`<${Panel} title="Replicas" sub=${legend} cli=${"penstock status " + pool.name}>${body}<//>`;
}

