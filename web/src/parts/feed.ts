// SPDX-License-Identifier: Apache-2.0
// Decisions as they end, with pause and filter.
import { Component, html, useEffect, useState } from "../lib/html.ts";
import { clock, count, known, ms, pct, words } from "../lib/format.ts";
import { store, useStore } from "../lib/live.ts";
import { Empty } from "../lib/ui.ts";
import { go } from "../lib/router.ts";
import { ask } from "../lib/api.ts";
import type { Decision, Pool, Row } from "../lib/types.ts";

/** Rows never change once shown. */
class RowView extends Component<{ r: Row }> {
  override shouldComponentUpdate(): boolean {
    return false;
  }
  override render() {
    const r = this.props.r, to = "/decisions/" + encodeURIComponent(r.id);
    const bad = r.kind !== "ok" && r.kind !== "";
    return html`<tr class=${store.calm ? "go fresh" : "go"} onClick=${() => go(to)}>
      <td class="id">${clock(r.time, true)}</td><td class="id"><a href=${to} onClick=${(e: Event) => e.stopPropagation()}>${r.id}</a></td>
      <td>${r.model}${r.adapter ? html` <span class="chip">${r.adapter}</span>` : ""}${r.tenant ? html` <span class="dim">${r.tenant}</span>` : ""}</td>
      <td class="id">${r.replica || "none"}</td><td>${bad ? html`<b style=${{ color: "var(--red)" }}>${words(r.kind)}${r.status ? " " + r.status : ""}</b> ` : ""}${r.why}</td>
      <td class="num">${count(r.prompt)}</td><td class="num">${known(r.cached) && r.prompt ? pct(r.cached / r.prompt) : "–"}</td><td class="num">${ms(r.queue_ms)}</td><td class="num">${ms(r.ttft_ms)}</td></tr>`;
  }
}

function rowOf(d: Decision): Row {
  const o = d.outcome;
  return {
    id: d.id, time: d.time, pool: d.pool ?? "", tenant: d.request.tenant, model: d.request.model, adapter: d.request.adapter, replica: d.chosen, why: d.why ?? "",
    kind: o?.kind ?? "", status: o?.status ?? 0, ttft_ms: o?.ttft_ms ?? null, e2e_ms: o?.e2e_ms ?? null, queue_ms: o?.queue_ms ?? 0,
    prompt: o?.prompt_tokens ?? d.request.prompt_tokens, cached: o?.cached_tokens ?? null, predicted: o?.predicted_cached_tokens ?? 0, output: o?.output_tokens ?? null,
  };
}

export function DecisionFeed({ pool, most, filters }: { pool?: Pool; most: number; filters?: boolean }) {
  const s = useStore(500);
  const [draft, setDraft] = useState(s.filter);
  const [paused, setPaused] = useState(s.paused);
  const [state, setState] = useState<{ known?: boolean; error?: string }>({}); // whether the server said what it has
  const fill = async () => {
    setState({});
    const a = await ask<{ decisions: Decision[] }>(`/api/v1/decisions?limit=${Math.min(100, most)}&filter=` + encodeURIComponent(store.filter));
    if ("data" in a && store.rows.length === 0) {
      store.rows = a.data.decisions.map(rowOf);
      store.changed();
    }
    setState("data" in a ? { known: true } : { error: "error" in a ? a.error : "this server keeps no decisions" });
  };
  useEffect(() => {
    store.decisions(true);
    void fill();
    return () => store.decisions(false);
  }, []);
  const pause = () => {
    store.paused = !store.paused;
    setPaused(store.paused);
  };
  const apply = async (text: string) => {
    setDraft(text);
    await store.setFilter(text);
    if (!store.filterError) void fill();
  };
  const rows = s.rows.slice(0, most), model = (pool ?? s.live?.pools[0])?.models[0] ?? "MODEL";
  return html`<div class="stack">
    <form class="legend" onSubmit=${(e: Event) => { e.preventDefault(); void apply(draft); }}>
      <button type="button" class="btn" aria-pressed=${paused} onClick=${pause}>${paused ? "Go on" : "Pause"}</button>
      <input class="field" style=${{ flex: "1 1 220px", maxWidth: "460px" }} type="search" aria-label="filter decisions" placeholder="replica=r1 ttft>500ms kind!=ok" value=${draft} onInput=${(e: Event) => setDraft((e.target as HTMLInputElement).value)} onSearch=${(e: Event) => void apply((e.target as HTMLInputElement).value)} />
      <button class="btn">Filter</button>
      ${filters && ["kind!=ok", "ttft>1s", "queue>0"].map((f) => html`<button type="button" class="btn ghost" onClick=${() => void apply(f)}>${f}</button>`)}
      ${s.skipped > 0 && html`<span>${count(s.skipped)} more came than a page can show</span>`}
    </form>
    ${s.filterError && html`<p class="lost" role="alert">${s.filterError}</p>`}
    ${rows.length === 0
      ? !state.known
        ? html`<p class="dim">${state.error ?? "Asking the server."}</p>`
        : s.filter
        ? html`<${Empty} title="No recorded decision passes this filter">Fields: id, pool, model, adapter, tenant, replica, why, kind, status, ttft, e2e, queue, cached, output, prompt, margin.<//>`
        : html`<${Empty} title="No request came yet" code=${`curl ${s.live?.listen.http || "http://127.0.0.1:8080"}/v1/chat/completions -H 'content-type: application/json' \\\n  -d '{"model":"${model}","max_tokens":20,"messages":[{"role":"user","content":"Hello"}]}'`}>Send one, and see here where it went and why.<//>`
      : html`<div class="scroll" tabindex="0" role="group" aria-label="decisions"><table>
        <thead><tr><th scope="col">Time</th><th scope="col">Request</th><th scope="col">Model</th><th scope="col">Replica</th><th scope="col">Reason</th><th scope="col" class="num">Prompt</th><th scope="col" class="num">Cached</th><th scope="col" class="num">Held</th><th scope="col" class="num">TTFT</th></tr></thead>
        <tbody>${rows.map((r) => html`<${RowView} key=${r.id} r=${r} />`)}</tbody></table></div>`}
  </div>`;
}
