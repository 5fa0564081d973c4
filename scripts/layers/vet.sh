#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
set -euo pipefail
go vet ./...
echo "LAYER: go vet"
