// SPDX-License-Identifier: Apache-2.0
// What happened: user latency, queue, KV, replicas by phase and what was done, on
// one time axis. A finding highlights the time in which it held.
import { html } from "../lib/html.ts";
import { cli } from "../lib/api.ts";
import { clock, count, known, ms, pct, secs } from "../lib/format.ts";
import { usePoll, useStore, type Store } from "../lib/live.ts";
import { useQuery } from "../lib/router.ts";
import { Copy, Empty, Page, Panel, State, Still, byName } from "../lib/ui.ts";
import { Strip, begin, stampOf, type Range } from "../parts/strip.ts";
import { PoolPicker, pickPool } from "./overview.ts";
import type { Num, Series, Span } from "../lib/types.ts";

const MOST_LANES = 40;
type Held = Series["findings"][number];
const at = (t: string): number => Date.parse(t) / 1000;

function Gantt({ spans, range, hi }: { spans: Span[]; range: Range; hi?: Held }) {
  const len = range.to - range.from;
  const place = (from: number, to: number) => {
    const a = Math.max(0, (from - range.from) / len), b = Math.min(1, (to - range.from) / len);
    return { left: 100 * a + "%", width: 100 * Math.max(0.002, b - a) + "%" };
  };
  const lanes = new Map<string, Span[]>();
  for (const s of spans) {
    if (at(s.from) > range.to || (s.to && at(s.to) < range.from)) continue;
    const l = lanes.get(s.replica ?? "");
    if (l) l.push(s);
    else lanes.set(s.replica ?? "", [s]);
  }
  // Those that changed come first: the others have nothing to tell.
  const names = [...lanes.keys()].sort((a, b) => Number(lanes.get(b)!.length > 1) - Number(lanes.get(a)!.length > 1) || byName(a, b));
  const shown = names.slice(0, MOST_LANES).sort((a, b) => byName(a, b));
  if (!shown.length) return html`<p class="dim">No replica was there.</p>`;
  return html`<div class="gantt">${shown.map((name) => {
    const list = lanes.get(name)!;
    return html`<div class="lane" key=${name}><span title=${name}>${name}</span><div class="rail" role="img" aria-label=${`${name}: ` + list.map((s) => `${s.phase} from ${clock(s.from)}`).join(", ")}>
      ${list.map((s) => html`<i class=${"p-" + s.phase} style=${place(at(s.from), s.to ? at(s.to) : range.to)} title=${`${s.phase} ${clock(s.from)} to ${s.to ? clock(s.to) : "now"}${s.reason ? ": " + s.reason : ""}`}></i>`)}
      ${hi && html`<i class="hi" style=${place(at(hi.from), hi.to ? at(hi.to) : range.to)}></i>`}</div></div>`;
  })}
  ${names.length > shown.length && html`<p class="dim">and ${names.length - shown.length} more that did not change</p>`}
  <div class="legend">${["ready", "slow", "loading", "warming", "pending", "draining", "failed"].filter((p) => spans.some((s) => s.phase === p)).map((p) => html`<span key=${p}><i class=${"pip p-" + p} aria-hidden="true"></i>${p}</span>`)}</div></div>`;
}

/** Findings of a pool, its replicas, or no pool in particular, that held at some time of the range. */
const held = (series: Series, pool: string, range: Range): Held[] => series.findings.filter((f) =>
  (f.object === "pool " + pool || f.object.startsWith(`replica ${pool}/`) || !f.object.includes(" ")) && at(f.from) <= range.to && (!f.to || at(f.to) >= range.from));

const most = (v: Num[]): Num => v.reduce<Num>((m, x) => (known(x) && (!known(m) || x > m) ? x : m), null);

function markdown(pool: string, s: Store, series: Series, range: Range): string {
  const data = s.series.get(pool);
  const inside = (name: string): Num[] => (data ? (data.cols[name] ?? []).filter((_, i) => data.x[i]! >= range.from && data.x[i]! <= range.to) : []);
  const lines = [`## ${pool}, ${new Date(range.from * 1000).toISOString()} to ${new Date(range.to * 1000).toISOString()}`, ``,
    `| | highest |`, `|---|---|`, `| TTFT p95 | ${ms(most(inside("ttft_p95_ms")))} (promised ${ms(data?.slo.ttft_ms)}) |`, `| waiting at replicas | ${count(most(inside("waiting")))} |`, `| held by the router | ${count(most(inside("held")))} |`,
    `| KV cache, fullest | ${pct(most(inside("kv_max")))} |`, `| failed a second | ${known(most(inside("failed_per_s"))) ? most(inside("failed_per_s"))!.toFixed(1) : "–"} |`, ``, `### Findings`, ``];
  const found = held(series, pool, range);
  lines.push(...(found.length ? found.map((f) => `- **${f.code}** (${f.severity}) ${f.object}, ${clock(f.from)} to ${f.to ? clock(f.to) : "now"}: ${f.message} ${f.remedy}`) : ["none"]));
  lines.push(``, `### Events`, ``, ...s.marks.filter((m) => (!m.pool || m.pool === pool) && at(m.time) >= range.from && at(m.time) <= range.to).map((m) => `- ${clock(m.time)} ${m.text}`));
  lines.push(``, "`" + cli("penstock diagnose bundle") + "` collects the records behind this.");
  return lines.join("\n");
}

export function Incident() {
  const s = useStore(1000);
  const [query, set] = useQuery();
  const series = usePoll<Series>("/api/v1/series", 3000).data;
  const pool = pickPool(s, query);
  if (!pool || !series || !s.past) return html`<${Page} title="Incident"><p class="dim">Asking the server.</p><//>`;
  const data = s.series.get(pool.name);
  const end = data?.x[data.x.length - 1] ?? series.end;
  const last = Number(query.get("last") ?? 15);
  const fixed = query.get("from") && query.get("to");
  const range: Range = fixed ? { from: at(query.get("from")!), to: at(query.get("to")!) } : { from: begin(data?.x ?? [], end, last * 60), to: end };
  const mine = held(series, pool.name, range)
    .sort((a, b) => Number(!!a.to) - Number(!!b.to) || at(b.from) - at(a.from));
  const key = (f: Held) => f.code + "|" + f.object + "|" + f.from;
  const hi = mine.find((f) => key(f) === query.get("finding"));
  const bands = hi ? [{ from: at(hi.from), to: hi.to ? at(hi.to) : range.to, color: "amber" }] : [];
  const iso = (t: number) => new Date(t * 1000).toISOString().replace(".000", "");
  return html`<${Page} title="Incident" lead=${`${clock(range.from * 1000)} to ${clock(range.to * 1000)}. Drag over a chart to look closer; the address restores what you see.`}
    right=${html`<div class="legend"><${PoolPicker} s=${s} /><div class="seg" role="group" aria-label="time">${[5, 15].map((m) => html`<button key=${m} aria-pressed=${!fixed && last === m} onClick=${() => set({ last: String(m), from: null, to: null })}>last ${m} min</button>`)}</div>
      ${fixed ? html`<button class="btn" onClick=${() => set({ from: null, to: null })}>All</button>` : html`<button class="btn" onClick=${() => set({ from: iso(range.from), to: iso(range.to) })}>Hold this time</button>`}
      <${Copy} label="Copy as Markdown" text=${() => markdown(pool.name, s, series, range)} /></div>`}>
    <div class="side">
      <${Panel} title="Findings" cli="penstock diagnose"><div class="stack">
        ${mine.length === 0 && html`<${Empty} title="Nothing was found wrong">Findings appear here with the time in which they held.<//>`}
        ${mine.map((f) => html`<button class="finding" key=${key(f)} aria-pressed=${hi === f} onClick=${() => set({ finding: hi === f ? null : key(f) })}><span class="line"><${State} state=${f.severity} />${clock(f.from)} ${f.to ? `for ${secs(at(f.to) - at(f.from))}` : "until now"}</span><b>${f.code}</b><p>${f.message}</p><p class="dim">${f.remedy}</p></button>`)}
      </div><//>
      <div class="stack">
        <${Panel} title="Replicas by phase"><${Gantt} spans=${series.phases.filter((x) => x.pool === pool.name)} range=${range} hi=${hi} /><//>
        <${Panel} title="What users and replicas saw" cli="penstock diagnose bundle"><${Still} stamp=${stampOf(s, pool.name) + JSON.stringify([range, bands])} draw=${() => html`<${Strip} pool=${pool.name} s=${s} one range=${range} bands=${bands} onSelect=${(a: number, b: number) => set({ from: iso(a), to: iso(b) })} />`} /><//>
      </div>
    </div>
  <//>`;
}
