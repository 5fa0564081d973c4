// SPDX-License-Identifier: Apache-2.0

package load

import (
	"archive/tar"
	"bytes"
	"compress/gzip"
	"io"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/penstock-project/penstock/internal/workload"
)

const azureText = "TIMESTAMP,ContextTokens,GeneratedTokens\n2023-11-16 18:17:03.9799600,4808,10\n"

func gzipped(t *testing.T, b []byte) []byte {
	t.Helper()
	var z bytes.Buffer
	w := gzip.NewWriter(&z)
	if _, err := w.Write(b); err != nil {
		t.Fatal(err)
	}
	w.Close()
	return z.Bytes()
}

func TestReadTraceFile(t *testing.T) {
	var archive bytes.Buffer
	a := tar.NewWriter(&archive)
	for name, text := range map[string]string{
		"big/1.csv": "0,2,1,Gamma,1,0.5\n", "big/2.csv": "0,1,1,Gamma,1,1\n", "small/1.csv": "0,3,1,Gamma,1,1\n", "big/.DS": "x",
	} {
		a.WriteHeader(&tar.Header{Name: name, Mode: 0o600, Size: int64(len(text)), Typeflag: tar.TypeReg})
		io.WriteString(a, text)
	}
	a.Close()
	dir := t.TempDir()
	write := func(name string, b []byte) string {
		p := filepath.Join(dir, name)
		if err := os.WriteFile(p, b, 0o600); err != nil {
			t.Fatal(err)
		}
		return p
	}
	for _, tc := range []struct {
		path, member string
		requests     int
		err          string
	}{
		{path: write("a.csv", []byte(azureText)), requests: 1},
		{path: write("a.csv.gz", gzipped(t, []byte(azureText))), requests: 1},
		{path: write("a.tar.gz", gzipped(t, archive.Bytes())), requests: 600 * 6},
		{path: write("a.tar", archive.Bytes()), member: "big/", requests: 600 * 3},
		{path: write("b.tar", archive.Bytes()), member: "huge", err: `b.tar: no member's name contains "huge"`},
		{path: write("c.gz", []byte("\x1f\x8bxx")), err: "c.gz: "},
		{path: write("d.csv.gz", gzipped(t, []byte(azureText+"x,1,2\n"))), err: "d.csv.gz:3: timestamp: "},
		{path: "-", requests: 1},
		{path: filepath.Join(dir, "none"), err: "no such file"},
	} {
		tr, err := ReadTraceFile(tc.path, strings.NewReader(azureText), tc.member, workload.ReadOptions{})
		if tc.err != "" {
			if err == nil || !strings.Contains(err.Error(), tc.err) {
				t.Errorf("%s: error %v, want %q", tc.path, err, tc.err)
			}
			continue
		}
		if err != nil || tr.Requests != tc.requests {
			t.Errorf("%s: %+v, %v; want %d requests", tc.path, tr, err, tc.requests)
		}
	}
}
