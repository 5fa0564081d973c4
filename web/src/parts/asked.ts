// SPDX-License-Identifier: Apache-2.0
// What the scaler would have kept with other targets, over the evaluations in memory.
import { html, useEffect, useRef, useState } from "../lib/html.ts";
import { ask } from "../lib/api.ts";
import { TimeChart, DataTable, type Line } from "../lib/chart.ts";
import { count, pct, secs } from "../lib/format.ts";
import { useScale } from "../lib/live.ts";
import { useQuery } from "../lib/router.ts";
import { Empty, Panel } from "../lib/ui.ts";
import type { Num } from "../lib/types.ts";

interface Fleet { replica_hours: number; peak: number; reversals: number; short_seconds: number }
interface Step { at: string; then: number; then_ready: number; now: number; now_ready: number; now_sentence: string }
interface Asked { pool: string; seconds: number; ticks: number; then: Fleet; now: Fleet; points: Step[] }
interface Targets { attainment?: number; min?: number; max?: number; idle_after_s?: number }

const SHARES = ["0.95", "0.98", "0.99", "0.995"];

/** A field of the address as a number; undefined where it is empty or none. */
function whole(s: string | null): number | undefined {
  const n = Number(s);
  return s === null || s === "" || !Number.isInteger(n) || n < 0 ? undefined : n;
}

function Field(p: { id: string; label: string; value: string; set: (v: string | null) => void }) {
  return html`<label class="ask" for=${p.id}>${p.label}<input class="field" id=${p.id} type="number" min="0" max="1000" step="1" inputmode="numeric" placeholder="as it is" value=${p.value} onChange=${(e: Event) => p.set((e.target as HTMLInputElement).value || null)} /></label>`;
}

function flags(t: Targets): string {
  return [t.attainment && `--attainment ${100 * t.attainment}%`, t.min !== undefined && `--min ${t.min}`, t.max !== undefined && `--max ${t.max}`].filter(Boolean).join(" ");
}

function Result({ a }: { a: Asked }) {
  const x = a.points.map((p) => Date.parse(p.at) / 1000);
  const to = (x[0] ?? 0) + a.seconds;
  const line = (get: (p: Step) => Num) => [...a.points.map(get), a.points.length ? get(a.points[a.points.length - 1]!) : null];
  const lines: Line[] = [
    { label: "ready, as asked", color: "blue", values: line((p) => p.now_ready), step: true, fill: true },
    { label: "wanted, as asked", color: "purple", values: line((p) => p.now), step: true, dash: true },
    { label: "ready, as it was", color: "grey", values: line((p) => p.then_ready), step: true },
  ];
  const less = a.then.replica_hours > 0 ? a.now.replica_hours / a.then.replica_hours - 1 : 0;
  const short = a.now.short_seconds - a.then.short_seconds;
  const row = (name: string, f: Fleet) => html`<tr><th scope="row">${name}</th><td class="num">${f.replica_hours.toFixed(2)}</td><td class="num">${count(f.peak)}</td><td class="num">${count(f.reversals)}</td><td class="num">${secs(f.short_seconds)}</td></tr>`;
  return html`<div class="stack"><p class="answer">${less === 0 ? "The same replica-hours" : `${less > 0 ? "+" : "−"}${pct(Math.abs(less))} replica-hours`}, and ${Math.abs(short) < 1 ? "as much time short of work as it was" : `${secs(Math.abs(short))} ${short > 0 ? "more" : "less"} in which more work came than ready replicas carry`}.</p>
    <${TimeChart} x=${[...x, to]} from=${x[0] ?? to} to=${to} title=${`Replicas over ${secs(a.seconds)}`} lines=${lines} format=${count} min=${3} height=${150} />
    <div class="scroll" tabindex="0" role="group" aria-label="cost of both"><table><thead><tr><th scope="col">Targets</th><th scope="col" class="num">Replica-hours</th><th scope="col" class="num">Peak</th><th scope="col" class="num">Reversals</th><th scope="col" class="num">Short of work</th></tr></thead><tbody>${row("as it was", a.then)}${row("as asked", a.now)}</tbody></table></div>
    <${DataTable} x=${[...x, to]} lines=${lines} format=${(v: Num | undefined) => count(v)} />
    <p class="dim">The work that was offered is as recorded; the fleet is played, with the start-up time that was known. What waited is as recorded, though another fleet would have changed it, and the scaler that is asked begins without what the real one had learned before.</p></div>`;
}

/** Asks the scaler of one pool about other targets. The targets stand in the address. */
export function OtherTargets() {
  const [query, set] = useQuery();
  const { list, error } = useScale();
  const pool = query.get("pool") ?? list[0]?.pool ?? "";
  const share = query.get("aim") ?? "";
  const t: Targets = { attainment: SHARES.includes(share) ? Number(share) : undefined, min: whole(query.get("min")), max: whole(query.get("max")) };
  const [got, setGot] = useState<{ a?: Asked; error?: string; busy?: boolean }>({});
  const turn = useRef(0);
  const given = t.attainment !== undefined || t.min !== undefined || t.max !== undefined;
  const run = async () => {
    const mine = ++turn.current;
    setGot((was) => ({ ...was, busy: true, error: undefined }));
    const r = await ask<Asked>(`/api/v1/scale/${encodeURIComponent(pool)}/ask`, t);
    if (mine !== turn.current) return;
    setGot("data" in r ? { a: r.data } : { error: "error" in r ? r.error : "this server has no scaler" });
  };
  useEffect(() => {
    if (pool && given) void run();
  }, [pool, share, t.min, t.max]);
  return html`<${Panel} title="Other targets" sub="the scaler asked again over the last hour at most" right=${html`<button class="btn primary" disabled=${!pool || got.busy} onClick=${() => void run()}>${got.busy ? "Running" : "Ask the scaler"}</button>`} cli=${`penstock scale replay JOURNAL ${flags(t) || "--attainment 95%"}`}>
    ${list.length === 0 ? html`<${Empty} title=${error ? "Not known" : "No scaler runs here"}>${error ? `The answer is missing: ${error}.` : html`A pool with <code>scale.mode: recommend</code> keeps what it evaluates, and can be asked.`}<//>` : html`<div class="stack">
      <div class="knobs">
        <label class="ask" for="ask-pool">Pool<select class="field" id="ask-pool" onChange=${(e: Event) => set({ pool: (e.target as HTMLSelectElement).value })}>${list.map((r) => html`<option key=${r.pool} value=${r.pool} selected=${r.pool === pool}>${r.pool}</option>`)}</select></label>
        <label class="ask" for="ask-aim">Requests in time<select class="field" id="ask-aim" onChange=${(e: Event) => set({ aim: (e.target as HTMLSelectElement).value || null })}><option value="" selected=${share === ""}>as it is</option>${SHARES.map((s) => html`<option key=${s} value=${s} selected=${s === share}>${100 * Number(s)} %</option>`)}</select></label>
        <${Field} id="ask-min" label="Least replicas" value=${query.get("min") ?? ""} set=${(v: string | null) => set({ min: v })} />
        <${Field} id="ask-max" label="Most replicas" value=${query.get("max") ?? ""} set=${(v: string | null) => set({ max: v })} />
      </div>
      ${got.error && html`<p class="lost" role="alert">${got.error}</p>`}
      ${got.a ? html`<${Result} a=${got.a} />` : html`<p class="dim">What would 95 % in time have saved, or a third replica have cost, on the traffic that came?</p>`}
    </div>`}
  <//>`;
}
