# SPDX-License-Identifier: Apache-2.0
"""Penstock in front of real Ollama replicas: an engine with a prefix cache that tells
nothing of itself.

    OLLAMA=ollama GGUF=tiny.gguf PENSTOCK=bin/penstock python3 e2e/ollama/run.py [CASE...]
"""
import concurrent.futures
import json
import os
import random
import statistics
import subprocess
import sys
import time

sys.path.append(os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "engine"))
from fleet import Penstock, Proc, Raw, Rig, case, free_port, get, penstock, poll, post, run_cases, stream  # noqa: E402
from prose import words  # noqa: E402

OLLAMA, GGUF = os.environ["OLLAMA"], os.environ["GGUF"]
MODEL, SLOTS, WINDOW, REPLICAS = "tiny", 4, 4096, 2
USERS, TURNS, RUNS = 6, 5, 4


class Ollama(Proc):
    """A replica, and the runner that it starts, in a process group of their own."""

    def __init__(self, rig, n):
        self.host, self.port = f"127.77.1.{n}", rig.replica_port
        self.addr, self.url = f"{self.host}:{self.port}", f"http://{self.host}:{self.port}"
        self.env = {
            "OLLAMA_HOST": self.addr, "HOME": rig.path(f"home-{n}"), "OLLAMA_MODELS": rig.path(f"models-{n}"), "OLLAMA_KEEP_ALIVE": "-1",
            "OLLAMA_NUM_PARALLEL": str(SLOTS), "OLLAMA_MULTIUSER_CACHE": "1", "OLLAMA_CONTEXT_LENGTH": str(WINDOW), "OLLAMA_NOHISTORY": "1",
        }
        os.makedirs(self.env["HOME"])
        super().__init__(rig, f"ollama-{n}", [OLLAMA, "serve"], env=self.env, group=True)

    def up(self, modelfile):
        poll(self.name + " is up", lambda: get(self.addr, "/api/version")[0] == 200)
        r = subprocess.run([OLLAMA, "create", MODEL, "-f", modelfile], env={**os.environ, **self.env}, capture_output=True, text=True, timeout=120)
        assert r.returncode == 0, r.stderr[-600:]
        status, _, body = post(self.addr, completion("hello", 2), "/v1/completions", timeout=300)
        assert status == 200, f"{body}\n{self.tail(30)}"


def completion(prompt, tokens=8, **more):
    return {"model": MODEL, "prompt": prompt, "max_tokens": tokens, "temperature": 0, **more}


@case
def found_by_its_models(rig):
    """No /health and no /metrics: the replicas are ready by their models, and what
    nobody tells stays unknown."""
    seen = rig.serve.endpoints()
    assert [e["engine"] for e in seen] == ["ollama"] * REPLICAS, seen
    assert {e["phase"] for e in seen} == {"ready"}, seen
    told = {k for e in seen for k in ("running", "waiting", "kv_used") if e.get(k) and e[k].get("value") is not None}
    assert not told, seen
    models = json.loads(get(rig.serve.addr, "/v1/models")[1])["data"]
    return f"engine {seen[0]['engine']}, models {', '.join(m['id'] for m in models)}; running, waiting and memory unknown"


@case
def every_surface(rig):
    """Chat, completions and messages, whole and streamed."""
    message = [{"role": "user", "content": words("surface", 20)}]
    body = {"model": MODEL, "messages": message, "max_tokens": 6}
    done = []
    for path, ask in (("/v1/chat/completions", body), ("/v1/completions", completion("hello", 6)), ("/v1/messages", body)):
        status, _, answer = post(rig.serve.addr, ask, path, timeout=60)
        assert status == 200, f"{path}: {status} {answer}"
        r = Raw.post(rig.serve.addr, {**ask, "stream": True}, path=path, timeout=60)
        assert r.head()[0] == 200, path
        text = b"".join(r.chunks())
        assert text.rstrip().endswith((b"[DONE]", b'"message_stop"}')), f"{path}: {text[-200:]}"
        done.append(path)
    status, _, answer = post(rig.serve.addr, completion("x", 2, model="nobody"), "/v1/completions")
    assert status == 404, answer
    return f"{', '.join(done)}, whole and streamed; an unknown model is 404"


@case
def cache_is_real(rig):
    """What the test below rests on: the engine answers a prompt that it knows sooner."""
    cold, warm = [], []
    for i in range(5):
        text = words(f"cold {i}", 200)
        for out in (cold, warm):
            status, _, first, _, _ = stream(rig.ollama[0].addr, completion(text, 2))
            assert status == 200, status
            out.append(first * 1e3)
    assert statistics.median(warm) < statistics.median(cold) / 2, (cold, warm)
    return f"TTFT of 200 words {statistics.median(cold):.0f} ms, again {statistics.median(warm):.0f} ms"


def conversations(addr, seed):
    """Users who talk, each with a growing text of their own and a pause between turns;
    returns the TTFT of all turns but the first ones, in ms."""
    def user(i):
        r = random.Random(f"{seed} {i}")
        text, seen = words(f"system {seed} {i}", 120), []
        time.sleep(0.3 * i)
        for t in range(TURNS):
            text += words(f"{seed} {i} {t}", 20)
            status, _, first, _, _ = stream(addr, completion(text, 8))
            assert status == 200, f"{status} {first}"
            seen.append(first * 1e3)
            time.sleep(r.uniform(0.2, 1.5))
        return seen[1:]
    with concurrent.futures.ThreadPoolExecutor(USERS) as pool:
        return [t for seen in pool.map(user, range(USERS)) for t in seen]


@case
def beats_round_robin(rig):
    """On its own books alone: in turn, several times. Sooner in a pair is who has the lower
    median: one turn that waited for the machine is half of a mean of twenty."""
    policies = ("round-robin", "penstock")
    runs = {p: [] for p in policies}
    for n in range(RUNS):
        for policy in policies if n % 2 == 0 else policies[::-1]:
            p = Penstock(rig, f"{policy}-{n}", rig.ollama, policy=policy)
            try:
                runs[policy].append(conversations(p.addr, f"{policy} {n}"))
            finally:
                p.close()
    mean, half = ({p: [f(r) for r in rs] for p, rs in runs.items()} for f in (statistics.mean, statistics.median))
    text = "; ".join(f"{p} mean TTFT {', '.join(f'{m:.0f}' for m in mean[p])} ms, p50 {', '.join(f'{m:.0f}' for m in half[p])} ms" for p in policies)
    assert statistics.mean(mean["penstock"]) < statistics.mean(mean["round-robin"]), text
    won = sum(a < b for a, b in zip(half["penstock"], half["round-robin"]))
    assert won > RUNS / 2, text
    return f"{text}; sooner in {won} of {RUNS} pairs"


@case
def books_balance(rig):
    """A client that leaves frees the replica and the ledger; nothing is left behind."""
    for i in range(4):
        r = Raw.post(rig.serve.addr, completion(f"leave {i} " + words(i, 50), 500, stream=True), path="/v1/completions", timeout=60)
        assert r.head()[0] == 200, i
        next(r.chunks())
        r.close()
    poll("the ledger is empty", lambda: rig.serve.api("/status")["pools"][0]["in_flight"] == 0)
    start = time.monotonic()
    with concurrent.futures.ThreadPoolExecutor(2 * SLOTS) as pool:
        answers = list(pool.map(lambda i: post(rig.serve.addr, completion(f"after {i}", 4), "/v1/completions", timeout=60)[0], range(2 * SLOTS)))
    assert set(answers) == {200}, answers
    return f"4 streams left, {len(answers)} of {len(answers)} served {time.monotonic() - start:.1f} s after"


@case
def start_log(rig):
    r = penstock("diagnose", "start", rig.ollama[0].log, "-o", "json", check=False)
    assert r.returncode in (0, 3), r.stderr
    out = json.loads(r.stdout)
    return f"engine {out['engine']}: " + ", ".join(f"{s['name']} {s['seconds']:.1f} s" for s in out["stages"])


@case
def kill9(rig):
    victim = rig.ollama[1]
    p = Penstock(rig, "kill", rig.ollama, policy="round-robin")
    try:
        seen = []
        while len(seen) < 40:
            if len(seen) == 10:
                victim.p.kill()
            seen.append(post(p.addr, completion(f"kill {len(seen)}", 4), "/v1/completions", timeout=60)[0])
        poll("the ledger is empty", lambda: p.api("/status")["pools"][0]["in_flight"] == 0)
    finally:
        p.close()
    assert set(seen) == {200}, {s: seen.count(s) for s in set(seen)}
    return f"{len(seen)} requests around the kill, all 200"


def main():
    rig = Rig()
    try:
        rig.replica_port = free_port("127.77.1.1")
        modelfile = rig.path("Modelfile")
        with open(modelfile, "w") as f:
            f.write(f'FROM {GGUF}\nPARAMETER num_ctx {WINDOW}\nPARAMETER num_thread 1\nPARAMETER temperature 0\n'
                    'TEMPLATE """{{ range .Messages }}<turn:{{ .Role }}>\n{{ .Content }}</turn>\n{{ end }}<turn:assistant>\n"""\n')
        rig.ollama = [Ollama(rig, n) for n in range(1, REPLICAS + 1)]
        for o in rig.ollama:
            o.up(modelfile)
        rig.serve = Penstock(rig, "serve", rig.ollama)
        return run_cases(rig, sys.argv[1:])
    finally:
        rig.close()


if __name__ == "__main__":
    sys.exit(1 if main() else 0)
