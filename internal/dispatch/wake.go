// SPDX-License-Identifier: Apache-2.0

package dispatch

import (
	"time"

	"github.com/penstock-project/penstock/internal/fleet"
	"github.com/penstock-project/penstock/internal/route"
)

const (
	// lateShare is the share of a replica's seats that requests may fill which waited
	// for any replica at all: the rest is for those that come meanwhile, which would
	// otherwise find the batch full of streams that are too late anyhow.
	lateShare = 0.75
	// lateBacklog is the prefill in seconds that a replica may have before it gets
	// another of them.
	lateBacklog = 0.25
	// lateSeats is the number of seats where neither engine nor profile tells one.
	lateSeats = 32
	// thawEvery is how often held requests are looked at while replicas are ready.
	thawEvery = 50 * time.Millisecond
)

// Hold is how a pool treats requests that no replica can take now.
type Hold struct {
	For  time.Duration // longest wait; 0: they are refused at once
	Most int           // most requests that wait for any replica; 0: no bound
	// Ramp lets them go as replicas have room, in place of all at once when the first
	// is ready, and never refuses one for its age while a replica is ready.
	Ramp bool
}

// SetHold changes how requests wait while no replica takes them. Those that wait
// already keep the end of their wait where the new one is shorter.
func (d *Dispatch) SetHold(now fleet.Time, h Hold) {
	d.begin(now)
	d.o.HoldFor, d.hold = h.For, h
	var longer []int32
	for i := d.limbo.head; i >= 0; i = d.entries[i].next {
		if d.until(&d.entries[i]) > d.entries[i].deadline {
			longer = append(longer, i)
		}
	}
	for _, i := range longer {
		d.unwatch(i)
		d.entries[i].deadline = d.until(&d.entries[i])
		d.watch(i)
	}
}

// until is when the wait of an entry for any replica ends at the latest.
func (d *Dispatch) until(e *entry) fleet.Time {
	t := e.arrived.Add(d.o.HoldFor)
	if e.req.Deadline != 0 {
		t = min(t, e.req.Deadline)
	}
	return t
}

// thaw sends on what waited for any replica.
func (d *Dispatch) thaw(out []Send) []Send {
	if d.limbo.n == 0 || d.ready == 0 {
		return out
	}
	for n := d.limbo.n; n > 0 && (!d.hold.Ramp || d.roomForLate()); n-- {
		k := d.limbo.head
		d.leaveLimbo(k)
		_, out = d.dispatch(k, out)
	}
	return out
}

// roomForLate reports whether a replica may take another request that is late.
func (d *Dispatch) roomForLate() bool {
	ctx := d.entries[d.limbo.head].prompt + d.learned.output.v/2
	for i := range d.slots {
		s := &d.slots[i]
		if s.Drop != route.DropNone || s.State == nil || d.aux[i].breaker.open(d.now) {
			continue
		}
		if float64(s.InFlight) < lateShare*d.seats(s, ctx) && s.Pending(d.now) <= lateBacklog {
			return true
		}
	}
	return false
}

// seats is how many requests of ctx tokens run at a slot at a time.
func (d *Dispatch) seats(s *route.Slot, ctx float64) float64 {
	n := s.MaxSeqs
	if s.KVTokens > 0 && ctx > 0 && (n == 0 || s.KVTokens/ctx < n) {
		n = s.KVTokens / ctx
	}
	if n == 0 {
		return lateSeats
	}
	return max(n, 2)
}

// Waiting is what this router and, as far as they told, the others hold at a moment.
type Waiting struct {
	Held   int     // younger than the objective
	Late   int     // older
	Cold   int     // of both, those that wait for any replica at all
	Oldest float64 // seconds since the oldest arrived
}

// Waiting counts what is held, against an objective for the first token.
func (d *Dispatch) Waiting(now fleet.Time, objective time.Duration) Waiting {
	var w Waiting
	if d.queued == 0 && d.limbo.n == 0 && d.heldThere == 0 && d.coldThere == 0 {
		return w
	}
	w.Cold = int(d.limbo.n) + d.coldThere
	for i := range d.entries {
		e := &d.entries[i]
		switch e.state {
		case stateLimbo, stateQueued, statePeerLimbo, statePeerHeld:
		default:
			continue
		}
		age := now.Sub(e.arrived)
		w.Oldest = max(w.Oldest, age.Seconds())
		if age > objective {
			w.Late++
		} else {
			w.Held++
		}
	}
	return w
}
