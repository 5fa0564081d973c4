// SPDX-License-Identifier: Apache-2.0
// The first page: are users fine, what binds, what does the system do about it.
import { html } from "../lib/html.ts";
import { useScale, useStore, type Store } from "../lib/live.ts";
import { clock, count, known, ms, pct, plural, short } from "../lib/format.ts";
import { Ago, Cli, Empty, Panel, State, Still, Track, kvKind } from "../lib/ui.ts";
import { useQuery } from "../lib/router.ts";
import { Strip, stampOf } from "../parts/strip.ts";
import { Replicas, PHASES } from "../parts/replicas.ts";
import { DecisionFeed } from "../parts/feed.ts";
import type { Live, Pool, Recommendation } from "../lib/types.ts";

function Pips({ pool }: { pool: Pool }) {
  const many = pool.replicas.length > 64;
  const stamp = pool.replicas.map((r) => (r.slow ? "slow" : r.phase)).join();
  const shown = pool.replicas.slice(0, 320);
  const text = PHASES.filter((p) => pool.phases[p]).map((p) => `${pool.phases[p]} ${p}`).join(", ");
  return html`<${Still} stamp=${stamp} draw=${() => html`<div class=${"pips" + (many ? " many" : "")} role="img" aria-label=${text || "no replicas"}>${
    shown.map((r) => html`<i key=${r.id} class=${"pip p-" + (r.slow ? "slow" : r.phase)} title=${`${r.id} ${r.phase}`}></i>`)}</div>`} />`;
}

function Hit({ pool }: { pool: Pool }) {
  const r = pool.recent;
  const rows: [string, number | null, string][] = [["actual", r.hit, ""], ["random", r.hit_random, "grey"], ["ceiling", r.hit_best, "grey"]];
  return html`<div class="bars">${rows.map(([name, v, kind]) => html`<div class="bar"><span>${name}</span><${Track} value=${v} kind=${kind} /><b>${pct(v)}</b></div>`)}</div>`;
}

function ScaleFact({ pool, rec, none }: { pool: Pool; rec?: Recommendation; none: string }) {
  if (!rec) {
    return html`<div class="fact"><dt>Scaling</dt><dd><div class="v">${pool.phases.ready ?? 0}<small> of ${pool.replicas.length} ready</small></div><div class="d">${none}</div></dd></div>`;
  }
  return html`<div class="fact"><dt>Scaling</dt><dd><div class="v">${pool.phases.ready ?? 0}<small> ready, wants </small>${count(rec.desired)}</div>
    <div class="d"><a href=${"/scale/" + encodeURIComponent(pool.name)}>${rec.sentence || rec.binding || "why"}</a></div></dd></div>`;
}

function PoolCard({ pool, live, rec, none }: { pool: Pool; live: Live; rec?: Recommendation; none: string }) {
  const v = pool.verdict, now = pool.now, r = pool.recent;
  const over = known(r.ttft_p95_ms) && known(pool.slo.ttft_ms) && r.ttft_p95_ms > pool.slo.ttft_ms;
  const waits = known(now.waiting) || known(now.held) ? (now.waiting ?? 0) + (now.held ?? 0) : null;
  return html`<article class="pool" aria-label=${"pool " + pool.name}>
    <div class=${"verdict v-" + v.state}>
      <div class="line"><${State} state=${v.state} /><b>${pool.name}</b><span>for <${Ago} at=${v.since} now=${live.time} /></span><span>policy ${pool.policy}</span>
        <span>${pool.models.join(", ")}</span></div>
      <p class="say">${v.sentence}</p>
      <${Cli} cmd=${v.command} />
    </div>
    <dl class="facts">
      <div class="fact"><dt>${plural(pool.replicas.length, "replica")}</dt><dd><${Pips} pool=${pool} />
        <div class="d">${PHASES.filter((p) => pool.phases[p]).map((p) => `${pool.phases[p]} ${p}`).join(", ") || "none"}</div></dd></div>
      <div class="fact"><dt>TTFT p95, promised ${ms(pool.slo.ttft_ms)}</dt><dd><div class=${"v" + (over ? " over" : "")}>${ms(r.ttft_p95_ms)}</div><div class="d">p50 ${ms(r.ttft_p50_ms)}, last minute</div></dd></div>
      <div class="fact"><dt>Waiting</dt><dd><div class="v">${count(waits)}</div><div class="d">${count(now.held)} in the router, ${count(now.waiting)} at replicas; ${count(now.in_flight)} in flight</div></dd></div>
      <div class="fact"><dt>KV cache, fullest</dt><dd><div class="v">${pct(now.kv_max)}</div><${Track} value=${now.kv_max} kind=${kvKind(now.kv_max)} /><div class="d">mean ${pct(now.kv_mean)}</div></dd></div>
      <div class="fact"><dt>Tokens a second</dt><dd><div class="v">${short(now.prompt_tokens_per_s)}<small> in</small> ${short(now.output_tokens_per_s)}<small> out</small></div>
        <div class="d">${known(now.requests_per_s) ? now.requests_per_s.toFixed(1) : "–"} requests/s, ${count(r.failed)} failed in the last minute</div></dd></div>
      <div class="fact"><dt>Prompt tokens from a cache</dt><dd><${Hit} pool=${pool} /></dd></div>
      <${ScaleFact} pool=${pool} rec=${rec} none=${none} />
    </dl>
  </article>`;
}

function Findings({ live }: { live: Live }) {
  if (!live.findings.length) return null;
  return html`<${Panel} title="Findings" sub=${plural(live.findings.length, "finding")} cli="penstock diagnose" right=${html`<a class="btn" href="/incident">On a time axis</a>`}>
    <ul class="plain">${live.findings.slice(0, 6).map((f) => html`<li key=${f.code + f.object}><${State} state=${f.severity} /><div><b>${f.code}</b> <span class="dim">${f.object}</span><br />${f.message}<br /><span class="dim">${f.remedy}</span></div></li>`)}</ul>
    ${live.findings.length > 6 && html`<p class="dim">and ${live.findings.length - 6} more</p>`}
  <//>`;
}

export function pickPool(s: Store, query: URLSearchParams): Pool | undefined {
  const pools = s.live?.pools ?? [];
  return pools.find((p) => p.name === query.get("pool")) ?? pools[0];
}

export function PoolPicker({ s }: { s: Store }) {
  const [query, set] = useQuery();
  const pools = s.live?.pools ?? [];
  if (pools.length < 2) return null;
  const here = pickPool(s, query)?.name;
  return html`<div class="seg" role="group" aria-label="pool">${pools.map((p) => html`<button key=${p.name} aria-pressed=${p.name === here} onClick=${() => set({ pool: p.name })}>${p.name}</button>`)}</div>`;
}

export function Overview() {
  const s = useStore(500);
  const [query] = useQuery();
  const scale = useScale();
  const live = s.live;
  if (!live) return html`<h1>Overview</h1><p class="dim">Asking the server.</p>`;
  const pool = pickPool(s, query);
  const none = scale.absent ? "no scaler runs here" : scale.data ? "no recommendation for this pool" : "what the scaler wants is not known yet";
  const stale = s.age() > 5;
  return html`<h1 class="vh">Overview</h1>
    <div class=${"stack" + (stale ? " stale" : "")}>
      ${!live.ready && html`<p class="lost">Not ready: ${live.reason}</p>`}
      ${!live.config.reload_ok && live.config.error && html`<p class="lost">The last reload failed and changed nothing: ${live.config.error}</p>`}
      ${live.pools.map((p) => html`<${PoolCard} key=${p.name} pool=${p} live=${live} rec=${scale.list.find((r) => r.pool === p.name)} none=${none} />`)}
      ${live.pools.length === 0 && html`<${Empty} title="No pool is configured" code="penstock serve --replica http://127.0.0.1:8000">A pool is a set of replicas that serve the same models.<//>`}
      ${pool && html`
        <${Panel} title="The last 15 minutes" sub=${`to ${clock(live.time)}`} right=${html`<${PoolPicker} s=${s} /><a class="btn" href=${"/incident?pool=" + encodeURIComponent(pool.name)}>Incident view</a>`} cli="penstock top">
          <${Still} stamp=${stampOf(s, pool.name)} draw=${() => html`<${Strip} pool=${pool.name} s=${s} />`} />
        <//>
        <${Findings} live=${live} />
        <${Still} stamp=${pool.name + (pool.replicas.length > 100 ? Math.floor(Date.parse(live.time) / 1500) : live.time)} draw=${() => html`<${Replicas} pool=${pool} />`} />
        <${Still} stamp=${pool.name} draw=${() => html`<${Panel} title="Decisions as they end" right=${html`<a class="btn" href="/decisions">All</a>`} cli="penstock explain --last"><${DecisionFeed} pool=${pool} most=${14} /><//>`} />`}
    </div>
    <p class="vh" role="status">${live.pools.map((p) => `${p.name}: ${p.verdict.state}`).join("; ")}</p>`;
}

