# SPDX-License-Identifier: Apache-2.0
"""Replicas as pods of a real API server.

    ENVOY=PATH PENSTOCK=bin/penstock python3 e2e/kube/run.py [CASE...]
"""
import glob
import json
import os
import socket
import subprocess
import sys
import time

import api as k8s
from backend import Backend
from rig import PENSTOCK, Envoy, Load, Proc, Raw, case, chat, free_port, get, poll, post, tally

NS = "models"
PODS = f"/api/v1/namespaces/{NS}/pods"
DEPLOYMENT = f"{k8s.APPS}/namespaces/{NS}/deployments"
RBAC = f"/apis/rbac.authorization.k8s.io/v1/namespaces/{NS}"


def deployment(app, replicas):
    return {"apiVersion": "apps/v1", "kind": "Deployment", "metadata": {"name": app},
            "spec": {"replicas": replicas, "selector": {"matchLabels": {"app": app}},
                     "strategy": {"rollingUpdate": {"maxSurge": "25%", "maxUnavailable": 0}},
                     "template": {"metadata": {"labels": {"app": app}},
                                  "spec": {"nodeName": "node-0", "containers": [{"name": "engine", "image": "none"}]}}}}


def start(rig):
    a = k8s.up(rig, NS)
    crd = glob.glob(os.path.join(os.environ["INFERENCE_EXTENSION"], "config/crd/bases/inference.networking.k8s.io_inferencepools.yaml"))
    with open(crd[0]) as f:
        a.apply_yaml("/apis/apiextensions.k8s.io/v1/customresourcedefinitions", f.read(), "inferencepools.inference.networking.k8s.io")
    poll("the API server serves InferencePools", lambda: a.get(f"{k8s.POOLS}/namespaces/{NS}/inferencepools")["items"] == [])
    account(rig)
    rig.ports = [rig.replica_port, free_port("127.10.0.1")]
    rig.containers = k8s.Containers(a, NS, rig.ports, {"vllm": "sim", "sglang": "other"})
    a.create(DEPLOYMENT, deployment("vllm", 3))
    a.create(DEPLOYMENT, deployment("sglang", 2))
    rig.admin, rig.gateway, rig.epp = (f"127.0.0.1:{free_port()}" for _ in range(3))
    rig.config = rig.path("penstock.yaml")
    with open(rig.config, "w") as f:
        # A short journal: its records fill up to a bound of their own, which would hide
        # what churn costs.
        f.write(f"""\
journal: {{memory: 300}}
kubernetes: {{events: true}}
pools:
  - name: by-selector
    replicas: {{selector: {{namespace: {NS}, labels: [app=vllm], port: {rig.ports[0]}}}}}
  - name: by-pool
    models: [{{name: other}}]
    replicas: {{inferencePool: {NS}/chat}}
""")
    rig.server = Proc(rig, "penstock", [PENSTOCK, "serve", "--config", rig.config, "--kubeconfig", rig.kubeconfig, "--listen", rig.gateway,
                                        "--admin", rig.admin, "--epp", rig.epp, "--scrape-interval", "1s"])
    rig.addr = rig.epp
    rig.envoy = Envoy(rig, "envoy", [type("Picker", (), {"addr": rig.epp})], [f"127.10.0.{i}:{rig.ports[0]}" for i in range(1, 255)])


def account(rig):
    """A service account with no more rights than docs/how-to/behind-envoy.md gives it."""
    rig.kubeconfig = rights(rig, "penstock", [
        {"apiGroups": [""], "resources": ["pods"], "verbs": ["list", "watch"]},
        {"apiGroups": ["discovery.k8s.io"], "resources": ["endpointslices"], "verbs": ["list", "watch"]},
        {"apiGroups": [""], "resources": ["events"], "verbs": ["create", "patch"]},
        {"apiGroups": ["inference.networking.k8s.io"], "resources": ["inferencepools"], "resourceNames": ["chat"], "verbs": ["list", "watch"]},
        {"apiGroups": ["llm-d.ai"], "resources": ["inferenceobjectives", "inferencemodelrewrites"], "verbs": ["list"]}])


def rights(rig, name, rules):
    """Makes a service account with the rules; returns its kubeconfig."""
    a = rig.api
    a.create(f"/api/v1/namespaces/{NS}/serviceaccounts", {"metadata": {"name": name}})
    a.create(f"{RBAC}/roles", {"metadata": {"name": name}, "rules": rules})
    a.create(f"{RBAC}/rolebindings", {"metadata": {"name": name}, "roleRef": {"apiGroup": "rbac.authorization.k8s.io", "kind": "Role", "name": name},
                                      "subjects": [{"kind": "ServiceAccount", "name": name, "namespace": NS}]})
    token = a.create(f"/api/v1/namespaces/{NS}/serviceaccounts/{name}/token", {"spec": {"expirationSeconds": 7200}})["status"]["token"]
    out = rig.path(name + ".kubeconfig")
    a.kubeconfig(out, token, NS)
    return out


def pool(rig, name):
    st = json.loads(get(rig.admin, "/api/v1/status")[1])
    return next(p for p in st["pools"] if p["name"] == name)


def ready(rig, name, n):
    poll(f"{name} has {n} ready replicas", lambda: pool(rig, name)["ready"] == n and pool(rig, name)["replicas"] == n, every=0.2)


@case
def by_selector(rig):
    """Pods by a plain label selector, without any CRD."""
    ready(rig, "by-selector", 3)
    status, _, body = post(rig.gateway, chat(model="sim"))
    assert status == 200 and json.loads(body)["server"].startswith("127.10.0."), body
    poll("Envoy sees the picker", rig.envoy.picker_up)
    status, _, body = post(rig.envoy.addr, chat(model="sim"))
    assert status == 200, (status, body)
    ids = [r["id"] for r in pool(rig, "by-selector")["endpoints"]]
    assert all(i.startswith(NS + "/vllm-") for i in ids), ids
    return "3 pods, through the gateway and through Envoy: " + ids[0] + " ..."


@case
def by_inference_pool(rig):
    """An InferencePool that comes later, changes its ports, and says its failure mode."""
    p = pool(rig, "by-pool")
    assert p["replicas"] == 0 and not p["control_plane"].get("failure_mode"), p
    path = f"{k8s.POOLS}/namespaces/{NS}/inferencepools"
    rig.api.create(path, {"apiVersion": "inference.networking.k8s.io/v1", "kind": "InferencePool", "metadata": {"name": "chat"}, "spec": {
        "selector": {"matchLabels": {"app": "sglang"}}, "targetPorts": [{"number": rig.ports[0]}],
        "endpointPickerRef": {"name": "penstock", "port": {"number": 9002}}}})
    ready(rig, "by-pool", 2)
    mode = pool(rig, "by-pool")["control_plane"]["failure_mode"]
    # The CRD has a default, so the API server fills in what nobody set.
    assert mode.startswith("FailClose"), mode
    rig.api.patch(path + "/chat", {"spec": {"endpointPickerRef": {"failureMode": "FailOpen"}}})
    poll("the failure mode is shown", lambda: pool(rig, "by-pool")["control_plane"]["failure_mode"] == "FailOpen")
    rig.api.patch(path + "/chat", {"spec": {"targetPorts": [{"number": n} for n in rig.ports]}})
    ready(rig, "by-pool", 4)
    ranks = sorted((r["id"][-2:], r["rank"]) for r in pool(rig, "by-pool")["endpoints"])
    assert ranks == [("#0", 0), ("#0", 0), ("#1", 1), ("#1", 1)], ranks
    pod = rig.api.pods(NS, "app=sglang")[0]["metadata"]["name"]
    rig.api.patch(f"{PODS}/{pod}", {"metadata": {"annotations": {"inference.networking.k8s.io/active-ports": str(rig.ports[1])}}})
    ready(rig, "by-pool", 3)
    assert post(rig.gateway, chat(model="other"))[0] == 200
    out = subprocess.run([PENSTOCK, "status", "--server", "http://" + rig.admin], capture_output=True, text=True, check=True).stdout
    assert "picker penstock:9002, FailOpen" in out, out
    return f"2 pods x 2 ports, one switched off by annotation; failure mode {mode}, then FailOpen"


@case
def objects_of_llm_d(rig):
    """InferenceObjective and InferenceModelRewrite, where a cluster has them, are read."""
    for kind in ("InferenceObjective", "InferenceModelRewrite"):
        name = kind.lower() + "s"
        rig.api.create("/apis/apiextensions.k8s.io/v1/customresourcedefinitions", {
            "apiVersion": "apiextensions.k8s.io/v1", "kind": "CustomResourceDefinition", "metadata": {"name": f"{name}.llm-d.ai"},
            "spec": {"group": "llm-d.ai", "scope": "Namespaced", "names": {"kind": kind, "plural": name, "singular": kind.lower()},
                     "versions": [{"name": "v1alpha2", "served": True, "storage": True, "schema": {"openAPIV3Schema": {
                         "type": "object", "x-kubernetes-preserve-unknown-fields": True}}}]}})
    path = f"/apis/llm-d.ai/v1alpha2/namespaces/{NS}"
    poll("the API server serves them", lambda: rig.api.get(f"{path}/inferencemodelrewrites")["items"] == [])
    rig.api.create(f"{path}/inferencemodelrewrites", {"apiVersion": "llm-d.ai/v1alpha2", "kind": "InferenceModelRewrite", "metadata": {"name": "r"},
                   "spec": {"poolRef": {"name": "chat"}, "rules": [{"matches": [{"model": {"type": "Exact", "value": "public-name"}}],
                                                                    "targets": [{"modelRewrite": "other"}]}]}})
    assert post(rig.envoy.addr, chat(model="public-name"))[0] in (200, 404)
    status, _, body = poll("the rewrite is in force", lambda: (lambda r: r if r[0] == 200 else None)(post(rig.envoy.addr, chat(model="public-name"))), every=0.5)
    assert '"model": "other"' in json.loads(body)["start"], body
    return "a public name is rewritten to the engine's"


@case
def readiness_and_deletion(rig):
    """A pod that is not ready gets nothing; one that is deleted finishes its stream."""
    name = rig.api.pods(NS, "app=sglang")[1]["metadata"]["name"]
    conditions = {"status": {"conditions": [{"type": "Ready", "status": "False"}]}}
    # kwok makes it ready again, as a kubelet would, once it may.
    rig.api.patch(f"{PODS}/{name}", {"metadata": {"annotations": {"e2e/never-ready": "1"}}})
    rig.api.patch(f"{PODS}/{name}/status", conditions)
    poll("the pod is out", lambda: all(name not in r["id"] for r in pool(rig, "by-pool")["endpoints"]), every=0.02)
    rig.api.patch(f"{PODS}/{name}", {"metadata": {"annotations": {"e2e/never-ready": None}}})
    ready(rig, "by-pool", 3)
    streams = [Raw.post(rig.envoy.addr, chat(f"stream {i}", model="sim", stream=True), path="/v1/chat/completions?sse=15&gap=0.1") for i in range(6)]
    for s in streams:
        assert s.head()[0] == 200
    serving = rig.containers.requests[-1]["server"].rsplit(":", 1)[0]
    victim = next(p["metadata"]["name"] for p in rig.api.pods(NS, "app=vllm") if p["status"]["podIP"] == serving)
    # It stays until it was seen to drain, as it would while a kubelet ends its containers.
    rig.api.patch(f"{PODS}/{victim}", {"metadata": {"finalizers": ["e2e/stays"]}})
    rig.api.delete(f"{PODS}/{victim}")
    poll("it drains", lambda: any(victim in e["id"] and e["phase"] == "draining" for e in pool(rig, "by-selector")["endpoints"]), every=0.02)
    rig.api.patch(f"{PODS}/{victim}", {"metadata": {"finalizers": None}})
    for s in streams:
        assert b"[DONE]" in b"".join(s.chunks()), "a stream was cut"
        s.close()
    ready(rig, "by-selector", 3)
    return "out while not ready; drains while it is deleted, its streams are finished"


@case
def endpoint_slices(rig):
    """What an EndpointSlice says of a pod counts: not ready is out, terminating drains."""
    slices = f"/apis/discovery.k8s.io/v1/namespaces/{NS}/endpointslices"
    p = rig.api.pods(NS, "app=vllm")[0]
    name = p["metadata"]["name"]

    def says(**conditions):
        # The API server takes no loopback address here; it is the reference that counts.
        return {"endpoints": [{"addresses": ["192.0.2.10"], "conditions": conditions,
                               "targetRef": {"kind": "Pod", "namespace": NS, "name": name, "uid": p["metadata"]["uid"]}}]}
    rig.api.create(slices, {"metadata": {"name": "by-hand"}, "addressType": "IPv4", **says(ready=False)})
    poll("the pod is out", lambda: all(name not in e["id"] for e in pool(rig, "by-selector")["endpoints"]), every=0.05)
    rig.api.patch(f"{slices}/by-hand", says(ready=False, serving=True, terminating=True))
    poll("it drains", lambda: any(name in e["id"] and e["phase"] == "draining" for e in pool(rig, "by-selector")["endpoints"]), every=0.05)
    rig.api.delete(f"{slices}/by-hand")
    ready(rig, "by-selector", 3)
    return "out, draining, and back once no slice names it"


@case
def endpoints_of_a_service(rig):
    """The endpoints of a Service, with the right to see EndpointSlices and nothing else."""
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as s:
        try:
            s.connect(("198.51.100.1", 9))  # nothing is sent
            own = s.getsockname()[0]
        except OSError:
            return "skipped: this machine has no address but loopback, which no EndpointSlice may name"
    engine = Backend(f"{own}:{free_port(own)}", "sim")
    port = int(engine.addr.rsplit(":", 1)[1])
    conf = rights(rig, "slices-only", [{"apiGroups": ["discovery.k8s.io"], "resources": ["endpointslices"], "verbs": ["list", "watch"]}])
    slices = f"/apis/discovery.k8s.io/v1/namespaces/{NS}/endpointslices"

    def says(**conditions):
        return {"endpoints": [{"addresses": [own], "conditions": conditions, "targetRef": {"kind": "Pod", "namespace": NS, "name": "engine-0"}}]}
    rig.api.create(slices, {"metadata": {"name": "engines-1", "labels": {"kubernetes.io/service-name": "engines"}}, "addressType": "IPv4",
                            "ports": [{"port": port}], **says(ready=True)})
    admin, gateway = f"127.0.0.1:{free_port()}", f"127.0.0.1:{free_port()}"
    proc = Proc(rig, "by-service", [PENSTOCK, "serve", "--selector", "kubernetes.io/service-name=engines", "--port", str(port),
                                    "--kubeconfig", conf, "--listen", gateway, "--admin", admin])

    def phases():
        return [(e["id"], e["phase"]) for e in json.loads(get(admin, "/api/v1/status")[1])["pools"][0]["endpoints"]]
    poll("the endpoint is ready", lambda: phases() == [(NS + "/engine-0", "ready")], every=0.05)
    assert post(gateway, chat(model="sim"))[0] == 200
    rig.api.patch(f"{slices}/engines-1", says(ready=False, serving=True, terminating=True))
    poll("it drains", lambda: phases() == [(NS + "/engine-0", "draining")], every=0.05)
    rig.api.patch(f"{slices}/engines-1", says(ready=False))
    poll("it is out", lambda: phases() == [], every=0.05)
    rig.api.patch(f"{slices}/engines-1", says())
    poll("an endpoint without conditions is ready", lambda: phases() == [(NS + "/engine-0", "ready")], every=0.05)
    proc.kill()
    engine.close()
    with open(proc.log) as f:
        assert "forbidden" not in f.read(), "more rights are needed"
    return "ready, terminating, not ready and unset are followed"


@case
def suite_against_pods(rig):
    out = subprocess.run([PENSTOCK, "check", "epp", rig.epp, "--model", "sim", "--timeout", "10s", "-o", "json"], capture_output=True, text=True)
    rep = json.loads(out.stdout)
    bad = [f"{c['name']}: {c['detail']}" for c in rep["checks"] if c["result"] != "pass"]
    assert out.returncode == 0 and not bad, bad
    return f"{rep['passed']} checks passed"


@case
def hundred_pods_replaced(rig):
    """A rollout of a hundred pods under load, through both doors."""
    rig.api.patch(f"{DEPLOYMENT}/vllm", {"spec": {"replicas": 100}})
    ready(rig, "by-selector", 100)
    before = {e["id"] for e in pool(rig, "by-selector")["endpoints"]}
    memory = rig.server.memory("VmRSS")
    loads = [Load(rig.gateway, clients=3, body=chat(model="sim")), Load(rig.envoy.addr, clients=3, body=chat(model="sim"))]
    time.sleep(1)
    start = time.monotonic()
    rig.api.patch(f"{DEPLOYMENT}/vllm", {"spec": {"template": {"metadata": {"annotations": {"rollout": "1"}}}}})
    poll("every pod is a new one", lambda: not before & {e["id"] for e in pool(rig, "by-selector")["endpoints"]}, 150, 0.3)
    ready(rig, "by-selector", 100)
    took = time.monotonic() - start
    for load in loads:
        load.end()
    assert rig.containers.failed is None, rig.containers.failed
    for door, load in zip(("gateway", "Envoy"), loads):
        assert {s[2] for s in load.seen} == {200}, f"{door}: {tally(load.seen)}"
    grown = rig.server.memory("VmRSS") - memory
    assert grown < 60, f"grew by {grown:.0f} MiB"
    return f"in {took:.0f} s: gateway {tally(loads[0].seen)}, Envoy {tally(loads[1].seen)}; {grown:+.0f} MiB"


@case
def findings_as_events(rig):
    """What is wrong is said alike by the API, the command and an Event on the object."""
    rig.api.patch(f"{DEPLOYMENT}/sglang", {"spec": {"replicas": 0}})
    poll("the pool is empty", lambda: pool(rig, "by-pool")["replicas"] == 0, every=0.2)

    def codes(text):
        return {(f["code"], f["object"]) for f in json.loads(text)["findings"]}
    want = ("no-ready-replica", "pool by-pool")
    poll("the finding is there", lambda: want in codes(get(rig.admin, "/api/v1/findings")[1]))
    out = subprocess.run([PENSTOCK, "diagnose", "--server", "http://" + rig.admin, "-o", "json"], capture_output=True, text=True)
    assert out.returncode == 3 and want in codes(out.stdout), out.stdout

    def event():
        return next((e for e in rig.api.get(f"/api/v1/namespaces/{NS}/events")["items"]
                     if e["reason"] == "NoReadyReplica" and e["involvedObject"]["name"] == "chat"), None)
    e = poll("the Event is there", event, every=0.5)
    assert e["involvedObject"]["kind"] == "InferencePool" and e["type"] == "Warning" and e["source"]["component"] == "penstock", e
    rig.api.patch(f"{DEPLOYMENT}/sglang", {"spec": {"replicas": 2}})
    poll("the finding is gone", lambda: want not in codes(get(rig.admin, "/api/v1/findings")[1]), every=0.5)
    return e["message"]


@case
def lint_asks_the_cluster(rig):
    """A fix is held against the API server, which knows more than the rules."""
    good = rig.path("hpa.yaml")
    with open(good, "w") as f:
        f.write(f"""\
apiVersion: autoscaling/v2
kind: HorizontalPodAutoscaler
metadata: {{name: vllm, namespace: {NS}}}
spec:
  scaleTargetRef: {{apiVersion: apps/v1, kind: Deployment, name: vllm}}
  minReplicas: 1
  maxReplicas: 8
  metrics:
    - type: Resource
      resource: {{name: cpu, target: {{type: Utilization, averageUtilization: 70}}}}
""")
    conf = os.path.join(rig.path("cluster"), "admin.kubeconfig")
    run = [PENSTOCK, "lint", "--fix", "--validate", "server", "--kubeconfig", conf]
    out = subprocess.run([*run, good], capture_output=True, text=True)
    assert "would take it (dry run)" in out.stderr and out.stdout.startswith("---"), (out.stdout, out.stderr)
    bad = rig.path("bad.yaml")
    with open(good) as f, open(bad, "w") as g:
        g.write(f.read().replace("minReplicas: 1", "nobodyReadsThis: 1"))
    out = subprocess.run([*run, bad], capture_output=True, text=True)
    assert "with and without the fix" in out.stderr and "nobodyReadsThis" in out.stderr, out.stderr
    assert rig.api.get(f"/apis/autoscaling/v2/namespaces/{NS}/horizontalpodautoscalers")["items"] == [], "a dry run left something behind"
    return "accepted, and a field that the API does not know is said"


@case
def control_plane_away(rig):
    """Without an API server the last list serves on, and the status says since when."""
    rig.api.patch(f"{DEPLOYMENT}/vllm", {"spec": {"replicas": 3}})
    ready(rig, "by-selector", 3)
    k8s.cluster(rig, "stop", "kube-apiserver")
    fault = poll("the outage is noticed", lambda: pool(rig, "by-selector")["control_plane"].get("fault"), every=0.2)
    load = Load(rig.gateway, clients=2, body=chat(model="sim"))
    time.sleep(4)
    load.end()
    p = pool(rig, "by-selector")
    assert {s[2] for s in load.seen} == {200}, tally(load.seen)
    assert p["ready"] == 3 and p["control_plane"]["age_ms"] > 3000, p["control_plane"]
    out = subprocess.run([PENSTOCK, "status", "--server", "http://" + rig.admin], capture_output=True, text=True, check=True).stdout
    assert "API server AWAY for" in out, out
    k8s.cluster(rig, "start", "kube-apiserver")
    rig.api.patch(f"{DEPLOYMENT}/vllm", {"spec": {"replicas": 5}})
    ready(rig, "by-selector", 5)
    poll("the outage is over", lambda: not pool(rig, "by-selector")["control_plane"].get("fault"))
    return f"{tally(load.seen)} meanwhile, age {p['control_plane']['age_ms'] / 1e3:.1f} s ({fault[:60]}); changes are followed again"


if __name__ == "__main__":
    sys.exit(1 if k8s.run(start) else 0)
