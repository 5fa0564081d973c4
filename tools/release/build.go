// SPDX-License-Identifier: Apache-2.0

package main

import (
	"debug/buildinfo"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"runtime/debug"
	"strings"
)

// binary is one built binary and what it says of itself.
type binary struct {
	arch string
	path string
	info *debug.BuildInfo
}

// build compiles a static binary for linux/arch. No time, path or user of the machine
// ends in it: -trimpath takes the paths, -buildid= the identity of the build.
func (r *release) build(arch string) (binary, error) {
	b := binary{arch: arch, path: filepath.Join(r.out, "linux-"+arch, "penstock")}
	cmd := exec.Command("go", "build", "-trimpath", "-buildvcs=auto", "-ldflags=-s -w -buildid=", "-o", b.path, "./cmd/penstock")
	cmd.Dir = r.top
	// The version comes from the history of the source, hence no flags of the user's.
	cmd.Env = append(os.Environ(), "CGO_ENABLED=0", "GOOS=linux", "GOARCH="+arch, "GOFLAGS=", "GOAMD64=v1", "GOARM64=v8.0")
	cmd.Stdout, cmd.Stderr = os.Stderr, os.Stderr
	if err := cmd.Run(); err != nil {
		return b, fmt.Errorf("go build for %s: %w", arch, err)
	}
	var err error
	b.info, err = buildinfo.ReadFile(b.path)
	return b, err
}

// version is that of the main module: a tag, or a time and a commit.
func (b binary) version() string {
	if v := b.info.Main.Version; v != "" && v != "(devel)" {
		return v
	}
	return "v0.0.0-devel"
}

// revision is the commit, "" where the source has no history.
func (b binary) revision() string {
	for _, s := range b.info.Settings {
		if s.Key == "vcs.revision" {
			return s.Value
		}
	}
	return ""
}

// packageVersion turns a version of Go into one that orders the same way in dpkg and
// rpm: what comes before a version (v1.2.0-rc.1) follows a tilde, which sorts before
// the end of the string, and has no further hyphen, which rpm does not allow.
func packageVersion(v string) string {
	v = strings.TrimPrefix(v, "v")
	v, meta, dirty := strings.Cut(v, "+")
	base, pre, ok := strings.Cut(v, "-")
	if ok {
		base += "~" + strings.ReplaceAll(pre, "-", ".")
	}
	if dirty {
		base += "+" + strings.ReplaceAll(meta, "-", ".")
	}
	return base
}
