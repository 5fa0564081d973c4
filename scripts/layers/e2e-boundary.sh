#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# Two gateways and a Redis hold one tenant's limit with 500 streams really open at a
# time and random aborts: exactly while the store is up, within the stated overshoot while it
# is killed and started again without its memory. Then one tenant floods with prompts
# of 400 KB, and another's time to first token stays within 1.25 times of its value.
set -euo pipefail
. scripts/lib.sh
trap stop_all EXIT
apt_install redis-server redis-server
make -s build
dir=$(mktemp -d)
read -r redis rep g0 g1 a0 a1 r0 r1 slow_ports < <(free_ports 14)
limit=${LIMIT:-130000}

redis-server --port "$redis" --bind 127.0.0.1 --save "" --appendonly no >"$dir/redis.log" &
pid=$!
bin/penstock replica --model m --listen 127.0.0.1:"$rep" --speed 10 &
# One replica runs 128 requests at a time, so 500 open streams need several; slow ones,
# so that they stay open.
slow=""
for port in $slow_ports; do
  bin/penstock replica --model hold --listen 127.0.0.1:"$port" --speed 0.03 &
  slow+="${slow:+, }\"http://127.0.0.1:$port\""
done

# round NAME starts two gateways of a tenant of that name and puts load on them.
round() {
  local name=$1 key i http admin
  shift
  pids=() # not local: the trap runs when a failed function's variables are gone
  trap 'kill "${pids[@]}" 2>/dev/null || true' EXIT # it runs in a shell of its own, and what it started holds tee open
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
  - name: hold
    replicas: {static: [$slow]}
tenants:
  - name: $name
    limits: [{per: 1h, outputTokens: $limit}, {concurrent: 500}]
share: {redis: "127.0.0.1:$redis"}
YAML
    bin/penstock serve --config "$dir/$i.yaml" --log-level warn &
    pids+=($!)
  done
  wait_for "http://127.0.0.1:$g0/readyz" 60
  wait_for "http://127.0.0.1:$g1/readyz" 60
  env GATEWAYS="http://127.0.0.1:$g0,http://127.0.0.1:$g1" ADMINS="http://127.0.0.1:$a0,http://127.0.0.1:$a1" \
    KEY="$key" LIMIT="$limit" REDIS_PORT="$redis" REDIS_PID="$pid" "$@" python3 e2e/boundary/check.py
  kill "${pids[@]}"
  wait "${pids[@]}" || true
}

# flood compares one tenant's time to first token with and without another one's flood.
flood() {
  local victim key port
  pids=()
  trap 'kill "${pids[@]}" 2>/dev/null || true' EXIT # as in round
  rm -f "$dir/keys.json"
  victim=$(bin/penstock key create --file "$dir/keys.json" --tenant victim 2>/dev/null)
  key=$(bin/penstock key create --file "$dir/keys.json" --tenant flood 2>/dev/null)
  for port in "$r0" "$r1"; do
    bin/penstock replica --model m --listen 127.0.0.1:"$port" --speed 4 2>/dev/null &
    pids+=($!)
  done
  cat >"$dir/flood.yaml" <<YAML
listen: {http: "127.0.0.1:$g0", admin: "127.0.0.1:$a0"}
auth: {keysFile: $dir/keys.json}
pools: [{name: chat, replicas: {static: ["http://127.0.0.1:$r0", "http://127.0.0.1:$r1"]}}]
tenants: [{name: victim}, {name: flood}]
YAML
  bin/penstock serve --config "$dir/flood.yaml" --log-level warn &
  pids+=($!)
  wait_for "http://127.0.0.1:$g0/readyz" 60
  env GATEWAY="http://127.0.0.1:$g0" ADMIN="http://127.0.0.1:$a0" VICTIM="$victim" FLOOD="$key" FACTOR=1.25 python3 e2e/boundary/flood.py
  kill "${pids[@]}"
  wait "${pids[@]}" || true
}

flood | tee "$dir/flood"
round steady | tee "$dir/steady"
round outage OUTAGE=1 | tee "$dir/outage"
n=$(grep -o '[0-9]* of [0-9]* streams open' "$dir/steady") s=$(grep -o 'charged [0-9]* of [0-9]*' "$dir/steady") o=$(grep -o 'charged [0-9]* of [0-9]*' "$dir/outage")
f=$(grep -o 'x [0-9.]*' "$dir/flood")
rm -rf "$dir"
echo "LAYER: 2 gateways, 1 limit, $n at a time: $s; store killed and restarted: $o; beside a flood: TTFT $f"
