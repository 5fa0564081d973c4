# SPDX-License-Identifier: Apache-2.0
"""What passes through Envoy and the endpoint picker while all is well."""
import hashlib
import json
import os
import subprocess
import time

from backend import Backend
from rig import MODEL, PENSTOCK, Envoy, Picker, Raw, case, chat, get, poll, post, tally


@case
def answers(rig):
    """A whole answer, and the same through the Anthropic API."""
    status, _, body = post(rig.closed.addr, chat())
    a = json.loads(body)
    assert status == 200 and a["usage"]["completion_tokens"] == 8, body
    status, _, body = post(rig.closed.addr, chat(), path="/v1/messages")
    assert status == 200 and json.loads(body)["type"] == "message", body
    return "chat completions and messages"


@case
def streams(rig):
    """Every event arrives while the answer is still being made, to its own end."""
    def newest():
        return next(iter(json.loads(get(rig.picker.admin, "/api/v1/decisions?limit=1&filter=model=" + MODEL)[1])["decisions"]), {"id": ""})
    poll("what was asked before is over", lambda: rig.picker.in_flight() == 0)
    before = newest()["id"]
    r = Raw.post(rig.closed.addr, chat(stream=True, max_tokens=40, stream_options={"include_usage": True}))
    status, headers = r.head()
    parts, times = [], []
    for c in r.chunks():
        parts.append(c)
        times.append(time.monotonic())
    text = b"".join(parts)
    r.close()
    assert status == 200 and headers["content-type"].startswith("text/event-stream"), headers
    assert text.rstrip().endswith(b"data: [DONE]") and b'"completion_tokens":40' in text, text[-300:]
    assert len(parts) >= 10, f"only {len(parts)} chunks"
    last = poll("the stream is recorded", lambda: (lambda d: d if d["id"] != before else None)(newest()))  # a moment after its end
    poll("the record has the usage of the stream", lambda: (json.loads(get(
        rig.picker.admin, "/api/v1/decisions/" + last["id"])[1])["outcome"] or {}).get("prompt_tokens", 0) > 0)
    return f"{text.count(b'data: ')} events in {len(parts)} chunks over {(times[-1] - times[0]) * 1e3:.0f} ms"


@case
def explained(rig):
    """The picker explains a request by the id that the engine saw."""
    status, _, body = post(rig.closed.addr, chat(model="probe"))
    seen = json.loads(body)
    rid = dict(seen["headers"])["x-request-id"]
    poll("the request is recorded", lambda: get(rig.picker.admin, "/api/v1/decisions/" + rid)[0] == 200)  # a moment after its answer
    out = subprocess.run([PENSTOCK, "explain", rid, "--server", "http://" + rig.picker.admin, "-o", "json"],
                         capture_output=True, text=True)
    assert status == 200 and out.returncode == 0, out.stderr
    rec = json.loads(out.stdout)
    assert rec["chosen"] == seen["server"], (rec["chosen"], seen["server"])
    return f"{rec['chosen']} of {len(rec['candidates'])} candidates"


@case
def bytes_unchanged(rig):
    """Odd JSON arrives byte for byte; an alias changes the model's name alone."""
    odd = ('{ "z":1e2,"model":"%s","big":12345678901234567890123,"messages":[{"role":"user","content":'
           '"caf\\u00e9 \\/ <b>& \\"model\\": \\"nick\\""}], "a":0.90 }')
    for name in ("probe", "nick"):
        status, _, body = post(rig.closed.addr, odd % name)
        want = (odd % "probe").encode()
        seen = json.loads(body)
        assert status == 200 and seen["sha256"] == hashlib.sha256(want).hexdigest(), seen["start"]
    return "as sent, and with the alias replaced"


@case
def repeated_headers(rig):
    r = Raw.post(rig.closed.addr, chat(model="probe"), headers="x-rep: a\r\nx-rep: b\r\n")
    r.head()
    seen = json.loads(b"".join(r.chunks()))
    r.close()
    got = [v for k, v in seen["headers"] if k == "x-rep"]
    assert ",".join(got).replace(" ", "") == "a,b", got
    many = "".join(f"x-h-{i}: v\r\n" for i in range(88))
    r = Raw.post(rig.closed.addr, chat(model="probe"), headers=many)
    status, _ = r.head()
    r.close()
    assert status == 200, f"{status} with 88 more headers"
    return "both values, and 88 more headers pass"


@case
def errors_are_json(rig):
    for name, body, want, code in (
            ("unknown model", chat(model="nobody"), 404, "model_not_found"),
            ("no JSON", "{", 400, "invalid_json"),
            ("no model", {"messages": []}, 400, "missing_required_parameter")):
        status, headers, b = post(rig.closed.addr, body)
        assert status == want and headers["content-type"] == "application/json", (name, status, b)
        assert json.loads(b)["error"]["code"] == code, (name, b)
    status, _, b = post(rig.closed.addr, chat(model="nobody"), path="/v1/messages")
    assert status == 404 and json.loads(b)["type"] == "error", b
    status, _, b = post(rig.closed.addr, chat(model="probe"), path="/v1/chat/completions?status=503")
    assert status == 503 and json.loads(b)["server"], "an engine's own 503 must pass with its body"
    return "404, 400 in the shape of the API that was called; an engine's 503 passes"


@case
def get_requests(rig):
    status, body = get(rig.closed.addr, "/v1/models")
    names = [m["id"] for m in json.loads(body)["data"]]
    assert status == 200 and names, body
    return "/v1/models: " + ", ".join(names)


@case
def spoofed_destination(rig):
    """A client that names the destination itself never gets there."""
    hit = len(rig.outsider.requests)
    for _ in range(20):
        for header in ("x-gateway-destination-endpoint", "X-Gateway-Destination-Endpoint"):
            status, _, _ = post(rig.closed.addr, chat(), headers={header: rig.outsider.addr})
            assert status == 200
            status, _, body = post(rig.closed.addr, chat(model="probe"), headers={header: rig.outsider.addr})
            seen = json.loads(body)
            assert status == 200 and seen["server"] != rig.outsider.addr
            named = [v for k, v in seen["headers"] if k == "x-gateway-destination-endpoint"]
            assert all(rig.outsider.addr not in v for v in named), named
    assert len(rig.outsider.requests) == hit
    return "80 requests, none reached the address that the client named"


@case
def sessions_by_header(rig):
    """Prompts too short to be known by their text stay where their session was."""
    used, sessions = set(), 0
    # A new one goes to either endpoint by chance: eight, and more until both were seen.
    while sessions < 8 or len(used) < 2 and sessions < 80:
        sessions, seen, name = sessions + 1, set(), str(sessions)
        for i in range(6):
            # A session is a hint: one that is still counted as busy is left.
            poll("the last request is over", lambda: rig.picker.in_flight() == 0, every=0.01)
            status, _, body = post(rig.closed.addr, chat(f"{name} {i}", model="probe"), headers={"X-Session-Id": "session " + name})
            assert status == 200, body
            seen.add(json.loads(body)["server"])
        assert len(seen) == 1, f"session {name} was at {seen}"
        used |= seen
    assert len(used) == 2, f"{sessions} sessions, all at {used}"
    return f"{sessions} sessions of 6 requests, each at one of 2 endpoints"


@case
def fallback_endpoint(rig):
    """The endpoint that was picked dies: the request goes to the next of the list. The
    picker looks at its endpoints when it starts and not again, so that only what Envoy
    tells can say that one is dead."""
    picker = Picker(rig, rig.config, "picker-looks-once", "--scrape-interval", "1h")
    picker.ready()
    poll("all replicas are ready", lambda: sum(p["ready"] for p in picker.status()["pools"]) == 5)
    envoy = Envoy(rig, "envoy-looks-once", [picker], rig.endpoints)
    poll("Envoy sees the picker", envoy.picker_up)
    prompt = "a prompt that sticks to one replica because it is long. " * 60
    assert post(envoy.addr, chat(prompt))[0] == 200

    def sticky():
        """The decision on that prompt: the newest of its length."""
        last = json.loads(get(picker.admin, "/api/v1/decisions?limit=50")[1])["decisions"]
        return next((d["chosen"] for d in last if d["request"]["model"] == MODEL and d["request"]["prompt_tokens"] > 300), None)
    chosen = poll("the decision is recorded", sticky)
    victim = next(r for r in rig.replicas if r.addr == chosen)
    victim.kill()
    seen = [(0, 0, post(envoy.addr, chat(prompt))[0]) for _ in range(8)]
    retried, told = envoy.stat("cluster.pool.upstream_rq_retry_success"), picker.metric("penstock_epp_fallbacks_total")
    rig.replicas[rig.replicas.index(victim)] = rig.replica(victim.addr.rsplit(":", 1)[0], *rig.replica_flags)
    envoy.proc.kill()
    picker.stop()
    assert tally(seen) == "8 x 200", tally(seen)
    assert retried >= 1, "no request was tried again: the pick did not stick, so nothing was proved"
    assert told == retried and retried < 8, f"{retried} tried again, the picker learned of {told}"
    poll("the replica is back", lambda: sum(p["ready"] for p in rig.picker.status()["pools"]) == 5)
    return f"8 of 8 answered, {retried} by the second endpoint of the list; then the picker avoided the dead one"


@case
def fallback_of_a_long_prompt(rig):
    """The same with a body that Envoy does not buffer for a retry unless told to."""
    victim = rig.probes[0]
    victim.close()
    body = json.dumps(chat("x" * 1500000, model="probe"))
    seen = [(0, 0, post(rig.closed.addr, body)[0]) for _ in range(4)]
    rig.probes[0] = Backend(victim.addr, "probe")
    poll("the replica is back", lambda: sum(p["ready"] for p in rig.picker.status()["pools"]) == 5)
    assert tally(seen) == "4 x 200", tally(seen)
    return "4 of 4 answered"


@case
def body_100mb(rig):
    """100 MB pass byte for byte, and the picker holds next to nothing of it."""
    text = os.urandom(1 << 20).hex().encode() * 50
    out = []
    for name, first, last in (("model first", b'{"model":"probe","messages":[{"role":"user","content":"', b'"}]}'),
                              ("model last", b'{"messages":[{"role":"user","content":"', b'"}],"model":"probe"}')):
        body = first + text + last
        rig.picker.proc.reset_peak()
        base = rig.picker.proc.memory("VmRSS")
        start = time.monotonic()
        status, _, b = post(rig.closed.addr, body, timeout=120)
        took = time.monotonic() - start
        peak = rig.picker.proc.memory() - base
        seen = json.loads(b)
        assert status == 200 and seen["bytes"] == len(body), (name, status, b[:200])
        assert seen["sha256"] == hashlib.sha256(body).hexdigest(), name
        out.append(f"{name} {took:.1f} s, picker +{peak:.0f} MiB")
        if name == "model first":
            assert peak < 64, f"{name}: the picker grew by {peak:.0f} MiB"
        else:
            assert peak < 260, f"{name}: the picker grew by {peak:.0f} MiB"
    poll("nothing is held", lambda: rig.picker.metric("penstock_epp_held_body_bytes") == 0)
    return "; ".join(out)


@case
def body_sizes(rig):
    """The sizes at which hops are known to fail, and an answer of 44 MB."""
    frame = len(json.dumps(chat("", model="probe")))
    for n in (32768, 32769, 65537, 131073, 659770, 1100000, 4194305, 20971520):
        status, _, b = post(rig.closed.addr, chat("x" * (n - frame), model="probe"))
        assert status == 200 and json.loads(b)["bytes"] == n, (n, status, b[:200])
    for framing in ("content-length: 140000000", "transfer-encoding: chunked"):
        r = Raw(rig.closed.addr, f"POST /v1/completions HTTP/1.1\r\nhost: x\r\ncontent-type: application/json\r\n{framing}\r\n\r\n")
        if "chunked" in framing:
            try:
                for _ in range(140):
                    r.s.sendall(b"f4240\r\n" + b"x" * 1000000 + b"\r\n")
            except OSError:
                pass  # the answer came before the end of the body
        status, h = r.head()
        b = r.f.read(int(h["content-length"])) if "content-length" in h else b"".join(r.chunks())
        r.close()
        assert status == 413 and b"134217728" in b, (framing, status, b[:200])
    status, _, b = post(rig.closed.addr, chat(model="probe"), path="/v1/embeddings?size=43994856")
    assert status == 200 and len(b) == 43994856, (status, len(b))
    return "32 KiB to 20 MiB, 413 above 128 MiB, an answer of 44 MB"


@case
def trailers(rig):
    """Trailers end a request as well as a body's end, and pass both ways."""
    b = json.dumps(chat(model="probe")).encode()
    for announced in (b"", b"trailer: x-sum\r\n", b"x-body-length: 5\r\n"):
        r = Raw(rig.closed.addr, b"POST /v1/chat/completions HTTP/1.1\r\nhost: x\r\ncontent-type: application/json\r\n"
                b"transfer-encoding: chunked\r\n%s\r\n%x\r\n%s\r\n0\r\nx-sum: 7\r\n\r\n" % (announced, len(b), b), timeout=10)
        status, _ = r.head()
        seen = json.loads(b"".join(r.chunks()))
        r.close()
        assert status == 200 and seen["bytes"] == len(b), f"{seen['bytes']} bytes arrived of {len(b)}"
        assert seen["trailers"].get("x-sum") == "7", seen["trailers"]
        assert "x-body-length" not in dict(seen["headers"]), "a header of the configuration's own reached the engine"
    r = Raw.post(rig.closed.addr, chat(model="probe"), path="/v1/chat/completions?trailer=1", headers="te: trailers\r\n", timeout=10)
    status, _ = r.head()
    body = b"".join(r.chunks())
    r.close()
    assert status == 200 and body == b"hello" and r.trailers.get("x-sum") == "42", (status, body, r.trailers)
    return "request and answer, body not doubled"


@case
def client_leaves(rig):
    """A client that closes its connection is gone at the replica, too."""
    left, gone = len(rig.probes[0].left) + len(rig.probes[1].left), rig.picker.metric("penstock_epp_client_gone_total")
    for _ in range(5):
        r = Raw.post(rig.closed.addr, chat(model="probe", stream=True), path="/v1/chat/completions?sse=600&gap=0.05")
        assert r.head()[0] == 200
        next(r.chunks())
        r.close()
    poll("the replica noticed", lambda: len(rig.probes[0].left) + len(rig.probes[1].left) == left + 5)
    poll("the picker gave the places back", lambda: rig.picker.in_flight() == 0)
    gone = rig.picker.metric("penstock_epp_client_gone_total") - gone
    assert gone == 5, f"{gone} counted as gone"
    return "5 of 5, mid-stream"


@case
def no_response_bodies(rig):
    """What it costs to see the answers, and what is lost without."""
    rows = []
    for name, envoy in (("all bodies", rig.closed), ("no response bodies", rig.blind)):
        rows.append(measure(rig, name, envoy))
    poll("the picker counts what it did not see", lambda: rig.picker.metric("penstock_epp_unseen_answers_total") >= 10)
    poll("places are given back after the usual time", lambda: rig.picker.in_flight() == 0)
    return "; ".join(rows)


def measure(rig, name, envoy):
    """Ten streams of 150 events at once: CPU time of Envoy and picker per event."""
    cpu = [envoy.proc.cpu(), rig.picker.proc.cpu()]
    open_streams = []
    for i in range(10):
        open_streams.append(Raw.post(envoy.addr, chat(f"stream {i}", model="probe", stream=True), path="/v1/chat/completions?sse=150&gap=0.01"))
    events = 0
    for r in open_streams:
        assert r.head()[0] == 200
        events += b"".join(r.chunks()).count(b"data: ")
        r.close()
    assert events == 1530, events
    used = [envoy.proc.cpu() - cpu[0], rig.picker.proc.cpu() - cpu[1]]
    return f"{name}: Envoy {used[0] / events * 1e6:.0f} us, picker {used[1] / events * 1e6:.0f} us per event"


@case
def conformance(rig):
    """The black-box suite against the picker that Envoy uses."""
    out = subprocess.run([PENSTOCK, "check", "epp", rig.picker.addr, "--model", MODEL, "--timeout", "10s", "-o", "json"],
                         capture_output=True, text=True)
    rep = json.loads(out.stdout)
    bad = [f"{c['name']}: {c['detail']}" for c in rep["checks"] if c["result"] != "pass"]
    assert out.returncode == 0 and not bad, f"exit {out.returncode}: {bad}"
    assert len(rep["checks"]) >= 25
    return f"{rep['passed']} checks passed against {len(rep['endpoints'])} endpoints"


@case
def written_configuration(rig):
    """What `envoy bootstrap` writes has none of the faults that `lint` knows."""
    out = subprocess.run([PENSTOCK, "lint", rig.path("envoy-open.yaml"), rig.path("envoy-closed.yaml"), "-o", "json"],
                         capture_output=True, text=True)
    assert out.returncode == 0, out.stdout[:1000] + out.stderr
    return "no finding in either failure mode"
