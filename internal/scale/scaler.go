// SPDX-License-Identifier: Apache-2.0

// Package scale turns the stream of offered work into the number of replicas to
// keep: shadow fleets that are played beside the real one, the capacity of n
// replicas, what is already starting and when it will be ready, and bounds. It
// also holds the arithmetic of other autoscalers, so that they can be replayed and
// judged by the same numbers.
package scale

import (
	"math"

	"github.com/penstock-project/penstock/internal/fleet"
)

// Scaler is the fold of one pool: work that is offered, observations of the fleet,
// and from both a Recommendation. It is not safe for concurrent use.
type Scaler struct {
	policy Policy
	tuning Tuning

	origin fleet.Time // of second 0
	now    fleet.Time // latest moment seen: time never goes back
	bucket float64    // work offered in the second that runs
	blind  bool       // what is offered is not known at present
	blindN int        // seconds since it was last unknown

	levels  levels
	bases   []basis
	shadows []shadow
	table   capacity
	fit     refit
	start   startups
	lead    int32 // s until a replica that is asked for now is believed ready

	work, hist float64 // remembered work, and seconds of memory
	peaks      peaks
	chosen     int
	nextChoice int

	obs     Observation
	seen    bool // Observe was called
	zero    zeroState
	history history
	rec     Recommendation
}

// Observation is what is known of the fleet at one moment.
type Observation struct {
	// Snapshot lists every replica in any phase, draining ones included. The scaler
	// keeps what it needs and not the snapshot.
	Snapshot *fleet.Snapshot
	// Wanted is how many replicas have been asked for, draining ones excluded; -1:
	// as many as the snapshot shows.
	Wanted int
	// Events are messages about the pool as a whole: replicas that could not even
	// be created.
	Events  []string
	Gateway Gateway
	Load    []Load // ordered by ID; for the choice of victims
	// NoOpinion is why the caller knows nothing to decide by, such as a policy that
	// matches no replica; "" where it does.
	NoOpinion string
}

// Gateway is what the holder of the queue says. Counters rise from its start.
type Gateway struct {
	Known     bool // false: its own counts are gone, offered work is unknown
	Held      int  // requests held that can still meet their objective
	Late      int  // requests held that cannot
	Work      float64
	OldestS   float64 // s that the oldest held request has waited
	InFlight  int
	OK        uint64 // requests inside their objectives
	Missed    uint64 // outside, refused and dropped ones included
	TTFT      fleet.Value
	ITL       fleet.Value
	QueueTime fleet.Value
	KV        fleet.Value // share of the fullest replica
	Preempted fleet.Value // per second over the fleet
}

// Load is what one replica holds that would be lost with it.
type Load struct {
	ID       string
	InFlight int
	Cached   float64 // prompt tokens of work that its cache saves, per second
	Adapters int     // adapters that only this replica holds
}

// New returns the scaler of a pool. The policy must be valid.
func New(p Policy) *Scaler {
	s := &Scaler{policy: p, tuning: DefaultTuning(), chosen: -1, blindN: math.MaxInt32}
	if p.Tuning != nil {
		s.tuning = *p.Tuning
	}
	s.bases, s.shadows = grid(&s.tuning)
	s.table.set(p.Capacity)
	s.fit = newRefit()
	s.start.prior = p.startUp()
	for _, x := range p.Starts {
		s.start.times = keep(s.start.times, x)
	}
	s.start.p50, s.start.p90 = s.start.quantiles()
	s.relead()
	s.rec.Pool = p.Pool
	return s
}

func (s *Scaler) relead() { s.lead = int32(s.start.p90) + 5 }

// SetCapacity replaces the believed capacity table, as when the mean request or the
// profile has changed.
func (s *Scaler) SetCapacity(capacity []float64) {
	s.policy.Capacity, s.table.believed = capacity, capacity
	s.restate()
}

// SetPolicy replaces what the operator wants; what was learned stays. The capacity
// table is that of SetCapacity, not the policy's.
func (s *Scaler) SetPolicy(p Policy) {
	p.Capacity = s.policy.Capacity
	s.policy = p
	s.start.prior = p.startUp()
	s.start.p50, s.start.p90 = s.start.quantiles()
	s.relead()
}

// restate recomputes what the shadows want after a change of the capacity.
func (s *Scaler) restate() {
	s.table.scale(s.fit.factor)
	for i := range s.bases {
		s.bases[i].stale = true
	}
}

// Offer tells that work arrived at now, in units of replica time. It is called for
// every request that is let in, whether it is sent or held; work is net of what the
// caches are expected to serve.
func (s *Scaler) Offer(now fleet.Time, work float64) {
	s.advance(now)
	s.blind = false
	s.bucket += work
	s.zero.offered(s.now, work)
}

// maxGap is how many unseen seconds are folded one by one. After a longer gap the
// levels start again.
const maxGap = 7200

// advance folds the seconds that have ended by now.
func (s *Scaler) advance(now fleet.Time) {
	if s.origin == 0 {
		s.origin, s.now = now, now
	}
	s.now = max(s.now, now)
	n := int(s.now.Sub(s.origin) / 1e9)
	if gap := n - s.levels.n; gap > maxGap {
		s.origin = s.origin.AddSeconds(float64(gap - maxGap))
		n = s.levels.n + maxGap
		s.blind = true
	}
	for s.levels.n < n {
		s.fold(s.bucket)
		s.bucket = 0
	}
}

// fold takes in one second.
func (s *Scaler) fold(u float64) {
	if s.blind { // nobody counted: carry the level on and learn nothing
		s.levels.push(s.levels.now[minuteWindow])
		s.blindN = 0
		return
	}
	s.blindN++
	s.levels.push(u)
	s.work += u
	s.hist++
	s.peaks.push(&s.levels, s.rate())
	s.play(u)
	s.fit.play(u, s.rec.Ready, &s.table, &s.tuning)
	if s.levels.n%60 == 0 {
		s.settle()
	}
}

// rate is the remembered mean of the offered work.
func (s *Scaler) rate() float64 { return s.work / math.Max(1, s.hist) }

// settle moves a minute of the shadows' accounts into memory and lets it fade.
func (s *Scaler) settle() {
	k := math.Exp(-60 / s.tuning.Forget)
	s.work *= k
	s.hist *= k
	for i := range s.shadows {
		x := &s.shadows[i]
		x.cost = (x.cost + x.blockCost) * k
		x.miss = (x.miss + x.blockMiss) * k
		x.blockCost, x.blockMiss = 0, 0
	}
}

// Observe takes in what is known of the fleet at now.
func (s *Scaler) Observe(now fleet.Time, o Observation) {
	s.advance(now)
	if s.seen && s.fit.observe(s.levels.n, &o.Gateway) {
		s.restate()
	}
	s.blind = !o.Gateway.Known
	if o.Snapshot != nil {
		s.start.observe(s.now, o.Snapshot, !s.seen)
		s.relead()
	}
	s.seen = true
	s.obs = o
	s.obs.Snapshot = nil
	s.count()
}

// count fills the record with who is there and who is coming.
func (s *Scaler) count() {
	r := &s.rec
	r.Ready, r.Draining = 0, 0
	r.Pending = r.Pending[:0]
	for i := range s.start.tracks {
		t := &s.start.tracks[i]
		switch {
		case t.phase == fleet.PhaseReady:
			r.Ready++
		case t.phase == fleet.PhaseDraining:
			r.Draining++
		case starting(t.phase):
			p := Pending{ID: t.id, Phase: t.phase.String(), Since: Moment(t.started), AgeS: s.now.Seconds(t.started)}
			ok := false
			ok, p.Cause = s.start.coming(t, s.now)
			if ok {
				p.Expected = Moment(s.start.expected(t, s.now))
			} else {
				p.Overdue = p.Cause == CauseNone
			}
			r.Pending = append(r.Pending, p)
		}
	}
	r.Current = s.obs.Wanted
	if r.Current < 0 {
		r.Current = r.Ready + len(r.Pending)
	}
}
