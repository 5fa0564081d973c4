#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# Real vLLM replicas on CPU behind penstock. The environment takes 6 GB and a run ten
# minutes of both cores, so it has a switch of its own: make e2e-engine.
set -euo pipefail
. scripts/lib.sh
if [ "${PENSTOCK_BUILD:-}" != 1 ]; then
  echo "LAYER: four real vLLM replicas: run make e2e-engine (6 GB, ten minutes)"
  exit 77
fi
venv=$(e2e/engine/env.sh) || { code=$?; echo "$venv"; exit "$code"; }
make -s build
model=$PENSTOCK_CACHE/model-tiny-2/tiny
if [ ! -e "$model/model.safetensors" ]; then
  mkdir -p "${model%/*}"
  HF_HUB_OFFLINE=1 "$venv/bin/python" e2e/engine/model.py "$model"
fi
VLLM_VENV=$venv MODEL_DIR=$model python3 e2e/engine/run.py "$@"
echo "LAYER: vLLM 0.32.0 on CPU, 4 replicas of a random-weight model"
