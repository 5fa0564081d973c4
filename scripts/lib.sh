# SPDX-License-Identifier: Apache-2.0
# Functions that several layers use. Source it from the repository root.

# free_ports N prints N different TCP ports that are free now on 127.0.0.1, in one line.
# Ports that are asked for one by one, before they are used, may be the same.
free_ports() {
  python3 -c '
import socket, sys
held = [socket.socket() for _ in range(int(sys.argv[1]))]
for s in held:
    s.bind(("127.0.0.1", 0))
print(*(s.getsockname()[1] for s in held))' "$1"
}

# wait_for URL SECONDS waits until URL answers 200.
wait_for() {
  python3 - "$1" "$2" <<'PY'
import sys, time, urllib.request
url, limit = sys.argv[1], time.monotonic() + float(sys.argv[2])
while time.monotonic() < limit:
    try:
        if urllib.request.urlopen(url, timeout=2).status == 200:
            sys.exit(0)
    except Exception as e:
        last = e
    time.sleep(0.1)
print(f"{url} did not answer 200: {last}", file=sys.stderr)
sys.exit(1)
PY
}

# venv NAME PACKAGE... makes a Python environment under the cache once per set of
# packages and prints its folder.
venv() {
  local name=$1 dir stamp
  shift
  dir=$PENSTOCK_CACHE/venv-$name
  stamp="$*"
  if [ "$(cat "$dir/stamp" 2>/dev/null)" != "$stamp" ]; then
    rm -rf "$dir"
    python3 -m venv "$dir" >&2
    "$dir/bin/pip" install -q --disable-pip-version-check "$@" >&2
    printf '%s' "$stamp" >"$dir/stamp"
  fi
  printf '%s\n' "$dir"
}

# npm_env NAME PACKAGE... does the same for npm packages.
npm_env() {
  local name=$1 dir stamp
  shift
  dir=$PENSTOCK_CACHE/npm-$name
  stamp="$*"
  if [ "$(cat "$dir/stamp" 2>/dev/null)" != "$stamp" ]; then
    rm -rf "$dir"
    mkdir -p "$dir"
    (cd "$dir" && npm init -y >/dev/null && npm install --no-audit --no-fund --silent "$@") >&2
    printf '%s' "$stamp" >"$dir/stamp"
  fi
  printf '%s\n' "$dir"
}

# apt_install COMMAND PACKAGE installs a Debian package where its command is absent.
apt_install() {
  command -v "$1" >/dev/null 2>&1 && return 0
  if [ "$(id -u)" != 0 ]; then
    echo "LAYER: needs $1; install it with: sudo apt-get install $2"
    exit 77
  fi
  (apt-get install -y -q "$2" || { apt-get update -q && apt-get install -y -q "$2"; }) >&2
}

# core_packages prints the packages of the functional core, which internal/arch names.
core_packages() {
  local names
  names=$(sed -nE 's/.*Core: true, Packages: \[\]string\{([^}]*)\}.*/\1/p' internal/arch/doc.go | tr -d '" ' | tr ',' ' ')
  # shellcheck disable=SC2086 # a list
  go list $(printf './internal/%s/... ' $names)
}

# own_network prints the command that gives another one a network of its own; it fails
# where that is not allowed.
own_network() {
  if unshare --net true 2>/dev/null; then
    echo "unshare --net"
  elif unshare --map-root-user --net true 2>/dev/null; then
    echo "unshare --map-root-user --net"
  else
    return 1
  fi
}

# apart COMMAND... runs it with a loopback of its own, where that is allowed: then it takes
# no port from what runs beside it.
apart() {
  local ns
  if ! ns=$(own_network); then
    "$@"
    return
  fi
  # shellcheck disable=SC2086 # a command
  $ns python3 -c '
import fcntl, os, socket, struct, sys
s = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
fcntl.ioctl(s, 0x8914, struct.pack("16sh14x", b"lo", 0x1 | 0x40))  # SIOCSIFFLAGS: up, running
os.execvp(sys.argv[1], sys.argv[1:])
' "$@"
}

# stop_all ends the background jobs of this shell and waits for them.
stop_all() {
  local pids
  pids=$(jobs -p)
  [ -z "$pids" ] || kill $pids 2>/dev/null || true
  wait 2>/dev/null || true
}

# build_kube [VERSION...] builds the control plane, older ones besides, and KEDA, and copies
# the CRDs of other projects, into the cache where they are not there: an hour on two cores the first time, a minute where Go
# has its packages still.
build_kube() {
  local start=$SECONDS version
  nice -n 10 e2e/kube/build.sh >&2
  for version in "$@"; do nice -n 10 e2e/kube/build.sh "$version" >&2; done
  nice -n 10 e2e/kube/build-keda.sh >&2
  e2e/kube/crds.sh >&2
  echo "the control plane and KEDA are there after $((SECONDS - start)) s" >&2
}
