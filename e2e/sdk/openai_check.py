# SPDX-License-Identifier: Apache-2.0
"""The openai SDK, unmodified, against `penstock serve`."""

import asyncio
import os

import openai

client = openai.OpenAI(base_url=os.environ["BASE_URL"] + "/v1", api_key="unused", max_retries=0)
passed = 0


def check(name, ok, detail=""):
    global passed
    if not ok:
        raise SystemExit(f"FAILED {name}: {detail}")
    passed += 1
    print("ok", name)


def expect(name, error, call):
    try:
        call()
    except error as e:
        check(name, bool(e.message), e)
        return e
    raise SystemExit(f"FAILED {name}: no {error.__name__}")


model = client.models.list().data[0].id
check("models.list", bool(model))
check("models.retrieve", client.models.retrieve(model).id == model)

messages = [
    {"role": "system", "content": "You answer in short sentences. " * 40},
    {"role": "user", "content": "Was ist ein Druckrohr? \u00e9\u4e2d\U0001f600"},
]
r = client.chat.completions.create(model=model, messages=messages, max_tokens=16)
check("chat", r.choices[0].message.content and r.usage.completion_tokens == 16, r)
check("chat usage", r.usage.prompt_tokens > 50, r.usage)

text, usage, finish = "", None, None
for chunk in client.chat.completions.create(
    model=model, messages=messages, max_tokens=16, stream=True, stream_options={"include_usage": True}
):
    if chunk.usage:
        usage = chunk.usage
    if chunk.choices:
        text += chunk.choices[0].delta.content or ""
        finish = chunk.choices[0].finish_reason or finish
check("chat stream", text and finish == "length" and usage.completion_tokens == 16, (text, finish, usage))
check("chat stream reuses the prefix", usage.prompt_tokens_details.cached_tokens > 0, usage)

n = 0
for chunk in client.chat.completions.create(model=model, messages=messages, max_tokens=8, stream=True):
    check("no usage unless asked", chunk.usage is None) if n == 0 else None
    n += 1
check("chat stream without usage", n > 1, n)

r = client.completions.create(model=model, prompt="once upon a time", max_tokens=8)
check("completions", r.choices[0].text and r.usage.completion_tokens == 8, r)
text = "".join(c.choices[0].text for c in client.completions.create(model=model, prompt="once", max_tokens=8, stream=True) if c.choices)
check("completions stream", text)

e = expect("unknown model", openai.NotFoundError, lambda: client.chat.completions.create(model="no-such", messages=messages))
check("unknown model has a request id", bool(e.request_id), e.response.headers)
expect("no messages", openai.BadRequestError, lambda: client.post("/chat/completions", body={"model": model}, cast_to=object))

raw = client.chat.completions.with_raw_response.create(model=model, messages=messages, max_tokens=4)
check("x-request-id", bool(raw.headers.get("x-request-id")))

s = client.chat.completions.create(model=model, messages=messages, max_tokens=2000, stream=True)
for i, _ in enumerate(s):
    if i == 3:
        break
s.close()
check("abort a stream", True)


async def many():
    a = openai.AsyncOpenAI(base_url=os.environ["BASE_URL"] + "/v1", api_key="unused", max_retries=0)
    rs = await asyncio.gather(*[
        a.chat.completions.create(model=model, messages=messages + [{"role": "user", "content": str(i)}], max_tokens=8)
        for i in range(16)
    ])
    return all(r.usage.completion_tokens == 8 for r in rs)


check("16 at once", asyncio.run(many()))
print(f"openai (Python) {openai.__version__}: {passed} passed, 0 failed")
