# SPDX-License-Identifier: Apache-2.0
"""Penstock in front of real vLLM replicas on CPU.

    VLLM_VENV=DIR MODEL_DIR=DIR PENSTOCK=bin/penstock python3 e2e/engine/run.py [CASE...]
"""
import concurrent.futures
import json
import os
import random
import re
import signal
import statistics
import subprocess
import sys
import time

from compare import compare
from fleet import (KV_TOKENS, MODEL, MODEL_DIR, PENSTOCK, QUIET, SEATS, VENV, WINDOW, Penstock, Proc, Raw, Rig, Vllm, case,
                   free_port, get, penstock, poll, post, run_cases, stream, vllm_command)
from prose import words

HERE = os.path.dirname(os.path.abspath(__file__))


def completion(prompt, tokens=4, **more):
    return {"model": MODEL, "prompt": prompt, "max_tokens": tokens, "temperature": 0, "ignore_eos": True, **more}


def cached(usage):
    return (usage.get("prompt_tokens_details") or {}).get("cached_tokens") or 0


@case
def sdks(rig):
    out = {}
    for name, base in (("engine", rig.vllm[0].url), ("serve", rig.serve.url)):
        r = subprocess.run([os.path.join(VENV, "bin/python"), os.path.join(HERE, "sdks.py"), base, MODEL], capture_output=True, text=True, timeout=300)
        assert r.returncode == 0, f"{name}: {r.stdout[-300:]} {r.stderr[-600:]}"
        out[name] = r.stdout
    assert out["engine"] == out["serve"], out
    return f"{out['serve'].count('ok')} calls, the same as against vLLM itself"


@case
def reads_metrics(rig):
    """What status shows is what the engine's own exposition says."""
    v = rig.vllm[0]
    streams = [Raw.post(v.addr, completion(f"busy {i}", 1500, stream=True), path="/v1/completions") for i in range(SEATS + 2)]
    try:
        def seen():
            e = next(e for e in rig.serve.endpoints() if e["id"] == v.addr)
            return e if e["running"]["value"] == SEATS and e["waiting"]["value"] == 2 else None
        e = poll("status shows what runs and waits", seen, limit=30)
    finally:
        for s in streams:
            s.close()
    text = get(rig.serve.admin, f"/replicas/{v.addr}/metrics", timeout=30)[1]
    assert b"vllm:num_requests_running" in text
    assert e["kv_used"]["value"] > 0 if "kv_used" in e else True, e
    return f"running {e['running']['value']:g}, waiting {e['waiting']['value']:g}; verbatim exposition {len(text) // 1024} KiB"


def conversations(addr, seed, sessions=8, turns=4, clients=3):
    """Sessions that share system prompts and grow turn by turn; returns hit ratio
    and the mean TTFT in ms, as the engine itself reports cached tokens."""
    rows = []

    def session(i):
        text = words(f"system {seed} {i % 3}", 300)
        for t in range(turns):
            text += words(f"{seed} {i} {t}", 100)
            status, _, first, usage, _ = stream(addr, completion(text, 8))
            assert status == 200, usage
            rows.append((usage["prompt_tokens"], cached(usage), first))
    with concurrent.futures.ThreadPoolExecutor(clients) as pool:
        list(pool.map(session, range(sessions)))
    return sum(r[1] for r in rows) / sum(r[0] for r in rows), statistics.mean(r[2] for r in rows) * 1e3


@case
def prefix_routing(rig):
    """The engine's own cached_tokens tell routing by prefix from the others."""
    out = {}
    for policy in ("random", "round-robin", "penstock"):
        for v in rig.vllm:
            v.forget()
        p = Penstock(rig, "policy-" + policy, rig.vllm, policy=policy)
        try:
            out[policy] = conversations(p.addr, policy)
        finally:
            p.close()
    text = ", ".join(f"{k} {hit:.2f} / {ms:.0f} ms" for k, (hit, ms) in out.items())
    best = max(out["random"][0], out["round-robin"][0])
    assert out["penstock"][0] > best + 0.05, text
    return "hit ratio by the engine / mean TTFT: " + text


def foreseen(rig, p, clients):
    """Share of the cached tokens that the engines report which the router foresaw,
    request by request."""
    for v in rig.vllm:
        v.forget()
        # The engine tells with its next step that its cache was cleared, not before.
        assert post(v.addr, completion("a step", 1), "/v1/completions", timeout=60)[0] == 200
    conversations(p.addr, "warm up", 2, 2)  # the ratio of bytes to tokens is learned
    before = {d["id"] for d in p.api("/decisions?limit=1000")["decisions"]}
    conversations(p.addr, "measured", 10, 5, clients)

    def recorded():  # a request's record comes a moment after its answer
        rows = [d["outcome"] for d in p.api("/decisions?limit=1000")["decisions"] if d["id"] not in before]
        return rows if len(rows) >= 50 else None
    rows = poll("the record of every request", recorded, limit=60)
    assert len(rows) == 50, len(rows)
    reported = sum(r["cached_tokens"] for r in rows)
    off = sum(abs(r["cached_tokens"] - r["predicted_cached_tokens"]) for r in rows)
    return 1 - off / reported, reported


@case
def predicts_cached_tokens(rig):
    p = Penstock(rig, "by-text", rig.vllm, pool="    engine: {kvEvents: off}\n")
    try:
        share, reported = foreseen(rig, p, 3)
    finally:
        p.close()
    assert share >= 0.95, f"{share:.3f} of {reported} cached tokens foreseen"
    return f"{share:.1%} of {reported} cached tokens foreseen per request, from text"


@case
def predicts_with_events(rig):
    """vLLM dials, so one router at a time can hear its events: the one of all cases,
    which found them through /kv_event_sources and knows prompts by their token ids. One request at a time: whether two that come
    in one step share what is new to both is a matter of microseconds."""
    share, reported = foreseen(rig, rig.serve, 1)
    heard = [e["kv_events"] for e in rig.serve.endpoints()]
    assert all(k["batches"] for k in heard), heard
    assert share >= 0.99, f"{share:.3f} of {reported} cached tokens foreseen; {heard}"
    return f"{share:.1%} of {reported} cached tokens foreseen per request, from {sum(k['batches'] for k in heard)} batches of events"


@case
def salts_isolate(rig):
    prompt = words("salt", 200)
    seen = []
    for salt in ("one", "one", "two", None):
        more = {"cache_salt": salt} if salt else {}
        status, _, body = post(rig.serve.addr, completion(prompt, **more), "/v1/completions", timeout=60)
        assert status == 200, body
        seen.append(cached(json.loads(body)["usage"]))
    assert seen[0] == seen[2] == seen[3] == 0 < seen[1], seen
    return f"cached tokens by salt one, one, two, none: {seen}"


@case
def adapters(rig):
    """Load on one replica; inventory, then routing, follow."""
    v = rig.vllm[1]
    status, _, body = post(v.addr, {"lora_name": "ad1", "lora_path": MODEL_DIR + "-ad1"}, "/v1/load_lora_adapter")
    assert status == 200, body

    def known():
        return post(rig.serve.addr, completion("x", 2, model="ad1"), "/v1/completions", timeout=60)
    poll("the adapter is known", lambda: known()[0] == 200, limit=30)
    went = set()
    for i in range(6):
        status, head, body = post(rig.serve.addr, completion(f"adapter {i}", 4, model="ad1"), "/v1/completions", timeout=60)
        assert status == 200 and json.loads(body)["model"] == "ad1", body
        went.add(rig.serve.decision(head["x-request-id"])["chosen"])
    assert went == {v.addr}, went
    inventory = penstock("status", "--adapters", "--server", f"http://{rig.serve.admin}").stdout
    assert "ad1" in inventory, inventory
    return "6 of 6 went to the replica that has it"


@case
def engine_refuses_when_full(rig):
    """vLLM's 503 comes without Retry-After; another replica serves instead."""
    body = completion("full", 600)
    with concurrent.futures.ThreadPoolExecutor(10) as pool:
        direct = list(pool.map(lambda i: post(rig.small.addr, body, "/v1/completions", timeout=120)[0], range(4)))
        assert 503 in direct, direct
        p = Penstock(rig, "full", [rig.small, rig.vllm[0]], policy="round-robin")
        try:
            through = list(pool.map(lambda i: post(p.addr, completion(f"full {i}", 300), "/v1/completions", timeout=120)[0], range(8)))
        finally:
            p.close()
    assert set(through) == {200}, through
    return f"straight: {direct.count(503)} of 4 refused; through penstock 8 of 8 served"


@case
def client_leaves(rig):
    """From the client's close to the engine's free seat."""
    took = []
    for i in range(5):
        r = Raw.post(rig.serve.addr, completion(f"leave {i}", 3000, stream=True), path="/v1/completions")
        r.head()
        for n, _ in enumerate(r.chunks()):
            if n == 4:
                break
        r.s.shutdown(2)
        r.close()
        start = time.monotonic()
        poll("the engine is free", lambda: sum(v.metric("vllm:num_requests_running") for v in rig.vllm) == 0, every=0.01)
        took.append((time.monotonic() - start) * 1e3)
    assert statistics.median(took) < 100, took
    return "freed within " + ", ".join(f"{t:.0f}" for t in sorted(took)) + " ms, a scrape of the engine included"


@case
def start_log(rig):
    r = penstock("diagnose", "start", rig.vllm[0].log, "-o", "json", check=False)
    assert r.returncode in (0, 3), r.stderr
    out = json.loads(r.stdout)
    stages = {s["name"]: s["seconds"] for s in out["stages"]}
    known = {k: v for k, v in stages.items() if k != "unexplained"}
    assert len(known) >= 2 and sum(stages.values()) > 3, stages
    return ", ".join(f"{k} {v:.1f} s" for k, v in stages.items()) + f"; start to /health {rig.vllm[0].start_seconds:.0f} s"


@case
def probes_agree(rig):
    """The simulated replica answers as vLLM does; what differs is on a list that the
    documentation shows, and nothing else may differ."""
    addr = f"127.77.0.9:{rig.replica_port}"
    sim = Proc(rig, "simulated", [PENSTOCK, "replica", "--model", MODEL, "--listen", addr, "--speed", "2", "--max-model-len", str(WINDOW),
                                   "--kv-events", f"tcp://127.77.0.9:{free_port('127.77.0.9')}"])
    try:
        poll("the simulated replica is up", lambda: get(addr, "/health")[0] == 200)
        n, found = compare(rig.vllm[0].addr, addr, MODEL_DIR + "-ad2")
    finally:
        sim.kill()
    known = documented()
    new = [f"{name}{place}: real {json.dumps(r)[:120]}, simulated {json.dumps(s)[:120]}" for name, place, r, s in found if name + place not in known]
    gone = known - {name + place for name, place, _, _ in found}
    assert not new, f"{len(new)} differences that are not documented:\n" + "\n".join(new)
    assert not gone, f"documented differences that are gone: {sorted(gone)}"
    return f"{n} probes, {len(found)} documented differences"


def documented():
    """The places of docs/reference/simulated-replica.md: the first cell of each row, in
    backticks."""
    with open(os.path.join(HERE, "../../docs/reference/simulated-replica.md")) as f:
        return set(re.findall(r"^\| `([^`]+)` \|", f.read(), re.M))


def short_answers(path, seed, requests):
    """A trace that leaves seats free even where other work has most of the machine: once
    requests queue for seats, waiting is most of TTFT, and two runs of the same load differ
    in it by half."""
    r, at = random.Random(seed), 0.0
    with open(path, "w") as f:
        f.write("arrival,prompt_tokens,output_tokens\n")
        for _ in range(requests):
            f.write(f"{at:.4f},{r.randint(50, 1400)},{r.randint(4, 48)}\n")
            at += r.expovariate(0.7)
    return path


@case
def calibrated_prediction(rig):
    """A profile fitted to one run of load predicts the next within 10 % of its means, or
    as well as three runs of the same load agree with each other. They take turns by
    quarters, so that the machine's other work is the same to all; the router holds nothing
    back; what warms the engine up is of no run."""
    v, journals, means = rig.vllm[2], {1: [], 2: [], 3: []}, {1: [], 2: [], 3: []}
    for quarter in (0, 1, 2, 3, 4):
        trace = short_answers(rig.path(f"load-{quarter}.csv"), quarter, 12)
        for n in (1, 2, 3) if quarter else (0,):
            v.forget()
            journal = rig.path(f"journal-{n}-{quarter}")
            p = Penstock(rig, f"load-{n}-{quarter}", [v], queue="off", top=f"journal: {{dir: {journal}}}\n")
            try:
                r = penstock("load", "--target", p.url, "--model", MODEL, "--api", "completions", "--trace", trace, "-o", "json")
            finally:
                p.close()
            out = json.loads(r.stdout)
            assert not out["errors"], out
            if n:
                journals[n].append(journal)
                means[n].append((out["ttft_ms"]["mean"], out["e2e_ms"]["mean"]))
    means = [[statistics.mean(q[i] for q in means[n]) for i in (0, 1)] for n in means]
    profile = rig.path("profile.yaml")
    like = ["--kv-tokens", str(KV_TOKENS), "--max-num-seqs", str(SEATS), "--max-num-batched-tokens", "2048", "--max-model-len", str(WINDOW),
            "--accelerator", "this CPU", "--model", MODEL, "-o", "json"]
    penstock("calibrate", *journals[1], "--name", "fitted", "--write", profile, *like)
    judged = json.loads(penstock("calibrate", *journals[2], "--profile", profile, "--check", *like).stdout)
    off = {"TTFT": judged["judged"]["ttft_mean_error"], "E2E": judged["e2e_mean_error"]}
    spread = {k: max(m[i] for m in means) / min(m[i] for m in means) - 1 for i, k in enumerate(off)}
    text = f"the mean of a second run of {judged['judged']['rows']} requests is off by " + ", ".join(
        f"{k} {off[k]:+.1%} (three runs of {', '.join(f'{m[i]:.0f}' for m in means)} ms differ by {spread[k]:.0%})" for i, k in enumerate(off))
    assert all(abs(off[k]) <= max(0.10, spread[k]) for k in off), text
    return text


@case
def sigterm(rig):
    """vLLM that was told to stop answers 200 on /health and 500 on work: nobody
    sees it who comes through penstock, and a stream that began ends by itself."""
    victim, other = rig.vllm[1], rig.vllm[0]
    p = Penstock(rig, "term", [victim, other], policy="round-robin")
    try:
        running = [Raw.post(p.addr, completion(f"to the end {i}", 300, stream=True), path="/v1/completions", timeout=60) for i in range(2)]
        for r in running:
            assert r.head()[0] == 200
        victim.p.send_signal(signal.SIGTERM)
        seen = []
        until = time.monotonic() + 6
        while time.monotonic() < until:
            seen.append(post(p.addr, completion(f"after {len(seen)}", 4), "/v1/completions", timeout=60)[0])
            time.sleep(0.05)
        ended = []
        for r in running:
            ended.append(b"".join(r.chunks()).rstrip().endswith(b"data: [DONE]"))
    finally:
        p.close()
    assert set(seen) == {200}, {s: seen.count(s) for s in set(seen)}
    assert all(ended), ended
    victim.p.wait(60)
    return f"{len(seen)} requests after the signal, all 200; both running streams ended with [DONE]"


@case
def kill9(rig):
    victim, other = rig.vllm[2], rig.vllm[0]
    p = Penstock(rig, "kill", [victim, other], policy="round-robin")
    try:
        seen = []
        until = time.monotonic() + 5
        while time.monotonic() < until:
            if len(seen) == 10:
                victim.p.kill()
            seen.append(post(p.addr, completion(f"kill {len(seen)}", 4), "/v1/completions", timeout=60)[0])
        assert len(seen) > 20 and set(seen) == {200}, {s: seen.count(s) for s in set(seen)}
        poll("the ledger is empty", lambda: p.api("/status")["pools"][0]["in_flight"] == 0)
    finally:
        p.close()
    return f"{len(seen)} requests around the kill, all 200"


def engines():
    """Processes of the pool at zero, by the alias in their command."""
    r = subprocess.run(["pgrep", "-f", "name-of-the-pool-at-zero"], capture_output=True, text=True)
    return r.stdout.split()


@case
def from_zero_and_back(rig):
    """A pool of `vllm serve` processes at zero: requests wait, two replicas start,
    all are served, and no process is left."""
    addr, admin = f"127.0.0.1:{free_port()}", f"127.0.0.1:{free_port()}"
    conf = rig.path("zero.yaml")
    command = vllm_command("127.0.0.1", "{port}", "--served-model-name", MODEL, "name-of-the-pool-at-zero")
    with open(conf, "w") as f:
        f.write(f"""\
listen: {{http: "{addr}", admin: "{admin}"}}
pools:
  - name: chat
    models: [{{name: {MODEL}}}]
    replicas: {{process: {{command: {json.dumps(command)}, max: 2}}}}
    route: {{holdFor: 15m}}
    scale: {{min: 0, max: 2, startUp: 40s, idleAfter: 1m}}
""")
    p = Proc(rig, "zero", [PENSTOCK, "serve", "--config", conf], env=QUIET, group=True)
    try:
        poll("the admin API answers", lambda: get(admin, "/healthz"))
        with concurrent.futures.ThreadPoolExecutor(24) as pool:
            start = time.monotonic()
            answers = list(pool.map(lambda i: post(addr, completion(f"zero {i}", 200), "/v1/completions", timeout=900)[0], range(24)))
            took = time.monotonic() - start
        assert set(answers) == {200}, answers
        most = len(engines())
        assert most, "no process"
        start = time.monotonic()
        try:
            poll("the pool is at zero again", lambda: not engines(), limit=900, every=1)
        except AssertionError as e:
            raise AssertionError(f"{e}: {get(admin, '/api/v1/scale/chat')[1].decode()[:1500]}") from None
        zero = time.monotonic() - start
    finally:
        p.kill(signal.SIGTERM)
    assert not engines()
    return f"24 of 24 held requests served after {took:.0f} s; {most} processes, at zero again {zero:.0f} s later, no process left"


def main():
    rig = Rig()
    try:
        if sys.argv[1:] == ["from_zero_and_back"]:  # it starts its own
            return run_cases(rig, sys.argv[1:])
        rig.vllm = [Vllm(rig, n) for n in (1, 2, 3)]
        rig.small = Vllm(rig, 4, "--max-num-queued-reqs", "1", "--max-num-seqs", "1")
        for v in (*rig.vllm, rig.small):
            v.up()
        print(f"4 replicas of vLLM up after {max(v.start_seconds for v in rig.vllm):.0f} s", flush=True)
        rig.serve = Penstock(rig, "serve", rig.vllm, pool="    engine: {tokens: exact}\n")
        return run_cases(rig, sys.argv[1:])
    finally:
        rig.close()


if __name__ == "__main__":
    sys.exit(1 if main() else 0)
