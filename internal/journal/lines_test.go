// SPDX-License-Identifier: Apache-2.0

package journal

import (
	"os"
	"path/filepath"
	"strings"
	"testing"
)

func TestLines(t *testing.T) {
	dir := t.TempDir()
	l, err := OpenLines(filepath.Join(dir, "sub"), "x.jsonl", 100)
	if err != nil {
		t.Fatal(err)
	}
	fresh := 0
	for range 10 {
		f, err := l.Write(strings.Repeat("a", 30))
		if err != nil {
			t.Fatal(err)
		}
		if f {
			fresh++
		}
	}
	if err := l.Close(); err != nil {
		t.Fatal(err)
	}
	if _, err := l.Write(1); err == nil {
		t.Error("written after the end")
	}
	for _, name := range []string{"x.jsonl", "x.jsonl.1"} {
		st, err := os.Stat(filepath.Join(dir, "sub", name))
		if err != nil || st.Size() > 100 {
			t.Errorf("%s: %v %v", name, st, err)
		}
	}
	if fresh != 4 {
		t.Errorf("%d files begun, want 4", fresh)
	}
}
