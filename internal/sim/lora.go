// SPDX-License-Identifier: Apache-2.0

package sim

import (
	"math"

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
	Best     float64   `json:"best_possible_resident_share"`
	Policies []LoRARun `json:"policies"`
}

// LoRARun is what one policy did.
type LoRARun struct {
	Policy   string  `json:"policy"`
	Resident float64 `json:"resident_share"` // of requests that caused no load
	// Imbalance is the busy time of the busiest replica over the mean.
	Imbalance float64 `json:"imbalance"`
	Loads     float64 `json:"loads_per_replica_minute"` // and as many evictions
	TTFTMean  float64 `json:"ttft_mean_ms"`
	TTFTP99   float64 `json:"ttft_p99_ms"`
}

// LoRASchema names the schema of LoRAReport.
const LoRASchema = "penstock/lora/v1"

// loraImbalance is the imbalance up to which LoRABest lets a replica be used.
const loraImbalance = 1.10

// LoRABest returns the largest share of independent requests that can find their
// adapter resident: popularity Zipf with exponent zipf over adapters, slots of a
// replica, no replica with more than 1.10 times the mean.
func LoRABest(adapters, replicas, slots int, zipf float64) float64 {
	sum := 0.0
	for k := 1; k <= adapters; k++ {
		sum += math.Pow(float64(k), -zipf)
	}
	free, share := replicas*slots, 0.0
	for k := 1; k <= adapters && free > 0; k++ {
		p := math.Pow(float64(k), -zipf) / sum
		copies := int(math.Ceil(p * float64(replicas) / loraImbalance))
		have := min(copies, free)
		share += p * float64(have) / float64(copies)
		free -= have
	}
	return share
}

// AskLoRA plays single requests to many adapters under our policy, the other
// baselines that know load only, and random.
func AskLoRA(s LoRASpec) (LoRAReport, error) {
	p := s.Profile
	p.BlockTokens, p.LoRASlots = blockTokens, s.Slots
	if s.Load > 0 {
		p.LoRALoad = s.Load
	}
	spec := workload.Spec{
		Kind: workload.KindChat, Seed: s.Seed, Turns: 1, EvenTurns: true, Adapters: s.Adapters, AdapterZipf: s.Zipf,
		MaxContext: p.MaxModelLen, Apps: s.Adapters,
	}
	g, err := workload.NewGenerator(spec)
	if err != nil {
		return LoRAReport{}, err
	}
	probe := NewTraffic(g, 1500, blockTokens)
	output, _ := probe.means()
	mean := int(probe.tokens / int64(max(1, probe.requests)))
	cost := p.PrefillSeconds(mean, mean) + output*p.DecodeStepSeconds(16, 16*float64(mean))/16
	spec.Rate = s.Use * float64(s.Replicas) / cost
	if g, err = workload.NewGenerator(spec); err != nil {
		return LoRAReport{}, err
	}
	t := NewTraffic(g, s.Requests, blockTokens)
	r := LoRAReport{
		Schema: LoRASchema, Replicas: s.Replicas, Slots: s.Slots, Adapters: s.Adapters, Zipf: s.Zipf,
		Requests: t.requests, Best: LoRABest(s.Adapters, s.Replicas, s.Slots, s.Zipf),
	}
	for _, c := range []Contender{
		{Name: Ours, Policy: route.PolicyPenstock, Queue: true},
		{Name: OursDirect, Policy: route.PolicyPenstock},
		{Name: route.PolicyLeastRequests, Policy: route.PolicyLeastRequests},
		{Name: route.PolicyRandom, Policy: route.PolicyRandom},
	} {
		res := RunContender(Config{Profile: p, Replicas: s.Replicas, Seed: s.Seed}, c, t)
		r.Policies = append(r.Policies, LoRARun{
			Policy: c.Name, Resident: 1 - float64(res.AdapterLoads)/float64(max(1, res.Requests)), Imbalance: res.Imbalance,
			Loads:    float64(res.AdapterLoads) / float64(s.Replicas) / max(res.Seconds, 1e-9) * 60,
			TTFTMean: res.TTFTMean, TTFTP99: res.TTFTP99,
		})
	}
	return r, nil
}
