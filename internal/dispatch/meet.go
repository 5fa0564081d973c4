// SPDX-License-Identifier: Apache-2.0

package dispatch

import (
	"sort"

	"github.com/penstock-project/penstock/internal/route"
)

// A prompt that is held is in no cache yet, and the index does not know it. Requests
// that come behind it with the same new beginning (siblings of a burst, users of a
// document that just became popular) would go to other replicas, and each would
// compute that beginning anew. So they are asked whether to follow the first of them
// that is held, their leader: to wait where it waits and find in the cache what it
// leaves there. Another router may hold it: see meet_peer.go.

// leader returns the held entry that a new entry may follow, by the key of the first
// block that no replica is believed to hold; -1 where there is none.
func (d *Dispatch) leader(i int32, key uint64) int32 {
	k, ok := d.leaders[key]
	if !ok || k == i || key == 0 || d.o.Without.Meet {
		return -1
	}
	return k
}

// lead makes a held entry the leader of those with the same key that come behind it,
// unless there is one already.
func (d *Dispatch) lead(i int32, key uint64) {
	if key == 0 {
		return
	}
	if _, ok := d.leaders[key]; ok {
		return
	}
	d.crown(i, key)
	if d.o.Share {
		d.entries[i].mark()
	}
}

// crown makes an entry the one that others are led by.
func (d *Dispatch) crown(i int32, key uint64) {
	if d.leaders == nil {
		d.leaders = map[uint64]int32{}
	}
	d.leaders[key] = i
	d.entries[i].leads, d.entries[i].key = true, key
}

// unlead ends that: the entry leaves its queue. If it was sent, the index knows it.
func (d *Dispatch) unlead(e *entry) {
	if e.leads {
		e.leads = false
		delete(d.leaders, e.key)
	}
}

// common is the number of leading blocks that two prompts share. Blocks are chained:
// where two are equal, so are all before them.
func common(a, b []uint64) int {
	return sort.Search(min(len(a), len(b)), func(k int) bool { return a[k] != b[k] })
}

// follow decides whether entry i follows held entry k: whether it costs least where k
// waits, with the blocks that k will leave there and with the work of k ahead of it.
// It then makes that the decision.
func (d *Dispatch) follow(i, k int32, dec *route.Decision) bool {
	e, o := &d.entries[i], &d.entries[k]
	slot := o.slot
	if int(slot) >= len(dec.Candidates) || dec.Candidates[slot].Drop != route.DropNone {
		return false
	}
	var n int32
	if o.peer != 0 {
		n = int32(commonMarks(e.req.Blocks, o.marks, int(o.stride)))
	} else {
		n = int32(common(e.req.Blocks, o.req.Blocks))
	}
	if n <= d.hits[slot] {
		return false
	}
	was := d.hits[slot]
	d.hits[slot] = n
	c := &d.scratch
	c.PriceAt(&d.in, slot)
	d.hits[slot] = was
	if o.work > d.workAt(e, slot, float64(c.Uncached)) && !d.o.Without.Terms.Has(route.TermAhead) {
		c.Add(route.TermAhead, o.work*1e3)
	}
	if p := dec.Pick(); p != nil && dec.Chosen != slot && c.CostMS >= p.CostMS {
		return false
	}
	dec.Candidates[slot] = *c
	dec.Settle(slot, route.WhyFollows)
	return true
}

// joins reports whether an entry that goes to a slot now is computed in the same step as
// the last prompt that was sent there, and finds in it what that prompt computes: the
// siblings of a burst come at the same moment. That prompt must not have begun: another
// one is computed before it, or the decode step that ran when it came is not over.
// Without this each sibling would be charged with a step of its own behind the first,
// and one that has to compute all of it elsewhere would look as good.
func (d *Dispatch) joins(e *entry, slot int32) bool {
	s, a := &d.slots[slot], &d.aux[slot]
	if s.Unstarted == 0 || s.Streams == 0 || d.hits[slot] == 0 || d.o.Without.Meet {
		return false
	}
	o := &d.entries[a.fifo.tail]
	if o.req == nil || len(o.req.Blocks) == 0 {
		return false
	}
	before := s.UncachedTokens
	step := d.learned.coef.Step(float64(s.Streams)+s.ForeignStreams, s.CtxTokens) * s.Speed
	if d.now.Seconds(o.sentAt) >= step/2 {
		if a.fifo.head == a.fifo.tail {
			return false
		}
		before -= d.entries[a.fifo.head].uncached
	}
	if float64(common(e.req.Blocks, o.req.Blocks))*e.blockTokens <= o.prompt-o.uncached {
		return false // what they share was there before
	}
	rest := e.prompt - float64(d.hits[slot])*e.blockTokens
	return before+rest <= d.learned.coef.Chunk
}
