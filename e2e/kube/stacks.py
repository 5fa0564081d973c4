# SPDX-License-Identifier: Apache-2.0
"""Other projects' objects in a real API server: what Penstock says that it may own of
them, that it finds their replicas, and that it moves those that it may.

    ENVOY=none INFERENCE_EXTENSION=DIR PENSTOCK=bin/penstock python3 e2e/kube/stacks.py [CASE...]

The CRDs are those of KServe 0.17.0, LeaderWorkerSet 0.7.0 and the Gateway API Inference
Extension, as their modules publish them. No controller of theirs runs: the objects that
it would make are made here, with its labels and owner references.
"""
import glob
import json
import os
import subprocess
import sys

import api as k8s
from fleet import CACHE, NS, kubectl
from rig import PENSTOCK, Proc, case, free_port, get, poll, post

CRDS = "/apis/apiextensions.k8s.io/v1/customresourcedefinitions"
KSERVE = "serving.kserve.io"
LWS = "leaderworkerset.x-k8s.io"
# Group, version, plural, kind, whether it has /scale, file of the real CRD.
KINDS = [(LWS, "v1", "leaderworkersets", "LeaderWorkerSet", True, f"{LWS}_leaderworkersets.yaml"),
         (KSERVE, "v1beta1", "inferenceservices", "InferenceService", False, f"{KSERVE}_inferenceservices.yaml"),
         (KSERVE, "v1alpha2", "llminferenceservices", "LLMInferenceService", False, f"{KSERVE}_llminferenceservices.yaml"),
         ("llmd.ai", "v1alpha1", "variantautoscalings", "VariantAutoscaling", False, "")]


def own_crd(rig, group, version, plural, kind, scale):
    """A CRD of our own with the same names and paths, where the project's cannot be had."""
    sub = {"status": {}}
    if scale:
        sub["scale"] = {"specReplicasPath": ".spec.replicas", "statusReplicasPath": ".status.replicas", "labelSelectorPath": ".status.hpaPodSelector"}
    rig.api.create(CRDS, {"apiVersion": "apiextensions.k8s.io/v1", "kind": "CustomResourceDefinition",
                          "metadata": {"name": f"{plural}.{group}", "annotations": {"api-approved.kubernetes.io": "unapproved"}},
                          "spec": {"group": group, "scope": "Namespaced", "names": {"kind": kind, "plural": plural, "singular": kind.lower()},
                                   "versions": [{"name": version, "served": True, "storage": True, "subresources": sub,
                                                 "schema": {"openAPIV3Schema": {"type": "object", "x-kubernetes-preserve-unknown-fields": True}}}]}})


def start(rig):
    a = k8s.up(rig, NS, "penstock")
    rig.own = []
    for group, version, plural, kind, scale, file in KINDS:
        path = os.path.join(CACHE, "crds", file)
        if file and os.path.isfile(path):
            kubectl(rig, "apply", "--server-side", "-f", path)
        else:
            own_crd(rig, group, version, plural, kind, scale)
            rig.own.append(kind)
    kubectl(rig, "apply", "--server-side", "-f", glob.glob(os.path.join(os.environ["INFERENCE_EXTENSION"], "config/crd/bases/inference.networking.k8s.io_inferencepools.yaml"))[0])
    kubectl(rig, "wait", "--for", "condition=Established", "--all", "crd", "--timeout=60s")
    rig.containers = k8s.Containers(a, NS, [rig.replica_port], type("Named", (dict,), {"__missing__": lambda _, app: app})())
    objects(rig)


def apply(rig, **o):
    """Makes an object by its path and returns it, with the version that the server has."""
    return rig.api.create(o.pop("path"), o)


def deployment(rig, name, labels, owner=None, replicas=1, annotations=None):
    labels = {"app": name, **labels}
    return apply(rig, path=f"{k8s.APPS}/namespaces/{NS}/deployments", apiVersion="apps/v1", kind="Deployment",
                 metadata={"name": name, "labels": labels, "annotations": annotations or {}, "ownerReferences": owner_of(owner)},
                 spec={"replicas": replicas, "selector": {"matchLabels": labels}, "template": {"metadata": {"labels": labels}, "spec": {
                     "nodeName": "node-0", "containers": [{"name": "engine", "image": "vllm/vllm-openai:none"}]}}})


def owner_of(o):
    if not o:
        return []
    return [{"apiVersion": o["apiVersion"], "kind": o["kind"], "name": o["metadata"]["name"], "uid": o["metadata"]["uid"], "controller": True}]


def kserve(rig, name, **annotations):
    """An InferenceService and the Deployment that KServe makes of it."""
    o = apply(rig, path=f"/apis/{KSERVE}/v1beta1/namespaces/{NS}/inferenceservices", apiVersion=f"{KSERVE}/v1beta1", kind="InferenceService",
              metadata={"name": name, "annotations": {f"{KSERVE}/{k}": v for k, v in annotations.items()}},
              spec={"predictor": {"minReplicas": 1, "model": {"modelFormat": {"name": "huggingface"}, "storageUri": "hf://m"}}})
    deployment(rig, name + "-predictor", {f"{KSERVE}/inferenceservice": name}, o)


def llm(rig, name, role="both", **spec):
    """An LLMInferenceService and the Deployment that KServe makes of it."""
    o = apply(rig, path=f"/apis/{KSERVE}/v1alpha2/namespaces/{NS}/llminferenceservices", apiVersion=f"{KSERVE}/v1alpha2", kind="LLMInferenceService",
              metadata={"name": name}, spec={"model": {"uri": "hf://m", "name": "m"}, **spec})
    labels = {"app.kubernetes.io/name": name, "kserve.io/component": "workload", "llm-d.ai/role": role}
    if spec.get("worker") is None:
        deployment(rig, name + "-kserve", labels, o)
    if "prefill" in spec:
        deployment(rig, name + "-kserve-prefill", {**labels, "llm-d.ai/role": "prefill"}, o)
    return o


def group(rig, name, owner=None, replicas=2):
    """A LeaderWorkerSet, with the pods and the StatefulSet that its controller makes."""
    pod = {"metadata": {"labels": {"app": name}}, "spec": {"nodeName": "node-0", "containers": [{"name": "engine", "image": "vllm/vllm-openai:none"}]}}
    apply(rig, path=f"/apis/{LWS}/v1/namespaces/{NS}/leaderworkersets", apiVersion=f"{LWS}/v1", kind="LeaderWorkerSet",
          metadata={"name": name, "ownerReferences": owner_of(owner)}, spec={
              "replicas": replicas, "startupPolicy": "LeaderCreated", "rolloutStrategy": {"type": "RollingUpdate"},
              "leaderWorkerTemplate": {"size": 2, "leaderTemplate": pod, "workerTemplate": pod}})
    mine = {f"{SIG}/name": name, "app": name}
    of_set = {**mine, "made-by": "set"}  # none of the pods below: nobody here says how many there shall be
    selector = f"{SIG}/name={name},{SIG}/worker-index=0"
    rig.api.call("PATCH", f"/apis/{LWS}/v1/namespaces/{NS}/leaderworkersets/{name}/status",
                 json.dumps({"status": {"replicas": replicas, "hpaPodSelector": selector}}).encode(), "application/merge-patch+json")
    apply(rig, path=f"{k8s.APPS}/namespaces/{NS}/statefulsets", apiVersion="apps/v1", kind="StatefulSet", metadata={"name": name, "labels": mine}, spec={
        "replicas": 0, "serviceName": name, "selector": {"matchLabels": of_set}, "template": {**pod, "metadata": {"labels": of_set}}})
    for i in range(replicas):
        for k in range(2):
            apply(rig, path=f"/api/v1/namespaces/{NS}/pods", metadata={"name": f"{name}-{i}" + (f"-{k}" if k else ""), "labels": {
                **mine, f"{SIG}/group-index": str(i), f"{SIG}/worker-index": str(k)}}, spec=pod["spec"])


SIG = "leaderworkerset.sigs.k8s.io"


def objects(rig):
    deployment(rig, "plain", {"run": "plain"})
    for name, class_ in (("is-hpa", None), ("is-external", "external"), ("is-none", "none")):
        kserve(rig, name, **({"autoscalerClass": class_} if class_ else {}))
    llm(rig, "llm-fixed", replicas=2)
    llm(rig, "llm-free")
    llm(rig, "llm-split", role="decode", prefill={"replicas": 1})
    llm(rig, "llm-scaled", scaling={"minReplicas": 1, "maxReplicas": 4, "wva": {"hpa": {}}})
    group(rig, "groups")
    group(rig, "llm-many-kserve-mn", llm(rig, "llm-many", replicas=1, worker={"containers": [{"name": "main"}]}), 1)
    deployment(rig, "ms-decode", {"llm-d.ai/model": "ms"})
    apply(rig, path=f"{k8s.POOLS}/namespaces/{NS}/inferencepools", apiVersion="inference.networking.k8s.io/v1", kind="InferencePool", metadata={"name": "ms"},
          spec={"selector": {"matchLabels": {"llm-d.ai/model": "ms"}}, "targetPorts": [{"number": rig.replica_port}],
                "endpointPickerRef": {"name": "ms-epp", "port": {"number": 9002}}})
    apply(rig, path=f"/apis/llmd.ai/v1alpha1/namespaces/{NS}/variantautoscalings", apiVersion="llmd.ai/v1alpha1", kind="VariantAutoscaling",
          metadata={"name": "ms"}, spec={"scaleTargetRef": {"kind": "Deployment", "name": "ms-decode"}})


def stack(rig):
    out = subprocess.run([PENSTOCK, "check", "stack", "-n", NS, "--kubeconfig", rig.path("cluster/admin.kubeconfig"), "-o", "json"], capture_output=True, text=True, check=True).stdout
    return {w["target"].replace(f"{NS}/", ""): w for w in json.loads(out)["workloads"]}


@case
def who_owns_what(rig):
    """check stack: of each kind of workload, what Penstock may own and what it leaves alone."""
    found = stack(rig)
    want = {"Deployment plain": ("itself", "all: scale.target Deployment"),
            "Deployment is-hpa-predictor": ("KServe InferenceService is-hpa", "nothing: KServe writes the replicas"),
            "Deployment is-external-predictor": ("KServe InferenceService is-external", "replicas: KServe leaves them alone"),
            "Deployment is-none-predictor": ("KServe InferenceService is-none", "nothing: KServe writes the replicas"),
            "Deployment llm-fixed-kserve": ("KServe LLMInferenceService llm-fixed", "nothing while spec.replicas is set"),
            "Deployment llm-free-kserve": ("KServe LLMInferenceService llm-free", "replicas: KServe leaves them alone"),
            "Deployment llm-split-kserve": ("KServe LLMInferenceService llm-split", "replicas: KServe leaves them alone"),
            "Deployment llm-split-kserve-prefill": ("KServe LLMInferenceService llm-split", "nothing while spec.prefill.replicas is set"),
            "Deployment llm-scaled-kserve": ("KServe LLMInferenceService llm-scaled", "nothing while spec.scaling is set"),
            "LeaderWorkerSet groups": ("itself", "all: scale.target LeaderWorkerSet"),
            "LeaderWorkerSet llm-many-kserve-mn": ("KServe LLMInferenceService llm-many", "nothing while spec.replicas is set"),
            "Deployment ms-decode": ("itself", "all: scale.target Deployment")}
    assert set(found) == set(want), sorted(set(found) ^ set(want))
    bad = [(t, w, found[t]) for t, w in want.items() if found[t]["run_by"] != w[0] or not found[t]["penstock_may_scale"].startswith(w[1])]
    assert not bad, bad
    ms = found["Deployment ms-decode"]
    assert "ms-epp of InferencePool ms" in ms["picks"][0] and "VariantAutoscaling ms" in ms["scales"][0], ms
    rig.api.create(f"/apis/autoscaling/v2/namespaces/{NS}/horizontalpodautoscalers", {"metadata": {"name": "wva"}, "spec": {
        "scaleTargetRef": {"apiVersion": f"{LWS}/v1", "kind": "LeaderWorkerSet", "name": "groups"}, "maxReplicas": 4,
        "metrics": [{"type": "External", "external": {"metric": {"name": "wva_desired_replicas"}, "target": {"type": "AverageValue", "averageValue": "1"}}}]}})
    owned = stack(rig)["LeaderWorkerSet groups"]
    rig.api.delete(f"/apis/autoscaling/v2/namespaces/{NS}/horizontalpodautoscalers/wva")
    assert owned["penstock_may_scale"].startswith("nothing while HorizontalPodAutoscaler wva does"), owned
    own = ("CRDs of our own for " + ", ".join(rig.own)) if rig.own else "all CRDs are the projects'"
    return f"shown: stacks; {len(want)} workloads judged; {own}"


@case
def found_and_moved(rig):
    """What check stack names as labels and target finds the replicas and is moved, where that may be."""
    found = stack(rig)
    pools = {"groups": "LeaderWorkerSet groups", "is-external": "Deployment is-external-predictor", "llm-free": "Deployment llm-free-kserve"}
    admin = f"127.0.0.1:{free_port()}"
    config = {"listen": {"http": f"127.0.0.1:{free_port()}", "admin": admin}, "kubernetes": {"namespace": "penstock"}, "pools": [
        {"name": name, "models": [{"name": target.split()[1]}], "scale": {"mode": "act", "hand": "scale", "min": 1, "max": 8, "target": {
            "kind": target.split()[0], "namespace": NS, "name": target.split()[1]}},
         "replicas": {"selector": {"namespace": NS, "labels": found[target]["labels"].split(","), "port": rig.replica_port}}} for name, target in pools.items()]}
    config["pools"].append({"name": "ms", "models": [{"name": "ms-decode"}], "replicas": {"inferencePool": f"{NS}/ms"}})
    with open(rig.path("stacks.yaml"), "w") as f:
        json.dump(config, f)
    proc = Proc(rig, "stacks", [PENSTOCK, "serve", "--config", rig.path("stacks.yaml"), "--kubeconfig", rig.path("cluster/admin.kubeconfig"), "--scrape-interval", "500ms"])
    poll("the server is up", lambda: get(admin, "/healthz")[0] == 200)

    def ready():
        return {p["name"]: p["ready"] for p in json.loads(get(admin, "/api/v1/status")[1])["pools"]}
    # Of a group only its leader answers: two groups of two pods are two replicas.
    try:
        poll("all replicas are found", lambda: ready() == {"groups": 2, "is-external": 1, "llm-free": 1, "ms": 1}, every=0.2)
    except AssertionError as e:
        raise AssertionError(f"{e}: {ready()}\n{proc.tail()}") from None
    record = {}
    for name, target in pools.items():
        kind, obj = target.split()
        path = f"/apis/{LWS}/v1/namespaces/{NS}/leaderworkersets/{obj}" if kind == "LeaderWorkerSet" else f"{k8s.APPS}/namespaces/{NS}/deployments/{obj}"
        poll(f"nobody else owns {target}", lambda: "owner" not in json.loads(get(admin, f"/api/v1/scale/{name}")[1]), every=0.2)
        assert post(admin, b'{"replicas": 3}', path=f"/api/v1/scale/{name}/pin")[0] == 200
        poll(f"{target} is moved", lambda: rig.api.get(path)["spec"]["replicas"] == 3, every=0.1)
        kubectl(rig, "-n", NS, "scale", f"{kind.lower()}/{obj}", "--replicas=5")
        record[name] = poll(f"who moved {target} is seen", lambda: json.loads(get(admin, f"/api/v1/scale/{name}")[1]).get("owner", ""), every=0.2)
        assert "kubectl" in record[name] and rig.api.get(path)["spec"]["replicas"] == 5, record
    proc.kill()
    return f"shown: stacks-moved; {', '.join(pools.values())} found, moved by /scale, and left to kubectl once it moved them"


if __name__ == "__main__":
    sys.exit(1 if k8s.run(start) else 0)
