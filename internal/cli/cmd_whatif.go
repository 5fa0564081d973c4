// SPDX-License-Identifier: Apache-2.0

package cli

import (
	"github.com/spf13/cobra"

	"github.com/penstock-project/penstock/internal/engine"
	"github.com/penstock-project/penstock/internal/sim"
)

// whatifCmd answers how much a router saves that knows prefixes.
func whatifCmd(e *Env) *cobra.Command {
	var q sim.WhatIfAsk
	var profile, page string
	c := grouped(groupPlan, &cobra.Command{
		Use:   "whatif",
		Short: "How much a router that knows prefixes saves: the rule of thumb, and measured",
		Long: `Put the rule of thumb for prefix-cache hits (random s/R, aware 0.8 s, compute saved
half of the hits) beside what the simulator measures for the same number of
replicas and the same share s of prompt tokens that earlier prompts begin with.

With --tenants or --users it also measures what it costs to part the caches of
tenants or users (cacheSalt), on the same requests. With --ranks each replica has so
many data-parallel ranks behind its address, and it is measured as well where replicas
do not serve requests at the rank that they name.`,
		Example: `  penstock whatif --replicas 8 --shared 0.7
  penstock whatif --replicas 32 --shared 0.5 -o json
  penstock whatif --tenants 10 --users 50     # what would cacheSalt cost?
  penstock whatif --replicas 2 --ranks 4      # data-parallel ranks behind one address
  penstock whatif --shared 0.7 --html whatif.html`,
		Args: noArgs,
	})
	c.AddCommand(whatifZeroCmd(e), whatifScaleCmd(e))
	out := outputFlag(c, "table", "json")
	fl := c.Flags()
	fl.IntVar(&q.Replicas, "replicas", 8, "replicas of the fleet")
	fl.IntVar(&q.Ranks, "ranks", 1, "data-parallel ranks of a replica")
	fl.Float64Var(&q.Shared, "shared", 0.7, "share of prompt tokens that an earlier prompt begins with, 0.01 to 0.99")
	fl.StringVar(&profile, "profile", engine.DefaultProfile, "engine profile of the replicas")
	fl.IntVar(&q.Requests, "requests", 0, "requests to play (default: enough for the fleet)")
	fl.IntVar(&q.Tenants, "tenants", 0, "tenants whose caches are parted, all with the same system prompts")
	fl.IntVar(&q.Users, "users", 0, "users of each tenant whose caches are parted")
	fl.Uint64Var(&q.Seed, "seed", 1, "seed of everything that is drawn")
	fl.StringVar(&page, "html", "", "write a page with both knobs to this `file`; it works offline")
	c.RunE = func(*cobra.Command, []string) error {
		p, ok := engine.Lookup(profile)
		if !ok {
			return usagef("", "--profile %q is unknown", profile)
		}
		if err := checkWhatIf(&q, page); err != nil {
			return err
		}
		if page != "" {
			return e.writeWhatIfPage(page, p, q.Replicas, q.Shared, q.Requests, q.Seed)
		}
		r, err := sim.AskWhatIf(p, q)
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

// checkWhatIf says what is wrong with the question; page is the file of a page, "" none.
func checkWhatIf(q *sim.WhatIfAsk, page string) error {
	switch {
	case q.Replicas < 1 || q.Replicas > 256:
		return usagef("", "--replicas must be 1 to 256")
	case q.Ranks < 1 || q.Ranks > 64 || q.Ranks*q.Replicas > 256:
		return usagef("", "--ranks must be 1 to 64, and 256 at most in the whole fleet")
	case !(q.Shared >= 0.01 && q.Shared <= 0.99):
		return usagef("", "--shared must be from 0.01 to 0.99")
	case q.Requests < 0 || q.Requests > 1_000_000:
		return usagef("", "--requests must be 0 to 1000000")
	case q.Tenants < 0 || q.Tenants > sim.MostIsolated || q.Users < 0 || q.Users > sim.MostIsolated:
		return usagef("", "--tenants and --users must be 0 to %d", sim.MostIsolated)
	case page != "" && (q.Tenants+q.Users > 0 || q.Ranks > 1):
		return usagef("", "--html shows neither isolation nor ranks; leave out --tenants, --users and --ranks")
	}
	return nil
}
