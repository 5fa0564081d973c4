// SPDX-License-Identifier: Apache-2.0

// Package testinput finds what tests need and the project does not hold: public traces
// and engine measurements that are never copied into it, and ports that are free.
package testinput

import (
	"os"
	"path/filepath"
	"runtime"
	"testing"
)

// Shared returns the path of rel under the folder that PENSTOCK_SHARED names, by
// default the folder "shared" beside the repository. Where it is absent the test
// is skipped and says what it missed.
func Shared(t testing.TB, rel string) string {
	t.Helper()
	dir := os.Getenv("PENSTOCK_SHARED")
	if dir == "" {
		_, file, _, ok := runtime.Caller(0)
		if !ok {
			t.Skip("cannot find the repository root")
		}
		dir = filepath.Join(filepath.Dir(file), "..", "..", "..", "shared")
	}
	p := filepath.Join(dir, filepath.FromSlash(rel))
	if _, err := os.Stat(p); err != nil {
		t.Skipf("needs %s, which is not here; set PENSTOCK_SHARED to the folder that holds it", rel)
	}
	return p
}
