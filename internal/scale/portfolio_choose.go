// SPDX-License-Identifier: Apache-2.0

package scale

import (
	"math"
	"slices"
)

// ChoosePortfolio finds the cheapest way to keep each variant. arrivals[i] belongs to
// names[i], in seconds from the beginning, rising.
func ChoosePortfolio(names []string, arrivals [][]float64, o PortfolioOptions) Portfolio {
	var p Portfolio
	share, firstWait := p.base(arrivals, &o)
	all := map[Way]*Kept{}
	order := []Way{WayWarm, WayAdapter, WaySleep, WayCold}
	for i, a := range arrivals {
		v := VariantChoice{Name: names[i], Requests: len(a), PerDay: float64(len(a)) / math.Max(1e-9, o.Span/86400)}
		last := math.Inf(-1)
		for _, t := range a {
			if t-last >= firstPause {
				v.Sessions++
			}
			last = t
		}
		v.Sessions /= math.Max(1e-9, o.Span/86400)
		v.Ways = append(v.Ways, Kept{Way: WayWarm, GPUHours: o.Span / 3600, Share: 1, firstN: 1})
		if o.Slots > 0 {
			v.Ways = append(v.Ways, Kept{Way: WayAdapter, GPUHours: share[i] * o.Span / 3600, Share: share[i], FirstP99: firstWait, firstN: 1})
		}
		if o.Wake > 0 {
			k := BestKeep(a, o.Wake, o.MissPrice, o.Span)
			k.Way = WaySleep
			v.Ways = append(v.Ways, k)
		}
		k := BestKeep(a, o.Start, o.MissPrice, o.Span)
		k.Way = WayCold
		v.Ways = append(v.Ways, k)
		v.pick(&o)
		for j := range v.Ways {
			w := &v.Ways[j]
			if all[w.Way] == nil {
				all[w.Way] = &Kept{Way: w.Way, Allowed: true}
			}
			all[w.Way].add(w, len(a))
			if w.Way == v.Best {
				p.Mixed.add(w, len(a))
			}
			if w.Way == v.BestFull {
				p.Full.add(w, len(a))
			}
		}
		p.Variants = append(p.Variants, v)
	}
	total := 0
	for _, a := range arrivals {
		total += len(a)
	}
	for _, w := range order {
		if k := all[w]; k != nil {
			k.sum(total, len(arrivals), o.Span)
			p.Totals = append(p.Totals, *k)
		}
	}
	p.Mixed.sum(total, len(arrivals), o.Span)
	p.Full.sum(total, len(arrivals), o.Span)
	return p
}

// add puts what a way makes of one variant into a sum.
func (k *Kept) add(w *Kept, requests int) {
	k.GPUHours += w.GPUHours
	k.Cold += w.Cold * float64(requests)
	k.Starts += w.Starts
	k.FirstP99 = math.Max(k.FirstP99, w.FirstP99)
	k.Allowed = k.Allowed && w.Allowed
}

func (k *Kept) sum(requests, variants int, span float64) {
	k.Cold /= math.Max(1, float64(requests))
	k.Share = k.GPUHours * 3600 / math.Max(1, span*float64(variants))
}

// pick chooses the cheapest way that is allowed, with and without adapters.
func (v *VariantChoice) pick(o *PortfolioOptions) {
	for i := range v.Ways {
		w := &v.Ways[i]
		w.Allowed = o.MaxWait == 0 || w.FirstP99 <= o.MaxWait
	}
	cost := func(w *Kept) float64 { return w.GPUHours*3600 + o.MissPrice*float64(w.coldCount) }
	choose := func(ways []Kept, adapters bool) Way {
		best, least := WayWarm, math.Inf(1)
		for i := range ways {
			if w := &ways[i]; w.Allowed && (adapters || w.Way != WayAdapter) && cost(w) < least {
				best, least = w.Way, cost(w)
			}
		}
		return best
	}
	v.Best, v.BestFull = choose(v.Ways, true), choose(v.Ways, false)
}

// base sizes the replicas that adapters share and gives each variant its part: half
// by its requests, half for being there at all. first is how long the first request
// of a session waits for its adapter, for 99 % of them.
func (p *Portfolio) base(arrivals [][]float64, o *PortfolioOptions) (share []float64, first float64) {
	share = make([]float64, len(arrivals))
	if o.Slots <= 0 || len(arrivals) == 0 {
		return share, 0
	}
	busiest, total := 0, 0
	perMinute := make([]int, int(o.Span/60)+1)
	for _, a := range arrivals {
		total += len(a)
		for _, t := range a {
			m := min(len(perMinute)-1, int(t/60))
			perMinute[m]++
		}
	}
	busiest = slices.Max(perMinute)
	p.Bases = math.Max(1, math.Ceil(float64(busiest)/60/math.Max(1e-9, 0.7*o.ReplicaRPS)))
	for i, a := range arrivals {
		share[i] = p.Bases * (0.5/float64(len(arrivals)) + 0.5*float64(len(a))/math.Max(1, float64(total)))
	}
	if len(arrivals) > o.Slots*int(p.Bases) {
		first = o.AdapterLoad
	}
	return share, first
}
