# SPDX-License-Identifier: Apache-2.0
"""A pool whose replicas are moved by Penstock, by a real HPA and by a real KEDA.

    ENVOY=none PENSTOCK=bin/penstock python3 e2e/kube/scaling.py [CASE...]

Requests come to the gateway, the scaler of `penstock serve` decides, and what happens
to the Deployment is watched at the API server.
"""
import concurrent.futures
import glob
import json
import os
import subprocess
import sys
import threading
import time
import urllib.request

import api as k8s
from rig import PENSTOCK, Proc, case, chat, free_port, get, poll, post

ROOT = os.path.join(k8s.HERE, "..", "..")
NS = "models"
DEPLOYMENT = f"{k8s.APPS}/namespaces/{NS}/deployments"
HPAS = f"/apis/autoscaling/v2/namespaces/{NS}/horizontalpodautoscalers"
SCALED = f"/apis/keda.sh/v1alpha1/namespaces/{NS}/scaledobjects"
APISERVICES = "/apis/apiregistration.k8s.io/v1/apiservices"
OLD = not os.environ.get("KUBE_VERSION", "v1.37").startswith("v1.37")
KEDA = os.path.join(os.environ.get("PENSTOCK_CACHE", os.path.expanduser("~/.cache/penstock")), "kube", "keda-v2.21.0")


def start(rig):
    k8s.cluster(rig, "up", "kcm", "kwok")
    rig.api = a = k8s.Api(rig.path("cluster"))
    a.create("/api/v1/nodes", {"metadata": {"name": "node-0"}})
    for ns in (NS, "penstock"):
        a.create("/api/v1/namespaces", {"metadata": {"name": ns}})
    poll("the namespace has its service account", lambda: a.get(f"/api/v1/namespaces/{NS}/serviceaccounts/default"))
    rig.containers = k8s.Containers(a, NS, [rig.replica_port], {"llm": "sim"})
    rig.metrics = free_port()
    a.create("/api/v1/namespaces/penstock/services", {"metadata": {"name": "penstock-metrics"}, "spec": {
        "type": "ExternalName", "externalName": "localhost", "ports": [{"port": rig.metrics}]}})


class Fleet:
    """A Deployment of model servers, and Penstock in front of it."""

    def __init__(self, rig, hand, replicas=0, annotations=None, routers=1, share=False, **scale):
        self.rig, self.a, self.servers, self.seen = rig, rig.api, [], []
        self.a.create(DEPLOYMENT, {"apiVersion": "apps/v1", "kind": "Deployment", "metadata": {"name": "llm"}, "spec": {
            "replicas": replicas, "selector": {"matchLabels": {"app": "llm"}},
            "template": {"metadata": {"labels": {"app": "llm"}, "annotations": annotations or {}},
                         "spec": {"nodeName": "node-0", "containers": [{"name": "engine", "image": "vllm:none"}]}}}})
        self.share = [f"127.0.0.1:{free_port()}" for _ in range(routers)] if share else []
        self.scale = {"mode": "act", "hand": hand, "min": 0, "max": 20, "target": {"namespace": NS, "name": "llm"}, **scale}
        for i in range(routers):
            self.serve(i)
        self.stop = threading.Event()
        self.watcher = threading.Thread(target=self.watch, daemon=True)
        self.watcher.start()

    def serve(self, i=0):
        rig = self.rig
        s = type("Server", (), {"gateway": f"127.0.0.1:{free_port()}", "admin": f"127.0.0.1:{free_port()}", "keda": f"127.0.0.1:{free_port()}"})
        listen = {"http": s.gateway, "admin": s.admin}
        if self.scale["hand"] == "hpa":
            listen["metrics"] = f"127.0.0.1:{rig.metrics}"
        if self.scale["hand"] == "keda":
            listen["keda"] = s.keda
        config = {"listen": listen, "kubernetes": {"namespace": "penstock", "service": "penstock/penstock-metrics", "port": rig.metrics},
                  "pools": [{"name": "chat", "models": [{"name": "sim"}], "route": {"holdFor": "2m"}, "scale": self.scale,
                             "replicas": {"selector": {"namespace": NS, "labels": ["app=llm"], "port": rig.replica_port}}}]}
        if self.share:
            config["share"] = {"peers": ",".join(self.share), "listen": self.share[i]}
        file = rig.path(f"penstock-{len(rig.procs)}.yaml")
        with open(file, "w") as f:
            json.dump(config, f)
        s.config = file
        s.proc = Proc(rig, f"penstock-{len(rig.procs)}", [PENSTOCK, "serve", "--config", file, "--kubeconfig", rig.path("cluster/admin.kubeconfig"), "--scrape-interval", "500ms"])
        poll("the server is up", lambda: get(s.admin, "/healthz")[0] == 200)
        self.servers.append(s)
        return s

    def replicas(self):
        return self.a.get(f"{DEPLOYMENT}/llm")["spec"]["replicas"]

    def watch(self):
        """Remembers each number of replicas that was asked for, with its time."""
        while not self.stop.wait(0.02):
            try:
                n = self.replicas()
            except (OSError, RuntimeError):
                continue
            if not self.seen or self.seen[-1][1] != n:
                self.seen.append((time.monotonic(), n))

    def since(self, start):
        return [(round(t - start, 2), n) for t, n in self.seen if t >= start]

    def record(self, i=0):
        """The scaler's last word."""
        return json.loads(get(self.servers[i].admin, "/api/v1/scale/chat")[1])

    def close(self):
        self.stop.set()
        self.watcher.join()
        for s in self.servers:
            s.proc.kill()
        for path in (f"{SCALED}/llm", f"{HPAS}/llm"):
            try:
                self.a.delete(path)
            except RuntimeError:
                pass
        self.a.delete(f"{DEPLOYMENT}/llm")
        for path in (*(f"{APISERVICES}/{v}.metrics.k8s.io" for v in ("v1beta1.external", "v1beta1.custom", "v1beta2.custom") if self.scale["hand"] == "hpa"),
                     "/apis/coordination.k8s.io/v1/namespaces/penstock/leases/penstock-scaler", "/api/v1/namespaces/penstock/configmaps/penstock-scaler"):
            try:
                self.a.delete(path)
            except RuntimeError:
                pass
        poll("its pods are gone", lambda: not self.a.pods(NS, "app=llm"), 60)


def fleet(fn):
    """Gives a case a list that closes each fleet in it."""
    def run(rig):
        open_ones = []
        try:
            return fn(rig, lambda *a, **k: open_ones.append(Fleet(rig, *a, **k)) or open_ones[-1])
        finally:
            for f in open_ones:
                f.close()
    run.__name__ = fn.__name__
    return case(run)


def leads(f):
    poll("the scaler has spoken, and nobody else owns the object", lambda: "owner" not in f.record() and f.record()["hand"], 30, 0.2)


def act(f, what, body=b"", i=0):
    status, _, answer = post(f.servers[i].admin, body, path=f"/api/v1/scale/chat/{what}")
    assert status == 200, (status, answer)


def burst(f, n=24, tokens=400, to=0):
    """n requests at once to a pool without a replica, in the background."""
    body = chat("word " * 300, model="sim", max_tokens=tokens)
    pool = concurrent.futures.ThreadPoolExecutor(n)
    start = time.monotonic()
    return start, [pool.submit(post, f.servers[to].gateway, body) for _ in range(n)]


def answered(f, start, futures, limit=90):
    """All are answered; returns when the object left zero for more than one."""
    codes = [x.result(timeout=limit)[0] for x in futures]
    assert set(codes) == {200}, (codes, f.since(start))
    first = next((t for t, n in f.since(start) if n > 1), None)
    assert first is not None, f"never more than one replica: {f.since(start)}, {f.record()['sentence']}"
    return first


def hpa(a, least, most=20):
    a.create(HPAS, {"apiVersion": "autoscaling/v2", "kind": "HorizontalPodAutoscaler", "metadata": {"name": "llm"}, "spec": {
        "scaleTargetRef": {"apiVersion": "apps/v1", "kind": "Deployment", "name": "llm"}, "minReplicas": least, "maxReplicas": most,
        "metrics": [{"type": "External", "external": {"metric": {"name": "penstock_wanted_replicas", "selector": {"matchLabels": {"pool": "chat"}}},
                                                      "target": {"type": "AverageValue", "averageValue": "1"}}}],
        "behavior": {"scaleUp": {"policies": [{"type": "Pods", "value": 1000, "periodSeconds": 15}]},
                     "scaleDown": {"stabilizationWindowSeconds": 0}}}})


@fleet
def zero_by_scale(rig, fleet):
    """/scale: 0 -> N within two seconds of the first held request, all answered."""
    f = fleet("scale", annotations={"e2e/ready-after": "3s"})
    leads(f)
    took = answered(f, *burst(f))
    assert took < 2, f.since(0)
    return f"left zero for N after {took:.2f} s: {[n for _, n in f.seen]}"


@fleet
def zero_by_hpa(rig, fleet):
    """An HPA with minReplicas 0 wakes what it put to sleep (1.37); it goes to N at once."""
    if OLD:
        return "skipped: an HPA before 1.37 refuses minReplicas 0"
    f = fleet("hpa", replicas=1, annotations={"e2e/ready-after": "4s"})
    hpa(rig.api, 0)
    leads(f)
    act(f, "pin", b'{"replicas": 0}')
    poll("it sleeps", lambda: f.replicas() == 0, 60)
    act(f, "resume")
    poll("its last pod is gone", lambda: not rig.api.pods(NS, "app=llm"), 30)
    took = answered(f, *burst(f))
    return f"left zero for N after {took:.2f} s (the HPA looks every 2 s): {[n for _, n in f.seen]}"


@fleet
def zero_by_hpa_and_scale(rig, fleet):
    """An HPA that never goes to zero, as before 1.37: /scale goes through zero."""
    f = fleet("hpa", replicas=0, wake="scale", annotations={"e2e/ready-after": "3s"})
    hpa(rig.api, 1)
    leads(f)
    took = answered(f, *burst(f))
    assert took < 2, f.seen
    return f"left zero for N after {took:.2f} s: {[n for _, n in f.seen]}"


@fleet
def pending_never_ready(rig, fleet):
    """Replicas that never come are not asked for again and again."""
    f = fleet("scale", annotations={"e2e/never-ready": "1"})
    leads(f)
    start, futures = burst(f)
    poll("it left zero", lambda: f.replicas() > 0, 10)
    time.sleep(3)
    first = f.replicas()
    time.sleep(40)
    last = f.replicas()
    assert last <= first, f"{first} replicas became {last}: {f.since(start)}"
    for s in f.servers:
        s.proc.kill()  # the held requests end with it
    for x in futures:
        x.exception()
    return f"{first} replicas for 40 s, none ready: {f.since(start)}"


@fleet
def leader_killed(rig, fleet):
    """Two Penstocks: one acts; killed in a burst, the other goes on and nothing falls."""
    f = fleet("scale", replicas=2, routers=2)
    lead = lead_of(f)
    other = f.record(1 - lead)
    assert "another Penstock" in other["owner"], other
    act(f, "pin", b'{"replicas": 5}', lead)
    poll("the leader acts", lambda: f.replicas() == 5, 20)
    start = time.monotonic()
    f.servers[lead].proc.kill()
    act(f, "pin", b'{"replicas": 7}', 1 - lead)
    poll("the other one acts", lambda: f.replicas() == 7, 40)
    took = time.monotonic() - start
    after = [n for _, n in f.since(start)]
    assert all(n >= 5 for n in after), after
    return f"taken over after {took:.1f} s; {after}"


def lead_of(f):
    """Which of two Penstocks leads; the other one says that it does not."""
    poll("one leads", lambda: sum("owner" not in f.record(i) for i in (0, 1)) == 1, 30, 0.2)
    return 0 if "owner" not in f.record(0) else 1


@fleet
def follower_wakes(rig, fleet):
    """Requests that are held at a router that does not lead wake the pool through the one that does."""
    f = fleet("scale", annotations={"e2e/ready-after": "3s"}, routers=2, share=True)
    lead = lead_of(f)
    follower = 1 - lead
    poll("the leader hears the other one, which takes requests", lambda: get(f.servers[follower].admin, "/readyz")[0] == 200, 30, 0.1)
    assert f.replicas() == 0 and lead == lead_of(f), f.seen
    took = answered(f, *burst(f, to=follower))
    assert took < 2, f.since(0)
    assert lead == lead_of(f), "another one leads now"
    return f"held at the follower, left zero for N after {took:.2f} s: {[n for _, n in f.seen]}"


@fleet
def start_up_is_remembered(rig, fleet):
    """What one process learned of start-ups is there for the next one."""
    f = fleet("scale", annotations={"e2e/ready-after": "6s"})
    leads(f)
    believed = f.record()["start_p50_s"]
    act(f, "pin", b'{"replicas": 4}')
    poll("4 are ready", lambda: f.record()["ready"] == 4, 30, 0.2)
    learned = f.record()["start_p50_s"]
    kept = poll("they are kept", lambda: json.loads(rig.api.get("/api/v1/namespaces/penstock/configmaps/penstock-scaler")["data"]["chat"]).get("starts_s"), 40, 0.5)
    f.servers[0].proc.kill()
    f.servers[0] = f.serve(1)
    f.servers.pop()
    poll("the next one has spoken", lambda: "start_p50_s" in f.record(), 30, 0.2)
    after = f.record()["start_p50_s"]
    assert after == learned < believed / 2, (believed, learned, kept, after)
    return f"believed {believed:.0f} s, learned {learned:.1f} s, the next one begins with {after:.1f} s"


@fleet
def owned_by_a_person(rig, fleet):
    """kubectl scale stops it, it says who, and it waits to be told."""
    f = fleet("scale", replicas=1)
    leads(f)
    act(f, "pin", b'{"replicas": 3}')
    poll("it acts", lambda: f.replicas() == 3, 20)
    kubectl(rig, "-n", NS, "scale", "deployment/llm", "--replicas=6")
    poll("it sees who", lambda: "kubectl" in f.record().get("owner", ""), 30, 0.2)
    time.sleep(8)
    assert f.replicas() == 6, f.seen
    said = f.record()["owner"]
    act(f, "resume")
    act(f, "pin", b'{"replicas": 3}')
    poll("told, it acts again", lambda: f.replicas() == 3, 30)
    return said


@fleet
def scraped_without_the_gateway(rig, fleet):
    """With Penstock killed every replica still answers a scrape."""
    f = fleet("scale", replicas=3)
    poll("3 replicas are ready", lambda: json.loads(get(f.servers[0].admin, "/api/v1/status")[1])["pools"][0]["ready"] == 3, 30)
    f.servers[0].proc.kill()
    ips = [p["status"]["podIP"] for p in rig.api.pods(NS, "app=llm")]
    for ip in ips:
        assert b"vllm:num_requests_running" in urllib.request.urlopen(f"http://{ip}:{rig.replica_port}/metrics", timeout=5).read()
    return f"{len(ips)} replicas"


@fleet
def preflight(rig, fleet):
    """penstock check sees conflicts, and what it finds good is good."""
    f = fleet("hpa", replicas=1)
    hpa(rig.api, 1)
    poll("one replica is ready", lambda: json.loads(get(f.servers[0].admin, "/api/v1/status")[1])["pools"][0]["ready"] == 1, 30)

    def check():
        out = subprocess.run([PENSTOCK, "check", "--config", f.servers[0].config, "--kubeconfig", rig.path("cluster/admin.kubeconfig"), "-o", "json"], capture_output=True, text=True)
        seen = {}
        for c in json.loads(out.stdout)["checks"]:
            seen.setdefault(c["name"], []).append(c)
        return out.returncode, seen
    code, seen = check()
    assert code == 3 and seen["zero"][0]["result"] == "fail", seen  # min 0, and this HPA never goes there
    bad = [c for n in ("engines", "metrics-fresh", "target", "one-scaler", "rights", "metrics-api") for c in seen[n] if c["result"] != "pass"]
    assert not bad, bad
    rig.api.create(HPAS, {"metadata": {"name": "second"}, "spec": {"scaleTargetRef": {"apiVersion": "apps/v1", "kind": "Deployment", "name": "llm"}, "maxReplicas": 3, "metrics": [
        {"type": "Resource", "resource": {"name": "cpu", "target": {"type": "Utilization", "averageUtilization": 80}}}]}})
    code, seen = check()
    rig.api.delete(f"{HPAS}/second")
    assert seen["one-scaler"][0]["result"] == "fail" and "second" in seen["one-scaler"][0]["detail"], seen
    assert any("CPU" in c["detail"] and c["result"] == "fail" for c in seen["autoscaler"]), seen
    out = subprocess.run([PENSTOCK, "check", "stack", "--namespace", NS, "--kubeconfig", rig.path("cluster/admin.kubeconfig")], capture_output=True, text=True, check=True).stdout
    return "; ".join(sorted(seen)) + f"; stack: {len(out.splitlines())} lines"


@case
def manifests(rig):
    """Every object of the rendered manifests is taken by the API server, dry and for real."""
    rig.api.create("/apis/apiextensions.k8s.io/v1/customresourcedefinitions", {
        "apiVersion": "apiextensions.k8s.io/v1", "kind": "CustomResourceDefinition", "metadata": {"name": "servicemonitors.monitoring.coreos.com"},
        "spec": {"group": "monitoring.coreos.com", "scope": "Namespaced", "names": {"kind": "ServiceMonitor", "plural": "servicemonitors", "singular": "servicemonitor"},
                 "versions": [{"name": "v1", "served": True, "storage": True, "schema": {"openAPIV3Schema": {"type": "object", "x-kubernetes-preserve-unknown-fields": True}}}]}})
    if os.path.isdir(os.path.join(KEDA, "crds")):
        kubectl(rig, "apply", "--server-side", "-f", os.path.join(KEDA, "crds"))
    kubectl(rig, "wait", "--for", "condition=Established", "--all", "crd", "--timeout=30s")
    kubectl(rig, "-n", "penstock", "delete", "service", "penstock-metrics")
    done = []
    for file in sorted(glob.glob(os.path.join(ROOT, "deploy/manifests/*.yaml"))):
        if "keda" in file and not os.path.isdir(os.path.join(KEDA, "crds")):
            continue
        for dry in (["--dry-run=server"], []):
            out = kubectl(rig, "apply", "--server-side", "--force-conflicts", "--validate=strict", *dry, "-f", file)
        done.append(f"{os.path.basename(file)} {len(out.splitlines())}, {rights_of_the_account(rig)}")
        kubectl(rig, "delete", "--wait=false", "-f", file)
    rig.api.create("/api/v1/namespaces/penstock/services", {"metadata": {"name": "penstock-metrics"}, "spec": {
        "type": "ExternalName", "externalName": "localhost", "ports": [{"port": rig.metrics}]}})
    return "objects applied: " + ", ".join(done)


def rights_of_the_account(rig):
    """What the account of the manifests may do is all that their configuration needs."""
    with open(rig.path("account.yaml"), "w") as f:
        f.write(rig.api.get("/api/v1/namespaces/penstock/configmaps/penstock")["data"]["penstock.yaml"])
    token = rig.api.create("/api/v1/namespaces/penstock/serviceaccounts/penstock/token", {"spec": {"expirationSeconds": 600}})["status"]["token"]
    rig.api.kubeconfig(rig.path("account.kubeconfig"), token, "penstock")
    out = subprocess.run([PENSTOCK, "check", "--config", rig.path("account.yaml"), "--kubeconfig", rig.path("account.kubeconfig"), "--wait", "200ms", "-o", "json"], capture_output=True, text=True)
    rights = [c for c in json.loads(out.stdout)["checks"] if c["name"] == "rights"]
    assert [c["result"] for c in rights] == ["pass"], (rights, out.stderr)
    return "rights: " + rights[0]["detail"].split(" that")[0]


@fleet
def zero_by_keda(rig, fleet):
    """KEDA: to one at once, to N with the next look of its HPA; all answered."""
    if not os.access(os.path.join(KEDA, "keda-adapter"), os.X_OK):
        return "skipped: e2e/kube/build-keda.sh builds KEDA"
    k8s.cluster(rig, "start", "keda-operator")
    k8s.cluster(rig, "start", "keda-adapter")
    poll("KEDA's metrics API is available", lambda: any(c["type"] == "Available" and c["status"] == "True" for c in rig.api.get(APISERVICES + "/v1beta1.external.metrics.k8s.io")["status"]["conditions"]), 30)
    f = fleet("keda", annotations={"e2e/ready-after": "5s"})
    rig.api.create(SCALED, {"apiVersion": "keda.sh/v1alpha1", "kind": "ScaledObject", "metadata": {"name": "llm"}, "spec": {
        "scaleTargetRef": {"name": "llm"}, "pollingInterval": 2, "cooldownPeriod": 5, "minReplicaCount": 0, "maxReplicaCount": 20,
        "advanced": {"horizontalPodAutoscalerConfig": {"behavior": {"scaleUp": {"policies": [{"type": "Pods", "value": 1000, "periodSeconds": 15}]}}}},
        "triggers": [{"type": "external-push", "metricType": "AverageValue", "metadata": {"scalerAddress": f.servers[0].keda, "pool": "chat"}}]}})
    leads(f)
    time.sleep(3)
    start, futures = burst(f)
    took = answered(f, start, futures)
    one = next(t for t, n in f.since(start) if n > 0)
    assert one < 2, f.since(start)
    return f"left zero after {one:.2f} s, N after {took:.2f} s: {[n for _, n in f.seen]}"


def kubectl(rig, *args):
    binary = os.path.join(os.path.dirname(KEDA), "bin-" + os.environ.get("KUBE_VERSION", "v1.37.2"), "kubectl")
    out = subprocess.run([binary, "--kubeconfig", rig.path("cluster/admin.kubeconfig"), *args], capture_output=True, text=True)
    assert out.returncode == 0, out.stderr
    return out.stdout


if __name__ == "__main__":
    sys.exit(1 if k8s.run(start) else 0)
