// SPDX-License-Identifier: Apache-2.0

package dispatch

import (
	"math"
	"slices"
	"time"

	"github.com/penstock-project/penstock/internal/fleet"
	"github.com/penstock-project/penstock/internal/route"
)

// Observe takes a new snapshot in: endpoints come, go and change phase; a replica
// that restarted loses its place in the index; held requests may go.
func (d *Dispatch) Observe(now fleet.Time, s *fleet.Snapshot, out []Send) []Send {
	d.begin(now)
	d.snap = s
	for i := range d.slots {
		d.slots[i].State = nil
	}
	d.findMiddle()
	for k := range s.Endpoints {
		e := &s.Endpoints[k]
		if h := d.homeOf(e); h != nil {
			d.seeRanks(h, e)
			continue
		}
		i, ok := d.names[e.ID]
		if !ok {
			i = d.addSlot(e.ID)
		}
		d.see(i, e, ok)
	}
	d.ready = 0
	for i := range d.slots {
		if d.slots[i].Drop == route.DropNone && d.slots[i].State != nil {
			d.ready++
		}
	}
	for i := range d.slots {
		if d.aux[i].used && d.slots[i].State == nil {
			d.leave(int32(i))
		}
	}
	d.dropHomes()
	d.divide()
	d.index.Sweep(4096)
	out = d.rehome(out)
	return d.drainAll(out)
}

// see updates a slot from its row. known says that the slot was there before.
func (d *Dispatch) see(i int32, e *fleet.EndpointState, known bool) {
	s, a := &d.slots[i], &d.aux[i]
	cold := !known
	if a.gone { // it came back before its last request ended
		a.gone, a.overlap = false, overlap{}
		a.life++
		d.index.Add(i, 0)
	} else if known && a.scrape.restarted(a.url, e) {
		cold = true
		a.restarts++
		a.life++
		d.index.Clear(i)
	}
	if cold {
		d.dropAdapters(i)
		a.overlap = overlap{}
		a.speed = speed{since: d.now, slowAt: d.now, paced: d.now}
	}
	s.State, a.url, a.several = e, e.URL, severalRanks(e)
	s.Drop = phaseDrop(&e.Endpoint)
	p := &d.o.Profile
	s.KVTokens = e.KVTokens.Or(float64(p.KVTokens))
	s.MaxSeqs = e.MaxSeqs.Or(float64(p.MaxSeqs))
	if n := d.roomOf(i); n > 0 {
		d.index.SetCapacity(i, n)
	}
	if fresh := e.ScrapedAt != 0 && e.ScrapedAt != a.scrape.at; fresh {
		d.scraped(i, e)
		a.breaker.alive(e)
	} else if d.now.Sub(e.ScrapedAt) > foreignAge {
		// What others had there then says nothing any more: own accounting alone.
		s.ForeignStreams, s.ForeignUnstarted, s.ForeignPending = 0, 0, 0
		a.scrape.foreign = 0
	}
	a.scrape.keep(e)
	a.speed.forgive(d.now)
	d.setSpeed(i)
	d.refresh(i)
}

// phaseDrop is the drop reason that an endpoint's own state gives.
func phaseDrop(e *fleet.Endpoint) route.Drop {
	switch e.Phase {
	case fleet.PhaseReady:
		if e.Role != fleet.RoleBoth {
			return route.DropRole
		}
		return route.DropNone
	case fleet.PhaseDraining:
		return route.DropDraining
	case fleet.PhaseFailed:
		return route.DropFailed
	case fleet.PhaseAsleep:
		return route.DropAsleep
	}
	return route.DropNotReady
}

// leave marks a slot whose endpoint is no longer listed.
func (d *Dispatch) leave(i int32) {
	s, a := &d.slots[i], &d.aux[i]
	if !a.gone {
		a.gone = true
		d.index.Remove(i)
		d.dropAdapters(i)
		a.scrape = scrapeState{}
		d.refresh(i)
	}
	s.Drop = route.DropGone
	d.freeSlot(i)
}

// rehome sends on what waits for a replica that takes no requests any more, and
// what waited for any replica at all.
func (d *Dispatch) rehome(out []Send) []Send {
	for i := range d.slots {
		if d.slots[i].Drop == route.DropNone {
			continue
		}
		for d.aux[i].queue.n > 0 {
			k := d.popNext(int32(i))
			_, out = d.dispatch(k, out)
		}
		d.freeSlot(int32(i))
	}
	return d.thaw(out)
}

// scrapeState is what a slot's last scrapes said.
type scrapeState struct {
	at        fleet.Time
	phase     fleet.Phase
	start     fleet.Value
	counters  [5]fleet.Value
	models    []string
	preempted float64
	limitAt   fleet.Time

	excess      int        // in-flight requests that the engine does not know, at least
	excessSince fleet.Time // 0: none
	scrapes     int        // in a row with an excess
	foreign     float64
}

func counters(e *fleet.EndpointState) [5]fleet.Value {
	return [5]fleet.Value{e.PromptTokens, e.OutputTokens, e.CacheQueries, e.Preemptions, e.Finished}
}

// restarted reports whether the process behind the endpoint is another one than
// before, so that its cache is empty: a newer start time, counters that went back,
// a start-up phase, another address, other models.
func (p *scrapeState) restarted(url string, e *fleet.EndpointState) bool {
	starting := e.Phase < fleet.PhaseReady || e.Phase == fleet.PhaseAsleep
	if starting && (p.phase >= fleet.PhaseReady && p.phase != fleet.PhaseAsleep) {
		return true
	}
	if url != "" && e.URL != url {
		return true
	}
	// Process start times are whole or hundredths of seconds; a second of slack
	// covers clocks that are adjusted.
	if p.start.OK() && e.StartTime.OK() && e.StartTime.V > p.start.V+1 {
		return true
	}
	for k, c := range counters(e) {
		if was := p.counters[k]; was.OK() && c.OK() && c.V < was.V {
			return true
		}
	}
	if len(p.models) > 0 && len(e.Models) > 0 && !overlaps(p.models, e.Models) {
		return true
	}
	// Back from the dead, and nothing says that it is the same process.
	return p.phase == fleet.PhaseFailed && e.Phase == fleet.PhaseReady && !e.StartTime.OK() && !known(p.counters[:])
}

func known(vs []fleet.Value) bool {
	return slices.ContainsFunc(vs, fleet.Value.OK)
}

func overlaps(a, b []string) bool {
	return slices.ContainsFunc(a, func(s string) bool { return slices.Contains(b, s) })
}

// keep remembers a row. Values that became unknown keep their last known one, so
// that an outage of the scrape does not hide a restart.
func (p *scrapeState) keep(e *fleet.EndpointState) {
	p.phase = e.Phase
	if e.ScrapedAt != 0 {
		p.at = e.ScrapedAt
	}
	if e.StartTime.OK() {
		p.start = e.StartTime
	}
	for k, c := range counters(e) {
		if c.OK() {
			p.counters[k] = c
		}
	}
	if len(e.Models) > 0 {
		p.models = e.Models
	}
	if e.Preemptions.OK() {
		p.preempted = e.Preemptions.V
	}
}

const (
	// limitRise is how fast the believed KV limit rises again, as a share of the KV
	// memory a second; limitCut the part of what was held at a preemption that
	// counts as safe; leastLimit the least limit.
	limitRise  = 0.002
	limitCut   = 0.97
	leastLimit = 0.5
	// A request that the engine does not count is written off after leakScrapes
	// scrapes in a row and leakAge without a sign of life.
	leakScrapes = 4
	leakAge     = 20 * time.Second
	// foreignAge is how long a scrape speaks for the load of others: longer than most
	// prefills, about as long as an answer.
	foreignAge = 10 * time.Second
)

// scraped learns from the values of a new scrape.
func (d *Dispatch) scraped(i int32, e *fleet.EndpointState) {
	s, p := &d.slots[i], &d.aux[i].scrape
	if s.KVTokens > 0 {
		if p.limitAt != 0 {
			s.KVLimit = min(1, s.KVLimit+limitRise*d.now.Seconds(p.limitAt))
		}
		p.limitAt = d.now
		if e.Preemptions.OK() && p.counters[3].OK() && e.Preemptions.V > p.preempted {
			used := float64(s.PinnedBlocks)*d.learned.blockTokens + s.TailTokens + s.Generated
			s.KVLimit = max(leastLimit, min(s.KVLimit, limitCut*used/s.KVTokens))
		}
	}
	if !e.Running.OK() || !e.Waiting.OK() {
		return // unknown is not zero: neither leaks nor load of others show
	}
	there := e.Running.V + e.Waiting.V + e.Deferred.Or(0)
	ours, ok := d.aux[i].inFlightAt.at(e.ScrapedAt)
	if !ok {
		return
	}
	// Load of others: what two scrapes in a row show beyond our own. One request is
	// within the rounding of the moment.
	extra := max(0, there-float64(ours)-1)
	foreign := min(extra, p.foreign)
	p.foreign = extra
	s.ForeignStreams, s.ForeignUnstarted, s.ForeignPending = 0, 0, 0
	if foreign > 0 && there > 0 {
		s.ForeignUnstarted = foreign * (e.Waiting.V / there)
		s.ForeignStreams = foreign - s.ForeignUnstarted
		each := d.learned.coef.Base
		if s.Unstarted > 0 {
			each = s.PendingSum / float64(s.Unstarted)
		}
		s.ForeignPending = s.ForeignUnstarted * each
	}
	d.reconcile(i, int(math.Ceil(float64(ours)-there)))
}

// reconcile writes off requests that the engine has not counted for a while: an
// ending that never reached us. excess is how many it misses in this scrape.
func (d *Dispatch) reconcile(i int32, excess int) {
	p := &d.aux[i].scrape
	if excess <= 0 {
		p.excess, p.excessSince, p.scrapes = 0, 0, 0
		return
	}
	if p.scrapes == 0 || excess < p.excess {
		p.excess = excess
	}
	if p.scrapes == 0 {
		p.excessSince = d.now
	}
	p.scrapes++
	if p.scrapes < leakScrapes || d.now.Sub(p.excessSince) < leakAge {
		return
	}
	for range p.excess {
		oldest := int32(-1)
		for k := range d.entries {
			e := &d.entries[k]
			if e.slot != i || e.state != stateSent && e.state != stateStream || e.lastAt > p.excessSince {
				continue
			}
			if oldest < 0 || e.lastAt < d.entries[oldest].lastAt {
				oldest = int32(k)
			}
		}
		if oldest < 0 {
			break
		}
		d.takeBack(oldest)
		d.entries[oldest].state = stateGhost
		d.aux[i].leaked++
		d.n.Leaked++
	}
	p.excess, p.excessSince, p.scrapes = 0, 0, 0
}

// history samples the requests in flight at an endpoint every 100 ms of change, so
// that a scrape can be compared with our count at its own moment.
type history struct {
	ring [32]sample
	next int
}

type sample struct {
	at fleet.Time
	n  int32
}

const historyStep = fleet.Time(100 * time.Millisecond)

var emptyHistory history

func (h *history) set(now fleet.Time, n int32) {
	last := &h.ring[(h.next+len(h.ring)-1)%len(h.ring)]
	if last.at != 0 && now-last.at < historyStep {
		last.n = n
		return
	}
	h.ring[h.next] = sample{now, n}
	h.next = (h.next + 1) % len(h.ring)
}

// at returns the count at a moment, and false where that is too long ago.
func (h *history) at(t fleet.Time) (int32, bool) {
	for k := 1; k <= len(h.ring); k++ {
		s := h.ring[(h.next+len(h.ring)-k)%len(h.ring)]
		if s.at == 0 {
			return 0, true // nothing was sent before
		}
		if s.at <= t {
			return s.n, true
		}
	}
	return 0, false
}
