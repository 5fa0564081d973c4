// SPDX-License-Identifier: Apache-2.0

package cli

import (
	"github.com/spf13/cobra"

	"github.com/penstock-project/penstock/internal/engine"
	"github.com/penstock-project/penstock/internal/sim"
)

// whatifCmd answers how much a router saves that knows prefixes.
func whatifCmd(e *Env) *cobra.Command {
	var replicas, requests, tenants, users int
	var shared float64
	var profile, page string
	var seed uint64
	c := grouped(groupPlan, &cobra.Command{
		Use:   "whatif",
		Short: "How much a router that knows prefixes saves: the rule of thumb, and measured",
		Long: `Put the rule of thumb for prefix-cache hits (random s/R, aware 0.8 s, compute saved
half of the hits) beside what the simulator measures for the same number of
replicas and the same share s of prompt tokens that earlier prompts begin with.

With --tenants or --users it also measures what it costs to part the caches of
tenants or users (cacheSalt), on the same requests.`,
		Example: `  penstock whatif --replicas 8 --shared 0.7
  penstock whatif --replicas 32 --shared 0.5 -o json
  penstock whatif --tenants 10 --users 50     # what would cacheSalt cost?
  penstock whatif --shared 0.7 --html whatif.html`,
		Args: noArgs,
	})
	c.AddCommand(whatifZeroCmd(e), whatifScaleCmd(e))
	out := outputFlag(c, "table", "json")
	fl := c.Flags()
	fl.IntVar(&replicas, "replicas", 8, "replicas of the fleet")
	fl.Float64Var(&shared, "shared", 0.7, "share of prompt tokens that an earlier prompt begins with, 0.01 to 0.99")
	fl.StringVar(&profile, "profile", engine.DefaultProfile, "engine profile of the replicas")
	fl.IntVar(&requests, "requests", 0, "requests to play (default: enough for the fleet)")
	fl.IntVar(&tenants, "tenants", 0, "tenants whose caches are parted, all with the same system prompts")
	fl.IntVar(&users, "users", 0, "users of each tenant whose caches are parted")
	fl.Uint64Var(&seed, "seed", 1, "seed of everything that is drawn")
	fl.StringVar(&page, "html", "", "write a page with both knobs to this `file`; it works offline")
	c.RunE = func(*cobra.Command, []string) error {
		p, ok := engine.Lookup(profile)
		if !ok {
			return usagef("", "--profile %q is unknown", profile)
		}
		if replicas < 1 || replicas > 256 {
			return usagef("", "--replicas must be 1 to 256")
		}
		if !(shared >= 0.01 && shared <= 0.99) {
			return usagef("", "--shared must be from 0.01 to 0.99")
		}
		if requests < 0 || requests > 1_000_000 {
			return usagef("", "--requests must be 0 to 1000000")
		}
		if tenants < 0 || tenants > sim.MostIsolated || users < 0 || users > sim.MostIsolated {
			return usagef("", "--tenants and --users must be 0 to %d", sim.MostIsolated)
		}
		if page != "" && tenants+users > 0 {
			return usagef("", "--html shows no isolation; leave out --tenants and --users")
		}
		if page != "" {
			return e.writeWhatIfPage(page, p, replicas, shared, requests, seed)
		}
		r, err := sim.AskWhatIf(p, sim.WhatIfAsk{Replicas: replicas, Shared: shared, Requests: requests, Seed: seed, Tenants: tenants, Users: users})
		if err != nil {
			return failf("", "%v", err)
		}
		if *out == "json" {
			return printJSON(e.Stdout, r)
		}
		printWhatIf(e.Stdout, &r)
		return nil
	}
	return c
}
