// SPDX-License-Identifier: Apache-2.0
// The what-if page as one file: no server, no network. What the simulator measured
// when the file was written stands in it.
import "./app.css";
import { html, render, useEffect, useState } from "./lib/html.ts";
import { count, ms, pct } from "./lib/format.ts";
import { Panel, Page } from "./lib/ui.ts";
import { Curve, Notes, PRESETS, Sentence, Slider, type Dot, type Knobs } from "./parts/knobs.ts";

interface Measured { replicas: number; shared: number; requests: number; ceiling: number; measured: { random: number; aware: number }; ttft_mean_ms: { random: number; aware: number } }
const measured: Measured[] | null = JSON.parse(document.getElementById("measured")?.textContent ?? "null");

const read = (): Knobs => {
  const q = new URLSearchParams(location.hash.slice(1));
  const first = measured?.[0];
  const num = (k: string, d: number, lo: number, hi: number) => Math.min(hi, Math.max(lo, Number(q.get(k) ?? d) || d));
  return { r: num("r", first?.replicas ?? 8, 1, 64), s: num("s", first?.shared ?? 0.7, 0.01, 0.99), w: 0.8 };
};

function App() {
  const [k, set] = useState(read());
  useEffect(() => {
    const f = () => set(read());
    addEventListener("hashchange", f);
    return () => removeEventListener("hashchange", f);
  }, []);
  const to = (r: number, s: number) => {
    history.replaceState(null, "", `#r=${r}&s=${s}`);
    set({ r, s, w: 0.8 });
  };
  const near = (measured ?? []).filter((m) => Math.abs(m.shared - k.s) < 0.005);
  const dots: Dot[] = near.map((m) => ({ replicas: m.replicas, random: m.measured.random, aware: m.measured.aware }));
  return html`<main id="main"><${Page} title="What if?" lead="How much does a router save that knows which replica holds a prompt's prefix? This page works without a network.">
    <${Panel} title="Two knobs" right=${PRESETS.map(([name, r, s]) => html`<button class="btn" key=${name} aria-pressed=${k.r === r && k.s === s} onClick=${() => to(r, s)}>${name}</button>`)} cli=${`penstock whatif --replicas ${k.r} --shared ${k.s}`}>
      <div class="stack"><div class="knobs"><${Slider} id="k-r" label="Replicas, R" value=${k.r} min=${1} max=${64} step=${1} show=${String(k.r)} set=${(v: number) => to(v, k.s)} /><${Slider} id="k-s" label="Share of prompt tokens that was sent before, s" value=${k.s} min=${0.01} max=${0.99} step=${0.01} show=${pct(k.s)} set=${(v: number) => to(k.r, v)} /></div>
      <${Sentence} k=${k} /><div class="figure"><${Curve} k=${k} dots=${dots} /><${Notes} k=${k} /></div></div><//>
    ${measured?.length ? html`<${Panel} title="Measured" sub="by the simulator, with the production picker, when this file was written">
      <div class="scroll" tabindex="0" role="group" aria-label="measured"><table><thead><tr><th scope="col" class="num">Replicas</th><th scope="col" class="num">Shared</th><th scope="col" class="num">Requests</th><th scope="col" class="num">Random finds</th><th scope="col" class="num">Aware finds</th><th scope="col" class="num">Endless cache</th><th scope="col" class="num">TTFT random</th><th scope="col" class="num">TTFT aware</th></tr></thead>
      <tbody>${measured.map((m) => html`<tr class=${m.replicas === k.r && near.includes(m) ? "won" : ""}><td class="num">${m.replicas}</td><td class="num">${pct(m.shared)}</td><td class="num">${count(m.requests)}</td><td class="num">${pct(m.measured.random, 1)}</td><td class="num">${pct(m.measured.aware, 1)}</td><td class="num">${pct(m.ceiling, 1)}</td><td class="num">${ms(m.ttft_mean_ms.random)}</td><td class="num">${ms(m.ttft_mean_ms.aware)}</td></tr>`)}</tbody></table></div><//>` : null}
  <//></main>`;
}

const app = document.getElementById("app")!;
render(html`<${App} />`, app);
