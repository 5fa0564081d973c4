// SPDX-License-Identifier: Apache-2.0
// The last quarter of an hour of one pool: small charts with one cursor.
import { html } from "../lib/html.ts";
import { TimeChart, DataTable, colorOfMark, type Band, type Line } from "../lib/chart.ts";
import { clock, count, ms, pct, short } from "../lib/format.ts";
import type { Store } from "../lib/live.ts";
import type { Num } from "../lib/types.ts";
import { Empty } from "../lib/ui.ts";

export interface Range { from: number; to: number }

/** Changes when there is something new to draw. */
export function stampOf(s: Store, pool: string): string {
  const x = s.series.get(pool)?.x;
  return `${pool} ${x?.[x.length - 1] ?? 0} ${x?.length ?? 0} ${s.marks.length}`;
}

/** A young server fills the width: the axis grows with what is known. */
export const begin = (x: number[], end: number, seconds: number): number => Math.max(end - seconds, Math.min(x[0] ?? end, end - 120));

export function Strip(p: { pool: string; s: Store; one?: boolean; range?: Range; bands?: Band[]; onSelect?: (from: number, to: number) => void }) {
  const series = p.s.series.get(p.pool);
  if (!series || series.x.length === 0) return html`<${Empty} title="The first second is being measured">The server keeps the last 15 minutes in memory; a new server starts empty.<//>`;
  const x = series.x, end = x[x.length - 1]!;
  const from = p.range?.from ?? begin(x, end, 900), to = p.range?.to ?? end;
  const c = (name: string): Num[] => series.cols[name] ?? [];
  const marks = p.s.marks.filter((m) => !m.pool || m.pool === p.pool);
  const shared = { x, from, to, sync: "strip", marks, bands: p.bands, onSelect: p.onSelect, height: p.one ? 112 : 128, axis: p.one ? 94 : 52 };
  const ttft: Line[] = [{ label: "p95", color: "blue", values: c("ttft_p95_ms"), fill: true }, { label: "p50", color: "green", values: c("ttft_p50_ms"), dash: true }];
  const queue: Line[] = [{ label: "replicas", color: "orange", values: c("waiting") }, { label: "router", color: "purple", values: c("held") }, { label: "in flight", color: "grey", values: c("in_flight"), dash: true }];
  const kv: Line[] = [{ label: "fullest", color: "orange", values: c("kv_max") }, { label: "mean", color: "blue", values: c("kv_mean"), dash: true }];
  const replicas: Line[] = [{ label: "wanted", color: "purple", values: c("desired"), step: true }, { label: "ready", color: "green", values: c("ready"), step: true, fill: true }, { label: "present", color: "grey", values: c("replicas"), step: true, dash: true }];
  const hit: Line[] = [{ label: "actual", color: "blue", values: c("hit"), fill: true }, { label: "random", color: "orange", values: c("hit_random"), dash: true }, { label: "ceiling", color: "grey", values: c("hit_best"), dash: true }];
  const tokens: Line[] = [{ label: "prompt", color: "blue", values: c("prompt_tokens_per_s") }, { label: "output", color: "green", values: c("output_tokens_per_s") }];
  const events = marks.filter((m) => m.kind !== "phase" && Date.parse(m.time) / 1000 >= from && Date.parse(m.time) / 1000 <= to).slice(-60).reverse();
  return html`<div class="stack">
    <div class=${"charts" + (p.one ? " one" : "")}>
      <${TimeChart} ...${shared} title="Time to first token" lines=${ttft} format=${ms} min=${50} limit=${series.slo.ttft_ms} limitLabel=${"promised " + ms(series.slo.ttft_ms)} />
      <${TimeChart} ...${shared} title="Requests that wait" lines=${queue} format=${short} min=${4} />
      <${TimeChart} ...${shared} title="KV cache" lines=${kv} format=${pct} min=${0.9} />
      <${TimeChart} ...${shared} title="Replicas" lines=${replicas} format=${count} min=${3} />
      <${TimeChart} ...${shared} title="Prompt tokens from a cache" lines=${hit} format=${pct} min=${0.9} />
      <${TimeChart} ...${shared} title="Tokens a second" lines=${tokens} format=${short} min=${10} />
    </div>
    ${events.length > 0 && html`<ul class="events" tabindex="0" aria-label="events">${events.map((m) => html`<li key=${m.time + m.text}><time dateTime=${m.time}>${clock(m.time)}</time><span class="kind" style=${{ color: `var(--${colorOfMark(m.kind)})` }}>${m.kind}</span><span>${m.text}</span></li>`)}</ul>`}
    <${DataTable} x=${x} lines=${[...ttft, ...queue, ...kv.map((l) => ({ ...l, label: "KV " + l.label })), ...replicas]} format=${(v: Num | undefined, label: string) => (label[0] === "p" && label.length === 3 ? ms(v) : label.startsWith("KV") ? pct(v) : count(v))} />
  </div>`;
}
