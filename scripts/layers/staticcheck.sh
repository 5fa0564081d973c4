#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# The version is pinned in tools/go.mod.
set -euo pipefail
go tool -modfile=tools/go.mod staticcheck ./...
echo "LAYER: staticcheck"
