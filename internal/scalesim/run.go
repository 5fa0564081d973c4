// SPDX-License-Identifier: Apache-2.0

package scalesim

import (
	"math"
	"math/rand/v2"
	"sort"

	"github.com/penstock-project/penstock/internal/engine"
)

// Router constants, the same for every policy. A replica takes a request while at
// most prefillAhead seconds of prefill are outstanding there; late requests may
// fill lateShare of its in-flight cap; what is still held dropAfter seconds after
// it arrived is given up.
const (
	prefillAhead = 0.12
	lateShare    = 0.5
	dropAfter    = 60.0
)

// run is one policy on one scenario.
type run struct {
	sc  *Scenario
	st  *stream
	m   *engine.Profile
	rng *rand.Rand

	prefill  []float64 // seconds of prefill, per request
	first    []float32 // seconds to the first token; 0 none yet
	firstAt  []float64
	deadline []float64 // after it a request can no longer make its first token

	cap  int // in-flight cap of a replica: the TPOT guard
	heap clock
	all  []*replica // not gone, in order of start

	fresh, late queue
	obs         Obs
	res         Result
	now         float64
	lastDir     int
	scored      bool
	ttft        window
	ids         int
	keep        bool // replicas that are ready go before those that are not
	seen        int  // requests that ended, whether scored or not
	seenOK      int
	patience    float64
	plain       bool    // the router counts requests inside and holds none
	early       float64 // s before it can serve that a replica counts as ready
	duty, dutyN float64 // seconds in which replicas had work, and in which they existed, since the last look
}

// queue is a first-in-first-out queue of requests.
type queue struct {
	ids  []int32
	head int
}

func (q *queue) len() int     { return len(q.ids) - q.head }
func (q *queue) push(i int32) { q.ids = append(q.ids, i) }
func (q *queue) peek() int32  { return q.ids[q.head] }
func (q *queue) pop() int32 {
	v := q.ids[q.head]
	q.head++
	if q.head > 1024 && q.head*2 > len(q.ids) {
		q.ids = q.ids[:copy(q.ids, q.ids[q.head:])]
		q.head = 0
	}
	return v
}

// Run plays a scenario against a policy and returns what came of it.
func Run(sc *Scenario, p Policy) Result {
	s := newRun(sc)
	playInto(s, p)
	s.res.finish(sc, s)
	return s.res
}

// playInto plays the whole scenario.
func playInto(s *run, p Policy) {
	sc := s.sc
	s.res.Policy = p.Name()
	s.start(p.Initial(sc), 0, true)
	s.obs.Want = s.alive()
	k, ok := p.(interface{ KeepsPending() bool })
	s.keep = ok && k.KeepsPending()
	if _, ok := p.(naive); ok {
		s.early, s.plain = sc.Cold, true
	}
	next, i, n := 0.0, 0, len(s.st.at)
	for t := 0.0; t < sc.Duration; t++ {
		end := t + 1
		i = s.second(i, n, end)
		s.now = end
		s.lifecycle(end)
		s.account(t)
		if end >= next {
			next = end + p.Period()
			s.observe(end)
			s.apply(p.Want(&s.obs), end)
		}
	}
	s.drainOut()
}

func newRun(sc *Scenario) *run {
	st := sc.stream()
	s := &run{sc: sc, st: st, m: &sc.Model, rng: rand.New(rand.NewPCG(sc.Seed, 77))}
	n := len(st.at)
	s.prefill, s.deadline = sc.prefill, sc.deadline
	s.first, s.firstAt = make([]float32, n), make([]float64, n)
	s.cap = sc.Cap
	s.patience = dropAfter
	if sc.Patience > 0 {
		s.patience = sc.Patience
	} else if sc.Patience < 0 {
		s.patience = never
	}
	s.obs.sc = sc
	s.obs.Offered, s.obs.Arrived = sc.offered[:0], sc.arrived[:0]
	return s
}

// second plays arrivals and engine events up to moment end.
func (s *run) second(i, n int, end float64) int {
	for {
		ta := never
		if i < n {
			ta = s.st.at[i]
		}
		tr := never
		var r *replica
		if len(s.heap.h) > 0 {
			r = s.heap.h[0]
			tr = r.next
		}
		if ta >= end && tr >= end {
			return i
		}
		if ta < tr {
			s.arrive(int32(i), ta)
			i++
			continue
		}
		s.complete(r)
		if r.state == draining && r.inFlight() == 0 {
			s.drop(r)
			continue
		}
		s.heap.fix(r)
		if r.state == serving {
			s.serve(r, tr)
		}
	}
}

func (s *run) drop(r *replica) {
	if r.slot >= 0 && r.slot < len(s.heap.h) && s.heap.h[r.slot] == r {
		s.heap.remove(r)
	}
	r.state = gone
}

func (s *run) arrive(id int32, now float64) {
	if s.fresh.len() == 0 {
		if r := s.pick(); r != nil {
			s.submit(r, id, now)
			return
		}
	}
	s.fresh.push(id)
}

// pick returns the replica with the least prefill outstanding among those that
// may take a request.
func (s *run) pick() *replica {
	var best *replica
	for _, r := range s.all {
		if r.state != serving || !s.plain && (r.work > prefillAhead || r.inFlight() >= s.cap) {
			continue
		}
		if s.plain {
			if best == nil || r.inFlight() < best.inFlight() {
				best = r
			}
			continue
		}
		if best == nil || r.work < best.work || r.work == best.work && r.inFlight() < best.inFlight() {
			best = r
		}
	}
	return best
}

// serve gives held requests to r while it may take them: fresh ones first, then
// late ones inside their share.
func (s *run) serve(r *replica, now float64) {
	for r.work <= prefillAhead && r.inFlight() < s.cap {
		for s.fresh.len() > 0 && !s.sc.InOrder && s.deadline[s.fresh.peek()] < now {
			s.late.push(s.fresh.pop())
		}
		if s.fresh.len() > 0 {
			id := s.fresh.peek()
			if !s.fits(r, id) {
				return
			}
			s.submit(r, s.fresh.pop(), now)
			continue
		}
		for s.late.len() > 0 && s.st.at[s.late.peek()]+s.patience < now {
			s.late.pop()
			s.seen++
		}
		if s.late.len() == 0 || float64(r.inFlight()) >= lateShare*float64(s.cap) || !s.fits(r, s.late.peek()) {
			return
		}
		s.submit(r, s.late.pop(), now)
	}
}

func (s *run) fits(r *replica, id int32) bool {
	return r.inFlight() == 0 || r.kv+int64(s.st.ctx[id]+s.st.out[id]) <= int64(s.m.KVTokens)
}

// finished is the last token of a request.
func (s *run) finished(r *replica, id int32) {
	st := s.st
	r.kv -= int64(st.ctx[id] + st.out[id])
	ok := float64(s.first[id]) <= s.sc.SLO.TTFT
	if st.out[id] > 1 && (r.t-s.firstAt[id])/float64(st.out[id]-1) > s.sc.SLO.ITL {
		ok = false
	}
	s.seen++
	if ok {
		s.seenOK++
		if st.at[id] >= s.sc.ScoreFrom {
			s.res.ok++
		} else {
			s.res.okBefore++
		}
	}
}

// lifecycle moves replicas on: starts that are ready, crashes, drained ones.
func (s *run) lifecycle(now float64) {
	out := s.all[:0]
	for _, r := range s.all {
		switch {
		case r.state == gone:
			continue
		case r.state == starting && r.ready-s.early <= now:
			r.state, r.warm = serving, r.ready
			s.heap.add(r)
			s.serve(r, now)
		case r.state == serving && r.crash <= now:
			s.crash(r, now)
		case r.state == draining && r.inFlight() == 0:
			s.drop(r)
			continue
		}
		out = append(out, r)
	}
	s.all = out
}

// crash loses everything inside: those requests have missed. The replica starts
// again in its place, as a supervisor or a kubelet sees to.
func (s *run) crash(r *replica, now float64) {
	s.res.Crashes++
	s.heap.remove(r)
	*r = replica{id: r.id, next: never, asked: now, slot: -1, ready: now + s.sc.Start.Draw(s.rng)}
	r.crash = r.ready + s.rng.ExpFloat64()*3600/s.sc.Faults.CrashesPerHour
}

func (s *run) drainOut() {
	for len(s.heap.h) > 0 && s.heap.h[0].next < never {
		r := s.heap.h[0]
		at := r.next
		s.complete(r)
		s.heap.fix(r)
		if r.state == serving {
			s.serve(r, at)
		}
	}
}

// alive counts the replicas that are not draining.
func (s *run) alive() int {
	n := 0
	for _, r := range s.all {
		if r.state == starting || r.state == serving {
			n++
		}
	}
	return n
}

// placed counts the replicas that hold an accelerator.
func (s *run) placed() int {
	n := 0
	for _, r := range s.all {
		if r.state != gone && !r.refused {
			n++
		}
	}
	return n
}

// start asks for n more replicas at moment now; warm ones are ready at once.
func (s *run) start(n int, now float64, warm bool) {
	for range n {
		r := &replica{id: s.ids, next: never, asked: now, crash: never, slot: -1}
		s.ids++
		r.ready = now + s.sc.Start.Draw(s.rng)
		if p := s.sc.Place; p > 0 && s.placed() >= p {
			r.ready, r.refused = never, true
		}
		if f := s.sc.Faults; f.DeadStarts > 0 && !warm && s.rng.Float64() < f.DeadStarts {
			r.ready, r.stuck = never, s.rng.Float64()
		}
		if f := s.sc.Faults; f.CrashesPerHour > 0 {
			r.crash = math.Max(r.ready, now) + s.rng.ExpFloat64()*3600/f.CrashesPerHour
		}
		if warm {
			r.ready = now
		} else {
			s.res.starts(s.scored)
		}
		s.all = append(s.all, r)
	}
	if warm {
		s.lifecycle(now)
	}
}

// apply brings the fleet to want replicas. On the way down replicas that are not
// ready go first, youngest first, as a ReplicaSet does it; then those with the
// fewest requests inside.
func (s *run) apply(want int, now float64) {
	if want < 0 {
		return
	}
	cur := s.alive()
	s.noteReversal(want - s.obs.Want)
	s.obs.Want = want
	if want > cur {
		s.start(want-cur, now, false)
		return
	}
	if want == cur {
		return
	}
	victims := make([]*replica, 0, len(s.all))
	for _, r := range s.all {
		if r.state == starting || r.state == serving {
			victims = append(victims, r)
		}
	}
	sort.SliceStable(victims, func(i, j int) bool {
		a, b := victims[i], victims[j]
		if (a.state == starting) != (b.state == starting) {
			return (a.state == starting) != s.keep
		}
		if a.state == starting {
			return a.asked > b.asked
		}
		return a.inFlight() < b.inFlight()
	})
	for _, r := range victims[:cur-want] {
		if r.state == starting {
			r.state = gone
			continue
		}
		r.state = draining
		if r.inFlight() == 0 {
			s.drop(r)
		}
	}
}

func (s *run) noteReversal(d int) {
	dir := 0
	if d > 0 {
		dir = 1
	} else if d < 0 {
		dir = -1
	}
	if dir != 0 {
		if s.lastDir != 0 && dir != s.lastDir && s.scored {
			s.res.reversals++
		}
		s.lastDir = dir
	}
}

// account adds one second of replica time.
func (s *run) account(t float64) {
	s.scored = t >= s.sc.ScoreFrom
	n, pending, conc := 0, 0, 0
	for _, r := range s.all {
		if r.state == serving {
			s.dutyN++
			if r.inFlight() > 0 {
				s.duty++
			}
		}
		if r.state != gone {
			n++
			conc += r.inFlight()
		}
		if r.state == starting {
			pending++
		}
	}
	if s.scored {
		s.res.replicaSeconds += float64(n)
		s.res.MaxPending = max(s.res.MaxPending, pending)
		s.res.MaxReplicas = max(s.res.MaxReplicas, n)
	}
	i := len(s.obs.Offered)
	s.obs.Offered = s.sc.offered[:i+1]
	s.obs.Arrived = s.sc.arrived[:i+1]
	s.obs.Conc = append(s.obs.Conc, float32(conc+s.fresh.len()+s.late.len()))
}
