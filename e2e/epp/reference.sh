#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# Builds the reference endpoint picker of the Gateway API Inference Extension from its
# published Go module into $PENSTOCK_CACHE/epp-reference and prints its folder: the
# binary is bin-VERSION/epp, its CRDs lie in crd-VERSION.
set -euo pipefail
version=${1:-v1.3.0}
module=sigs.k8s.io/gateway-api-inference-extension
cache=${PENSTOCK_CACHE:-$HOME/.cache/penstock}/epp-reference
export GOFLAGS="-mod=mod -buildvcs=false" CGO_ENABLED=0 GOWORK=off
mkdir -p "$cache/bin-$version" "$cache/build-$version"
if [ ! -x "$cache/bin-$version/epp" ]; then
  cd "$cache/build-$version"
  src=$(go mod download -json "$module@$version" | python3 -c 'import json,sys; print(json.load(sys.stdin)["Dir"])')
  if [ ! -f go.mod ]; then
    go mod init reference 2>/dev/null
    go mod edit -go="$(sed -n 's/^go //p' "$src/go.mod")" -require="$module@$version" -tool="$module/cmd/epp"
  fi
  go build -trimpath -ldflags "-s -w" -o "$cache/bin-$version/epp.new" "$module/cmd/epp"
  rm -rf "$cache/crd-$version"
  cp -r "$src/config/crd/bases" "$cache/crd-$version"
  chmod -R u+w "$cache/crd-$version"
  mv "$cache/bin-$version/epp.new" "$cache/bin-$version/epp"
fi
echo "$cache"
