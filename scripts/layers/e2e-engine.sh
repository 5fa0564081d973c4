#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# Real vLLM replicas on CPU behind penstock. The environment takes 6 GB, so this
# layer only uses a cached one unless PENSTOCK_BUILD=1 says otherwise.
set -euo pipefail
. scripts/lib.sh
venv=$(e2e/engine/env.sh $([ "${PENSTOCK_BUILD:-}" = 1 ] || echo --cached)) || { code=$?; echo "$venv"; exit "$code"; }
make -s build
model=$PENSTOCK_CACHE/model-tiny-2/tiny
if [ ! -e "$model/model.safetensors" ]; then
  mkdir -p "${model%/*}"
  HF_HUB_OFFLINE=1 "$venv/bin/python" e2e/engine/model.py "$model"
fi
VLLM_VENV=$venv MODEL_DIR=$model python3 e2e/engine/run.py "$@"
echo "LAYER: vLLM 0.32.0 on CPU, 4 replicas of a random-weight model"
