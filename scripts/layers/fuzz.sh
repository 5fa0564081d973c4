#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# Every fuzz target for FUZZTIME each (default 3 s), beyond its seeds.
set -euo pipefail
t=${FUZZTIME:-3s}
n=0 again=0
log=$(mktemp)
trap 'rm -f "$log"' EXIT

fuzz() { go test "$1" -run '^$' -fuzz "^$2\$" -fuzztime "$t" -fuzzminimizetime 1x -parallel 2 2>&1 | tee "$log"; }

while IFS=: read -r file target; do
  dir=./$(dirname "$file")
  echo "== $dir $target"
  # When the time is over while a worker is busy, the tool itself now and then fails
  # with its own deadline and without an input. An input, or a second time, is ours.
  for left in 1 0; do
    ! fuzz "$dir" "$target" || break
    if [ $left = 0 ] || grep -q 'Failing input written' "$log" || ! grep -q '^ *context deadline exceeded' "$log"; then
      exit 1
    fi
    again=$((again + 1))
  done
  n=$((n + 1))
done < <(git grep -oE '^func Fuzz[A-Za-z0-9_]+' -- '*_test.go' | sed 's/:func /:/')
echo "LAYER: $n targets, $t each$([ $again = 0 ] || echo ", $again run again after the tool's own deadline")"
