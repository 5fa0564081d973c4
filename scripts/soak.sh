#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# Runs bin/penstock under streams and requests for a while and writes down what it
# holds: memory, goroutines, descriptors, connections, requests in flight.
#   SECONDS_LONG=180   how long; an hour is 3600
#   STREAMS=2000       streams at a time
#   RELAY=epoll        how streams are carried: epoll or portable
#   OUT=build/soak     where the report goes: samples.tsv and report.txt
# It fails where memory, goroutines or descriptors grew between the first and the last
# third, or where a request is left in flight.
set -euo pipefail
cd "$(dirname "$0")/.."
mkdir -p build
${GO:-go} build -trimpath -o build/bench ./bench
exec build/bench role=soak -penstock "${PENSTOCK:-bin/penstock}" -for "${SECONDS_LONG:-180}s" \
  -streams "${STREAMS:-2000}" -relay "${RELAY:-epoll}" -out "${OUT:-build/soak}"
