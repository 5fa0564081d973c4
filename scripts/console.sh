#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# Builds the pages of the console into internal/console/ui/dist where Node.js is
# present and a source is newer than what is there. Without Node.js the binary is
# built all the same, and says in its page what is missing.
set -euo pipefail
cd "$(dirname "$0")/../web"
out=../internal/console/ui/dist/index.html
if [ -e "$out" ] && [ -z "$(find src build.mjs package-lock.json -newer "$out" -print -quit)" ]; then
  exit 0
fi
major=$(node -p 'process.versions.node.split(".")[0]' 2>/dev/null || echo 0)
if [ "$major" -lt 20 ] || ! command -v npm >/dev/null 2>&1; then
  echo "the console is not built: it needs Node.js 20 or later and npm (Debian, Ubuntu: sudo apt-get install nodejs npm)" >&2
  exit 0
fi
if [ ! -e node_modules/.package-lock.json ] || [ package-lock.json -nt node_modules/.package-lock.json ]; then
  if ! npm ci --no-audit --no-fund --silent >&2; then
    echo "the console is not built: npm could not install its packages" >&2
    exit 0
  fi
  touch node_modules/.package-lock.json
fi
node build.mjs
