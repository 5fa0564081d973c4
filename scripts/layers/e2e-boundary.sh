#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# Two gateways and a Redis hold one tenant's limit under 500 concurrent streams with
# random aborts: exactly while the store is up, within the stated overshoot while it
# is killed and started again without its memory.
set -euo pipefail
. scripts/lib.sh
trap stop_all EXIT
apt_install redis-server redis-server
make -s build
dir=$(mktemp -d)
redis=$(free_port) rep=$(free_port) g0=$(free_port) g1=$(free_port) a0=$(free_port) a1=$(free_port)
limit=${LIMIT:-30000}

redis-server --port "$redis" --bind 127.0.0.1 --save "" --appendonly no >"$dir/redis.log" &
pid=$!
bin/penstock replica --model m --listen 127.0.0.1:"$rep" --speed 10 &

# round NAME starts two gateways of a tenant of that name and puts load on them.
round() {
  local name=$1 key i http admin pids=()
  shift
  rm -f "$dir/keys.json"
  key=$(bin/penstock key create --file "$dir/keys.json" --tenant "$name" 2>/dev/null)
  for i in 0 1; do
    http=g$i admin=a$i
    cat >"$dir/$i.yaml" <<YAML
listen: {http: "127.0.0.1:${!http}", admin: "127.0.0.1:${!admin}"}
auth: {keysFile: $dir/keys.json}
pools:
  - name: chat
    replicas: {static: ["http://127.0.0.1:$rep"]}
tenants:
  - name: $name
    limits: [{per: 1h, outputTokens: $limit}, {concurrent: 500}]
share: {redis: "127.0.0.1:$redis"}
YAML
    bin/penstock serve --config "$dir/$i.yaml" --log-level warn &
    pids+=($!)
  done
  wait_for "http://127.0.0.1:$g0/readyz" 20
  wait_for "http://127.0.0.1:$g1/readyz" 20
  env GATEWAYS="http://127.0.0.1:$g0,http://127.0.0.1:$g1" ADMINS="http://127.0.0.1:$a0,http://127.0.0.1:$a1" \
    KEY="$key" LIMIT="$limit" REDIS_PORT="$redis" REDIS_PID="$pid" "$@" python3 e2e/boundary/check.py
  kill "${pids[@]}"
  wait "${pids[@]}" || true
}

round steady SECONDS_LOAD=10 | tee "$dir/steady"
round outage SECONDS_LOAD=12 OUTAGE=1 | tee "$dir/outage"
s=$(grep -o 'charged [0-9]* of [0-9]*' "$dir/steady") o=$(grep -o 'charged [0-9]* of [0-9]*' "$dir/outage")
rm -rf "$dir"
echo "LAYER: 2 gateways, 1 limit: $s; store killed and restarted: $o"
