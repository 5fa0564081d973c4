// SPDX-License-Identifier: Apache-2.0
// The frame of the console: navigation, connection, theme, and which page shows.
import "./app.css";
import { html, render, useEffect, useRef, useState } from "./lib/html.ts";
import { themeChanged } from "./lib/chart.ts";
import { secs } from "./lib/format.ts";
import { store, useStore, whoIs, whoami } from "./lib/live.ts";
import { go, usePath } from "./lib/router.ts";
import { Overview } from "./pages/overview.ts";
import { Decisions } from "./pages/decisions.ts";
import { DecisionPage } from "./pages/decision.ts";
import { Scaling } from "./pages/scale.ts";
import { Incident } from "./pages/incident.ts";
import { WhatIf } from "./pages/whatif.ts";
import { Tenants } from "./pages/tenants.ts";
import { Models } from "./pages/models.ts";
import { Rollout } from "./pages/rollout.ts";

const pages: [string, string][] = [
  ["/", "Overview"], ["/decisions", "Decisions"], ["/scale", "Scaling"], ["/incident", "Incident"], ["/whatif", "What if"],
  ["/tenants", "Tenants"], ["/models", "Models"], ["/rollout", "Rollout"],
];

function pageOf(path: string) {
  const [, first = "", second] = path.split("/");
  switch (first) {
    case "": return html`<${Overview} />`;
    case "decisions": return second ? html`<${DecisionPage} id=${decodeURIComponent(second)} key=${second} />` : html`<${Decisions} />`;
    case "scale": return html`<${Scaling} pool=${second ? decodeURIComponent(second) : ""} />`;
    case "incident": return html`<${Incident} />`;
    case "whatif": return html`<${WhatIf} />`;
    case "tenants": return html`<${Tenants} />`;
    case "models": return html`<${Models} />`;
    case "rollout": return html`<${Rollout} />`;
  }
  return html`<h1>There is no such page</h1><p><a href="/">Back to the overview</a></p>`;
}

const themes = ["auto", "light", "dark"] as const;
function applyTheme(t: string): void {
  if (t === "auto") delete document.documentElement.dataset.theme;
  else document.documentElement.dataset.theme = t;
  themeChanged();
}
function savedTheme(): string {
  try {
    return localStorage.getItem("penstock.theme") ?? "auto";
  } catch {
    return "auto";
  }
}

function Connection() {
  const s = useStore(500);
  const age = s.age();
  const off = !s.connected || age > 5;
  return html`<div class=${"conn" + (off ? " off" : "")} role="status"><i aria-hidden="true"></i>${
    off ? (Number.isFinite(age) ? `no answer for ${secs(age)}` : "connecting") : "live"}</div>`;
}

/** How long nobody has answered; where the server does, nothing. */
function Lost() {
  const s = useStore(1000);
  if (!s.received || (s.connected && s.age() <= 5)) return null;
  return html`<p class="lost">The server does not answer; what follows is ${secs(s.age())} old. Trying again.</p>`;
}

function Foot() {
  const { live } = useStore(1000);
  return html`<footer class="foot">${live && html`<span>penstock ${live.version}</span><span>router ${live.router}</span><span>up ${secs(live.uptime_s)}</span>
      <span>gateway ${live.listen.http || "off"}</span><span>configuration ${live.config.digest}</span>`}</footer>`;
}

function SignOut() {
  const [me, set] = useState(whoIs());
  useEffect(() => store.subscribe(() => set(whoIs())), []);
  return me.session ? html`<form method="post" action="/logout"><button class="btn ghost">sign out ${me.name}</button></form>` : null;
}

// The frame renders when the path or the theme changes, not with every message: all
// of a page would follow.
function App() {
  const path = usePath();
  const main = useRef<HTMLElement>(null);
  const [theme, setTheme] = useState(savedTheme());
  useEffect(() => {
    const here = pages.find(([p]) => (p === "/" ? path === "/" : path.startsWith(p)));
    document.title = `${here ? here[1] : "Not found"} · Penstock`;
  }, [path]);
  const first = useRef(true);
  useEffect(() => {
    if (first.current) first.current = false;
    else {
      main.current?.focus();
      scrollTo(0, 0);
    }
  }, [path]);
  const next = themes[(themes.indexOf(theme as (typeof themes)[number]) + 1) % 3]!;
  const cycle = () => {
    setTheme(next);
    applyTheme(next);
    try {
      localStorage.setItem("penstock.theme", next);
    } catch { /* a private window keeps nothing */ }
  };
  return html`<a class="skip" href="#main" onClick=${(e: Event) => { e.preventDefault(); main.current?.focus(); }}>Skip to the content</a>
    <header class="top"><div class="top-in">
      <a class="brand" href="/"><svg viewBox="0 0 32 32" aria-hidden="true"><rect width="32" height="32" rx="7" fill="#00707a" /><path d="M7 8h5v16H7zM20 8h5v16h-5z" fill="#fff" /><path d="M12 17h8v7h-8z" fill="#7fdbe2" /><path d="M12 8h8v4h-8z" fill="#fff" /></svg>Penstock</a>
      <nav class="nav" aria-label="Pages">${pages.map(([p, name]) => {
        const here = p === "/" ? path === "/" : path.startsWith(p);
        return html`<a href=${p} aria-current=${here ? "page" : undefined}>${name}</a>`;
      })}</nav>
      <${Connection} />
      <button class="btn ghost" onClick=${cycle} aria-label=${`theme: ${theme}; switch to ${next}`}>${theme === "auto" ? "◐ auto" : theme === "light" ? "○ light" : "● dark"}</button>
      <${SignOut} />
    </div></header>
    <main id="main" tabindex="-1" ref=${main}>
      <${Lost} />
      ${pageOf(path)}
    </main>
    <${Foot} />`;
}

document.addEventListener("click", (e) => {
  const a = (e.target as Element | null)?.closest?.("a");
  if (!a || e.defaultPrevented || e.button !== 0 || e.metaKey || e.ctrlKey || e.shiftKey || a.target || a.hasAttribute("download")) return;
  const to = new URL(a.href, location.href);
  if (to.origin !== location.origin || to.pathname.startsWith("/api/") || to.pathname.startsWith("/replicas/") || to.pathname === "/metrics") return;
  e.preventDefault();
  go(to.pathname + to.search + to.hash);
});

applyTheme(savedTheme());
store.start();
void whoami();
const app = document.getElementById("app")!;
app.textContent = "";
render(html`<${App} />`, app);
