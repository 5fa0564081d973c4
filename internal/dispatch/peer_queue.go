// SPDX-License-Identifier: Apache-2.0

package dispatch

import (
	"math"
	"time"

	"github.com/penstock-project/penstock/internal/fleet"
)

const (
	// yieldMost is how long a router leaves a place at a replica to another router
	// whose request goes first. The other one may wait for memory there, as it would
	// in a single queue. Then it goes itself: the two may see the replica differently.
	yieldMost = 50 * time.Millisecond
	// yieldMargin is how much better the other's rank must be: notes are on their way
	// for a while, and of two that are about equal each could leave the place to the
	// other.
	yieldMargin = 0.95
)

// peerQueue is what other routers hold for a slot.
type peerQueue struct {
	held
	yielding fleet.Time // since when a place is left to them; 0: it is not
}

// queueTheirs files an entry that another router holds for e.slot.
func (d *Dispatch) queueTheirs(i int32) {
	e := &d.entries[i]
	a := &d.aux[e.slot]
	if a.theirs == nil {
		a.theirs = &peerQueue{held: newHeld()}
	}
	d.file(&a.theirs.held, i)
	d.heldThere++
	d.show(e.slot)
}

// dequeueTheirs is the inverse of queueTheirs.
func (d *Dispatch) dequeueTheirs(i int32) {
	e := &d.entries[i]
	q := d.aux[e.slot].theirs
	d.unlead(e)
	d.unfile(&q.held, i)
	if q.n == 0 {
		q.yielding = 0
	}
	d.heldThere--
	d.show(e.slot)
}

// theirsAt returns how many requests other routers hold for a slot.
func (a *slot) theirsAt() int32 {
	if a.theirs == nil {
		return 0
	}
	return a.theirs.n
}

// bestOfTheirs is the rank of the request that goes first of those that other
// routers hold for a slot; +Inf where they hold none.
func (d *Dispatch) bestOfTheirs(slot int32) float64 {
	if d.aux[slot].theirsAt() == 0 {
		return math.Inf(1)
	}
	return d.ratio(&d.entries[d.nextOf(&d.aux[slot].theirs.held)])
}

// yields reports whether entry i leaves the place at a slot to a request that
// another router holds, for that one goes first.
func (d *Dispatch) yields(i, slot int32) bool {
	q := d.aux[slot].theirs
	if q == nil || q.n == 0 {
		return false
	}
	if d.waitsBehind(&d.entries[i]) == nil && d.bestOfTheirs(slot) >= yieldMargin*d.ratio(&d.entries[i]) {
		return false
	}
	if q.yielding == 0 {
		q.yielding = d.now
	}
	return d.now.Sub(q.yielding) < yieldMost
}

// tookPlace notes that a place at a slot was taken: the next one is left to others
// anew.
func (d *Dispatch) tookPlace(slot int32) {
	if q := d.aux[slot].theirs; q != nil {
		q.yielding = 0
	}
}

// yieldEnds is when a slot's queue goes on although others were to go first;
// fleet.Never where it does not wait for them.
func (d *Dispatch) yieldEnds(slot int32) fleet.Time {
	q := d.aux[slot].theirs
	if q == nil || q.yielding == 0 {
		return fleet.Never
	}
	if t := q.yielding.Add(yieldMost); t > d.now {
		return t
	}
	return fleet.Never // its time is over; what is in the way now is something else
}
