// SPDX-License-Identifier: Apache-2.0

package scalesim

import (
	"fmt"

	"github.com/penstock-project/penstock/internal/fleet"
	"github.com/penstock-project/penstock/internal/scale"
)

// Penstock is the product's own scaler, driven as the live loop drives it: offered
// work as it comes, an observation and a recommendation every five seconds.
type Penstock struct {
	Label     string        // "" is "penstock"
	Tuning    *scale.Tuning // nil: the default
	Reversals int           // an hour; 0: the default, negative: no bound
	Fixed     int           // one rule for ever, see scale.Policy
	// Attainment is the share that is aimed at; 0: the default.
	Attainment float64
	// Last is the recommendation of the latest evaluation.
	Last scale.Recommendation

	s     *scale.Scaler
	n     int // seconds offered so far
	snap  fleet.Snapshot
	names []string
}

// epoch is second 0 of a run as a fleet.Time.
const epoch = fleet.Time(1_000_000_000)

func at(t float64) fleet.Time { return epoch.AddSeconds(t) }

// Name implements Policy.
func (p *Penstock) Name() string {
	if p.Label == "" {
		return "penstock"
	}
	return p.Label
}

// Period implements Policy.
func (p *Penstock) Period() float64 { return scale.EvaluationPeriod }

// Initial implements Policy.
func (p *Penstock) Initial(sc *Scenario) int {
	p.s = scale.New(scale.Policy{
		Min: 1, Max: sc.most, Capacity: sc.Capacity, StartUp: sc.Start.Prior, Reversals: p.Reversals,
		TTFT: sc.SLO.TTFT, ITL: sc.SLO.ITL, Tuning: p.Tuning, Fixed: p.Fixed, Attainment: p.Attainment,
	})
	p.n = 0
	n := sc.warmStart()
	p.s.Observe(at(0), scale.Observation{Snapshot: &p.snap, Wanted: n, Gateway: scale.Gateway{Known: true}})
	return n
}

// Want implements Policy.
func (p *Penstock) Want(o *Obs) int {
	k := o.sc.Faults.CapacityError
	if k == 0 {
		k = 1
	}
	for ; p.n < len(o.Offered); p.n++ {
		p.s.Offer(at(float64(p.n)+0.5), o.Offered[p.n]*k)
	}
	p.s.Observe(at(o.Now), scale.Observation{Snapshot: p.snapshot(o), Wanted: o.Want, Gateway: p.gateway(o)})
	p.Last = p.s.Recommend(at(o.Now))
	return p.Last.Final
}

func (p *Penstock) gateway(o *Obs) scale.Gateway {
	return scale.Gateway{
		Known: true, Held: o.HeldFresh, Late: o.HeldLate,
		InFlight: int(o.Conc[len(o.Conc)-1]) - o.HeldFresh - o.HeldLate,
		OK:       uint64(o.OK), Missed: uint64(o.Ended - o.OK),
	}
}

// snapshot shows the fleet as an observer would: phases and since when.
func (p *Penstock) snapshot(o *Obs) *fleet.Snapshot {
	e := p.snap.Endpoints[:0]
	for i := range o.Replicas {
		r := &o.Replicas[i]
		for len(p.names) <= r.ID {
			p.names = append(p.names, fmt.Sprintf("r%06d", len(p.names)))
		}
		x := fleet.Endpoint{ID: p.names[r.ID], Phase: r.Phase, Since: at(r.Since), Rank: -1}
		if r.Refused {
			x.Reason = "0/6 nodes are available: 6 Insufficient nvidia.com/gpu"
		}
		e = append(e, fleet.EndpointState{Endpoint: x})
	}
	p.snap.Endpoints = e
	return &p.snap
}
