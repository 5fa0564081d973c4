#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# Load generators of the field against penstock serve over simulated replicas. They take
# 2 GB and a quarter of an hour, so that has a switch: make e2e-loadtools. vLLM's and
# guidellm are run where make e2e-engine installed vLLM.
set -euo pipefail
. scripts/lib.sh
if [ "${PENSTOCK_BUILD:-}" != 1 ]; then
  echo "LAYER: aiperf, genai-bench, guidellm and vllm bench serve: run make e2e-loadtools (2 GB, a quarter of an hour)"
  exit 77
fi
AIPERF_VENV=$(venv aiperf aiperf==0.13.0)
GENAI_VENV=$(venv genai-bench genai-bench==0.0.5)
VLLM_VENV=$PENSTOCK_CACHE/venv-vllm

# guidellm reads its data with torch, which is 5 GB on PyPI: it takes that of vLLM.
guidellm_venv() {
  local dir=$PENSTOCK_CACHE/venv-guidellm stamp=guidellm==0.8.1 torch no_torch
  torch=$(echo "$VLLM_VENV"/lib/python3*/site-packages)
  [ -d "$torch/torch" ] || return 0
  if [ "$(cat "$dir/stamp" 2>/dev/null)" != "$stamp" ]; then
    rm -rf "$dir"
    python3 -m venv "$dir" >&2
    "$dir/bin/pip" install -q --disable-pip-version-check uv >&2
    no_torch=$(mktemp)
    echo "torch; python_version < '3'" >"$no_torch"
    "$dir/bin/uv" pip install --quiet --python "$dir/bin/python" --override "$no_torch" "$stamp" >&2
    rm -f "$no_torch"
    echo "$torch" >"$(echo "$dir"/lib/python3*/site-packages)/torch-of-vllm.pth"
    printf '%s' "$stamp" >"$dir/stamp"
  fi
  printf '%s\n' "$dir"
}
GUIDELLM_VENV=$(guidellm_venv)
TOKENIZER=$PENSTOCK_CACHE/tokenizer-tiny-1
[ -e "$TOKENIZER/tokenizer.json" ] || HF_HUB_OFFLINE=1 "$AIPERF_VENV/bin/python" e2e/engine/tokenizer.py "$TOKENIZER"
export AIPERF_VENV GENAI_VENV GUIDELLM_VENV VLLM_VENV TOKENIZER
make -s build
python3 e2e/loadtools/run.py "$@"
echo "LAYER: aiperf 0.13.0, genai-bench 0.0.5; guidellm 0.8.1 and vllm bench serve where vLLM is"
