// SPDX-License-Identifier: Apache-2.0

package cli

import (
	"fmt"
	"io"
	"strings"

	"github.com/penstock-project/penstock/internal/scalesim"
)

// runSignals answers which signal to scale on.
func runSignals(e *Env, o *simScaleOptions, output string) error {
	if _, err := o.trace.replicas(); err != nil {
		return err
	}
	r, err := scalesim.Signals(o.seed, o.trace.start.Seconds())
	if err != nil {
		return failf("", "%v", err)
	}
	if output == "json" {
		return printJSON(e.Stdout, r)
	}
	printSignals(e.Stdout, &r)
	return nil
}

func printSignals(w io.Writer, r *scalesim.SignalReport) {
	fmt.Fprintf(w, "an HPA on each signal, and ours: %.0f h of traffic, %s, start %.0f s, seed %d\n\n", r.Hours, r.Model, r.StartS, r.Seed)
	fmt.Fprintf(w, "%-16s %-25s %-14s %8s %6s %7s %8s %10s %6s\n", "SIGNAL", "TARGET", "LEAD AT WORST", "FALSE UP", "SPIKE", "REV/H", "IN SLO", "X CLAIRV.", "LOSS")
	for _, v := range r.Signals {
		lead := "never"
		switch {
		case v.AtRest:
			lead = "always asks"
		case v.LeadS != nil:
			lead = fmt.Sprintf("%+.0f s", *v.LeadS)
		}
		spike := "no"
		if v.Spike {
			spike = "yes"
		}
		fmt.Fprintf(w, "%-16s %-25s %-14s %8d %6s %7.1f %7.2f%% %10.2f %6.2f\n", v.Signal, v.Target, lead, v.False, spike, v.Reversals, 100*v.SLO, v.Cost, v.Loss)
	}
	fmt.Fprintln(w)
	for _, v := range r.Signals {
		s := v.Why
		if len(v.Missed) > 0 {
			s += "; never showed " + strings.Join(v.Missed, ", ")
		}
		fmt.Fprintf(w, "%-16s %s\n", v.Signal, s)
	}
	fmt.Fprintf(w, "\nLEAD AT WORST: from the first demand for more to the first minute with under 95 %% in time, the least over more\nrequests, longer prompts and a sudden crowd. SPIKE: tokenisation beside idle accelerators added replicas.\n\n%s\n", r.Verdict)
}
