// SPDX-License-Identifier: Apache-2.0

package manifest_test

import (
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"testing"

	"github.com/penstock-project/penstock/internal/diagnose"
	"github.com/penstock-project/penstock/internal/manifest"
	"github.com/penstock-project/penstock/internal/testinput"
)

func readFiles(t *testing.T, paths ...string) (*diagnose.Set, []*manifest.Problem) {
	t.Helper()
	var in []manifest.Input
	for _, p := range paths {
		b, err := os.ReadFile(p)
		if err != nil {
			t.Fatal(err)
		}
		in = append(in, manifest.Input{Name: filepath.Base(p), Data: b})
	}
	return manifest.Read(in)
}

func codes(fs []diagnose.Finding) []string {
	out := []string{}
	for _, f := range fs {
		out = append(out, f.Code)
	}
	slices.Sort(out)
	return out
}

func dump(fs []diagnose.Finding) string {
	b, _ := json.MarshalIndent(fs, "", " ")
	return string(b)
}

// TestCases runs the acceptance cases that are manifests: each gives the findings
// named here and only these.
func TestCases(t *testing.T) {
	for _, c := range []struct {
		dir   string
		files []string
		want  []string
	}{
		{"11-cpu-hpa-never-scaled", []string{"hpa.yaml"}, []string{"cpu-signal"}},
		{"11-cpu-hpa-never-scaled", []string{"hpa.yaml", "timeline.csv"}, []string{"cpu-signal"}},
		{"12-keda-empty-vector", []string{"scaledobject.yaml"}, []string{"no-fallback"}},
		{"12-keda-empty-vector", []string{"scaledobject.yaml", "prom-response.json", "timeline.csv"}, []string{"no-fallback"}},
		{"18-hpa-unready-and-missing", []string{"a-status.json"}, []string{"value-times-ready"}},
		{"18-hpa-unready-and-missing", []string{"b-describe.txt"}, []string{"metric-unavailable"}},
		{"19-probe-budget-too-small", []string{"probes-a.yaml", "measured.yaml"}, []string{"liveness-too-strict", "startup-budget-too-small"}},
		{"19-probe-budget-too-small", []string{"probes-b.yaml", "measured.yaml"}, []string{"liveness-kills-start"}},
		{"20-drain-cuts-streams", []string{"pod.yaml"}, []string{"grace-too-short"}},
		{"20-drain-cuts-streams", []string{"pod.yaml", "running.json"}, []string{"grace-too-short"}},
		{"23-gpu-quota-scale-up", []string{"policy.yaml", "events.txt"}, []string{"max-above-quota", "replicas-blocked"}},
		{"50-gpu-rollout-deadlock", []string{"deployment.yaml", "cluster.yaml"}, []string{"rollout-deadlock"}},
		{"50-gpu-rollout-deadlock", []string{"deployment.yaml", "events.txt"}, []string{"rollout-deadlock"}},
		{"50-gpu-rollout-deadlock", []string{"deployment.yaml", "cluster.yaml", "events.txt"}, []string{"rollout-deadlock"}},
		{"62-scaledobject-unaggregated", []string{"scaledobject.yaml"}, []string{"average-value-semantics", "cooldown-only-to-zero", "multiple-elements", "no-fallback"}},
		{"62-scaledobject-unaggregated", []string{"scaledobject.yaml", "prom-one.json", "prom-two.json"}, []string{"average-value-semantics", "cooldown-only-to-zero", "multiple-elements", "no-fallback"}},
		{"65-target-units", []string{"a.yaml"}, []string{"target-unreachable"}},
		{"65-target-units", []string{"b.yaml"}, []string{"target-always-exceeded"}},
		{"65-target-units", []string{"a.yaml", "b.yaml", "observed.yaml"}, []string{"target-always-exceeded", "target-unreachable"}},
		{"66-object-value-multiplies", []string{"hpa.yaml"}, []string{"scale-up-unbounded", "value-multiplies"}},
		{"66-object-value-multiplies", []string{"hpa.yaml", "adapter-rule.yaml"}, []string{"namespace-mixed-models", "scale-up-unbounded", "value-multiplies"}},
		{"67-inferencepool-mixed-api", []string{"set-a.yaml"}, []string{"failure-mode-default", "group-mismatch-route", "picker-port", "picker-watches-other-group"}},
		{"67-inferencepool-mixed-api", []string{"set-a.yaml", "pods.yaml"}, []string{"failure-mode-default", "group-mismatch-route", "picker-port", "picker-watches-other-group"}},
		{"67-inferencepool-mixed-api", []string{"set-b.yaml", "pods.yaml"}, []string{"pool-field-renamed", "pool-field-renamed", "selector-form", "selector-matches-0-pods"}},
		{"69-readiness-and-command", []string{"deployment.yaml"}, []string{"command-single-string", "no-startup-probe", "readiness-tcp"}},
	} {
		t.Run(c.dir+fmt.Sprint(c.files), func(t *testing.T) {
			var paths []string
			for _, f := range c.files {
				paths = append(paths, testinput.Shared(t, "cases/"+c.dir+"/"+f))
			}
			set, problems := readFiles(t, paths...)
			for _, p := range problems {
				t.Error(p)
			}
			got := diagnose.Lint(set)
			if !slices.Equal(codes(got), c.want) {
				t.Errorf("got %v, want %v\n%s", codes(got), c.want, dump(got))
			}
			for _, f := range got {
				if f.File == "" || f.Message == "" || f.Remedy == "" || len(f.Evidence) == 0 {
					t.Errorf("incomplete: %s", dump([]diagnose.Finding{f}))
				}
			}
		})
	}
}
