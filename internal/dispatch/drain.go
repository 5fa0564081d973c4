// SPDX-License-Identifier: Apache-2.0

package dispatch

import (
	"math/bits"

	"github.com/penstock-project/penstock/internal/admit"
	"github.com/penstock-project/penstock/internal/route"
)

const (
	// roomSteps is how much prefill is kept at a replica that has a queue here, in
	// its own decode steps: enough that a prompt never pays for a step alone, little
	// enough that the order is decided here. In steps it fits engines of any speed.
	roomSteps = 2
	// movesMost and stealsMost bound the work of one call.
	movesMost  = 8
	stealsMost = 4
	// staleFactor and staleSlack say when a held request's cache is gone: its work
	// grew by half and 10 ms.
	staleFactor = 1.5
	staleSlack  = 0.010
)

// room is the work that may be pending at a slot, in seconds, before requests are
// held.
func (d *Dispatch) room(slot int32) float64 {
	s := &d.slots[slot]
	return roomSteps * d.learned.coef.Step(float64(s.Streams)+s.ForeignStreams, s.CtxTokens) * s.Speed
}

// inHand is the work that a slot still has before it, in seconds, as it matters for
// holding back: short prompts are computed together, so each counts for its part of
// a full step. (The price counts a step for each: an arrival that finds one prompt
// waits for its whole step.) Counting whole steps here would hold a replica to two
// requests a step, however short they are.
func (d *Dispatch) inHand(slot int32) float64 {
	s, a := &d.slots[slot], &d.aux[slot]
	if s.Unstarted == 0 {
		return s.ForeignPending
	}
	done := 0.9 * min(s.HeadEstimate, max(0, d.now.Seconds(s.HeadSince)))
	return s.ForeignPending + max(0, a.shares-done)
}

// open reports whether a slot has room for a request that needs no new memory. A
// replica without waiting work always has, unless it stands still: nothing is held
// while one idles.
func (d *Dispatch) open(slot int32) bool {
	s := &d.slots[slot]
	return s.Drop == route.DropNone && !d.still(slot) && (s.Unstarted == 0 || d.inHand(slot) < d.room(slot))
}

// fits reports whether a slot takes the request of candidate p now.
func (d *Dispatch) fits(i, slot int32, p *route.Candidate) bool {
	if d.crowds(&d.entries[i], slot) {
		return false
	}
	if d.slots[slot].Unstarted == 0 {
		return true
	}
	in := &d.in
	return d.inHand(slot)+p.MemoryWaitMS(&in.Engine, &in.Context)/1e3 < d.room(slot)
}

// unheld reports whether an entry is not held for a slot, whatever that has to do. Where
// requests run with all adapters that the replica has room for, places for adapters are
// short, and the engine lets those pass whose adapter runs. With few of them in its own
// line it would have to wait for one to end, and a mean time to first token of 5 s became
// one of 355 s. Neither is anything held for a replica whose ranks cannot be asked for: it
// has several engines, of which each may idle while the others have plenty. A tenant over
// its share has to wait all the same.
func (d *Dispatch) unheld(i, slot int32) bool {
	e := &d.entries[i]
	return !d.isOver(e) && (d.parallel(slot) || e.req.Adapter != "" && d.adapterBusy(slot))
}

// mayGo reports whether an arrival goes to its slot at once.
func (d *Dispatch) mayGo(i, slot int32, p *route.Candidate) bool {
	if d.unheld(i, slot) {
		return true
	}
	return d.fits(i, slot, p) && (d.aux[slot].queue.n == 0 || d.goesBefore(i, slot)) &&
		(d.aux[slot].theirsAt() == 0 || d.ratio(&d.entries[i]) <= d.bestOfTheirs(slot))
}

// priceAt prices held entry i at one slot, and returns the candidate, valid until
// the next pricing.
func (d *Dispatch) priceAt(i, slot int32) *route.Candidate {
	e := &d.entries[i]
	d.question(e)
	d.hits[slot] = int32(d.index.MatchOne(slot, e.req.Blocks))
	d.pinned[slot] = 0
	if d.hits[slot] > 0 && d.slots[slot].PinnedBlocks > 0 {
		d.pinned[slot] = int32(d.index.PinnedPrefix(slot, e.req.Blocks))
	}
	d.joined[slot] = d.joins(e, slot)
	d.scratch.PriceAt(&d.in, slot)
	return &d.scratch
}

// release sends entry i, which is in no queue any more, to a slot.
func (d *Dispatch) release(i, slot int32, why string, out []Send) []Send {
	e := &d.entries[i]
	dec := d.lend()
	if d.o.Bare {
		d.priceAt(i, slot)
		d.settleOn(dec, why)
		return d.send(i, dec, out)
	}
	d.ask(i, dec, true)
	if int(slot) >= len(dec.Candidates) || dec.Candidates[slot].Drop != route.DropNone {
		e.state = stateFailed
		_, out = d.dispatch(i, out)
		return out
	}
	dec.Settle(slot, why)
	return d.send(i, dec, out)
}

// settleOn makes dec a decision for the candidate in scratch alone.
func (d *Dispatch) settleOn(dec *route.Decision, why string) {
	dec.Only(&d.in, d.policy.Name(), &d.scratch)
	dec.Settle(0, why)
}

// drainAll drains every slot that may have room.
func (d *Dispatch) drainAll(out []Send) []Send {
	for i := range d.slots {
		if d.queued == 0 {
			return out
		}
		out = d.drain(int32(i), out)
	}
	return out
}

// flush sends all that is held once the queue was found to harm.
func (d *Dispatch) flush(out []Send) []Send {
	if d.queued == 0 || !d.guards.of[GuardQueue].off {
		return out
	}
	for i := range d.slots {
		for d.aux[i].queue.n > 0 && d.slots[i].Drop == route.DropNone {
			out = d.release(d.popNext(int32(i)), int32(i), route.WhyReleased, out)
		}
	}
	return out
}

// drain gives a slot what its queue holds, while there is room; with an empty queue
// it takes from others.
func (d *Dispatch) drain(slot int32, out []Send) []Send {
	if d.queued == 0 {
		return out
	}
	a := &d.aux[slot]
	moved := 0
	for a.queue.n > 0 && d.slots[slot].Drop == route.DropNone && !d.still(slot) {
		i := d.next(slot)
		unheld := d.unheld(i, slot)
		if !unheld && !d.open(slot) {
			break
		}
		if d.isOver(&d.entries[i]) {
			// Others that wait elsewhere go before it.
			var ok bool
			if out, ok = d.steal(slot, out); ok {
				continue
			}
		}
		if k := d.probeFirst(i, slot); k >= 0 {
			i = k
		}
		p := d.priceAt(i, slot)
		if !unheld && (!d.fits(i, slot, p) || d.yields(i, slot)) {
			return out
		}
		d.tookPlace(slot)
		e := &d.entries[i]
		x := d.workAt(e, slot, float64(p.Uncached))
		was := e.bucket
		d.dequeue(i)
		if x > staleFactor*e.work+staleSlack && moved < movesMost && !d.o.Without.Again {
			moved++
			var done bool
			if out, done = d.askAgain(i, slot, was, out); done {
				continue
			}
		}
		out = d.release(i, slot, route.WhyReleased, out)
	}
	out = d.probe(slot, out)
	if a.queue.n > 0 || a.theirsAt() > 0 {
		return out // with others' requests for it, theirs go first
	}
	for k := 0; k < stealsMost && d.queued > 0 && d.open(slot); k++ {
		var ok bool
		if out, ok = d.steal(slot, out); !ok {
			return out
		}
	}
	return out
}

// askAgain decides anew on an entry whose cache at slot is gone. It reports false
// where the slot is still the place and its turn is still now.
func (d *Dispatch) askAgain(i, slot int32, was int8, out []Send) ([]Send, bool) {
	e := &d.entries[i]
	dec := d.lend()
	if d.ask(i, dec, true) == 0 {
		_, out = d.turnAway(i, dec, out)
		return out, true
	}
	p, to := dec.Pick(), dec.Chosen
	e.work = d.workAt(e, to, float64(p.Uncached))
	if to == slot {
		if bucketOf(e.work) > was+1 && d.aux[slot].queue.n > 0 {
			d.enqueue(i, slot)
			return out, true
		}
		return out, false
	}
	d.n.Moved++
	if d.aux[to].queue.n == 0 && d.fits(i, to, p) {
		dec.Settle(dec.Index, route.WhyMoved)
		return d.send(i, dec, out), true
	}
	d.enqueue(i, to)
	return out, true
}

// steal gives a slot with room the request of the longest other queue that gains
// most by it.
func (d *Dispatch) steal(slot int32, out []Send) ([]Send, bool) {
	if d.o.Without.Steal {
		return out, false
	}
	from, last := d.longest(slot)
	if from < 0 {
		return out, false
	}
	best, gain := int32(-1), 1e-3
	var order admit.Order
	for _, l := range d.aux[from].queue.lines {
		if l.tenant == d.shares.over && !last {
			continue
		}
		o := d.order(l)
		if best >= 0 && order.Less(o) {
			continue
		}
		g := 1e-3
		if best >= 0 && o == order {
			g = gain
		}
		for m := l.some; m != 0; m &= m - 1 {
			k := l.bucket[bits.TrailingZeros64(m)].head
			if won, ok := d.gain(k, from, slot); ok && won > g {
				best, g, gain, order = k, won, won, o
			}
		}
	}
	if best < 0 {
		return out, false
	}
	d.dequeue(best)
	d.n.Stolen++
	return d.release(best, slot, route.WhyStolen, out), true
}

// longest returns the other slot with the longest queue; -1 where there is none. last says
// that only the tenant over its share has something there, and that this slot is one of
// its places and it is owed some: else it waits at one of them while the next one idles.
func (d *Dispatch) longest(slot int32) (from int32, last bool) {
	from, most := int32(-1), 0.0
	for r := range d.slots {
		if int32(r) == slot || d.slots[r].Queued == d.slots[r].QueuedLast {
			continue
		}
		if w := d.workBefore(int32(r)); w > most {
			from, most = int32(r), w
		}
	}
	x := &d.shares
	if from >= 0 || x.over < 0 || int(slot) >= len(x.allowed) || !x.allowed[slot] || !d.underServed() {
		return from, false
	}
	for r := range d.slots {
		if q := &d.aux[r].queue; int32(r) != slot && q.work > most {
			from, most = int32(r), q.work
		}
	}
	return from, true
}

// workBefore is the work in a slot's queue without that of the tenant over its share,
// which keeps to its places.
func (d *Dispatch) workBefore(slot int32) float64 {
	q := &d.aux[slot].queue
	if d.shares.over < 0 {
		return q.work
	}
	w := 0.0
	for _, l := range q.lines {
		if l.tenant != d.shares.over {
			w += l.work
		}
	}
	return w
}

// gain is how many milliseconds of cost a held entry saves by going to a slot with
// room instead of waiting where it is; false where the slot cannot take it.
func (d *Dispatch) gain(i, from, to int32) (float64, bool) {
	e := &d.entries[i]
	if d.waitsBehind(e) != nil {
		return 0, false // the blocks that it waits for will be there
	}
	if d.requestDrop(to, e, served(d.slots[to].State, e.req)) != route.DropNone || d.kept(e, to) {
		return 0, false
	}
	p := d.priceAt(i, to)
	if !d.fits(i, to, p) {
		return 0, false
	}
	there := p.CostMS
	here := d.priceAt(i, from).CostMS - e.work*1e3 // itself is in the queue ahead
	return here - there, true
}
