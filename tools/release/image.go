// SPDX-License-Identifier: Apache-2.0

package main

import (
	"archive/tar"
	"bytes"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"time"

	v1 "github.com/google/go-containerregistry/pkg/v1"
	"github.com/google/go-containerregistry/pkg/v1/empty"
	"github.com/google/go-containerregistry/pkg/v1/layout"
	"github.com/google/go-containerregistry/pkg/v1/mutate"
	"github.com/google/go-containerregistry/pkg/v1/tarball"
	"github.com/google/go-containerregistry/pkg/v1/types"
)

// imageUser is who the process in the image runs as: a number, so that Kubernetes can
// tell that it is not root.
const imageUser = 65532

// image writes an OCI image layout of all binaries, as a folder and as an archive. No
// container engine takes part: an image is a tar of the static binary and some JSON.
func (r *release) image(bins []binary) error {
	var index v1.ImageIndex = mutate.IndexMediaType(empty.Index, types.OCIImageIndex)
	for _, b := range bins {
		img, err := r.imageOf(b)
		if err != nil {
			return err
		}
		platform := &v1.Platform{OS: "linux", Architecture: b.arch}
		index = mutate.AppendManifests(index, mutate.IndexAddendum{Add: img, Descriptor: v1.Descriptor{Platform: platform}})
	}
	dir := filepath.Join(r.out, "oci")
	p, err := layout.Write(dir, empty.Index)
	if err != nil {
		return err
	}
	name := map[string]string{"org.opencontainers.image.ref.name": packageVersion(r.version)}
	if err := p.AppendIndex(index, layout.WithAnnotations(name)); err != nil {
		return err
	}
	return r.archive(dir, filepath.Join(r.out, "penstock-"+packageVersion(r.version)+".oci.tar"))
}

// imageOf makes the image of one architecture.
func (r *release) imageOf(b binary) (v1.Image, error) {
	content, err := r.layer(b)
	if err != nil {
		return nil, err
	}
	layer, err := tarball.LayerFromOpener(
		func() (io.ReadCloser, error) { return io.NopCloser(bytes.NewReader(content)), nil },
		tarball.WithMediaType(types.OCILayer), tarball.WithCompressedCaching)
	if err != nil {
		return nil, err
	}
	base := mutate.ConfigMediaType(mutate.MediaType(empty.Image, types.OCIManifestSchema1), types.OCIConfigJSON)
	img, err := mutate.Append(base, mutate.Addendum{
		Layer: layer, MediaType: types.OCILayer,
		History: v1.History{Created: v1.Time{Time: r.epoch}, CreatedBy: "penstock release"},
	})
	if err != nil {
		return nil, err
	}
	cfg, err := img.ConfigFile()
	if err != nil {
		return nil, err
	}
	cfg = cfg.DeepCopy()
	cfg.OS, cfg.Architecture, cfg.Created, cfg.Author = "linux", b.arch, v1.Time{Time: r.epoch}, ""
	cfg.Config = v1.Config{
		User:         "65532:65532",
		Entrypoint:   []string{"/usr/bin/penstock"},
		Cmd:          []string{"serve", "--config", "/etc/penstock/penstock.yaml"},
		Env:          []string{"PATH=/usr/bin"},
		WorkingDir:   "/var/lib/penstock",
		ExposedPorts: map[string]struct{}{"8080/tcp": {}, "9900/tcp": {}},
		StopSignal:   "SIGTERM",
		Labels: map[string]string{
			"org.opencontainers.image.title":       "penstock",
			"org.opencontainers.image.description": summary,
			"org.opencontainers.image.version":     r.version,
			"org.opencontainers.image.revision":    r.revision,
			"org.opencontainers.image.created":     r.epoch.Format(time.RFC3339),
			"org.opencontainers.image.source":      homepage,
			"org.opencontainers.image.licenses":    license,
		},
	}
	return mutate.ConfigFile(img, cfg)
}

// layer returns the file system of the image as a tar.
func (r *release) layer(b binary) ([]byte, error) {
	bin, err := os.ReadFile(b.path)
	if err != nil {
		return nil, err
	}
	conf, err := os.ReadFile(filepath.Join(r.top, "deploy", "systemd", "penstock.yaml"))
	if err != nil {
		return nil, err
	}
	var out bytes.Buffer
	t := tar.NewWriter(&out)
	for _, e := range []struct {
		name string
		mode int64
		uid  int
		data []byte // nil: a folder
	}{
		{"etc/", 0o755, 0, nil},
		{"etc/group", 0o644, 0, []byte("root:x:0:\npenstock:x:65532:\n")},
		{"etc/passwd", 0o644, 0, []byte("root:x:0:0:root:/:/sbin/nologin\npenstock:x:65532:65532:penstock:/var/lib/penstock:/sbin/nologin\n")},
		{"etc/penstock/", 0o755, 0, nil},
		{"etc/penstock/penstock.yaml", 0o644, 0, conf},
		{"tmp/", 0o1777, 0, nil},
		{"usr/", 0o755, 0, nil},
		{"usr/bin/", 0o755, 0, nil},
		{"usr/bin/penstock", 0o755, 0, bin},
		{"var/", 0o755, 0, nil},
		{"var/lib/", 0o755, 0, nil},
		{"var/lib/penstock/", 0o700, imageUser, nil},
	} {
		h := &tar.Header{Name: e.name, Mode: e.mode, Uid: e.uid, Gid: e.uid, Size: int64(len(e.data)), ModTime: r.epoch, Typeflag: tar.TypeReg, Format: tar.FormatPAX}
		if e.data == nil {
			h.Typeflag = tar.TypeDir
		}
		if err := t.WriteHeader(h); err != nil {
			return nil, err
		}
		if _, err := t.Write(e.data); err != nil {
			return nil, err
		}
	}
	return out.Bytes(), t.Close()
}

// archive writes a folder as a tar in the order of its names, without owners and with
// one time.
func (r *release) archive(dir, to string) error {
	f, err := os.Create(to)
	if err != nil {
		return err
	}
	defer f.Close()
	t := tar.NewWriter(f)
	err = filepath.WalkDir(dir, func(p string, d fs.DirEntry, err error) error {
		if err != nil || d.IsDir() {
			return err
		}
		rel, err := filepath.Rel(dir, p)
		if err != nil {
			return err
		}
		data, err := os.ReadFile(p)
		if err != nil {
			return err
		}
		h := &tar.Header{Name: filepath.ToSlash(rel), Mode: 0o644, Size: int64(len(data)), ModTime: r.epoch, Typeflag: tar.TypeReg, Format: tar.FormatPAX}
		if err := t.WriteHeader(h); err != nil {
			return err
		}
		_, err = t.Write(data)
		return err
	})
	if err != nil {
		return err
	}
	if err := t.Close(); err != nil {
		return err
	}
	return f.Close()
}
