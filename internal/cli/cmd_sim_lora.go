// SPDX-License-Identifier: Apache-2.0

package cli

import (
	"fmt"
	"io"
	"strings"

	"github.com/spf13/cobra"

	"github.com/penstock-project/penstock/internal/dispatch"
	"github.com/penstock-project/penstock/internal/engine"
	"github.com/penstock-project/penstock/internal/sim"
)

func simLoRACmd(e *Env) *cobra.Command {
	s := sim.LoRASpec{}
	profile, policies := "", []string(nil)
	c := &cobra.Command{
		Use:   "lora",
		Short: "Measure how requests find their LoRA adapters, beside what is possible",
		Long: `Play independent requests to many LoRA adapters over a fleet whose replicas keep few
of them at a time, and print how many requests found their adapter resident, how
evenly the replicas worked and how often adapters were loaded and pushed out. The
lines below the table say what no placement can exceed.`,
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
	fl.StringSliceVar(&policies, "policy", nil, "only these policies (default: ours, and those that others use)")
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
		if len(policies) > 0 {
			var err error
			if s.Policies, err = sim.Select(policies); err != nil {
				return usagef("", "--policy: %v", err)
			}
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
	fmt.Fprintf(w, "%d adapters, Zipf %g, %d replicas with %d slots each, %d requests.\n\n", r.Adapters, r.Zipf, r.Replicas, r.Slots, r.Requests)
	t := newTable("POLICY", ">RESIDENT", ">IMBALANCE", ">LOADS", ">EVICTIONS", ">TTFT MEAN", ">P99", "")
	for _, p := range r.Policies {
		note := ""
		if p.Thrash {
			note = "thrash"
		}
		if n := p.Switched[dispatch.GuardAdapter.String()]; n > 0 {
			note = strings.TrimSpace(fmt.Sprintf("%s affinity off %d times", note, n))
		}
		t.add(p.Policy, fmt.Sprintf("%.1f %%", 100*p.Resident), fmt.Sprintf("%.2f", p.Imbalance), fmt.Sprintf("%.1f", p.Loads),
			fmt.Sprintf("%.1f", p.Evictions), milliText(p.TTFTMean), milliText(p.TTFTP99), note)
	}
	t.write(w)
	c := &r.Ceiling
	fmt.Fprintf(w, `
Loads and evictions are a replica and minute. Thrash is more than %.1f loads: 1.10 times
what one LRU over all %d slots of the fleet needs, wherever its slots are.

What no placement can exceed, as shares of requests that find their adapter resident:
  %4.1f %%  popularity: the most popular adapters fixed in all slots, copies where one replica
          cannot carry one at an imbalance of 1.10
  %4.1f %%  these requests: the adapters they ask for most fixed in all slots
  %4.1f %%  these requests: all slots as one cache that knows the future (fewest loads)
  %4.1f %%  these requests: all slots as one LRU cache
`, r.Bound, r.Replicas*r.Slots, 100*r.Best, 100*c.StaticTop, 100*c.Clairvoyant, 100*c.SharedLRU)
}
