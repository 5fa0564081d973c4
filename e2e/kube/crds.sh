#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# Copies the CRDs of KServe and of LeaderWorkerSet, as their Go modules publish them, into
# $PENSTOCK_CACHE/kube/crds. What cannot be had is said and left out: the layer then
# makes CRDs of its own with the same names and paths, and says so.
set -uo pipefail
out=${PENSTOCK_CACHE:-$HOME/.cache/penstock}/kube/crds
mkdir -p "$out"
export GOFLAGS=-mod=mod GOWORK=off

# crd MODULE@VERSION FILE... copies files of a module.
crd() {
  local module=$1 dir file missing=0
  shift
  for file in "$@"; do [ -f "$out/${file##*/}" ] || missing=1; done
  [ $missing = 1 ] || return 0
  dir=$(cd "$out" && go mod download -json "$module" 2>/dev/null | python3 -c 'import json,sys; print(json.load(sys.stdin).get("Dir", ""))')
  [ -n "$dir" ] || { echo "the CRDs of $module cannot be had" >&2 && return 0; }
  for file in "$@"; do cp "$dir/$file" "$out/" && chmod u+w "$out/${file##*/}"; done
}

crd sigs.k8s.io/lws@v0.7.0 config/crd/bases/leaderworkerset.x-k8s.io_leaderworkersets.yaml
crd github.com/kserve/kserve@v0.17.0 config/crd/full/serving.kserve.io_inferenceservices.yaml \
  config/crd/full/llmisvc/serving.kserve.io_llminferenceservices.yaml
echo "$out"
