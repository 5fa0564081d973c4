// SPDX-License-Identifier: Apache-2.0
// Every page over a live demo: both themes, two widths, and the ways through it.
import { after, before, test } from "node:test";
import assert from "node:assert/strict";
import { execFileSync } from "node:child_process";
import { mkdtempSync } from "node:fs";
import { tmpdir } from "node:os";
import { join } from "node:path";
import { BIN, OUT, browse, freePort, inspect, median, open, sleep, start } from "./rig.mjs";

let browser, demo, base, gateway;

before(async () => {
  browser = await browse();
  const [gw, admin] = [await freePort(), await freePort()];
  [base, gateway] = [`http://127.0.0.1:${admin}`, `http://127.0.0.1:${gw}`];
  demo = await start(["demo", "--listen", `127.0.0.1:${gw}`, "--admin", `127.0.0.1:${admin}`, "--phase", "3s"], base + "/readyz");
  // Enough of a past: both policies, and some decisions.
  for (const end = Date.now() + 180_000; ; await sleep(300)) {
    const st = await (await fetch(base + "/api/v1/status")).json();
    if (st.pools[0].policy === "penstock" && st.pools[0].recent?.requests > 60 && st.uptime_s > 15) break;
    assert.ok(Date.now() < end, "the demo has no past yet");
  }
});

after(async () => {
  await browser?.close();
  await demo?.stop("SIGINT");
});

const lastID = async () => (await (await fetch(base + "/api/v1/decisions?limit=1&filter=kind%3Dok")).json()).decisions[0].id;

const pages = [
  ["overview", () => "/", (p) => p.getByRole("article", { name: "pool demo" })],
  ["decisions", () => "/decisions", (p) => p.getByRole("table").getByRole("link").first()],
  ["decision", async () => "/decisions/" + (await lastID()), (p) => p.getByRole("heading", { name: "Candidates" })],
  ["scale", () => "/scale", (p) => p.getByRole("heading", { name: "Scaling", level: 1 })],
  ["scale-pool", () => "/scale/demo", (p) => p.getByRole("heading", { name: "Scaling demo", level: 1 })],
  ["incident", () => "/incident", (p) => p.getByRole("heading", { name: "Replicas by phase" })],
  ["whatif", () => "/whatif", (p) => p.getByRole("slider", { name: /Replicas, R/ })],
  ["tenants", () => "/tenants", (p) => p.getByRole("heading", { name: "Quotas" })],
  ["models", () => "/models", (p) => p.getByRole("heading", { name: "demo", level: 2 })],
  ["rollout", () => "/rollout", (p) => p.getByRole("heading", { name: "Rollout", level: 1 })],
];

for (const colorScheme of ["light", "dark"]) {
  for (const width of [1280, 390]) {
    test(`every page, ${colorScheme}, ${width} wide`, async () => {
      const context = await browser.newContext({ colorScheme, viewport: { width, height: width > 600 ? 900 : 844 }, reducedMotion: "reduce", bypassCSP: true });
      for (const [name, path, there] of pages) {
        const { page, bad } = await open(context, base);
        await page.goto(base + (await path()));
        await there(page).waitFor();
        await page.waitForTimeout(900);
        await inspect(page, bad, `${name}, ${colorScheme}, ${width}`);
        await page.screenshot({ path: join(OUT, `${name}-${colorScheme}-${width}.png`), fullPage: true });
        await page.close();
      }
      await context.close();
    });
  }
}

test("the policy of the page allows no inline script, and the first load is small", async () => {
  const context = await browser.newContext();
  const { page, bad } = await open(context, base);
  const parts = [];
  page.on("response", (r) => {
    if (/\.(js|css|svg)$|\/$/.test(new URL(r.url()).pathname)) parts.push(r.allHeaders().then((h) => Number(h["content-length"] ?? 0)));
  });
  const res = await page.goto(base + "/");
  assert.match(res.headers()["content-security-policy"], /default-src 'none'; script-src 'self'; style-src 'self'/);
  await page.getByRole("article", { name: "pool demo" }).waitFor();
  await page.evaluate(() => {
    const s = document.createElement("script");
    s.textContent = "globalThis.inlined = true";
    document.body.append(s);
  });
  assert.equal(await page.evaluate(() => globalThis.inlined), undefined);
  assert.equal(bad.filter((b) => !b.includes("Content Security Policy") && !b.includes("inline script")).length, 0, bad.join("\n"));
  const bytes = (await Promise.all(parts)).reduce((a, b) => a + b, 0);
  console.log(`first load: ${(bytes / 1024).toFixed(1)} KiB`);
  assert.ok(bytes > 10_000 && bytes < 150 * 1024, `${bytes} bytes at first load`);
  await context.close();
});

test("from the first page to why, by keyboard alone", async () => {
  const context = await browser.newContext({ viewport: { width: 1280, height: 900 } });
  const { page, bad } = await open(context, base);
  await page.goto(base + "/");
  await page.getByRole("article", { name: "pool demo" }).waitFor();
  await page.getByRole("group", { name: "decisions" }).getByRole("link").first().waitFor(); // the rows come after the page
  await page.keyboard.press("Tab");
  assert.equal(await page.evaluate(() => document.activeElement.textContent), "Skip to the content");
  await page.keyboard.press("Enter");
  assert.equal(await page.evaluate(() => document.activeElement.id), "main");
  await page.getByRole("button", { name: "Pause" }).focus();
  await page.keyboard.press("Enter");
  await page.getByRole("button", { name: "Go on" }).waitFor();
  for (let i = 0; i < 12 && !(await page.evaluate(() => document.activeElement.matches("td a"))); i++) await page.keyboard.press("Tab");
  assert.ok(await page.evaluate(() => document.activeElement.matches("td a")), "no decision is reached in 12 steps");
  const ring = await page.evaluate(() => getComputedStyle(document.activeElement).outlineStyle);
  assert.equal(ring, "solid", "focus is not visible");
  await page.keyboard.press("Enter");
  await page.getByRole("heading", { name: /^Why / }).waitFor();
  await page.waitForURL(/\/decisions\/./);
  await page.getByLabel("Ask again under").selectOption("least-requests");
  await page.getByText(/picks/).first().waitFor();
  await page.goBack();
  await page.getByRole("article", { name: "pool demo" }).waitFor();
  assert.deepEqual(bad, []);
  await context.close();
});

test("a journal that is dropped on the page, and the scaler asked for other targets", async () => {
  const context = await browser.newContext({ viewport: { width: 1280, height: 900 } });
  const { page, bad } = await open(context, base);
  await page.goto(base + "/whatif?aim=0.95&max=2");
  await page.getByRole("heading", { name: "Other targets" }).waitFor();
  await page.getByText(/replica-hours,? and/).waitFor();
  const asked = page.getByRole("row", { name: /^as asked/ });
  assert.ok(Number(await asked.getByRole("cell").nth(1).textContent()) <= 2, "more replicas than asked for");
  await page.getByLabel("Most replicas").fill("1");
  await page.getByLabel("Most replicas").press("Enter");
  await page.waitForFunction(() => new URL(location.href).searchParams.get("max") === "1");
  const { decisions } = await (await fetch(base + "/api/v1/decisions?limit=50&filter=kind%3Dok")).json();
  const buffer = Buffer.from(decisions.map((d) => JSON.stringify(d) + "\n").join(""));
  await page.getByLabel(/drop a journal here/).setInputFiles({ name: "mine.jsonl", mimeType: "application/x-ndjson", buffer });
  await page.getByText(/^mine\.jsonl: \d{4}-/).waitFor();
  const row = page.getByRole("row", { name: /^least-requests/ });
  assert.ok(Number(await row.getByRole("cell").nth(0).textContent()) > 0, "no decision was asked again");
  await inspect(page, bad, "what if, asked");
  await page.getByLabel(/drop a journal here/).setInputFiles({ name: "no.jsonl", mimeType: "text/plain", buffer: Buffer.from("hello\n") });
  await page.getByRole("alert").getByText(/journal:1/).waitFor();
  await context.close();
});

test("the filter of decisions, and what it refuses", async () => {
  const context = await browser.newContext();
  const { page } = await open(context, base);
  await page.goto(base + "/decisions");
  const box = page.getByRole("searchbox", { name: "filter decisions" });
  await box.fill("replica=r3");
  await box.press("Enter");
  await page.waitForFunction(() => {
    const cells = [...document.querySelectorAll("tbody tr td:nth-child(4)")].map((c) => c.textContent);
    return cells.length > 2 && cells.every((c) => c === "r3");
  });
  await box.fill("nonsense>1");
  await box.press("Enter");
  await page.getByRole("alert").filter({ hasText: "unknown field" }).waitFor();
  await context.close();
});

test("knobs by keyboard, state in the address, and the real simulator in about a second", async () => {
  const context = await browser.newContext({ viewport: { width: 1280, height: 900 } });
  const { page, bad } = await open(context, base);
  await page.goto(base + "/whatif");
  const r = page.getByRole("slider", { name: /Replicas, R/ });
  await r.focus();
  await page.keyboard.press("ArrowRight");
  await page.getByText("With 9 replicas and 70", { exact: false }).first().waitFor();
  await page.waitForURL((u) => u.searchParams.get("r") === "9");
  await page.goto(base + "/whatif?r=8&s=0.7");
  // The same numbers as the command line.
  const cli = JSON.parse(execFileSync(BIN, ["whatif", "--replicas", "8", "--shared", "0.7", "--requests", "1000", "-o", "json"]));
  await page.getByText((100 * cli.formula.random).toFixed(1), { exact: false }).first().waitFor();
  await page.getByText((100 * cli.formula.aware).toFixed(1), { exact: false }).first().waitFor();
  const begin = Date.now();
  await page.getByRole("button", { name: "Run it" }).click();
  await page.getByRole("row", { name: /^penstock/ }).waitFor();
  console.log(`simulator: five policies in ${Date.now() - begin} ms`);
  assert.equal(await page.getByRole("group", { name: "policies side by side" }).getByRole("row").count(), 6);
  await page.screenshot({ path: join(OUT, "whatif-ran-light-1280.png"), fullPage: true });
  await page.getByRole("button", { name: "Measure the price" }).click();
  await page.getByRole("group", { name: "price of isolation" }).getByRole("row", { name: /^user/ }).waitFor();
  assert.equal(await page.getByRole("group", { name: "price of isolation" }).getByRole("row").count(), 4);
  await page.getByRole("button", { name: "Ask about the last decisions" }).click();
  await page.getByRole("group", { name: "other policies on recorded decisions" }).waitFor();
  assert.deepEqual(bad, []);
  await context.close();
});

test("the incident view restores what its address says", async () => {
  const context = await browser.newContext({ viewport: { width: 1280, height: 900 } });
  const { page, bad } = await open(context, base);
  await page.goto(base + "/incident");
  await page.getByRole("button", { name: "Hold this time" }).click();
  await page.waitForURL(/from=.*to=/);
  const held = page.url();
  await page.goto(base + "/");
  await page.goto(held);
  await page.getByRole("button", { name: "All", exact: true }).waitFor();
  await context.grantPermissions(["clipboard-read", "clipboard-write"], { origin: base });
  const copied = page.waitForFunction(() => [...document.querySelectorAll("button")].some((b) => b.textContent === "copied")); // for a moment
  await page.getByRole("button", { name: "Copy as Markdown" }).click();
  await copied;
  const text = await page.evaluate(() => navigator.clipboard.readText());
  assert.match(text, /## demo, [\s\S]*TTFT p95[\s\S]*### Findings[\s\S]*policy random -> penstock/);
  assert.deepEqual(bad, []);
  await context.close();
});

test("a decision shows within a second", async () => {
  const context = await browser.newContext();
  const { page } = await open(context, base);
  await page.goto(base + "/decisions");
  // Only answers as short as ours, so that none of the others pushes one out of sight.
  const box = page.getByRole("searchbox", { name: "filter decisions" });
  await box.fill("output=2");
  await box.press("Enter");
  const send = async (i) => {
    const res = await fetch(gateway + "/v1/chat/completions", {
      method: "POST", headers: { "content-type": "application/json" },
      body: JSON.stringify({ model: "llama-3.1-8b", max_tokens: 2, messages: [{ role: "user", content: "tell me " + i }] }),
    });
    await res.text();
    return res.headers.get("x-request-id");
  };
  // The page itself looks at every frame; a locator would look twice a second.
  const shows = (id, timeout) => page.waitForFunction((id) => [...document.querySelectorAll("td a")].some((a) => a.textContent === id), id, { timeout });
  // The page asks for the filter and then listens anew: what came before is not among its rows.
  for (let i = 0; !(await shows(await send("first " + i), 3000).then(() => true, () => false)); i++) assert.ok(i < 20, "no decision shows at all");
  const took = [];
  for (let i = 0; i < 9; i++) {
    await sleep(i * 90); // at any moment between two messages of the server
    const id = await send(i), begin = Date.now();
    await shows(id, 30_000);
    took.push(Date.now() - begin);
  }
  console.log(`from the end of an answer to the page: ${took.join(", ")} ms`);
  assert.ok(median(took) < 1000, `median ${median(took)} ms`);
  await context.close();
});

test("the page as a file works without a network", async () => {
  const file = join(mkdtempSync(join(tmpdir(), "whatif-")), "whatif.html");
  execFileSync(BIN, ["whatif", "--html", file, "--requests", "1000"]);
  const context = await browser.newContext({ offline: true, viewport: { width: 1280, height: 900 }, bypassCSP: true });
  const { page, bad } = await open(context, "file://");
  await page.goto("file://" + file + "#r=16&s=0.7");
  await page.getByText("With 16 replicas", { exact: false }).first().waitFor();
  await page.getByRole("slider", { name: /Replicas, R/ }).focus();
  await page.keyboard.press("ArrowLeft");
  await page.getByText("With 15 replicas", { exact: false }).first().waitFor();
  await page.waitForURL(/#r=15&s=0.7/);
  assert.equal(await page.getByRole("group", { name: "measured" }).getByRole("row").count(), 7);
  await inspect(page, bad, "whatif as a file");
  await page.screenshot({ path: join(OUT, "whatif-file-light-1280.png"), fullPage: true });
  await context.close();
});
