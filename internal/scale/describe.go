// SPDX-License-Identifier: Apache-2.0

package scale

import (
	"cmp"
	"fmt"
	"math"
	"slices"
	"strings"

	"github.com/penstock-project/penstock/internal/fleet"
)

// explain fills in the parts of the record that a reader wants and the decision does
// not need: the rule and what would be cheaper, the signals, who would go, and the
// sentence. It changes no state.
func (s *Scaler) explain() {
	r := &s.rec
	s.describeRules()
	s.describeSignals()
	s.describeVictims()
	s.describeConditions()
	r.Sentence = r.sentence()
}

// describeRules tells of the shadow that rules and of the best one that would keep
// fewer replicas at present.
func (s *Scaler) describeRules() {
	r := &s.rec
	r.Chosen, r.Cheaper, r.WhyNot = nil, nil, ""
	if s.chosen < 0 {
		return
	}
	o := s.outlook()
	chosen := s.ruleAt(s.chosen, &o)
	r.Chosen = &chosen
	if s.policy.Fixed > 0 {
		return
	}
	warming := s.warming()
	best, least := -1, math.Inf(1)
	for i := range s.shadows {
		if i == s.chosen || s.replicasOf(i) >= chosen.Replicas || !s.eligible(i, false) {
			continue
		}
		if j := s.score(i, &o); j < least {
			best, least = i, j
		}
	}
	if best < 0 {
		return
	}
	c := s.ruleAt(best, &o)
	r.Cheaper = &c
	switch budget := 100 * o.budget; {
	case warming && !s.shadows[best].warm:
		known := fmt.Sprintf("%.0f min", r.KnownForS/60)
		if r.KnownForS < 120 {
			known = fmt.Sprintf("%.0f s", r.KnownForS)
		}
		r.WhyNot = "the traffic has been seen for " + known + " only: until it is known, rules with little head-room do not rule"
	case c.Expected > o.budget:
		r.WhyNot = fmt.Sprintf("it is expected to miss %.2f %% of the work, %.2f %% are allowed", 100*c.Expected, budget)
	default:
		r.WhyNot = fmt.Sprintf("it is not cheaper by %.0f %% over the whole memory", 100*s.tuning.SwitchGain)
	}
}

// replicasOf is what shadow i wants at present.
func (s *Scaler) replicasOf(i int) int {
	x := &s.shadows[i]
	return int(math.Max(x.floor, s.table.size(s.bases[x.basis].want*(1+x.margin))))
}

func (s *Scaler) ruleAt(i int, o *outlook) Rule {
	x := &s.shadows[i]
	b := &s.bases[x.basis]
	r := Rule{Basis: "level", Margin: x.margin, Floor: int(x.floor), Replicas: s.replicasOf(i),
		Mean: x.cost / math.Max(1, s.hist), Missed: x.miss / math.Max(1e-9, s.work), Expected: s.missed(i, o)}
	switch {
	case b.window < 0:
		r.Basis, r.SpanS = "forecast", trendSpans[b.span]*trendStep
	case b.period > 0:
		r.Basis, r.WindowS, r.PeriodS = "season", levelWindows[b.window], b.period
	default:
		r.WindowS, r.HoldS = levelWindows[b.window], holdSpans[b.hold]
	}
	return r
}

// describeSignals lists what was read, with what each would ask for by itself.
func (s *Scaler) describeSignals() {
	r := &s.rec
	r.Signals = r.Signals[:0]
	there := max(1, r.Ready+r.Coming())
	carried := s.table.carries(there)
	offered := func(name string, v float64) {
		x := Signal{Name: name, Value: &v, Unit: "units", Target: carried, Desired: int(s.table.size(v))}
		if carried > 0 {
			x.Ratio = v / carried
		}
		if s.blind {
			x.Value, x.Ratio, x.Desired, x.Note = nil, 0, 0, "nobody counts at present"
		}
		r.Signals = append(r.Signals, x)
	}
	for w, win := range levelWindows {
		offered(fmt.Sprintf("offered work, mean of %d s", win), s.levels.now[w])
	}
	g := &s.obs.Gateway
	if g.Known {
		held := float64(g.Held + g.Late)
		x := Signal{Name: "held requests", Value: &held, Unit: "requests"}
		if g.Late > 0 {
			x.Note = fmt.Sprintf("%d of them too late for their objective", g.Late)
		}
		r.Signals = append(r.Signals, x)
	}
	for _, w := range s.warnings() {
		if w.limit <= 0 {
			continue
		}
		x := Signal{Name: w.name, Unit: w.unit, Target: w.limit, Note: "warns only"}
		if w.value.OK() {
			v := w.value.V
			x.Value, x.Ratio, x.AgeMS = &v, v/w.limit, 1e3*s.now.Seconds(w.value.At)
			switch age := s.now.Seconds(w.value.At); {
			case age > staleAfter:
				x.Note = "too old to warn"
			case v > w.limit:
				x.Desired = warned(r.Current)
			}
		} else {
			x.Note = "unknown"
		}
		r.Signals = append(r.Signals, x)
	}
}

// describeVictims orders the replicas by what is lost with them: requests in flight,
// adapters that nobody else holds, what the cache saves.
func (s *Scaler) describeVictims() {
	r := &s.rec
	n := r.Current - r.Final
	if n <= 0 || r.NoOpinion || len(s.obs.Load) == 0 {
		return
	}
	order := slices.Clone(s.obs.Load)
	slices.SortStableFunc(order, func(a, b Load) int {
		return cmp.Or(cmp.Compare(a.InFlight, b.InFlight), cmp.Compare(a.Adapters, b.Adapters), cmp.Compare(a.Cached, b.Cached), cmp.Compare(b.ID, a.ID))
	})
	for i := range order[:min(n, len(order))] {
		r.Victims = append(r.Victims, order[i].ID)
	}
}

// describeConditions names what is the case and should be seen.
func (s *Scaler) describeConditions() {
	r := &s.rec
	add := func(code, format string, a ...any) {
		r.Conditions = append(r.Conditions, Condition{Code: code, Message: fmt.Sprintf(format, a...), Since: Moment(s.now)})
	}
	overdue, cause := 0, CauseNone
	for i := range r.Pending {
		if r.Pending[i].Overdue {
			overdue++
		}
		if c := r.Pending[i].Cause; c != CauseNone && r.Pending[i].Expected == 0 {
			cause = c
		}
	}
	if overdue > 0 {
		add("Overdue", "%d starting replicas should have been ready: 90 %% were within %.0f s", overdue, r.StartP90S)
	}
	if cause != CauseNone {
		add("NotComing", "replicas that were asked for are not coming: %s", cause)
	}
	if n, by := s.policy.EffectiveMax(); n >= 0 && by == "accelerators" && n < s.policy.Max {
		add("QuotaBelowMax", "max is %d, but %d accelerators at %d a replica allow %d", s.policy.Max, s.policy.Accelerators, s.policy.AcceleratorsPerReplica, n)
	}
	if f := r.CapacityFit; f != 0 && f != 1 {
		add("CapacityRefitted", "a replica carries %+.0f %% of what its profile says, by what became of the requests", 100*(f-1))
	}
}

// sentence says it in one: what is offered, what one carries, what is coming, and the
// number.
func (r *Recommendation) sentence() string {
	if r.NoOpinion {
		return "no opinion: " + r.Reason
	}
	parts := []string{fmt.Sprintf("%s units offered", short(r.Offered))}
	if r.PerReplica > 0 {
		parts = append(parts, "one replica carries "+short(r.PerReplica))
	}
	if r.HeldN > 0 {
		parts = append(parts, fmt.Sprintf("%d held", r.HeldN))
	}
	if n := r.Coming(); n > 0 {
		last := Moment(0)
		for _, p := range r.Pending {
			last = max(last, p.Expected)
		}
		parts = append(parts, fmt.Sprintf("%s loading until %s", count(n), fleet.Time(last).Wall().UTC().Format("15:04:05")))
	}
	if n := len(r.Pending) - r.Coming(); n > 0 {
		parts = append(parts, count(n)+" not coming")
	}
	if c := r.last(); c != nil {
		why := c.Name
		if c.Why != "" {
			why += " (" + c.Why + ")"
		}
		parts = append(parts, why)
	}
	return strings.Join(parts, ", ") + ": " + fmt.Sprint(r.Final)
}

// last is the constraint that had the last word, nil where none changed the number.
func (r *Recommendation) last() *Constraint {
	if len(r.Constraints) == 0 {
		return nil
	}
	return &r.Constraints[len(r.Constraints)-1]
}

// DownBlocked says what keeps the fleet from going down although fewer are wanted:
// the last constraint that raised the number back to what is there; nil where nothing
// does.
func (r *Recommendation) DownBlocked() *Constraint {
	for i := len(r.Constraints) - 1; i >= 0; i-- {
		if c := &r.Constraints[i]; c.Before < r.Current && c.After > c.Before {
			return c
		}
	}
	return nil
}

// count writes small numbers as words.
func count(n int) string {
	if n == 1 {
		return "one"
	}
	return fmt.Sprint(n)
}

// short writes a number with three significant digits, never as a power of ten.
func short(v float64) string {
	switch {
	case v == 0:
		return "0"
	case v >= 100:
		return fmt.Sprintf("%.0f", v)
	case v >= 10:
		return fmt.Sprintf("%.1f", v)
	case v >= 0.1:
		return fmt.Sprintf("%.2f", v)
	case v >= 0.001:
		return fmt.Sprintf("%.3f", v)
	}
	return "under 0.001"
}
