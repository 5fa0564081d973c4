#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# Runs the test layers in scripts/layers and prints one summary.
#
#   scripts/test.sh                 every layer
#   scripts/test.sh vet unit        only these
#
# A layer is a script that exits 0 when it passed, 77 when it could not run here
# (its last line says why) and anything else when it failed. Output goes to
# build/test/LAYER.log; of a failed layer the end is shown.
set -uo pipefail
cd "$(dirname "$0")/.."
export PENSTOCK_CACHE="${PENSTOCK_CACHE:-$HOME/.cache/penstock}"
mkdir -p build/test "$PENSTOCK_CACHE"

all=(format vet staticcheck unit docs sdk fuzz)
for f in scripts/layers/e2e-*.sh; do
  [ -e "$f" ] && all+=("$(basename "$f" .sh)")
done
layers=("$@")
[ ${#layers[@]} -gt 0 ] || layers=("${all[@]}")

passed=0 failed=0 skipped=0 rows=()
start_all=$SECONDS
for layer in "${layers[@]}"; do
  script=scripts/layers/$layer.sh
  if [ ! -x "$script" ]; then
    echo "there is no layer named $layer; layers: ${all[*]}" >&2
    exit 2
  fi
  log=build/test/$layer.log
  printf '== %-12s ' "$layer"
  start=$SECONDS
  "$script" >"$log" 2>&1 </dev/null
  code=$?
  took=$((SECONDS - start))
  note=$(grep -E '^LAYER: ' "$log" | tail -n 1 | sed 's/^LAYER: //')
  case $code in
    0) passed=$((passed + 1)); state=passed ;;
    77) skipped=$((skipped + 1)); state=skipped; [ -n "$note" ] || note=$(tail -n 1 "$log") ;;
    *) failed=$((failed + 1)); state=FAILED; [ -n "$note" ] || note="exit $code, see $log" ;;
  esac
  printf '%-8s %4ss  %s\n' "$state" "$took" "$note"
  rows+=("$(printf '%-12s %-8s %5ss  %s' "$layer" "$state" "$took" "$note")")
  if [ $state = FAILED ]; then
    grep -nE '^(--- FAIL|FAIL|panic:|.*\.go:[0-9]+:[0-9]+: )' "$log" | head -n 40
    tail -n 60 "$log"
  fi
done

echo
echo "layer        result    time  note"
printf '%s\n' "${rows[@]}"
echo "total time $((SECONDS - start_all))s"
echo "$passed passed, $failed failed, $skipped skipped"
[ $failed -eq 0 ]
