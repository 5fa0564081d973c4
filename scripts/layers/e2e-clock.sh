#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# The wall clock steps by an hour, forward and back, under a running server. The clock of
# the machine is left alone: an overlay gives the standard library a time.StepWall that
# moves what time.Now says of the wall clock, and not its monotonic reading.
set -euo pipefail
go=${GO:-go}
dir=build/clock
mkdir -p "$dir"
source=$($go env GOROOT)/src/time/time.go
sed -e 's/^\tsec, nsec, mono := runtimeNow()$/\tsec, nsec, mono := runtimeNow()\n\tsec += wallStep.Load()/' "$source" >"$dir/time.overlay"
if [ "$(grep -c 'wallStep.Load' "$dir/time.overlay")" = 0 ]; then
  echo "LAYER: this Go reads its clock otherwise than the overlay expects"
  exit 77
fi
cat >"$dir/step.overlay" <<'GO'
package time

import "sync/atomic"

var wallStep atomic.Int64 // seconds

// StepWall moves the wall clock by d.
func StepWall(d Duration) { wallStep.Store(int64(d / Second)) }
GO
cat >"$dir/overlay.json" <<EOF2
{"Replace": {"$source": "$PWD/$dir/time.overlay", "$(dirname "$source")/step.go": "$PWD/$dir/step.overlay"}}
EOF2
$go test -overlay "$dir/overlay.json" -tags clockjump -run TestClockJump -count 1 ./internal/cli
echo "LAYER: streams, requests, scrapes and waits under steps of an hour"
