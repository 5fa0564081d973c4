# SPDX-License-Identifier: Apache-2.0
"""The parts that a test of the endpoint picker runs: processes, ports, clients.

Everything is of this test alone: ports are chosen free, processes are ended by
their own ids, files lie in a folder that is removed.
"""
import http.client
import json
import os
import re
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import threading
import time

PENSTOCK = os.path.abspath(os.environ.get("PENSTOCK", "bin/penstock"))
ENVOY = os.environ["ENVOY"]
MODEL = "sim"


GIVEN = set()


def free_port(host="127.0.0.1"):
    """A port that is free now, and that nobody here was given before."""
    while True:
        with socket.socket() as s:
            s.bind((host, 0))
            port = s.getsockname()[1]
        if port not in GIVEN:
            GIVEN.add(port)
            return port


def poll(what, fn, limit=90.0, every=0.05):
    """Waits until fn returns something true, and returns it. The limit is when to give up on a
    machine that does much else at the time; a wait that has to be short is measured by its case."""
    end, last = time.monotonic() + limit, None
    while time.monotonic() < end:
        try:
            v = fn()
            if v:
                return v
        except Exception as e:  # noqa: BLE001 - whatever it is, it is tried again
            last = e
        time.sleep(every)
    raise AssertionError(f"{what}: not within {limit:g} s ({last})")


class Proc:
    """A process with its output in a file."""

    def __init__(self, rig, name, args, env=None, group=False):
        self.name, self.log = name, os.path.join(rig.dir, name + ".log")
        self.out = open(self.log, "ab")
        self.p = subprocess.Popen(args, stdout=self.out, stderr=self.out, stdin=subprocess.DEVNULL,
                                  env={**os.environ, **(env or {})}, start_new_session=group)
        self.group = group
        rig.procs.append(self)

    @property
    def pid(self):
        return self.p.pid

    def kill(self, sig=signal.SIGKILL, wait=True):
        if self.p.poll() is None:
            self.p.send_signal(sig)
        if wait:
            self.p.wait(timeout=60)

    def cpu(self):
        """CPU seconds, from the scheduler's own clock."""
        ns = 0
        for t in os.listdir(f"/proc/{self.pid}/task"):
            with open(f"/proc/{self.pid}/task/{t}/schedstat") as f:
                ns += int(f.read().split()[0])
        return ns / 1e9

    def reset_peak(self):
        with open(f"/proc/{self.pid}/clear_refs", "w") as f:
            f.write("5")

    def memory(self, key="VmHWM"):
        """Resident memory in MiB: VmHWM is the peak, VmRSS what is now."""
        with open(f"/proc/{self.pid}/status") as f:
            return int(re.search(key + r":\s+(\d+) kB", f.read()).group(1)) / 1024

    def tail(self, n=15):
        with open(self.log, errors="replace") as f:
            return "".join(f.readlines()[-n:])


class Rig:
    def __init__(self):
        self.dir = tempfile.mkdtemp(prefix="penstock-epp-")
        self.procs = []
        self.replica_port = free_port("127.10.0.1")

    def close(self):
        for p in reversed(self.procs):
            if p.p.poll() is None:
                p.p.send_signal(signal.SIGCONT)
                p.p.kill()
            if p.group:  # what it started and left behind
                try:
                    os.killpg(p.pid, signal.SIGKILL)
                except ProcessLookupError:
                    pass
        for p in self.procs:
            p.p.wait()
            p.out.close()
        shutil.rmtree(self.dir)

    def path(self, name):
        return os.path.join(self.dir, name)

    def replica(self, host, *args):
        addr = f"{host}:{self.replica_port}"
        p = Proc(self, "replica-" + host, [PENSTOCK, "replica", "--model", MODEL, "--listen", addr, *args])
        p.addr = addr
        return p


class Picker:
    """`penstock epp`, or `serve`, that can be ended and started again on the same ports."""

    def __init__(self, rig, config, name="picker", *args, command="epp"):
        self.rig, self.name, self.args, self.command = rig, name, args, command
        self.addr, self.admin = f"127.0.0.1:{free_port()}", f"127.0.0.1:{free_port()}"
        self.config = config
        self.start()

    def start(self):
        self.proc = Proc(self.rig, self.name, [
            PENSTOCK, self.command, "--config", self.config, "--epp", self.addr, "--admin", self.admin, *self.args])

    def ready(self):
        poll(self.name + " is ready", lambda: get(self.admin, "/readyz")[0] == 200)

    def stop(self, sig=signal.SIGKILL, wait=True):
        self.proc.kill(sig, wait)

    def metric(self, name):
        """A series, or the sum over its labels where the name has none."""
        text = get(self.admin, "/metrics")[1].decode()
        found = re.findall(r"^" + re.escape(name) + r"(?:\{[^}]*\})? ([0-9.e+]+)$", text, re.M)
        assert found, f"no series {name}"
        return sum(float(v) for v in found)

    def status(self):
        return json.loads(get(self.admin, "/api/v1/status")[1])

    def in_flight(self):
        return sum(p["in_flight"] for p in self.status()["pools"])


class Envoy:
    def __init__(self, rig, name, pickers, endpoints, *flags, edit=lambda y: y):
        self.addr, self.admin = f"127.0.0.1:{free_port()}", f"127.0.0.1:{free_port()}"
        args = [PENSTOCK, "envoy", "bootstrap", "--listen", self.addr, "--admin", self.admin, *flags]
        for p in pickers:
            args += ["--picker", p.addr]
        for e in endpoints:
            args += ["--endpoint", e]
        y = edit(subprocess.run(args, check=True, capture_output=True, text=True).stdout)
        conf = rig.path(name + ".yaml")
        with open(conf, "w") as f:
            f.write(y)
        self.proc = Proc(rig, name, [ENVOY, "-c", conf, "--use-dynamic-base-id", "--concurrency", "1",
                                     "--log-level", "warning"])
        poll(name + " is ready", lambda: get(self.admin, "/ready")[0] == 200)

    def stat(self, name):
        """A counter or gauge of Envoy by the end of its name; 0 while it is not there."""
        text = get(self.admin, "/stats?usedonly")[1].decode()
        return sum(int(v) for v in re.findall(re.escape(name) + r": (\d+)$", text, re.M))

    def picker_up(self):
        return self.stat("cluster.picker.membership_healthy") > 0


def get(addr, path, headers=None, timeout=10):
    c = http.client.HTTPConnection(addr, timeout=timeout)
    try:
        c.request("GET", path, headers=headers or {})
        r = c.getresponse()
        return r.status, r.read()
    finally:
        c.close()


def post(addr, body, path="/v1/chat/completions", headers=None, timeout=30):
    """Returns (status, headers, body)."""
    if isinstance(body, dict):
        body = json.dumps(body)
    c = http.client.HTTPConnection(addr, timeout=timeout)
    try:
        c.request("POST", path, body, {"content-type": "application/json", **(headers or {})})
        r = c.getresponse()
        return r.status, r.headers, r.read()
    finally:
        c.close()


def chat(text="hello", model=MODEL, **more):
    return {"model": model, "messages": [{"role": "user", "content": text}], "max_tokens": 8, **more}


class Raw:
    """A request over a socket of its own, to see single bytes and to leave early."""

    def __init__(self, addr, head, timeout=30):
        host, port = addr.rsplit(":", 1)
        self.s = socket.create_connection((host, int(port)), timeout=timeout)
        self.f = self.s.makefile("rb")
        self.s.sendall(head.encode() if isinstance(head, str) else head)

    @classmethod
    def post(cls, addr, body, path="/v1/chat/completions", headers="", host="x", **kw):
        b = json.dumps(body).encode()
        return cls(addr, f"POST {path} HTTP/1.1\r\nhost: {host}\r\ncontent-type: application/json\r\n{headers}"
                         f"content-length: {len(b)}\r\n\r\n".encode() + b, **kw)

    def head(self):
        """Reads status line and headers; returns (status, headers)."""
        line = self.f.readline().decode()
        if not line:
            raise ConnectionError("closed before the answer")
        headers = {}
        while (h := self.f.readline().decode().strip()):
            k, _, v = h.partition(":")
            headers[k.lower()] = v.strip()
        return int(line.split()[1]), headers

    def chunks(self):
        """Yields the chunks of a chunked answer; then self.trailers holds the trailers."""
        while True:
            line = self.f.readline()
            if not line:
                raise ConnectionError("cut inside of the answer")
            n = int(line, 16)
            if n == 0:
                break
            data = self.f.read(n)
            if len(data) < n:
                raise ConnectionError("cut inside of a chunk")
            self.f.readline()
            yield data
        self.trailers = {}
        while (h := self.f.readline().decode().strip()):
            k, _, v = h.partition(":")
            self.trailers[k.lower()] = v.strip()

    def close(self):
        self.s.close()
        self.f.close()


class Load:
    """Clients that ask one thing after another and note what they saw."""

    def __init__(self, addr, clients=3, body=None, timeout=30, pause=0.01):
        self.addr, self.body, self.timeout, self.pause = addr, body or chat(max_tokens=2), timeout, pause
        self.seen = []  # (start, end, status); a status of 0 is a broken connection
        self.stop = threading.Event()
        self.threads = [threading.Thread(target=self.run, daemon=True) for _ in range(clients)]
        for t in self.threads:
            t.start()

    def run(self):
        while not self.stop.is_set():
            start = time.monotonic()
            try:
                status = post(self.addr, self.body, timeout=self.timeout)[0]
            except (OSError, http.client.HTTPException):
                status = 0
            self.seen.append((start, time.monotonic(), status))
            time.sleep(self.pause)

    def end(self):
        self.stop.set()
        for t in self.threads:
            t.join()

    def between(self, start, end):
        """The requests that began in an interval."""
        return [s for s in self.seen if start <= s[0] < end]

    def within(self, start, end):
        """The requests that began and ended in an interval."""
        return [s for s in self.seen if start <= s[0] and s[1] < end]


def tally(seen):
    out = {}
    for _, _, status in seen:
        out[status] = out.get(status, 0) + 1
    return ", ".join(f"{n} x {status or 'broken'}" for status, n in sorted(out.items())) or "none"


CASES = []


def case(fn):
    CASES.append(fn)
    return fn


def run_cases(rig, only=None):
    """Runs the cases in order; a failed one does not stop the others."""
    failed = 0
    for fn in CASES:
        if only and fn.__name__ not in only:
            continue
        start = time.monotonic()
        try:
            detail, bad = fn(rig), False
        except Exception as e:  # noqa: BLE001
            detail, bad = f"{type(e).__name__}: {e}", True
            failed += 1
        print(f"{'FAIL' if bad else 'ok  '} {fn.__name__:28} {time.monotonic() - start:5.1f} s  {detail or ''}", flush=True)
        if bad:
            for p in rig.procs:
                if p.p.poll() not in (None, 0, -9):
                    print(f"--- {p.name} ended with {p.p.returncode}:\n{p.tail()}", file=sys.stderr)
    print(f"{len(CASES) - failed if not only else len(only) - failed} passed, {failed} failed")
    return failed
