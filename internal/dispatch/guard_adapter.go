// SPDX-License-Identifier: Apache-2.0

package dispatch

import (
	"math"

	"github.com/penstock-project/penstock/internal/fleet"
	"github.com/penstock-project/penstock/internal/route"
)

// The term of adapters keeps a request where its LoRA adapter is, past replicas where it
// would wait less but for the load. That is right only as far as the load takes what it
// is believed to, and that belief comes out of a profile: engines do not tell. So each
// request that would go elsewhere without the term is predicted both, and compared with
// what it had; and what loads take is measured on those that had to cause one, among
// them every first request for an adapter.

// loadPrior is how many loads the belief in what one takes counts for.
const loadPrior = 4

// sway is what is noted of a request whose way the adapter's term changed. In seconds.
type sway struct {
	noted  bool
	slot   int32   // where it went for it
	own    float64 // to its first token where it would have gone, the load apart
	load   float64 // of its adapter there, and of the one that would have had to go
	spares float64 // what others are spared by its going where it went
}

// adapterBusy reports whether requests run with all adapters that a slot has room for,
// so that another one waits for an end there.
func (d *Dispatch) adapterBusy(i int32) bool {
	a, room := &d.aux[i], d.adapterRoom(i)
	return len(a.lora) >= room && (a.leastRecent() < 0 || len(a.lora) > room)
}

// sways notes what an arrival with an adapter would get at the replica that the price
// without the adapter's term chooses.
func (d *Dispatch) sways(e *entry, dec *route.Decision) {
	if e.req.Adapter == "" || e.waited || len(e.tried) > 0 || !e.stream || d.isOver(e) ||
		dec.Policy != route.PolicyPenstock || dec.Context.Without.Has(route.TermAdapter) {
		return
	}
	bare := func(c *route.Candidate) float64 { return c.CostMS - float64(c.Terms[route.TermAdapter]) }
	p, k, least := dec.Pick(), -1, math.Inf(1)
	for i := range dec.Candidates {
		if c := &dec.Candidates[i]; c.Drop == route.DropNone && bare(c) < least {
			k, least = i, bare(c)
		}
	}
	if k < 0 || bare(p) <= least+route.TieMS {
		return
	}
	c := &dec.Candidates[k]
	ownThere, ownHere := c.OwnMS-float64(c.Terms[route.TermAdapter]), p.OwnMS-float64(p.Terms[route.TermAdapter])
	s := sway{noted: true, slot: dec.Chosen, own: ownThere / 1e3, spares: ((least - ownThere) - (bare(p) - ownHere)) / 1e3}
	if d.cold[c.Slot] {
		s.load = dec.Context.AdapterMS / 1e3
		if wait := d.adapterWait[c.Slot] / 1e3; d.adapterBusy(c.Slot) {
			s.own += wait // for a request to end, whatever a load takes
		} else {
			s.load += wait
		}
	}
	if d.cold[p.Slot] && !d.adapterBusy(p.Slot) {
		s.load -= d.adapterWait[p.Slot] / 1e3 // what has to go here costs as well
	}
	e.sway = s
}

// foreload notes what the load of its adapter is believed to take of an entry that is
// about to be sent, and leaves it out of what is predicted for it: it is measured apart.
func (d *Dispatch) foreload(e *entry, slot int32, p *route.Candidate) {
	e.loads, e.load = false, 0
	if e.req.Adapter == "" || d.holdsAdapter(slot, e.req.Adapter) {
		return
	}
	e.loads = true
	if term := float64(p.Terms[route.TermAdapter]) / 1e3; e.predicted > term {
		e.predicted -= term
	}
	if !d.adapterBusy(slot) {
		e.load = d.learned.adapterMS / 1e3
	}
}

// loadRatio is what loads of adapters take over what they are believed to.
type loadRatio struct{ observed, expected decayed }

func (r *loadRatio) add(now fleet.Time, observed, expected float64) {
	r.observed.add(now, observed, adapterSeconds)
	r.expected.add(now, expected, adapterSeconds)
}

// value returns the ratio where one load is believed to take the given seconds.
func (r *loadRatio) value(now fleet.Time, believed float64) float64 {
	prior := loadPrior * believed
	if prior <= 0 {
		return 1
	}
	v := (r.observed.value(now, adapterSeconds) + prior) / (r.expected.value(now, adapterSeconds) + prior)
	return min(mostBias, max(0, v))
}

// trial compares the requests with an adapter of a time with the affinity of adapters
// and of a time without it: what was got, not what was predicted.
type trial struct {
	with, without evidence
	until         fleet.Time // till then the mechanism stays on: without it was worse
}

// judgeSway takes the first token of an entry as evidence on adapters. bias is what
// times to first token are over what is predicted.
func (d *Dispatch) judgeSway(e *entry, bias float64) {
	if e.req.Adapter == "" {
		return
	}
	got := d.now.Seconds(e.arrived)
	g, t := &d.guards.of[GuardAdapter], &d.guards.trial
	switch {
	case !g.off:
		t.with.add(d.now, got, got)
	case e.arrived >= g.since:
		_, with, _ := t.with.means(g.since)
		if t.without.add(d.now, got, with); t.without.harms(d.now) {
			t.until, g.until = d.now.Add(guardLongest), d.now
			d.reviveGuards()
		}
	}
	if bias <= leastBias || bias >= mostBias {
		return // predictions that fail for all requests say nothing of this
	}
	if s := &e.sway; s.noted && !g.off && d.now >= t.until {
		load := s.load * d.guards.loads.value(d.now, d.learned.adapterMS/1e3)
		if d.weighGuard(GuardAdapter, got, max(0, s.own*bias+load+s.spares)); g.off {
			t.without = evidence{}
		}
	}
}
