#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
set -euo pipefail
go test -timeout 10m ./...
echo "LAYER: without -race"
