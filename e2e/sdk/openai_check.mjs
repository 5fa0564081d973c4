// SPDX-License-Identifier: Apache-2.0
// The openai npm SDK, unmodified, against `penstock serve`.
import OpenAI from "openai";

const client = new OpenAI({ baseURL: process.env.BASE_URL + "/v1", apiKey: "unused", maxRetries: 0 });
let passed = 0;
const check = (name, ok, detail) => {
  if (!ok) {
    console.error(`FAILED ${name}: ${JSON.stringify(detail)}`);
    process.exit(1);
  }
  passed++;
  console.log("ok", name);
};

const model = (await client.models.list()).data[0].id;
check("models.list", model);
const messages = [
  { role: "system", content: "You answer in short sentences. ".repeat(40) },
  { role: "user", content: "What is a penstock? \u00e9\u4e2d\u{1f600}" },
];
const r = await client.chat.completions.create({ model, messages, max_tokens: 16 });
check("chat", r.choices[0].message.content && r.usage.completion_tokens === 16, r);

let text = "", usage = null, finish = null;
for await (const c of await client.chat.completions.create({
  model, messages, max_tokens: 16, stream: true, stream_options: { include_usage: true },
})) {
  if (c.usage) usage = c.usage;
  text += c.choices[0]?.delta?.content ?? "";
  finish = c.choices[0]?.finish_reason ?? finish;
}
check("chat stream", text && finish === "length" && usage.completion_tokens === 16, { text, finish, usage });

const s = await client.chat.completions.create({ model, messages, max_tokens: 2000, stream: true });
let n = 0;
for await (const _ of s) if (++n === 5) s.controller.abort();
check("abort after five chunks", n >= 5, n);

const c = await client.completions.create({ model, prompt: "once upon a time", max_tokens: 8 });
check("completions", c.choices[0].text && c.usage.completion_tokens === 8, c);

try {
  await client.chat.completions.create({ model: "no-such", messages });
  check("unknown model", false);
} catch (e) {
  check("unknown model", e instanceof OpenAI.NotFoundError && e.requestID, String(e));
}
console.log(`openai (npm): ${passed} passed, 0 failed`);
