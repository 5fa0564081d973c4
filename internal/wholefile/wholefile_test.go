// SPDX-License-Identifier: Apache-2.0

package wholefile

import (
	"bytes"
	"os"
	"path/filepath"
	"sync"
	"testing"
)

func TestWrite(t *testing.T) {
	dir := t.TempDir()
	path := filepath.Join(dir, "state.json")
	for _, data := range []string{"old", "", "new"} {
		if err := Write(path, []byte(data), 0o640); err != nil {
			t.Fatal(err)
		}
		if b, err := os.ReadFile(path); err != nil || string(b) != data {
			t.Errorf("%q, %v", b, err)
		}
	}
	if st, err := os.Stat(path); err != nil || st.Mode().Perm() != 0o640 {
		t.Errorf("%v, %v", st, err)
	}
	alone(t, dir)
}

// What cannot be put in its place leaves the old file, and nothing beside it.
func TestWriteFails(t *testing.T) {
	dir := t.TempDir()
	path := filepath.Join(dir, "taken")
	if err := os.MkdirAll(filepath.Join(path, "x"), 0o700); err != nil {
		t.Fatal(err)
	}
	if err := Write(path, []byte("new"), 0o600); err == nil {
		t.Error("a folder that holds something was replaced")
	}
	alone(t, dir)
	if err := Write(filepath.Join(dir, "no", "folder"), nil, 0o600); err == nil {
		t.Error("a folder that is not there was written to")
	}
}

// Readers never see half of a file, however many write it.
func TestWriteIsWhole(t *testing.T) {
	path := filepath.Join(t.TempDir(), "f")
	texts := [][]byte{bytes.Repeat([]byte("a"), 1<<16), bytes.Repeat([]byte("b"), 1<<15)}
	if err := Write(path, texts[0], 0o600); err != nil {
		t.Fatal(err)
	}
	var wg sync.WaitGroup
	for i := range 4 {
		wg.Go(func() {
			for range 10 {
				if err := Write(path, texts[i%2], 0o600); err != nil {
					t.Error(err)
				}
			}
		})
	}
	for range 100 {
		if b, err := os.ReadFile(path); err != nil || !bytes.Equal(b, texts[0]) && !bytes.Equal(b, texts[1]) {
			t.Fatalf("%d bytes, %v", len(b), err)
		}
	}
	wg.Wait()
}

func alone(t *testing.T, dir string) {
	t.Helper()
	if all, err := os.ReadDir(dir); err != nil || len(all) != 1 {
		t.Errorf("beside the file: %v, %v", all, err)
	}
}
