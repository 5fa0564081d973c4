// SPDX-License-Identifier: Apache-2.0
// Numbers and times as people say them. Unknown is a dash, never 0.
export const DASH = "–";

export const known = (v: number | null | undefined): v is number => typeof v === "number" && Number.isFinite(v);

export function ms(v: number | null | undefined): string {
  if (!known(v)) return DASH;
  const a = Math.abs(v);
  if (a === 0) return "0\u00a0ms";
  if (a < 0.05) return "0.0\u00a0ms";
  if (a < 10) return v.toFixed(1) + "\u00a0ms";
  if (a < 1000) return Math.round(v) + "\u00a0ms";
  return secs(v / 1000);
}

export function secs(s: number | null | undefined): string {
  if (!known(s)) return DASH;
  if (s < 0) return "-" + secs(-s);
  if (s < 10) return s.toFixed(1) + "\u00a0s";
  if (s < 120) return Math.round(s) + "\u00a0s";
  if (s < 7200) return `${Math.floor(s / 60)}m${String(Math.floor(s % 60)).padStart(2, "0")}s`;
  if (s < 172800) return `${Math.floor(s / 3600)}h${String(Math.floor((s % 3600) / 60)).padStart(2, "0")}m`;
  return Math.floor(s / 86400) + "\u00a0d";
}

export const pct = (v: number | null | undefined, digits = 0): string => (known(v) ? (100 * v).toFixed(digits) + "\u00a0%" : DASH);

export function count(v: number | null | undefined): string {
  return known(v) ? Math.round(v).toLocaleString("en-US") : DASH;
}

export function short(v: number | null | undefined): string {
  if (!known(v)) return DASH;
  const a = Math.abs(v);
  if (a >= 999_500) return (v / 1e6).toFixed(1) + "M";
  if (a >= 9_995) return Math.round(v / 1e3) + "k";
  if (a >= 1000) return (v / 1e3).toFixed(1) + "k";
  if (a >= 10 || a === 0 || Number.isInteger(v)) return String(Math.round(v));
  return v.toFixed(1);
}

export function clock(t: string | number | Date, tenths = false): string {
  const d = new Date(t);
  if (Number.isNaN(d.getTime())) return DASH;
  const two = (n: number) => String(n).padStart(2, "0");
  const s = `${two(d.getHours())}:${two(d.getMinutes())}:${two(d.getSeconds())}`;
  return tenths ? s + "." + Math.floor(d.getMilliseconds() / 100) : s;
}

/** Date and time, in the time zone of the browser as clock is. */
export function moment(t: string): string {
  const d = new Date(t);
  return Number.isNaN(d.getTime()) ? DASH : `${d.getFullYear()}-${String(d.getMonth() + 1).padStart(2, "0")}-${String(d.getDate()).padStart(2, "0")} ${clock(d)}`;
}

export const words = (name: string): string => name.replaceAll("_", " ");
export const plural = (n: number, noun: string): string => `${count(n)} ${noun}${n === 1 ? "" : "s"}`;
