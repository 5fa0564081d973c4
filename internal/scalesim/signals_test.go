// SPDX-License-Identifier: Apache-2.0

package scalesim

import (
	"strings"
	"testing"
)

// The question "which signal?", answered by measurement: signals that are none
// never ask in time, or ask whatever is offered.
func TestSignals(t *testing.T) {
	if testing.Short() {
		t.Skip("simulates hours of traffic")
	}
	r, err := Signals(1, 120)
	if err != nil {
		t.Fatal(err)
	}
	by := map[string]SignalVerdict{}
	for _, v := range r.Signals {
		by[v.Signal] = v
	}
	ours := by["work offered"]
	if ours.LeadS == nil || *ours.LeadS <= 0 || ours.AtRest || ours.Spike {
		t.Errorf("ours: lead %v, at rest %v, spike %v: want it to ask before every miss and at no other time", ours.LeadS, ours.AtRest, ours.Spike)
	}
	for name, v := range by {
		if name != ours.Signal && v.Loss < ours.Loss {
			t.Errorf("%s has loss %.2f, ours %.2f", name, v.Loss, ours.Loss)
		}
	}
	for _, name := range []string{"GPU utilisation", "GPU memory"} {
		if v := by[name]; !v.AtRest {
			t.Errorf("%s does not ask at rest: %+v", name, v)
		}
	}
	if v := by["CPU"]; v.LeadS != nil || !v.Spike || v.SLO > 0.5 {
		t.Errorf("CPU: lead %v, spike %v, %.2f in time: want it blind to load and awake to tokenisation", v.LeadS, v.Spike, v.SLO)
	}
	if v := by["requests/s"]; !strings.Contains(strings.Join(v.Missed, " "), "longer prompts") {
		t.Errorf("requests/s sees longer prompts: %+v", v)
	}
	if v := by["queue depth"]; v.Reversals < 2*ours.Reversals {
		t.Errorf("queue depth reverses %.1f times an hour, ours %.1f", v.Reversals, ours.Reversals)
	}
	if !strings.HasPrefix(r.Verdict, "Scale on the work") {
		t.Errorf("verdict: %s", r.Verdict)
	}
}
