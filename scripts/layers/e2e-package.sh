#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# Builds a release twice, in two folders, and compares; installs the package into a root
# folder, runs what is installed as its unit would, and upgrades the binary of the commit
# before under 200 streams, and back.
set -euo pipefail
. scripts/lib.sh
skip() {
  echo "LAYER: $1"
  exit 77
}
notes=()
git rev-parse -q --verify HEAD >/dev/null 2>&1 || skip "needs the git history of the source"
command -v dpkg-deb >/dev/null || skip "needs dpkg"
ns=$(own_network) || skip "needs a network namespace of its own: run as root, or allow user namespaces"
read -ra alone <<<"$ns"
apt_install man man-db
work=$PWD/build/package
rm -rf "$work"
mkdir -p "$work"

# What is tested is the tree as it lies here, changes included, as a commit of its own
# that no branch has: so that a change made meanwhile is in both builds or in none.
snapshot() {
  local index=$work/index tree
  cp "$(git rev-parse --git-path index)" "$index"
  GIT_INDEX_FILE=$index git add -A
  tree=$(GIT_INDEX_FILE=$index git write-tree)
  if [ "$tree" = "$(git rev-parse 'HEAD^{tree}')" ]; then
    git rev-parse HEAD
    return
  fi
  local date who=test
  date="$(git log -1 --format=%ct) +0000"
  GIT_AUTHOR_NAME=$who GIT_AUTHOR_EMAIL=$who@localhost GIT_COMMITTER_NAME=$who GIT_COMMITTER_EMAIL=$who@localhost \
    GIT_AUTHOR_DATE=$date GIT_COMMITTER_DATE=$date git commit-tree "$tree" -p HEAD -m "The tree under test"
}
# checkout COMMIT FOLDER makes a copy of the source that shares nothing but objects.
checkout() {
  git clone -q --shared --no-checkout . "$2"
  git -C "$2" checkout -q --detach "$1"
  if [ -e internal/console/ui/dist ]; then
    cp -a internal/console/ui/dist "$2/internal/console/ui/"
    mkdir -p "$2/web" && touch "$2/internal/console/ui/dist/index.html" # newer than its source
  fi
}
commit=$(snapshot)
checkout "$commit" "$work/a"
checkout "$commit" "$work/a-second-place"

echo "== the parts of the release program"
(cd "$work/a/tools/release" && CGO_ENABLED=0 GOFLAGS='' nice -n 5 go test -trimpath -vet=off -count=1 .)

echo "== two runs give the same bytes"
archs=amd64,arm64
(cd "$work/a" && ARCH=$archs OUT=$work/one nice -n 5 scripts/release.sh)
(cd "$work/a-second-place" && umask 077 && TZ=Asia/Tokyo ARCH=$archs OUT=$work/two nice -n 5 scripts/release.sh)
diff "$work/one/SHA256SUMS" "$work/two/SHA256SUMS"
(cd "$work/one" && sha256sum --quiet --check SHA256SUMS)
files=$(wc -l <"$work/one/SHA256SUMS")
one=$work/one bin=$work/one/linux-amd64/penstock
for b in "$one"/linux-*/penstock; do
  if file "$b" 2>/dev/null | grep -q 'dynamically linked'; then
    echo "$b is not static"
    exit 1
  fi
  if grep -aqF "$work" "$b"; then
    echo "$b has paths of this machine in it"
    exit 1
  fi
done
# What is made for the other architecture says so, and holds its binary and the pages.
python3 - "$one/linux-arm64/penstock" <<'PY'
import struct, sys
head = open(sys.argv[1], "rb").read(20)
assert head[:4] == b"\x7fELF" and struct.unpack_from("<H", head, 18)[0] == 183, head  # EM_AARCH64
PY
other=$(ls "$one"/*_arm64.deb)
[ "$(dpkg-deb --field "$other" Architecture)" = arm64 ]
dpkg-deb --fsys-tarfile "$other" | tar -xO ./usr/bin/penstock | cmp - "$one/linux-arm64/penstock"
dpkg-deb --fsys-tarfile "$other" | tar -t >"$work/arm64-files"
for f in man/man1/penstock-serve.1.gz bash-completion/completions/penstock zsh/site-functions/_penstock fish/vendor_completions.d/penstock.fish; do
  grep -qx "./usr/share/$f" "$work/arm64-files"
done
ls "$one"/*.aarch64.rpm "$one/penstock-linux-arm64.cdx.json" >/dev/null

echo "== the deb in a root folder"
root=$work/root
deb=$(ls "$one"/*_amd64.deb)
if [ "$(id -u)" = 0 ]; then
  mkdir -p "$root"/var/lib/dpkg/{info,updates,triggers}
  touch "$root"/var/lib/dpkg/{status,available}
  install=(dpkg --root="$root" --force-script-chrootless --force-depends --force-confold --force-architecture)
  "${install[@]}" --install "$deb"
  # What the user changed stays, on a second installation and on removal.
  echo "# mine" >>"$root/etc/penstock/penstock.yaml"
  "${install[@]}" --install "$deb"
  grep -q '^# mine' "$root/etc/penstock/penstock.yaml"
  "${install[@]}" --remove penstock
  grep -q '^# mine' "$root/etc/penstock/penstock.yaml"
  [ ! -e "$root/usr/bin/penstock" ]
  "${install[@]}" --purge penstock
  [ ! -e "$root/etc/penstock/penstock.yaml" ]
  "${install[@]}" --install "$deb"
else
  dpkg-deb --extract "$deb" "$root"
  notes+=("deb extracted, not installed: not root")
fi
cmp "$bin" "$root/usr/bin/penstock"

echo "== the unit"
if command -v systemd-analyze >/dev/null; then
  # The unit among the units of this machine, with the commands that it names.
  units=$work/units/usr/lib/systemd/system
  mkdir -p "$units" "$work/units/usr/bin" "$work/units/bin"
  cp -a /usr/lib/systemd/system/. "$units" 2>/dev/null || cp -a /lib/systemd/system/. "$units"
  cp "$root/usr/lib/systemd/system/penstock.service" "$units"
  for c in usr/bin/penstock bin/kill; do
    cp /bin/true "$work/units/$c"
  done
  systemd-analyze verify --man=no --root="$work/units" penstock.service >"$work/verify" 2>&1 || true
  if grep 'penstock' "$work/verify"; then
    exit 1
  fi
  unit=$root/usr/lib/systemd/system/penstock.service
  systemd-analyze security --offline=yes --threshold=20 --no-pager "$unit" >"$work/security" || { cat "$work/security"; exit 1; }
  notes+=("exposure $(grep -o 'level for penstock.service: [0-9.]*' "$work/security" | grep -o '[0-9.]*$')")
else
  notes+=("no systemd-analyze")
fi

echo "== the rpm"
rpm=$(ls "$one"/*.x86_64.rpm)
(apt_install rpm rpm) || true # exits where it cannot
if command -v rpm >/dev/null; then
  rpm -qpl "$rpm" 2>/dev/null | sort >"$work/rpm-files"
  for f in /usr/bin/penstock /usr/lib/systemd/system/penstock.service /etc/penstock/penstock.yaml /usr/share/man/man1/penstock.1.gz; do
    grep -qx "$f" "$work/rpm-files"
  done
  rpm -qpc "$rpm" 2>/dev/null | grep -qx /etc/penstock/penstock.yaml
else
  notes+=("rpm not listed: no rpm here")
fi

echo "== manual pages, completions, list of components"
man --warnings -l "$one/man/penstock-serve.1.gz" >"$work/man" 2>"$work/man-warnings"
grep -q -- '--drain-timeout' "$work/man"
[ ! -s "$work/man-warnings" ] || { cat "$work/man-warnings"; exit 1; }
bash -n "$one/completions/penstock.bash"
python3 - "$one/penstock-linux-amd64.cdx.json" <(go version -m "$bin") <<'PY'
import json, sys
bom = json.load(open(sys.argv[1]))
have = {(c["name"], c["version"]) for c in bom["components"]}
want = {tuple(x[1:3]) for x in (line.split("\t") for line in open(sys.argv[2]).read().replace("\n\t", "\n").splitlines()) if x[0] in ("dep", "=>")}
missing = want - have
assert bom["bomFormat"] == "CycloneDX" and want and not missing, missing
print(f"{len(want)} modules in the binary, {len(have)} components listed")
PY

echo "== the image"
python3 - "$one" <<'PY'
import gzip, hashlib, io, json, os, sys, tarfile
out = sys.argv[1]
top = os.path.join(out, "oci")
def blob(d):
    data = open(os.path.join(top, "blobs", *d["digest"].split(":")), "rb").read()
    assert len(data) == d["size"] and "sha256:" + hashlib.sha256(data).hexdigest() == d["digest"], d
    return data
assert json.load(open(os.path.join(top, "oci-layout")))["imageLayoutVersion"] == "1.0.0"
(entry,) = json.load(open(os.path.join(top, "index.json")))["manifests"]
manifests = json.loads(blob(entry))["manifests"]
assert [m["platform"]["architecture"] for m in manifests] == ["amd64", "arm64"], manifests
for m in manifests:
    binary = os.path.join(out, "linux-" + m["platform"]["architecture"], "penstock")
    manifest = json.loads(blob(m))
    config = json.loads(blob(manifest["config"]))
    assert config["config"]["User"] == "65532:65532", config
    (layer,) = manifest["layers"]
    text = gzip.decompress(blob(layer))
    assert "sha256:" + hashlib.sha256(text).hexdigest() == config["rootfs"]["diff_ids"][0]
    t = tarfile.open(fileobj=io.BytesIO(text))
    assert t.extractfile("usr/bin/penstock").read() == open(binary, "rb").read()
    print("image of", m["platform"]["os"], m["platform"]["architecture"], "runs", config["config"]["Entrypoint"], "as", config["config"]["User"])
PY

echo "== run, upgrade and roll back"
previous=()
if ! git rev-parse -q --verify HEAD~1 >/dev/null; then
  notes+=("no upgrade: the commit before is not in the history here")
elif ! git cat-file -e HEAD~1:internal/cli/handover.go 2>/dev/null; then
  notes+=("no upgrade: the commit before hands nothing over")
else
  checkout HEAD~1 "$work/before"
  (cd "$work/before" && CGO_ENABLED=0 GOFLAGS='' nice -n 5 go build -trimpath -buildvcs=auto -ldflags='-s -w -buildid=' -o "$work/previous" ./cmd/penstock)
  previous=("$work/previous")
fi
"${alone[@]}" python3 e2e/package/check.py "$root" "$bin" "${previous[@]}" | tee "$work/run"
up=$(sed -n 's/^upgrade: //p' "$work/run") back=$(sed -n 's/^roll back: //p' "$work/run")
rm -rf "$work"/a "$work"/a-second-place "$work"/before "$work"/root "$work"/units "$work"/two
notes+=("${up:+upgrade: $up}" "${back:+back: $back}")
list=$(printf '; %s' "${notes[@]}")
echo "LAYER: $files files, twice the same$list"
