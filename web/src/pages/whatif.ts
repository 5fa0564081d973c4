// SPDX-License-Identifier: Apache-2.0
// How much does a router save that knows prefixes? The rule of thumb, the real
// simulator, and the traffic that this server saw.
import { html, useEffect, useRef, useState } from "../lib/html.ts";
import { REPLAYABLE, ask, upload } from "../lib/api.ts";
import { count, known, moment, ms, pct } from "../lib/format.ts";
import { useQuery } from "../lib/router.ts";
import { Empty, Page, Panel, Track } from "../lib/ui.ts";
import { OtherTargets } from "../parts/asked.ts";
import { Curve, Notes, PRESETS, Sentence, Slider, type Dot, type Knobs } from "../parts/knobs.ts";

interface Result { policy: string; hit_ratio: number; ttft_mean_ms: number; ttft_p50_ms: number; ttft_p99_ms: number; e2e_mean_ms: number; slo_share: number; imbalance: number; crowding: number; preemptions: number; requests: number; failed: number; requests_per_s: number }
interface Salted { cache_salt: string; hit: number; hit_lost: number; hit_lost_95: number; ceiling: number; computed: number; ttft_mean_ms: number }
interface Isolation { tenants: number; users_per_tenant: number; draws: number; runs: Salted[] }
interface Compare { replicas: number; shared: number; load: number; ceiling: number; requests: number; requests_per_s: number; results: Result[]; isolation?: Isolation }

const POLICIES = ["random", "round-robin", "least-requests", "prefix-affinity", "penstock"];

function Ran({ c, took }: { c: Compare; took: number }) {
  const best = (get: (r: Result) => number) => Math.min(...c.results.map(get));
  const strong = (v: number, b: number, text: string) => (v <= b * 1.001 ? html`<b>${text}</b>` : text);
  return html`<div class="stack"><p class="dim">${count(c.requests)} requests of conversations at ${c.requests_per_s.toFixed(1)} requests/s, the same for all; an endless cache would find ${pct(c.ceiling)}. ${c.results.length} policies in ${ms(took)}.</p>
    <div class="scroll" tabindex="0" role="group" aria-label="policies side by side"><table><thead><tr><th scope="col">Policy</th><th scope="col">Prompt tokens from a cache</th><th scope="col" class="num">Hit</th><th scope="col" class="num">TTFT mean</th><th scope="col" class="num">p50</th><th scope="col" class="num">p99</th><th scope="col" class="num">Whole answer</th><th scope="col" class="num">Within SLO</th><th scope="col" class="num" title="busy time of the busiest replica over the mean">Imbalance</th><th scope="col" class="num" title="requests at the fullest replica over the mean">Crowding</th><th scope="col" class="num">Preempted</th></tr></thead>
    <tbody>${c.results.map((r) => html`<tr key=${r.policy}><th scope="row">${r.policy}</th><td class="wide"><${Track} value=${r.hit_ratio} /></td><td class="num">${pct(r.hit_ratio, 1)}</td>
      <td class="num">${strong(r.ttft_mean_ms, best((x) => x.ttft_mean_ms), ms(r.ttft_mean_ms))}</td><td class="num">${strong(r.ttft_p50_ms, best((x) => x.ttft_p50_ms), ms(r.ttft_p50_ms))}</td><td class="num">${strong(r.ttft_p99_ms, best((x) => x.ttft_p99_ms), ms(r.ttft_p99_ms))}</td><td class="num">${ms(r.e2e_mean_ms)}</td><td class="num">${pct(r.slo_share, 1)}</td><td class="num">${r.imbalance.toFixed(2)}</td><td class="num">${r.crowding.toFixed(2)}</td><td class="num">${count(r.preemptions)}</td></tr>`)}</tbody></table></div></div>`;
}

function Parted({ k, load }: { k: Knobs; load: number }) {
  const [query, set] = useQuery();
  const tenants = clamp(Number(query.get("tenants") ?? 10), 1, 200);
  const users = clamp(Number(query.get("users") ?? 50), 1, 500);
  const [ran, setRan] = useState<{ i?: Isolation; error?: string; busy?: boolean }>({});
  const run = async () => {
    setRan((was) => ({ ...was, busy: true, error: undefined }));
    const a = await ask<Compare>("/api/v1/whatif", { replicas: k.r, shared: k.s, load, requests: 3000, seed: 1, policies: ["penstock"], tenants, users });
    if ("data" in a) setRan({ i: a.data.isolation });
    else setRan({ error: "error" in a ? a.error : "this server cannot run the simulator" });
  };
  return html`<${Panel} title="Part the caches" sub="what the settings of cacheSalt cost" right=${html`<button class="btn" disabled=${ran.busy} onClick=${() => void run()}>${ran.busy ? "Running" : "Measure the price"}</button>`} cli=${`penstock whatif --replicas ${k.r} --shared ${k.s} --tenants ${tenants} --users ${users}`}>
    <div class="stack">
      <div class="knobs"><${Slider} id="k-tenants" label="Tenants" value=${tenants} min=${1} max=${200} step=${1} show=${count(tenants)} set=${(v: number) => set({ tenants: String(v) })} /><${Slider} id="k-users" label="Users of each" value=${users} min=${1} max=${500} step=${1} show=${count(users)} set=${(v: number) => set({ users: String(v) })} /></div>
      ${ran.error && html`<p class="lost" role="alert">${ran.error}</p>`}
      ${ran.i ? html`<div class="scroll" tabindex="0" role="group" aria-label="price of isolation"><table><thead><tr><th scope="col">cacheSalt</th><th scope="col">Prompt tokens from a cache</th><th scope="col" class="num">Hit</th><th scope="col" class="num" title="points of the hit rate, with the 95 % interval">Lost</th><th scope="col" class="num">Endless cache</th><th scope="col" class="num" title="prompt tokens that replicas compute beside shared caches">Computed</th><th scope="col" class="num">TTFT mean</th></tr></thead>
      <tbody>${ran.i.runs.map((r, n) => html`<tr key=${r.cache_salt}><th scope="row">${r.cache_salt}</th><td class="wide"><${Track} value=${r.hit} /></td><td class="num">${pct(r.hit, 1)}</td><td class="num">${n ? `${(100 * r.hit_lost).toFixed(1)} ± ${(100 * r.hit_lost_95).toFixed(1)}` : "–"}</td><td class="num">${pct(r.ceiling, 1)}</td><td class="num">${r.computed.toFixed(2)} ×</td><td class="num">${ms(r.ttft_mean_ms)}</td></tr>`)}</tbody></table></div>
      <p class="dim">Means of ${ran.i.draws} draws of traffic. All tenants have the same system prompts here: where each has its own, parting them costs less.</p>` : html`<p class="dim">The same requests with caches that all share, that a tenant shares, and that one user has.</p>`}
    </div><//>`;
}

interface Replayed { policy: string; records: number; skipped: Record<string, number>; share_that_differs: number; extra_cost_ms: number; extra_cost_95_ms: number; estimated?: string }

interface Sent { name: string; from: string | null; to: string | null }

function Yours() {
  const [rows, set] = useState<Replayed[] | null>(null);
  const [sent, setSent] = useState<Sent | null>(null);
  const [error, setError] = useState("");
  const [busy, setBusy] = useState(false);
  const [over, setOver] = useState(false);
  const run = async () => {
    setError("");
    setSent(null);
    const out: Replayed[] = [];
    for (const p of REPLAYABLE) {
      const a = await ask<Replayed>("/api/v1/replay?policy=" + p);
      if ("data" in a) out.push(a.data);
      else setError("error" in a ? a.error : "this server cannot");
    }
    set(out);
  };
  const send = async (file: File | null | undefined) => {
    if (!file) return;
    setError("");
    setBusy(true);
    const a = await upload<{ from: string | null; to: string | null; results: Replayed[] }>("/api/v1/replay?" + REPLAYABLE.map((p) => "policy=" + p).join("&"), file);
    setBusy(false);
    if ("data" in a) {
      setSent({ name: file.name, from: a.data.from, to: a.data.to });
      set(a.data.results);
    } else setError("error" in a ? a.error : "this server cannot");
  };
  const drop = (e: DragEvent) => {
    e.preventDefault();
    setOver(false);
    void send(e.dataTransfer?.files[0]);
  };
  const n = rows?.[0]?.records ?? 0;
  return html`<${Panel} title="Your traffic" sub="recorded decisions, asked again" right=${html`<button class="btn" onClick=${() => void run()}>Ask about the last decisions</button>`} cli="penstock replay JOURNAL --policy least-requests">
    <div class="stack"><div class=${"drop" + (over ? " over" : "")} onDragOver=${(e: DragEvent) => { e.preventDefault(); setOver(true); }} onDragLeave=${() => setOver(false)} onDrop=${drop}>
      <label for="journal-file">${busy ? "Reading" : "Or drop a journal here, a .jsonl of journal.dir"}</label><input id="journal-file" type="file" accept=".jsonl,.ndjson,.json,application/x-ndjson" disabled=${busy} onChange=${(e: Event) => void send((e.target as HTMLInputElement).files?.[0])} /></div>
    ${error && html`<p role="alert" class="lost">${error}</p>`}
    ${sent && html`<p class="dim" role="status">${sent.name}${sent.from && sent.to ? `: ${moment(sent.from)} to ${moment(sent.to)}` : ": no decision in it"}. Nothing of it is kept.</p>`}
    ${rows === null ? html`<p class="dim">Each recorded decision is a question of its own: what would another policy have picked in that very state, and at what predicted cost?</p>` : n === 0 ? html`<${Empty} title="Nothing to ask yet">No decision has prices. They come with the policy penstock and some traffic.<//>` : html`
      <div class="scroll" tabindex="0" role="group" aria-label="other policies on recorded decisions"><table><thead><tr><th scope="col">Policy</th><th scope="col" class="num">Decisions</th><th scope="col" class="num">Picks that differ</th><th scope="col" class="num">Predicted cost of a request</th><th scope="col">95 % interval</th></tr></thead>
      <tbody>${rows.map((r) => html`<tr key=${r.policy}><th scope="row">${r.policy}</th><td class="num">${count(r.records)}</td><td class="num">${pct(r.share_that_differs, 1)}</td><td class="num"><b>${known(r.extra_cost_ms) ? (r.extra_cost_ms > 0 ? "+" : "") + ms(r.extra_cost_ms) : "–"}</b></td><td>${ms(r.extra_cost_ms - r.extra_cost_95_ms)} to ${ms(r.extra_cost_ms + r.extra_cost_95_ms)}</td></tr>`)}</tbody></table></div>
      <p class="dim">Priced by our own model, so penstock comes out best by construction; what other picks would have done to later states is not followed. To play the traffic through the simulator: <code>penstock sim compare --journal DIR</code>.</p>`}</div>
  <//>`;
}

export function WhatIf() {
  const [query, set] = useQuery();
  const k: Knobs = { r: clamp(Number(query.get("r") ?? 8), 1, 64), s: clamp(Number(query.get("s") ?? 0.7), 0.01, 0.99), w: 0.8 };
  const load = clamp(Number(query.get("load") ?? 0.5), 0.05, 1.5);
  const [ran, setRan] = useState<{ c?: Compare; took: number; error?: string; busy?: boolean }>({ took: 0 });
  const [dots, setDots] = useState<Dot[]>([]);
  const asked = useRef("");
  const live = query.get("run") === "1";
  const run = async () => {
    const key = `${k.r}|${k.s}|${load}`;
    asked.current = key;
    setRan((was) => ({ ...was, busy: true, error: undefined }));
    const start = performance.now();
    const a = await ask<Compare>("/api/v1/whatif", { replicas: k.r, shared: k.s, load, requests: 3000, seed: 1, policies: POLICIES });
    if (asked.current !== key) return;
    if ("data" in a) {
      setRan({ c: a.data, took: performance.now() - start });
      const of = (p: string) => a.data.results.find((r) => r.policy === p)?.hit_ratio ?? 0;
      setDots((was) => [...was.filter((d) => d.replicas !== k.r), { replicas: k.r, random: of("random"), aware: of("penstock") }]);
    } else setRan({ took: 0, error: "error" in a ? a.error : "this server cannot run the simulator" });
  };
  const wasShared = useRef(k.s);
  useEffect(() => {
    if (wasShared.current !== k.s) setDots([]);
    wasShared.current = k.s;
    if (!live) return;
    const t = setTimeout(() => void run(), 250);
    return () => clearTimeout(t);
  }, [k.r, k.s, load, live]);
  return html`<${Page} title="What if?" lead="How much does a router save that knows which replica holds a prompt's prefix? First the rule of thumb, then the simulator with the production picker.">
    <${Panel} title="Two knobs" right=${PRESETS.map(([name, r, s]) => html`<button class="btn" key=${name} aria-pressed=${k.r === r && k.s === s} onClick=${() => set({ r: String(r), s: String(s) })}>${name}</button>`)} cli=${`penstock whatif --replicas ${k.r} --shared ${k.s}`}>
      <div class="stack">
        <div class="knobs"><${Slider} id="k-r" label="Replicas, R" value=${k.r} min=${1} max=${64} step=${1} show=${String(k.r)} set=${(v: number) => set({ r: String(v) })} /><${Slider} id="k-s" label="Share of prompt tokens that was sent before, s" value=${k.s} min=${0.01} max=${0.99} step=${0.01} show=${pct(k.s)} set=${(v: number) => set({ s: String(v) })} /></div>
        <${Sentence} k=${k} /><div class="figure"><${Curve} k=${k} dots=${dots} /><${Notes} k=${k} /></div>
      </div><//>
    <${Panel} title="Run it" sub="with eviction, skew, imbalance and queues" right=${html`<button class="btn" aria-pressed=${live} onClick=${() => set({ run: live ? null : "1" })}>Follow the knobs</button><button class="btn primary" disabled=${ran.busy} onClick=${() => void run()}>${ran.busy ? "Running" : "Run it"}</button>`}>
      <div class="stack">
        <div class="knobs"><${Slider} id="k-load" label="Load, of what the fleet carries without a cache" value=${load} min=${0.05} max=${1.5} step=${0.05} show=${pct(load)} set=${(v: number) => set({ load: String(v) })} /></div>
        ${ran.error && html`<p class="lost" role="alert">${ran.error}</p>`}
        ${ran.c ? html`<${Ran} c=${ran.c} took=${ran.took} />` : html`<p class="dim">Plays 3,000 requests under each of ${POLICIES.length} policies; the simulator runs the same code that routes real requests.</p>`}
      </div><//>
    <${Parted} k=${k} load=${load} />
    <${Yours} />
    <${OtherTargets} />
    <p class="dim">As one file to pass on, without a server: <code>penstock whatif --html whatif.html</code></p>
  <//>`;
}

function clamp(v: number, lo: number, hi: number): number {
  return Number.isFinite(v) ? Math.min(hi, Math.max(lo, v)) : lo;
}

