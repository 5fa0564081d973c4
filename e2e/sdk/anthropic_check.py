# SPDX-License-Identifier: Apache-2.0
"""The anthropic SDK, unmodified, against `penstock serve`: natively and translated.

BASE_URL: the gateway. MODEL: the model to ask. NATIVE: 1 where the engine speaks the
Messages API itself.
"""

import os

import anthropic

client = anthropic.Anthropic(base_url=os.environ["BASE_URL"], api_key="unused", max_retries=0)
model, passed = os.environ["MODEL"], 0


def check(name, ok, detail=""):
    global passed
    if not ok:
        raise SystemExit(f"FAILED {name}: {detail}")
    passed += 1
    print("ok", name)


messages = [{"role": "user", "content": [{"type": "text", "text": "Was ist ein Druckrohr? \u00e9\u4e2d\U0001f600"}]}]
system = [{"type": "text", "text": "You answer in short sentences. " * 40, "cache_control": {"type": "ephemeral"}}]
r = client.messages.create(model=model, max_tokens=16, system=system, messages=messages)
check("message", r.type == "message" and r.content[0].text and r.usage.output_tokens == 16 and r.stop_reason == "max_tokens", r)
check("message model", r.model == model, r.model)

with client.messages.stream(model=model, max_tokens=16, system=system, messages=messages) as s:
    text = "".join(s.text_stream)
    final = s.get_final_message()
check("stream", text and final.content[0].text == text and final.stop_reason == "max_tokens" and final.usage.output_tokens == 16, final)

kinds = [e.type for e in client.messages.create(model=model, max_tokens=4, messages=messages, stream=True)]
check("raw events", kinds[0] == "message_start" and kinds[-1] == "message_stop" and "message_delta" in kinds, kinds)

tools = [{"name": "weather", "description": "tells the weather", "input_schema": {"type": "object", "properties": {"city": {"type": "string"}}}}]
turns = messages + [
    {"role": "assistant", "content": [{"type": "tool_use", "id": "t1", "name": "weather", "input": {"city": "Paris"}}]},
    {"role": "user", "content": [{"type": "tool_result", "tool_use_id": "t1", "content": "sunny"}]},
]
r = client.messages.create(model=model, max_tokens=8, messages=turns, tools=tools)
check("tools in the conversation", r.usage.output_tokens == 8, r)

n = client.messages.count_tokens(model=model, system="be brief", messages=messages)
check("count_tokens", n.input_tokens > 3, n)

try:
    client.messages.create(model="no-such", max_tokens=4, messages=messages)
    check("unknown model", False)
except anthropic.NotFoundError as e:
    check("unknown model", e.body["error"]["type"] == "not_found_error" and "no-such" in e.message, e.body)
try:
    client.post("/v1/messages", body={"model": model, "max_tokens": "9", "messages": messages}, cast_to=object)
    check("a cap in quotes", False)
except anthropic.BadRequestError as e:
    check("a cap in quotes", e.body["error"]["type"] == "invalid_request_error", e.body)
print(f"anthropic (Python) {anthropic.__version__}: {passed} passed, 0 failed")
