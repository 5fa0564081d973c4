# SPDX-License-Identifier: Apache-2.0
"""The openai and anthropic SDKs, unmodified, against an engine or a gateway before
it: `python3 sdks.py BASE_URL MODEL`. Prints one line a call."""
import sys

import anthropic
import openai

base, model = sys.argv[1:]
o = openai.OpenAI(base_url=base + "/v1", api_key="none", max_retries=0)
a = anthropic.Anthropic(base_url=base, api_key="none", max_retries=0)
ask = [{"role": "user", "content": "which replica answers question 3"}]


def check(name, ok, seen=None):
    if not ok:
        raise SystemExit(f"{name}: {seen}")
    print("ok", name)


check("models", model in [m.id for m in o.models.list().data])
r = o.chat.completions.create(model=model, messages=ask, max_tokens=8, extra_body={"ignore_eos": True})
check("chat", r.usage.completion_tokens == 8, r)
usage = None
for c in o.chat.completions.create(model=model, messages=ask, max_tokens=8, stream=True, stream_options={"include_usage": True},
                                   extra_body={"ignore_eos": True}):
    usage = c.usage or usage
check("chat stream", usage.completion_tokens == 8, usage)
r = o.completions.create(model=model, prompt="block 4 of the fleet", max_tokens=8, extra_body={"ignore_eos": True})
check("completions", r.usage.completion_tokens == 8, r)
r = o.responses.create(model=model, input="which replica", max_output_tokens=16)
check("responses", r.usage.output_tokens > 0, r)
r = a.messages.create(model=model, messages=ask, max_tokens=8)
check("messages", r.usage.output_tokens > 0, r)
with a.messages.stream(model=model, messages=ask, max_tokens=8) as s:
    kinds = {e.type for e in s}
check("messages stream", {"message_start", "message_stop"} <= kinds, kinds)
r = a.messages.count_tokens(model=model, messages=ask)
check("count_tokens", r.input_tokens > 3, r)
for name, error, call in (
    ("unknown model", openai.NotFoundError, lambda: o.chat.completions.create(model="nope", messages=ask)),
    ("bad request", openai.BadRequestError, lambda: o.chat.completions.create(model=model, messages=ask, temperature=-1)),
    ("unknown model, messages", anthropic.NotFoundError, lambda: a.messages.create(model="nope", messages=ask, max_tokens=4)),
):
    try:
        call()
        check(name, False, "no error")
    except error as e:
        check(name, bool(e.message), e)
