#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# Unit, property, architecture, package-doc and command line tests with the race detector,
# of all packages but those of the layer core.
set -uo pipefail
. scripts/lib.sh
out=build/test/unit.out
core=$(core_packages)
go list ./... | grep -vxF "$core" | xargs go test -race -timeout 40m 2>&1 | tee "$out"
code=${PIPESTATUS[2]}
echo "LAYER: -race, $(grep -c '^ok' "$out") packages"
exit "$code"
