# SPDX-License-Identifier: Apache-2.0
"""500 streams at a time with random aborts over two gateways that share one limit.

GATEWAYS: base URLs, comma-separated. KEY: an API key. LIMIT: output tokens of the
tenant, an hour. REDIS_PORT, REDIS_PID: a server to kill and start again, where
OUTAGE is 1. Reads what was charged from the gateways' own metrics (ADMINS).
"""

import asyncio
import json
import os
import random
import re
import signal
import subprocess
import sys
import time
import urllib.request

gateways = os.environ["GATEWAYS"].split(",")
admins = os.environ["ADMINS"].split(",")
key, limit = os.environ["KEY"], int(os.environ["LIMIT"])
seconds, outage = float(os.environ["SECONDS_LOAD"]), os.environ.get("OUTAGE") == "1"
streams = int(os.environ.get("STREAMS", "500"))
counts = {"ok": 0, "aborted": 0, "refused": 0, "other": 0}
most_open = now_open = 0


def body(n):
    return json.dumps({"model": "m", "messages": [{"role": "user", "content": "count"}], "stream": True, "max_tokens": n})


async def one(rng):
    global now_open, most_open
    host, port = rng.choice(gateways).removeprefix("http://").split(":")
    reader, writer = await asyncio.open_connection(host, int(port))
    try:
        text = body(rng.randint(10, 40))
        writer.write(
            f"POST /v1/chat/completions HTTP/1.1\r\nHost: {host}\r\nAuthorization: Bearer {key}\r\n"
            f"Content-Type: application/json\r\nContent-Length: {len(text)}\r\nConnection: close\r\n\r\n{text}".encode()
        )
        await writer.drain()
        head = await reader.readuntil(b"\r\n\r\n")
        status = int(head.split()[1])
        if status == 429:
            if b"retry-after" not in head.lower():
                sys.exit(f"429 without Retry-After: {head}")
            counts["refused"] += 1
            await asyncio.sleep(0.3)
            return
        if status != 200:
            counts["other"] += 1
            return
        now_open += 1
        most_open = max(most_open, now_open)
        try:
            if rng.random() < 0.3:
                await asyncio.sleep(rng.random() * 0.3)
                counts["aborted"] += 1
                return
            data = await reader.read()
        finally:
            now_open -= 1
        if b'"usage"' in data or b"[DONE]" not in data:
            sys.exit(f"a stream is not what the client asked for: {data[-300:]}")
        counts["ok"] += 1
    finally:
        writer.close()


async def client(seed, until):
    rng = random.Random(seed)
    while time.monotonic() < until:
        try:
            await one(rng)
        except (ConnectionError, asyncio.IncompleteReadError):
            counts["other"] += 1
            await asyncio.sleep(0.1)


def start_redis():
    return subprocess.Popen(
        ["redis-server", "--port", os.environ["REDIS_PORT"], "--bind", "127.0.0.1", "--save", "", "--appendonly", "no"],
        stdout=subprocess.DEVNULL,
    )


async def break_store():
    await asyncio.sleep(seconds * 0.15)
    os.kill(int(os.environ["REDIS_PID"]), signal.SIGKILL)
    await asyncio.sleep(seconds * 0.3)
    restarted.append(start_redis())


restarted = []


def metric(name, **labels):
    total = 0.0
    for a in admins:
        for line in urllib.request.urlopen(a + "/metrics").read().decode().splitlines():
            m = re.match(rf"{name}(\{{.*\}})? (\S+)$", line)
            if m and all(f'{k}="{v}"' in (m[1] or "") for k, v in labels.items()):
                total += float(m[2])
    return total


async def main():
    begin = time.monotonic()
    work = [client(i, begin + seconds) for i in range(streams)]
    await asyncio.gather(*work, *([break_store()] if outage else []))
    for _ in range(100):
        if metric("penstock_quota_reservations_open") == 0:
            break
        await asyncio.sleep(0.1)
    took = time.monotonic() - begin
    used = metric("penstock_quota_charged_total", measure="output tokens")
    open_left = metric("penstock_quota_reservations_open")
    generated = metric("penstock_gateway_output_tokens_total")
    bound = limit * (1.25 if outage else 1) + limit * took / 3600 + 1
    print(f"charged {used:.0f} of {limit}, bound {bound:.0f}, tokens seen {generated:.0f}, {counts}, {most_open} streams at a time")
    if used > bound:
        sys.exit("the limit was exceeded")
    if used < limit * 0.95:
        sys.exit("the limit could not be used up")
    if open_left:
        sys.exit(f"{open_left} reservations leaked")
    if used < generated:
        sys.exit(f"{generated} tokens were generated, {used} charged")
    if metric("penstock_quota_store_up") != len(admins):
        sys.exit("the store is not up at the end")
    if counts["other"] or not counts["refused"] or not counts["aborted"]:
        sys.exit(f"unexpected endings: {counts}")


try:
    asyncio.run(main())
finally:
    for p in restarted:
        p.kill()
