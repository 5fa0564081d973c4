// SPDX-License-Identifier: Apache-2.0
// What the browser tests share: a browser, servers, and the checks of every page.
import { spawn } from "node:child_process";
import { createRequire } from "node:module";
import { createServer } from "node:net";
import { readFileSync } from "node:fs";
import assert from "node:assert/strict";
import { chromium } from "playwright-core";

export const BIN = process.env.BIN, OUT = process.env.OUT;
const axe = readFileSync(createRequire(import.meta.url).resolve("axe-core/axe.min.js"), "utf8");

export async function browse() {
  return chromium.launch({
    executablePath: process.env.CHROMIUM,
    args: ["--no-sandbox", "--disable-gpu", "--disable-quic", "--no-first-run", "--disable-background-networking", "--disable-component-update", "--disable-sync"],
  });
}

const given = new Set();

/** A port that is free now, and that nobody here was given before. */
export async function freePort() {
  for (;;) {
    const port = await new Promise((done) => {
      const s = createServer().listen(0, "127.0.0.1", () => {
        const { port } = s.address();
        s.close(() => done(port));
      });
    });
    if (!given.has(port)) return given.add(port), port;
  }
}

/**
 * Looks at the machine until it is asked: how many threads wanted a core on average, and
 * the part of the time that the host gave to others. The load of the last minute knows
 * neither what began a moment ago nor the host.
 */
export function watchCores() {
  const stat = () => readFileSync("/proc/stat", "utf8").split("\n")[0].split(/ +/).slice(1, 9).map(Number);
  const sum = (list) => list.reduce((a, b) => a + b, 0);
  const seen = [], before = stat();
  const timer = setInterval(() => seen.push(Number(readFileSync("/proc/loadavg", "utf8").split(/[ /]/)[3]) - 1), 50); // without this one
  return () => {
    clearInterval(timer);
    const after = stat();
    return { wanted: sum(seen) / seen.length, stolen: (after[7] - before[7]) / (sum(after) - sum(before)) };
  };
}

/** Starts the binary and waits until it answers. */
export async function start(args, ready, env = {}) {
  const p = spawn(BIN, args, { stdio: ["ignore", "pipe", "pipe"], env: { ...process.env, ...env } });
  let said = "";
  p.stdout.on("data", (b) => (said += b));
  p.stderr.on("data", (b) => (said = (said + b).slice(-8000)));
  const ended = new Promise((done) => p.on("exit", done));
  const stop = async (signal = "SIGTERM") => {
    if (p.exitCode === null && p.signalCode === null) p.kill(signal);
    await ended;
  };
  for (const end = Date.now() + 90_000; ;) {
    if (await fetch(ready).then((r) => r.ok, () => false)) return { stop, said: () => said };
    if (p.exitCode !== null || Date.now() > end) {
      await stop("SIGKILL");
      throw new Error(`penstock ${args[0]} did not start:\n${said}`);
    }
    await new Promise((f) => setTimeout(f, 100));
  }
}

/**
 * A page that notes what must not happen: errors, and requests to elsewhere.
 * SLOW=MS lets every answer of the API come that much later, as on a busy machine.
 */
export async function open(context, base) {
  const page = await context.newPage();
  if (process.env.SLOW) await page.route(/\/api\//, async (r) => { await sleep(Number(process.env.SLOW)); await r.continue(); });
  const bad = [];
  page.on("console", (m) => m.type() === "error" && bad.push(`console: ${m.text()} ${m.location().url}`));
  page.on("pageerror", (e) => bad.push(`exception: ${e.message}`));
  page.on("request", (r) => {
    if (!r.url().startsWith(base) && !r.url().startsWith("data:") && !r.url().startsWith("file:")) bad.push(`foreign request: ${r.url()}`);
  });
  return { page, bad };
}

/** No accessibility finding, no horizontal scrolling, nothing bad noted. */
export async function inspect(page, bad, name) {
  await page.evaluate(axe);
  const found = await page.evaluate(async () => {
    const r = await globalThis.axe.run(document, { runOnly: ["wcag2a", "wcag2aa", "wcag21a", "wcag21aa", "wcag22aa", "best-practice"] });
    return r.violations.map((v) => `${v.id}: ${v.nodes.slice(0, 3).map((n) => n.target.join(" ") + " " + (n.any[0]?.message ?? n.failureSummary ?? "")).join(" | ")}`);
  });
  assert.deepEqual(found, [], `axe on ${name}`);
  const over = await page.evaluate(() => document.documentElement.scrollWidth - innerWidth);
  assert.ok(over <= 0, `${name} scrolls sideways by ${over} px`);
  assert.deepEqual(bad, [], name);
}

export const sleep = (ms) => new Promise((f) => setTimeout(f, ms));
export const median = (list) => [...list].sort((a, b) => a - b)[Math.floor(list.length / 2)];
