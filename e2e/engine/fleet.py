# SPDX-License-Identifier: Apache-2.0
"""Real vLLM replicas, and Penstock in front of them."""
import json
import os
import re
import signal
import subprocess
import sys
import time

os.environ.setdefault("ENVOY", "")
sys.path.append(os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "epp"))
from rig import PENSTOCK, Proc, Raw, Rig, case, free_port, get, poll, post, run_cases  # noqa: E402,F401

VENV = os.environ.get("VLLM_VENV", "")
MODEL_DIR = os.environ.get("MODEL_DIR", "")
MODEL = "tiny"
WINDOW, BLOCK, SEATS = 4096, 32, 4
KV_TOKENS = 8192
KV_BYTES = KV_TOKENS * 4096  # keys and values of 4 layers, 4 heads of 64 numbers, two bytes each
QUIET = {
    "HF_HUB_OFFLINE": "1", "TRANSFORMERS_OFFLINE": "1", "VLLM_NO_USAGE_STATS": "1", "DO_NOT_TRACK": "1",
    "VLLM_HOST_IP": "127.0.0.1", "VLLM_CPU_OMP_THREADS_BIND": "nobind", "OMP_NUM_THREADS": "1",
    "VLLM_ALLOW_RUNTIME_LORA_UPDATING": "True", "VLLM_SERVER_DEV_MODE": "1",
    # One process for server and engine less: its start is all imports.
    "VLLM_ENABLE_V1_MULTIPROCESSING": "0",
}


def vllm_command(host, port, *more):
    return [os.path.join(VENV, "bin/vllm"), "serve", MODEL_DIR, "--served-model-name", MODEL, "--host", host, "--port", str(port),
            "--dtype", "bfloat16", "--max-model-len", str(WINDOW), "--enforce-eager", "--enable-prompt-tokens-details",
            "--kv-cache-memory-bytes", str(KV_BYTES), "--block-size", str(BLOCK), "--max-num-seqs", str(SEATS),
            "--distributed-executor-backend", "uni", *more]


class Vllm(Proc):
    """A replica in a process group of its own: its engine is a child that does not
    end with a server that is killed."""

    def __init__(self, rig, n, *more):
        self.host, self.port = f"127.77.0.{n}", rig.replica_port
        self.addr, self.url = f"{self.host}:{self.port}", f"http://{self.host}:{self.port}"
        lora = ["--enable-lora", "--max-loras", "1", "--max-cpu-loras", "2", "--max-lora-rank", "8"]
        kv = {"enable_kv_cache_events": True, "publisher": "zmq", "endpoint": f"tcp://{self.host}:{free_port(self.host)}",
              "replay_endpoint": f"tcp://{self.host}:{free_port(self.host)}", "topic": f"kv@{self.addr}@{MODEL}"}
        self.started = time.monotonic()
        super().__init__(rig, f"vllm-{n}", vllm_command(
            self.host, self.port, *lora, "--shutdown-timeout", "10", "--kv-events-config", json.dumps(kv), *more),
            env=QUIET, group=True)

    def kill(self, sig=signal.SIGKILL, wait=True):
        if sig == signal.SIGKILL:
            os.killpg(self.pid, sig)
        else:
            self.p.send_signal(sig)
        if wait:
            self.p.wait(timeout=60)

    def up(self):
        def healthy():
            if self.p.poll() is not None:
                raise SystemExit(f"{self.name} ended with {self.p.returncode}:\n{self.tail(40)}")
            return get(self.addr, "/health")[0] == 200
        poll(self.name + " is up", healthy, limit=600, every=0.2)
        self.start_seconds = time.monotonic() - self.started

    def metric(self, name, **labels):
        """The sum of a family's samples that carry the labels."""
        text = get(self.addr, "/metrics", timeout=30)[1].decode()
        total, seen = 0.0, False
        for line in text.splitlines():
            m = re.match(re.escape(name) + r"\{([^}]*)\} (\S+)$", line)
            if m and all(f'{k}="{v}"' in m.group(1) for k, v in labels.items()):
                total, seen = total + float(m.group(2)), True
        assert seen, f"{self.name} has no series {name} {labels}"
        return total

    def forget(self):
        """Empties the prefix cache."""
        assert post(self.addr, "", "/reset_prefix_cache")[0] == 200


class Penstock:
    """`penstock serve` on free ports in front of replicas."""

    def __init__(self, rig, name, replicas, policy="penstock", queue="on", pool="", top=""):
        self.addr, self.admin = f"127.0.0.1:{free_port()}", f"127.0.0.1:{free_port()}"
        self.url = f"http://{self.addr}"
        conf = rig.path(name + ".yaml")
        with open(conf, "w") as f:
            f.write(f"""\
listen: {{http: "{self.addr}", admin: "{self.admin}"}}
{top}pools:
  - name: chat
    replicas: {{static: {json.dumps([r.url for r in replicas])}}}
    route: {{policy: {policy}, queue: {queue}}}
{pool}""")
        self.proc = Proc(rig, name, [PENSTOCK, "serve", "--config", conf])
        poll(name + " is ready", lambda: get(self.admin, "/readyz")[0] == 200, limit=60)
        poll(name + " knows every replica", lambda: self.ready() >= len(replicas), limit=60)

    def api(self, path):
        status, body = get(self.admin, "/api/v1" + path)
        assert status == 200, f"{path}: {status} {body[:300]}"
        return json.loads(body)

    def endpoints(self):
        return self.api("/status")["pools"][0]["endpoints"]

    def ready(self):
        return sum(e["phase"] == "ready" for e in self.endpoints())

    def decision(self, request_id):
        return poll("the record of a request", lambda: self.api("/decisions/" + request_id), limit=60)

    def close(self):
        self.proc.kill(signal.SIGTERM)


def penstock(*args, check=True, **kw):
    r = subprocess.run([PENSTOCK, *args], capture_output=True, text=True, timeout=600, **kw)
    if check and r.returncode:
        raise AssertionError(f"penstock {' '.join(args)}: exit {r.returncode}: {r.stderr[-800:]}")
    return r


def stream(addr, body):
    """Sends a completion as a stream; returns (status, headers, TTFT s, last event or usage, seconds)."""
    start = time.monotonic()
    r = Raw.post(addr, {**body, "stream": True, "stream_options": {"include_usage": True}}, path="/v1/completions", host=addr, timeout=120)
    try:
        status, head = r.head()
        first, usage, buf = None, None, b""
        if status != 200:
            return status, head, None, r.f.read(int(head.get("content-length", 0))), time.monotonic() - start
        for chunk in r.chunks():
            first = first or time.monotonic() - start
            buf += chunk
        for line in buf.split(b"\n"):
            if line.startswith(b"data: {"):
                usage = json.loads(line[6:]).get("usage") or usage
        return status, head, first, usage, time.monotonic() - start
    finally:
        r.close()
