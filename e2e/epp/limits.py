# SPDX-License-Identifier: Apache-2.0
"""Who may enter behind Envoy, and on what terms: keys, quotas, caps and deadlines."""
import json
import subprocess

from rig import MODEL, PENSTOCK, Envoy, Picker, Raw, case, chat, free_port, get, poll, post

CONFIG = """\
auth: {keysFile: %(keys)s}
tenants:
  - name: few
    limits: [{per: 1h, requests: 2}]
  - name: waits
    queueCap: 1
  - name: hurry
    deadline: 1ms
  - name: alone
    cacheSalt: tenant
pools:
  - name: chat
    models: [{name: %(model)s}]
    replicas: {static: [%(replicas)s]}
  - name: probe
    models: [{name: probe}]
    replicas: {static: [%(probes)s]}
  - name: away
    models: [{name: away}]
    replicas: {static: ["http://127.10.0.99:%(port)d"]}
    route: {holdFor: 20s}
"""


def guarded(rig):
    """A picker that asks for keys, behind an Envoy of its own; made once."""
    if not hasattr(rig, "guarded"):
        keys, config = rig.path("keys.json"), rig.path("guarded.yaml")
        rig.keys = {t: subprocess.run([PENSTOCK, "key", "create", "--file", keys, "--tenant", t], check=True,
                                      capture_output=True, text=True).stdout.strip() for t in ("few", "waits", "hurry", "alone")}
        with open(config, "w") as f:
            f.write(CONFIG % {"keys": keys, "model": MODEL, "port": free_port("127.10.0.99"),
                              "replicas": ", ".join("http://" + r.addr for r in rig.replicas),
                              "probes": ", ".join("http://" + p.addr for p in rig.probes)})
        picker = Picker(rig, config, "guarded", "--scrape-interval", "300ms")
        rig.guarded = Envoy(rig, "envoy-guarded", [picker], rig.endpoints, "--fail-open")
        picker.ready()
        poll("the pools are ready", lambda: [p["ready"] for p in picker.status()["pools"]] == [3, 2, 0])
        poll("Envoy sees the picker", rig.guarded.picker_up)
        rig.guarded_picker = picker
    return rig.guarded


def ask(rig, tenant, body=None, **kw):
    status, headers, text = post(guarded(rig).addr, body or chat(), headers={"authorization": "Bearer " + rig.keys[tenant]}, **kw)
    return status, headers, json.loads(text)


@case
def keys_behind_envoy(rig):
    """Without a key nothing enters, also where Envoy fails open; a key of ours reaches no replica."""
    envoy = guarded(rig)
    for headers in ({}, {"authorization": "Bearer nonsense"}, {"x-api-key": "nonsense"}):
        status, got, body = post(envoy.addr, chat(model="probe"), headers=headers)
        assert status == 401 and got["www-authenticate"] and json.loads(body)["error"]["code"] == "invalid_api_key", (status, body)
    status, _, seen = ask(rig, "alone", chat(model="probe"))
    names = [k for k, _ in seen["headers"]]
    assert status == 200 and "authorization" not in names, names
    salt = json.loads(seen["start"]).get("cache_salt", "")
    assert len(salt) == 32, seen["start"]
    return "401 three times; the key is dropped and the tenant's salt set"


@case
def quota_behind_envoy(rig):
    """A quota ends in 429 in the shape of the API, with the reason and when to come back."""
    left = []
    for _ in range(2):
        status, headers, _ = ask(rig, "few")
        assert status == 200, status
        left.append(headers["x-ratelimit-remaining-requests"])
    assert left == ["1", "0"], left
    status, headers, body = ask(rig, "few")
    assert status == 429 and body["error"]["code"] == "rate_limit_exceeded", body
    assert int(headers["retry-after"]) > 1 and headers["x-penstock-dropped-reason"] == "rate_limit_exceeded", headers
    assert headers["x-llm-d-request-dropped-reason"] == "rejected-saturated" and headers["x-ratelimit-remaining-requests"] == "0", headers
    status, _, body = ask(rig, "few", path="/v1/messages")
    assert status == 429 and body["type"] == "error" and body["error"]["type"] == "rate_limit_error", body
    refused = rig.guarded_picker.metric('penstock_epp_refused_total{reason="rate_limit_exceeded"}')
    assert refused == 2, refused
    return f"429, Retry-After {headers['retry-after']} s"


@case
def queue_cap_behind_envoy(rig):
    """A tenant that has as many requests waiting as it may is refused at once."""
    guarded(rig)
    first = Raw.post(rig.guarded.addr, chat(model="away"), headers=f"authorization: Bearer {rig.keys['waits']}\r\n")
    poll("the first one waits", lambda: [p["held"] for p in rig.guarded_picker.status()["pools"]][2] == 1)
    status, headers, body = ask(rig, "waits", chat(model="away"))
    assert status == 429 and headers["retry-after"] == "1" and "waiting" in body["error"]["message"], (status, body)
    first.close()
    poll("whoever left waits no more", lambda: [p["held"] for p in rig.guarded_picker.status()["pools"]][2] == 0)
    return body["error"]["message"]


@case
def deadline_behind_envoy(rig):
    """What is predicted to be late is refused at once, as dropped."""
    status, headers, body = ask(rig, "hurry", chat("word " * 4000))
    assert status == 429 and body["error"]["code"] == "deadline_exceeded", (status, body)
    assert headers["x-llm-d-request-dropped-reason"] == "rejected-ttl-expired" and headers["retry-after"], headers
    assert get(guarded(rig).addr, "/v1/models", {"authorization": "Bearer " + rig.keys["hurry"]})[0] == 200
    return body["error"]["message"]
