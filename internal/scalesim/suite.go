// SPDX-License-Identifier: Apache-2.0

package scalesim

import (
	"math"
	"sort"

	"github.com/penstock-project/penstock/internal/scale"
)

// Names of the bounds in a suite. They know what no scaler can know.
const (
	BoundClairvoyant = "clairvoyant"
	BoundStatic      = "static in hindsight"
	BoundPrevious    = "static sized on the previous period"
	BoundFixed       = "best fixed rule in hindsight"
	BoundBaseline    = "best baseline per scenario in hindsight"
)

// Ours is the name of the product's scaler in a suite.
const Ours = "penstock"

// Played is one scenario with what every policy and bound made of it.
type Played struct {
	Name     string   `json:"name"`
	Class    string   `json:"class"`
	Seed     uint64   `json:"seed"`
	Model    string   `json:"model"`
	Shape    string   `json:"shape"`
	StartS   float64  `json:"start_s"`
	Mean     float64  `json:"mean_replicas"` // offered work in replicas at their knee
	Hours    float64  `json:"scored_hours"`
	Requests int      `json:"requests"` // in the scored part
	Faults   bool     `json:"faults,omitempty"`
	Hits     float64  `json:"cache_hit,omitempty"`
	Results  []Result `json:"results"`
}

// played is the scenario before anything was played on it.
func (sc *Scenario) played() Played {
	return Played{
		Name: sc.Name, Class: sc.Class, Seed: sc.Seed, Model: sc.Model.Name, Shape: sc.Shape.Name, StartS: sc.Start.Median,
		Mean: sc.Mean, Hours: (sc.Duration - sc.ScoreFrom) / 3600, Requests: sc.scored, Faults: sc.Faults.any(), Hits: sc.hits,
	}
}

// Result returns the result of a policy, and false where it did not run.
func (p *Played) Result(policy string) (Result, bool) {
	for _, r := range p.Results {
		if r.Policy == policy {
			return r, true
		}
	}
	return Result{}, false
}

// Options say what a suite runs besides the clairvoyant.
type Options struct {
	// Policies are the scalers by name; nil runs ours and all baselines.
	Policies func(name string) bool
	// Bounds runs the static and fixed-rule bounds too.
	Bounds bool
	// Clairvoyant is that bound where it is known already, as of the same scenario
	// without faults; nil: find it.
	Clairvoyant *Result
}

// Play runs a scenario against the bounds and the policies.
func Play(sc *Scenario, o Options) Played {
	out := sc.played()
	var best Result
	if o.Clairvoyant != nil {
		best = *o.Clairvoyant
	} else {
		best = Clairvoyant(sc)
	}
	out.Results = append(out.Results, best)
	if o.Bounds {
		hindsight, previous := BestStatic(sc)
		out.Results = append(out.Results, hindsight, previous, BestFixed(sc))
	}
	top, found := Result{Loss: math.Inf(1)}, false
	for _, p := range append([]Policy{&Penstock{}}, Baselines()...) {
		if o.Policies != nil && !o.Policies(p.Name()) {
			continue
		}
		r := Run(sc, p)
		r.against(best.ReplicaHours)
		out.Results = append(out.Results, r)
		if r.Policy != Ours && r.Loss < top.Loss {
			top, found = r, true
		}
	}
	if found {
		top.Of, top.Policy = top.Policy, BoundBaseline
		out.Results = append(out.Results, top)
	}
	for i := range out.Results {
		out.Results[i].against(best.ReplicaHours)
	}
	return out
}

// fixedTries bounds how many candidates are run for the best fixed rule.
const fixedTries = 8

// BestFixed is the cheapest rule of the scaler's own grid that reaches 99 % when it
// rules for ever, without season, forecast or limit on reversals: what a perfect
// choice of levels, holds, margins and floors would have made of the traffic. The
// fluid queue sorts the candidates, requests decide.
func BestFixed(sc *Scenario) Result {
	p := scale.Policy{Min: 1, Capacity: sc.Capacity, StartUp: sc.Start.Median, Reversals: -1}
	all := scale.Hindsight(p, sc.offered, int(sc.ScoreFrom))
	sort.SliceStable(all, func(i, j int) bool { return all[i].Replicas < all[j].Replicas })
	best, tries, last := Result{Loss: math.Inf(1)}, 0, 0.0
	for _, c := range all {
		if tries == fixedTries || best.Attainment >= attainGoal {
			break
		}
		if !c.Plain || c.Missed > 0.015 || c.Replicas < 1.01*last {
			continue
		}
		last = c.Replicas
		tries++
		r := Run(sc, &Penstock{Fixed: c.Fixed, Reversals: -1})
		r.Loss = lossOf(c.Replicas, r.Attainment) // to choose among those that fall short
		if r.Attainment >= attainGoal || r.Loss < best.Loss {
			best = r
		}
	}
	best.Policy = BoundFixed
	return best
}

// Mean is a policy over all scenarios of a suite.
type Mean struct {
	Policy       string  `json:"policy"`
	Loss         float64 `json:"loss"`
	SLO          float64 `json:"slo"`
	Least        float64 `json:"slo_min"`
	Under        int     `json:"scenarios_under_99"`
	Cost         float64 `json:"cost_vs_clairvoyant"`
	ReplicaHours float64 `json:"replica_hours"`
	Reversals    float64 `json:"reversals_per_hour"`
	Starts       float64 `json:"starts_per_hour"`
	TTFTp50      float64 `json:"ttft_p50_ms"` // median over the scenarios
	TTFTp99      float64 `json:"ttft_p99_ms"`
	MaxPending   int     `json:"max_pending"`
}

// Means sums a suite up, least loss first.
func Means(played []Played) []Mean {
	at := map[string]int{}
	var out []Mean
	p50, p99 := [][]float64{}, [][]float64{}
	for i := range played {
		for _, r := range played[i].Results {
			k, ok := at[r.Policy]
			if !ok {
				k = len(out)
				at[r.Policy] = k
				out = append(out, Mean{Policy: r.Policy, Least: 1})
				p50, p99 = append(p50, nil), append(p99, nil)
			}
			m, w := &out[k], 1/float64(len(played))
			m.Loss += r.Loss * w
			m.SLO += r.Attainment * w
			m.Least = math.Min(m.Least, r.Attainment)
			if r.Attainment < attainGoal {
				m.Under++
			}
			m.Cost += r.Cost * w
			m.ReplicaHours += r.ReplicaHours * w
			m.Reversals += r.Reversals * w
			m.Starts += r.StartsPerHour * w
			m.MaxPending = max(m.MaxPending, r.MaxPending)
			p50[k], p99[k] = append(p50[k], r.TTFTp50), append(p99[k], r.TTFTp99)
		}
	}
	for k := range out {
		out[k].TTFTp50, out[k].TTFTp99 = median(p50[k]), median(p99[k])
	}
	sort.SliceStable(out, func(i, j int) bool { return out[i].Loss < out[j].Loss })
	return out
}

func median(v []float64) float64 {
	sort.Float64s(v)
	if len(v) == 0 {
		return 0
	}
	return v[len(v)/2]
}
