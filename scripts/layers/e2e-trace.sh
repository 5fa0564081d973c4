#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# A public trace over real HTTP through `penstock serve` in front of eight simulated
# replicas: no request fails, and the mean TTFT beats round robin's by far.
set -euo pipefail
. scripts/lib.sh
trap stop_all EXIT
trace=${PENSTOCK_SHARED:-../shared}/traces/mooncake/conversation_trace.jsonl
if [ ! -f "$trace" ]; then
  echo "LAYER: needs traces/mooncake/conversation_trace.jsonl; set PENSTOCK_SHARED to the folder that holds traces"
  exit 77
fi
make -s build
dir=$(mktemp -d)
requests=${REQUESTS:-1200}

# play POLICY runs fresh replicas and a fresh gateway, so that caches are cold.
play() {
  local policy=$1 http admin ports port args=() pids=()
  read -r http admin ports < <(free_ports 10)
  for port in $ports; do
    bin/penstock replica --model qwen3-32b --profile qwen3-32b-2xh100 --speed 8 \
      --stream-interval 8 --listen 127.0.0.1:"$port" 2>/dev/null &
    pids+=($!)
    args+=(--replica "http://127.0.0.1:$port")
  done
  bin/penstock serve --policy "$policy" --profile qwen3-32b-2xh100 "${args[@]}" \
    --listen 127.0.0.1:"$http" --admin 127.0.0.1:"$admin" 2>"$dir/$policy.log" &
  pids+=($!)
  wait_for "http://127.0.0.1:$http/readyz" 60
  bin/penstock load --target "http://127.0.0.1:$http" --trace "$trace" --speedup 16 \
    --requests "$requests" -o json >"$dir/$policy.json"
  kill "${pids[@]}"
  wait "${pids[@]}" 2>/dev/null || true
}

play round-robin
play penstock
python3 - "$dir" <<'PY'
import json, sys
rr, ours = (json.load(open(f"{sys.argv[1]}/{p}.json")) for p in ("round-robin", "penstock"))
for name, r in (("round-robin", rr), ("penstock", ours)):
    print(f"{name:12} {r['requests']} requests, errors {r['errors']}, hit {r['hit_ratio']:.3f}, "
          f"TTFT mean {r['ttft_ms']['mean']:.0f} ms, p99 {r['ttft_ms']['p99']:.0f} ms")
    assert not any(r["errors"].values()), r["errors"]
assert ours["hit_ratio"] > rr["hit_ratio"], "the hit ratio is not better"
assert ours["ttft_ms"]["mean"] < rr["ttft_ms"]["mean"], "the mean TTFT is not better"
print(f"LAYER: {ours['requests']} requests of a public trace, mean TTFT {ours['ttft_ms']['mean'] / rr['ttft_ms']['mean']:.2f} of round robin's")
PY
