#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# Executes the console blocks of README.md and docs/tutorial with the real binary.
set -euo pipefail
make -s build
PENSTOCK_DOCS_BIN=$PWD/bin go test -count=1 -timeout 15m -run 'TestConsoleBlocks|TestLinksResolve' -v ./internal/doctest
echo "LAYER: console blocks of README and tutorial, links"
