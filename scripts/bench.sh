#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# Runs the comparison of bench/ against bin/penstock, which `make bench` has built.
#   QUICK=1       short cells, under a minute, and of the others only nginx
#   PEERS=...     which others, of: haproxy envoy sglang smg vllm-router litellm (default
#                 all; 1.3 GB under the cache; empty for none)
#   FORMAT=json   schema penstock/bench/v1 instead of a table
#   ARGS=...      more flags, see `go run ./bench -h`
set -euo pipefail
cd "$(dirname "$0")/.."
export PENSTOCK_CACHE=${PENSTOCK_CACHE:-$HOME/.cache/penstock}

. scripts/lib.sh
. scripts/peers.sh

mkdir -p build
${GO:-go} build -trimpath -o build/bench ./bench
flags=(-format "${FORMAT:-table}" -penstock bin/penstock -nginx "$(peer_nginx)")
if [ -n "${QUICK:-}" ]; then
  flags+=(-quick)
  PEERS=${PEERS-}
fi
others=
for peer in ${PEERS-haproxy envoy sglang smg vllm-router litellm}; do
  others+=$peer=$("peer_${peer%-router}"),
done
[ -z "$others" ] || flags+=(-peers "$others")
# shellcheck disable=SC2086 # ARGS is a list of flags
build/bench "${flags[@]}" ${ARGS:-}

# The endpoint picker beside the least that one on stock gRPC costs.
[ "${FORMAT:-table}" = table ] || exit 0
${GO:-go} build -trimpath -o build/bench-epp ./bench/epp
flags=(-penstock bin/penstock)
[ -z "${QUICK:-}" ] || flags+=(-repeats 1 -d 700ms)
echo
build/bench-epp "${flags[@]}"

# The simulator: requests of the Mooncake conversation trace per second of one core.
# Without the trace it is left out.
echo
PENSTOCK_SHARED=${PENSTOCK_SHARED:-$PWD/../shared} ${GO:-go} test -run '^$' -bench '^BenchmarkMooncake$' -benchtime 2x -timeout 10m -v ./internal/sim |
  awk '/requests\/cpu-s/ {
         name = $1; sub(/^BenchmarkMooncake\//, "", name); sub(/-[0-9]+$/, "", name)
         for (i = 3; i < NF; i += 2) v[$(i + 1)] = $i
         printf "%-14s %9.0f requests a second and core, %4.0f MB heap\n", name, v["requests/cpu-s"], v["heap-MB"]
       }
       /SKIP|traces are not/ { print "sim-light, sim-penstock: skipped, the trace is not here" }' | sort -u
