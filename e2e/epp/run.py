# SPDX-License-Identifier: Apache-2.0
"""The endpoint picker behind a real Envoy.

    ENVOY=PATH PENSTOCK=bin/penstock python3 e2e/epp/run.py [CASE...]
"""
import sys

import traffic  # noqa: F401 - registers its cases
import limits  # noqa: F401, I001
import revoke  # noqa: F401, I001
import failure  # noqa: F401, I001 - after those of normal traffic
from backend import Backend
from rig import MODEL, Envoy, Picker, Rig, free_port, poll, run_cases

CONFIG = """\
pools:
  - name: chat
    models: [{name: %(model)s}]
    replicas: {static: [%(replicas)s]}
  - name: probe
    models: [{name: probe, aliases: [nick]}]
    route: {sessionHeaders: [x-session-id]}
    replicas: {static: [%(probes)s]}
"""


def start(rig):
    rig.replica_flags = ["--speed", "3", "--output-mean", "60"]
    rig.replicas = [rig.replica(f"127.10.0.{i}", *rig.replica_flags) for i in (1, 2, 3)]
    rig.probes = [Backend(f"127.10.0.{i}:{rig.replica_port}", "probe") for i in (11, 12)]
    rig.outsider = Backend(f"127.0.0.1:{free_port()}", "outsider")
    rig.endpoints = [b.addr for b in rig.replicas + rig.probes]
    rig.config = rig.path("penstock.yaml")
    with open(rig.config, "w") as f:
        f.write(CONFIG % {"model": MODEL, "replicas": ", ".join("http://" + r.addr for r in rig.replicas),
                          "probes": ", ".join("http://" + p.addr for p in rig.probes)})
    rig.picker = Picker(rig, rig.config, "picker", "--scrape-interval", "300ms")
    rig.idle = 6
    flags = ["--idle-timeout", f"{rig.idle}s"]
    rig.closed = Envoy(rig, "envoy-closed", [rig.picker], rig.endpoints, *flags)
    rig.open = Envoy(rig, "envoy-open", [rig.picker], rig.endpoints, "--fail-open", *flags)
    rig.blind = Envoy(rig, "envoy-blind", [rig.picker], rig.endpoints, "--fail-open", "--no-response-bodies", *flags)
    rig.picker.ready()
    poll("all replicas are ready", lambda: sum(p["ready"] for p in rig.picker.status()["pools"]) == 5)
    for envoy in (rig.closed, rig.open, rig.blind):
        poll("Envoy sees the picker", envoy.picker_up)


def main():
    rig = Rig()
    try:
        start(rig)
        return run_cases(rig, sys.argv[1:])
    finally:
        rig.close()


if __name__ == "__main__":
    sys.exit(1 if main() else 0)
