// SPDX-License-Identifier: Apache-2.0
// Small parts that many pages share.
import { Component, html, useState } from "./html.ts";
import type { ComponentChildren } from "preact";
import { cli } from "./api.ts";
import { clock, known, secs } from "./format.ts";
import type { Num } from "./types.ts";

const icons: Record<string, string> = {
  good: "M3 8.5l3.2 3.2L13 4.8", idle: "M4 8h8", starting: "M8 3v5l3 2", strained: "M8 2.5l6 11H2zM8 6.5v3.2M8 11.6v.2",
  degraded: "M8 2.5l6 11H2zM8 6.5v3.2M8 11.6v.2", down: "M4 4l8 8M12 4l-8 8", error: "M4 4l8 8M12 4l-8 8", warning: "M8 2.5l6 11H2zM8 6.5v3.2M8 11.6v.2",
  note: "M8 7v5M8 4v.3",
};

/** A word with the colour and sign of a state; the word is the state's own where none is given. */
export function State({ state, word = state }: { state: string; word?: string }) {
  return html`<span class=${"state s-" + state}>
    <svg viewBox="0 0 16 16" fill="none" stroke="currentColor" stroke-width="1.8" stroke-linecap="round" stroke-linejoin="round" aria-hidden="true"><path d=${icons[state] ?? icons.idle} /></svg>
    ${word}</span>`;
}

async function copy(text: string): Promise<boolean> {
  try {
    await navigator.clipboard.writeText(text);
    return true;
  } catch {
    const t = document.createElement("textarea");
    t.value = text;
    document.body.append(t);
    t.select();
    const ok = document.execCommand("copy");
    t.remove();
    return ok;
  }
}

export function Copy({ text, label, small }: { text: string | (() => string); label: string; small?: boolean }) {
  const [done, set] = useState(false);
  const go = async () => {
    if (await copy(typeof text === "string" ? text : text())) {
      set(true);
      setTimeout(() => set(false), 1500);
    }
  };
  return html`<button class=${small ? "btn ghost" : "btn"} onClick=${go} aria-label=${small ? label : undefined}>${done ? "copied" : small ? "copy" : label}</button>`;
}

/** The command that shows the same in a terminal. */
export function Cli({ cmd }: { cmd: string }) {
  const full = cli(cmd);
  return html`<div class="cli"><code tabindex="0" role="group" aria-label="the same in a terminal">${full}</code><${Copy} small text=${full} label=${"copy the command " + cmd} /></div>`;
}

export function Panel(p: { title: string; sub?: unknown; right?: unknown; cli?: string; children?: unknown; id?: string; class?: string }) {
  const id = p.id ?? p.title.toLowerCase().replace(/[^a-z0-9]+/g, "-");
  return html`<section class=${"panel " + (p.class ?? "")} aria-labelledby=${id}>
    <header><h2 id=${id}>${p.title}</h2>${p.sub && html`<span class="sub">${p.sub}</span>`}${p.right && html`<div class="right">${p.right}</div>`}</header>
    <div class="body">${p.children}</div>
    ${p.cli && html`<footer><${Cli} cmd=${p.cli} /></footer>`}
  </section>`;
}

export function Empty({ title, children, code }: { title: string; children?: unknown; code?: string }) {
  return html`<div class="empty"><h3>${title}</h3>${children && html`<p>${children}</p>`}${code && html`<pre>${code}</pre>`}</div>`;
}

export function Track({ value, kind, label }: { value: Num | undefined; kind?: string; label?: string }) {
  const w = known(value) ? Math.max(0, Math.min(1, value)) : 0;
  return html`<div class="track" role=${label ? "img" : undefined} aria-label=${label} aria-hidden=${label ? undefined : "true"}><i class=${kind ?? ""} style=${{ width: 100 * w + "%" }}></i></div>`;
}

export const kvKind = (v: Num | undefined): string => (!known(v) ? "grey" : v >= 0.97 ? "bad" : v >= 0.9 ? "warn" : "");

export function Ago({ at, now }: { at: string; now: string }) {
  const s = (Date.parse(now) - Date.parse(at)) / 1000;
  return html`<time dateTime=${at} title=${clock(at)}>${secs(Math.max(0, s))}</time>`;
}

export function Page({ title, lead, right, children }: { title: string; lead?: unknown; right?: unknown; children?: unknown }) {
  return html`<div class="page-head"><div><h1>${title}</h1>${lead && html`<p>${lead}</p>`}</div>${right}</div>${children}`;
}

/** Draws again only when its stamp changes: a page with hundreds of replicas and a stream has no time to waste. */
export class Still extends Component<{ stamp: string; draw: () => unknown }> {
  override shouldComponentUpdate(next: { stamp: string }): boolean {
    return next.stamp !== this.props.stamp;
  }
  override render() {
    return this.props.draw() as ComponentChildren;
  }
}

// Comparing with options given each time is a hundred times slower.
const collator = new Intl.Collator("en", { numeric: true });
export const byName = (a: string, b: string): number => collator.compare(a, b);
