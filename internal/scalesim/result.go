// SPDX-License-Identifier: Apache-2.0

package scalesim

import (
	"math"
	"slices"
)

// Result is what one policy made of one scenario. Only the scored part counts.
type Result struct {
	Policy        string  `json:"policy"`
	Of            string  `json:"of,omitempty"` // which policy a choice in hindsight fell on
	Attainment    float64 `json:"slo"`
	ReplicaHours  float64 `json:"replica_hours"`
	TTFTp50       float64 `json:"ttft_p50_ms"`
	TTFTp99       float64 `json:"ttft_p99_ms"`
	TTFTMax       float64 `json:"ttft_max_ms"`
	Unanswered    int     `json:"unanswered"`
	StartsPerHour float64 `json:"starts_per_hour"`
	Reversals     float64 `json:"reversals_per_hour"`
	MaxPending    int     `json:"max_pending"`
	MaxReplicas   int     `json:"max_replicas"`
	Crashes       int     `json:"crashes,omitempty"`
	Cost          float64 `json:"cost_vs_clairvoyant"`
	Loss          float64 `json:"loss"`

	Before float64 `json:"-"` // attainment of the part that is not scored

	ok, okBefore   int
	replicaSeconds float64
	reversals      int
	started        int
	meanConc       float64
	path           []wanted // what was wanted, where it was recorded
}

func (r *Result) starts(scored bool) {
	if scored {
		r.started++
	}
}

// unanswered is the first-token time of a request that never got one, in seconds.
const unanswered = 999.0

func (r *Result) finish(sc *Scenario, s *run) {
	hours := (sc.Duration - sc.ScoreFrom) / 3600
	r.Attainment = float64(r.ok) / math.Max(1, float64(sc.scored))
	r.Before = float64(r.okBefore) / math.Max(1, float64(len(sc.st.at)-sc.scored))
	r.ReplicaHours = r.replicaSeconds / 3600
	r.StartsPerHour = float64(r.started) / hours
	r.Reversals = float64(r.reversals) / hours
	for _, c := range s.obs.Conc[int(sc.ScoreFrom):] {
		r.meanConc += float64(c) / (sc.Duration - sc.ScoreFrom)
	}
	f := make([]float32, 0, sc.scored)
	for i := len(sc.st.at) - sc.scored; i < len(sc.st.at); i++ {
		v := s.first[i]
		if v == 0 {
			v = unanswered
			r.Unanswered++
		}
		f = append(f, v)
	}
	if len(f) > 0 {
		slices.Sort(f)
		r.TTFTMax = 1000 * float64(f[len(f)-1])
		r.TTFTp50 = 1000 * float64(f[len(f)/2])
		r.TTFTp99 = 1000 * float64(f[int(0.99*float64(len(f)-1))])
	}
}

// lossOf is replica-hours over the clairvoyant's, plus 50 for every share of
// requests under 99 % that misses its objectives: a missed percent costs half a
// fleet.
func lossOf(cost, attainment float64) float64 {
	return cost + 50*math.Max(0, 0.99-attainment)
}

// against sets cost and loss relative to the clairvoyant's replica-hours.
func (r *Result) against(clairvoyantHours float64) {
	r.Cost = r.ReplicaHours / math.Max(1e-9, clairvoyantHours)
	r.Loss = lossOf(r.Cost, r.Attainment)
}
