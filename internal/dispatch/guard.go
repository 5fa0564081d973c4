// SPDX-License-Identifier: Apache-2.0

package dispatch

import (
	"math"
	"time"

	"github.com/penstock-project/penstock/internal/fleet"
	"github.com/penstock-project/penstock/internal/route"
)

// What holds a request, or sends it somewhere in the hope of what others leave there,
// is right only while it pays. So each such mechanism is measured on the requests that
// it touched: the time to first token that they got against the one that they were
// predicted to get without it. One that harms is off for a while, and tried again.
//
// Predictions are off by what the engine model is off. The same requests tell by how
// much: what is predicted when one is sent, with nothing held before it any more, is
// compared with what came of it.

// Guard names a mechanism that is measured.
type Guard uint8

// Mechanisms.
const (
	GuardQueue   Guard = iota // the router's own queue
	GuardMeet                 // requests of one new beginning wait for one another
	GuardAdapter              // requests go where their LoRA adapter is
	NumGuards    = iota
)

var guardNames = [NumGuards]string{"queue", "meet", "adapter"}

func (g Guard) String() string {
	if int(g) < len(guardNames) {
		return guardNames[g]
	}
	return "unknown"
}

const (
	// guardSeconds is the memory of the evidence.
	guardSeconds = 60
	// guardLeast is the evidence, in requests, below which nothing is judged.
	guardLeast = 100
	// guardMargin and guardSlack are how much more than predicted is no harm yet:
	// a quarter and 5 ms.
	guardMargin = 1.25
	guardSlack  = 0.005
	// guardSure is how many standard errors the harm must exceed the margin by.
	guardSure = 3
	// guardFirst is how long a mechanism is off that harms; each further time in a row
	// it is off for twice as long, guardLongest at most.
	guardFirst   = time.Minute
	guardLongest = 16 * time.Minute
	// leastBias and mostBias bound the correction of predictions.
	leastBias = 0.25
	mostBias  = 2
)

// evidence is a sum over requests that forgets: the time to first token that they
// got, and the one that they would have had.
type evidence struct {
	n, got, would decayed
	square        decayed // of the difference
}

func (v *evidence) add(now fleet.Time, got, would float64) {
	v.n.add(now, 1, guardSeconds)
	v.got.add(now, got, guardSeconds)
	v.would.add(now, would, guardSeconds)
	v.square.add(now, (got-would)*(got-would), guardSeconds)
}

// means returns the number of requests that count and their means in seconds; zeros
// where none does.
func (v *evidence) means(now fleet.Time) (n, got, would float64) {
	n = v.n.value(now, guardSeconds)
	if n < 1e-3 {
		return 0, 0, 0
	}
	return n, v.got.value(now, guardSeconds) / n, v.would.value(now, guardSeconds) / n
}

// harms reports whether what was got is worse than what would have been, beyond what
// chance and the margin explain.
func (v *evidence) harms(now fleet.Time) bool {
	n, got, would := v.means(now)
	if n < guardLeast {
		return false
	}
	diff := got - would
	spread := math.Sqrt(max(0, v.square.value(now, guardSeconds)/n-diff*diff) / n)
	return got > guardMargin*would+guardSlack+guardSure*spread
}

// guarded is one mechanism.
type guarded struct {
	evidence
	off      bool
	since    fleet.Time // of off; when it came on last otherwise
	until    fleet.Time // of off
	length   time.Duration
	switched uint64
}

// ratioOf is a ratio of two sums that forget, 1 where little is known.
type ratioOf struct{ observed, expected decayed }

// biasPrior is the evidence that a ratio of 1 counts for, in seconds.
const biasPrior = 0.1

func (r *ratioOf) add(now fleet.Time, observed, expected float64) {
	r.observed.add(now, observed, guardSeconds)
	r.expected.add(now, expected, guardSeconds)
}

func (r *ratioOf) value(now fleet.Time) float64 {
	v := (r.observed.value(now, guardSeconds) + biasPrior) / (r.expected.value(now, guardSeconds) + biasPrior)
	return min(mostBias, max(leastBias, v))
}

// guards measure a pool's mechanisms.
type guards struct {
	of   [NumGuards]guarded
	sent ratioOf // from sending to the first token, all requests that load no adapter
	off  int     // mechanisms that are off
	held ratioOf // from arrival, requests that were held and follow none
	// loads compares what loads of adapters took with what they were believed to take.
	loads loadRatio
	trial trial
}

// GuardState is what is known of one mechanism.
type GuardState struct {
	Name     string
	Off      bool       // it harmed
	Until    fleet.Time // with Off: when it is tried again
	Since    fleet.Time // when it was last switched; 0: never
	Switched uint64     // times that it was switched off
	Requests float64    // that the means are of, forgotten within a minute or so
	// GotMS is the mean time to first token of the requests that it touched, WouldMS
	// what they were predicted to have had without it. Of requests that follow another
	// one the second holds what others are spared, too.
	GotMS, WouldMS float64
}

func (d *Dispatch) guardStates(now fleet.Time) (out [NumGuards]GuardState) {
	for g := range d.guards.of {
		s := &d.guards.of[g]
		n, got, would := s.means(now)
		out[g] = GuardState{
			Name: Guard(g).String(), Off: s.off, Since: s.since, Switched: s.switched,
			Requests: n, GotMS: got * 1e3, WouldMS: would * 1e3,
		}
		if s.off {
			out[g].Until = s.until
		}
	}
	return out
}

// lost is the time in which a slot's queue held something and its replica had no
// prompt to work on. The queue caused the backlog that comes of it, so it does not
// count as what was in the way anyhow.
type lost struct {
	seconds float64 // since the queue was last empty
	at      fleet.Time
}

// tally is called before a slot's queue or its requests without a first token change.
func (d *Dispatch) tally(slot int32) {
	a := &d.aux[slot]
	l := &a.lost
	switch {
	case a.queue.n == 0:
		l.seconds = 0
	case d.slots[slot].Unstarted == 0:
		l.seconds += d.now.Seconds(l.at)
	}
	l.at = d.now
}

// foresee notes what a request that the queue touches would get without it: all that
// is there and held there goes first.
func (d *Dispatch) foresee(e *entry, slot int32, p *route.Candidate) {
	if e.judged || e.waited || len(e.tried) > 0 || e.peer != 0 || !e.stream || d.isOver(e) {
		return
	}
	if e.req.Adapter != "" && d.guards.of[GuardAdapter].off && d.cold[slot] {
		return // the load is not foreseen
	}
	e.judged = true
	e.own = p.OwnMS / 1e3
	last := *p
	last.AheadMS, last.Behind = float32(d.slots[slot].QueuedWork*1e3), 0
	last.Price(&d.in.Engine, &d.in.Context, e.prompt)
	// Memory comes free while prompts are worked on.
	both := min(last.Terms[route.TermAhead], last.Terms[route.TermMemoryWait])
	d.tally(slot)
	e.would = max(d.afterSending(e, p), (last.OwnMS-float64(both))/1e3-d.aux[slot].lost.seconds)
}

// afterSending is what is predicted from the moment on that a request is sent to a
// candidate: what is held here is behind it. 0 where the policy prices nothing.
func (d *Dispatch) afterSending(e *entry, p *route.Candidate) float64 {
	if p.OwnMS <= 0 || p.Queued == 0 {
		return p.OwnMS / 1e3
	}
	alone := *p
	alone.Queued, alone.AheadMS, alone.Behind = 0, 0, 0
	alone.Price(&d.in.Engine, &d.in.Context, e.prompt)
	return alone.OwnMS / 1e3
}

// judge takes the first token of an entry as evidence.
func (d *Dispatch) judge(e *entry) {
	if e.peer != 0 || !e.stream || len(e.tried) > 0 || e.predicted <= 0 || d.o.Unguarded {
		return
	}
	g := &d.guards
	switch took := d.now.Seconds(e.sentAt); {
	case !e.loads:
		g.sent.add(d.now, took, e.predicted)
	case e.load > 0:
		g.loads.add(d.now, took-e.predicted*g.sent.value(d.now), e.load)
	}
	if d.isOver(e) {
		return
	}
	bias := g.sent.value(d.now)
	if e.held > 0 {
		bias = g.held.value(d.now)
	}
	d.judgeSway(e, bias)
	if !e.judged {
		return
	}
	got := d.now.Seconds(e.arrived)
	if e.follows {
		// Where the leader left less than was hoped, the replica did more work.
		d.weighGuard(GuardMeet, got+max(0, e.work-e.hoped), e.apart*g.held.value(d.now)+e.spares)
	} else if e.own > 0 && !e.loads {
		g.held.add(d.now, got, e.own)
	}
	d.weighGuard(GuardQueue, got, e.would*g.sent.value(d.now))
}

// weighGuard adds to the evidence on a mechanism, and switches it off where it harms.
func (d *Dispatch) weighGuard(g Guard, got, would float64) {
	s := &d.guards.of[g]
	if s.off {
		return
	}
	s.add(d.now, got, would)
	if d.shares.over >= 0 || !s.harms(d.now) {
		return // while a tenant is over its share the queue is what protects the others
	}
	if s.length == 0 || d.now.Sub(s.since) > 2*guardLongest {
		s.length = guardFirst // it worked for long enough
	} else {
		s.length = min(2*s.length, guardLongest)
	}
	s.off, s.since, s.until = true, d.now, d.now.Add(s.length)
	d.guards.off++
	s.switched++
	d.setQueues()
}

// reviveGuards turns mechanisms on again whose time is up, with no evidence against
// them.
func (d *Dispatch) reviveGuards() {
	if d.guards.off == 0 {
		return
	}
	for g := range d.guards.of {
		s := &d.guards.of[g]
		if s.off && d.now >= s.until {
			s.off, s.since, s.evidence = false, d.now, evidence{}
			d.guards.off--
			d.setQueues()
		}
	}
}

// QueueStats is what the router's own queue did so far.
type QueueStats struct {
	Held    uint64        // requests that were held and sent
	Sum     time.Duration // of their waits there
	Longest time.Duration // wait of one
	// Nearest is the longest wait against its own bound: at most 1, and a little for
	// the timer.
	Nearest float64
}

// noteHold counts the wait of a request that leaves the queue for a replica.
func (d *Dispatch) noteHold(e *entry) {
	if e.bound == 0 || e.held <= 0 {
		return
	}
	q := &d.n.Queue
	q.Held++
	q.Sum += time.Duration(e.held)
	q.Longest = max(q.Longest, time.Duration(e.held))
	if most := e.bound - e.arrived; most > 0 {
		q.Nearest = max(q.Nearest, float64(d.now-e.arrived)/float64(most))
	}
	e.bound = 0 // a retry is none of the queue's
}
