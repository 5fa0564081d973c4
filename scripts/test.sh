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
#
# Layers that only compute, and watch no clock, run at the lowest priority beside
# e2e-kube, which mostly waits for controllers: together they take hardly longer than it.
# So does the soak, whose minutes pass anyway, where it may have a network of its own.
set -uo pipefail
cd "$(dirname "$0")/.."
export PENSTOCK_CACHE="${PENSTOCK_CACHE:-$HOME/.cache/penstock}"
mkdir -p build/test "$PENSTOCK_CACHE"

all=(format vet staticcheck core unit docs sdk fuzz)
for f in scripts/layers/e2e-*.sh; do
  [ -e "$f" ] && all+=("$(basename "$f" .sh)")
done
. scripts/lib.sh
waits=e2e-kube
patient=(vet staticcheck core fuzz)
own_network >/dev/null && patient+=(e2e-soak)
layers=("$@")
[ ${#layers[@]} -gt 0 ] || layers=("${all[@]}")
for layer in "${layers[@]}"; do
  if [ ! -x "scripts/layers/$layer.sh" ]; then
    echo "there is no layer named $layer; layers: ${all[*]}" >&2
    exit 2
  fi
done

passed=0 failed=0 skipped=0 rows=() broken=() start_all=$SECONDS
# What a line of a log says that tells why its layer failed, in Go, Python and our scripts.
faults='^ *(--- FAIL|FAIL|panic:|fatal error:|WARNING: DATA RACE|[A-Za-z.]*(Error|Exception)\b|MISSING|[a-z/_]+\.go:[0-9]+:[0-9]+: )'
# Results of an earlier run: a layer that is ended half way must not report them.
for layer in "${layers[@]}"; do rm -f "build/test/$layer.result"; done

# run LAYER leaves its exit code and the seconds it took in build/test/LAYER.result.
run() {
  local start=$SECONDS code
  "scripts/layers/$1.sh" >"build/test/$1.log" 2>&1 </dev/null
  code=$?
  echo "$code $((SECONDS - start))" >"build/test/$1.result"
}

# report LAYER prints what became of it, behind its name.
report() {
  local layer=$1 log=build/test/$1.log code=1 took=0 note state
  [ ! -e "build/test/$1.result" ] || read -r code took <"build/test/$1.result"
  note=$(grep -E '^LAYER: ' "$log" | tail -n 1 | sed 's/^LAYER: //')
  case $code in
    0) passed=$((passed + 1)); state=passed ;;
    77) skipped=$((skipped + 1)); state=skipped; [ -n "$note" ] || note=$(tail -n 1 "$log") ;;
    *) failed=$((failed + 1)); state=FAILED; [ -n "$note" ] || note="exit $code, see $log" ;;
  esac
  printf '%-8s %4ss  %s\n' "$state" "$took" "$note"
  rows+=("$(printf '%-12s %-8s %5ss  %s' "$layer" "$state" "$took" "$note")")
  if [ $state = FAILED ]; then
    grep -nE "$faults" "$log" | head -n 40
    tail -n 60 "$log"
    broken+=("$layer")
  fi
}

# among WORD LIST... reports whether the word is one of the list.
among() {
  local word=$1 w
  shift
  for w in "$@"; do [ "$w" != "$word" ] || return 0; done
  return 1
}

# What runs beside the layer that waits: those that are patient, of those that were asked for.
beside=() first=()
for layer in "${layers[@]}"; do
  if among "$waits" "${layers[@]}" && among "$layer" "${patient[@]}"; then beside+=("$layer"); else first+=("$layer"); fi
done

lane=
trap '[ -z "$lane" ] || kill -- "-$lane" 2>/dev/null' EXIT
trap 'exit 130' INT TERM
for layer in "${first[@]}"; do
  if [ "$layer" = "$waits" ] && [ ${#beside[@]} -gt 0 ]; then
    make -s build >build/test/build.log 2>&1 # by both sides at once it would be written twice
    set -m # a group of its own, to be ended as one
    (
      renice -n 19 "$BASHPID" >/dev/null
      for layer in "${beside[@]}"; do
        [ "$layer" != e2e-soak ] || run "$layer" & # it waits, too
      done
      for layer in "${beside[@]}"; do
        [ "$layer" = e2e-soak ] || run "$layer"
      done
      wait
    ) &
    lane=$!
    set +m
  fi
  printf '== %-12s ' "$layer"
  run "$layer"
  report "$layer"
  if [ "$layer" = "$waits" ] && [ -n "$lane" ]; then
    wait "$lane"
    lane=
    for layer in "${beside[@]}"; do
      printf '== %-12s ' "$layer"
      report "$layer"
    done
  fi
done

echo
echo "layer        result    time  note"
printf '%s\n' "${rows[@]}"
# Once more at the very end, which is what is left of a long output.
for layer in "${broken[@]}"; do
  echo "-- of $layer, which failed:"
  grep -hE -A 2 "$faults" "build/test/$layer.log" | cut -c1-300 | head -n 16 | grep . || tail -n 8 "build/test/$layer.log"
done
echo "total time $((SECONDS - start_all))s"
echo "$passed passed, $failed failed, $skipped skipped"
[ $failed -eq 0 ]
