// SPDX-License-Identifier: Apache-2.0

package cli

import (
	"bytes"
	"encoding/json"
	"errors"
	"strings"
	"testing"
	"time"

	"github.com/penstock-project/penstock/internal/load"
)

// A short demo of adapters is complete: both policies on the same requests, loads
// and residents as the replicas count them, a verdict that goes with the exit code.
func TestLoRADemoEndToEnd(t *testing.T) {
	var out, errs bytes.Buffer
	e := &Env{Stdout: &out, Stderr: &errs, Getenv: func(string) string { return "" }, Context: t.Context()}
	err := runLoRADemo(t.Context(), e, &demoFlags{listen: "127.0.0.1:0", admin: "127.0.0.1:0", duration: 16 * time.Second, seed: 1}, true)
	var r loraDemoReport
	if e := json.Unmarshal(out.Bytes(), &r); e != nil {
		t.Fatalf("%v, %v in %s\n%s", err, e, out.String(), errs.String())
	}
	var f *Fault
	if r.OK != (err == nil) || err != nil && (!errors.As(err, &f) || f.Code != ExitFindings) {
		t.Errorf("%v with %s", err, out.String())
	}
	if r.Schema != "penstock/demo-lora/v1" || r.Replicas != 8 || r.Slots != 4 || r.Adapters != 218 || len(r.Phases) != 2 || r.Verdict == "" {
		t.Fatalf("%s", out.String())
	}
	for i, p := range r.Phases {
		if p.Policy != demoPolicies[i] || p.Errors != 0 || p.Requests == 0 || p.TTFT == nil || p.TTFT.Mean <= 0 {
			t.Errorf("phase %+v", p)
		}
		if p.Loads == 0 || p.Evictions > p.Loads || p.Resident <= 0 || p.Resident > p.Ceiling || p.Imbalance < 1 {
			t.Errorf("phase %+v", p)
		}
	}
	if a, b := r.Phases[0].Resident, r.Phases[1].Resident; a >= b {
		t.Errorf("%.2f resident under random and %.2f under penstock", a, b)
	}
}

func TestLoRADemoVerdict(t *testing.T) {
	report := func(change func(random, ours *loraDemoPhase)) *loraDemoReport {
		random := loraDemoPhase{Policy: "random", Resident: 0.3, Ceiling: 0.8, Imbalance: 1.1, TTFT: &load.Latency{Mean: 600}}
		ours := loraDemoPhase{Policy: "penstock", Resident: 0.65, Ceiling: 0.8, Imbalance: 1.1, TTFT: &load.Latency{Mean: 100}}
		change(&random, &ours)
		r := &loraDemoReport{Phases: []loraDemoPhase{random, ours}, Goal: loraDemoGoal{Resident: 0.75, Imbalance: 1.25}}
		r.judge()
		return r
	}
	for want, change := range map[string]func(random, ours *loraDemoPhase){
		"2.2 times as many requests": func(_, _ *loraDemoPhase) {},
		"59% resident is below 60%":  func(_, ours *loraDemoPhase) { ours.Resident = 0.59 },
		"imbalance of 1.30":          func(_, ours *loraDemoPhase) { ours.Imbalance = 1.3 },
		"2 requests were lost":       func(_, ours *loraDemoPhase) { ours.Errors = 2 },
		"not below 90.0 ms":          func(random, _ *loraDemoPhase) { random.TTFT.Mean = 90 },
		"no request was answered":    func(_, ours *loraDemoPhase) { ours.TTFT = nil },
	} {
		r := report(change)
		if !strings.Contains(r.Verdict, want) || r.OK != strings.Contains(r.Verdict, "times as many") {
			t.Errorf("ok %v, %q, want %q", r.OK, r.Verdict, want)
		}
	}
}

func TestLoRADemoRefusesBadFlags(t *testing.T) {
	for args, want := range map[string]string{
		"--lora --duration 20s": "--duration must be at least 30s with --lora",
		"--lora --scale":        "--scale, --weather and --lora exclude each other",
	} {
		var out, errs bytes.Buffer
		e := &Env{Args: append([]string{"demo"}, strings.Fields(args)...), Stdout: &out, Stderr: &errs,
			Getenv: func(string) string { return "" }, Context: t.Context()}
		if code := Main(e); code != ExitUsage || !strings.Contains(errs.String(), want) {
			t.Errorf("%s: exit %d, %s", args, code, errs.String())
		}
	}
}
