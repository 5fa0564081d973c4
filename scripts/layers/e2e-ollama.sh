#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# Two real Ollama replicas behind penstock. Ollama is built from its Go module the first
# time, so that has a switch: make e2e-ollama. Where it was built the layer runs.
set -euo pipefail
. scripts/lib.sh
ollama=$(e2e/ollama/build.sh) || { code=$?; echo "$ollama"; exit "$code"; }
make -s build
model=$PENSTOCK_CACHE/gguf-tiny-1.gguf
[ -e "$model" ] || python3 e2e/ollama/gguf.py "$model"
OLLAMA=$ollama GGUF=$model python3 e2e/ollama/run.py "$@"
echo "LAYER: Ollama 0.6.5 on CPU, 2 replicas of a random-weight model"
