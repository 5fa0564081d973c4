// SPDX-License-Identifier: Apache-2.0

package config

import (
	"errors"
	"fmt"
	"time"
)

var rolloutObject = &object{name: "a rollout", id: "name", fields: []field{
	text("name", "Name of the rollout, unique.", func(r *Rollout) *string { return &r.Name }, required(), checked(checkName), example("food-review"), live()),
	text("model", "Name that clients ask for. Answers go by it.", func(r *Rollout) *string { return &r.Model }, required(), example("food-review"), live()),
	mapping("baseline", "The version that is there.", armObject, func(r *Rollout) *Arm { return &r.Baseline }, live()),
	mapping("canary", "The version that is new.", armObject, func(r *Rollout) *Arm { return &r.Canary }, live()),
	text("sticky", "Whose requests keep their version: those of a tenant, a user, or a session (prompt_cache_key). Without a session the user counts, without that the tenant.",
		func(r *Rollout) *string { return &r.Sticky }, def("session"), oneOf("tenant", "user", "session"), live()),
	texts("steps", "Weights of the canary in order, rising. At 100% it is promoted.", func(r *Rollout) *[]string { return &r.Steps },
		checked(checkShare), example("5%"), live()),
	length("every", "Least time at a step.", func(r *Rollout) *time.Duration { return &r.Every }, def("15m"), within(1, 365*86400), live()),
	ref(kindBool, "auto", "Go to the next step while the guard is content.", func(r *Rollout) *bool { return &r.Auto }, live()),
	mapping("guard", "When the canary is as good as the baseline.", guardObject, func(r *Rollout) *Guard { return &r.Guard }, live()),
	mapping("shadow", "Copies of requests for the canary, whose answers are dropped.", shadowObject, func(r *Rollout) *Shadow { return &r.Shadow }, live()),
}}

var armObject = &object{name: "a version", fields: []field{
	text("model", "Model, alias or adapter.", func(a *Arm) *string { return &a.Model }, required(), example("food-review-v1"), live()),
	text("pool", "Pool, where several serve the model; empty: the one that the name leads to.", func(a *Arm) *string { return &a.Pool }, live()),
	ref(kindFloat, "weight", "Share of the traffic relative to the other version's, in place of a first step.", func(a *Arm) *float64 { return &a.Weight }, within(0, 1e6), live()),
}}

var guardObject = &object{name: "guard", fields: []field{
	ref(kindFloat, "ttft", "Largest accepted ratio of the times to the first token.", func(g *Guard) *float64 { return &g.TTFT }, def("1.2"), within(1, 100), live()),
	ref(kindFloat, "itl", "Largest accepted ratio of the times between tokens.", func(g *Guard) *float64 { return &g.ITL }, def("1.2"), within(1, 100), live()),
	ref(kindRatio, "errors", "Largest accepted difference of the shares of failed requests.", func(g *Guard) *Ratio { return &g.Errors }, def("0.5%"), live()),
	integer("samples", "Requests of the canary before a step or a rollback.", func(g *Guard) *int { return &g.Samples }, def("100"), within(1, 1e7), live()),
	ref(kindRatio, "confidence", "That a rollback is not by chance, over the whole rollout.", func(g *Guard) *Ratio { return &g.Confidence }, def("99%"), live()),
}}

var shadowObject = &object{name: "shadow", fields: []field{
	ref(kindRatio, "share", "Share of the baseline's requests that are copied.", func(s *Shadow) *Ratio { return &s.Share }, def("5%"), live()),
	integer("tokensPerHour", "What the copies may cost, prompt and output; 0: none are made.", func(s *Shadow) *int { return &s.TokensPerHour }, within(0, 1e12), live()),
	integer("concurrent", "Most copies at a time.", func(s *Shadow) *int { return &s.Concurrent }, def("8"), within(1, 1e5), live()),
}}

// checkShare accepts a percentage above 0.
func checkShare(s string) error {
	if r, err := ParseRatio(s); err != nil {
		return err
	} else if r <= 0 || r > 1 {
		return errors.New("must be above 0% and at most 100%")
	}
	return nil
}

// Shares returns the steps of a rollout as shares of 1. The weights of the versions,
// where there are any, are the first step.
func (r *Rollout) Shares() []float64 {
	var out []float64
	if w := r.Baseline.Weight + r.Canary.Weight; w > 0 {
		out = append(out, r.Canary.Weight/w)
	}
	for _, s := range r.Steps {
		v, _ := ParseRatio(s) // was checked when it was read
		out = append(out, float64(v))
	}
	return out
}

// validateRollouts makes sure that versions lead somewhere and steps rise.
func (d *decoder) validateRollouts(c *Config, pools map[string]string) {
	names, models := map[string]string{}, map[string]string{}
	for i := range c.Rollouts {
		r := &c.Rollouts[i]
		path := fmt.Sprintf("rollouts[%d]", i)
		d.unique(names, r.Name, path+".name", "rollout")
		d.unique(models, r.Model, path+".model", "model")
		shares := r.Shares()
		if len(shares) == 0 {
			d.failPath(path+".steps", "a rollout needs steps, such as [5%%, 25%%, 100%%], or weights of its versions")
		}
		last := 0.0
		for k, s := range shares {
			if s <= last && !(k == 0 && s == 0) {
				d.failPath(path+".steps", "steps must rise; %s follows %s", Ratio(s), Ratio(last))
				break
			}
			last = s
		}
		for k, a := range []*Arm{&r.Baseline, &r.Canary} {
			key := [...]string{"baseline", "canary"}[k]
			if a.Model == "" {
				d.failPath(path+"."+key, "%s needs a model", key)
			}
			if _, ok := pools[a.Pool]; a.Pool != "" && !ok {
				d.failPath(path+"."+key+".pool", "there is no pool %q", a.Pool)
			}
		}
		if r.Baseline.Model == r.Canary.Model && r.Baseline.Pool == r.Canary.Pool {
			d.failPath(path+".canary", "canary is the same as baseline")
		}
		if r.Guard.Confidence <= .5 || r.Guard.Confidence >= 1 {
			d.failPath(path+".guard.confidence", "confidence must be above 50%% and below 100%%")
		}
	}
}

// Spare reports whether a pool is reached as a fallback or as a version of a rollout,
// so that it may serve a model that another pool has, too.
func (c *Config) Spare(pool string) bool {
	for i := range c.Pools {
		for _, f := range c.Pools[i].Fallback {
			if f == pool && c.Pools[i].Name != pool {
				return true
			}
		}
	}
	for i := range c.Rollouts {
		if c.Rollouts[i].Canary.Pool == pool {
			return true
		}
	}
	return false
}
