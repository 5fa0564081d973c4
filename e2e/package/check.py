# SPDX-License-Identifier: Apache-2.0
"""Runs the installed package in a root folder, as its unit would, and upgrades it.

    unshare --net python3 e2e/package/check.py ROOT BINARY [PREVIOUS]

ROOT: where the package is installed. BINARY: that of the package, which also plays the
replicas. PREVIOUS: the binary before it; with it, it serves STREAMS streams (default
200), is replaced and told to hand over; then the same back again. It needs a network
namespace of its own, since it takes the ports of the shipped configuration.
"""

import asyncio
import fcntl
import json
import os
import shlex
import shutil
import signal
import socket
import struct
import subprocess
import sys
import time
import urllib.request

root, binary = os.path.abspath(sys.argv[1]), os.path.abspath(sys.argv[2])
previous = os.path.abspath(sys.argv[3]) if len(sys.argv) > 3 else None
streams = int(os.environ.get("STREAMS", "200"))
tokens = int(os.environ.get("TOKENS", "300"))
limit = 150
user = 65532 if open("/proc/self/uid_map").read().split()[2] != "1" else None  # only one user is mapped: stay
children = []


def loopback_up():
    s = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
    fcntl.ioctl(s, 0x8914, struct.pack("16sh14x", b"lo", 0x1 | 0x40))  # SIOCSIFFLAGS: up, running
    s.close()


def inside():
    os.chroot(root)
    os.chdir("/")
    if user is not None:
        os.setgroups([])
        os.setgid(user)
        os.setuid(user)


def run(*argv):
    """Runs the installed binary in ROOT and returns what it prints."""
    p = subprocess.run(argv, preexec_fn=inside, stdin=subprocess.DEVNULL, capture_output=True, text=True)
    if p.returncode:
        sys.exit(f"{' '.join(argv)} ended with {p.returncode}\n{p.stdout}{p.stderr}")
    return p.stdout.strip()


def until(what, check):
    end = time.monotonic() + limit
    while time.monotonic() < end:
        try:
            got = check()
        except OSError:
            got = None
        if got:
            return got
        time.sleep(0.05)
    sys.exit(f"{what}: not within {limit} s")


def answers(url):
    return urllib.request.urlopen(url, timeout=5).status == 200


def command_of_unit():
    unit = open(f"{root}/usr/lib/systemd/system/penstock.service").read()
    line = next(x for x in unit.splitlines() if x.startswith("ExecStart="))
    return shlex.split(line.removeprefix("ExecStart="))


def put(to):
    """Replaces the installed binary as dpkg and rpm do: beside it, then in its place."""
    shutil.copy(to, f"{root}/usr/bin/penstock.new")
    os.rename(f"{root}/usr/bin/penstock.new", f"{root}/usr/bin/penstock")


class Notify:
    """The socket of a service manager: it keeps what a service says."""

    def __init__(self):
        os.makedirs(f"{root}/run", exist_ok=True)
        path = f"{root}/run/notify"
        if os.path.exists(path):
            os.unlink(path)
        self.socket = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
        self.socket.bind(path)
        os.chmod(path, 0o666)
        self.socket.setblocking(False)

    def next(self):
        try:
            return self.socket.recv(4096).decode()
        except BlockingIOError:
            return None


async def post(body):
    """Sends a chat request on a connection of its own; yields the lines of the answer."""
    reader, writer = await asyncio.open_connection("127.0.0.1", 8080)
    try:
        text = json.dumps(body)
        writer.write(
            f"POST /v1/chat/completions HTTP/1.1\r\nHost: 127.0.0.1:8080\r\nConnection: close\r\n"
            f"Content-Type: application/json\r\nContent-Length: {len(text)}\r\n\r\n{text}".encode()
        )
        while line := await reader.readline():
            yield line.decode().strip()
    finally:
        writer.close()


def chat(n, stream):
    return {"model": "m", "messages": [{"role": "user", "content": f"count {n}"}], "max_tokens": tokens if stream else 2,
            "ignore_eos": True, "stream": stream, **({"stream_options": {"include_usage": True}} if stream else {})}


async def follow(n, started):
    """Reads one stream to its end; returns "" or what is wrong with it."""
    usage, done, status = None, False, None
    try:
        async for line in post(chat(n, True)):
            status = status or line
            if not line.startswith("data: "):
                continue
            data = line.removeprefix("data: ")
            if data == "[DONE]":
                done = True
                continue
            event = json.loads(data)
            if "error" in event:
                return f"stream {n}: {data}"
            if event.get("choices"):
                started.add(n)
            if event.get("usage"):
                usage = event["usage"]["completion_tokens"]
    except OSError as e:
        return f"stream {n}: {e}"
    finally:
        started.add(n)
    if not done or usage != tokens:
        return f"stream {n}: {status}; [DONE] {done}, {usage} of {tokens} tokens"
    return ""


async def ask(stop, counts):
    """Sends short requests until stop is set: none may fail."""
    while not stop.is_set():
        status = "no answer"
        try:
            async for line in post(chat(0, False)):
                status = line
                break
        except OSError as e:
            status = str(e)
        counts["asked"] += 1
        if " 200 " not in status + " ":
            counts["bad"] += 1
            print("a request meanwhile:", status, file=sys.stderr)


async def hand_over(old, to, notify):
    """Replaces the binary under streams and returns the pid of the new process."""
    started, stop, counts = set(), asyncio.Event(), {"asked": 0, "bad": 0}
    running = [asyncio.create_task(follow(n, started)) for n in range(streams)]
    while len(started) < streams:
        await asyncio.sleep(0.05)
    ended = sum(t.done() for t in running)
    put(to)
    asking = [asyncio.create_task(ask(stop, counts)) for _ in range(4)]
    os.kill(old, signal.SIGUSR2)
    new = None
    end = time.monotonic() + limit
    while new is None and time.monotonic() < end:
        for line in (notify.next() or "").splitlines():
            if line.startswith("MAINPID="):
                new = int(line.removeprefix("MAINPID="))
        await asyncio.sleep(0.02)
    if new is None:
        sys.exit("the service did not name a new main process")
    wrong = [w for w in await asyncio.gather(*running) if w]
    await asyncio.sleep(0.3)
    stop.set()
    await asyncio.gather(*asking)
    if wrong or counts["bad"]:
        sys.exit("\n".join(wrong[:5]) + f"\n{len(wrong)} of {streams} streams lost, {counts['bad']} of {counts['asked']} requests failed")
    if streams - ended < streams // 2:
        sys.exit(f"{ended} of {streams} streams had ended before the handover: raise TOKENS")
    if not os.path.samefile(f"/proc/{new}/exe", f"{root}/usr/bin/penstock"):
        sys.exit("the new process does not run the new binary")
    return new, f"0 of {streams} streams lost ({streams - ended} ran), 0 of {counts['asked']} requests failed"


def gone(pid):
    """Whether a process ended; ours are reaped on the way."""
    for c in children:
        c.poll()
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return True
    return open(f"/proc/{pid}/stat").read().rsplit(")", 1)[1].split()[0] == "Z"


def serve():
    """Starts the installed service as the unit does."""
    state = f"{root}/var/lib/penstock"
    os.makedirs(state, exist_ok=True)
    if user is not None:
        os.chown(state, user, user)
    notify = Notify()
    env = {"PATH": "/usr/bin", "NOTIFY_SOCKET": "/run/notify"}
    p = subprocess.Popen(command_of_unit(), preexec_fn=inside, stdin=subprocess.DEVNULL, env=env)
    children.append(p)
    until("READY=1", lambda: p.poll() is not None or "READY=1" in (notify.next() or ""))
    if p.poll() is not None:
        sys.exit(f"the service ended with {p.returncode}")
    until("readiness", lambda: answers("http://127.0.0.1:9900/readyz"))
    return p.pid, notify


def main():
    loopback_up()
    for port in (8000, 8001):
        children.append(subprocess.Popen([binary, "replica", "--model", "m", "--listen", f"127.0.0.1:{port}"], stderr=subprocess.DEVNULL))
    until("replica", lambda: answers("http://127.0.0.1:8001/health") and answers("http://127.0.0.1:8000/health"))
    print("installed:", run("/usr/bin/penstock", "version"))
    print("installed:", run("/usr/bin/penstock", "config", "check", "/etc/penstock/penstock.yaml"))
    pid, notify = serve()
    answer = urllib.request.urlopen(urllib.request.Request(
        "http://127.0.0.1:8080/v1/chat/completions", json.dumps(chat(0, False)).encode(), {"Content-Type": "application/json"}))
    print("served:", json.load(answer)["usage"])
    last = [pid]
    try:
        if previous:
            os.kill(pid, signal.SIGTERM)
            until("end of the service", lambda: gone(pid))
            put(previous)
            conf = f"{root}/etc/penstock/penstock.yaml"
            text = open(conf).read()
            open(conf, "w").write(text.replace("- http://127.0.0.1:8000", "- http://127.0.0.1:8000\n        - http://127.0.0.1:8001"))
            pid, notify = serve()
            last = [pid]
            for name, to in (("upgrade", binary), ("roll back", previous)):
                new, text = asyncio.run(hand_over(pid, to, notify))
                last.append(new)
                until("end of the old process", lambda: gone(pid))
                print(f"{name}: {text}")
                pid = new
            put(binary)
        os.kill(pid, signal.SIGTERM)
        until("end of the service", lambda: gone(pid))
        print("ended on SIGTERM")
    finally:
        for p in last:
            if not gone(p):
                os.kill(p, signal.SIGKILL)
        for c in children:
            if c.poll() is None:
                c.kill()
            c.wait()


main()
