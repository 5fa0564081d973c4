#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# The console in a real browser against the real binary: every page in both themes
# and two widths, keyboard, restart, load. Then the alert rules, with Prometheus' own
# tool for testing them.
set -euo pipefail
. scripts/lib.sh
apt_install promtool prometheus
promtool check rules deploy/alerts/*.rules.yaml
promtool test rules deploy/alerts/penstock.test.yaml
if ! command -v node >/dev/null || ! command -v npm >/dev/null; then
  echo "LAYER: alert rules passed; the console was skipped: it needs Node.js 20 or later"
  exit 77
fi
apt_install chromium chromium
make -s build
(cd web && ./node_modules/.bin/tsc --noEmit)
(cd e2e/console && [ node_modules/.package-lock.json -nt package-lock.json ] || (npm ci --no-audit --no-fund --silent && touch node_modules/.package-lock.json))
mkdir -p build/test/console
CHROMIUM=$(command -v chromium) BIN=$PWD/bin/penstock OUT=$PWD/build/test/console \
  node --test --test-concurrency=1 --test-timeout=300000 --test-reporter=spec e2e/console/*.test.mjs
echo "LAYER: $(chromium --version 2>/dev/null | cut -d' ' -f1-2), $(ls build/test/console/*.png | wc -l) screenshots in build/test/console; alert rules"
