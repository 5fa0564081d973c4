# SPDX-License-Identifier: Apache-2.0
"""Keys that are closed while their requests run, with auth.endStreams."""
import json
import subprocess
import time

from rig import PENSTOCK, Envoy, Picker, Raw, case, chat, free_port, poll

CONFIG = """\
auth: {keysFile: %(keys)s, endStreams: true}
pools:
  - name: probe
    models: [{name: probe}]
    replicas: {static: [%(probes)s]}
  - name: away
    models: [{name: away}]
    replicas: {static: ["http://127.10.0.98:%(port)d"]}
    route: {holdFor: 60s}
"""

# How an Envoy that sees no response bodies is kept from closing its stream to the picker
# behind the headers of an answer.
TRAILERS = ("response_trailer_mode: SKIP", "response_trailer_mode: SEND")
STREAM = "/v1/chat/completions?sse=2400&gap=0.05"


class Door:
    """A picker that ends requests with their key, the keys of its file and Envoys in front."""

    def __init__(self, rig, name, *args, **kw):
        self.rig, self.file = rig, rig.path(name + "-keys.json")
        config = rig.path(name + ".yaml")
        self.key("first")
        with open(config, "w") as f:
            f.write(CONFIG % {"keys": self.file, "port": free_port("127.10.0.98"),
                              "probes": ", ".join("http://" + p.addr for p in rig.probes)})
        self.picker = Picker(rig, config, name, "--scrape-interval", "300ms", *args, **kw)
        self.picker.ready()
        poll("the replicas are ready", lambda: self.picker.status()["pools"][0]["ready"] == 2)

    def envoy(self, name, *flags, **kw):
        e = Envoy(self.rig, name, [self.picker], self.rig.endpoints, *flags, **kw)
        poll("Envoy sees the picker", e.picker_up)
        return e

    def key(self, tenant):
        """Makes a key; returns its header."""
        out = subprocess.run([PENSTOCK, "key", "create", "--file", self.file, "--tenant", tenant], check=True,
                             capture_output=True, text=True)
        return f"authorization: Bearer {out.stdout.strip()}\r\n"

    def known(self, keys):
        """Waits until the file was read that has so many keys."""
        poll("the keys are read", lambda: f"now={keys}\n" in self.log())

    def revoke(self, tenant):
        with open(self.file) as f:
            key = next(k["id"] for k in json.load(f)["keys"] if k["tenant"] == tenant)
        subprocess.run([PENSTOCK, "key", "revoke", "--file", self.file, key], check=True, capture_output=True)

    def ended(self):
        """How many requests ended with their key, as the log says."""
        return sum(int(line.rsplit("requests=", 1)[1]) for line in self.log().splitlines() if "requests ended with their key" in line)

    def log(self):
        with open(self.picker.proc.log) as f:
            return f.read()

    def held(self):
        return self.picker.status()["pools"][1]["held"]


def stream(addr, head):
    """A stream of which the first event is here; returns it with what follows."""
    r = Raw.post(addr, chat(model="probe", stream=True), path=STREAM, headers=head)
    status, _ = r.head()
    assert status == 200, status
    events = r.chunks()
    next(events)
    return r, events


def cut(events):
    """Reads on until the answer is cut."""
    try:
        n = sum(e.count(b"data: ") for e in events)
    except ConnectionError:
        return
    raise AssertionError(f"it came to its end, with {n} events")


def goes_on(s, seconds=2):
    """Reads what came and for some time more, longer than Envoy takes to close what is cut; then leaves."""
    end = time.monotonic() + seconds
    while time.monotonic() < end:
        next(s[1])
    s[0].close()


def refused(r):
    status, headers = r.head()
    body = json.loads(r.f.read(int(headers["content-length"])))
    assert status == 401 and body["error"]["code"] == "invalid_api_key" and headers["www-authenticate"] == "Bearer", (status, body)
    assert headers["x-penstock-dropped-reason"] == "invalid_api_key" and headers["content-type"] == "application/json", headers
    r.close()


@case
def closed_key_ends_requests(rig):
    """What waits and what a replica computes gets a 401, a stream is cut; other keys go on."""
    door = Door(rig, "ends")
    envoys = {"seen": door.envoy("envoy-ends", "--fail-open"), "blind": door.envoy("envoy-ends-blind", "--no-response-bodies"),
              "trailers": door.envoy("envoy-ends-trailers", "--no-response-bodies", edit=lambda y: y.replace(*TRAILERS))}
    stolen, other = door.key("stolen"), door.key("other")
    door.known(3)
    at = len(rig.probes[0].requests) + len(rig.probes[1].requests)
    waits = [Raw.post(e.addr, chat(model="away"), headers=stolen) for e in envoys.values()]
    waits_on = Raw.post(envoys["seen"].addr, chat(model="away"), headers=other)
    computes = [Raw.post(e.addr, chat(model="probe"), path="/v1/chat/completions?wait=60", headers=stolen) for e in envoys.values()]
    streams = {name: stream(e.addr, stolen) for name, e in envoys.items()}
    others = [stream(e.addr, other) for e in envoys.values()]
    poll("all of them are under way", lambda: door.held() == 4 and
         len(rig.probes[0].requests) + len(rig.probes[1].requests) == at + 9)
    assert door.ended() == 0, "something ended with open keys"
    left = len(rig.probes[0].left) + len(rig.probes[1].left)
    door.revoke("stolen")
    for r in waits + computes:
        refused(r)
    cut(streams["seen"][1])
    cut(streams["trailers"][1])
    # Envoy has closed that one's stream to the picker; nobody can say anything more.
    goes_on(streams["blind"])
    for s in others:
        goes_on(s)
    assert door.held() == 1, "what waits with another key"
    waits_on.close()
    poll("the log says how many", lambda: door.ended() == 8)
    counted = door.picker.metric('penstock_epp_refused_total{reason="invalid_api_key"}')
    assert counted == 8, f"{counted} counted"
    poll("the replicas noticed", lambda: len(rig.probes[0].left) + len(rig.probes[1].left) >= left + 6)
    poll("the places are given back", lambda: door.picker.in_flight() == 0 and door.held() == 0)
    return "8 requests ended; a stream whose headers had passed an Envoy without response bodies went on"


@case
def closed_key_at_both_doors(rig):
    """`serve` with the picker beside its gateway ends what came through either."""
    gateway = f"127.0.0.1:{free_port()}"
    door = Door(rig, "both", "--listen", gateway, command="serve")
    envoy = door.envoy("envoy-both")
    stolen, other = door.key("stolen"), door.key("other")
    door.known(3)
    ours, theirs = stream(gateway, stolen), stream(envoy.addr, stolen)
    others = [stream(gateway, other), stream(envoy.addr, other)]
    door.revoke("stolen")
    cut(theirs[1])
    last = b"".join(ours[1])
    assert b'"code":"invalid_api_key"' in last, last[-300:]
    for s in others:
        goes_on(s)
    poll("the log says how many", lambda: door.ended() == 2)
    return "an error event at the gateway, a cut connection behind Envoy"
