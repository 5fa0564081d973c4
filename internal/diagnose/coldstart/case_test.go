// SPDX-License-Identifier: Apache-2.0

package coldstart

import (
	"encoding/json"
	"math"
	"os"
	"strings"
	"testing"

	"github.com/penstock-project/penstock/internal/diagnose"
	"github.com/penstock-project/penstock/internal/testinput"
)

func caseFile(t *testing.T, name string) string {
	t.Helper()
	b, err := os.ReadFile(testinput.Shared(t, "cases/"+name))
	if err != nil {
		t.Fatal(err)
	}
	return string(b)
}

func wantFacts(t *testing.T, r *Report, want map[string]float64) {
	t.Helper()
	for k, v := range want {
		got, ok := r.Facts.Get(k)
		if !ok || math.Abs(got-v) > math.Max(0.02, v*0.002) {
			t.Errorf("%s = %v (known %v), want %v", k, got, ok, v)
		}
	}
	if t.Failed() {
		b, _ := json.MarshalIndent(r, "", " ")
		t.Log(string(b))
	}
}

func sumOfBars(r *Report) float64 {
	sum := 0.0
	for _, s := range r.Bars() {
		sum += *s.Seconds
	}
	return sum
}

func TestCase56(t *testing.T) {
	r := Analyse(Input{Logs: []Log{{"engine.log", caseFile(t, "56-vllm-09-warm-cache-start/engine.log")}}, Total: 59})
	wantFacts(t, r, map[string]float64{
		"weights_s": 0.69, "model_loading_s": 0.902026, "dynamo_s": 7.51, "compile_total_s": 7.51, "graph_capture_s": 17,
		"init_engine_s": 34.11, "init_other_s": 9.6, "kv_tokens": 613024, "unexplained_s": 23.99,
	})
	if got := sumOfBars(r); math.Abs(got-59) > 0.1 {
		t.Errorf("bars add up to %v, want 59", got)
	}
	u := r.Stage("unexplained")
	if u == nil || len(u.Evidence) < 2 || !strings.Contains(u.Evidence[1].Age, "torch.compile takes") {
		t.Errorf("the silence before torch.compile is not pointed at: %+v", u)
	}
}

func TestCase57(t *testing.T) {
	a := Analyse(Input{Logs: []Log{{"a.log", caseFile(t, "57-vllm-v0-start-log/a.log")}}})
	wantFacts(t, a, map[string]float64{"weights_gb": 14.9595, "profiling_s": 1.32, "kv_blocks": 5691, "kv_tokens": 91056})
	if _, known := a.Facts.Get("weights_s"); known {
		t.Error("a size was read as a time")
	}
	if s := a.Stage("weights"); s == nil || s.Seconds != nil {
		t.Errorf("weights: %+v, want an unknown length", s)
	}
	plain := Analyse(Input{Logs: []Log{{"b", caseFile(t, "57-vllm-v0-start-log/b-plain.log")}}})
	wantFacts(t, plain, map[string]float64{"graph_s": 10, "init_s": 14.18})
	o3 := Analyse(Input{Logs: []Log{{"b", caseFile(t, "57-vllm-v0-start-log/b-O3.log")}}})
	wantFacts(t, o3, map[string]float64{"dynamo_s": 4.6, "compile_total_s": 19.37, "graph_s": 15, "init_s": 39.34})
}

func TestCase60(t *testing.T) {
	a := Analyse(Input{Events: diagnose.ParseEvents(caseFile(t, "60-pod-events-image-pull/a-events.txt"))})
	wantFacts(t, a, map[string]float64{
		"schedule_to_pull_s": 8, "pull_s": 287.129, "pull_with_wait_s": 303.623, "image_bytes": 16525161745, "mb_per_s": 57.6, "total_s": 331,
	})
	if a.Dominant != "image-pull" {
		t.Errorf("dominant %q", a.Dominant)
	}
	for _, f := range a.Findings {
		if f.Code != "slow-start" {
			t.Errorf("unexpected %s: %s", f.Code, f.Message)
		}
	}
	b := Analyse(Input{Events: diagnose.ParseEvents(caseFile(t, "60-pod-events-image-pull/b-events.txt"))})
	var codes []string
	for _, f := range b.Findings {
		codes = append(codes, f.Code)
	}
	if got := strings.Join(codes, " "); got != "wrong-probe-path probe-beyond-budget" {
		t.Errorf("findings %q", got)
	}
}

func TestCase61(t *testing.T) {
	r := Analyse(Input{
		Logs:   []Log{{"engine.log", caseFile(t, "61-nine-minute-70b/engine.log")}},
		Events: diagnose.ParseEvents(caseFile(t, "61-nine-minute-70b/events.txt")),
	})
	wantFacts(t, r, map[string]float64{
		"total_s": 550, "node_wait_s": 97, "image_pull_s": 113.2, "p2p_s": 60, "weights_s": 118.2, "dynamo_s": 15.02, "compile_total_s": 69.63,
		"graph_s": 59, "init_engine_s": 133.1, "container_start_to_ready_s": 335, "process_start_s": 17, "init_other_s": 4.47,
	})
	if got := sumOfBars(r); math.Abs(got-550) > 0.1 {
		t.Errorf("bars add up to %v, want 550", got)
	}
	if u := r.Stage("unexplained"); u == nil || math.Abs(*u.Seconds-6.5) > 1 {
		t.Errorf("gaps %+v, want about 7 s", u)
	}
	want := []struct {
		stage string
		saves float64
	}{{"image_pull", 113.2}, {"weights", 108.2}, {"node_wait", 97}, {"p2p_check", 60}, {"graph_capture", 59}, {"compile", 54.6}}
	for i, w := range want {
		if i >= len(r.Levers) || r.Levers[i].Stage != w.stage || math.Abs(r.Levers[i].Saves-w.saves) > 1 {
			t.Errorf("lever %d: %+v, want %+v", i, r.Levers, w)
			break
		}
	}
	if len(r.WhatIf) != 2 || math.Abs(r.WhatIf[0].Total-117) > 1.5 || math.Abs(r.WhatIf[1].Total-58) > 1.5 {
		t.Errorf("what if: %+v, want about 117 and 58", r.WhatIf)
	}
	if b, _ := r.Facts.Get("startup_probe_budget_s"); b < 500 {
		t.Errorf("startup probe budget %v, want at least about 500", b)
	}
}
