// SPDX-License-Identifier: Apache-2.0
// Tenants: what they used of what they may, and who was refused and why.
import { html } from "../lib/html.ts";
import { count, known, plural, secs, words } from "../lib/format.ts";
import { usePart, usePoll } from "../lib/live.ts";
import { Empty, Page, Panel, Track } from "../lib/ui.ts";

interface Quota { measure: string; period?: string; model?: string; key?: string; limit: number; used: number; reserved: number; left: number; charged: number; reset_s: number }
interface Tenant { name: string; weight: number; logging: string; cache_salt: string; pools?: string[]; quotas: Quota[] | null; refused: Record<string, number> | null }
interface TenantList { store: { up: boolean; gateways: number; borrowed: number; failures: number } | null; tenants: Tenant[] }

// A duration of Go without its zeros: 1h0m0s is 1h.
const period = (p: string): string => p.replace(/^(\d+h)0m0s$/, "$1").replace(/^((?:\d+h)?\d+m)0s$/, "$1");

function Bar({ q }: { q: Quota }) {
  const share = q.limit > 0 ? (q.used + q.reserved) / q.limit : null;
  const what = `${words(q.measure)}${q.period ? " per " + period(q.period) : ""}${q.model ? ", " + q.model : ""}${q.key ? ", key " + q.key : ""}`;
  return html`<div class="quota"><span>${what}</span><${Track} value=${share} kind=${!known(share) ? "grey" : share >= 1 ? "bad" : share >= 0.9 ? "warn" : ""} />
    <b>${count(q.used)}${q.reserved > 0 ? html` <span class="dim">+ ${count(q.reserved)} reserved</span>` : ""} / ${count(q.limit)}${q.left < 0 ? html` <span style=${{ color: "var(--red)" }}>debt ${count(-q.left)}</span>` : ""}</b><span class="dim">${q.reset_s > 0 ? "full again in " + secs(q.reset_s) : ""}</span></div>`;
}

const refusals = (t: Tenant): [string, number][] => Object.entries(t.refused ?? {}).filter(([, n]) => n > 0).sort((a, b) => b[1] - a[1]);

export function Tenants() {
  const a = usePoll<TenantList>(usePart("tenants", "/api/v1/tenants"), 2000);
  const list = a.data?.tenants ?? [], store = a.data?.store;
  return html`<${Page} title="Tenants" lead="Quotas used and reserved, and who was refused and why.">
    <${Panel} title="Quotas" sub="used + reserved for what runs" cli="penstock status -o json">
      ${a.loading ? html`<p class="dim">Asking the server.</p>` : list.length === 0 && a.error ? html`<${Empty} title="Not known" code="penstock status">The answer is missing: ${a.error}.<//>` : list.length === 0 ? html`<${Empty} title="No tenants" code=${"auth: {keysFile: keys.yaml}\ntenants:\n  - {name: acme, weight: 1, limits: [{per: 1m, tokens: 200000}]}"}>Make keys with <code>penstock key create</code>, name their tenants, and see here what each used and who was refused.<//>` : html`
      ${store && html`<p class=${store.up ? "dim" : "lost"}>${store.up ? `Limits are shared with ${plural(Math.max(0, store.gateways - 1), "other gateway")}` : "The store of quotas does not answer; this gateway goes on with what it had leased"}${store.borrowed > 0 ? `; ${count(store.borrowed)} units were taken while it was away` : ""}.</p>`}
      <div class="scroll" tabindex="0" role="group" aria-label="tenants"><table><thead><tr><th scope="col">Tenant</th><th scope="col">Quotas</th><th scope="col">Refused</th><th scope="col" class="num">Weight</th><th scope="col">Prompts are logged</th><th scope="col">Caches are shared by</th></tr></thead>
      <tbody>${list.map((t) => html`<tr key=${t.name}><th scope="row">${t.name}${t.pools ? html`<br /><span class="dim">only ${t.pools.join(", ")}</span>` : ""}</th><td class="wide"><div class="stack" style=${{ gap: "6px" }}>${(t.quotas ?? []).map((q, i) => html`<${Bar} key=${i} q=${q} />`)}${(t.quotas ?? []).length === 0 ? html`<span class="dim">no limit</span>` : null}</div></td>
        <td>${refusals(t).length ? refusals(t).map(([why, n]) => html`<div key=${why}><b>${count(n)}</b> ${words(why)}</div>`) : html`<span class="dim">nobody</span>`}</td><td class="num">${t.weight}</td><td>${t.logging || "metadata"}</td><td>${!t.cache_salt || t.cache_salt === "shared" ? "everybody" : t.cache_salt}</td></tr>`)}</tbody></table></div>`}
    <//>
  <//>`;
}

