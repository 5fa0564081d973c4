#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# Unit, property, architecture, package-doc and command line tests with the race detector.
set -uo pipefail
out=build/test/unit.out
go test -race -timeout 20m ./... 2>&1 | tee "$out"
code=${PIPESTATUS[0]}
echo "LAYER: -race, $(grep -c '^ok' "$out") packages"
exit "$code"
