// SPDX-License-Identifier: Apache-2.0

package dispatch

import (
	"math"

	"github.com/penstock-project/penstock/internal/fleet"
)

// FirstToken says that the first byte of the answer came.
func (d *Dispatch) FirstToken(now fleet.Time, t Ticket, out []Send) []Send {
	d.begin(now)
	i := d.find(t)
	if i < 0 || d.entries[i].state != stateSent {
		return out
	}
	slot := d.entries[i].slot
	d.start(i, d.now, true)
	d.answered(i)
	d.judge(&d.entries[i])
	d.sawOrder(&d.entries[i])
	return d.thaw(d.flush(d.drain(slot, out)))
}

// answered counts a sign that the endpoint works.
func (d *Dispatch) answered(i int32) {
	e := &d.entries[i]
	d.lives(e.slot)
	b := &d.aux[e.slot].breaker
	b.succeeded(d.now, e.trial)
	if e.trial {
		e.trial, b.trying = false, false
	}
	d.kin(e.slot)
}

// start moves an entry from the requests without a first token to the streams.
// seen says that the first token was seen and not only expected.
func (d *Dispatch) start(i int32, at fleet.Time, seen bool) {
	e := &d.entries[i]
	s, a := &d.slots[e.slot], &d.aux[e.slot]
	if seen && d.silent > 0 {
		// Prompts are computed in the order they came: those before it that cannot
		// show a first token have theirs as well.
		for k := a.fifo.head; k >= 0 && k != i; {
			next := d.entries[k].next
			if !d.entries[k].stream {
				d.start(k, at, false)
			}
			k = next
		}
	}
	d.leaveFIFO(i, at)
	e.state, e.firstAt = stateStream, at
	e.output = 1
	if e.stream {
		e.lastAt = d.now
	} else {
		e.output = math.Ceil(d.learned.output.v / 2) // on average, over its life
	}
	e.context = e.prompt + e.output
	d.pace(e.slot)
	s.Streams++
	s.CtxTokens += e.context
	s.Generated += e.output
	if e.peer == 0 && !d.isOver(e) {
		d.learned.ttft.add(at.Seconds(e.arrived))
	}
	if seen {
		d.tell(NoteFirst, i, 0)
		d.sawFirst(e.slot, e)
	} else {
		a.speed.done += e.work
	}
	e.stepsAt, e.doneAt = a.speed.steps, a.speed.done
}

// leaveFIFO takes an entry off the requests without a first token.
func (d *Dispatch) leaveFIFO(i int32, at fleet.Time) {
	e := &d.entries[i]
	s, a := &d.slots[e.slot], &d.aux[e.slot]
	d.tally(e.slot)
	head := a.fifo.head == i
	d.unlink(&a.fifo, i)
	if !e.stream {
		d.silent--
	}
	s.Unstarted--
	s.PendingSum -= e.estimate
	a.shares -= e.share
	s.UncachedTokens -= e.uncached
	if s.Unstarted == 0 { // sums of floats leave dust
		s.PendingSum, s.UncachedTokens, s.HeadEstimate, a.shares = 0, 0, 0, 0
	} else if head {
		s.HeadEstimate, s.HeadSince = d.entries[a.fifo.head].estimate, at
	}
}

// settle moves on the requests whose first token does not show and is due by now.
func (d *Dispatch) settle(now fleet.Time) {
	for i := range d.slots {
		for {
			k := d.aux[i].fifo.head
			if k < 0 || d.entries[k].stream {
				break
			}
			at := d.slots[i].HeadSince.AddSeconds(d.entries[k].estimate)
			if at > now {
				break
			}
			d.start(k, at, false)
		}
	}
}

// Progress says that tokens more output tokens came.
func (d *Dispatch) Progress(now fleet.Time, t Ticket, tokens int) {
	d.begin(now)
	i := d.find(t)
	if i < 0 || tokens <= 0 {
		return
	}
	e := &d.entries[i]
	if e.state != stateStream {
		return
	}
	d.grow(i, float64(tokens))
	d.lives(e.slot)
	d.tell(NoteProgress, i, float64(tokens))
}

// takeBack removes from the accounting what an entry at an endpoint is charged
// with.
func (d *Dispatch) takeBack(i int32) {
	e := &d.entries[i]
	slot := e.slot
	s, a := &d.slots[slot], &d.aux[slot]
	if e.state == stateSent {
		d.leaveFIFO(i, d.now)
	} else {
		d.pace(slot)
		s.Streams--
		s.CtxTokens -= e.context
		s.Generated -= e.output
		if s.Streams == 0 {
			s.CtxTokens, s.Generated = 0, 0
		}
	}
	s.InFlight--
	s.TailTokens -= e.tail
	if s.InFlight == 0 {
		s.TailTokens = 0
	}
	if e.trial {
		e.trial, a.breaker.trying = false, false
		d.kin(slot)
	}
	a.inFlightAt.set(d.now, s.InFlight)
	d.index.Unpin(d.now, e.pins)
	if e.peer == 0 {
		if !e.stream {
			d.owesLess(slot)
		}
		d.unweigh(e)
		if e.req.Adapter != "" {
			d.leaveAdapter(slot, e.req.Adapter)
		}
		d.n.InFlight--
		d.tell(NoteEnd, i, 0)
	} else {
		a.peers--
	}
	d.refresh(slot)
	d.freeSlot(slot)
}

// Retry says that the attempt failed, how, and that no byte has reached the
// client; it asks for another endpoint, those tried excluded. A connect that failed
// may go on to each endpoint in turn, anything else moves once: it may have been
// executed. On Refused the ticket stays open until End.
func (d *Dispatch) Retry(now fleet.Time, t Ticket, kind fleet.OutcomeKind, out []Send) (Verdict, []Send) {
	d.begin(now)
	i := d.find(t)
	if i < 0 {
		return Verdict{Kind: Refused, Reason: "the request is over"}, out
	}
	e := &d.entries[i]
	if e.state != stateSent && e.state != stateStream {
		return Verdict{Kind: Refused, Reason: "the request is at no replica"}, out
	}
	slot := e.slot
	e.tried = append(e.tried, d.placeKey(slot))
	d.fault(slot, kind)
	d.takeBack(i)
	if kind == fleet.OutcomeClientError && e.req.Adapter != "" {
		d.deny(slot, e.req.Adapter)
	}
	e.state = stateFailed
	if kind != fleet.OutcomeConnectError {
		if e.retried {
			return Verdict{Kind: Refused, Reason: "it was tried elsewhere once already"}, d.drain(slot, out)
		}
		e.retried = true
	}
	dec := d.lend()
	if d.ask(i, dec, false) == 0 {
		cause, why := d.refusal(e)
		return Verdict{Kind: Refused, Decision: dec, Cause: cause, Reason: why}, d.drain(slot, out)
	}
	d.n.Retried++
	out = d.send(i, dec, out)
	return Verdict{Kind: Sent, Decision: dec}, d.drain(slot, out)
}

// fault counts a failed attempt at a slot.
func (d *Dispatch) fault(slot int32, kind fleet.OutcomeKind) {
	switch kind {
	case fleet.OutcomeOK, fleet.OutcomeClientGone, fleet.OutcomeClientError, fleet.OutcomeRefused:
		return
	}
	d.aux[slot].failed++
	d.aux[slot].breaker.failed(d.now, kind)
	d.kin(slot)
}

// End is the last word on a ticket, whatever the ending. A second End of the same
// ticket does nothing.
func (d *Dispatch) End(now fleet.Time, t Ticket, o fleet.Outcome, out []Send) []Send {
	d.begin(now)
	i := d.find(t)
	if i < 0 {
		return out
	}
	e := &d.entries[i]
	d.n.Ended++
	slot := int32(-1)
	switch e.state {
	case stateQueued:
		d.dequeue(i)
	case stateLimbo:
		d.leaveLimbo(i)
		d.warmed(i, true)
	case stateSent, stateStream:
		slot = e.slot
		d.conclude(i, &o)
		d.takeBack(i)
	}
	d.forget(i)
	if slot < 0 {
		return out
	}
	return d.thaw(d.drain(slot, out))
}

// conclude learns from the outcome of an entry that is at an endpoint.
func (d *Dispatch) conclude(i int32, o *fleet.Outcome) {
	e := &d.entries[i]
	a, l := &d.aux[e.slot], &d.learned
	if o.Kind != fleet.OutcomeOK && o.Kind != fleet.OutcomeClientError {
		d.fault(e.slot, o.Kind)
		return
	}
	if e.state == stateSent && o.Kind == fleet.OutcomeOK {
		d.start(i, d.now, false)
	}
	d.answered(i)
	if o.Kind != fleet.OutcomeOK {
		return
	}
	if a.home != nil && shows(e, o) {
		a.home.check.end(d.now, a.rank)
	}
	if !d.isOver(e) {
		l.e2e.add(d.now.Seconds(e.arrived))
	}
	n := float64(o.OutputTokens)
	if n < 0 && e.stream {
		n = e.output
	}
	if n > 0 {
		l.output.add(n)
		d.sawEnd(e.slot, e, n)
	}
	l.text(e.req.Model, e.req.PromptBytes, o.PromptTokens)
	d.remember(e, o.PromptTokens, o.CachedTokens)
	if o.CachedTokens < 0 || o.PromptTokens <= 0 || e.life != a.life {
		return // not told, or the cache of then is gone
	}
	d.sawCached(e, o.PromptTokens, o.CachedTokens)
	expected := float64(e.cached) * float64(o.PromptTokens) / e.prompt // in the engine's tokens
	a.predicted += int64(expected)
	a.observed += int64(o.CachedTokens)
	if !e.prior { // the index did not predict that
		d.index.Feedback(e.slot, int(expected), o.CachedTokens)
	}
	d.refresh(e.slot)
}
