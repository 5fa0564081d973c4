// SPDX-License-Identifier: Apache-2.0

package scaling_test

import (
	"encoding/json"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/penstock-project/penstock/internal/diagnose"
	"github.com/penstock-project/penstock/internal/diagnose/scaling"
	"github.com/penstock-project/penstock/internal/manifest"
	"github.com/penstock-project/penstock/internal/testinput"
)

// load reads files of an acceptance case: tables as the history, logs of a
// controller as such, everything else as manifests and observations.
func load(t *testing.T, dir string, files ...string) scaling.Input {
	t.Helper()
	var in scaling.Input
	var ms []manifest.Input
	for _, f := range files {
		p := testinput.Shared(t, "cases/"+dir+"/"+f)
		b, err := os.ReadFile(p)
		if err != nil {
			t.Fatal(err)
		}
		switch {
		case filepath.Ext(f) == ".csv":
			tb, err := diagnose.ParseTable(string(b))
			if err != nil {
				t.Fatal(err)
			}
			in.Histories = append(in.Histories, scaling.History{File: f, Table: tb})
		case f == "naive.txt" || f == "controller-log.txt":
			in.Log += string(b)
		default:
			ms = append(ms, manifest.Input{Name: f, Data: b})
		}
	}
	set, problems := manifest.Read(ms)
	if len(problems) > 0 {
		t.Fatal(problems[0])
	}
	in.Set = set
	return in
}

func codes(r *scaling.Report) []string {
	out := []string{}
	for _, f := range r.Findings {
		out = append(out, f.Code)
	}
	slices.Sort(out)
	return out
}

func dump(v any) string {
	b, _ := json.MarshalIndent(v, "", " ")
	return string(b)
}

func want(t *testing.T, r *scaling.Report, list ...string) {
	t.Helper()
	if got := codes(r); !slices.Equal(got, list) {
		t.Fatalf("got %v, want %v\n%s", got, list, dump(r))
	}
}

func evidence(t *testing.T, f diagnose.Finding, name string, value any) {
	t.Helper()
	got, ok := f.Lookup(name)
	a, _ := json.Marshal(got)
	b, _ := json.Marshal(value)
	if !ok || string(a) != string(b) {
		t.Errorf("%s: %s is %s (there %v), want %s", f.Code, name, a, ok, b)
	}
}

func TestCase11(t *testing.T) {
	in := load(t, "11-cpu-hpa-never-scaled", "hpa.yaml", "timeline.csv")
	in.ColdStart = 240
	r := scaling.Analyse(in)
	want(t, r, "never-scaled")
	f := r.Findings[0]
	evidence(t, f, "cause", "cpu-signal")
	evidence(t, f, "hpa_desired_by_cpu", 1)
	evidence(t, f, "hpa_clamped", 3)
	evidence(t, f, "reject_signals", []string{"gpu_util", "rps"})
	if len(r.Replays) == 0 || r.Replays[0].FirstUp == nil || *r.Replays[0].FirstUp > 90 {
		t.Errorf("the proposal asks too late: %s", dump(r.Replays))
	}
	if h := r.Replays[0].HelpsFrom; h == nil || *h > 330 {
		t.Errorf("helps from %v", h)
	}
	if !strings.Contains(f.Remedy, "cannot fix") || !strings.Contains(f.Message, "0 -> 210") {
		t.Errorf("%s\n%s", f.Message, f.Remedy)
	}
	// Without the object the cause is not known, and nothing is invented.
	alone := scaling.Analyse(load(t, "11-cpu-hpa-never-scaled", "timeline.csv"))
	want(t, alone, "never-scaled")
	evidence(t, alone.Findings[0], "cause", nil)
}

func TestCase12(t *testing.T) {
	r := scaling.Analyse(load(t, "12-keda-empty-vector", "scaledobject.yaml", "timeline.csv"))
	want(t, r, "no-fallback") // the replicas were held in that history
}

func TestCase15(t *testing.T) {
	r := scaling.Analyse(load(t, "15-pending-cascade", "naive.txt"))
	want(t, r, "pending-cascade")
	evidence(t, r.Findings[0], "desired", []int{2, 4, 8, 16})
	evidence(t, r.Findings[0], "needed", 4)
	want(t, scaling.Analyse(load(t, "15-pending-cascade", "naive.txt", "trace.csv")), "pending-cascade")
	r = scaling.Analyse(load(t, "15-pending-cascade", "trace.csv"))
	want(t, r)
	if len(r.Replays) != 2 || r.Replays[0].MaxReplicas != 4 || r.Replays[0].Changes != 0 || r.Replays[0].Steps[0] != (scaling.Step{T: 0, Replicas: 4}) {
		t.Errorf("replays %s", dump(r.Replays))
	}
	if r.Replays[1].MaxReplicas < 16 {
		t.Errorf("the naive rule does not cascade: %s", dump(r.Replays[1]))
	}
}

func TestCase16(t *testing.T) {
	r := scaling.Analyse(load(t, "16-queue-noise-flap", "history-3-6.csv", "policy.yaml"))
	want(t, r, "flapping")
	f := r.Findings[0]
	evidence(t, f, "period", 300)
	evidence(t, f, "amplitude", 3)
	if c, _ := f.Lookup("cause"); !strings.HasPrefix(c.(string), "scale-down window (15 s) shorter than cold start (180 s)") {
		t.Errorf("cause %v", c)
	}
	r = scaling.Analyse(load(t, "16-queue-noise-flap", "readings.csv", "policy.yaml"))
	want(t, r, "flapping")
	evidence(t, r.Findings[0], "period", 30)
	evidence(t, r.Findings[0], "amplitude", 3)
	if r.Replays[0].Changes > 2 {
		t.Errorf("replay %s", dump(r.Replays))
	}
}

func TestCase23(t *testing.T) {
	r := scaling.Analyse(load(t, "23-gpu-quota-scale-up", "events.txt", "policy.yaml"))
	want(t, r, "max-above-quota", "replicas-blocked")
	for _, f := range r.Findings {
		evidence(t, f, "effective_max", 4)
		if f.Code == "replicas-blocked" {
			evidence(t, f, "causes", []string{"no-free-gpu", "resource-quota", "node-group-max"})
			evidence(t, f, "usable_replicas", 4)
		}
	}
}

func TestCase24(t *testing.T) {
	r := scaling.Analyse(load(t, "24-inert-autoscaler-echo", "policy.yaml", "models.json", "controller-log.txt"))
	want(t, r, "inert-autoscaler")
	f := r.Findings[0]
	evidence(t, f, "condition", "NoMatchingReplicas")
	evidence(t, f, "suggest", "Qwen/Qwen3-32B")
	evidence(t, f, "published_desired", nil)
	// The log alone names the model; what to use instead is then not known.
	r = scaling.Analyse(load(t, "24-inert-autoscaler-echo", "controller-log.txt"))
	want(t, r, "inert-autoscaler")
	evidence(t, r.Findings[0], "suggest", nil)
}

func TestCase18(t *testing.T) {
	r := scaling.Analyse(load(t, "18-hpa-unready-and-missing", "a-status.json"))
	want(t, r, "value-times-ready")
	evidence(t, r.Findings[0], "own_controller_desired", 12)
	r = scaling.Analyse(load(t, "18-hpa-unready-and-missing", "b-describe.txt"))
	want(t, r, "metric-unavailable")
	evidence(t, r.Findings[0], "failing_metric", "vllm_kv_cache_usage_perc")
}
