// SPDX-License-Identifier: Apache-2.0

package cli

import (
	"fmt"
	"io"
	"strings"

	"github.com/spf13/cobra"

	"github.com/penstock-project/penstock/internal/scalesim"
)

func whatifScaleCmd(e *Env) *cobra.Command {
	var t traceFlags
	var scenario string
	c := &cobra.Command{
		Use:   "scale",
		Short: "What 95, 98 or 99 % in time costs on your own traffic, and what a faster start is worth",
		Long: `Play Penstock's scaler over recorded traffic (--trace) or a situation (--scenario) at
each attainment that can be aimed at, and put beside it what no scaler can do
better: the share of the work that is missed without replicas that stand ready, how
many would have to, and what that becomes where replicas start faster. Last comes
the price of a bound on changes of direction.`,
		Example: `  penstock whatif scale --trace requests.csv --start 3m
  penstock whatif scale --trace code.csv --format azure --factor 8 --start 30s -o json
  penstock whatif scale --scenario flash --start 120s`,
		Args: noArgs,
	}
	t.add(c.Flags())
	c.Flags().StringVar(&scenario, "scenario", "", "a class of drawn traffic ("+strings.Join(scalesim.Classes(), ", ")+") or a named situation of `penstock sim scale`")
	c.Flags().Uint64Var(&t.seed, "seed", 1, "seed of everything that is drawn")
	out := outputFlag(c, "table", "json")
	c.RunE = func(c *cobra.Command, _ []string) error {
		sc, info, err := frontierScenario(e, c, &t, scenario)
		if err != nil {
			return err
		}
		f := scalesim.AskFrontier(sc)
		f.Trace = info
		if *out == "json" {
			return printJSON(e.Stdout, &f)
		}
		printFrontier(e.Stdout, &f)
		return nil
	}
	return c
}

func frontierScenario(e *Env, c *cobra.Command, t *traceFlags, scenario string) (*scalesim.Scenario, *scalesim.Info, error) {
	if (t.file == "") == (scenario == "") {
		return nil, nil, usagef("for example: --trace requests.csv, or --scenario flash", "give exactly one of --trace and --scenario")
	}
	if t.file != "" {
		sc, info, err := t.scenario(e)
		return sc, &info, err
	}
	if _, err := t.replicas(); err != nil {
		return nil, nil, err
	}
	start := 0.0
	if c.Flags().Changed("start") {
		start = t.start.Seconds()
	}
	sc, ok := scalesim.FrontierScenario(scenario, t.seed, start)
	if !ok {
		return nil, nil, usagef("one of "+strings.Join(scalesim.Classes(), ", ")+", or:\n"+namedScenarios(), "--scenario %q is unknown", scenario)
	}
	return sc, nil, nil
}

func printFrontier(w io.Writer, f *scalesim.Frontier) {
	fmt.Fprintf(w, "%s: %.1f h scored, %.1f replicas offered, start %.0f s; the clairvoyant keeps %.1f replicas, the best constant fleet %.0f\n\n", f.Name, f.Hours, f.Mean, f.StartS, f.Least, f.Static)
	fmt.Fprintf(w, "%-9s %9s %9s %10s %9s %7s   %-12s %8s %9s\n", "AIMED AT", "IN TIME", "REPLICAS", "X CLAIRV.", "TTFT P99", "REV/H", "NO RESERVE", "RESERVE", "REPLICAS")
	for _, c := range f.Choices {
		reserve := fmt.Sprint(c.Reserve.Standing)
		if !c.Reserve.Reached {
			reserve = "none"
		}
		fmt.Fprintf(w, "%-9s %8.2f%% %9.2f %10.2f %9s %7.1f   %-12s %8s %9.2f\n",
			fmt.Sprintf("%.0f %%", 100*c.Attainment), 100*c.SLO, c.Replicas, c.Cost, ttftCell(c.TTFTp99), c.Reversals,
			fmt.Sprintf("misses %.1f%%", 100*c.Reserve.Missed), reserve, c.Reserve.With)
	}
	fmt.Fprintf(w, "\n%-9s %12s %18s %10s %20s\n", "START", "NO RESERVE", "REPLICAS", "RESERVE", "REPLICAS AT 99 %")
	for _, s := range f.Starts {
		fmt.Fprintf(w, "%-9s %12s %18.2f %10d %20.2f\n", fmt.Sprintf("%.0f s", s.StartS), fmt.Sprintf("misses %.1f%%", 100*s.Missed), s.Replicas, s.Standing, s.With)
	}
	if x := f.Excursions; x.Count > 0 {
		fmt.Fprintf(w, "\n%d excursions to twice the base and more: %.1f bases high, %.0f s long, %.0f s apart. By the fluid bound %.1f %% is missed\nwithout a reserve, and 99 %% needs %.2f bases standing ready.\n", x.Count, x.Height, x.Length, x.Gap, 100*x.Missed, x.Reserve)
	}
	fmt.Fprintf(w, "\n%-22s %12s %9s %14s %16s\n", "REVERSALS AN HOUR", "MADE", "IN TIME", "REPLICA-HOURS", "PRICE")
	for _, r := range f.Reversals {
		bound := "not limited"
		if r.PerHour >= 0 {
			bound = fmt.Sprintf("at most %d", r.PerHour)
		}
		price := fmt.Sprintf("%+.1f h, %+.0f%%", r.Price, 100*r.Price/max(1e-9, f.Reversals[0].ReplicaHours))
		fmt.Fprintf(w, "%-22s %12.1f %8.2f%% %14.1f %16s\n", bound, r.Reversals, 100*r.SLO, r.ReplicaHours, price)
	}
	fmt.Fprintf(w, "\n%s\n", f.Verdict)
}
