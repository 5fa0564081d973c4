#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# Builds a release into build/release: binaries, deb, rpm, OCI image, manual pages,
# completions, lists of components, checksums. The time in all of them is that of the
# commit, so that two runs give the same bytes.
#
#   scripts/release.sh                          both architectures
#   ARCH=amd64 OUT=build/other scripts/release.sh
set -euo pipefail
cd "$(dirname "$0")/.."
if [ -z "${SOURCE_DATE_EPOCH:-}" ]; then
  SOURCE_DATE_EPOCH=$(git log -1 --format=%ct 2>/dev/null) || {
    echo "this folder has no git history: set SOURCE_DATE_EPOCH to the time of the release in seconds" >&2
    exit 1
  }
fi
export SOURCE_DATE_EPOCH LC_ALL=C TZ=UTC
umask 022
scripts/console.sh
top=$PWD out=${OUT:-build/release}
mkdir -p "$out"
out=$(cd "$out" && pwd)
# Without cgo and with -trimpath the tool shares what it compiles with the binaries.
cd tools/release
CGO_ENABLED=0 GOFLAGS= go run -trimpath -buildvcs=false . --top "$top" --out "$out" --arch "${ARCH:-amd64,arm64}"
