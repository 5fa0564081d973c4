// SPDX-License-Identifier: Apache-2.0

package dispatch

import (
	"slices"
	"time"

	"github.com/penstock-project/penstock/internal/fleet"
	"github.com/penstock-project/penstock/internal/route"
)

// Arrive takes a request in and decides. The Dispatch keeps r, which the caller
// does not change, until End. On Refused the ticket is over.
func (d *Dispatch) Arrive(now fleet.Time, r *fleet.Request, out []Send) (Ticket, Verdict, []Send) {
	d.begin(now)
	i := d.admit(r)
	d.seeBlocks(&d.entries[i])
	t := d.ticket(i)
	v, out := d.dispatch(i, out)
	if v.Kind == Refused {
		d.n.Refused++
		d.forget(i)
	}
	return t, v, out
}

// seeBlocks follows the usual number of tokens in a block, from which the index's
// capacity in blocks derives.
func (d *Dispatch) seeBlocks(e *entry) {
	l := &d.learned
	if l.blockTokens == 0 {
		l.blockTokens = e.blockTokens
		for i := range d.slots {
			if s := &d.slots[i]; s.State != nil && s.KVTokens > 0 {
				d.index.SetCapacity(int32(i), d.roomOf(int32(i)))
				d.refresh(int32(i))
			}
		}
		return
	}
	l.blockTokens += (e.blockTokens - l.blockTokens) * meanRate
}

// dispatch finds a place for an entry that has none: it sends it, holds it, or
// finds that no replica can take it. An entry that was held before is then
// refused through out.
func (d *Dispatch) dispatch(i int32, out []Send) (Verdict, []Send) {
	e := &d.entries[i]
	dec := d.lend()
	open := d.ask(i, dec, false)
	if open == 0 {
		return d.turnAway(i, dec, out)
	}
	e.deepest = dec.Deepest
	d.shade(dec)
	if late := d.late(e, dec); late > 0 {
		return Verdict{Kind: Refused, Decision: dec, Late: late, Reason: "the first token is predicted " +
			late.Round(time.Millisecond).String() + " after the deadline"}, out
	}
	d.rent(e, dec)
	d.sways(e, dec)
	led := d.led(i, dec)
	if led >= 0 {
		e.sway.noted = false // where it goes is another mechanism's doing
	}
	p := dec.Pick()
	slot := dec.Chosen
	e.work = d.workAt(e, slot, float64(p.Uncached))
	if e.fcfs == 0 {
		if !d.isOver(e) {
			d.learned.offer(d.now, e.work+d.learned.coef.Base, d.ready)
		}
		d.demand(e)
		e.fcfs = d.firstCome(slot, e)
	}
	if d.queues && e.req.Hold >= 0 && (led >= 0 || !d.mayGo(i, slot, p)) {
		d.foresee(e, slot, p)
		dec.Wait = true
		d.lead(i, d.meetKey(e, dec.TieKey))
		d.enqueueBehind(i, slot, led)
		return Verdict{Kind: Held, Decision: dec}, out
	}
	if d.aux[slot].queue.n > 0 {
		d.foresee(e, slot, p) // it goes before others, thanks to the queue
	}
	return Verdict{Kind: Sent, Decision: dec}, d.send(i, dec, out)
}

// led decides whether an entry follows a held one, and returns which; -1 none. Where
// it does, dec says so.
func (d *Dispatch) led(i int32, dec *route.Decision) int32 {
	k := d.leader(i, d.meetKey(&d.entries[i], dec.TieKey))
	if k < 0 || !d.queues || d.guards.of[GuardMeet].off || d.entries[i].req.Hold < 0 {
		return -1
	}
	e, p := &d.entries[i], dec.Pick()
	own, others := p.OwnMS, p.CostMS-p.OwnMS
	if !d.follow(i, k, dec) {
		return -1
	}
	p = dec.Pick()
	e.follows, e.apart = true, own/1e3
	e.spares = (others - (p.CostMS - p.OwnMS)) / 1e3
	e.hoped = d.workAt(e, p.Slot, float64(p.Uncached))
	return k
}

// late returns by how much a new request is predicted to miss its deadline at the
// best place there is; 0 where it meets it, has none, or nothing is predicted. A
// request that waited or was tried already has had its chance and takes it.
func (d *Dispatch) late(e *entry, dec *route.Decision) time.Duration {
	if e.req.Deadline == 0 || e.waited || len(e.tried) > 0 || dec.PredictedTTFTMS <= 0 {
		return 0
	}
	return max(0, d.now.Add(time.Duration(dec.PredictedTTFTMS*1e6)).Sub(e.req.Deadline))
}

// workAt returns the seconds of prefill of uncached tokens of an entry at a slot.
func (d *Dispatch) workAt(e *entry, slot int32, uncached float64) float64 {
	return d.learned.coef.Prefill(uncached, e.prompt) * d.slots[slot].Speed
}

// firstCome is what first come first served would cost an entry at a slot, in
// seconds: all that is there, itself and two full steps.
func (d *Dispatch) firstCome(slot int32, e *entry) float64 {
	s, c := &d.slots[slot], &d.learned.coef
	full := c.Step(float64(s.Streams), s.CtxTokens) + c.Chunk*c.PTok
	return s.Pending(d.now) + s.QueuedWork + e.work + 2*full*s.Speed
}

// ask fills dec with a decision on entry i and returns how many candidates were
// open. peek leaves the policy's state alone.
func (d *Dispatch) ask(i int32, dec *route.Decision, peek bool) int {
	e := &d.entries[i]
	open := d.filter(e)
	d.question(e)
	d.index.MatchPinned(e.req.Blocks, d.hits, d.pinned)
	d.recall(e)
	d.credits(e)
	for k := 0; d.prices && k < len(d.slots); k++ {
		d.joined[k] = d.joins(e, int32(k))
	}
	if p, ok := d.policy.(route.Peeker); ok && peek {
		p.Peek(&d.in, dec)
	} else {
		d.policy.Pick(&d.in, dec)
	}
	return open
}

// question fills in what a policy is asked about entry e, the matches excepted.
func (d *Dispatch) question(e *entry) {
	in := &d.in
	in.Now, in.Request, in.Tenant = d.now, e.req, e.tenant
	in.PromptTokens, in.BlockTokens, in.Arrival = e.prompt, e.blockTokens, e.arrival
	in.Last = d.isOver(e)
	in.Slots, in.Drops, in.Hits, in.Pinned = d.slots, d.drops, d.hits, d.pinned
	in.Queue, in.Credits, in.Joins = nil, nil, nil
	if d.prices {
		in.Joins = d.joined
	}
	if d.queued > 0 || d.heldThere > 0 {
		in.Queue = d
	}
	in.AdapterCold, in.AdapterWait = nil, nil
	if e.req.Adapter != "" {
		for k := range d.slots {
			d.cold[k] = !d.holdsAdapter(int32(k), e.req.Adapter)
			d.adapterWait[k] = 0
			if d.cold[k] {
				d.adapterWait[k] = d.displaces(int32(k))
			}
		}
		in.AdapterCold, in.AdapterWait = d.cold, d.adapterWait
	}
	in.Engine = d.learned.coef
	in.Context = d.learned.context(d.now, e.req.MaxTokens)
	in.Context.Without = d.o.Without.Terms
	if d.guards.of[GuardAdapter].off {
		in.Context.Without |= route.TermAdapter.Only()
	}
	in.Bare, in.Blind = d.o.Bare, d.blind.ratio()
	in.KinCold, in.KinWarm = d.blind.cold.mostly(), d.blind.warm.mostly()
	if d.snap != nil {
		in.SnapshotVersion, in.SnapshotAt = d.snap.Version, d.snap.At
	}
}

// filter fills in the drop reasons for an entry and returns how many slots are
// open. Where there is no other, slots that are kept for other tenants count as
// open, and then ejected ones: neither a share nor the guess that a replica is dead
// must empty the pool.
func (d *Dispatch) filter(e *entry) int {
	var n [route.NumDrops]int
	fits := d.fitOf(e.req)
	for i := range d.slots {
		s := &d.slots[i]
		drop := s.Drop
		if drop == route.DropNone {
			drop = d.requestDrop(int32(i), e, fits[i])
		}
		if drop == route.DropNone && d.kept(e, int32(i)) {
			drop = route.DropKept
		}
		d.drops[i] = drop
		n[drop]++
	}
	if n[route.DropNone] > 0 {
		return n[route.DropNone]
	}
	for _, last := range [...]route.Drop{route.DropKept, route.DropEjected} {
		if n[last] == 0 {
			continue
		}
		for i, drop := range d.drops {
			if drop == last {
				d.drops[i] = route.DropNone
			}
		}
		return n[last]
	}
	return 0
}

// requestDrop says why a slot that takes requests does not take this one.
// fit is what fitOf says of the slot.
func (d *Dispatch) requestDrop(i int32, e *entry, fit route.Drop) route.Drop {
	s := &d.slots[i]
	if e.req.SubsetOnly && (!slices.Contains(e.req.Subset, fleet.HostPort(s.State.URL)) || e.asks > 0 && d.aux[i].home != nil && d.aux[i].rank != e.asks-1) {
		return route.DropSubset
	}
	if fit != route.DropNone {
		return fit
	}
	if e.req.Adapter != "" && d.denies(i, e.req.Adapter) {
		return route.DropAdapter
	}
	if len(e.tried) > 0 && slices.Contains(e.tried, d.placeKey(i)) {
		return route.DropTried
	}
	if b := &d.aux[i].breaker; b.strikes >= strikesOut && b.open(d.now) || b.back != 0 && b.full(d.now, s.InFlight) {
		return route.DropEjected
	}
	return route.DropNone
}

// maxAlternatives is the most that Alternatives returns.
const maxAlternatives = 8

// Alternatives appends to out the URLs of the n cheapest candidates of a decision
// behind the chosen one, cheapest first: where a proxy may go on by itself when the
// chosen endpoint fails. Where the request names a rank, it names the same there.
func (d *Dispatch) Alternatives(dec *route.Decision, n int, out []string) []string {
	var best [maxAlternatives]int32
	k := 0
	n = min(n, maxAlternatives)
	for i := range dec.Candidates {
		c := &dec.Candidates[i]
		if c.Drop != route.DropNone || c.Slot == dec.Chosen || d.split && !d.mayFollow(dec.Chosen, c.Slot) || k == n && c.CostMS >= dec.Candidates[best[k-1]].CostMS {
			continue
		}
		// Equal costs stay in the order of the slots.
		at := k
		for ; at > 0 && c.CostMS < dec.Candidates[best[at-1]].CostMS; at-- {
			if at < n {
				best[at] = best[at-1]
			}
		}
		best[at] = int32(i)
		k = min(k+1, n)
	}
	for _, i := range best[:k] {
		if s := d.slots[dec.Candidates[i].Slot].State; s != nil && !slices.Contains(out, s.URL) {
			out = append(out, s.URL)
		}
	}
	return out
}

// serves reports whether a model is in a list; a request without a model takes any.
func serves(models []string, model string) bool {
	return model == "" || slices.Contains(models, model)
}

func hasAdapter(as []fleet.Adapter, name string) bool {
	for i := range as {
		if as[i].Name == name {
			switch as[i].State {
			case fleet.AdapterResident, fleet.AdapterRunning, fleet.AdapterWaiting:
				return true
			}
		}
	}
	return false
}

// send puts entry i on the wire as dec says.
func (d *Dispatch) send(i int32, dec *route.Decision, out []Send) []Send {
	e, slot, p := &d.entries[i], dec.Chosen, dec.Pick()
	a, l := &d.aux[slot], &d.learned
	e.held = e.heldFor(d.now)
	e.state, e.slot, e.sentAt, e.lastAt = stateSent, slot, d.now, d.now
	e.life = a.life
	e.uncached, e.joins = float64(p.Uncached), p.Joins
	e.sway.noted = e.sway.noted && e.sway.slot == slot // it was moved since
	e.cached = int32(dec.PredictedCached)
	e.work = d.workAt(e, slot, e.uncached)
	e.predicted = d.afterSending(e, p)
	d.noteAlongside(e, slot, p)
	d.foreload(e, slot, p)
	d.noteHold(e)
	d.charge(i, slot, e.req.Blocks)
	d.warmed(i, false)
	d.tell(NoteSent, i, 0)
	if e.req.Adapter != "" {
		d.useAdapter(slot, e.req.Adapter)
	}
	if a.breaker.ejected() {
		e.trial, a.breaker.trying = true, true
		d.kin(slot)
	}

	l.hit.add(float64(e.cached) / max(1, e.prompt))
	d.countServed(e)
	a.sent++
	d.n.InFlight++
	d.n.Sent++
	d.blind.ours(d.now, e.req.Blocks, e.deepest)
	d.countAway(dec, p)
	id, pin := d.whereIs(slot)
	return append(out, Send{
		Ticket: d.ticket(i), Slot: slot, Endpoint: id, URL: a.url, Pin: pin, Request: e.req,
		Decision: dec, Held: time.Duration(e.held),
	})
}

// countAway counts picks that passed a warmer replica over.
func (d *Dispatch) countAway(dec *route.Decision, p *route.Candidate) {
	if dec.DemotedByLoad {
		d.n.DemotedByLoad++
	}
	best := p.Hit
	for k := range dec.Candidates {
		if c := &dec.Candidates[k]; c.Drop == route.DropNone {
			best = max(best, c.Hit)
		}
	}
	if p.Hit < best-best/2 {
		d.n.AwayFromWarm++
	}
}

// Preview decides without sending: explain a request that is not run.
func (d *Dispatch) Preview(now fleet.Time, r *fleet.Request, dec *route.Decision) {
	d.begin(now)
	arrived := d.n.Arrived
	i := d.admit(r)
	d.ask(i, dec, true)
	d.forget(i)
	d.n.Arrived = arrived
}
