#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# Builds Ollama from its Go module into the cache, once, and prints the binary. Its
# CPU engine is C++ inside of the module: no CMake, no GPU library.
set -euo pipefail

OLLAMA=0.6.5
PENSTOCK_CACHE=${PENSTOCK_CACHE:-$HOME/.cache/penstock}
bin=$PENSTOCK_CACHE/ollama-$OLLAMA/ollama

if [ -x "$bin" ]; then
  printf '%s\n' "$bin"
  exit 0
fi
if [ "${PENSTOCK_BUILD:-}" != 1 ]; then
  echo "LAYER: needs Ollama $OLLAMA: run make e2e-ollama, which builds it (half an hour, 1 GB)"
  exit 77
fi
command -v g++ >/dev/null || {
  echo "LAYER: needs a C++ compiler to build Ollama; install it with: sudo apt-get install g++"
  exit 77
}
mkdir -p "${bin%/*}"
echo "building Ollama $OLLAMA into ${bin%/*}" >&2
GOFLAGS='' GOBIN="${bin%/*}" CGO_ENABLED=1 nice -n 10 go install -p 2 -trimpath "github.com/ollama/ollama@v$OLLAMA" >&2
printf '%s\n' "$bin"
