# SPDX-License-Identifier: Apache-2.0
"""A pool whose replicas are moved by Penstock, by a real HPA and by a real KEDA.

    ENVOY=none PENSTOCK=bin/penstock python3 e2e/kube/scaling.py [CASE...]

Requests come to the gateway, the scaler of `penstock serve` decides, and what happens
to the Deployment is watched at the API server. A case says which of the layer's
scenarios it shows (scripts/layers/e2e-kube.sh lists them).
"""
import glob
import json
import os
import subprocess
import sys
import time
import urllib.request

import api as k8s
from fleet import (DEPLOYMENT, HPAS, KEDA, NO_KEDA, NS, OLD, ROOT, act, answered, become_ready, burst, fleet, hpa, keda, kubectl, lead_of, leads, lint,
                   metrics_api, scaled_object, start)
from rig import PENSTOCK, case, chat, get, poll, post


@fleet
def zero_by_scale(rig, fleet):
    """/scale: 0 -> N within two seconds of the first held request, all answered."""
    f = fleet("scale", annotations={"e2e/ready-after": "3s"})
    leads(f)
    took = answered(f, *burst(f))
    assert took < 2, f.since(0)
    return f"shown: wake-scale; left zero for N after {took:.2f} s: {[n for _, n in f.seen]}"


@fleet
def zero_by_hpa(rig, fleet):
    """An HPA with minReplicas 0 wakes what it put to sleep (1.37); it goes to N at once. Before 1.37 there is none."""
    f = fleet("hpa", replicas=1, annotations={"e2e/ready-after": "4s"})
    if OLD:
        try:
            hpa(rig.api, 0)
        except RuntimeError as e:
            assert "minReplicas" in str(e) and " 422 " in str(e), e
            return "shown: zero-refused; the API server refuses minReplicas 0"
        raise AssertionError("this API server takes minReplicas 0")
    hpa(rig.api, 0)
    leads(f)
    act(f, "pin", b'{"replicas": 0}')
    poll("it sleeps", lambda: f.replicas() == 0)
    act(f, "resume")
    poll("its last pod is gone", lambda: not rig.api.pods(NS, "app=llm"))
    took = answered(f, *burst(f))
    return f"shown: T3-hpa; left zero for N after {took:.2f} s (the HPA looks every 2 s): {[n for _, n in f.seen]}"


@fleet
def zero_by_hpa_and_scale(rig, fleet):
    """An HPA that never goes to zero, as before 1.37: /scale goes through zero."""
    f = fleet("hpa", replicas=0, wake="scale", annotations={"e2e/ready-after": "3s"})
    hpa(rig.api, 1)
    leads(f)
    took = answered(f, *burst(f))
    assert took < 2, f.seen
    return f"shown: wake-hpa-scale; left zero for N after {took:.2f} s: {[n for _, n in f.seen]}"


@fleet
def pending_never_ready(rig, fleet):
    """Replicas that never come are not asked for again and again."""
    f = fleet("scale", annotations={"e2e/never-ready": "1"})
    leads(f)
    start, futures = burst(f)
    poll("all of them wait", lambda: json.loads(get(f.servers[0].admin, "/api/v1/status")[1])["pools"][0]["held"] == len(futures))
    poll("it left zero", lambda: f.replicas() > 0)
    said = set()
    poll("the scaler speaks of all that wait", lambda: said.add(f.record()["time"]) or len(said) > 2, every=0.2)
    first = f.replicas()
    time.sleep(40)
    last = f.replicas()
    assert last <= first, f"{first} replicas became {last}: {f.since(start)}"
    for s in f.servers:
        s.proc.kill()  # the held requests end with it
    for x in futures:
        x.exception()
    return f"shown: pending-never-ready; {first} replicas for 40 s, none ready: {f.since(start)}"


@fleet
def leader_killed(rig, fleet):
    """Two Penstocks: one acts; killed in a burst, the other goes on and nothing falls."""
    f = fleet("scale", replicas=2, routers=2)
    lead = lead_of(f)
    other = f.record(1 - lead)
    assert "another Penstock" in other["owner"], other
    act(f, "pin", b'{"replicas": 5}', lead)
    poll("the leader acts", lambda: f.replicas() == 5)
    start = time.monotonic()
    f.servers[lead].proc.kill()
    act(f, "pin", b'{"replicas": 7}', 1 - lead)
    poll("the other one acts", lambda: f.replicas() == 7, 40)
    took = time.monotonic() - start
    after = [n for _, n in f.since(start)]
    assert all(n >= 5 for n in after), after
    return f"shown: T8; taken over after {took:.1f} s; {after}"


@fleet
def follower_wakes(rig, fleet):
    """Requests that are held at a router that does not lead wake the pool through the one that does."""
    f = fleet("scale", annotations={"e2e/ready-after": "3s"}, routers=2, share=True)
    lead = lead_of(f)
    follower = 1 - lead
    poll("the leader hears the other one, which takes requests", lambda: get(f.servers[follower].admin, "/readyz")[0] == 200, every=0.1)
    assert f.replicas() == 0 and lead == lead_of(f), f.seen
    took = answered(f, *burst(f, to=follower))
    assert took < 2, f.since(0)
    assert lead == lead_of(f), "another one leads now"
    return f"shown: wake-follower; held at the follower, left zero for N after {took:.2f} s: {[n for _, n in f.seen]}"


@fleet
def start_up_is_remembered(rig, fleet):
    """What one process learned of start-ups is there for the next one."""
    f = fleet("scale", annotations={"e2e/ready-after": "6s"})
    leads(f)
    believed = f.record()["start_p50_s"]
    act(f, "pin", b'{"replicas": 4}')
    poll("4 are ready", lambda: f.record()["ready"] == 4, every=0.2)

    def of_all():
        starts = json.loads(rig.api.get("/api/v1/namespaces/penstock/configmaps/penstock-scaler")["data"]["chat"])["starts_s"]
        return starts if len(starts) >= 4 else None
    kept = poll("they are kept", of_all, every=0.5)
    learned = f.record()["start_p50_s"]
    f.servers[0].proc.kill()
    f.servers[0] = f.serve(1)
    f.servers.pop()
    poll("the next one has spoken", lambda: "start_p50_s" in f.record(), every=0.2)
    after = f.record()["start_p50_s"]
    assert after == learned < believed / 2, (believed, learned, kept, after)
    return f"believed {believed:.0f} s, learned {learned:.1f} s, the next one begins with {after:.1f} s"


@fleet
def owned_by_a_person(rig, fleet):
    """kubectl scale stops it, it says who, and it waits to be told."""
    f = fleet("scale", replicas=1)
    leads(f)
    act(f, "pin", b'{"replicas": 3}')
    poll("it acts", lambda: f.replicas() == 3)
    kubectl(rig, "-n", NS, "scale", "deployment/llm", "--replicas=6")
    poll("it sees who", lambda: "kubectl" in f.record().get("owner", ""), every=0.2)
    time.sleep(8)
    assert f.replicas() == 6, f.seen
    said = f.record()["owner"]
    act(f, "resume")
    act(f, "pin", b'{"replicas": 3}')
    poll("told, it acts again", lambda: f.replicas() == 3)
    return "shown: T7-person; " + said


@fleet
def scraped_without_the_gateway(rig, fleet):
    """With Penstock killed every replica still answers a scrape."""
    f = fleet("scale", replicas=3)
    poll("3 replicas are ready", lambda: json.loads(get(f.servers[0].admin, "/api/v1/status")[1])["pools"][0]["ready"] == 3)
    f.servers[0].proc.kill()
    ips = [p["status"]["podIP"] for p in rig.api.pods(NS, "app=llm")]
    for ip in ips:
        assert b"vllm:num_requests_running" in urllib.request.urlopen(f"http://{ip}:{rig.replica_port}/metrics", timeout=5).read()
    return f"shown: scraped-without-gateway; {len(ips)} replicas"


@fleet
def metric_loss(rig, fleet):
    """The engines tell nothing for a minute, under load and then without: no replica moves."""
    f = fleet("scale", replicas=0, min=0, idleAfter="20s", startUp="3s")
    leads(f)
    act(f, "pin", b'{"replicas": 4}')
    poll("4 are ready", lambda: f.record()["ready"] == 4, every=0.2)
    act(f, "resume")
    rig.containers.metrics_fail = True
    start = time.monotonic()
    try:
        for _ in range(30):
            assert post(f.servers[0].gateway, chat("word " * 50, model="sim", max_tokens=10))[0] == 200
            time.sleep(1)
        time.sleep(30)
        moved, said = [n for _, n in f.since(start)], f.record()
    finally:
        rig.containers.metrics_fail = False
    assert moved == [] and f.replicas() == 4, (moved, said["sentence"])
    return f"shown: metric-loss; 4 replicas for 60 s ({said['sentence']})"


@fleet
def preflight(rig, fleet):
    """penstock check sees conflicts, and what it finds good is good."""
    f = fleet("hpa", replicas=1)
    hpa(rig.api, 1)
    poll("one replica is ready", lambda: json.loads(get(f.servers[0].admin, "/api/v1/status")[1])["pools"][0]["ready"] == 1)
    poll("the metrics API is available", lambda: metrics_api(rig))

    def check():
        out = subprocess.run([PENSTOCK, "check", "--config", f.servers[0].config, "--kubeconfig", rig.path("cluster/admin.kubeconfig"), "--wait", "60s", "-o", "json"], capture_output=True, text=True)
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


@fleet
def value_runs_away(rig, fleet):
    """E2: a constant number of replicas as target type Value compounds; ours, as AverageValue 1, stays."""
    f = fleet("hpa", replicas=1, annotations={"e2e/never-ready": "1"})
    leads(f)
    hpa(rig.api, 1, 12)
    act(f, "pin", b'{"replicas": 2}')
    poll("2 replicas are wanted", lambda: f.replicas() == 2)
    time.sleep(8)
    assert f.replicas() == 2, f.seen
    found = lint(rig, "hpa")
    assert "value-multiplies" not in found, found
    f.a.patch(f"{DEPLOYMENT}/llm", {"spec": {"template": {"metadata": {"annotations": {"e2e/never-ready": None}}}}})
    rig.api.delete(f"{HPAS}/llm")
    hpa(rig.api, 1, 12, {"type": "Value", "value": "1"})
    began = time.monotonic()
    poll("type Value runs to the maximum", lambda: f.replicas() == 12)
    found = lint(rig, "hpa")
    assert "value-multiplies" in found, found
    return f"shown: T5-E2 runaway; AverageValue 1 stayed at 2, Value 1 went {[n for _, n in f.since(began)]}; lint: {found['value-multiplies'][:110]}"


@case
def manifests(rig):
    """Every object of the rendered manifests is taken by the API server, dry and for real."""
    rig.api.create("/apis/apiextensions.k8s.io/v1/customresourcedefinitions", {
        "apiVersion": "apiextensions.k8s.io/v1", "kind": "CustomResourceDefinition", "metadata": {"name": "servicemonitors.monitoring.coreos.com"},
        "spec": {"group": "monitoring.coreos.com", "scope": "Namespaced", "names": {"kind": "ServiceMonitor", "plural": "servicemonitors", "singular": "servicemonitor"},
                 "versions": [{"name": "v1", "served": True, "storage": True, "schema": {"openAPIV3Schema": {"type": "object", "x-kubernetes-preserve-unknown-fields": True}}}]}})
    if os.path.isdir(os.path.join(KEDA, "crds")):
        kubectl(rig, "apply", "--server-side", "-f", os.path.join(KEDA, "crds"))
    kubectl(rig, "wait", "--for", "condition=Established", "--all", "crd", "--timeout=90s")
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

    def rights():  # the API server's authorizer hears of new roles a moment later
        out = subprocess.run([PENSTOCK, "check", "--config", rig.path("account.yaml"), "--kubeconfig", rig.path("account.kubeconfig"), "--wait", "200ms", "-o", "json"], capture_output=True, text=True)
        found = [c for c in json.loads(out.stdout)["checks"] if c["name"] == "rights"]
        assert [c["result"] for c in found] == ["pass"], (found, out.stderr)
        return found[0]["detail"]
    return "rights: " + poll("the account has its rights", rights, every=0.5).split(" that")[0]


@fleet
def zero_by_keda(rig, fleet):
    """KEDA: to one at once, to N with the next look of its HPA; all answered."""
    if not keda(rig):
        return NO_KEDA
    # No pod is ready before the HPA has looked, or one replica would answer all of them.
    f = fleet("keda", annotations={"e2e/never-ready": "1"})
    scaled_object(rig, 0, {"type": "external-push", "metricType": "AverageValue", "metadata": {"scalerAddress": f.servers[0].keda, "pool": "chat"}},
                  advanced={"horizontalPodAutoscalerConfig": {"behavior": {"scaleUp": {"policies": [{"type": "Pods", "value": 1000, "periodSeconds": 15}]}}}})
    leads(f)
    poll("KEDA has taken the object", lambda: conditions(rig)["Ready"]["status"] == "True")
    time.sleep(3)  # KEDA opens its stream a moment after that, and nothing tells
    start, futures = burst(f)
    poll("N replicas are asked for", lambda: f.replicas() > 1)
    poll("all are answered", lambda: become_ready(rig) or all(x.done() for x in futures), every=0.5)
    took = answered(f, start, futures)
    one = next(t for t, n in f.since(start) if n > 0)
    assert one < 2, f.since(start)
    return f"shown: T3-keda; left zero after {one:.2f} s, N after {took:.2f} s: {[n for _, n in f.seen]}"


import traps  # noqa: E402,F401 - its cases come after these: they leave KEDA in the cluster
from traps import conditions  # noqa: E402


if __name__ == "__main__":
    sys.exit(1 if k8s.run(start) else 0)
