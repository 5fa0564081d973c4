// SPDX-License-Identifier: Apache-2.0

package dispatch

import (
	"math/bits"
	"time"

	"github.com/penstock-project/penstock/internal/fleet"
	"github.com/penstock-project/penstock/internal/route"
)

// The queue gives a replica one prompt after another, for one engine computes them so.
// Behind some addresses are several engines (data-parallel ranks of which the metrics
// tell the sums alone), and the queue would leave all but one idle. What it gives cannot
// show that: with one prompt at a time none ever meets another. So now and then a
// replica in front of which requests have waited for a while gets one that is longer than
// the next in turn and then that one, more than it has room for. One engine does not finish the
// second before the first. Where it comes first, time after time, nothing is held for the
// replica for some minutes; then it is asked anew. Where it does not, the next such pair
// comes after twice the time.

const (
	// probeAfter is for how long a queue must not have been empty, in seconds. Twice
	// probeEvery is how long the second pair comes after the first, and each further one
	// after twice as long as the one before; probeSeldom at most.
	probeAfter  = 2
	probeEvery  = 1
	probeSeldom = 300
	// overtakeSteps and overtakeLeast, in seconds, are by how much the second must come
	// before the first, and after how much of the first it is sent: what is less may be
	// one step of one engine, or two requests that pass each other on their way.
	overtakeSteps = 2
	overtakeLeast = 0.02
	// overtakeWork is how long the rest of the first is against the second, by estimate.
	overtakeWork = 2
	// overtakeMost is how many times that long the first may be: it holds the others up.
	overtakeMost = 3
	// overlapShare of those that could have come first must have, of the last ones,
	// overlapLeast of them or more; one will do where it was so until lately.
	overlapShare  = 0.5
	overlapLeast  = 3
	overlapMemory = 0.85
	// A replica that computes several prompts at a time is taken for that so long, twice
	// as long each further time, overlapLongest at most.
	overlapFirst   = 4 * time.Minute
	overlapLongest = time.Hour
)

// overlap is what is known of whether a slot computes several prompts at a time.
type overlap struct {
	passed scale         // requests that came first against those that could have
	since  fleet.Time    // since when its queue is not empty
	probed fleet.Time    // when it got one request more than it has room for
	every  float64       // seconds until the next pair; 0: probeEvery
	pair   int32         // the first of a pair that it was given, plus 1; 0: none
	gen    uint32        // of that entry
	until  fleet.Time    // until when it is taken for that
	length time.Duration // how long that lasted last
}

// parallel reports whether a slot is known to compute several prompts at a time, so that
// what one of them has to do says nothing of the others.
func (d *Dispatch) parallel(slot int32) bool {
	a := &d.aux[slot]
	return a.several || d.now < a.overlap.until
}

// apart is how far apart two events at a slot must be to say something of their order.
func (d *Dispatch) apart(slot int32) float64 {
	s := &d.slots[slot]
	return max(overtakeLeast, overtakeSteps*d.learned.coef.Step(float64(s.Streams)+s.ForeignStreams, s.CtxTokens)*s.Speed)
}

// orderly reports whether an entry says something of the order in which prompts are
// computed: it shows its first token, and waits for no adapter.
func orderly(e *entry) bool { return e.stream && e.peer == 0 && e.req.Adapter == "" }

// alongside returns the one prompt that a slot is at, where it has been at it for long
// enough to say something of the order; -1 where there is no such one.
func (d *Dispatch) alongside(slot int32) int32 {
	s, a := &d.slots[slot], &d.aux[slot]
	if s.Unstarted != 1 || s.ForeignUnstarted > 0 {
		return -1
	}
	if o := &d.entries[a.fifo.head]; !orderly(o) || d.now.Seconds(o.sentAt) < d.apart(slot) {
		return -1
	}
	return a.fifo.head
}

// rest is what is left of the prompt that a slot is at, in seconds by estimate.
func (d *Dispatch) rest(slot int32) float64 {
	s := &d.slots[slot]
	return s.HeadEstimate - d.now.Seconds(s.HeadSince)
}

// noteAlongside notes which prompt an entry that goes to a slot could overtake there.
func (d *Dispatch) noteAlongside(e *entry, slot int32, p *route.Candidate) {
	e.overtakes, e.passed = 0, 0
	k := d.alongside(slot)
	if k < 0 || !orderly(e) || p.OwnMS <= 0 {
		return
	}
	if own := float64(p.Terms[route.TermPrefill]+p.Terms[route.TermSteps]) / 1e3; d.rest(slot) >= overtakeWork*own+d.apart(slot) {
		e.overtakes, e.overtakesGen = k+1, d.entries[k].gen
	}
}

// sawOrder learns from a first token whether it came before that of a prompt which was
// there before it, or after that of one which came later.
func (d *Dispatch) sawOrder(e *entry) {
	if e.passed != 0 {
		d.sawPassed(e.slot, d.now.Seconds(e.passed) > d.apart(e.slot))
		e.passed = 0
	}
	if e.overtakes == 0 || len(e.tried) > 0 {
		return
	}
	o := &d.entries[e.overtakes-1]
	switch {
	case o.gen != e.overtakesGen || o.slot != e.slot || o.state != stateSent && o.state != stateStream:
		// It ended otherwise.
	case o.state == stateStream:
		d.sawPassed(e.slot, false)
	case o.passed == 0:
		o.passed = d.now // by how much is known once it has its own
	}
	e.overtakes = 0
}

// sawPassed counts one prompt that could have overtaken another.
func (d *Dispatch) sawPassed(slot int32, passed bool) {
	o, v := &d.aux[slot].overlap, 0.0
	if passed {
		v, o.every = 1, probeEvery
	}
	o.passed.add(v, 1, overlapMemory)
	if d.now < o.until {
		return
	}
	if lately := o.length > 0 && d.now.Sub(o.until) < o.length; !(lately && passed) &&
		(o.passed.n < overlapLeast || o.passed.observed < overlapShare*o.passed.expected) {
		return
	}
	if o.length > 0 && d.now.Sub(o.until) > 2*overlapLongest {
		o.length = 0 // long ago
	}
	o.length = min(max(2*o.length, overlapFirst), overlapLongest)
	o.until = d.now.Add(o.length)
	o.passed = scale{} // and asked anew after that
	d.n.Overlaps++
}

// probeAt is when a slot is to get one request more than it has room for if nothing
// happens before; fleet.Never where it is not.
func (d *Dispatch) probeAt(slot int32) fleet.Time {
	s, a := &d.slots[slot], &d.aux[slot]
	o := &a.overlap
	if a.queue.n == 0 || s.Unstarted != 1 || d.now < o.until || a.theirsAt() > 0 || d.o.Unguarded {
		return fleet.Never
	}
	at := d.entries[a.fifo.head].sentAt.AddSeconds(d.apart(slot))
	if !d.given(slot, a.fifo.head) {
		at = max(at, o.since.AddSeconds(probeAfter), o.probed.AddSeconds(o.interval()))
	}
	if at <= d.now { // it was not fit when it was looked at
		return fleet.Never
	}
	return at.Add(time.Microsecond)
}

// give notes that a pair is given, whatever it tells: the next comes after twice the time.
func (o *overlap) give(now fleet.Time) {
	o.probed, o.every = now, min(2*o.interval(), probeSeldom)
}

// given reports whether entry k is the first of a pair that a slot was given.
func (d *Dispatch) given(slot, k int32) bool {
	o := &d.aux[slot].overlap
	return o.pair == k+1 && o.gen == d.entries[k].gen
}

// interval is how long one pair comes after the other.
func (o *overlap) interval() float64 { return max(probeEvery, o.every) }

// probeDue reports whether it is time to see whether a slot computes several prompts at a
// time. What other routers hold there has its turn, so then it is not.
func (d *Dispatch) probeDue(slot int32) bool {
	a := &d.aux[slot]
	o := &a.overlap
	if a.queue.n == 0 || a.theirsAt() > 0 || d.o.Unguarded {
		return false
	}
	return d.now.Seconds(o.since) >= probeAfter && d.now.Seconds(o.probed) >= o.interval() && d.now >= o.until
}

// probeFirst returns what an idle slot gets instead of entry i, which is next there: where
// it is time for a pair, the shortest that waits in the same line and is long enough to be
// overtaken. -1: entry i it is.
func (d *Dispatch) probeFirst(i, slot int32) int32 {
	if d.slots[slot].Unstarted > 0 || !d.probeDue(slot) || d.isOver(&d.entries[i]) {
		return -1
	}
	e := &d.entries[i]
	l := d.lineFor(&d.aux[slot].queue, e.req.Class, e.tenant)
	least := overtakeWork*e.work + 2*d.apart(slot)
	for m := l.some &^ (1<<bucketOf(least) - 1); orderly(e) && m != 0; m &= m - 1 {
		k := l.bucket[bits.TrailingZeros64(m)].head
		if o := &d.entries[k]; k != i && orderly(o) && o.work >= least {
			if o.work > overtakeMost*least {
				return -1
			}
			d.aux[slot].overlap.give(d.now)
			d.aux[slot].overlap.pair, d.aux[slot].overlap.gen = k+1, o.gen
			return k
		}
	}
	return -1
}

// probe gives a slot the next request of its queue though there is no room for it, where
// it is time to see whether that has to wait for the one which is there.
func (d *Dispatch) probe(slot int32, out []Send) []Send {
	o := &d.aux[slot].overlap
	k := d.alongside(slot)
	if k < 0 || d.aux[slot].queue.n == 0 || d.slots[slot].Drop != route.DropNone || d.still(slot) {
		return out
	}
	given := d.given(slot, k)
	if !given && !d.probeDue(slot) {
		return out
	}
	i := d.next(slot)
	e := &d.entries[i]
	if !orderly(e) || d.isOver(e) || d.rest(slot) < overtakeWork*e.work || d.priceAt(i, slot).Terms[route.TermMemoryWait] > 0 {
		return out
	}
	if !given {
		o.give(d.now)
	}
	o.pair = 0
	d.dequeue(i)
	return d.release(i, slot, route.WhyReleased, out)
}
