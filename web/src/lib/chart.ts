// SPDX-License-Identifier: Apache-2.0
// Time charts: uPlot with our colours, a shared cursor, marks and highlighted
// intervals. A canvas says nothing to a screen reader, so each chart carries a
// sentence and a table.
import uPlot from "uplot";
import { html, useEffect, useRef, useState } from "./html.ts";
import { clock, known } from "./format.ts";
import type { Mark, Num } from "./types.ts";

export interface Line { label: string; color: string; values: Num[]; dash?: boolean; step?: boolean; fill?: boolean; width?: number }
export interface Band { from: number; to: number; color: string }
export interface ChartProps {
  title: string; x: number[]; lines: Line[]; from: number; to: number; format: (v: Num | undefined) => string;
  height?: number; min?: number; sync?: string; marks?: Mark[]; bands?: Band[]; limit?: Num; limitLabel?: string; axis?: number;
  onSelect?: (from: number, to: number) => void;
}

// A canvas cannot read light-dark(): a probe element resolves the colour.
let probe: HTMLElement | null = null;
const resolved = new Map<string, string>();
function color(name: string): string {
  let c = resolved.get(name);
  if (c) return c;
  if (!probe) {
    probe = document.createElement("i");
    probe.hidden = true;
    document.body.append(probe);
  }
  probe.style.color = `var(--${name})`;
  c = getComputedStyle(probe).color;
  resolved.set(name, c);
  return c;
}

const themeListeners = new Set<() => void>();
export function themeChanged(): void {
  resolved.clear();
  for (const f of themeListeners) f();
}
if (typeof matchMedia === "function") matchMedia("(prefers-color-scheme: dark)").addEventListener("change", themeChanged);

const markColor: Record<string, string> = { scale: "purple", reload: "blue", policy: "blue", failed: "red", ready: "green", state: "amber", phase: "grey" };
export const colorOfMark = (kind: string): string => markColor[kind] ?? "grey";

function paint(u: uPlot, p: ChartProps): void {
  const { ctx, bbox } = u;
  const clampX = (t: number) => Math.max(bbox.left, Math.min(bbox.left + bbox.width, u.valToPos(t, "x", true)));
  ctx.save();
  for (const b of p.bands ?? []) {
    ctx.fillStyle = color(b.color);
    ctx.globalAlpha = 0.16;
    const a = clampX(b.from);
    ctx.fillRect(a, bbox.top, Math.max(2, clampX(b.to) - a), bbox.height);
  }
  ctx.globalAlpha = 1;
  for (const m of p.marks ?? []) {
    if (m.kind === "phase") continue;
    const t = Date.parse(m.time) / 1000;
    if (t < p.from || t > p.to) continue;
    const px = Math.round(u.valToPos(t, "x", true)) + 0.5;
    ctx.strokeStyle = ctx.fillStyle = color(colorOfMark(m.kind));
    ctx.globalAlpha = 0.75;
    ctx.lineWidth = devicePixelRatio;
    ctx.setLineDash([3 * devicePixelRatio, 3 * devicePixelRatio]);
    ctx.beginPath();
    ctx.moveTo(px, bbox.top);
    ctx.lineTo(px, bbox.top + bbox.height);
    ctx.stroke();
    ctx.globalAlpha = 1;
    const s = 4 * devicePixelRatio;
    ctx.beginPath();
    ctx.moveTo(px - s, bbox.top);
    ctx.lineTo(px + s, bbox.top);
    ctx.lineTo(px, bbox.top + 1.5 * s);
    ctx.fill();
  }
  if (known(p.limit)) {
    const y = u.valToPos(p.limit, "y", true);
    if (y >= bbox.top && y <= bbox.top + bbox.height) {
      ctx.strokeStyle = color("red");
      ctx.lineWidth = 1.25 * devicePixelRatio;
      ctx.setLineDash([6 * devicePixelRatio, 4 * devicePixelRatio]);
      ctx.beginPath();
      ctx.moveTo(bbox.left, y);
      ctx.lineTo(bbox.left + bbox.width, y);
      ctx.stroke();
      ctx.fillStyle = color("red");
      ctx.font = `${11 * devicePixelRatio}px system-ui, sans-serif`;
      ctx.textAlign = "right";
      ctx.textBaseline = "bottom"; // drawing the axes left another
      ctx.fillText(p.limitLabel ?? "promised", bbox.left + bbox.width - 4 * devicePixelRatio, y - devicePixelRatio);
    }
  }
  ctx.restore();
}

function options(p: () => ChartProps, width: number, onCursor: (i: number | null) => void): uPlot.Options {
  const now = p();
  const axis = { stroke: () => color("dim"), font: "11px system-ui, sans-serif", grid: { stroke: () => color("line"), width: 1 }, ticks: { show: false } };
  return {
    width, height: now.height ?? 130, legend: { show: false },
    padding: [8, 26, 0, 0], // on the right half of the last label of the time axis; .gantt .lane leaves the same
    cursor: {
      sync: now.sync ? { key: now.sync, setSeries: false } : undefined, points: { size: 6, width: 2 }, y: false,
      drag: { x: !!now.onSelect, y: false, setScale: false },
    },
    select: { show: !!now.onSelect, left: 0, top: 0, width: 0, height: 0 },
    scales: {
      x: { time: true, range: () => [p().from, p().to] },
      y: {
        range: (_u, _min, max) => {
          const lim = p().limit, top = Math.max(max ?? 0, p().min ?? 0);
          // The promise is shown where it is near enough to matter.
          const want = known(lim) && lim < 4 * top ? Math.max(top, lim) : top;
          return [0, (want || 1) * 1.12];
        },
      },
    },
    axes: [
      { ...axis, size: 22, space: 90, values: (_u, v) => v.map((t) => clock(t * 1000).slice(0, p().to - p().from > 300 ? 5 : 8)) },
      { ...axis, size: now.axis ?? 52, space: 34, values: (_u, v) => v.map((y) => p().format(y)) },
    ],
    series: [
      {},
      ...now.lines.map((l) => ({
        label: l.label, stroke: () => color(l.color), width: l.width ?? 1.75, dash: l.dash ? [5, 4] : undefined, points: { show: false }, spanGaps: false,
        fill: l.fill ? () => color(l.color).replace("rgb(", "rgba(").replace(")", ", 0.10)") : undefined,
        paths: l.step ? uPlot.paths.stepped!({ align: 1 }) : undefined,
      })),
    ],
    hooks: {
      drawClear: [(u) => { u.ctx.clearRect(0, 0, u.ctx.canvas.width, u.ctx.canvas.height); }],
      draw: [(u) => paint(u, p())],
      setCursor: [(u) => onCursor(u.cursor.idx ?? null)],
      setSelect: [(u) => {
        if (u.select.width < 8) return;
        const a = u.posToVal(u.select.left, "x"), b = u.posToVal(u.select.left + u.select.width, "x");
        u.setSelect({ left: 0, top: 0, width: 0, height: 0 }, false);
        p().onSelect?.(a, b);
      }],
    },
  };
}

const lastKnown = (v: Num[]): Num => {
  for (let i = v.length - 1; i >= 0 && i >= v.length - 5; i--) if (known(v[i])) return v[i];
  return null;
};

export function TimeChart(p: ChartProps) {
  const host = useRef<HTMLDivElement>(null), head = useRef<HTMLDivElement>(null), plot = useRef<uPlot | null>(null), props = useRef(p);
  props.current = p;
  const show = (i: number | null) => {
    const cells = head.current?.querySelectorAll("b");
    if (!cells) return;
    props.current.lines.forEach((l, k) => {
      const cell = cells[k];
      const text = props.current.format(i === null ? lastKnown(l.values) : l.values[i]);
      if (cell && cell.textContent !== text) cell.textContent = text;
    });
  };
  const shape = p.lines.map((l) => l.label + l.color + !!l.dash + !!l.step).join("|") + !!p.onSelect;
  useEffect(() => {
    const el = host.current!;
    const data = (): uPlot.AlignedData => [props.current.x, ...props.current.lines.map((l) => l.values)] as uPlot.AlignedData;
    const make = () => {
      plot.current?.destroy();
      plot.current = new uPlot(options(() => props.current, Math.max(200, el.clientWidth), show), data(), el);
    };
    make();
    const size = new ResizeObserver(() => plot.current?.setSize({ width: Math.max(200, el.clientWidth), height: props.current.height ?? 130 }));
    size.observe(el);
    themeListeners.add(make);
    return () => {
      size.disconnect();
      themeListeners.delete(make);
      plot.current?.destroy();
      plot.current = null;
    };
  }, [shape]);
  useEffect(() => {
    const u = plot.current;
    if (!u) return;
    u.setData([p.x, ...p.lines.map((l) => l.values)] as uPlot.AlignedData, true);
    if (u.cursor.idx == null) show(null);
  });
  const summary = p.lines.map((l) => `${l.label} ${p.format(lastKnown(l.values))}`).join(", ");
  return html`<figure class="chart">
    <div class="chart-head" ref=${head}><h3>${p.title}</h3>
      ${p.lines.map((l) => html`<span class="key" key=${l.label}><i class=${l.dash ? "dash" : ""} style=${{ color: `var(--${l.color})` }}></i>${l.label} <b></b></span>`)}
    </div>
    <div class="u-wrap" ref=${host} role="img" aria-label=${`${p.title} over time; now: ${summary}`}></div>
  </figure>`;
}

/** The values of charts as a table, one row a minute; made only while it is open. */
export function DataTable({ x, lines, format }: { x: number[]; lines: Line[]; format: (v: Num | undefined, label: string) => string }) {
  const [open, setOpen] = useState(false);
  const rows: number[] = [];
  for (let i = x.length - 1; open && i >= 0; i -= 60) rows.push(i);
  return html`<details class="data" onToggle=${(e: Event) => setOpen((e.target as HTMLDetailsElement).open)}><summary>the numbers as a table</summary><div class="scroll" tabindex="0" role="group" aria-label="values by minute"><table>
    <thead><tr><th scope="col">time</th>${lines.map((l) => html`<th scope="col" class="num">${l.label}</th>`)}</tr></thead>
    <tbody>${rows.map((i) => html`<tr><td>${clock(x[i]! * 1000)}</td>${lines.map((l) => html`<td class="num">${format(l.values[i], l.label)}</td>`)}</tr>`)}</tbody>
  </table></div></details>`;
}
