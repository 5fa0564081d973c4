# SPDX-License-Identifier: Apache-2.0
"""What the hop to the picker adds to a request behind Envoy, one at a time.

    ENVOY=PATH PENSTOCK=bin/penstock python3 e2e/epp/latency.py

Envoy alone and Envoy with the picker over TLS take turns, on one connection each;
the figure is the difference of the medians. It is a measurement, not a test.
"""
import http.client
import json
import statistics
import subprocess
import time

from backend import Backend
from rig import Envoy, Picker, Rig, poll


def certificate(rig):
    subprocess.run(["openssl", "req", "-x509", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:P-256", "-nodes", "-days", "2",
                    "-subj", "/CN=picker", "-keyout", rig.path("key.pem"), "-out", rig.path("cert.pem")], check=True, capture_output=True)


def alone(y):
    head, _, rest = y.partition("          - name: envoy.filters.http.ext_proc\n")
    return head + "          - name: envoy.filters.http.router\n" + rest.partition("          - name: envoy.filters.http.router\n")[2]


def burst(conn, body, seconds):
    out, end = [], time.monotonic() + seconds
    while time.monotonic() < end:
        start = time.perf_counter()
        conn.request("POST", "/v1/chat/completions?size=471", body, {"content-type": "application/json"})
        r = conn.getresponse()
        r.read()
        out.append((time.perf_counter() - start) * 1e3)
        assert r.status == 200, r.status
    return out


def main():
    rig = Rig()
    try:
        certificate(rig)
        probes = [Backend(f"127.10.0.{i}:{rig.replica_port}", "probe") for i in (11, 12, 13, 14)]
        config = rig.path("penstock.yaml")
        with open(config, "w") as f:
            f.write("tls: {cert: %s, key: %s}\npools:\n  - name: probe\n    models: [{name: probe}]\n    replicas: {static: [%s]}\n"
                    % (rig.path("cert.pem"), rig.path("key.pem"), ", ".join("http://" + p.addr for p in probes)))
        picker = Picker(rig, config)
        picker.ready()
        addrs = [p.addr for p in probes]
        envoys = {"Envoy alone": Envoy(rig, "alone", [picker], addrs, edit=alone),
                  "with picker, TLS": Envoy(rig, "with", [picker], addrs, "--picker-tls")}
        poll("Envoy sees the picker", envoys["with picker, TLS"].picker_up)
        for name, size in (("2 KiB", 2048), ("400 KB", 400_000)):
            body = json.dumps({"model": "probe", "messages": [{"role": "user", "content": "words of a prompt, " * (size // 19)}]})
            seen = {k: [] for k in envoys}
            conns = {k: http.client.HTTPConnection(e.addr) for k, e in envoys.items()}
            for _ in range(10):
                for k, c in conns.items():
                    seen[k] += burst(c, body, 0.5)
            medians = {k: statistics.median(v) for k, v in seen.items()}
            a, b = medians.values()
            print(f"{name}: " + ", ".join(f"{k} p50 {v:.2f} ms" for k, v in medians.items()) + f"; added {b - a:.2f} ms"
                  + f" ({', '.join(str(len(v)) for v in seen.values())} requests)")
    finally:
        rig.close()


if __name__ == "__main__":
    main()
