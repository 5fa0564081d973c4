// SPDX-License-Identifier: Apache-2.0
// The anthropic npm SDK, unmodified, against `penstock serve`.
import Anthropic from "@anthropic-ai/sdk";

const client = new Anthropic({ baseURL: process.env.BASE_URL, apiKey: "unused", maxRetries: 0 });
const model = process.env.MODEL;
let passed = 0;
const check = (name, ok, detail) => {
  if (!ok) {
    console.error(`FAILED ${name}: ${JSON.stringify(detail)}`);
    process.exit(1);
  }
  passed++;
  console.log("ok", name);
};

const messages = [{ role: "user", content: "What is a penstock? \u00e9\u4e2d\u{1f600}" }];
const r = await client.messages.create({ model, max_tokens: 16, messages });
check("message", r.content[0].text && r.usage.output_tokens === 16 && r.stop_reason === "max_tokens" && r.model === model, r);

const stream = client.messages.stream({ model, max_tokens: 16, messages });
let text = "";
stream.on("text", (t) => (text += t));
const final = await stream.finalMessage();
check("stream", text && final.content[0].text === text && final.usage.output_tokens === 16, final);

const n = await client.messages.countTokens({ model, messages });
check("count_tokens", n.input_tokens > 3, n);

try {
  await client.messages.create({ model: "no-such", max_tokens: 4, messages });
  check("unknown model", false);
} catch (e) {
  check("unknown model", e instanceof Anthropic.NotFoundError, e);
}
console.log(`anthropic (npm): ${passed} passed, 0 failed`);
