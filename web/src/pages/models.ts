// SPDX-License-Identifier: Apache-2.0
// Models, and where their adapters are.
import { html } from "../lib/html.ts";
import { count, ms } from "../lib/format.ts";
import { useStore } from "../lib/live.ts";
import { Empty, Page, Panel } from "../lib/ui.ts";
import type { AdapterSummary, Pool } from "../lib/types.ts";

const MOST = 32;

function Adapters({ pool }: { pool: Pool }) {
  const list = pool.adapters ?? [];
  if (!list.length) return html`<${Empty} title="No adapters" code=${"pools:\n  - name: chat\n    models: [{name: llama-3.1-8b, adapters: [legal, sql]}]"}>None is configured, and no replica showed one. A LoRA adapter is served beside its base model; the picker prices what loading it costs.<//>`;
  const replicas = pool.replicas.slice(0, MOST);
  const at = (a: AdapterSummary, id: string) => a.at.find((x) => x.replica === id);
  const mark: Record<string, string> = { running: "●", resident: "○", waiting: "…", loading: "…" };
  return html`<div class="scroll" tabindex="0" role="group" aria-label="adapters by replica"><table><thead><tr><th scope="col">Adapter</th><th scope="col" class="num">Listed</th><th scope="col" class="num">In slots</th>${replicas.map((r) => html`<th scope="col" class="id" key=${r.id}>${r.id}</th>`)}</tr></thead>
    <tbody>${list.map((a) => html`<tr key=${a.name}><th scope="row">${a.name}</th><td class="num">${a.listed}/${pool.replicas.length}</td><td class="num">${a.holders}</td>${replicas.map((r) => { const x = at(a, r.id); return html`<td key=${r.id} title=${x ? `${x.state}, seen ${ms(x.age_ms)} ago` : "not in a slot"}>${x ? html`${mark[x.state] ?? "?"}<span class="vh">${x.state}</span>` : html`<span class="dim">·</span>`}</td>`; })}</tr>`)}</tbody></table></div>
    <div class="legend" style=${{ marginTop: "8px" }}><span>● runs now</span><span>○ in a slot</span><span>… is loaded or waits</span><span>· not there, as far as known</span>${pool.replicas.length > MOST ? html`<span>the first ${MOST} of ${count(pool.replicas.length)} replicas</span>` : null}</div>`;
}

export function Models() {
  const s = useStore(1000);
  const pools = s.live?.pools ?? [];
  return html`<${Page} title="Models and adapters" lead="What each pool serves, and which replica holds which adapter.">
    ${pools.map((p) => html`<${Panel} key=${p.name} title=${p.name} sub=${`serves ${p.models.join(", ") || "what its replicas list"}`} cli=${`penstock status ${p.name} --adapters`}><${Adapters} pool=${p} /><//>`)}
  <//>`;
}
