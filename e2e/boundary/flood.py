# SPDX-License-Identifier: Apache-2.0
"""One tenant floods with prompts of 400 KB; another one's time to first token is
compared with its value alone, over HTTP.

The two are measured in turn, many times, and what is judged is the median of the
rounds: what else the machine does for a while is then in both or in few rounds.

GATEWAY, ADMIN: base URLs. VICTIM, FLOOD: API keys of two tenants. ROUNDS: how many. PHASE_S:
seconds of each half of a round. FACTOR: the largest accepted ratio of the medians; 0 prints only.
"""

import http.client
import json
import os
import random
import socket
import statistics
import sys
import threading
import time
import urllib.request

host, port = os.environ["GATEWAY"].removeprefix("http://").split(":")
rounds, phase, factor = int(os.environ.get("ROUNDS", "9")), float(os.environ.get("PHASE_S", "1.5")), float(os.environ.get("FACTOR", "0"))
flooders = 8
sent = 0


def first_token(c, key, text, tokens):
    """Returns the time to the first event of a stream in seconds, once it has ended; None where it is refused."""
    body = json.dumps({"model": "m", "messages": [{"role": "user", "content": text}], "stream": True, "max_tokens": tokens})
    begin = time.monotonic()
    c.request("POST", "/v1/chat/completions", body, {"Authorization": "Bearer " + key, "Content-Type": "application/json"})
    r = c.getresponse()
    if r.status != 200:
        return None
    r.readline()
    first = time.monotonic() - begin
    r.read()
    return first


class Flood:
    """Prompts one after the other, of as many clients at once; end leaves what still runs."""

    def __init__(self, seed):
        self.over, self.open = threading.Event(), {}
        self.threads = [threading.Thread(target=self.run, args=(f"{seed} {i}",), daemon=True) for i in range(flooders)]
        for t in self.threads:
            t.start()

    def run(self, seed):
        global sent
        rng = random.Random(seed)
        while not self.over.is_set():
            c = self.open[seed] = http.client.HTTPConnection(host, int(port), timeout=120)
            try:
                if first_token(c, os.environ["FLOOD"], str(rng.random()) + " word" * 80000, 64) is not None:
                    sent += 1
            except (OSError, http.client.HTTPException, ValueError, AttributeError):
                pass  # it was left
            c.close()

    def end(self):
        self.over.set()
        while any(t.is_alive() for t in self.threads):
            for c in list(self.open.values()):
                if s := c.sock:
                    try:
                        s.shutdown(socket.SHUT_RDWR)
                    except OSError:
                        pass
            time.sleep(0.01)


def in_gateway():
    """How many requests the gateway has, at replicas and waiting."""
    with urllib.request.urlopen(os.environ["ADMIN"] + "/api/v1/status", timeout=60) as r:
        p = json.load(r)["pools"][0]
    return p["in_flight"] + p["held"]


def until(n):
    end = time.monotonic() + 120
    while (seen := in_gateway()) != n:
        if time.monotonic() > end:
            sys.exit(f"the gateway has {seen} requests, not {n}")
        time.sleep(0.02)


def victim(seconds):
    out, end = [], time.monotonic() + seconds
    while time.monotonic() < end or len(out) < 8 and time.monotonic() < end + 10 or not out:
        c = http.client.HTTPConnection(host, int(port), timeout=120)
        t = first_token(c, os.environ["VICTIM"], f"question {len(out)} {random.random()} " + "please explain " * 60, 16)
        if t is None:
            sys.exit("the gateway refused the tenant that does not flood")
        out.append(t)
        c.close()
        time.sleep(0.05)
    return out


victim(2)
alone, beside, ratios = [], [], []
for n in range(rounds):
    until(0)
    alone.append(statistics.median(victim(phase)))
    flood = Flood(n)
    until(flooders)
    if n == 0:
        time.sleep(3)
    beside.append(statistics.median(victim(phase)))
    flood.end()
    ratios.append(beside[-1] / alone[-1])
a, b, x = (statistics.median(v) for v in (alone, beside, ratios))
print(f"victim TTFT: alone {a * 1e3:.0f} ms, beside the flood {b * 1e3:.0f} ms: x {x:.2f}, of {rounds} rounds from {min(ratios):.2f} to {max(ratios):.2f}; {sent} floods of 400 KB ended")
if factor and x > factor:
    sys.exit("the flood reached the other tenant")
