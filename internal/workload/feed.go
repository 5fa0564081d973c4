// SPDX-License-Identifier: Apache-2.0

package workload

import (
	"math"
	"time"
)

// NeverDue is the due time of a feed that waits for an answer, or is at its end.
const NeverDue time.Duration = math.MaxInt64

// Item is one request that a Feed handed out.
type Item struct {
	Session *Session
	Number  int           // of the session: how many the source gave before it
	Turn    int           // index into Session.Turns
	At      time.Duration // when it was due, from the start of the run
}

// Request returns the turn that the item stands for.
func (it Item) Request() *Turn { return &it.Session.Turns[it.Turn] }

// FeedOptions are the limits of a Feed.
type FeedOptions struct {
	// Users > 0 makes the feed a closed loop: that many sessions run at any moment,
	// the times at which sessions start are ignored, and every session waits for
	// its answers. 0 keeps the arrivals of the source.
	Users int
	// Ramp spreads the first sessions of the users over this time.
	Ramp time.Duration
	// Limit ends the feed after so many requests; 0: none.
	Limit int
	// Until ends the feed at this due time; 0: none.
	Until time.Duration
	// NoThink sends the next turn of a closed session at once.
	NoThink bool
}

// Feed hands out the requests of a Source in the order in which they are due. Its
// owner pops items as its clock reaches NextAt and reports the end of each with
// Done. The clock is the owner's: the simulator has one, the load generator another.
// A Feed is not safe for concurrent use.
type Feed struct {
	src    Source
	opt    FeedOptions
	peek   *Session // next session of the source, open loop
	taken  int      // sessions that left the source for due
	due    dueHeap
	seq    uint64
	issued int
	open   int // items out, not yet Done
	ended  bool
	filled bool // fill has nothing to do
}

// NewFeed starts a feed over src.
func NewFeed(src Source, opt FeedOptions) *Feed {
	f := &Feed{src: src, opt: opt}
	if opt.Users > 0 {
		for i := range opt.Users {
			f.startUser(opt.Ramp * time.Duration(i) / time.Duration(opt.Users))
		}
		return f
	}
	f.peek = src.Next()
	return f
}

// startUser puts the next session of the source in the place of a user, at now.
func (f *Feed) startUser(now time.Duration) {
	if s := f.src.Next(); s != nil {
		f.push(dueItem{Item: Item{Session: s, Number: f.taken, At: now}})
		f.taken++
	}
}

func (f *Feed) push(d dueItem) {
	d.seq = f.seq
	f.seq++
	f.filled = false
	f.due.push(d)
}

// NextAt returns when the next item is due, NeverDue where none is: then either
// answers are outstanding or the feed is at its end.
func (f *Feed) NextAt() time.Duration {
	f.fill()
	if f.ended || len(f.due) == 0 {
		return NeverDue
	}
	return f.due[0].At
}

// fill moves sessions of the source that start before everything else that is due.
func (f *Feed) fill() {
	if f.filled {
		return
	}
	if f.opt.Limit > 0 && f.issued >= f.opt.Limit {
		f.ended = true
	}
	for !f.ended && f.peek != nil && (len(f.due) == 0 || f.peek.Start < f.due[0].At) {
		s := f.peek
		f.push(dueItem{Item: Item{Session: s, Number: f.taken, At: s.Start}})
		if !s.Closed {
			for i := 1; i < len(s.Turns); i++ {
				f.push(dueItem{Item: Item{Session: s, Number: f.taken, Turn: i, At: s.Turns[i].At}})
			}
		}
		f.taken++
		f.peek = f.src.Next()
	}
	if f.opt.Until > 0 && len(f.due) > 0 && f.due[0].At > f.opt.Until {
		f.ended = true
	}
	f.filled = true
}

// Pop hands out the next item if it is due at now.
func (f *Feed) Pop(now time.Duration) (Item, bool) {
	if at := f.NextAt(); at == NeverDue || at > now {
		return Item{}, false
	}
	return f.take(), true
}

// PopAny hands out the next item whenever it is due.
func (f *Feed) PopAny() (Item, bool) {
	if f.NextAt() == NeverDue {
		return Item{}, false
	}
	return f.take(), true
}

func (f *Feed) take() Item {
	it := f.due.pop().Item
	f.filled = false
	f.issued++
	f.open++
	return it
}

// Done tells that the answer to it ended at now; the next turn of a closed session
// becomes due after its pause. Every item that was popped is reported once.
func (f *Feed) Done(it Item, now time.Duration) {
	f.open--
	s := it.Session
	next := it.Turn + 1
	if next >= len(s.Turns) {
		if f.opt.Users > 0 {
			f.startUser(now)
		}
		return
	}
	if !s.Closed && f.opt.Users == 0 {
		return // an open turn is already in the heap
	}
	at := now
	if !f.opt.NoThink {
		at += s.Turns[next].Think
	}
	f.push(dueItem{Item: Item{Session: s, Number: it.Number, Turn: next, At: at}})
}

// Abandon tells that it ended and that its session goes no further, for example
// because its request failed.
func (f *Feed) Abandon(it Item, now time.Duration) {
	f.open--
	if f.opt.Users > 0 {
		f.startUser(now)
	}
}

// Exhausted reports whether no item is or will become due.
func (f *Feed) Exhausted() bool {
	if f.NextAt() != NeverDue {
		return false
	}
	return f.ended || f.open == 0
}

// Issued returns how many items were handed out.
func (f *Feed) Issued() int { return f.issued }

type dueItem struct {
	Item
	seq uint64
}

// dueHeap is a binary heap by due time, then by the order of entry. It is written
// out because container/heap would allocate for every item.
type dueHeap []dueItem

func (h dueHeap) less(i, j int) bool {
	if h[i].At != h[j].At {
		return h[i].At < h[j].At
	}
	return h[i].seq < h[j].seq
}

func (h *dueHeap) push(d dueItem) {
	*h = append(*h, d)
	q := *h
	for i := len(q) - 1; i > 0; {
		up := (i - 1) / 2
		if !q.less(i, up) {
			return
		}
		q[i], q[up] = q[up], q[i]
		i = up
	}
}

func (h *dueHeap) pop() dueItem {
	q := *h
	top, n := q[0], len(q)-1
	q[0], q[n] = q[n], dueItem{}
	q = q[:n]
	*h = q
	for i := 0; ; {
		least := 2*i + 1
		if least >= n {
			return top
		}
		if r := least + 1; r < n && q.less(r, least) {
			least = r
		}
		if !q.less(least, i) {
			return top
		}
		q[i], q[least] = q[least], q[i]
		i = least
	}
}
