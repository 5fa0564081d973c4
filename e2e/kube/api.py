# SPDX-License-Identifier: Apache-2.0
"""The Kubernetes API, as far as these tests need it, and pods that answer."""
import json
import os
import selectors
import socket
import ssl
import subprocess
import sys
import threading
import urllib.error
import urllib.request

HERE = os.path.dirname(os.path.abspath(__file__))
sys.path.insert(0, os.path.join(HERE, "..", "epp"))
from backend import Handler  # noqa: E402
from rig import Rig, poll, run_cases  # noqa: E402

POOLS = "/apis/inference.networking.k8s.io/v1"
APPS = "/apis/apps/v1"


def cluster(rig, action, *args):
    subprocess.run([os.path.join(HERE, "cluster.sh"), action, rig.path("cluster"), *args], check=True)


def up(rig, *namespaces):
    """A cluster with one node and these namespaces, in the first of which pods can run."""
    cluster(rig, "up", "kcm", "kwok")
    rig.api = a = Api(rig.path("cluster"))
    a.create("/api/v1/nodes", {"metadata": {"name": "node-0"}})
    for ns in namespaces:
        a.create("/api/v1/namespaces", {"metadata": {"name": ns}})
    poll("the namespace has its service account", lambda: a.get(f"/api/v1/namespaces/{namespaces[0]}/serviceaccounts/default"))
    return a


def run(start):
    """Runs the cases that the command line names, all without names, on a cluster that
    start brings up."""
    rig = Rig()
    try:
        start(rig)
        return run_cases(rig, sys.argv[1:])
    finally:
        if hasattr(rig, "containers"):
            rig.containers.stop.set()
        cluster(rig, "down")
        rig.close()


class Api:
    """Talks to the API server with the rights of its administrator."""

    def __init__(self, folder):
        with open(os.path.join(folder, "port-apiserver")) as f:
            self.base = "https://127.0.0.1:" + f.read().strip()
        self.ca = os.path.join(folder, "ca.crt")
        with open(os.path.join(folder, "tokens.csv")) as f:
            self.token = f.read().split(",")[0]
        self.tls = ssl.create_default_context(cafile=self.ca)

    def call(self, method, path, body=None, kind="application/json"):
        r = urllib.request.Request(self.base + path, method=method, headers={"Authorization": "Bearer " + self.token, "Content-Type": kind},
                                   data=None if body is None else (body if isinstance(body, bytes) else json.dumps(body).encode()))
        try:
            with urllib.request.urlopen(r, context=self.tls, timeout=30) as res:
                return json.loads(res.read())
        except urllib.error.HTTPError as e:
            raise RuntimeError(f"{method} {path}: {e.code} {e.read().decode()[:500]}") from None

    def get(self, path):
        return self.call("GET", path)

    def create(self, path, body):
        return self.call("POST", path, body)

    def patch(self, path, body):
        return self.call("PATCH", path, body, "application/merge-patch+json")

    def delete(self, path):
        return self.call("DELETE", path)

    def apply_yaml(self, path, text, name):
        return self.call("PATCH", f"{path}/{name}?fieldManager=e2e&force=true", text.encode(), "application/apply-patch+yaml")

    def pods(self, ns, label):
        return self.get(f"/api/v1/namespaces/{ns}/pods?labelSelector={label}")["items"]

    def kubeconfig(self, file, token, namespace):
        with open(file, "w") as f:
            json.dump({"apiVersion": "v1", "kind": "Config", "current-context": "c",
                       "clusters": [{"name": "c", "cluster": {"server": self.base, "certificate-authority": self.ca}}],
                       "users": [{"name": "u", "user": {"token": token}}],
                       "contexts": [{"name": "c", "context": {"cluster": "c", "user": "u", "namespace": namespace}}]}, f)


def ready(pod):
    return any(c["type"] == "Ready" and c["status"] == "True" for c in pod["status"].get("conditions", []))


class Containers:
    """Opens a model server at the address of each pod that has one, and closes it
    when the pod is gone: what a kubelet would do, all in one process."""

    def __init__(self, api, namespace, ports, models):
        self.api, self.namespace, self.ports, self.models = api, namespace, ports, models
        self.requests, self.left, self.open, self.metrics_fail = [], [], set(), False
        self.sockets, self.failed = {}, None
        self.select, self.lock, self.stop = selectors.DefaultSelector(), threading.Lock(), threading.Event()
        for run in (self.accept, self.follow):
            threading.Thread(target=run, daemon=True).start()

    def follow(self):
        """Looks at the pods again and again; while the API server is away nothing changes."""
        while not self.stop.wait(0.1):
            try:
                pods = self.api.get(f"/api/v1/namespaces/{self.namespace}/pods")["items"]
            except (OSError, RuntimeError, ValueError):
                continue
            try:
                self.reconcile({p["status"]["podIP"]: p for p in pods if p["status"].get("podIP")})
            except OSError as e:
                self.failed = e

    def reconcile(self, pods):
        for ip, pod in pods.items():
            for port in self.ports:
                if (ip, port) in self.sockets:
                    continue
                s = socket.create_server((ip, port), backlog=128)
                s.setblocking(False)
                self.sockets[ip, port] = s
                with self.lock:
                    self.select.register(s, selectors.EVENT_READ, self.models[pod["metadata"]["labels"]["app"]])
        for at in [a for a in self.sockets if a[0] not in pods]:
            s = self.sockets.pop(at)
            with self.lock:
                self.select.unregister(s)
            s.close()

    def accept(self):
        while not self.stop.is_set():
            with self.lock:
                ready_now = self.select.select(0.02) if self.sockets else []
            for key, _ in ready_now:
                try:
                    c, peer = key.fileobj.accept()
                except OSError:
                    continue
                c.setblocking(True)
                at = "%s:%d" % c.getsockname()
                threading.Thread(target=self.serve, args=(c, peer, Server(self, at, key.data)), daemon=True).start()
            self.stop.wait(0.002)

    def serve(self, c, peer, server):
        try:
            Handler(c, peer, server)
        except OSError:
            pass
        finally:
            c.close()


class Server:
    """What a Handler asks of its server."""

    def __init__(self, all_of_them, addr, model):
        self.addr, self.model, self.all = addr, model, all_of_them
        self.requests, self.left, self.open = all_of_them.requests, all_of_them.left, all_of_them.open

    @property
    def metrics_fail(self):
        return self.all.metrics_fail
