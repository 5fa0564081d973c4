# SPDX-License-Identifier: Apache-2.0
"""Load generators of the field against `penstock serve`, with the flags that they need
against vLLM itself and no other, and `penstock load` held against one of them.

    TOKENIZER=DIR [VLLM_VENV=DIR] [AIPERF_VENV=DIR] [GENAI_VENV=DIR] [GUIDELLM_VENV=DIR] PENSTOCK=bin/penstock python3 e2e/loadtools/run.py [CASE...]

The replicas are simulated and slow, so that what is measured is them and not the
machine.
"""
import glob
import json
import os
import random
import statistics
import subprocess
import sys

sys.path.append(os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "engine"))
from fleet import PENSTOCK, Penstock, Proc, Rig, case, get, penstock, poll, run_cases  # noqa: E402

TOKENIZER = os.path.abspath(os.environ["TOKENIZER"])
MODEL, PROMPT, OUTPUT, REQUESTS, RATE, PAIRS = "tiny", 1024, 32, 75, 2.5, 3
OFFLINE = {"HF_HUB_OFFLINE": "1", "TRANSFORMERS_OFFLINE": "1", "VLLM_NO_USAGE_STATS": "1", "DO_NOT_TRACK": "1", "TOKENIZERS_PARALLELISM": "false"}


class Absent(Exception):
    """A tool that is not installed here."""


def optional(fn):
    """A case whose tool is not installed says so and is not a failure."""
    def tried(rig):
        try:
            return fn(rig)
        except Absent as e:
            return f"not run: {e}"
    tried.__name__ = fn.__name__
    return tried


def tool(variable, name):
    folder = os.environ.get(variable)
    path = os.path.join(folder, "bin", name) if folder else ""
    if not os.path.exists(path):
        raise Absent(f"{name} is not installed" + (": make e2e-engine brings vLLM and torch" if name in ("vllm", "guidellm") else ""))
    return path


def run(rig, args, env, limit=600):
    r = subprocess.run(args, cwd=rig.dir, env={**os.environ, **env}, capture_output=True, text=True, timeout=limit)
    assert r.returncode == 0, f"{os.path.basename(args[0])}: exit {r.returncode}: {r.stdout[-500:]} {r.stderr[-800:]}"
    return r.stdout


class Fleet:
    """Replicas with empty caches and a gateway that knows nothing: no run sees what
    another one left behind."""

    def __init__(self, rig):
        self.replicas, name = [], f"fleet-{len(rig.procs)}"
        for n in range(1, 5):
            addr = f"127.10.2.{n}:{rig.replica_port}"
            p = Proc(rig, f"{name}-{n}", [PENSTOCK, "replica", "--model", MODEL, "--listen", addr, "--speed", "0.1"])
            p.addr, p.url = addr, "http://" + addr
            self.replicas.append(p)
        for p in self.replicas:
            poll(p.name + " is up", lambda p=p: get(p.addr, "/health")[0] == 200)
        self.serve = Penstock(rig, name, self.replicas)
        self.url, self.api = self.serve.url, self.serve.api

    def close(self):
        self.serve.close()
        for p in self.replicas:
            p.kill()


def vllm_bench(rig, n):
    """Returns (mean TTFT ms, output tokens/s, prompt lengths as the engine counts)."""
    out = rig.path(f"bench-{n}.json")
    p = Fleet(rig)
    try:
        run(rig, [tool("VLLM_VENV", "vllm"), "bench", "serve", "--backend", "openai", "--base-url", p.url, "--endpoint", "/v1/completions", "--model", MODEL,
             "--tokenizer", TOKENIZER, "--dataset-name", "random", "--random-input-len", str(PROMPT), "--random-output-len", str(OUTPUT),
             "--num-prompts", str(REQUESTS), "--request-rate", str(RATE), "--seed", str(n), "--ignore-eos",
             "--save-result", "--result-dir", rig.dir, "--result-filename", os.path.basename(out)], OFFLINE)
        rows = [d["outcome"] for d in p.api("/decisions?limit=1000")["decisions"]]
    finally:
        p.close()
    with open(out) as f:
        r = json.load(f)
    assert r["completed"] == REQUESTS and not r.get("failed"), r
    return r["mean_ttft_ms"], r["output_throughput"], [o["prompt_tokens"] for o in rows][:REQUESTS]


def penstock_load(rig, n, prompts):
    """The same lengths at the same rate, arrivals drawn anew, as vLLM's bench draws them:
    with the sum of their gaps set to what the rate says."""
    r = random.Random(n)
    gaps = [r.expovariate(1) for _ in prompts]
    scale, at = len(prompts) / RATE / sum(gaps), 0.0
    trace = rig.path(f"trace-{n}.csv")
    with open(trace, "w") as f:
        f.write("arrival,prompt_tokens,output_tokens\n")
        for length, gap in zip(prompts, gaps):
            f.write(f"{at:.6f},{length},{OUTPUT}\n")
            at += gap * scale
    p = Fleet(rig)
    try:
        out = json.loads(penstock("load", "--target", p.url, "--model", MODEL, "--api", "completions", "--trace", trace, "--seed", str(n), "-o", "json").stdout)
    finally:
        p.close()
    assert out["requests"] == len(prompts) and not out["errors"], out
    assert not out["hit_ratio"], out  # every prompt is new
    return out["ttft_ms"]["mean"], out["tokens_per_s"]["out"]


@case
@optional
def load_agrees_with_vllm_bench(rig):
    """In turn, several times: the means agree within 5 % or the spread between runs."""
    theirs, ours = [], []
    for n in range(1, PAIRS + 1):
        ttft, rate, prompts = vllm_bench(rig, n)
        theirs.append((ttft, rate))
        ours.append(penstock_load(rig, n, prompts))
    text, bad = [], False
    for i, (name, unit) in enumerate((("TTFT", "ms"), ("output", "tokens/s"))):
        a, b = [t[i] for t in theirs], [o[i] for o in ours]
        off = statistics.mean(b) / statistics.mean(a) - 1
        spread = max(max(x) / min(x) - 1 for x in (a, b))
        bad = bad or abs(off) > max(0.05, spread)
        text.append(f"{name} vllm bench {', '.join(f'{v:.0f}' for v in a)}, penstock load {', '.join(f'{v:.0f}' for v in b)} {unit}: "
                    f"{off:+.1%}, runs differ by {spread:.0%}")
    assert not bad, "; ".join(text)
    return "; ".join(text)


@case
@optional
def aiperf(rig):
    exe, folder = tool("AIPERF_VENV", "aiperf"), rig.path("aiperf")
    env = {k: v for k, v in OFFLINE.items() if not k.endswith("_OFFLINE")}  # with them, aiperf takes a folder for a name in the hub
    p = Fleet(rig)
    run(rig, [exe, "profile", "-m", MODEL, "--url", p.url, "--endpoint-type", "completions", "--streaming", "--tokenizer", TOKENIZER,
         "--concurrency", "4", "--request-count", "40", "--synthetic-input-tokens-mean", "256", "--output-tokens-mean", "16",
         "--extra-inputs", "ignore_eos:true", "--artifact-dir", folder, "--ui", "none", "--workers-max", "1"], env)
    p.close()
    with open(glob.glob(folder + "/**/profile_export_aiperf.json", recursive=True)[0]) as f:
        r = json.load(f)
    assert r["request_count"]["avg"] == 40 and not (r.get("error_request_count") or {}).get("avg"), r
    return f"40 requests, TTFT mean {r['time_to_first_token']['avg']:.0f} ms, {r['output_token_throughput']['avg']:.0f} tokens/s"


@case
@optional
def genai_bench(rig):
    exe, folder = tool("GENAI_VENV", "genai-bench"), rig.path("genai")
    os.makedirs(folder)
    p = Fleet(rig)
    run(rig, [exe, "benchmark", "--api-backend", "openai", "--api-base", p.url, "--api-key", "k", "--api-model-name", MODEL, "--model-tokenizer", TOKENIZER,
         "--task", "text-to-text", "--max-time-per-run", "1", "--max-requests-per-run", "30", "--traffic-scenario", "D(256,16)", "--num-concurrency", "4",
         "--experiment-base-dir", folder, "--server-engine", "vLLM"], OFFLINE)
    p.close()
    with open(glob.glob(folder + "/**/D*.json", recursive=True)[0]) as f:
        r = json.load(f)["aggregated_metrics"]
    assert r["num_completed_requests"] >= 20 and not r["num_error_requests"], r
    return f"{r['num_completed_requests']} requests, TTFT mean {r['stats']['ttft']['mean'] * 1e3:.0f} ms, {r['mean_output_throughput_tokens_per_s']:.0f} tokens/s"


@case
@optional
def guidellm(rig):
    exe, out = tool("GUIDELLM_VENV", "guidellm"), rig.path("guidellm.json")
    p = Fleet(rig)
    run(rig, [exe, "run", "--backend", f"kind=openai_http,target={p.url},model={MODEL}", "--profile", "kind=concurrent,streams=4",
         "--constraint", "kind=max_requests,count=40", "--tokenizer", f"kind=hf_auto,model={TOKENIZER}",
         "--data", "kind=synthetic_text,prompt_tokens=256,output_tokens=16", "--output", f"kind=json,path={out}", "--disable-console"], OFFLINE)
    p.close()
    with open(out) as f:
        r = json.load(f)["benchmarks"][0]
    m, n = r["metrics"], r["metrics"]["request_totals"]
    assert n["successful"] == 40 and not n["errored"], n

    def mean(name):
        return m[name]["successful"]["mean"]
    return f"40 requests, TTFT mean {mean('time_to_first_token_ms'):.0f} ms, {mean('output_tokens_per_second'):.0f} tokens/s"


def main():
    rig = Rig()
    try:
        return run_cases(rig, sys.argv[1:])
    finally:
        rig.close()


if __name__ == "__main__":
    sys.exit(1 if main() else 0)
