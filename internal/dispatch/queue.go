// SPDX-License-Identifier: Apache-2.0

package dispatch

import (
	"math"
	"math/bits"

	"github.com/penstock-project/penstock/internal/admit"
)

const (
	// buckets of work, a factor of sqrt(2) apart, the first up to leastWork
	// seconds: the last one holds what takes over a minute. Inside a bucket works
	// differ by less than half, so first come first served is as good as any order
	// and finding the next request costs a look at one head a bucket.
	buckets   = 36
	leastWork = 0.5e-3
	// slack keeps requests of a few milliseconds from overtaking each other for
	// nothing, seconds.
	slack = 0.02
	// fcfsShare is how much of the first come first served delay counts as waited
	// on arrival.
	fcfsShare = 0.5
	// allGoFirst is work in seconds that all other work goes before.
	allGoFirst = 1e6
	// notYet is beyond every rank: of a request that waits behind one of another
	// router's queue. Until that one went nobody leaves it a place.
	notYet = 1e12
)

// bucketOf returns the bucket of x seconds of work.
func bucketOf(x float64) int8 {
	if x <= leastWork {
		return 0
	}
	return int8(min(buckets-1, 1+int(2*math.Log2(x/leastWork))))
}

// queue is what the router holds for one slot: a line for each class and tenant
// that has something there.
type queue struct {
	n      int32
	work   float64
	tokens float64
	lines  []*line // by class, then tenant
}

// line is the queue of one class and tenant at one slot.
type line struct {
	class  uint8
	tenant int32
	held
}

// held is entries by bucket of work.
type held struct {
	n      int32
	work   float64 // seconds
	tokens float64 // of their prompts
	some   uint64  // bit b: bucket b is not empty
	bucket [buckets]list
	works  [buckets]float64
}

func newHeld() held {
	var h held
	for b := range h.bucket {
		h.bucket[b] = emptyList
	}
	return h
}

// file adds entry i to its bucket.
func (d *Dispatch) file(h *held, i int32) {
	e := &d.entries[i]
	d.push(&h.bucket[e.bucket], i)
	h.some |= 1 << e.bucket
	h.works[e.bucket] += e.work
	h.n++
	h.work += e.work
	h.tokens += e.prompt
}

// unfile is the inverse of file.
func (d *Dispatch) unfile(h *held, i int32) {
	e := &d.entries[i]
	d.unlink(&h.bucket[e.bucket], i)
	h.works[e.bucket] -= e.work
	h.n--
	h.work -= e.work
	h.tokens -= e.prompt
	if h.bucket[e.bucket].n == 0 { // sums of floats leave dust
		h.some &^= 1 << e.bucket
		h.works[e.bucket] = 0
	}
	if h.n == 0 {
		h.work, h.tokens = 0, 0
	}
}

// position returns the work that goes before a request of x seconds and the number
// of requests that go after it.
func (h *held) position(x float64) (ahead, behind float64) {
	b := bucketOf(x)
	n := int32(0)
	for m := h.some & (1<<(b+1) - 1); m != 0; m &= m - 1 {
		k := bits.TrailingZeros64(m)
		ahead += h.works[k]
		n += h.bucket[k].n
	}
	return ahead, float64(h.n - n)
}

func (l *line) before(class uint8, tenant int32) bool {
	return l.class < class || l.class == class && l.tenant < tenant
}

// lineFor returns the line of a class and tenant at a slot, a new one where there
// is none.
func (d *Dispatch) lineFor(q *queue, class uint8, tenant int32) *line {
	k := 0
	for k < len(q.lines) && q.lines[k].before(class, tenant) {
		k++
	}
	if k < len(q.lines) && q.lines[k].class == class && q.lines[k].tenant == tenant {
		return q.lines[k]
	}
	var l *line
	if n := len(d.spare); n > 0 {
		l, d.spare = d.spare[n-1], d.spare[:n-1]
	} else {
		l = &line{held: newHeld()}
	}
	l.class, l.tenant = class, tenant
	q.lines = append(q.lines, nil)
	copy(q.lines[k+1:], q.lines[k:])
	q.lines[k] = l
	return l
}

// enqueue holds entry i for a slot. Its work there is known.
func (d *Dispatch) enqueue(i, slot int32) { d.enqueueBehind(i, slot, -1) }

// enqueueBehind does that for an entry that follows another, which waits there: it
// does not go before it. led -1: it follows none.
func (d *Dispatch) enqueueBehind(i, slot, led int32) {
	e := &d.entries[i]
	q := &d.aux[slot].queue
	l := d.lineFor(q, e.req.Class, e.tenant)
	e.state, e.slot, e.bucket, e.waited = stateQueued, slot, bucketOf(e.work), true
	e.behind, e.led = 0, 0
	if led >= 0 {
		e.led = d.entries[led].key
		d.waitBehind(i, led)
	}
	e.heldAt = d.now
	u := d.shares.tenant(e.tenant)
	u.queued++
	u.work += e.work
	u.tokens += e.prompt
	d.bind(e)
	d.tally(slot)
	d.file(&l.held, i)
	if q.n == 0 {
		d.aux[slot].overlap.since = d.now
	}
	q.n++
	q.work += e.work
	q.tokens += e.prompt
	d.queued++
	d.show(slot)
	d.warmed(i, false)
	d.tell(NoteHeld, i, 0)
	d.watch(i)
}

// bind sets when an entry leaves the queue at the latest.
func (d *Dispatch) bind(e *entry) {
	e.bound = e.arrived.AddSeconds(d.boundFor(e))
	if h := e.req.Hold; h > 0 {
		e.bound = min(e.bound, e.arrived.Add(h))
	}
	e.deadline = e.bound
	if e.req.Deadline != 0 {
		e.deadline = min(e.deadline, e.req.Deadline)
	}
}

// dequeue takes entry i out of the queue that it is in.
func (d *Dispatch) dequeue(i int32) {
	e := &d.entries[i]
	q := &d.aux[e.slot].queue
	l := d.lineFor(q, e.req.Class, e.tenant)
	d.unlead(e)
	d.tally(e.slot)
	d.unfile(&l.held, i)
	u := d.shares.tenant(e.tenant)
	if u.queued--; u.queued == 0 {
		u.work, u.tokens = 0, 0
	} else {
		u.work -= e.work
		u.tokens -= e.prompt
	}
	q.n--
	q.work -= e.work
	q.tokens -= e.prompt
	if l.n == 0 {
		for k := range q.lines {
			if q.lines[k] == l {
				q.lines = append(q.lines[:k], q.lines[k+1:]...)
				break
			}
		}
		d.spare = append(d.spare, l)
	}
	if q.n == 0 {
		q.work, q.tokens = 0, 0
	}
	d.queued--
	d.show(e.slot)
	d.tell(NoteReleased, i, 0)
	d.unwatch(i)
	e.held = e.heldFor(d.now)
	e.state = stateFailed
}

// show lets the picker see a slot's queue.
func (d *Dispatch) show(slot int32) {
	s, q := &d.slots[slot], &d.aux[slot].queue
	s.Queued, s.QueuedWork, s.QueuedTokens = q.n, q.work, q.tokens
	s.QueuedLast, s.QueuedLastTokens = 0, 0
	if d.shares.over >= 0 {
		for _, l := range q.lines {
			if l.tenant == d.shares.over {
				s.QueuedLast += l.n
				s.QueuedLastTokens += l.tokens
			}
		}
	}
	if t := d.aux[slot].theirs; t != nil {
		s.Queued, s.QueuedWork, s.QueuedTokens = q.n+t.n, q.work+t.work, q.tokens+t.tokens
	}
}

// Position implements route.QueueView. Lines of more urgent classes go first.
// Lines of the same class take turns, so of another tenant's work as much goes
// first as goes of one's own.
func (d *Dispatch) Position(slot int32, class uint8, tenant int32, x float64) (ahead, behind float64) {
	q := &d.aux[slot].queue
	if d.o.Without.Order {
		x = allGoFirst
	}
	own := x
	for _, l := range q.lines {
		if l.class == class && l.tenant == tenant {
			ahead, behind = l.position(x)
			own += ahead
		}
	}
	for _, l := range q.lines {
		switch {
		case l.class < class:
			ahead += l.work
		case l.class > class:
			behind += float64(l.n)
		case l.tenant != tenant && l.tenant == d.shares.over:
			// It goes last, and what it waits for that is its own affair.
		case l.tenant != tenant:
			first := min(l.work, own)
			ahead += first
			if l.work > 0 {
				behind += float64(l.n) * (1 - first/l.work)
			}
		}
	}
	if t := d.aux[slot].theirs; t != nil {
		// All of it counts as of the same class and tenant.
		before, after := t.position(x)
		ahead, behind = ahead+before, behind+after
	}
	return ahead, behind
}

// ratio ranks requests inside a line, smaller first: the work over the time waited,
// where half of what first come first served would have cost counts as waited
// already. Short ones go first, and every one goes in time.
func (d *Dispatch) ratio(e *entry) float64 {
	r := (e.work + slack) / (d.now.Seconds(e.arrived) + fcfsShare*e.fcfs + slack)
	if d.o.Without.Order {
		r = e.arrived.Seconds(0) // the oldest first
	}
	if d.waitsBehind(e) != nil {
		r += notYet
	}
	return r
}

// order ranks a line's next request among lines.
func (d *Dispatch) order(l *line) admit.Order {
	return d.turn(l.class, l.tenant)
}

// turn orders tenants: by class, then by virtual time, the one over its share last.
func (d *Dispatch) turn(class uint8, tenant int32) admit.Order {
	if tenant == d.shares.over {
		return admit.Order{Class: class, Start: math.Inf(1)}
	}
	return admit.Order{Class: class, Start: d.fair.Start(tenant)}
}

// nextOf returns the entry that goes first of those in buckets; -1 where there is none.
func (d *Dispatch) nextOf(h *held) int32 {
	best, least := int32(-1), math.Inf(1)
	for m := h.some; m != 0; m &= m - 1 {
		k := h.bucket[bits.TrailingZeros64(m)].head
		if r := d.ratio(&d.entries[k]); r < least {
			best, least = k, r
		}
	}
	return best
}

// next returns the entry of a slot's queue that goes first; -1 where it is empty.
func (d *Dispatch) next(slot int32) int32 {
	var first *line
	best, waits := int32(-1), false
	for _, l := range d.aux[slot].queue.lines {
		k := d.nextOf(&l.held)
		// A line of which all wait behind another router's request holds no other line up.
		w := d.waitsBehind(&d.entries[k]) != nil
		if first == nil || waits && !w || w == waits && d.order(l).Less(d.order(first)) {
			first, best, waits = l, k, w
		}
	}
	return best
}

// popNext takes the first entry out of a slot's queue, which is not empty.
func (d *Dispatch) popNext(slot int32) int32 {
	i := d.next(slot)
	d.dequeue(i)
	return i
}

// goesBefore reports whether a new entry would go before all that a slot's queue
// holds.
func (d *Dispatch) goesBefore(i, slot int32) bool {
	k := d.next(slot)
	if k < 0 {
		return true
	}
	e, o := &d.entries[i], &d.entries[k]
	a, b := d.turn(e.req.Class, e.tenant), d.turn(o.req.Class, o.tenant)
	if a != b {
		return a.Less(b)
	}
	return d.ratio(e) < d.ratio(o)
}
