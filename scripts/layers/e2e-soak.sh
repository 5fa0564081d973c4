#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# The soak in its short form: three minutes of streams, short requests, clients that
# leave and replicas that come and go, over both ways to carry streams. Nothing may
# grow, no request may fail, and the ledger is 0 at the end. Then 10,000 requests come at
# the same moment.
set -euo pipefail
if [ "$(uname)" != Linux ]; then
  echo "LAYER: needs Linux, whose /proc tells what a process holds"
  exit 77
fi
. scripts/lib.sh
make -s build
${GO:-go} build -trimpath -o build/bench ./bench
apart env FOR="${SOAK_FOR:-3m}" STREAMS=400 OUT=build/soak-short scripts/soak.sh
# So many at once that each replica's share and the door are full, and all are answered.
apart build/bench -repeats 1 -works crowd-10000-h2 -contenders penstock,penstock-portable
echo "LAYER: $(grep -c ' flat$' build/soak-short/report.txt) series flat, plotted into build/soak-short/soak.html; 10,000 requests at once answered"
