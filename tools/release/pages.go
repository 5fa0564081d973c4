// SPDX-License-Identifier: Apache-2.0

package main

import (
	"bytes"
	"compress/gzip"
	"io"
	"os"
	"path/filepath"

	"github.com/spf13/cobra/doc"

	"github.com/penstock-project/penstock/internal/cli"
)

// pages writes the manual pages of all commands into man/ and the completions of
// three shells into completions/.
func (r *release) pages([]binary) error {
	root := cli.Tree()
	man := filepath.Join(r.out, "man")
	if err := os.MkdirAll(man, 0o755); err != nil {
		return err
	}
	date := r.epoch
	h := &doc.GenManHeader{Section: "1", Date: &date, Source: "penstock " + r.version, Manual: "Penstock"}
	if err := doc.GenManTree(root, h, man); err != nil {
		return err
	}
	made, err := filepath.Glob(filepath.Join(man, "*.1"))
	if err != nil {
		return err
	}
	for _, p := range made {
		if err := compress(p); err != nil {
			return err
		}
	}
	dir := filepath.Join(r.out, "completions")
	if err := os.MkdirAll(dir, 0o755); err != nil {
		return err
	}
	for name, write := range map[string]func(io.Writer) error{
		"penstock.bash": func(w io.Writer) error { return root.GenBashCompletionV2(w, true) },
		"_penstock":     root.GenZshCompletion,
		"penstock.fish": func(w io.Writer) error { return root.GenFishCompletion(w, true) },
	} {
		var b bytes.Buffer
		if err := write(&b); err != nil {
			return err
		}
		if err := os.WriteFile(filepath.Join(dir, name), b.Bytes(), 0o644); err != nil {
			return err
		}
	}
	return nil
}

// compress replaces a page by its gzip form, which man reads; the header of the
// stream has no name and no time.
func compress(path string) error {
	text, err := os.ReadFile(path)
	if err != nil {
		return err
	}
	var b bytes.Buffer
	z, err := gzip.NewWriterLevel(&b, gzip.BestCompression)
	if err != nil {
		return err
	}
	if _, err := z.Write(text); err != nil {
		return err
	}
	if err := z.Close(); err != nil {
		return err
	}
	if err := os.WriteFile(path+".gz", b.Bytes(), 0o644); err != nil {
		return err
	}
	return os.Remove(path)
}
