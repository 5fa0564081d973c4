// SPDX-License-Identifier: Apache-2.0

package sim

import (
	"math"
	"testing"

	"github.com/penstock-project/penstock/internal/dispatch"
	"github.com/penstock-project/penstock/internal/route"
)

// Every part can be left out, each run is the production code, and what is left out
// shows: in an overloaded cell no run without a part of weight equals the whole one.
func TestAblationLeavesPartsOut(t *testing.T) {
	parts := Ablations()
	if len(parts) != 1+route.NumTerms-1+5 || parts[0].Name != Ours || parts[0].Without != (dispatch.Without{}) || parts[len(parts)-1].Queue {
		t.Fatalf("%+v", parts)
	}
	seen := map[string]bool{}
	for _, p := range parts {
		if seen[p.Name] {
			t.Errorf("two parts are called %s", p.Name)
		}
		seen[p.Name] = true
	}
	cell := NewCell(CellSeed(2, 4), 300)
	runs := []CellRuns{RunCell(cell, parts)}
	r := Ablate(2, runs, parts)
	if r.Schema != AblationSchema || r.Cells != 1 || len(r.Parts) != len(parts)-1 || len(r.Each[0].TTFT) != len(r.Parts) {
		t.Fatalf("%+v", r)
	}
	whole := runs[0].Results[0][0]
	for i, w := range r.Parts {
		got := runs[0].Results[i+1][0]
		if got.Requests+got.Failed != whole.Requests+whole.Failed {
			t.Errorf("without %s %d requests, with it %d", w.Part, got.Requests, whole.Requests)
		}
		x := value(ttftValue).mean(runs[0].Results[i+1], -1) / value(ttftValue).mean(runs[0].Results[0], -1)
		if math.Abs(w.TTFT.Geomean-x) > 1e-9 || w.TTFT.Worst != w.TTFT.Least {
			t.Errorf("%s: %+v, want %v", w.Part, w.TTFT, x)
		}
	}
	for _, name := range []string{"prefill", "followers", "order", "queue"} {
		if r.Each[0].TTFT[name] == 1 {
			t.Errorf("without %s nothing changed: %+v", name, r.Each[0])
		}
	}
}
