// SPDX-License-Identifier: Apache-2.0
// Tenants: what they used of what they may, and who was refused and why.
import { html } from "../lib/html.ts";
import { count, known, pct, words } from "../lib/format.ts";
import { usePart, usePoll } from "../lib/live.ts";
import { Empty, Page, Panel, Track } from "../lib/ui.ts";
import type { Num } from "../lib/types.ts";

interface Limit { per?: string | number; window?: string; name?: string; kind?: string; limit?: Num; tokens?: Num; requests?: Num; used?: Num; reserved?: Num; debt?: Num; resets_in_s?: Num; resets_at?: string }
interface Tenant { name?: string; tenant?: string; weight?: Num; limits?: Limit[]; quotas?: Limit[]; refused?: Record<string, number> | { reason: string; count: number }[]; in_flight?: Num; queued?: Num; held?: Num; requests?: Num; tokens?: Num }

const limitOf = (l: Limit): Num => l.limit ?? l.tokens ?? l.requests ?? null;

function Quota({ l }: { l: Limit }) {
  const most = limitOf(l), used = l.used ?? null, reserved = l.reserved ?? null;
  const share = known(most) && known(used) && most > 0 ? (used + (reserved ?? 0)) / most : null;
  return html`<div class="kv" style=${{ gridTemplateColumns: "minmax(0,110px) minmax(80px,1fr) minmax(0,150px)" }}><span>${words(l.name ?? l.kind ?? "tokens")} per ${l.per ?? l.window ?? "?"}</span><${Track} value=${share} kind=${known(share) && share >= 1 ? "bad" : known(share) && share >= 0.9 ? "warn" : ""} /><b title=${reserved ? `${count(reserved)} of it reserved` : ""}>${count(used)}${reserved ? ` + ${count(reserved)}` : ""} / ${count(most)}${share !== null ? ` (${pct(share)})` : ""}</b></div>`;
}

const refusals = (t: Tenant): [string, number][] => (Array.isArray(t.refused) ? t.refused.map((r): [string, number] => [r.reason, r.count]) : Object.entries(t.refused ?? {})).filter(([, n]) => n > 0);

export function Tenants() {
  const a = usePoll<{ tenants?: Tenant[] } | Tenant[]>(usePart("tenants", "/api/v1/tenants"), 2000);
  const list = Array.isArray(a.data) ? a.data : a.data?.tenants ?? [];
  return html`<${Page} title="Tenants" lead="Quotas used and reserved, and who was refused and why.">
    <${Panel} title="Quotas" sub="used + reserved for what runs" cli="penstock status -o json">
      ${a.loading ? html`<p class="dim">Asking the server.</p>` : list.length === 0 ? html`<${Empty} title="No tenants" code=${"auth: {keysFile: keys.yaml}\ntenants:\n  - {name: acme, weight: 1, limits: [{per: 1m, tokens: 200000}]}"}>${a.error ? a.error + ". " : ""}Make keys with <code>penstock key create</code>, name their tenants, and see here what each used and who was refused.<//>` : html`
      <div class="scroll" tabindex="0" role="group" aria-label="tenants"><table><thead><tr><th scope="col">Tenant</th><th scope="col">Quotas</th><th scope="col" class="num">Weight</th><th scope="col" class="num">In flight</th><th scope="col">Refused</th></tr></thead>
      <tbody>${list.map((t) => { const name = t.name ?? t.tenant ?? ""; return html`<tr key=${name}><th scope="row"><a href=${"/decisions"}>${name || "anonymous"}</a></th><td class="wide"><div class="stack" style=${{ gap: "6px" }}>${(t.limits ?? t.quotas ?? []).map((l, i) => html`<${Quota} key=${i} l=${l} />`)}${(t.limits ?? t.quotas ?? []).length === 0 ? html`<span class="dim">no limit</span>` : null}</div></td><td class="num">${known(t.weight) ? t.weight : "–"}</td><td class="num">${count(t.in_flight)}</td><td>${refusals(t).length ? refusals(t).map(([why, n]) => html`<div key=${why}><b>${count(n)}</b> ${words(why)}</div>`) : html`<span class="dim">none</span>`}</td></tr>`; })}</tbody></table></div>`}
    <//>
  <//>`;
}

