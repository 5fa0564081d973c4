// SPDX-License-Identifier: Apache-2.0

package sim

import (
	"github.com/penstock-project/penstock/internal/dispatch"
	"github.com/penstock-project/penstock/internal/engine"
	"github.com/penstock-project/penstock/internal/route"
	"github.com/penstock-project/penstock/internal/workload"
)

// LoRASpec describes a fleet that serves many LoRA adapters.
type LoRASpec struct {
	Profile  engine.Profile
	Replicas int
	Slots    int     // adapters that a replica keeps at a time
	Adapters int     // in use
	Zipf     float64 // exponent of their popularity
	Load     float64 // seconds to load one; 0: the profile's
	Use      float64 // of the fleet's time, without loads, 0..1
	Requests int
	Seed     uint64
	// Policies to run; nil means LoRAContenders.
	Policies []Contender
}

// LoRAReport compares policies on such a fleet, schema penstock/lora/v1.
type LoRAReport struct {
	Schema   string  `json:"schema"`
	Replicas int     `json:"replicas"`
	Slots    int     `json:"slots"`
	Adapters int     `json:"adapters"`
	Zipf     float64 `json:"zipf"`
	Requests int     `json:"requests"`
	// Best is the largest share of requests that can find their adapter resident where
	// requests are independent and no replica gets more than 1.10 times its part:
	// the most popular adapters fixed in all slots, with copies of those that one
	// replica cannot carry.
	Best float64 `json:"best_possible_resident_share"`
	// Ceiling holds what simpler bounds and caches have on the very requests played.
	Ceiling LoRACeiling `json:"ceiling"`
	// Bound is the most loads a replica and minute that do not count as thrash.
	Bound    float64   `json:"no_thrash_loads_per_replica_minute"`
	Policies []LoRARun `json:"policies"`
}

// LoRARun is what one policy did.
type LoRARun struct {
	Policy   string  `json:"policy"`
	Resident float64 `json:"resident_share"` // of requests that caused no load
	// Imbalance is the busy time of the busiest replica over the mean.
	Imbalance float64 `json:"imbalance"`
	Loads     float64 `json:"loads_per_replica_minute"`
	Evictions float64 `json:"evictions_per_replica_minute"`
	Thrash    bool    `json:"thrash"` // more loads than the bound
	TTFTMean  float64 `json:"ttft_mean_ms"`
	TTFTP99   float64 `json:"ttft_p99_ms"`
	// Switched counts, by mechanism, how often it was found to harm and was off for a while.
	Switched map[string]uint64 `json:"switched_off,omitempty"`
}

// LoRASchema names the schema of LoRAReport.
const LoRASchema = "penstock/lora/v1"

// thrashFactor times the loads of one shared LRU over all slots of the fleet is the
// bound between turnover, which the workload asks for, and thrash, which placement
// adds: requests sent past the replica that holds their adapter.
const thrashFactor = 1.10

// LoRAContenders are ours with and without its queue, ours without the adapter's
// term, and what others do with adapters: nothing, since none of their published
// pickers keeps an account of residents that idle.
func LoRAContenders() []Contender {
	out := []Contender{
		{Name: Ours, Policy: route.PolicyPenstock, Queue: true},
		{Name: OursDirect, Policy: route.PolicyPenstock},
		{Name: "without-adapter-term", Policy: route.PolicyPenstock, Queue: true, Without: dispatch.Without{Terms: route.TermAdapter.Only()}},
	}
	for _, p := range []string{
		route.PolicySticky, route.PolicyLeastRequests, route.PolicyRoundRobin, route.PolicyRandom,
	} {
		out = append(out, Contender{Name: p, Policy: p})
	}
	return out
}

// AskLoRA plays single requests to many adapters under each policy.
func AskLoRA(s LoRASpec) (LoRAReport, error) {
	p := s.Profile
	p.BlockTokens, p.LoRASlots = blockTokens, s.Slots
	if s.Load > 0 {
		p.LoRALoad = s.Load
	}
	t, err := s.traffic(&p)
	if err != nil {
		return LoRAReport{}, err
	}
	r := LoRAReport{
		Schema: LoRASchema, Replicas: s.Replicas, Slots: s.Slots, Adapters: s.Adapters, Zipf: s.Zipf,
		Requests: t.requests, Best: LoRABest(s.Adapters, s.Replicas, s.Slots, s.Zipf),
		Ceiling: CeilingOf(t.asked(), s.Replicas*s.Slots),
	}
	list := s.Policies
	if list == nil {
		list = LoRAContenders()
	}
	for i, c := range list {
		res := RunContender(Config{Profile: p, Replicas: s.Replicas, Seed: s.Seed}, c, t)
		minutes := float64(s.Replicas) * max(res.Seconds, 1e-9) / 60
		if i == 0 {
			r.Bound = thrashFactor * (1 - r.Ceiling.SharedLRU) * float64(t.requests) / minutes
		}
		run := LoRARun{
			Policy: c.Name, Resident: 1 - float64(res.AdapterLoads)/float64(max(1, res.Requests)), Imbalance: res.Imbalance,
			Loads: float64(res.AdapterLoads) / minutes, Evictions: float64(res.AdapterEvictions) / minutes,
			TTFTMean: res.TTFTMean, TTFTP99: res.TTFTP99, Switched: res.Switched,
		}
		run.Thrash = 1-run.Resident > thrashFactor*(1-r.Ceiling.SharedLRU)
		r.Policies = append(r.Policies, run)
	}
	return r, nil
}

// traffic draws the requests, at a rate that takes the given part of the fleet's time.
func (s *LoRASpec) traffic(p *engine.Profile) (*Traffic, error) {
	spec := workload.Spec{
		Kind: workload.KindChat, Seed: s.Seed, Turns: 1, EvenTurns: true, Adapters: s.Adapters, AdapterZipf: s.Zipf,
		MaxContext: p.MaxModelLen, Apps: s.Adapters,
	}
	g, err := workload.NewGenerator(spec)
	if err != nil {
		return nil, err
	}
	probe := NewTraffic(g, 1500, blockTokens)
	spec.Rate = s.Use * float64(s.Replicas) / probe.coldSeconds(p)
	if g, err = workload.NewGenerator(spec); err != nil {
		return nil, err
	}
	return NewTraffic(g, s.Requests, blockTokens), nil
}

// asked returns the adapter of each request in the order of sessions.
func (t *Traffic) asked() []string {
	out := make([]string, 0, t.requests)
	for _, s := range t.sessions {
		for range s.Turns {
			out = append(out, s.Adapter)
		}
	}
	return out
}
