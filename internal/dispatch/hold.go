// SPDX-License-Identifier: Apache-2.0

package dispatch

import (
	"fmt"
	"strings"
	"time"

	"github.com/penstock-project/penstock/internal/fleet"
	"github.com/penstock-project/penstock/internal/route"
)

// turnAway is what happens to an entry that no replica can take now: it waits for
// one where that may help and is allowed, else it is refused.
func (d *Dispatch) turnAway(i int32, dec *route.Decision, out []Send) (Verdict, []Send) {
	e := &d.entries[i]
	cause, why := d.refusal(e)
	until := d.until(e)
	full := d.hold.Most > 0 && int(d.limbo.n) >= d.hold.Most && !e.waited
	if full {
		why = fmt.Sprintf("%s, and %d requests wait for one already", why, d.limbo.n)
	}
	if until > d.now && waitHelps(cause) && !full {
		e.state, e.slot, e.heldAt, e.deadline = stateLimbo, -1, d.now, until
		e.waited = true
		d.push(&d.limbo, i)
		d.watch(i)
		if !e.cold {
			e.cold = true
			d.tell(NoteCold, i, 0)
		}
		dec.Wait = true
		return Verdict{Kind: Held, Decision: dec, Cause: cause, Reason: why}, out
	}
	if e.waited { // its caller waits: tell it through out
		out = d.refuse(i, cause, why, out)
	}
	return Verdict{Kind: Refused, Decision: dec, Cause: cause, Reason: why}, out
}

// refuse ends the wait of a held entry without sending it. The entry is in no list.
func (d *Dispatch) refuse(i int32, cause route.Drop, why string, out []Send) []Send {
	e := &d.entries[i]
	out = append(out, Send{
		Ticket: d.ticket(i), Slot: -1, Request: e.req, Held: time.Duration(e.held), Cause: cause, Reason: why,
	})
	d.n.Refused++
	d.warmed(i, true)
	d.forget(i)
	return out
}

// waitHelps reports whether a replica may turn up that takes the request.
func waitHelps(cause route.Drop) bool {
	return cause != route.DropModel && cause != route.DropAdapter && cause != route.DropRole && cause != route.DropSubset
}

// closeness ranks drop reasons by how little keeps the endpoint from being a
// candidate.
var closeness = [route.NumDrops]int{
	route.DropGone: 1, route.DropSubset: 2, route.DropRole: 2, route.DropModel: 3, route.DropAdapter: 4, route.DropFailed: 5,
	route.DropDraining: 6, route.DropAsleep: 7, route.DropNotReady: 8, route.DropTried: 9, route.DropEjected: 10,
}

// refusal says why no slot takes an entry, after filter.
func (d *Dispatch) refusal(e *entry) (route.Drop, string) {
	var counts [route.NumDrops]int
	cause := route.DropGone
	for i, drop := range d.drops {
		if d.slots[i].State == nil {
			continue
		}
		counts[drop]++
		if closeness[drop] > closeness[cause] {
			cause = drop
		}
	}
	switch cause {
	case route.DropGone:
		return cause, "no replica is known"
	case route.DropModel:
		return cause, fmt.Sprintf("no replica serves model %q", e.req.Model)
	case route.DropAdapter:
		return d.noAdapter(e.req.Adapter)
	case route.DropSubset:
		return cause, "no replica is among the endpoints that the request is bound to"
	case route.DropRole:
		return cause, "the pool splits prefill from decode, which is not served"
	}
	var parts []string
	for drop := route.DropGone; int(drop) < route.NumDrops; drop++ {
		if n := counts[drop]; n > 0 {
			parts = append(parts, fmt.Sprintf("%d %s", n, strings.ReplaceAll(drop.String(), "_", " ")))
		}
	}
	head := "no replica is ready"
	if cause == route.DropTried {
		head = "no other replica can take it"
	}
	return cause, head + ": " + strings.Join(parts, ", ")
}

// warmed notes that an entry waits for any replica no more. Where it ends with that the
// other routers are told; else what they are told next says it.
func (d *Dispatch) warmed(i int32, ends bool) {
	e := &d.entries[i]
	if e.cold && ends {
		d.tell(NoteReleased, i, 0)
	}
	e.cold = false
}

// leaveLimbo takes an entry out of the wait for any replica.
func (d *Dispatch) leaveLimbo(i int32) {
	e := &d.entries[i]
	d.unlink(&d.limbo, i)
	d.unwatch(i)
	e.held = e.heldFor(d.now)
	e.state = stateFailed
}

// Tick does what was due by now.
func (d *Dispatch) Tick(now fleet.Time, out []Send) []Send {
	d.begin(now)
	for len(d.due) > 0 && d.entries[d.due[0]].deadline <= d.now {
		out = d.overdue(d.due[0], out)
	}
	return d.drainAll(d.thaw(out))
}

// overdue ends the wait of an entry whose time is up.
func (d *Dispatch) overdue(i int32, out []Send) []Send {
	e := &d.entries[i]
	if e.state == stateLimbo && d.hold.Ramp && d.ready > 0 && (e.req.Deadline == 0 || e.req.Deadline > d.now) {
		// It waits for its turn only: it is too late to be refused.
		d.leaveLimbo(i)
		_, out = d.dispatch(i, out)
		return out
	}
	if e.state == stateLimbo {
		d.filter(e)
		cause, why := d.refusal(e)
		d.leaveLimbo(i)
		return d.refuse(i, cause, why, out)
	}
	slot := e.slot
	d.dequeue(i)
	if e.req.Deadline != 0 && e.req.Deadline <= d.now {
		return d.refuse(i, route.DropNone, "its deadline passed while it waited for its turn", out)
	}
	d.n.Overdue++
	if dec := d.lend(); d.still(slot) && d.ask(i, dec, true) > 0 {
		dec.Settle(dec.Index, route.WhyOverdue)
		return d.send(i, dec, out)
	}
	return d.release(i, slot, route.WhyOverdue, out)
}

// NextTimer is when Tick has something to do; fleet.Never where nothing is due.
func (d *Dispatch) NextTimer() fleet.Time {
	t := fleet.Never
	if len(d.due) > 0 {
		t = d.entries[d.due[0]].deadline
	}
	if d.hold.Ramp && d.limbo.n > 0 && d.ready > 0 {
		t = min(t, d.now.Add(thawEvery))
	}
	if d.queued == 0 {
		return t
	}
	for i := range d.slots {
		if d.aux[i].queue.n > 0 {
			t = min(t, d.opens(int32(i)), d.yieldEnds(int32(i)), d.probeAt(int32(i)))
		}
	}
	return max(t, d.now)
}

// opens is when a slot with a queue takes its next request if nothing happens
// before: the work that it has runs down to the threshold. fleet.Never where time
// alone does not help.
func (d *Dispatch) opens(i int32) fleet.Time {
	s, a := &d.slots[i], &d.aux[i]
	if s.Unstarted == 0 {
		return fleet.Never
	}
	t := fleet.Never
	if k := a.fifo.head; !d.entries[k].stream {
		t = s.HeadSince.AddSeconds(d.entries[k].estimate)
	}
	if d.inHand(i) >= d.room(i) {
		if need := (s.ForeignPending + a.shares - d.room(i)) / 0.9; need < s.HeadEstimate {
			// A microsecond more, so that rounding does not bring us here again.
			t = min(t, s.HeadSince.AddSeconds(need).Add(time.Microsecond))
		}
	}
	if t <= d.now {
		return fleet.Never
	}
	return t
}
