# SPDX-License-Identifier: Apache-2.0
"""500 open streams and random aborts over two gateways that share one limit.

First as many streams as the tenant may have are opened and held: one more is refused.
Then they are left one after another, and others, some of them left as well, use up the
limit.

GATEWAYS: base URLs, comma-separated. KEY: an API key. LIMIT: output tokens of the
tenant, an hour. STREAMS: how many it may have open. HOLD: tokens of each of those.
REDIS_PORT, REDIS_PID: a server to kill and start again, where OUTAGE is 1. Reads what
was charged from the gateways' own metrics (ADMINS).
"""

import asyncio
import collections
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
outage = os.environ.get("OUTAGE") == "1"
most, hold = int(os.environ.get("STREAMS", "500")), int(os.environ.get("HOLD", "240"))
counts = {"ok": 0, "aborted": 0, "refused": 0, "other": 0}
lately = collections.deque(maxlen=200)  # whether each of the last requests was let in
most_open = now_open = 0
all_open, over = asyncio.Event(), asyncio.Event()


def fail(text):
    """Ends at once, whatever waits."""
    print(text, file=sys.stderr, flush=True)
    for p in restarted:
        p.kill()
    os._exit(1)


async def ask(rng, model, tokens):
    """Sends a request; returns (status, reader, writer) with the head read."""
    host, port = rng.choice(gateways).removeprefix("http://").split(":")
    reader, writer = await asyncio.open_connection(host, int(port))
    text = json.dumps({"model": model, "messages": [{"role": "user", "content": "count"}], "stream": True, "max_tokens": tokens, "ignore_eos": True})
    writer.write(
        f"POST /v1/chat/completions HTTP/1.1\r\nHost: {host}\r\nAuthorization: Bearer {key}\r\n"
        f"Content-Type: application/json\r\nContent-Length: {len(text)}\r\nConnection: close\r\n\r\n{text}".encode()
    )
    await writer.drain()
    head = await reader.readuntil(b"\r\n\r\n")
    status = int(head.split()[1])
    if status == 429 and b"retry-after" not in head.lower():
        fail(f"429 without Retry-After: {head}")
    return status, reader, writer


async def stream(rng, reader, longest):
    """Reads a stream to its end, or leaves it after a while."""
    if rng.random() < 0.3:
        await asyncio.sleep(rng.random() * longest)
        counts["aborted"] += 1
        return
    data = await reader.read()
    if b'"usage"' in data or b"[DONE]" not in data:
        fail(f"a stream is not what the client asked for: {data[-300:]}")
    counts["ok"] += 1


async def holder(seed):
    """One of the streams that are open at a time."""
    global now_open, most_open
    rng = random.Random(seed)
    status = 429
    while status == 429:  # the other gateway still holds what it leased for the rush
        status, reader, writer = await ask(rng, "hold", hold)
        if status == 429:
            writer.close()
            counts["refused"] += 1
            await asyncio.sleep(0.2 + rng.random() * 0.3)
    try:
        if status != 200:
            fail(f"stream {now_open + 1} of {most} got {status}")
        await reader.readuntil(b"\n\n")  # it has begun
        now_open += 1
        most_open = max(most_open, now_open)
        if now_open == most:
            status, _, w = await ask(rng, "hold", 1)
            w.close()
            held = await asyncio.to_thread(metric, "penstock_quota_reservations_open")
            if status != 429 or held != most:
                fail(f"one stream more than {most} got {status}; the gateways count {held:.0f}")
            all_open.set()
        await all_open.wait()
        await asyncio.sleep(rng.random() * 3)
        counts["aborted"] += 1
    finally:
        now_open -= 1
        writer.close()


async def client(seed):
    """One that uses up the limit by short streams."""
    rng = random.Random(seed)
    await all_open.wait()
    while not over.is_set():
        try:
            status, reader, writer = await ask(rng, "m", rng.randint(50, 400))
        except (ConnectionError, asyncio.IncompleteReadError):
            counts["other"] += 1
            await asyncio.sleep(0.1)
            continue
        lately.append(status == 200)
        try:
            if status == 200:
                await stream(rng, reader, 0.3)
            elif status == 429:
                counts["refused"] += 1
                await asyncio.sleep(0.3)
            else:
                counts["other"] += 1
        finally:
            writer.close()


async def until_used_up(holders, restart):
    """Ends the load once the limit lets hardly anything in, other than what refills."""
    await asyncio.gather(*holders)
    await restart
    lately.clear()
    for _ in range(600):
        if len(lately) == lately.maxlen and sum(lately) <= lately.maxlen * 0.05:
            break
        await asyncio.sleep(0.2)
    over.set()


def start_redis():
    return subprocess.Popen(
        ["redis-server", "--port", os.environ["REDIS_PORT"], "--bind", "127.0.0.1", "--save", "", "--appendonly", "no"],
        stdout=subprocess.DEVNULL,
    )


async def break_store():
    await all_open.wait()
    if not outage:
        return
    os.kill(int(os.environ["REDIS_PID"]), signal.SIGKILL)
    await asyncio.sleep(4)
    restarted.append(start_redis())
    await asyncio.sleep(3)


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
    holders = [asyncio.create_task(holder(i)) for i in range(most)]
    restart = asyncio.create_task(break_store())
    await asyncio.wait({asyncio.create_task(all_open.wait()), *holders}, timeout=110, return_when=asyncio.FIRST_COMPLETED)
    if not all_open.is_set():
        fail(f"only {most_open} of {most} streams came to be open")
    await asyncio.gather(until_used_up(holders, restart), *(client(1000 + i) for i in range(60)))
    for _ in range(600):
        if metric("penstock_quota_reservations_open") == 0 and metric("penstock_quota_store_up") == len(admins):
            break
        await asyncio.sleep(0.1)
    took = time.monotonic() - begin
    used = metric("penstock_quota_charged_total", measure="output tokens")
    open_left = metric("penstock_quota_reservations_open")
    generated = metric("penstock_gateway_output_tokens_total")
    bound = limit * (1.25 if outage else 1) + limit * took / 3600 + 1
    print(f"charged {used:.0f} of {limit}, bound {bound:.0f}, tokens seen {generated:.0f}, {counts}, {most_open} of {most} streams open at a time")
    if used > bound:
        fail("the limit was exceeded")
    if most_open != most:
        fail(f"{most_open} streams were open at a time, not {most}")
    if used < limit * 0.95:
        fail("the limit could not be used up")
    if open_left:
        fail(f"{open_left} reservations leaked")
    if used < generated:
        fail(f"{generated} tokens were generated, {used} charged")
    if metric("penstock_quota_store_up") != len(admins):
        fail("the store is not up at the end")
    if counts["other"] or not counts["refused"] or not counts["aborted"]:
        fail(f"unexpected endings: {counts}")


try:
    asyncio.run(main())
finally:
    for p in restarted:
        p.kill()
