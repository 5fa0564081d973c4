// SPDX-License-Identifier: Apache-2.0
// The event stream of the server, and the last quarter of an hour, shared by all
// pages. The stream pauses while the tab is hidden and starts anew afterwards.
import { useEffect, useState } from "./html.ts";
import { ask } from "./api.ts";
import type { Live, Mark, Num, Recommendation, Row, Series } from "./types.ts";

const SECONDS = 900;
const GAP_MS = 2500; // messages come twice a second
const MAX_ROWS = 200;

export interface PoolSeries { x: number[]; cols: Record<string, Num[]>; slo: { ttft_ms: Num; itl_ms: Num } }

export class Store {
  live: Live | null = null;
  connected = false;
  received = 0; // when the last message came, ms
  series = new Map<string, PoolSeries>();
  marks: Mark[] = [];
  rows: Row[] = [];
  skipped = 0;
  paused = false;
  calm = true; // rows come slowly enough to be seen one by one
  filter = "";
  filterError = "";
  version = 0;
  past = false; // the last quarter of an hour is here
  private source: EventSource | null = null;
  private listeners = new Set<() => void>();
  private wantRows = false;
  private frame = 0;
  private router = "";

  subscribe(f: () => void): () => void {
    this.listeners.add(f);
    return () => this.listeners.delete(f);
  }

  /** Tells the pages once a frame at most. */
  changed(): void {
    if (this.frame) return;
    this.frame = requestAnimationFrame(() => {
      this.frame = 0;
      this.version++;
      for (const f of this.listeners) f();
    });
  }

  start(): void {
    document.addEventListener("visibilitychange", () => (document.hidden ? this.close() : this.open()));
    addEventListener("pagehide", () => this.close());
    setInterval(() => {
      if (Date.now() - this.received > GAP_MS) this.changed();
    }, 1000);
    this.open();
  }

  decisions(on: boolean): void {
    if (on === this.wantRows) return;
    this.wantRows = on;
    this.open();
  }

  async setFilter(filter: string): Promise<void> {
    const r = await ask<{ decisions: unknown[] }>("/api/v1/decisions?limit=1&filter=" + encodeURIComponent(filter));
    this.filterError = "error" in r ? r.error : "";
    if (!this.filterError) {
      this.filter = filter;
      this.rows = [];
      this.skipped = 0;
      this.open();
    }
    this.changed();
  }

  close(): void {
    this.source?.close();
    this.source = null;
  }

  open(): void {
    this.close();
    if (document.hidden) return;
    const q = this.wantRows ? "?decisions=1&filter=" + encodeURIComponent(this.filter) : "";
    const es = new EventSource("/api/v1/live" + q);
    this.source = es;
    es.onopen = () => {
      this.connected = true;
      this.changed();
    };
    es.onerror = () => {
      this.connected = false;
      this.changed();
      if (es.readyState === EventSource.CLOSED && this.source === es) setTimeout(() => this.source === es && this.open(), 2000);
    };
    es.addEventListener("tick", (e) => this.tick(JSON.parse((e as MessageEvent).data)));
    es.addEventListener("decisions", (e) => this.batch(JSON.parse((e as MessageEvent).data)));
  }

  private async history(): Promise<void> {
    const r = await ask<Series>("/api/v1/series");
    if (!("data" in r)) {
      this.router = ""; // the next message asks again
      return;
    }
    this.series.clear();
    for (const p of r.data.pools) {
      const any = p.columns["ready"] ?? [];
      const x = any.map((_, i) => r.data.end - any.length + 1 + i);
      this.series.set(p.name, { x, cols: p.columns, slo: p.slo });
    }
    this.marks = r.data.marks;
    this.past = true;
    this.changed();
  }

  private tick(l: Live): void {
    // The past is asked for at first, after a gap, and where another process answers.
    if (Date.now() - this.received > GAP_MS || (l.router ?? "") !== this.router) void this.history();
    this.router = l.router ?? "";
    this.live = l;
    this.received = Date.now();
    const t = Math.floor(Date.parse(l.time) / 1000);
    for (const p of l.pools) {
      let s = this.series.get(p.name);
      if (!s) this.series.set(p.name, (s = { x: [], cols: {}, slo: p.slo }));
      s.slo = p.slo;
      const last = s.x[s.x.length - 1] ?? t - 1;
      if (t <= last || Object.keys(p.now).length === 0) continue;
      const gap = Math.min(t - last, SECONDS);
      for (let i = gap - 1; i >= 0; i--) {
        s.x.push(t - i);
        for (const [k, v] of Object.entries(p.now)) (s.cols[k] ??= new Array(s.x.length - 1).fill(null)).push(i === 0 ? v : null);
      }
      if (s.x.length > SECONDS) {
        const cut = s.x.length - SECONDS;
        s.x.splice(0, cut);
        for (const c of Object.values(s.cols)) c.splice(0, cut);
      }
    }
    for (const m of l.marks) {
      if (!this.marks.some((o) => o.time === m.time && o.text === m.text)) this.marks.push(m);
    }
    while (this.marks[0] && Date.parse(this.marks[0].time) / 1000 < t - SECONDS) this.marks.shift();
    this.changed();
  }

  private batch(b: { rows: Row[] | null; skipped: number }): void {
    if (this.paused) return;
    this.rows = [...(b.rows ?? []).reverse(), ...this.rows].slice(0, MAX_ROWS);
    this.skipped += b.skipped;
    this.calm = (b.rows?.length ?? 0) < 6;
    this.changed();
  }

  /** Seconds since the server last said something. */
  age(): number {
    return this.received ? (Date.now() - this.received) / 1000 : Infinity;
  }
}

export const store = new Store();

/** Renders a component whenever the store changes, at most every `every` ms. */
export function useStore(every = 0): Store {
  const [, set] = useState(0);
  useEffect(() => {
    let last = 0, timer = 0;
    return store.subscribe(() => {
      const wait = every - (performance.now() - last);
      if (wait <= 0) {
        last = performance.now();
        set(store.version);
      } else if (!timer) {
        timer = window.setTimeout(() => {
          timer = 0;
          last = performance.now();
          set(store.version + 0.5);
        }, wait);
      }
    });
  }, [every]);
  return store;
}

/** Who looks, and what they may do. */
export interface Me { name: string; role: string; operate: boolean; session: boolean }
let me: Me = { name: "local", role: "admin", operate: true, session: false };
export async function whoami(): Promise<void> {
  const a = await ask<Me>("/api/v1/me");
  if ("data" in a) me = a.data;
  store.changed();
}
export const whoIs = (): Me => me;

/** The address where this server has that part of the API, "" where it has not; undefined before it said so. */
export function usePart(name: string, path: string): string | undefined {
  const here = () => store.live?.parts.includes(name);
  const [, set] = useState(here());
  useEffect(() => store.subscribe(() => set(here())), [name]);
  const has = here();
  return has === undefined ? undefined : has ? path : "";
}

/** The newest recommendation of each pool that has one. */
export function useScale() {
  const a = usePoll<{ recommendations: Recommendation[] }>(usePart("scale", "/api/v1/scale"), 2000);
  return { ...a, list: a.data?.recommendations ?? [] };
}

/** Asks again every `every` ms while the page shows. */
export function usePoll<T>(path: string | undefined, every: number): { data?: T; absent?: boolean; error?: string; loading: boolean } {
  const [answer, set] = useState<{ data?: T; absent?: boolean; error?: string; loading: boolean }>({ loading: true });
  useEffect(() => {
    let on = true, timer = 0;
    if (!path) {
      if (path === "") set({ absent: true, loading: false });
      return;
    }
    const go = async () => {
      if (!document.hidden) {
        const a = await ask<T>(path);
        if (!on) return;
        set((was) => ("error" in a && was.data ? { ...was, error: a.error, loading: false } : { ...a, loading: false }));
        if ("absent" in a) return;
      }
      timer = window.setTimeout(go, every);
    };
    void go();
    return () => {
      on = false;
      clearTimeout(timer);
    };
  }, [path, every]);
  return answer;
}
