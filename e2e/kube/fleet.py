# SPDX-License-Identifier: Apache-2.0
"""A cluster, a Deployment of model servers in it, and Penstock in front of them: what
the cases of scaling.py and traps.py are made of.
"""
import concurrent.futures
import json
import os
import subprocess
import threading
import time

import api as k8s
from rig import PENSTOCK, Proc, case, chat, free_port, get, poll, post

ROOT = os.path.join(k8s.HERE, "..", "..")
NS = "models"
DEPLOYMENT = f"{k8s.APPS}/namespaces/{NS}/deployments"
HPAS = f"/apis/autoscaling/v2/namespaces/{NS}/horizontalpodautoscalers"
SCALED = f"/apis/keda.sh/v1alpha1/namespaces/{NS}/scaledobjects"
APISERVICES = "/apis/apiregistration.k8s.io/v1/apiservices"
OLD = not os.environ.get("KUBE_VERSION", "v1.37").startswith("v1.37")
CACHE = os.path.join(os.environ.get("PENSTOCK_CACHE", os.path.expanduser("~/.cache/penstock")), "kube")
KEDA = os.path.join(CACHE, "keda-v2.21.0")


def start(rig):
    a = k8s.up(rig, NS, "penstock")
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
        poll("its pods are gone", lambda: not self.a.pods(NS, "app=llm"))


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
    poll("the scaler has spoken, and nobody else owns the object", lambda: "owner" not in f.record() and f.record()["hand"], every=0.2)


def act(f, what, body=b"", i=0):
    status, _, answer = post(f.servers[i].admin, body, path=f"/api/v1/scale/chat/{what}")
    assert status == 200, (status, answer)


def burst(f, n=24, tokens=400, to=0):
    """n requests at once to a pool without a replica, in the background."""
    body = chat("word " * 300, model="sim", max_tokens=tokens)
    pool = concurrent.futures.ThreadPoolExecutor(n)
    start = time.monotonic()
    return start, [pool.submit(post, f.servers[to].gateway, body, timeout=120) for _ in range(n)]


def become_ready(rig):
    """Lets pods be ready that were made not to be."""
    for p in rig.api.pods(NS, "app=llm"):
        if "e2e/never-ready" in p["metadata"].get("annotations", {}):
            rig.api.patch(f"/api/v1/namespaces/{NS}/pods/{p['metadata']['name']}", {"metadata": {"annotations": {"e2e/never-ready": None}}})


def answered(f, start, futures, limit=90):
    """All are answered; returns when the object left zero for more than one."""
    codes = [x.result(timeout=limit)[0] for x in futures]
    assert set(codes) == {200}, (codes, f.since(start))
    first = next((t for t, n in f.since(start) if n > 1), None)
    assert first is not None, f"never more than one replica: {f.since(start)}, {f.record()['sentence']}"
    return first


def hpa(a, least, most=20, target=None):
    a.create(HPAS, {"apiVersion": "autoscaling/v2", "kind": "HorizontalPodAutoscaler", "metadata": {"name": "llm"}, "spec": {
        "scaleTargetRef": {"apiVersion": "apps/v1", "kind": "Deployment", "name": "llm"}, "minReplicas": least, "maxReplicas": most,
        "metrics": [{"type": "External", "external": {"metric": {"name": "penstock_wanted_replicas", "selector": {"matchLabels": {"pool": "chat"}}},
                                                      "target": target or {"type": "AverageValue", "averageValue": "1"}}}],
        "behavior": {"scaleUp": {"policies": [{"type": "Pods", "value": 1000, "periodSeconds": 15}]},
                     "scaleDown": {"stabilizationWindowSeconds": 0}}}})


def scaled_object(rig, least, trigger, **spec):
    rig.api.create(SCALED, {"apiVersion": "keda.sh/v1alpha1", "kind": "ScaledObject", "metadata": {"name": "llm"}, "spec": {
        "scaleTargetRef": {"name": "llm"}, "pollingInterval": 2, "cooldownPeriod": 5, "minReplicaCount": least, "maxReplicaCount": 20,
        "triggers": [trigger], **spec}})


def lead_of(f):
    """Which of two Penstocks leads. Both have spoken, and the other one names another Penstock:
    one that has not spoken yet, or knows of no leader yet, tells nothing of who leads."""
    def who():
        said = [f.record(i) for i in (0, 1)]
        if not all(x["hand"] for x in said):
            return None
        return [i for i in (0, 1) if "owner" not in said[i] and "another Penstock" in said[1 - i].get("owner", "")]
    return poll("one leads, and the other one says so", who, every=0.2)[0]


def kubectl(rig, *args):
    binary = os.path.join(os.path.dirname(KEDA), "bin-" + os.environ.get("KUBE_VERSION", "v1.37.2"), "kubectl")
    out = subprocess.run([binary, "--kubeconfig", rig.path("cluster/admin.kubeconfig"), *args], capture_output=True, text=True)
    assert out.returncode == 0, out.stderr
    return out.stdout


def lint(rig, kind):
    """The findings of lint on an object that the API server has, by their code."""
    text = kubectl(rig, "-n", NS, "get", kind, "llm", "-o", "yaml")
    out = subprocess.run([PENSTOCK, "lint", "-", "-o", "json"], input=text, capture_output=True, text=True)
    return {x["code"]: x["message"] for x in json.loads(out.stdout)["findings"]}


def metrics_api(rig):
    """Whether whoever serves external metrics is there, as the API server knows it."""
    status = rig.api.get(APISERVICES + "/v1beta1.external.metrics.k8s.io")["status"]
    return any(c["type"] == "Available" and c["status"] == "True" for c in status["conditions"])


def keda(rig):
    """Starts KEDA, once; False where it was not built."""
    if not os.access(os.path.join(KEDA, "keda-adapter"), os.X_OK):
        return False
    if not getattr(rig, "keda", False):
        k8s.cluster(rig, "start", "keda-operator")
        k8s.cluster(rig, "start", "keda-adapter")
        poll("KEDA's metrics API is available", lambda: metrics_api(rig))
        rig.keda = True
    return True


NO_KEDA = "skipped: e2e/kube/build-keda.sh builds KEDA"
