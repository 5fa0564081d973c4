// SPDX-License-Identifier: Apache-2.0

package manifest_test

import (
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/penstock-project/penstock/internal/diagnose"
	"github.com/penstock-project/penstock/internal/manifest"
)

// TestCleanSamples holds the linter to silence on well-formed samples in the styles
// of the field. A finding here is a false alarm.
func TestCleanSamples(t *testing.T) {
	files, err := filepath.Glob("testdata/clean/*")
	if err != nil || len(files) < 12 {
		t.Fatalf("%d clean samples, want at least 12 (%v)", len(files), err)
	}
	for _, f := range files {
		t.Run(filepath.Base(f), func(t *testing.T) {
			set, problems := readFiles(t, f)
			for _, p := range problems {
				t.Error(p)
			}
			if set.Objects == 0 && !strings.Contains(f, "not-a-manifest") {
				t.Error("nothing was recognised")
			}
			if got := diagnose.Lint(set); len(got) > 0 {
				t.Error(dump(got))
			}
		})
	}
	all, _ := readFiles(t, files...)
	if got := diagnose.Lint(all); len(got) > 0 {
		t.Errorf("together: %s", dump(got))
	}
}

// TestManyManifests reads 200 manifests of ordinary size. The bound is far above
// what it takes, so that a loaded machine does not fail it.
func TestManyManifests(t *testing.T) {
	b, err := os.ReadFile("testdata/clean/production-stack.yaml")
	if err != nil {
		t.Fatal(err)
	}
	var in []manifest.Input
	for range 200 {
		in = append(in, manifest.Input{Name: "m.yaml", Data: b})
	}
	start := time.Now()
	set, _ := manifest.Read(in)
	diagnose.Lint(set)
	t.Logf("200 files, %d objects: %v", set.Objects, time.Since(start))
}

func BenchmarkLint200(b *testing.B) {
	data, err := os.ReadFile("testdata/clean/llm-d-decode.yaml")
	if err != nil {
		b.Fatal(err)
	}
	var in []manifest.Input
	for range 200 {
		in = append(in, manifest.Input{Name: "m.yaml", Data: data})
	}
	for b.Loop() {
		set, _ := manifest.Read(in)
		diagnose.Lint(set)
	}
}
