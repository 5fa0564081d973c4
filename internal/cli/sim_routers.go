// SPDX-License-Identifier: Apache-2.0

package cli

import (
	"fmt"
	"io"

	"github.com/penstock-project/penstock/internal/sim"
)

func onOff(s string) bool { return s == "on" || s == "off" }

// routersReport compares the runs of one router, the first contender of runs, with
// those of several.
func routersReport(f *suiteFlags, runs []sim.CellRuns, split [][]sim.Result) *sim.RoutersReport {
	cells := make([]sim.Cell, len(runs))
	one := make([][]sim.Result, len(runs))
	for i := range runs {
		cells[i], one[i] = runs[i].Cell, runs[i].Results[0]
	}
	r := sim.CompareRouters(f.routers, f.exchange == "on", cells, one, split)
	return &r
}

// printRouters prints what several routers cost against one.
func printRouters(w io.Writer, r *sim.RoutersReport) {
	talk := "that tell each other what they send"
	if !r.Exchange {
		talk = "that do not talk"
	}
	fmt.Fprintf(w, "\n%d routers %s, against one (1.00: the split costs nothing)\n", r.Routers, talk)
	for _, x := range []struct {
		name string
		s    sim.Spread
	}{{"mean TTFT", r.TTFT}, {"p99 TTFT", r.P99}, {"mean E2E", r.E2E}} {
		fmt.Fprintf(w, "  %-10s geometric mean %.3f   at most 1.05 in %.0f %% of cells   worst %.2f (%s)\n",
			x.name, x.s.Geomean, 100*x.s.Within105, x.s.Worst, x.s.WorstCell)
	}
	fmt.Fprintf(w, "  share of requests within the objective: %+.2f points\n", -100*r.SLOLost)
}
