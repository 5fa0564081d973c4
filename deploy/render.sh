#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# Renders deploy/helm/penstock into the plain manifests of deploy/manifests, one file
# for each file of values there, with the helm that tools/helm/go.mod pins.
#
#   deploy/render.sh            write the manifests
#   deploy/render.sh --check    say where they differ from what the chart renders
set -euo pipefail
cd "$(dirname "$0")/.."
cache=${PENSTOCK_CACHE:-$HOME/.cache/penstock}
version=$(cd tools/helm && GOWORK=off go list -m -f '{{.Version}}' helm.sh/helm/v3)
helm=$cache/helm/helm-$version
if [ ! -x "$helm" ]; then
  mkdir -p "$cache/helm"
  (cd tools/helm && GOWORK=off CGO_ENABLED=0 go build -trimpath -o "$helm.new" helm.sh/helm/v3/cmd/helm)
  mv "$helm.new" "$helm"
fi
chart=deploy/helm/penstock
"$helm" lint --quiet "$chart"
status=0
for values in deploy/manifests/values/*.yaml; do
  out=deploy/manifests/$(basename "$values")
  new=$(mktemp)
  {
    echo "# SPDX-License-Identifier: Apache-2.0"
    echo "# Rendered by deploy/render.sh from the chart in $chart and $values."
    "$helm" template penstock "$chart" --namespace penstock --kube-version 1.37.2 --values "$values"
  } >"$new"
  if [ "${1:-}" != --check ]; then
    mv "$new" "$out"
  elif ! diff -u "$out" "$new" >&2; then
    echo "$out is not what the chart renders: run deploy/render.sh" >&2
    status=1
  fi
  rm -f "$new"
done
exit $status
