#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# A Kubernetes control plane on loopback: etcd, kube-apiserver, and on request
# kube-controller-manager and kwok, from the binaries that e2e/kube/build.sh caches.
# There is no kubelet and no container: kwok says what kubelets would say of pods.
#
#   e2e/kube/cluster.sh up DIR [kcm] [kwok]     start; state, logs and admin.kubeconfig lie in DIR
#   e2e/kube/cluster.sh stop DIR NAME           end one part, e.g. kube-apiserver
#   e2e/kube/cluster.sh start DIR NAME          start it again
#   e2e/kube/cluster.sh down DIR                end all
set -euo pipefail
here=$(cd "$(dirname "$0")" && pwd)
bin=${PENSTOCK_CACHE:-$HOME/.cache/penstock}/kube/bin-${KUBE_VERSION:-v1.37.2}
action=$1 dir=$(mkdir -p "$2" && cd "$2" && pwd)
shift 2
token=penstock-e2e-admin

# A port is chosen once and kept, so that a part that is started again is found.
port() {
  local file=$dir/port-$1
  [ -f "$file" ] || python3 -c 'import socket; s = socket.socket(); s.bind(("127.0.0.1", 0)); print(s.getsockname()[1])' >"$file"
  cat "$file"
}

certificates() {
  [ ! -f "$dir/sa.pub" ] || return 0
  (
    cd "$dir"
    openssl req -x509 -newkey rsa:2048 -nodes -days 2 -subj /CN=penstock-e2e -keyout ca.key -out ca.crt
    openssl req -newkey rsa:2048 -nodes -subj /CN=kube-apiserver -keyout server.key -out server.csr
    printf 'subjectAltName=DNS:localhost,DNS:kubernetes.default.svc,IP:127.0.0.1,IP:10.96.0.1\nextendedKeyUsage=serverAuth\n' >server.ext
    openssl x509 -req -in server.csr -CA ca.crt -CAkey ca.key -CAcreateserial -days 2 -extfile server.ext -out server.crt
    openssl genrsa -out sa.key 2048
    openssl rsa -in sa.key -pubout -out sa.pub
  ) 2>/dev/null
  echo "$token,admin,admin,system:masters" >"$dir/tokens.csv"
  cat >"$dir/admin.kubeconfig" <<YAML
apiVersion: v1
kind: Config
clusters: [{name: e2e, cluster: {server: "https://127.0.0.1:$(port apiserver)", certificate-authority: $dir/ca.crt}}]
users: [{name: admin, user: {token: $token}}]
contexts: [{name: e2e, context: {cluster: e2e, user: admin, namespace: default}}]
current-context: e2e
YAML
}

# command NAME prints the command line of a part, one word a line.
command_of() {
  case $1 in
  etcd)
    printf '%s\n' "$bin/etcd" --data-dir "$dir/etcd" --unsafe-no-fsync --log-level warn \
      --listen-client-urls "http://127.0.0.1:$(port etcd)" --advertise-client-urls "http://127.0.0.1:$(port etcd)" \
      --listen-peer-urls "http://127.0.0.1:$(port etcd-peer)"
    ;;
  kube-apiserver)
    printf '%s\n' "$bin/kube-apiserver" --etcd-servers "http://127.0.0.1:$(port etcd)" --bind-address 127.0.0.1 \
      --secure-port "$(port apiserver)" --endpoint-reconciler-type none --authorization-mode RBAC --token-auth-file "$dir/tokens.csv" \
      --tls-cert-file "$dir/server.crt" --tls-private-key-file "$dir/server.key" --client-ca-file "$dir/ca.crt" \
      --service-cluster-ip-range 10.96.0.0/16 --service-account-issuer https://kubernetes.default.svc \
      --service-account-key-file "$dir/sa.pub" --service-account-signing-key-file "$dir/sa.key" --profiling=false
    ;;
  kcm)
    printf '%s\n' "$bin/kube-controller-manager" --kubeconfig "$dir/admin.kubeconfig" --bind-address 127.0.0.1 --secure-port "$(port kcm)" \
      --leader-elect=false --service-account-private-key-file "$dir/sa.key" --root-ca-file "$dir/ca.crt" \
      --controllers deployment-controller,replicaset-controller,serviceaccount-controller,garbage-collector-controller,namespace-controller
    ;;
  kwok)
    printf '%s\n' "$bin/kwok" --kubeconfig "$dir/admin.kubeconfig" --manage-all-nodes=true --config "$here/kwok.yaml" \
      --cidr "${POD_CIDR:-127.10.0.1/24}" --node-ip 127.10.0.1 --server-address "127.0.0.1:$(port kwok)"
    ;;
  *) echo "no part is named $1" >&2 && return 2 ;;
  esac
}

start() {
  local words=()
  mapfile -t words < <(command_of "$1")
  [ -x "${words[0]}" ] || { echo "${words[0]} is not there: run e2e/kube/build.sh" >&2 && return 1; }
  "${words[@]}" >>"$dir/$1.log" 2>&1 </dev/null &
  echo $! >"$dir/$1.pid"
  disown
  case $1 in
  etcd) wait_for "$1" "http://127.0.0.1:$(port etcd)/health" ;;
  kube-apiserver) wait_for "$1" "https://127.0.0.1:$(port apiserver)/readyz" ;;
  kcm) wait_for "$1" "https://127.0.0.1:$(port kcm)/healthz" ;;
  kwok) wait_for "$1" "http://127.0.0.1:$(port kwok)/healthz" ;;
  esac
}

wait_for() {
  local i
  for ((i = 0; i < 600; i++)); do
    curl -fsSk -o /dev/null --max-time 2 -H "Authorization: Bearer $token" "$2" 2>/dev/null && return 0
    kill -0 "$(cat "$dir/$1.pid")" 2>/dev/null || break
    sleep 0.1
  done
  echo "$1 did not come up; the end of its log:" >&2
  tail -n 20 "$dir/$1.log" >&2
  return 1
}

stop() {
  local pid
  [ -f "$dir/$1.pid" ] || return 0
  pid=$(cat "$dir/$1.pid")
  kill "$pid" 2>/dev/null || true
  for _ in $(seq 50); do kill -0 "$pid" 2>/dev/null || break; sleep 0.1; done
  kill -9 "$pid" 2>/dev/null || true
  rm -f "$dir/$1.pid"
}

case $action in
up)
  certificates
  for part in etcd kube-apiserver "$@"; do start "$part"; done
  ;;
start) start "$1" ;;
stop) stop "$1" ;;
down) for part in kwok kcm kube-apiserver etcd; do stop $part; done ;;
*) echo "up, start, stop or down?" >&2 && exit 2 ;;
esac
