#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# What the router's own queue is worth over real HTTP: the same traffic through
# `penstock serve` with route.queue on and off, in turn, in front of fresh simulated
# replicas each time.
#
#   scripts/queue.sh RUNS NAME LOAD-FLAGS...
#
# prints one line of JSON a run: name, queue, run, what clients saw and what the queue
# held. docs/reference/trace-replay.md shows the result.
set -euo pipefail
cd "$(dirname "$0")/.."
. scripts/lib.sh
runs=$1 name=$2
shift 2
dir=$(mktemp -d)
trap 'stop_all; rm -rf "$dir"' EXIT
penstock=${PENSTOCK_BIN:-bin/penstock}

# play QUEUE RUN plays the traffic once.
play() {
  local queue=$1 run=$2 http admin ports port pids=() urls=()
  shift 2
  read -r http admin ports < <(free_ports 10)
  for port in $ports; do
    "$penstock" replica --model qwen3-32b --profile qwen3-32b-2xh100 --speed 2 \
      --stream-interval 8 --listen 127.0.0.1:"$port" 2>/dev/null &
    pids+=($!)
    urls+=("http://127.0.0.1:$port")
  done
  {
    echo "listen: {http: 127.0.0.1:$http, admin: 127.0.0.1:$admin}"
    echo "pools:"
    echo "  - name: chat"
    echo "    engine: {profile: qwen3-32b-2xh100}"
    echo "    route: {queue: $queue}"
    echo "    replicas:"
    echo "      static:"
    printf '        - %s\n' "${urls[@]}"
  } >"$dir/penstock.yaml"
  "$penstock" serve --config "$dir/penstock.yaml" 2>"$dir/serve.log" &
  pids+=($!)
  wait_for "http://127.0.0.1:$http/readyz" 20
  sleep 1
  "$penstock" load --target "http://127.0.0.1:$http" --seed "$run" -o json "$@" >"$dir/load.json" 2>"$dir/load.err"
  "$penstock" status --server "http://127.0.0.1:$admin" -o json >"$dir/status.json"
  kill "${pids[@]}"
  wait "${pids[@]}" 2>/dev/null || true
  python3 - "$dir" "$name" "$queue" "$run" <<'PY'
import json, sys
d, name, queue, run = sys.argv[1:]
r = json.load(open(f"{d}/load.json"))
q = json.load(open(f"{d}/status.json"))["pools"][0]["queue"]
print(json.dumps({"name": name, "queue": queue, "run": int(run), "requests": r["requests"], "failed": sum(r["errors"].values()),
    "hit": r["hit_ratio"], "ttft": r["ttft_ms"]["mean"], "p50": r["ttft_ms"]["p50"], "p99": r["ttft_ms"]["p99"], "e2e": r["e2e_ms"]["mean"], "late_p99": (r.get("late_ms") or {}).get("p99"),
    "held": q["held"], "mean_hold": q["mean_hold_ms"], "longest": q["longest_hold_ms"], "nearest": q["nearest_bound"],
    "overdue": q["overdue"], "guards": q["guards"]}), flush=True)
PY
}

for run in $(seq 1 "$runs"); do
  for queue in off on; do
    play $queue "$run" "$@"
  done
done
