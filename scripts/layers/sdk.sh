#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# The OpenAI SDKs for Python and npm, unmodified, stream and do not stream through
# `penstock serve` in front of two simulated replicas.
set -euo pipefail
. scripts/lib.sh
trap stop_all EXIT
make -s build
py=$(venv sdk openai==3.57.0)
js=$(npm_env sdk openai@7.59.0)

r0=$(free_port) r1=$(free_port) http=$(free_port) admin=$(free_port)
bin/penstock replica --model llama-3.1-8b --listen 127.0.0.1:"$r0" --speed 20 &
bin/penstock replica --model llama-3.1-8b --listen 127.0.0.1:"$r1" --speed 20 &
bin/penstock serve --replica http://127.0.0.1:"$r0" --replica http://127.0.0.1:"$r1" \
  --listen 127.0.0.1:"$http" --admin 127.0.0.1:"$admin" &
wait_for "http://127.0.0.1:$http/readyz" 20
export BASE_URL=http://127.0.0.1:$http
"$py/bin/python" e2e/sdk/openai_check.py
cp e2e/sdk/openai_check.mjs "$js/"
node "$js/openai_check.mjs"
echo "LAYER: openai Python and npm"
