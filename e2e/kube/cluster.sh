#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# A Kubernetes control plane on loopback: etcd, kube-apiserver, and on request
# kube-controller-manager and kwok, from the binaries that e2e/kube/build.sh caches.
# There is no kubelet and no container: kwok says what kubelets would say of pods.
#
#   e2e/kube/cluster.sh up DIR [kcm] [kwok] [keda-operator keda-adapter]
#                                               start; state, logs and admin.kubeconfig lie in DIR
#   e2e/kube/cluster.sh stop DIR NAME           end one part, e.g. kube-apiserver
#   e2e/kube/cluster.sh start DIR NAME          start it again
#   e2e/kube/cluster.sh down DIR                end all
set -euo pipefail
here=$(cd "$(dirname "$0")" && pwd)
cache=${PENSTOCK_CACHE:-$HOME/.cache/penstock}/kube
bin=$cache/bin-${KUBE_VERSION:-v1.37.2}
keda=$cache/keda-${KEDA_VERSION:-v2.21.0}
action=$1 dir=$(mkdir -p "$2" && cd "$2" && pwd)
shift 2
token=penstock-e2e-admin

# A port is chosen once and kept, so that a part that is started again is found.
port() {
  local file=$dir/port-$1 free
  while [ ! -s "$file" ]; do
    free=$(python3 -c 'import socket; s = socket.socket(); s.bind(("127.0.0.1", 0)); print(s.getsockname()[1])')
    grep -qxs "$free" "$dir"/port-* || echo "$free" >"$file" # another part may have been given it
  done
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
    # Who the API server is when it forwards to an aggregated API.
    openssl req -x509 -newkey rsa:2048 -nodes -days 2 -subj /CN=penstock-e2e-front-proxy -keyout proxy-ca.key -out proxy-ca.crt
    openssl req -newkey rsa:2048 -nodes -subj /CN=front-proxy-client -keyout proxy.key -out proxy.csr
    printf 'extendedKeyUsage=clientAuth\n' >proxy.ext
    openssl x509 -req -in proxy.csr -CA proxy-ca.crt -CAkey proxy-ca.key -CAcreateserial -days 2 -extfile proxy.ext -out proxy.crt
    # KEDA's parts trust each other by one certificate of their own CA.
    mkdir -p keda
    openssl req -x509 -newkey rsa:2048 -nodes -days 2 -subj /CN=penstock-e2e-keda -keyout keda/ca.key -out keda/ca.crt
    openssl req -newkey rsa:2048 -nodes -subj /CN=keda -keyout keda/tls.key -out keda.csr
    printf 'subjectAltName=DNS:localhost,DNS:keda-operator.keda.svc,DNS:keda-metrics.keda.svc,IP:127.0.0.1\nextendedKeyUsage=serverAuth,clientAuth\n' >keda.ext
    openssl x509 -req -in keda.csr -CA keda/ca.crt -CAkey keda/ca.key -CAcreateserial -days 2 -extfile keda.ext -out keda/tls.crt
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
      --service-account-key-file "$dir/sa.pub" --service-account-signing-key-file "$dir/sa.key" --profiling=false \
      --requestheader-client-ca-file "$dir/proxy-ca.crt" --requestheader-allowed-names front-proxy-client \
      --requestheader-username-headers X-Remote-User --requestheader-group-headers X-Remote-Group \
      --requestheader-extra-headers-prefix X-Remote-Extra- --proxy-client-cert-file "$dir/proxy.crt" --proxy-client-key-file "$dir/proxy.key" \
      --enable-aggregator-routing=false
    ;;
  kcm)
    printf '%s\n' "$bin/kube-controller-manager" --kubeconfig "$dir/admin.kubeconfig" --bind-address 127.0.0.1 --secure-port "$(port kcm)" \
      --leader-elect=false --service-account-private-key-file "$dir/sa.key" --root-ca-file "$dir/ca.crt" --use-service-account-credentials=true \
      --horizontal-pod-autoscaler-sync-period "${HPA_SYNC:-2s}" --horizontal-pod-autoscaler-downscale-stabilization "${HPA_DOWN:-4s}" \
      --horizontal-pod-autoscaler-initial-readiness-delay 1s \
      --controllers deployment-controller,replicaset-controller,statefulset-controller,serviceaccount-controller,garbage-collector-controller,namespace-controller,horizontal-pod-autoscaler-controller,disruption-controller
    ;;
  kwok)
    printf '%s\n' "$bin/kwok" --kubeconfig "$dir/admin.kubeconfig" --manage-all-nodes=true --config "$here/kwok.yaml" \
      --cidr "${POD_CIDR:-127.10.0.1/24}" --node-ip 127.10.0.1 --server-address "127.0.0.1:$(port kwok)"
    ;;
  # The operator would read its namespace from a service account that is not here.
  keda-operator)
    printf '%s\n' env POD_NAMESPACE=keda WATCH_NAMESPACE= KEDA_CLUSTER_OBJECT_NAMESPACE=keda KUBECONFIG="$dir/admin.kubeconfig" "$keda/keda-operator" \
      --cert-dir "$dir/keda" --leader-elect=false --enable-cert-rotation=false --metrics-bind-address "127.0.0.1:$(port keda-prom)" \
      --health-probe-bind-address "127.0.0.1:$(port keda-operator)" --metrics-service-bind-address "127.0.0.1:$(port keda-grpc)"
    ;;
  keda-adapter)
    printf '%s\n' env POD_NAMESPACE=keda WATCH_NAMESPACE= KUBECONFIG="$dir/admin.kubeconfig" "$keda/keda-adapter" --bind-address 127.0.0.1 \
      --secure-port "$(port keda-adapter)" --port "$(port keda-adapter-prom)" --metrics-service-address "localhost:$(port keda-grpc)" --cert-dir "$dir/keda" \
      --tls-cert-file "$dir/keda/tls.crt" --tls-private-key-file "$dir/keda/tls.key" --lister-kubeconfig "$dir/admin.kubeconfig" \
      --authentication-kubeconfig "$dir/admin.kubeconfig" --authorization-kubeconfig "$dir/admin.kubeconfig"
    ;;
  *) echo "no part is named $1" >&2 && return 2 ;;
  esac
}

kubectl() { "$bin/kubectl" --kubeconfig "$dir/admin.kubeconfig" "$@" >/dev/null; }

# keda_api registers KEDA's adapter, which an API server reaches by way of a Service
# that names this machine.
keda_api() {
  kubectl apply --server-side -f - <<YAML
apiVersion: v1
kind: Service
metadata: {name: keda-metrics, namespace: keda}
spec: {type: ExternalName, externalName: localhost, ports: [{port: $(port keda-adapter)}]}
---
apiVersion: apiregistration.k8s.io/v1
kind: APIService
metadata: {name: v1beta1.external.metrics.k8s.io}
spec:
  {group: external.metrics.k8s.io, version: v1beta1, groupPriorityMinimum: 100, versionPriority: 100, caBundle: $(base64 -w0 "$dir/keda/ca.crt"),
   service: {name: keda-metrics, namespace: keda, port: $(port keda-adapter)}}
YAML
}

start() {
  local words=()
  if [ "$1" = keda-operator ]; then
    kubectl apply --server-side -f "$keda/crds"
    kubectl create namespace keda 2>/dev/null || true
    kubectl wait --for condition=Established crd/scaledobjects.keda.sh crd/scaledjobs.keda.sh --timeout=120s
  fi
  mapfile -t words < <(command_of "$1")
  [ "${words[0]}" = env ] || [ -x "${words[0]}" ] || { echo "${words[0]} is not there: run e2e/kube/build.sh" >&2 && return 1; }
  "${words[@]}" >>"$dir/$1.log" 2>&1 </dev/null &
  echo $! >"$dir/$1.pid"
  disown
  case $1 in
  etcd) wait_for "$1" "http://127.0.0.1:$(port etcd)/health" ;;
  kube-apiserver) wait_for "$1" "https://127.0.0.1:$(port apiserver)/readyz" ;;
  kcm) wait_for "$1" "https://127.0.0.1:$(port kcm)/healthz" ;;
  kwok) wait_for "$1" "http://127.0.0.1:$(port kwok)/healthz" ;;
  keda-operator) wait_for "$1" "http://127.0.0.1:$(port keda-operator)/readyz" ;;
  keda-adapter)
    wait_for "$1" "https://127.0.0.1:$(port keda-adapter)/healthz"
    keda_api
    ;;
  esac
}

wait_for() {
  local i
  for ((i = 0; i < 1800; i++)); do
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
down) for part in keda-adapter keda-operator kwok kcm kube-apiserver etcd; do stop $part; done ;;
*) echo "up, start, stop or down?" >&2 && exit 2 ;;
esac
