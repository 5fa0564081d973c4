# SPDX-License-Identifier: Apache-2.0
"""One tenant floods with prompts of 400 KB; another one's time to first token is
compared with its value alone, over HTTP.

GATEWAY: base URL. VICTIM, FLOOD: API keys of two tenants. PHASE_S: seconds of each
phase. FACTOR: the largest accepted ratio of the medians; 0 prints only.
"""

import http.client
import json
import os
import random
import statistics
import sys
import threading
import time

host, port = os.environ["GATEWAY"].removeprefix("http://").split(":")
phase, factor = float(os.environ.get("PHASE_S", "15")), float(os.environ.get("FACTOR", "0"))
flooding = threading.Event()
sent = 0


def stream(key, text, tokens, first_only=False):
    """Returns the time to the first event of a stream in seconds."""
    c = http.client.HTTPConnection(host, int(port), timeout=120)
    body = json.dumps({"model": "m", "messages": [{"role": "user", "content": text}], "stream": True, "max_tokens": tokens})
    begin = time.monotonic()
    c.request("POST", "/v1/chat/completions", body, {"Authorization": "Bearer " + key, "Content-Type": "application/json"})
    r = c.getresponse()
    if r.status != 200:
        c.close()
        return None
    r.readline()
    first = time.monotonic() - begin
    if not first_only:
        r.read()
    c.close()
    return first


def flooder(seed):
    global sent
    rng = random.Random(seed)
    while flooding.is_set():
        try:
            stream(os.environ["FLOOD"], str(rng.random()) + " word" * 80000, 64)
            sent += 1
        except OSError:
            pass


def victim(seconds):
    out, end = [], time.monotonic() + seconds
    n = 0
    while time.monotonic() < end:
        n += 1
        t = stream(os.environ["VICTIM"], f"question {n} {random.random()} " + "please explain " * 60, 16)
        if t is not None:
            out.append(t)
        time.sleep(0.05)
    return out


victim(2)
alone = victim(phase)
flooding.set()
threads = [threading.Thread(target=flooder, args=(i,), daemon=True) for i in range(8)]
for t in threads:
    t.start()
time.sleep(3)
beside = victim(phase)
flooding.clear()
a, b = statistics.median(alone), statistics.median(beside)
print(f"victim TTFT: alone {a * 1e3:.0f} ms ({len(alone)}), beside the flood {b * 1e3:.0f} ms ({len(beside)}): x {b / a:.2f}; {sent} floods of 400 KB ended")
if factor and b > factor * a:
    sys.exit("the flood reached the other tenant")
