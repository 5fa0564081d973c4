# SPDX-License-Identifier: Apache-2.0
"""Asks the same of a real and of a simulated replica and names what differs.

    python3 e2e/engine/compare.py REAL SIMULATED ADAPTER_FOLDER

What an answer says is of no interest here: only its status, the headers, the names
and types of its fields, and the families, types and labels of the metrics.
"""
import json
import re
import sys

from fleet import MODEL, Raw, get, post

IGNORED_HEADERS = {"date", "server", "content-length", "x-penstock-replica", "connection", "keep-alive"}
ASK = [{"role": "user", "content": "which replica answers"}]


def shape(v):
    """A value with its leaves replaced by the names of their types."""
    if isinstance(v, dict):
        return {k: shape(x) for k, x in sorted(v.items())}
    if isinstance(v, list):
        return [shape(v[0])] if v else []
    return {bool: "bool", int: "number", float: "number", str: "string", type(None): "null"}[type(v)]


def merged(a, b):
    """Two shapes in one: a field that is null in one frame and a string in another is both."""
    if isinstance(a, dict) and isinstance(b, dict):
        return {k: merged(a[k], b[k]) if k in a and k in b else merged(a.get(k, b.get(k)), "absent") for k in sorted({*a, *b})}
    if isinstance(a, list) and isinstance(b, list):
        return [merged(a[0], b[0])] if a and b else a or b
    if a == b:
        return a
    names = {n for v in (a, b) for n in (v.split("|") if isinstance(v, str) else ["object"])}
    return "|".join(sorted(names))


def parsed(body):
    try:
        return shape(json.loads(body))
    except ValueError:
        return "text" if body else "empty"


def headers(h):
    return sorted(k.lower() for k, _ in h.items() if k.lower() not in IGNORED_HEADERS)


def error_words(body):
    """Type, param and code of an error, which clients branch on."""
    try:
        e = json.loads(body)["error"]
        return {k: re.sub(r"\d+", "N", str(e.get(k))) for k in ("type", "param", "code")}
    except (ValueError, KeyError, TypeError):
        return None


def asked(addr, path, body, **more):
    status, h, data = post(addr, body, path, timeout=60, **more)
    out = {"status": status, "body": parsed(data), "headers": headers(h), "content-type": h.get("content-type", "").split(";")[0]}
    if status >= 400:
        out["error"] = error_words(data)
    return out


def streamed(addr, path, body):
    r = Raw.post(addr, {**body, "stream": True}, path=path)
    try:
        status, h = r.head()
        data = b"".join(r.chunks())
    finally:
        r.close()
    kinds = {}
    for frame in data.decode().split("\n\n"):
        lines = frame.strip().splitlines()
        if not lines:
            continue
        name = [x[7:] for x in lines if x.startswith("event: ")]
        text = "".join(x[6:] for x in lines if x.startswith("data: "))
        what, kind = "[DONE]" if text == "[DONE]" else parsed(text), name[0] if name else "frame"
        if isinstance(what, dict) and what.get("choices") == []:
            kind += " without choices"
        elif what == "[DONE]":
            kind = what
        kinds[kind] = merged(kinds[kind], what) if kind in kinds else what
    return {"status": status, "content-type": h.get("content-type", "").split(";")[0], "kinds of frames": kinds}


def metrics(addr):
    out = {}
    for line in get(addr, "/metrics", timeout=30)[1].decode().splitlines():
        if m := re.match(r"# TYPE (vllm:\S+) (\S+)", line):
            out[m.group(1)] = {"type": m.group(2), "labels": set()}
        elif m := re.match(r"(vllm:[a-zA-Z_]+)\{([^}]*)\}", line):
            base = re.sub(r"_(bucket|sum|count|created)$", "", m.group(1))
            at = out.get(m.group(1)) or out.get(base)
            if at is not None and not m.group(1).endswith("_created"):
                at["labels"] |= set(re.findall(r'([a-zA-Z_]+)="', m.group(2)))
    return {k: {"type": v["type"], "labels": sorted(v["labels"])} for k, v in out.items() if not k.endswith("_created")}


def probes(addr, adapter):
    text = {"model": MODEL, "prompt": "block 4 of the fleet", "max_tokens": 40}
    chat = {"model": MODEL, "messages": ASK, "max_tokens": 40}
    many = " ".join(str(i) for i in range(20000))
    yield "health", lambda: get(addr, "/health")[0]
    yield "ping", lambda: get(addr, "/ping")[0]
    yield "version", lambda: parsed(get(addr, "/version")[1])
    yield "load", lambda: parsed(get(addr, "/load")[1])
    yield "kv_event_sources", lambda: parsed(get(addr, "/kv_event_sources")[1])
    yield "models", lambda: parsed(get(addr, "/v1/models")[1])
    yield "unknown path", lambda: (get(addr, "/v1/nope")[0], parsed(get(addr, "/v1/nope")[1]))
    yield "wrong method", lambda: get(addr, "/v1/chat/completions")[0]
    yield "tokenize", lambda: asked(addr, "/tokenize", {"model": MODEL, "prompt": "the fleet"})
    yield "detokenize", lambda: asked(addr, "/detokenize", {"model": MODEL, "tokens": [5, 6, 7]})
    yield "completion", lambda: asked(addr, "/v1/completions", text)
    yield "completion, two answers", lambda: asked(addr, "/v1/completions", {**text, "n": 2, "temperature": 1})
    yield "completion stream", lambda: streamed(addr, "/v1/completions", {**text, "ignore_eos": True})
    yield "completion stream with usage", lambda: streamed(addr, "/v1/completions", {**text, "ignore_eos": True, "stream_options": {"include_usage": True}})
    yield "chat", lambda: asked(addr, "/v1/chat/completions", chat)
    yield "chat stream", lambda: streamed(addr, "/v1/chat/completions", {**chat, "ignore_eos": True})
    yield "chat stream with usage", lambda: streamed(addr, "/v1/chat/completions", {**chat, "ignore_eos": True, "stream_options": {"include_usage": True}})
    yield "messages", lambda: asked(addr, "/v1/messages", {**chat})
    yield "messages stream", lambda: streamed(addr, "/v1/messages", {**chat})
    yield "count_tokens", lambda: asked(addr, "/v1/messages/count_tokens", chat)
    yield "responses", lambda: asked(addr, "/v1/responses", {"model": MODEL, "input": "hello", "max_output_tokens": 16})
    yield "unknown model", lambda: asked(addr, "/v1/chat/completions", {**chat, "model": "nope"})
    yield "unknown model, messages", lambda: asked(addr, "/v1/messages", {**chat, "model": "nope"})
    yield "prompt too long", lambda: asked(addr, "/v1/completions", {**text, "prompt": many})
    yield "max_tokens too large", lambda: asked(addr, "/v1/completions", {**text, "max_tokens": 10**6})
    yield "broken JSON", lambda: asked(addr, "/v1/completions", '{"model": "tiny", ')
    yield "no messages", lambda: asked(addr, "/v1/chat/completions", {"model": MODEL})
    yield "no prompt", lambda: asked(addr, "/v1/completions", {"model": MODEL})
    yield "n=0", lambda: asked(addr, "/v1/completions", {**text, "n": 0})
    yield "negative temperature", lambda: asked(addr, "/v1/completions", {**text, "temperature": -1})
    yield "temperature in quotes", lambda: asked(addr, "/v1/completions", {**text, "temperature": "warm"})
    yield "empty salt", lambda: asked(addr, "/v1/completions", {**text, "cache_salt": ""})
    yield "wrong content type", lambda: asked(addr, "/v1/completions", json.dumps(text), headers={"content-type": "text/plain"})
    yield "load adapter", lambda: asked(addr, "/v1/load_lora_adapter", {"lora_name": "probe", "lora_path": adapter})
    yield "load adapter again", lambda: asked(addr, "/v1/load_lora_adapter", {"lora_name": "probe", "lora_path": adapter})
    yield "adapter answers", lambda: asked(addr, "/v1/completions", {**text, "model": "probe"})
    yield "models with adapter", lambda: parsed(get(addr, "/v1/models")[1])
    yield "unload adapter", lambda: asked(addr, "/v1/unload_lora_adapter", {"lora_name": "probe"})
    yield "unload adapter again", lambda: asked(addr, "/v1/unload_lora_adapter", {"lora_name": "probe"})
    yield "load a missing adapter", lambda: asked(addr, "/v1/load_lora_adapter", {"lora_name": "gone", "lora_path": "/nowhere/at/all"})


def differences(real, sim, at=""):
    """Yields (place, real, simulated) where two values differ."""
    if isinstance(real, dict) and isinstance(sim, dict):
        if real.get("status") != sim.get("status"):
            yield f"{at}.status", real.get("status"), sim.get("status")
            return  # the rest follows from it
        for k in sorted(set(real) | set(sim)):
            if k not in sim:
                yield f"{at}.{k}", real[k], None
            elif k not in real:
                yield f"{at}.{k}", None, sim[k]
            else:
                yield from differences(real[k], sim[k], f"{at}.{k}")
    elif isinstance(real, (list, tuple)) and isinstance(sim, (list, tuple)) and len(real) == len(sim):
        for i, (r, s) in enumerate(zip(real, sim)):
            yield from differences(r, s, f"{at}[{i}]")
    elif real != sim:
        yield at, real, sim


def compare(real, sim, adapter):
    """Returns the number of probes and the differences as (probe, place, real, simulated)."""
    out, n = [], 0
    for (name, on_real), (_, on_sim) in zip(probes(real, adapter), probes(sim, adapter)):
        n += 1
        seen = []
        for fn in (on_real, on_sim):
            try:
                seen.append(fn())
            except Exception as e:  # noqa: BLE001 - a broken answer is an answer to compare
                seen.append(f"{type(e).__name__}: {e}")
        out += [(name, *d) for d in differences(*seen)]
    n += 1
    out += [("metrics", *d) for d in differences(metrics(real), metrics(sim))]
    return n, out


if __name__ == "__main__":
    count, found = compare(*sys.argv[1:])
    for name, place, r, s in found:
        print(f"{name}{place}: real {json.dumps(r)[:200]}; simulated {json.dumps(s)[:200]}")
    print(f"{count} probes, {len(found)} differences")
