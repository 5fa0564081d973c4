#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# Unit and property tests of the functional core: whole without the race detector, which
# makes simulations three times as slow, and the short ones with it. Neither the core nor
# its tests start a goroutine, which internal/arch sees to. What calls the core from many
# goroutines is in the layer unit, and the core that it calls is watched there.
set -uo pipefail
. scripts/lib.sh
out=build/test/core.out
core_packages | xargs go test -timeout 20m 2>&1 | tee "$out"
code=${PIPESTATUS[1]}
core_packages | xargs go test -race -short -timeout 20m 2>&1 | tee "$out.race"
[ "${PIPESTATUS[1]}" = 0 ] || code=1
echo "LAYER: $(grep -c '^ok' "$out") packages of the functional core, -race of those $(grep -c '^ok' "$out.race")"
exit "$code"
