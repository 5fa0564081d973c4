#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# Runs bin/penstock under streams, short requests, clients that leave and replicas that
# come and go, and watches what it holds: memory, goroutines, descriptors, connections,
# requests in flight. Streams are carried both ways, each in a process of its own.
#   FOR=1h             how long
#   STREAMS=1000       streams at a time
#   RELAY=portable,epoll
#   OUT=build/soak     where the report goes: soak.html, report.txt, samples-*.tsv
#   ARGS=...           more flags, see build/bench role=soak -h
# It exits 3 where a series is not flat, a request failed or the ledger is not 0 at the
# end, and 1 where it could not run.
set -euo pipefail
cd "$(dirname "$0")/.."
mkdir -p build
${GO:-go} build -trimpath -o build/bench ./bench
# shellcheck disable=SC2086 # ARGS is a list of flags
exec build/bench role=soak -penstock "${PENSTOCK:-bin/penstock}" -for "${FOR:-1h}" \
  -streams "${STREAMS:-1000}" -relay "${RELAY:-portable,epoll}" -out "${OUT:-build/soak}" ${ARGS:-}
