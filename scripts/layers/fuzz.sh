#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# Every fuzz target for FUZZTIME each (default 3 s), beyond its seeds.
set -euo pipefail
t=${FUZZTIME:-3s}
n=0
while IFS=: read -r file target; do
  dir=./$(dirname "$file")
  echo "== $dir $target"
  go test "$dir" -run '^$' -fuzz "^$target\$" -fuzztime "$t" -fuzzminimizetime 1x -parallel 2
  n=$((n + 1))
done < <(git grep -oE '^func Fuzz[A-Za-z0-9_]+' -- '*_test.go' | sed 's/:func /:/')
echo "LAYER: $n targets, $t each"
