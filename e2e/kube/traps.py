# SPDX-License-Identifier: Apache-2.0
"""Manifests that look right and are not: what the real controllers make of them, and
that `penstock lint` says so of the objects as the API server has them.
"""
import http.server
import json
import threading
import time

from fleet import HPAS, NO_KEDA, SCALED, fleet, keda, lint, scaled_object
from rig import free_port, poll


class Prometheus:
    """Answers every instant query with the samples that it is told."""

    def __init__(self):
        self.samples = []
        outer = self

        class Handler(http.server.BaseHTTPRequestHandler):
            def do_GET(self):
                body = json.dumps({"status": "success", "data": {"resultType": "vector", "result": [
                    {"metric": {"pod": f"llm-{i}"}, "value": [time.time(), str(v)]} for i, v in enumerate(outer.samples)]}}).encode()
                self.send_response(200)
                self.send_header("Content-Type", "application/json")
                self.send_header("Content-Length", str(len(body)))
                self.end_headers()
                self.wfile.write(body)

            def log_message(self, *args):
                pass
        self.addr = f"127.0.0.1:{free_port()}"
        host, port = self.addr.split(":")
        self.server = http.server.ThreadingHTTPServer((host, int(port)), Handler)
        threading.Thread(target=self.server.serve_forever, daemon=True).start()

    def close(self):
        self.server.shutdown()
        self.server.server_close()


def conditions(rig):
    so = rig.api.get(f"{SCALED}/llm").get("status", {})
    return {c["type"]: c for c in so.get("conditions", [])}


@fleet
def keda_fallback_that_is_off(rig, fleet):
    """K6: a fallback with scalingModifiers and the target "0.5" never acts, and KEDA calls the object ready."""
    if not keda(rig):
        return NO_KEDA
    f = fleet("scale", replicas=2)
    prometheus = Prometheus()
    prometheus.close()  # so that the trigger fails from the start
    trigger = {"type": "prometheus", "name": "queue", "metricType": "AverageValue", "metadata": {
        "serverAddress": "http://" + prometheus.addr, "query": "sum(vllm:num_requests_waiting)", "threshold": "5"}}
    spec = {"fallback": {"failureThreshold": 1, "replicas": 6}, "advanced": {"scalingModifiers": {"formula": "queue", "target": "0.5"}}}
    scaled_object(rig, 1, trigger, **spec)
    time.sleep(20)
    assert f.replicas() == 2, f.seen
    said = conditions(rig).get("Fallback", {})
    assert said.get("status") != "True", said
    found = lint(rig, "scaledobject")
    assert "fallback-off" in found, found
    rig.api.delete(f"{SCALED}/llm")
    poll("its HPA is gone", lambda: not rig.api.get(HPAS)["items"])
    spec["advanced"]["scalingModifiers"]["target"] = "2"
    scaled_object(rig, 1, trigger, **spec)
    poll("with a whole target the fallback acts", lambda: f.replicas() == 6)
    found2 = lint(rig, "scaledobject")
    assert "fallback-off" not in found2, found2
    poll("the hand says who moves it", lambda: f.record().get("owner") == "ScaledObject llm", every=0.2)
    return f"shown: T5-K6; target 0.5: 2 replicas, Fallback {said.get('status')} {said.get('reason')}; target 2: 6 replicas; lint: {found['fallback-off'][:110]}"


@fleet
def keda_queries(rig, fleet):
    """K7: two series freeze KEDA, none is a load of 0; the pool's own hand keeps away from its object."""
    if not keda(rig):
        return NO_KEDA
    f = fleet("scale", replicas=1)
    prometheus = Prometheus()
    try:
        prometheus.samples = [20]
        scaled_object(rig, 0, {"type": "prometheus", "metadata": {"serverAddress": "http://" + prometheus.addr, "query": "vllm:num_requests_waiting", "threshold": "5"}},
                      advanced={"horizontalPodAutoscalerConfig": {"behavior": {"scaleDown": {"stabilizationWindowSeconds": 2}}}})
        poll("one series scales", lambda: f.replicas() == 4)
        owner = poll("the hand says who moves it", lambda: f.record().get("owner") == "ScaledObject llm" and f.record()["owner"], every=0.2)
        prometheus.samples = [20, 60]  # a second pod tells, and twice as many are needed
        poll("KEDA refuses two series", lambda: conditions(rig)["Ready"]["status"] == "False")
        time.sleep(8)
        assert f.replicas() == 4, f.seen
        began = time.monotonic()
        prometheus.samples = []
        poll("no series is a load of 0", lambda: f.replicas() == 0)
        took = time.monotonic() - began
        found = lint(rig, "scaledobject")
    finally:
        prometheus.close()
    assert {"multiple-elements", "no-fallback", "zero-cannot-wake"} <= set(found), found
    return (f"shown: T5-K7a two series: frozen at 4; shown: T5-K7b none: 4 to 0 in {took:.1f} s; lint: {', '.join(sorted(found))}; "
            f"shown: T7-keda {owner} is left alone")
