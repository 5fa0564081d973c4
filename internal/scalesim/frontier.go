// SPDX-License-Identifier: Apache-2.0

package scalesim

import (
	"fmt"
	"strings"

	"github.com/penstock-project/penstock/internal/scale"
)

// Frontier is what an operator can choose from for his own traffic.
type Frontier struct {
	Schema     string           `json:"schema"` // penstock/whatif-scale/v1
	Name       string           `json:"name"`
	Trace      *Info            `json:"trace,omitempty"`
	StartS     float64          `json:"start_s"`
	Hours      float64          `json:"scored_hours"`
	Mean       float64          `json:"mean_replicas"` // offered, in replicas at their knee
	Choices    []Choice         `json:"choices"`       // by attainment aimed at
	Excursions scale.Excursions `json:"excursions"`
	Starts     []scale.Reserve  `json:"starts"`    // worth of a faster start, at 99 %
	Reversals  []ReversalPrice  `json:"reversals"` // what a bound on changes of direction costs
	Least      float64          `json:"clairvoyant_replicas"`
	Static     float64          `json:"static_replicas"` // smallest constant fleet in hindsight at 99 %
	Verdict    string           `json:"verdict"`
}

// Choice is one attainment that can be aimed at.
type Choice struct {
	Attainment float64 `json:"attainment"`
	SLO        float64 `json:"slo"` // what the scaler reached
	Replicas   float64 `json:"replicas"`
	Cost       float64 `json:"cost_vs_clairvoyant"`
	TTFTp99    float64 `json:"ttft_p99_ms"`
	Reversals  float64 `json:"reversals_per_hour"`
	// Reserve is the bound: a fleet that follows the work, with what has to stand
	// ready for this attainment.
	Reserve scale.Reserve `json:"reserve"`
}

// ReversalPrice is our scaler under one bound on reversals.
type ReversalPrice struct {
	PerHour      int     `json:"bound_per_hour"` // negative: none
	Reversals    float64 `json:"reversals_per_hour"`
	SLO          float64 `json:"slo"`
	ReplicaHours float64 `json:"replica_hours"`
	Price        float64 `json:"extra_replica_hours"` // over no bound
}

// Attainments are the shares that an operator chooses from.
func Attainments() []float64 { return []float64{0.95, 0.98, 0.99} }

// AskFrontier plays our scaler over a scenario at every attainment and says what no
// scaler could do better.
func AskFrontier(sc *Scenario) Frontier {
	f := Frontier{Schema: "penstock/whatif-scale/v1", Name: sc.Name, StartS: sc.Start.Median, Hours: (sc.Duration - sc.ScoreFrom) / 3600, Mean: sc.Mean}
	best := Clairvoyant(sc)
	static, _ := BestStatic(sc)
	f.Least, f.Static = best.ReplicaHours/f.Hours, static.ReplicaHours/f.Hours
	from := int(sc.ScoreFrom)
	for _, a := range Attainments() {
		r := Run(sc, &Penstock{Attainment: a})
		r.against(best.ReplicaHours)
		f.Choices = append(f.Choices, Choice{a, r.Attainment, r.ReplicaHours / f.Hours, r.Cost, r.TTFTp99, r.Reversals,
			scale.StandingReserve(sc.offered, sc.Capacity, sc.Start.Median, a, from)})
	}
	for _, s := range startsBelow(sc.Start.Median) {
		f.Starts = append(f.Starts, scale.StandingReserve(sc.offered, sc.Capacity, s, 0.99, from))
	}
	f.Excursions = scale.FindExcursions(sc.offered, sc.Start.Median, 0.99)
	for _, n := range []int{-1, 6, 2} {
		r := Run(sc, &Penstock{Reversals: n})
		p := ReversalPrice{n, r.Reversals, r.Attainment, r.ReplicaHours, 0}
		if len(f.Reversals) > 0 {
			p.Price = r.ReplicaHours - f.Reversals[0].ReplicaHours
		}
		f.Reversals = append(f.Reversals, p)
	}
	f.Verdict = f.say()
	return f
}

// startsBelow are the start-up times that a faster start is judged by, in seconds.
func startsBelow(start float64) []float64 {
	out := []float64{start}
	for _, s := range []float64{start / 2, start / 4, 10, 3} {
		if s < out[len(out)-1]-1 {
			out = append(out, s)
		}
	}
	return out
}

// say answers in a few sentences.
func (f *Frontier) say() string {
	last := &f.Choices[len(f.Choices)-1]
	var b strings.Builder
	fmt.Fprintf(&b, "At a start of %.0f s a scaler without a standing reserve misses %.1f %% of the work at least", f.StartS, 100*last.Reserve.Missed)
	switch {
	case last.Reserve.Standing == 0:
		b.WriteString(": no reserve is needed for 99 %")
	case !last.Reserve.Reached:
		b.WriteString(": no reserve within four times the largest fleet reaches 99 %")
	default:
		fmt.Fprintf(&b, "; %d %s standing ready (%+.0f %%) would keep 99 %%", last.Reserve.Standing, plural(last.Reserve.Standing, "replica", "replicas"), 100*(last.Reserve.With/last.Reserve.Replicas-1))
	}
	for i := range f.Starts[1:] {
		s := &f.Starts[i+1]
		if s.Standing < last.Reserve.Standing {
			fmt.Fprintf(&b, ". A start of %.0f s would need %d instead, %.1f replicas less on average", s.StartS, s.Standing, last.Reserve.With-s.With)
			break
		}
	}
	c := &f.Choices[0]
	fmt.Fprintf(&b, ". Aiming at 95 %% instead of 99 %% gives %.2f %% with %.1f replicas instead of %.2f %% with %.1f.", 100*c.SLO, c.Replicas, 100*last.SLO, last.Replicas)
	return b.String()
}

// FrontierScenario is a class of drawn traffic or the first part of a named
// situation; false where the name is neither. start replaces the start-up time of
// the former where it is over 0, in seconds.
func FrontierScenario(name string, seed uint64, start float64) (*Scenario, bool) {
	for _, c := range Classes() {
		if strings.EqualFold(c, name) {
			if start <= 0 {
				start = 120
			}
			return DrawClass(seed, c, start), true
		}
	}
	for _, n := range NamedScenarios() {
		if strings.EqualFold(n.Name, name) {
			sc := n.parts(seed, nil)[0].sc
			if start > 0 {
				sc.Start = Start{Median: start, Sigma: sc.Start.Sigma, Prior: start}
			}
			return sc, true
		}
	}
	return nil, false
}
