// SPDX-License-Identifier: Apache-2.0
// Processes beside the test: `child.mjs fleet` serves any number of replicas behind
// paths of one port, and `child.mjs load URL RATE` sends requests in an open loop.
import { Agent, createServer, request } from "node:http";

const [, , what, url, rate] = process.argv;

if (what === "fleet") {
  const model = JSON.stringify({ object: "list", data: [{ id: "m", object: "model", owned_by: "vllm" }] });
  const answer = JSON.stringify({ id: "x", object: "chat.completion", model: "m", choices: [{ index: 0, message: { role: "assistant", content: "hi" }, finish_reason: "stop" }],
    usage: { prompt_tokens: 100, completion_tokens: 1, total_tokens: 101, prompt_tokens_details: { cached_tokens: 40 } } });
  let scrapes = 0;
  const s = createServer((req, res) => {
    if (req.url.endsWith("/metrics")) {
      const k = scrapes++ % 17; // numbers that move
      res.setHeader("content-type", "text/plain; version=0.0.4");
      res.end(`vllm:num_requests_running{engine="0",model_name="m"} ${k}\nvllm:num_requests_waiting{engine="0",model_name="m"} ${k % 3}\nvllm:kv_cache_usage_perc{engine="0",model_name="m"} ${k / 20}\n`);
      return;
    }
    res.setHeader("content-type", "application/json");
    if (req.method === "POST") {
      req.resume();
      req.on("end", () => res.end(answer));
    } else res.end(req.url.endsWith("/v1/models") ? model : "{}");
  }).listen(0, "127.0.0.1", () => process.send({ port: s.address().port }));
} else {
  const agent = new Agent({ keepAlive: true, maxSockets: 64 });
  const begin = Date.now();
  let sent = 0, done = 0, failed = 0, open = 0;
  setInterval(() => {
    // No more than 256 wait: a slow machine is not to drown in its own load.
    for (const due = ((Date.now() - begin) / 1000) * rate; sent < due && open < 256; sent++) {
      const body = JSON.stringify({ model: "m", max_tokens: 1, messages: [{ role: "user", content: "question " + (sent % 50) }] });
      open++;
      const end = (ok) => { open--; ok ? done++ : failed++; };
      const r = request(url, { agent, method: "POST", headers: { "content-type": "application/json", "content-length": Buffer.byteLength(body) } }, (res) => {
        res.resume();
        res.on("end", () => end(res.statusCode === 200));
      });
      r.on("error", () => end(false));
      r.end(body);
    }
  }, 10);
  setInterval(() => process.send({ sent, done, failed, open }), 250);
}
process.on("disconnect", () => process.exit());
