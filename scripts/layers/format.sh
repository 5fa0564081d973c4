#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# Every Go file is formatted by gofmt; shell scripts parse.
set -euo pipefail
bad=$(git ls-files -z '*.go' | xargs -0 -r gofmt -l)
if [ -n "$bad" ]; then
  echo "not formatted by gofmt:"; echo "$bad"; exit 1
fi
git ls-files -z '*.sh' | xargs -0 -r -n 1 bash -n
echo "LAYER: gofmt, shell syntax"
