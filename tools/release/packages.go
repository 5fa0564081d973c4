// SPDX-License-Identifier: Apache-2.0

package main

import (
	"os"
	"path/filepath"

	"github.com/goreleaser/nfpm/v2"
	_ "github.com/goreleaser/nfpm/v2/deb" // registers the format
	"github.com/goreleaser/nfpm/v2/files"
	_ "github.com/goreleaser/nfpm/v2/rpm" // registers the format
)

const (
	homepage = "https://github.com/penstock-project/penstock"
	summary  = "AI gateway, inference router and autoscaler for LLM replicas"
	license  = "Apache-2.0"
)

// packages writes a deb and an rpm for each binary.
func (r *release) packages(bins []binary) error {
	for _, b := range bins {
		for _, format := range []string{"deb", "rpm"} {
			if err := r.pack(b, format); err != nil {
				return err
			}
		}
	}
	return nil
}

// pack writes one package.
func (r *release) pack(b binary, format string) error {
	contents, err := r.contents(b.path)
	if err != nil {
		return err
	}
	scripts := filepath.Join(r.top, "deploy", "systemd")
	info := nfpm.WithDefaults(&nfpm.Info{
		Name: "penstock", Arch: b.arch, Platform: "linux", MTime: r.epoch,
		Version: packageVersion(r.version), VersionSchema: "none", Release: "1",
		Section: "net", Priority: "optional", Maintainer: "The Penstock project <packages@penstock.invalid>",
		Vendor: "The Penstock project", Homepage: homepage, License: license, DisableGlobbing: true,
		Description: summary + "\nPuts each request on the replica of vLLM, SGLang, TensorRT-LLM, llama.cpp or TGI\nthat will answer it soonest, and keeps just enough replicas running.",
		Overridables: nfpm.Overridables{
			Contents: contents, Umask: 0o022,
			Recommends: []string{"ca-certificates"},
			Scripts: nfpm.Scripts{
				PostInstall: filepath.Join(scripts, "after-install.sh"),
				PreRemove:   filepath.Join(scripts, "before-remove.sh"),
				PostRemove:  filepath.Join(scripts, "after-remove.sh"),
			},
			RPM: nfpm.RPM{Summary: summary, Group: "System Environment/Daemons", BuildHost: "localhost", Compression: "gzip:9"},
			Deb: nfpm.Deb{Compression: "gzip"},
		},
	})
	p, err := nfpm.Get(format)
	if err != nil {
		return err
	}
	info.Target = filepath.Join(r.out, p.ConventionalFileName(info))
	f, err := os.Create(info.Target)
	if err != nil {
		return err
	}
	defer f.Close()
	if err := p.Package(info, f); err != nil {
		return err
	}
	return f.Close()
}

// contents lists the files of a package.
func (r *release) contents(bin string) (files.Contents, error) {
	var list files.Contents
	add := func(src, dst, kind string, mode os.FileMode) {
		list = append(list, &files.Content{
			Source: src, Destination: dst, Type: kind,
			FileInfo: &files.ContentFileInfo{Owner: "root", Group: "root", Mode: mode, MTime: r.epoch},
		})
	}
	systemd := filepath.Join(r.top, "deploy", "systemd")
	add(bin, "/usr/bin/penstock", "", 0o755)
	add(filepath.Join(systemd, "penstock.service"), "/usr/lib/systemd/system/penstock.service", "", 0o644)
	add(filepath.Join(systemd, "penstock.yaml"), "/etc/penstock/penstock.yaml", "config|noreplace", 0o644)
	done := filepath.Join(r.out, "completions")
	add(filepath.Join(done, "penstock.bash"), "/usr/share/bash-completion/completions/penstock", "", 0o644)
	add(filepath.Join(done, "_penstock"), "/usr/share/zsh/site-functions/_penstock", "", 0o644)
	add(filepath.Join(done, "penstock.fish"), "/usr/share/fish/vendor_completions.d/penstock.fish", "", 0o644)
	// Glob returns a sorted list.
	man, err := filepath.Glob(filepath.Join(r.out, "man", "*.1.gz"))
	if err != nil {
		return nil, err
	}
	for _, p := range man {
		add(p, "/usr/share/man/man1/"+filepath.Base(p), "", 0o644)
	}
	return list, nil
}
