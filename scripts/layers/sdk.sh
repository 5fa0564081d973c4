#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# The OpenAI and Anthropic SDKs for Python and npm, unmodified, stream and do not stream
# through `penstock serve` in front of two simulated replicas; the Anthropic ones also
# through a pool that is told to put their API in terms of chat completions.
set -euo pipefail
. scripts/lib.sh
trap stop_all EXIT
make -s build
py=$(venv sdk openai==3.57.0 anthropic==2.14.0)
js=$(npm_env sdk openai@7.59.0 @anthropic-ai/sdk@1.14.0)

read -r r0 r1 http admin h2 a2 < <(free_ports 6)
bin/penstock replica --model llama-3.1-8b --listen 127.0.0.1:"$r0" --speed 20 &
bin/penstock replica --model llama-3.1-8b --listen 127.0.0.1:"$r1" --speed 20 &
bin/penstock serve --replica http://127.0.0.1:"$r0" --replica http://127.0.0.1:"$r1" \
  --listen 127.0.0.1:"$http" --admin 127.0.0.1:"$admin" &
wait_for "http://127.0.0.1:$http/readyz" 60
export BASE_URL=http://127.0.0.1:$http
"$py/bin/python" e2e/sdk/openai_check.py
cp e2e/sdk/openai_check.mjs "$js/"
node "$js/openai_check.mjs"

dir=$(mktemp -d)
cat >"$dir/penstock.yaml" <<YAML
listen: {http: "127.0.0.1:$h2", admin: "127.0.0.1:$a2"}
pools:
  - name: old
    models: [{name: llama-3.1-8b, aliases: [claude]}]
    replicas: {static: ["http://127.0.0.1:$r0"]}
    engine: {messages: translate}
YAML
bin/penstock serve --config "$dir/penstock.yaml" --log-level warn &
wait_for "http://127.0.0.1:$h2/readyz" 60
cp e2e/sdk/anthropic_check.mjs "$js/"
for at in "$http llama-3.1-8b" "$h2 claude"; do
  read -r port model <<<"$at"
  BASE_URL=http://127.0.0.1:$port MODEL=$model "$py/bin/python" e2e/sdk/anthropic_check.py
  BASE_URL=http://127.0.0.1:$port MODEL=$model node "$js/anthropic_check.mjs"
done
rm -rf "$dir"
echo "LAYER: openai and anthropic, Python and npm; messages native and translated"
