// SPDX-License-Identifier: Apache-2.0

package main

import (
	"debug/buildinfo"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/google/go-containerregistry/pkg/v1/layout"
	"github.com/google/go-containerregistry/pkg/v1/validate"
)

func TestPackageVersion(t *testing.T) {
	for in, want := range map[string]string{
		"v1.2.3":                             "1.2.3",
		"v1.2.3-rc.1":                        "1.2.3~rc.1",
		"v0.0.0-20261129210000-abcdef012345": "0.0.0~20261129210000.abcdef012345",
		"v0.4.1-0.20261129210000-abcdef012345+dirty":        "0.4.1~0.20261129210000.abcdef012345+dirty",
		"v0.0.0-20261129210000-abcdef012345+incompatible-x": "0.0.0~20261129210000.abcdef012345+incompatible.x",
	} {
		if got := packageVersion(in); got != want {
			t.Errorf("packageVersion(%q) = %q, want %q", in, got, want)
		}
	}
}

func TestEpochOf(t *testing.T) {
	for _, bad := range []string{"", "-1", "yesterday"} {
		if _, err := epochOf(bad); err == nil {
			t.Errorf("epochOf(%q) is accepted", bad)
		}
	}
	if got, err := epochOf("1700000000"); err != nil || !got.Equal(time.Unix(1700000000, 0)) {
		t.Errorf("epochOf: %v, %v", got, err)
	}
}

// finish makes everything but the binary, in its own folder and time zone.
func finish(t *testing.T) *release {
	t.Helper()
	out := t.TempDir()
	self, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	info, err := buildinfo.ReadFile(self)
	if err != nil {
		t.Fatal(err)
	}
	var bins []binary
	for _, arch := range []string{"amd64", "arm64"} {
		b := binary{arch: arch, path: filepath.Join(out, "linux-"+arch, "penstock"), info: info}
		if err := os.MkdirAll(filepath.Dir(b.path), 0o755); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(b.path, []byte("a binary for "+arch), 0o755); err != nil {
			t.Fatal(err)
		}
		bins = append(bins, b)
	}
	r := &release{top: "../..", out: out, version: "v1.2.3", revision: "abc", epoch: time.Unix(1700000000, 0).UTC()}
	for _, step := range []func([]binary) error{r.pages, r.packages, r.image, r.components, r.sums} {
		if err := step(bins); err != nil {
			t.Fatal(err)
		}
	}
	return r
}

func TestTwoRunsGiveTheSameBytes(t *testing.T) {
	one, two := finish(t), finish(t)
	a, err := os.ReadFile(filepath.Join(one.out, sumsName))
	if err != nil {
		t.Fatal(err)
	}
	b, err := os.ReadFile(filepath.Join(two.out, sumsName))
	if err != nil {
		t.Fatal(err)
	}
	if string(a) != string(b) {
		t.Errorf("checksums differ:\n%s\n%s", a, b)
	}
	for _, want := range []string{"penstock_1.2.3-1_amd64.deb", "penstock-1.2.3-1.x86_64.rpm", "penstock_1.2.3-1_arm64.deb", "penstock-1.2.3-1.aarch64.rpm", "penstock-1.2.3.oci.tar", "man/penstock-serve.1.gz", "completions/_penstock", "penstock-linux-amd64.cdx.json", "penstock-linux-arm64.cdx.json"} {
		if !strings.Contains(string(a), "  "+want+"\n") {
			t.Errorf("there is no %s in\n%s", want, a)
		}
	}
}

func TestImageIsWhole(t *testing.T) {
	r := finish(t)
	p, err := layout.FromPath(filepath.Join(r.out, "oci"))
	if err != nil {
		t.Fatal(err)
	}
	index, err := p.ImageIndex()
	if err != nil {
		t.Fatal(err)
	}
	if err := validate.Index(index); err != nil {
		t.Error(err)
	}
	top, err := index.IndexManifest()
	if err != nil || len(top.Manifests) != 1 {
		t.Fatal(top, err)
	}
	images, err := index.ImageIndex(top.Manifests[0].Digest)
	if err != nil {
		t.Fatal(err)
	}
	list, err := images.IndexManifest()
	if err != nil {
		t.Fatal(err)
	}
	var archs []string
	for _, m := range list.Manifests {
		archs = append(archs, m.Platform.Architecture)
	}
	if strings.Join(archs, " ") != "amd64 arm64" {
		t.Errorf("images for %q", archs)
	}
}
