// SPDX-License-Identifier: Apache-2.0

package scalesim

import (
	"strings"
	"testing"
)

// Every named situation shows the harm with what people use and its absence with
// ours. Those that take minutes are played by `penstock sim scale --scenario`.
func TestNamedScenarios(t *testing.T) {
	if testing.Short() {
		t.Skip("simulates hours of traffic")
	}
	quick := map[string]bool{"cpu-never-scales": true, "flap-3-6": true, "cold-replica": true, "X2": true, "X7": true, "X8": true}
	names := ""
	for _, n := range NamedScenarios() {
		names += n.Name + " "
		if !quick[n.Name] {
			continue
		}
		t.Run(n.Name, func(t *testing.T) {
			r := n.play(3, nil, []float64{60})
			if len(r.Goals) == 0 || len(r.Parts) == 0 && n.Name != "X7" {
				t.Fatal("nothing was played")
			}
			for _, g := range r.Goals {
				if !g.Met {
					t.Errorf("%s: %s", g.Goal, g.Got)
				}
			}
			if n.Name != "X2" {
				return
			}
			if a := n.play(3, nil, []float64{60}); a.Goals[0] != r.Goals[0] {
				t.Errorf("two plays of one seed differ: %+v and %+v", a.Goals[0], r.Goals[0])
			}
		})
	}
	for _, want := range []string{"X1", "X2", "X3", "X4", "X5", "X6", "X7", "X8", "X9"} {
		if !strings.Contains(names, want+" ") {
			t.Errorf("no scenario %s", want)
		}
	}
}
