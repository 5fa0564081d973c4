// SPDX-License-Identifier: Apache-2.0

package cli

import (
	"fmt"
	"io"
	"strings"

	"github.com/spf13/cobra"

	"github.com/penstock-project/penstock/internal/scalesim"
)

// namedScenarios lists the names and titles for help.
func namedScenarios() string {
	var b strings.Builder
	for _, n := range scalesim.NamedScenarios() {
		fmt.Fprintf(&b, "  %-17s %s\n", n.Name, n.Title)
	}
	return b.String()
}

// runNamed plays a named situation.
func runNamed(e *Env, c *cobra.Command, o *simScaleOptions, output string) error {
	for _, n := range scalesim.NamedScenarios() {
		if !strings.EqualFold(n.Name, o.scenario) {
			continue
		}
		var given *scalesim.Scenario
		if o.trace.file != "" {
			o.trace.seed = o.seed
			if n.Name != "X3" {
				return usagef("", "--scenario %s draws its own traffic; only X3 takes a --trace", n.Name)
			}
			sc, _, err := o.trace.scenario(e)
			if err != nil {
				return err
			}
			given = sc
		}
		r := n.Play(o.seed, given)
		if output == "json" {
			if err := printJSON(e.Stdout, &r); err != nil {
				return err
			}
		} else {
			printNamed(e.Stdout, &r)
		}
		return goalsMet(o.check, r.Goals)
	}
	return usagef("the scenarios are:\n"+namedScenarios(), "--scenario %q is unknown", o.scenario)
}

// goalsMet is the exit code of a run that was asked to check its goals.
func goalsMet(check bool, goals []scalesim.Goal) error {
	for _, g := range goals {
		if check && !g.Met && g.Scenarios > 0 {
			return errSilent(ExitFindings)
		}
	}
	return nil
}

func printNamed(w io.Writer, r *scalesim.NamedReport) {
	fmt.Fprintf(w, "%s: %s\n%s\n", r.Name, r.Title, r.Question)
	for i := range r.Parts {
		p := &r.Parts[i]
		fmt.Fprintf(w, "\n%s: %d requests in %.1f h, %.1f replicas offered, start %.0f s\n", p.Name, p.Requests, p.Hours, p.Mean, p.StartS)
		fmt.Fprintf(w, "%-34s %8s %9s %8s %10s %8s %8s %10s %10s\n", "POLICY", "IN SLO", "REPLICAS", "LARGEST", "X CLAIRV.", "REV/H", "STARTS/H", "TTFT P99", "TTFT MAX")
		for _, x := range p.Results {
			fmt.Fprintf(w, "%-34s %7.2f%% %9.2f %8d %10.2f %8.1f %8.1f %10s %10s\n",
				x.Policy, 100*x.Attainment, x.ReplicaHours/p.Hours, x.MaxReplicas, x.Cost, x.Reversals, x.StartsPerHour, ttftCell(x.TTFTp99), ttftCell(x.TTFTMax))
		}
	}
	printGoals(w, r.Goals)
}

func printGoals(w io.Writer, goals []scalesim.Goal) {
	fmt.Fprintf(w, "\n%-66s %-48s %4s %s\n", "GOAL", "MEASURED", "OF", "MET")
	for _, g := range goals {
		met := "met"
		switch {
		case g.Scenarios == 0:
			met = "-"
		case !g.Met:
			met = "MISSED"
		}
		fmt.Fprintf(w, "%-66s %-48s %4d %s\n", g.Goal, g.Got, g.Scenarios, met)
	}
}
