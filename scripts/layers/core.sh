#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# Unit and property tests of the functional core, without the race detector: neither the
# core nor its tests start a goroutine, which internal/arch sees to, so there is nothing for
# it to find, and it makes simulations three times as slow. What calls the core from many
# goroutines is in the layer unit, and the core that it calls is watched there.
set -uo pipefail
. scripts/lib.sh
out=build/test/core.out
core_packages | xargs go test -timeout 20m 2>&1 | tee "$out"
code=${PIPESTATUS[1]}
echo "LAYER: $(grep -c '^ok' "$out") packages of the functional core"
exit "$code"
