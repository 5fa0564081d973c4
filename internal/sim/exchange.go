// SPDX-License-Identifier: Apache-2.0

package sim

import (
	"math"

	"github.com/penstock-project/penstock/internal/dispatch"
	"github.com/penstock-project/penstock/internal/fleet"
)

// exchangeDelay is how long a note takes from one router to another, seconds: the
// half millisecond that a sender gathers notes, a network and a scheduler or two.
const exchangeDelay = 0.002

// parcel is what one router tells the others at one moment.
type parcel struct {
	at    fleet.Time
	from  int
	notes []dispatch.Note
}

// gather takes what the routers have to tell and puts it on its way. The delay is
// the same for all, so parcels arrive in the order in which they left.
func (r *run) gather() {
	if !r.c.Exchange {
		return
	}
	for k := range r.routers {
		r.notes = r.routers[k].d.TakeNotes(r.notes[:0])
		if len(r.notes) == 0 {
			continue
		}
		p := parcel{at: r.now.AddSeconds(exchangeDelay), from: k}
		for i := range r.notes {
			n := r.notes[i]
			n.Blocks = append([]uint64(nil), n.Blocks...) // the sender's are reused
			p.notes = append(p.notes, n)
		}
		r.parcels = append(r.parcels, p)
	}
}

// nextParcel is when the next parcel arrives.
func (r *run) nextParcel() fleet.Time {
	if r.firstParcel == len(r.parcels) {
		return fleet.Never
	}
	return r.parcels[r.firstParcel].at
}

// hear hands the next parcel to the other routers.
func (r *run) hear() {
	p := r.parcels[r.firstParcel]
	r.parcels[r.firstParcel] = parcel{}
	if r.firstParcel++; r.firstParcel == len(r.parcels) {
		r.parcels, r.firstParcel = r.parcels[:0], 0
	}
	for k := range r.routers {
		if k == p.from {
			continue
		}
		rt := &r.routers[k]
		for i := range p.notes {
			p.notes[i].More = i+1 < len(p.notes)
			r.send(k, rt.d.Hear(r.now, int32(p.from)+1, &p.notes[i], rt.sends[:0]))
		}
	}
}

// RoutersReport compares our policy on several routers with the same on one.
type RoutersReport struct {
	Routers  int  `json:"routers"`
	Exchange bool `json:"exchange"`
	// TTFT, P99 and E2E are the values with several routers over those with one:
	// above 1 the split costs.
	TTFT Spread `json:"ttft"`
	P99  Spread `json:"p99"`
	E2E  Spread `json:"e2e"`
	// SLOLost is the share of requests within the objective that the split costs.
	SLOLost float64 `json:"slo_share_lost"`
}

// Spread sums up a ratio over cells.
type Spread struct {
	Geomean   float64 `json:"geomean"`
	Worst     float64 `json:"worst"`
	WorstCell string  `json:"worst_cell"`
	Within105 float64 `json:"share_within_1_05"`
}

// RunRouters plays the workloads of a cell under one contender, whose traffic n
// routers share.
func RunRouters(c Cell, p Contender, n int, exchange bool) []Result {
	var out []Result
	for w := range uint64(WorkloadSeeds) {
		cfg := c.Config
		cfg.Seed = c.Seed<<8 + w
		cfg.Routers, cfg.Exchange = n, exchange
		p.apply(&cfg)
		out = append(out, Run(cfg, c.Traffic(w)))
	}
	return out
}

// CompareRouters sums up what several routers cost: one and several hold the
// results of each cell, in the order of cells.
func CompareRouters(n int, exchange bool, cells []Cell, one, several [][]Result) RoutersReport {
	r := RoutersReport{Routers: n, Exchange: exchange}
	of := func(v value) Spread {
		s := Spread{}
		var ratios []float64
		for c := range cells {
			x := v.mean(several[c], -1) / v.mean(one[c], -1)
			ratios = append(ratios, x)
			if x > s.Worst {
				s.Worst, s.WorstCell = x, cells[c].Name
			}
			if x <= 1.05 {
				s.Within105 += 1 / math.Max(1, float64(len(cells)))
			}
		}
		s.Geomean = geomean(ratios)
		return s
	}
	r.TTFT, r.P99, r.E2E = of(ttftValue), of(p99Value), of(e2eValue)
	for c := range cells {
		r.SLOLost += (measure(one[c]).SLOShare - measure(several[c]).SLOShare) / math.Max(1, float64(len(cells)))
	}
	return r
}
