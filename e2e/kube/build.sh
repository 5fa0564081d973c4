#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# Builds the Kubernetes control plane, etcd, kwok and kubectl from their published
# Go modules into $PENSTOCK_CACHE/kube/bin-VERSION. Nothing is downloaded but modules.
#
#   e2e/kube/build.sh [VERSION]      default v1.37.2
#
# Versions lie side by side. kubectl, etcd and kwok are built once and shared: kubectl may
# be one minor version away from its server, and the others are of no Kubernetes version.
# What is there already is kept, so an interrupted build goes on where it was. GOFLAGS is
# taken over, so GOFLAGS=-p=2 bounds the compilers that run at once.
set -euo pipefail
newest=v1.37.2
version=${1:-$newest}
cache=${PENSTOCK_CACHE:-$HOME/.cache/penstock}/kube
bin=$cache/bin-$version
etcd_version=v3.6.16
kwok_version=v0.8.0
mkdir -p "$bin"
export GOFLAGS="${GOFLAGS:-} -mod=mod -buildvcs=false" CGO_ENABLED=0 GOWORK=off

# module_dir MODULE@VERSION prints where the module cache holds it.
module_dir() {
  go mod download -json "$1" | python3 -c 'import json,sys; print(json.load(sys.stdin)["Dir"])'
}

# build BINARY LDFLAGS PACKAGE compiles in the current module, by way of a
# temporary name, so that a binary that exists is complete.
build() {
  [ ! -x "$bin/$1" ] || return 0
  local start=$SECONDS
  go build -trimpath -ldflags "-s -w $2" -o "$bin/$1.new" "$3"
  mv "$bin/$1.new" "$bin/$1"
  echo "built $1 in $((SECONDS - start)) s" >&2
}

build_etcd() {
  [ ! -x "$bin/etcd" ] || return 0
  local dir=$cache/etcd-$etcd_version
  mkdir -p "$dir" && cd "$dir"
  # The module of the etcd command is not published, that of its server is.
  printf 'package main\n\nimport (\n\t"os"\n\n\t"go.etcd.io/etcd/server/v3/etcdmain"\n)\n\nfunc main() { etcdmain.Main(os.Args) }\n' >main.go
  [ -f go.mod ] || { go mod init etcd && go mod edit -require=go.etcd.io/etcd/server/v3@"$etcd_version"; } 2>/dev/null
  build etcd "" .
}

# build_kubernetes COMMAND...: k8s.io/kubernetes replaces its staging modules by folders of its
# repository; here they are replaced by the modules published for the same release.
build_kubernetes() {
  local dir=$cache/kubernetes-$version minor=${version#v1.} src pkg
  pkg=k8s.io/component-base/version
  mkdir -p "$dir" && cd "$dir"
  if [ ! -f go.mod ]; then
    src=$(module_dir "k8s.io/kubernetes@$version")
    go mod init kubernetes 2>/dev/null
    python3 - "$src/go.mod" "$version" "v0.$minor" <<'PY' | xargs go mod edit
import re, sys
text = open(sys.argv[1]).read()
print("-go=" + re.search(r"^go (\S+)", text, re.M).group(1))
print("-require=k8s.io/kubernetes@" + sys.argv[2])
for name in re.findall(r"^\s*(\S+) => \./staging/", text, re.M):
    print(f"-replace={name}={name}@{sys.argv[3]}")
PY
  fi
  local ld="-X $pkg.gitVersion=$version -X $pkg.gitMajor=1 -X $pkg.gitMinor=${minor%%.*} -X $pkg.gitTreeState=clean"
  for cmd in "$@"; do
    go mod edit -tool=k8s.io/kubernetes/cmd/$cmd
    build $cmd "$ld" k8s.io/kubernetes/cmd/$cmd
  done
}

build_kwok() {
  [ ! -x "$bin/kwok" ] || return 0
  local dir=$cache/kwok-$kwok_version src
  mkdir -p "$dir" && cd "$dir"
  if [ ! -f go.mod ]; then
    src=$(module_dir "sigs.k8s.io/kwok@$kwok_version")
    go mod init kwok 2>/dev/null
    go mod edit -go="$(sed -n 's/^go //p' "$src/go.mod")" -require=sigs.k8s.io/kwok@"$kwok_version" -tool=sigs.k8s.io/kwok/cmd/kwok
  fi
  build kwok "" sigs.k8s.io/kwok/cmd/kwok
}

if [ "$version" = "$newest" ]; then
  build_etcd
  build_kubernetes kube-apiserver kube-controller-manager kubectl
  build_kwok
else
  shared=$("$0" "$newest")
  for b in etcd kubectl kwok; do ln -sfn "../${shared##*/}/$b" "$bin/$b"; done
  build_kubernetes kube-apiserver kube-controller-manager
fi
echo "$bin"
