// SPDX-License-Identifier: Apache-2.0

package cli

import (
	"fmt"
	"io"
	"text/tabwriter"

	"github.com/spf13/cobra"

	"github.com/penstock-project/penstock/internal/engine"
	"github.com/penstock-project/penstock/internal/sim"
)

func simLoRACmd(e *Env) *cobra.Command {
	s := sim.LoRASpec{}
	profile := ""
	c := &cobra.Command{
		Use:   "lora",
		Short: "Measure how requests find their LoRA adapters, beside what is possible",
		Long: `Play independent requests to many LoRA adapters over a fleet whose replicas keep few
of them at a time, and print how many requests found their adapter resident, how
evenly the replicas worked and how often adapters were loaded. The first line says
what no placement can exceed: the most popular adapters fixed in all slots.`,
		Example: `  penstock sim lora
  penstock sim lora --replicas 16 --slots 16 --adapters 874 -o json`,
		Args: noArgs,
	}
	out := outputFlag(c, "table", "json")
	fl := c.Flags()
	fl.IntVar(&s.Replicas, "replicas", 16, "replicas of the fleet")
	fl.IntVar(&s.Slots, "slots", 4, "adapters that a replica keeps at a time")
	fl.IntVar(&s.Adapters, "adapters", 874, "adapters in use")
	fl.Float64Var(&s.Zipf, "zipf", 1.18, "exponent of their popularity")
	fl.Float64Var(&s.Use, "use", 0.3, "share of the fleet's time that the requests take without loads")
	fl.Float64Var(&s.Load, "load", 0, "seconds that a load takes (default: the profile's)")
	fl.IntVar(&s.Requests, "requests", 20000, "requests to play")
	fl.StringVar(&profile, "profile", "llama-3.1-8b-rtxpro6000", "engine profile of the replicas")
	fl.Uint64Var(&s.Seed, "seed", 1, "seed of everything that is drawn")
	c.RunE = func(*cobra.Command, []string) error {
		p, ok := engine.Lookup(profile)
		if !ok {
			return usagef("", "--profile %q is unknown", profile)
		}
		s.Profile = p
		if s.Replicas < 1 || s.Replicas > 256 || s.Slots < 1 || s.Slots > 1024 || s.Adapters < 1 || s.Adapters > 1_000_000 {
			return usagef("", "--replicas must be 1 to 256, --slots 1 to 1024, --adapters 1 to 1000000")
		}
		if !(s.Use > 0 && s.Use < 2) || !(s.Zipf >= 0 && s.Zipf <= 10) || !(s.Load >= 0 && s.Load <= 600) {
			return usagef("", "--use must be above 0 and below 2, --zipf 0 to 10, --load 0 to 600")
		}
		if s.Requests < 100 || s.Requests > 1_000_000 {
			return usagef("", "--requests must be 100 to 1000000")
		}
		r, err := sim.AskLoRA(s)
		if err != nil {
			return failf("", "%v", err)
		}
		if *out == "json" {
			return printJSON(e.Stdout, r)
		}
		printLoRA(e.Stdout, &r)
		return nil
	}
	return c
}

func printLoRA(w io.Writer, r *sim.LoRAReport) {
	fmt.Fprintf(w, "%d adapters, Zipf %g, %d replicas with %d slots each, %d requests.\n", r.Adapters, r.Zipf, r.Replicas, r.Slots, r.Requests)
	fmt.Fprintf(w, "At most %.1f %% can find their adapter resident with no replica above 1.10 of its part.\n\n", 100*r.Best)
	t := tabwriter.NewWriter(w, 0, 4, 2, ' ', 0)
	fmt.Fprintln(t, "POLICY\tRESIDENT\tIMBALANCE\tLOADS/REPLICA/MIN\tTTFT MEAN\tP99")
	for _, p := range r.Policies {
		fmt.Fprintf(t, "%s\t%.1f %%\t%.2f\t%.1f\t%.0f ms\t%.0f ms\n", p.Policy, 100*p.Resident, p.Imbalance, p.Loads, p.TTFTMean, p.TTFTP99)
	}
	t.Flush()
}
