#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# Load generators of the field against penstock serve over simulated replicas. They take
# 1.5 GB and ten minutes, so that has a switch: make e2e-loadtools. vLLM's is run where
# make e2e-engine installed vLLM.
set -euo pipefail
. scripts/lib.sh
if [ "${PENSTOCK_BUILD:-}" != 1 ]; then
  echo "LAYER: aiperf, genai-bench and vllm bench serve: run make e2e-loadtools (1.5 GB, ten minutes)"
  exit 77
fi
AIPERF_VENV=$(venv aiperf aiperf==0.13.0)
GENAI_VENV=$(venv genai-bench genai-bench==0.0.5)
VLLM_VENV=$PENSTOCK_CACHE/venv-vllm
TOKENIZER=$PENSTOCK_CACHE/tokenizer-tiny-1
[ -e "$TOKENIZER/tokenizer.json" ] || HF_HUB_OFFLINE=1 "$AIPERF_VENV/bin/python" e2e/engine/tokenizer.py "$TOKENIZER"
export AIPERF_VENV GENAI_VENV VLLM_VENV TOKENIZER
make -s build
python3 e2e/loadtools/run.py "$@"
echo "LAYER: aiperf 0.13.0, genai-bench 0.0.5, vllm bench serve where vLLM is"
