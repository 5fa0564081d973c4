#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# Builds KEDA's operator and metrics adapter from the published Go module into
# $PENSTOCK_CACHE/kube/keda-VERSION, and copies its CRDs beside them.
#
#   e2e/kube/build-keda.sh [VERSION]      default v2.21.0
#
# What is there already is kept, so an interrupted build goes on where it was.
set -euo pipefail
version=${1:-v2.21.0}
module=github.com/kedacore/keda/v2
out=${PENSTOCK_CACHE:-$HOME/.cache/penstock}/kube/keda-$version
mkdir -p "$out/build" && cd "$out/build"
export GOFLAGS="${GOFLAGS:-} -mod=mod -buildvcs=false" CGO_ENABLED=0 GOWORK=off

# `go install module@version` refuses a module that replaces or excludes others, so
# a module of our own takes over those lines that name published versions.
src=$(go mod download -json "$module@$version" | python3 -c 'import json,sys; print(json.load(sys.stdin)["Dir"])')
if [ ! -f go.mod ]; then
  go mod init keda-build 2>/dev/null
  python3 - "$src/go.mod" "$module@$version" <<'PY' | xargs go mod edit
import re, sys
text = open(sys.argv[1]).read()
print("-go=" + re.search(r"^go (\S+)", text, re.M).group(1))
print("-require=" + sys.argv[2])
for old, new, v in re.findall(r"^(?:replace)?\s*(\S+(?: v\S+)?) => ([^\s.]\S*) (v\S+)", text, re.M):
    print(f"-replace={old.replace(' ', '@')}={new}@{v}")
for name, v in re.findall(r"^exclude\s+(\S+) (v\S+)", text, re.M):
    print(f"-exclude={name}@{v}")
for block in re.findall(r"^exclude \(\n(.*?)^\)", text, re.M | re.S):
    for name, v in re.findall(r"(\S+) (v\S+)", block):
        print(f"-exclude={name}@{v}")
PY
fi
mkdir -p "$out/crds" && cp "$src"/config/crd/bases/*.yaml "$out/crds/" && chmod u+w "$out"/crds/*
for pair in operator=keda-operator adapter=keda-adapter; do
  bin=${pair#*=} pkg=$module/cmd/${pair%=*}
  [ ! -x "$out/$bin" ] || continue
  start=$SECONDS
  go mod edit -tool="$pkg"
  go build -trimpath -ldflags "-s -w" -o "$out/$bin.new" "$pkg"
  mv "$out/$bin.new" "$out/$bin"
  echo "built $bin in $((SECONDS - start)) s" >&2
done
echo "$out"
