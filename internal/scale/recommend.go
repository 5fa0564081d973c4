// SPDX-License-Identifier: Apache-2.0

package scale

import (
	"fmt"
	"math"
	"slices"

	"github.com/penstock-project/penstock/internal/fleet"
)

// EvaluationPeriod is how often a scaler is meant to be asked, in seconds.
const EvaluationPeriod = 5.0

// history is what the recommendation did in the past.
type history struct {
	final    int
	any      bool
	dir      int
	below    fleet.Time // since when fewer would do; 0: not at present
	upAt     fleet.Time // of the last increase
	downs    []fleet.Time
	turns    []fleet.Time // changes of direction
	starts   []fleet.Time // of a minute, one entry a replica that was asked for
	warnedAt fleet.Time   // of the last early warning that added a replica
	blocked  block
}

// block remembers that replicas were asked for that cannot be placed.
type block struct {
	until  fleet.Time
	pause  float64 // s
	usable int
	cause  Cause
}

// view is one evaluation.
type view struct {
	now        fleet.Time
	current    int
	ready      int
	coming     int
	overdue    int
	blocked    int
	blockCause Cause
	basic      int // what the chosen shadow wants
}

// Recommend decides at now. It may be called at any time; the record belongs to the
// caller except for its slices, which the next call reuses.
func (s *Scaler) Recommend(now fleet.Time) Recommendation {
	s.advance(now)
	r := &s.rec
	r.Time, r.Next = Moment(s.now), Moment(s.now.AddSeconds(EvaluationPeriod))
	r.Constraints, r.Conditions, r.Victims = r.Constraints[:0], r.Conditions[:0], r.Victims[:0]
	r.NoOpinion, r.Reason = false, ""
	s.describe()
	if why := s.mute(); why != "" {
		r.NoOpinion, r.Reason = true, why
		r.Raw, r.Final, r.Binding = r.Current, r.Current, "no-opinion"
		s.explain()
		return *r
	}
	s.choose()
	v := s.view()
	v.basic = s.want(v.current)
	r.Raw = v.basic
	n := s.constrain(&v, v.basic)
	r.Final = n
	s.note(&v, n)
	r.Reversals = s.recentTurns()
	if s.policy.Explain {
		s.explain()
	}
	return *r
}

// mute says why there is nothing to decide by; "" where there is.
func (s *Scaler) mute() string {
	switch {
	case !s.seen:
		return "nothing has been observed of the pool yet"
	case len(s.policy.Capacity) < 2:
		return "no engine profile: what one replica carries is unknown"
	case s.obs.NoOpinion != "":
		return s.obs.NoOpinion
	}
	return ""
}

func (s *Scaler) view() view {
	r := &s.rec
	v := view{now: s.now, current: r.Current, ready: r.Ready}
	for i := range r.Pending {
		switch p := &r.Pending[i]; {
		case p.Expected != 0:
			v.coming++
		case p.Cause != CauseNone:
			v.blocked++
			v.blockCause = p.Cause
		default:
			v.overdue++
		}
	}
	for _, e := range s.obs.Events {
		if c := ClassifyReason(e); c == CauseResourceQuota || c == CauseNodeGroupMax || c == CauseCloudQuota {
			v.blockCause = c
			v.blocked = max(v.blocked, v.current-v.ready-v.coming-v.overdue)
		}
	}
	return v
}

// want is what the chosen shadow asks for at present, by the demand of now and the
// season and trend one start-up ahead.
func (s *Scaler) want(current int) int {
	if s.chosen < 0 {
		return max(1, current)
	}
	x := &s.shadows[s.chosen]
	b := &s.bases[x.basis]
	d := b.want * (1 + x.margin)
	n := math.Max(x.floor, s.table.size(d))
	if int(n) < current {
		n = math.Min(float64(current), math.Max(x.floor, s.table.size(d*(1+s.tuning.Hysteresis))))
	}
	return int(n)
}

// bound is one constraint: it returns the number after it, and why and until when
// where it changed it.
type bound struct {
	name  string
	apply func(*Scaler, *view, int) (int, string, fleet.Time)
}

// constrain applies every bound in order and writes down those that changed
// something.
func (s *Scaler) constrain(v *view, n int) int {
	chain := [...]bound{
		{"held-work", (*Scaler).heldWork},
		{"early-warning", (*Scaler).earlyWarning},
		{"wake", (*Scaler).wake},
		{"overdue", (*Scaler).replaceOverdue},
		{"idle", (*Scaler).idle},
		{"schedule", (*Scaler).schedule},
		{"min", (*Scaler).least},
		{"max", (*Scaler).most},
		{"accelerators", (*Scaler).accelerators},
		{"not-coming", (*Scaler).notComing},
		{"unknown", (*Scaler).unknown},
		{"loading", (*Scaler).loading},
		{"down-delay", (*Scaler).delayDown},
		{"rest-after-up", (*Scaler).restAfterUp},
		{"step", (*Scaler).step},
		{"rate", (*Scaler).startRate},
		{"reversals", (*Scaler).reversals},
		{"max", (*Scaler).most},
		{"accelerators", (*Scaler).accelerators},
	}
	r := &s.rec
	r.Binding = "rule"
	for i := range chain {
		b := &chain[i]
		after, why, until := b.apply(s, v, n)
		if after != n {
			r.Constraints = append(r.Constraints, Constraint{Name: b.name, Before: n, After: after, Why: why, Until: Moment(until)})
			r.Binding = b.name
			n = after
		}
	}
	return n
}

// heldWork: once the router holds requests that can no longer make it, the work of
// the last minute must fit without any head-room. Requests that merely wait their
// turn prove nothing: in a small fleet somebody always waits.
func (s *Scaler) heldWork(v *view, n int) (int, string, fleet.Time) {
	if s.obs.Gateway.Late == 0 || s.zero.cold {
		return n, "", 0
	}
	k := int(s.table.size(s.levels.now[minuteWindow]))
	if k <= n {
		return n, "", 0
	}
	return k, fmt.Sprintf("%d held requests are too late and %.1f units a second were offered in the last minute", s.obs.Gateway.Late, s.levels.now[minuteWindow]), 0
}

// replaceOverdue: a replica that should have been ready long ago is credited with
// nothing, so that another is asked for in its place, at most half the fleet.
func (s *Scaler) replaceOverdue(v *view, n int) (int, string, fleet.Time) {
	k := min(v.overdue, max(2, n/2))
	if k == 0 {
		return n, "", 0
	}
	return n + k, fmt.Sprintf("%d replicas are overdue: 90 %% were ready within %.0f s", v.overdue, s.start.p90), 0
}

func (s *Scaler) schedule(v *view, n int) (int, string, fleet.Time) {
	if len(s.policy.Floors) == 0 {
		return n, "", 0
	}
	t := v.now.Wall().UTC()
	if s.policy.Zone != nil {
		t = t.In(s.policy.Zone)
	}
	why := ""
	for i := range s.policy.Floors {
		if f := &s.policy.Floors[i]; f.covers(t) && f.Min > n {
			n, why = f.Min, fmt.Sprintf("scheduled floor, %02d:%02d to %02d:%02d %s", f.From/60, f.From%60, f.To/60, f.To%60, t.Location())
		}
	}
	return n, why, 0
}

func (s *Scaler) least(_ *view, n int) (int, string, fleet.Time) {
	return max(n, s.policy.Min), "policy minimum", 0
}

func (s *Scaler) most(_ *view, n int) (int, string, fleet.Time) {
	if s.policy.Max > 0 && n > s.policy.Max {
		return s.policy.Max, "policy maximum", 0
	}
	return n, "", 0
}

func (s *Scaler) accelerators(_ *view, n int) (int, string, fleet.Time) {
	if q := s.policy.quota(); q >= 0 && n > q {
		return q, fmt.Sprintf("%d accelerators at %d a replica", s.policy.Accelerators, s.policy.AcceleratorsPerReplica), 0
	}
	return n, "", 0
}

// notComing: replicas that cannot be placed are not asked for again and again. The
// number stays at what is there and coming for a while that doubles up to an hour.
func (s *Scaler) notComing(v *view, n int) (int, string, fleet.Time) {
	b := &s.history.blocked
	if v.blocked > 0 {
		if v.now >= b.until {
			b.pause = math.Min(3600, math.Max(300, 2*b.pause))
			b.until = v.now.AddSeconds(b.pause)
		}
		b.usable, b.cause = v.ready+v.coming, v.blockCause
	}
	if v.now >= b.until {
		return s.probe(v, n)
	}
	usable := max(b.usable, v.ready+v.coming, s.policy.Min)
	if n <= usable {
		return n, "", 0
	}
	return usable, fmt.Sprintf("no more than %d can be placed: %s", usable, b.cause), b.until
}

// probe: after the pause one replica tries whether there is room again before all
// are asked for. Once it is ready, or an hour after the pause, the past is forgotten.
func (s *Scaler) probe(v *view, n int) (int, string, fleet.Time) {
	b := &s.history.blocked
	if b.until == 0 {
		return n, "", 0
	}
	if v.ready > b.usable || v.now.Seconds(b.until) > 3600 {
		*b = block{}
		return n, "", 0
	}
	if most := max(b.usable+1, s.policy.Min); n > most {
		return most, fmt.Sprintf("one replica tries whether more than %d can be placed again: %s", b.usable, b.cause), 0
	}
	return n, "", 0
}

// unknown: what is not known never takes a replica away.
func (s *Scaler) unknown(v *view, n int) (int, string, fleet.Time) {
	if n >= v.current || !s.blind && s.blindN > 60 {
		return n, "", 0
	}
	return v.current, "what is offered is or was unknown within the last minute", 0
}

// loading: while nothing is ready, what is coming is not sent away, whatever the
// demand does meanwhile.
func (s *Scaler) loading(v *view, n int) (int, string, fleet.Time) {
	if n >= v.current || v.ready > 0 || v.coming == 0 {
		return n, "", 0
	}
	return v.current, fmt.Sprintf("%d replicas are loading and none is ready", v.coming), 0
}

func (s *Scaler) delayDown(v *view, n int) (int, string, fleet.Time) {
	h := &s.history
	if n >= v.current {
		h.below = 0
		return n, "", 0
	}
	if h.below == 0 {
		h.below = v.now
	}
	until := h.below.AddSeconds(s.downDelay())
	if s.zero.returning && v.now < until { // the excess of a wake goes back at once
		return n, "", 0
	}
	if v.now < until {
		return v.current, fmt.Sprintf("fewer must do for %.0f s", s.downDelay()), until
	}
	return n, "", 0
}

func (s *Scaler) restAfterUp(v *view, n int) (int, string, fleet.Time) {
	if n >= v.current || s.history.upAt == 0 || s.zero.returning {
		return n, "", 0
	}
	until := s.history.upAt.AddSeconds(s.upRest())
	if v.now < until {
		return v.current, "rest after going up: one start-up", until
	}
	return n, "", 0
}

func (s *Scaler) step(v *view, n int) (int, string, fleet.Time) {
	switch {
	case s.policy.StepUp > 0 && n > v.current+s.policy.StepUp:
		return v.current + s.policy.StepUp, "largest step up", 0
	case s.policy.StepDown > 0 && n < v.current-s.policy.StepDown:
		return v.current - s.policy.StepDown, "largest step down", 0
	}
	return n, "", 0
}

func (s *Scaler) startRate(v *view, n int) (int, string, fleet.Time) {
	if s.policy.StartsPerMinute == 0 || n <= v.current {
		return n, "", 0
	}
	recent := 0
	for _, t := range s.history.starts {
		if t > v.now.AddSeconds(-60) {
			recent++
		}
	}
	most := v.current + max(0, int(s.policy.StartsPerMinute)-recent)
	return min(n, most), fmt.Sprintf("at most %.0f starts a minute", s.policy.StartsPerMinute), v.now.AddSeconds(60)
}

func (s *Scaler) reversals(v *view, n int) (int, string, fleet.Time) {
	h := &s.history
	limit := s.policy.downPhases()
	if n >= v.current || limit == 0 || h.dir <= 0 || n == 0 {
		return n, "", 0
	}
	h.downs = slices.DeleteFunc(h.downs, func(t fleet.Time) bool { return t <= v.now.AddSeconds(-3600) })
	if len(h.downs) < limit {
		return n, "", 0
	}
	return v.current, fmt.Sprintf("%d reversals an hour are allowed", 2*limit), h.downs[0].AddSeconds(3600)
}

// note remembers what was decided.
func (s *Scaler) note(v *view, n int) {
	h := &s.history
	dir := 0
	if n > v.current {
		dir = 1
		h.upAt = v.now
		h.starts = slices.DeleteFunc(h.starts, func(t fleet.Time) bool { return t <= v.now.AddSeconds(-60) })
		if !h.any || n > h.final { // asked for now, not a second time
			for range n - v.current {
				h.starts = append(h.starts, v.now)
			}
		}
	} else if n < v.current {
		dir = -1
		h.below = 0
		if h.dir >= 0 {
			h.downs = append(h.downs, v.now)
		}
	}
	if dir != 0 {
		if h.dir != 0 && dir != h.dir {
			h.turns = append(h.turns, v.now)
		}
		h.dir = dir
	}
	h.final, h.any = n, true
}

func (s *Scaler) recentTurns() int {
	h := &s.history
	h.turns = slices.DeleteFunc(h.turns, func(t fleet.Time) bool { return t <= s.now.AddSeconds(-3600) })
	return len(h.turns)
}

// describe fills in what the record says of the present.
func (s *Scaler) describe() {
	r := &s.rec
	r.Offered = s.levels.now[minuteWindow]
	n := max(1, r.Ready+r.Coming())
	r.PerReplica = s.table.carries(n) / float64(n)
	r.StartP50S, r.StartP90S, r.Starts = s.start.p50, s.start.p90, s.start.times
	r.CapacityFit = s.fit.factor
	r.Attainment = s.policy.attainment()
	r.Unit = "replica seconds per second"
	r.KnownForS = float64(s.levels.n)
	r.HeldN, r.HeldS = s.obs.Gateway.Held+s.obs.Gateway.Late, s.obs.Gateway.OldestS
}
