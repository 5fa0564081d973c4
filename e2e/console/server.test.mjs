// SPDX-License-Identifier: Apache-2.0
// What happens around the page: a restart of the server, keys, and a large fleet.
import { after, before, test } from "node:test";
import assert from "node:assert/strict";
import { createServer } from "node:http";
import { execFileSync } from "node:child_process";
import { mkdtempSync, writeFileSync } from "node:fs";
import { tmpdir } from "node:os";
import { join } from "node:path";
import { BIN, OUT, browse, freePort, inspect, open, sleep, start } from "./rig.mjs";

let browser;
before(async () => { browser = await browse(); });
after(async () => { await browser?.close(); });

/** Replicas behind paths of one server: answers at once, with numbers that move. */
function replicas(n) {
  const model = JSON.stringify({ object: "list", data: [{ id: "m", object: "model", owned_by: "vllm" }] });
  const answer = JSON.stringify({ id: "x", object: "chat.completion", model: "m", choices: [{ index: 0, message: { role: "assistant", content: "hi" }, finish_reason: "stop" }],
    usage: { prompt_tokens: 100, completion_tokens: 1, total_tokens: 101, prompt_tokens_details: { cached_tokens: 40 } } });
  let scrapes = 0;
  return new Promise((done) => {
    const s = createServer((req, res) => {
      if (req.url.endsWith("/metrics")) {
        const k = scrapes++ % 17;
        res.setHeader("content-type", "text/plain; version=0.0.4");
        res.end(`vllm:num_requests_running{engine="0",model_name="m"} ${k}\nvllm:num_requests_waiting{engine="0",model_name="m"} ${k % 3}\nvllm:kv_cache_usage_perc{engine="0",model_name="m"} ${k / 20}\n`);
      } else if (req.url.endsWith("/v1/models")) {
        res.setHeader("content-type", "application/json");
        res.end(model);
      } else if (req.method === "POST") {
        req.resume();
        req.on("end", () => {
          res.setHeader("content-type", "application/json");
          res.end(answer);
        });
      } else res.end("ok");
    }).listen(0, "127.0.0.1", () => done({ urls: Array.from({ length: n }, (_, i) => `http://127.0.0.1:${s.address().port}/r${i}`), stop: () => { s.closeAllConnections(); s.close(); } }));
  });
}

function config(gw, admin, urls, more = "") {
  const file = join(mkdtempSync(join(tmpdir(), "console-")), "penstock.yaml");
  writeFileSync(file, `listen: {http: "127.0.0.1:${gw}", admin: "127.0.0.1:${admin}"}\npools:\n  - name: chat\n    models: [{name: m}]\n    replicas: {static: [${urls.map((u) => JSON.stringify(u)).join(", ")}]}\n${more}`);
  return file;
}

test("after a restart of the server the page goes on by itself", async () => {
  const fleet = await replicas(3), [gw, admin] = [await freePort(), await freePort()], base = `http://127.0.0.1:${admin}`;
  const args = ["serve", "-c", config(gw, admin, fleet.urls)];
  let server = await start(args, base + "/readyz");
  const context = await browser.newContext({ viewport: { width: 1280, height: 900 } });
  const { page } = await open(context, base);
  await page.goto(base + "/");
  await page.locator(".conn", { hasText: "live" }).waitFor();
  const router = async () => (await page.getByText(/^router /).textContent()).trim();
  const before = await router();
  await page.evaluate(() => { globalThis.sameDocument = true; });
  await server.stop("SIGKILL");
  await page.getByText("The server does not answer", { exact: false }).waitFor();
  server = await start(args, base + "/readyz");
  await page.locator(".conn", { hasText: "live" }).waitFor();
  await page.getByText("The server does not answer", { exact: false }).waitFor({ state: "detached" });
  await page.waitForFunction((b) => [...document.querySelectorAll("footer span")].some((s) => s.textContent.startsWith("router ") && s.textContent.trim() !== b), before);
  assert.equal(await page.evaluate(() => globalThis.sameDocument), true, "the page was loaded anew");
  await context.close();
  await server.stop();
  fleet.stop();
});

test("500 replicas and 200 decisions a second", { timeout: 180_000 }, async () => {
  const fleet = await replicas(500), [gw, admin] = [await freePort(), await freePort()], base = `http://127.0.0.1:${admin}`;
  const server = await start(["serve", "-c", config(gw, admin, fleet.urls)], base + "/readyz");
  const context = await browser.newContext({ viewport: { width: 1280, height: 900 }, bypassCSP: true });
  const { page, bad } = await open(context, base);
  await page.addInitScript(() => {
    globalThis.long = [];
    new PerformanceObserver((l) => globalThis.long.push(...l.getEntries().map((e) => Math.round(e.duration)))).observe({ type: "longtask", buffered: false });
  });
  await page.goto(base + "/");
  await page.getByRole("group", { name: "replicas" }).getByRole("table").waitFor();
  // 200 a second, open loop.
  let sent = 0, failed = 0, on = true;
  const body = (i) => JSON.stringify({ model: "m", max_tokens: 1, messages: [{ role: "user", content: "question " + (i % 50) }] });
  const load = (async () => {
    const begin = Date.now();
    const running = new Set();
    while (on) {
      while (sent < ((Date.now() - begin) / 1000) * 200) {
        const p = fetch(`http://127.0.0.1:${gw}/v1/chat/completions`, { method: "POST", headers: { "content-type": "application/json" }, body: body(sent++) })
          .then(async (r) => { await r.text(); if (!r.ok) failed++; }, () => failed++).finally(() => running.delete(p));
        running.add(p);
      }
      await sleep(20);
    }
    await Promise.all(running);
  })();
  await sleep(4000);
  await page.evaluate(() => { globalThis.long.length = 0; });
  const at = sent, begin = Date.now();
  await sleep(10_000);
  const span = Date.now() - begin, rate = ((sent - at) / span) * 1000;
  const long = await page.evaluate(() => globalThis.long);
  const sum = long.reduce((a, b) => a + b, 0);
  const frames = await page.evaluate(() => new Promise((done) => {
    let n = 0;
    const t = performance.now(), f = () => (performance.now() - t > 2000 ? done(n / 2) : (n++, requestAnimationFrame(f)));
    f();
  }));
  console.log(`${rate.toFixed(0)} decisions/s, ${failed} failed; long tasks in ${(span / 1000).toFixed(0)} s: ${long.length}, longest ${Math.max(0, ...long)} ms, ${(100 * sum / span).toFixed(1)} % of the time; ${frames.toFixed(0)} frames/s`);
  assert.ok(rate > 150, `only ${rate.toFixed(0)} decisions/s were sent`);
  assert.ok(sum < 0.1 * span, `${sum} ms of ${span} ms were spent in long tasks`);
  await page.getByRole("searchbox", { name: "filter replicas" }).fill("r42");
  await page.waitForFunction(() => document.querySelector("[aria-label='replicas'] tbody")?.rows.length === 11);
  on = false;
  await load;
  await inspect(page, bad, "500 replicas");
  await page.screenshot({ path: join(OUT, "large-light-1280.png"), fullPage: true });
  await context.close();
  await server.stop();
  fleet.stop();
});

test("keys: a form, a cookie that no script reads, and a role that may only look", async () => {
  const fleet = await replicas(1), [gw, admin] = [await freePort(), await freePort()], base = `http://127.0.0.1:${admin}`;
  const keys = join(mkdtempSync(join(tmpdir(), "keys-")), "keys.yaml");
  const made = JSON.parse(execFileSync(BIN, ["key", "create", "--file", keys, "--tenant", "ops", "--role", "read", "-o", "json"]).toString());
  const key = made.secret ?? made.key;
  assert.ok(key, JSON.stringify(Object.keys(made)));
  const server = await start(["serve", "-c", config(gw, admin, fleet.urls, `auth: {keysFile: ${keys}, admin: keys}\n`)], base + "/readyz");
  const context = await browser.newContext({ bypassCSP: true });
  const { page, bad } = await open(context, base);
  await page.goto(base + "/decisions");
  await page.waitForURL("**/login");
  await inspect(page, bad, "the form");
  await page.screenshot({ path: join(OUT, "login-light-1280.png") });
  await page.getByLabel("Key").fill("wrong");
  await page.getByRole("button", { name: "Sign in" }).click();
  await page.getByRole("alert").waitFor();
  bad.length = 0; // the refusal is an error of the console, too
  await page.getByLabel("Key").fill(key);
  await page.getByRole("button", { name: "Sign in" }).click();
  await page.getByRole("article", { name: "pool chat" }).waitFor();
  const [cookie] = await context.cookies();
  assert.equal(cookie.httpOnly && cookie.sameSite, "Strict");
  assert.equal(await page.evaluate(() => document.cookie), "");
  const refused = await page.evaluate(async () => (await fetch("/api/v1/replicas/r0/drain", { method: "POST" })).status);
  assert.equal(refused, 403);
  await page.getByRole("button", { name: /^sign out/ }).click();
  await page.waitForURL("**/login");
  await context.close();
  await server.stop();
  fleet.stop();
});
