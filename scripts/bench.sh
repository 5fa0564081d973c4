#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# Runs the comparison of bench/ against bin/penstock, which `make bench` has built.
#   QUICK=1       short cells, under a minute
#   FORMAT=json   schema penstock/bench/v1 instead of a table
#   ARGS=...      more flags, see `go run ./bench -h`
set -euo pipefail
cd "$(dirname "$0")/.."
export PENSTOCK_CACHE=${PENSTOCK_CACHE:-$HOME/.cache/penstock}

# find_nginx prints the path of an nginx. Where none is installed Debian's package is
# unpacked into the cache: nothing is installed and no service is started.
find_nginx() {
  local dir=$PENSTOCK_CACHE/nginx
  if command -v nginx >/dev/null 2>&1; then
    command -v nginx
    return
  fi
  if [ ! -x "$dir/usr/sbin/nginx" ]; then
    command -v apt-get >/dev/null 2>&1 && command -v dpkg-deb >/dev/null 2>&1 || return 0
    rm -rf "$dir" "$dir.new"
    mkdir -p "$dir.new"
    (
      cd "$dir.new"
      apt-get download -q nginx >&2 || { apt-get update -q >&2 && apt-get download -q nginx >&2; } || exit 0
      dpkg-deb -x nginx_*.deb . && rm nginx_*.deb
    ) 2>/dev/null
    mv "$dir.new" "$dir"
  fi
  # Its libraries are those of the base system; where one is missing it does not run.
  if "$dir/usr/sbin/nginx" -v >/dev/null 2>&1; then
    printf '%s\n' "$dir/usr/sbin/nginx"
  fi
}

mkdir -p build
${GO:-go} build -trimpath -o build/bench ./bench
flags=(-format "${FORMAT:-table}" -penstock bin/penstock -nginx "$(find_nginx)")
[ -z "${QUICK:-}" ] || flags+=(-quick)
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
