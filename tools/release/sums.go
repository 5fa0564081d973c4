// SPDX-License-Identifier: Apache-2.0

package main

import (
	"crypto/sha256"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
)

// sumsName is the file that `sha256sum --check` reads.
const sumsName = "SHA256SUMS"

// sums writes the checksums of all files but its own, in the order of their names.
func (r *release) sums([]binary) error {
	var list strings.Builder
	err := filepath.WalkDir(r.out, func(p string, d fs.DirEntry, err error) error {
		if err != nil || d.IsDir() {
			return err
		}
		rel, err := filepath.Rel(r.out, p)
		if err != nil || rel == sumsName {
			return err
		}
		f, err := os.Open(p)
		if err != nil {
			return err
		}
		defer f.Close()
		h := sha256.New()
		if _, err := io.Copy(h, f); err != nil {
			return err
		}
		fmt.Fprintf(&list, "%x  %s\n", h.Sum(nil), filepath.ToSlash(rel))
		return nil
	})
	if err != nil {
		return err
	}
	return os.WriteFile(filepath.Join(r.out, sumsName), []byte(list.String()), 0o644)
}
