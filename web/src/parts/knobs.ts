// SPDX-License-Identifier: Apache-2.0
// The rule of thumb with two knobs. It needs no server; the same numbers come from
// the command line, and a golden table keeps the two equal.
import { html } from "../lib/html.ts";
import { DASH, pct } from "../lib/format.ts";

export interface Knobs { r: number; s: number; w: number }
export interface Dot { replicas: number; random: number; aware: number }

/** Hit ratios by the rule of thumb: random s/R, aware 0.8 s. */
export function rule(s: number, r: number): { random: number; aware: number; saved: number } {
  const aware = 0.8 * s;
  return { random: s / Math.max(1, r), aware, saved: 0.5 * aware };
}

export const PRESETS: [string, number, number][] = [["8 replicas, 70 % shared", 8, 0.7], ["agents: 16, 90 %", 16, 0.9], ["few share: 8, 20 %", 8, 0.2], ["two replicas", 2, 0.7]];

export function Slider(p: { label: string; value: number; min: number; max: number; step: number; show: string; set: (v: number) => void; id: string }) {
  return html`<div class="knob"><label for=${p.id}>${p.label}<output for=${p.id}>${p.show}</output></label><input id=${p.id} type="range" min=${p.min} max=${p.max} step=${p.step} value=${p.value} aria-valuetext=${p.show} onInput=${(e: Event) => p.set(Number((e.target as HTMLInputElement).value))} /></div>`;
}

export function Sentence({ k }: { k: Knobs }) {
  const f = rule(k.s, k.r);
  return html`<p class="big" role="status">With <b>${k.r} ${k.r === 1 ? "replica" : "replicas"}</b> and <b>${pct(k.s)}</b> of prompt tokens shareable, random balancing finds <b class="c-random">${pct(f.random, 1)}</b> of all prompt tokens in a cache, cache-aware routing <b class="c-aware">${pct(f.aware, 1)}</b>. That saves about <b>${pct(f.saved, 0)}</b> of the computing.</p>`;
}

const W = 760, H = 300, L = 44, R = 108, T = 16, B = 34;
const X = (r: number) => L + ((W - L - R) * Math.log2(r)) / 6;
const Y = (v: number) => T + (H - T - B) * (1 - v);

function path(f: (r: number) => number): string {
  let d = "";
  for (let i = 0; i <= 120; i++) {
    const r = 2 ** (i / 20);
    d += `${i ? "L" : "M"}${X(r).toFixed(1)} ${Y(f(r)).toFixed(1)}`;
  }
  return d;
}

export function Curve({ k, dots }: { k: Knobs; dots: Dot[] }) {
  const f = rule(k.s, k.r);
  let ya = Y(rule(k.s, 64).aware), yr = Y(rule(k.s, 64).random);
  if (yr - ya < 16) { ya -= (16 - (yr - ya)) / 2; yr = ya + 16; }
  return html`<div><svg class="curve" viewBox=${`0 0 ${W} ${H}`} role="img" aria-label=${`hit ratio over the number of replicas; at ${k.r}: random ${pct(f.random, 1)}, cache-aware ${pct(f.aware, 1)}`}>
    ${[0, 0.25, 0.5, 0.75, 1].map((v) => html`<g key=${v}><line class="grid" x1=${L} x2=${W - R} y1=${Y(v)} y2=${Y(v)} /><text x=${L - 8} y=${Y(v) + 4} text-anchor="end">${pct(v)}</text></g>`)}
    ${[1, 2, 4, 8, 16, 32, 64].map((r) => html`<text key=${r} x=${X(r)} y=${H - 12} text-anchor="middle">${r}</text>`)}
    <text x=${W - R + 18} y=${H - 12}>replicas</text>
    <line class="at" x1=${X(k.r)} x2=${X(k.r)} y1=${T} y2=${H - B} />
    <path class="random" d=${path((r) => rule(k.s, r).random)} /><path class="aware" d=${path((r) => rule(k.s, r).aware)} />
    <text class="lbl fa" x=${W - R + 8} y=${ya + 4}>cache-aware</text><text class="lbl fr" x=${W - R + 8} y=${yr + 4}>random</text>
    <circle class="fa" cx=${X(k.r)} cy=${Y(f.aware)} r="4.5" /><circle class="fr" cx=${X(k.r)} cy=${Y(f.random)} r="4.5" />
    ${dots.map((d) => html`<g key=${d.replicas}><rect class="da" x=${X(d.replicas) - 4.5} y=${Y(d.aware) - 4.5} width="9" height="9" /><rect class="dr" x=${X(d.replicas) - 4.5} y=${Y(d.random) - 4.5} width="9" height="9" /></g>`)}
  </svg>
  <div class="legend"><span class="c-aware">●</span><span>rule of thumb at ${k.r}</span>${dots.length ? html`<span>□ measured by the simulator</span>` : null}</div>
  <details class="data"><summary>the numbers as a table</summary><div class="scroll" tabindex="0" role="group" aria-label="rule of thumb by replicas"><table><thead><tr><th scope="col" class="num">Replicas</th><th scope="col" class="num">Random s/R</th><th scope="col" class="num">Aware 0.8 s</th><th scope="col" class="num">Random, measured</th><th scope="col" class="num">Aware, measured</th></tr></thead>
    <tbody>${[...new Set([1, 2, 4, 8, 16, 32, 64, k.r, ...dots.map((d) => d.replicas)])].sort((a, b) => a - b).map((r) => { const x = rule(k.s, r), d = dots.find((y) => y.replicas === r); return html`<tr key=${r}><td class="num">${r}</td><td class="num">${pct(x.random, 1)}</td><td class="num">${pct(x.aware, 1)}</td><td class="num">${d ? pct(d.random, 1) : DASH}</td><td class="num">${d ? pct(d.aware, 1) : DASH}</td></tr>`; })}</tbody></table></div></details></div>`;
}

export function Notes({ k }: { k: Knobs }) {
  return html`<ul class="notes">
    ${k.r === 1 && html`<li><b>With one replica there is nothing to route.</b> Every router finds what its cache holds, near ${pct(k.s)}; the rule gives random more than aware here because it applies its factor 0.8 to one side only.</li>`}
    <li>s/R is where random balancing starts. A miss leaves a copy behind, so in time it finds more: prefixes that many share end up on every replica.</li>
    <li>0.8 s allows for cold starts and for blocks that are not whole. While the caches hold all that is shared, routing finds more; once they are full it finds less.</li>
    <li>Half of the hits is saved computing, since decoding costs as much as before. Where prompts are long and answers short it is more.</li>
    <li>The rule knows no queue: a router that only follows prefixes makes hot spots. The simulator has eviction, skew, imbalance and queues, and runs the picker that is in production.</li>
  </ul>`;
}
