// SPDX-License-Identifier: Apache-2.0

package rollout

import (
	"errors"
	"fmt"
	"math"
	"time"

	"github.com/penstock-project/penstock/internal/fleet"
)

// Guard is when a canary is as good as its baseline. The zero value of a field stands
// for its default.
type Guard struct {
	TTFT, ITL  float64 // largest ratio of the typical times; 1.2
	Errors     float64 // largest difference of the shares of failed requests; 0.005
	Samples    int     // requests of the canary before a step or a rollback; 100
	Confidence float64 // that a rollback is not by chance, over the whole rollout; 0.99
}

// Spec is what a rollout is to do.
type Spec struct {
	Name   string
	Model  string // the name that clients ask for
	Sticky Sticky
	// Steps are the weights of the canary in order, 0 < w <= 1, rising.
	Steps []float64
	Every time.Duration // least time at a step
	Auto  bool          // steps follow by themselves where the guard is content
	Guard Guard
}

// State is where a rollout is.
type State uint8

// States. A rollout that is promoted, aborted or rolled back is over.
const (
	Running    State = iota
	Held             // by an operator, or by the guard, which is not content
	RolledBack       // by the guard
	Aborted          // by an operator
	Promoted         // all traffic goes to the canary
)

var stateNames = [...]string{"running", "held", "rolled_back", "aborted", "promoted"}

func (s State) String() string { return stateNames[s] }

// ParseState is the inverse of State.String.
func ParseState(s string) (State, bool) {
	for i, n := range stateNames {
		if n == s {
			return State(i), true
		}
	}
	return 0, false
}

func (s State) over() bool { return s >= RolledBack }

// Step is one change of a rollout, with what it was made on.
type Step struct {
	At       fleet.Time
	State    State
	From, To float64 // weights of the canary
	Why      string
	By       string // operator; "" the guard
	Evidence []Evidence
	Blocked  bool // the canary had no replica that could take its share
}

// Sample is what became of one request.
type Sample struct {
	TTFT   float64 // seconds; 0 unknown
	ITL    float64 // mean time between tokens in seconds; 0 unknown
	Failed bool    // by a fault that is not the client's
	Output int     // tokens
	Prompt int
}

// Totals count the requests of one version.
type Totals struct {
	Requests, Failed int
	Prompt, Output   int64 // tokens
}

// maxSteps bounds the history that is kept.
const maxSteps = 256

// Rollout is one rollout. It is for one goroutine at a time.
type Rollout struct {
	spec    Spec
	state   State
	step    int // index into spec.Steps; -1 before the first
	weight  float64
	since   fleet.Time
	blocked bool
	pins    pins
	ttft    blocks
	itl     blocks
	rates   [2]rate
	totals  [2]Totals
	steps   []Step
}

// New starts a rollout at its first step.
func New(now fleet.Time, s Spec) (*Rollout, error) {
	if len(s.Steps) == 0 {
		return nil, errors.New("a rollout needs a step")
	}
	last := 0.0
	for _, w := range s.Steps {
		if !(w > last) || w > 1 {
			return nil, errors.New("steps must rise and end at 100 % at most")
		}
		last = w
	}
	g := &s.Guard
	for _, f := range []struct {
		at  *float64
		def float64
	}{{&g.TTFT, 1.2}, {&g.ITL, 1.2}, {&g.Errors, .005}, {&g.Confidence, .99}} {
		if *f.at == 0 {
			*f.at = f.def
		}
	}
	if g.Samples <= 0 {
		g.Samples = 100
	}
	if g.TTFT < 1 || g.ITL < 1 || g.Errors < 0 || g.Confidence <= .5 || g.Confidence >= 1 {
		return nil, errors.New("ratios must be 1 or more, the difference of errors 0 or more, the confidence between 0.5 and 1")
	}
	r := &Rollout{spec: s, step: 0, weight: s.Steps[0], since: now}
	r.note(now, Running, 0, "started", "")
	return r, nil
}

// Spec returns what the rollout is to do.
func (r *Rollout) Spec() Spec { return r.spec }

// State returns where it is.
func (r *Rollout) State() State { return r.state }

// Weight returns the share of the canary now.
func (r *Rollout) Weight() float64 { return r.weight }

// Since returns when the weight was last changed.
func (r *Rollout) Since() fleet.Time { return r.since }

// Blocked reports whether the canary has no replica: its share goes to the baseline.
func (r *Rollout) Blocked() bool { return r.blocked }

// Steps returns the history, oldest first; not to be changed.
func (r *Rollout) Steps() []Step { return r.steps }

// Totals returns what each version did.
func (r *Rollout) Totals() [2]Totals { return r.totals }

// Assign says which version a request gets. A session keeps the one that it began
// with through changes of the weight, except where that is withdrawn. ready says which
// versions have a replica: the share of a canary without one goes to the baseline,
// and nobody is bound to that.
func (r *Rollout) Assign(now fleet.Time, k Key, ready [2]bool) Arm {
	switch r.state {
	case RolledBack, Aborted:
		return Baseline
	case Promoted:
		return Canary
	}
	arm := Baseline
	pinned := false
	if k.Session != 0 {
		arm, pinned = r.pins.get(now, k.Session)
	}
	if !pinned && position(r.spec.Name, r.spec.Sticky, k) < r.weight {
		arm = Canary
	}
	if !ready[arm] && ready[arm.other()] {
		return arm.other()
	}
	if k.Session != 0 && !pinned {
		r.pins.set(now, k.Session, arm)
	}
	return arm
}

// Observe takes what became of a request.
func (r *Rollout) Observe(arm Arm, s Sample) {
	t := &r.totals[arm]
	t.Requests++
	t.Prompt += int64(s.Prompt)
	t.Output += int64(s.Output)
	if s.Failed {
		t.Failed++
	}
	if r.state.over() {
		return
	}
	r.rates[arm].add(s.Failed)
	r.ttft.add(arm, s.TTFT)
	r.itl.add(arm, s.ITL)
}

// Evidence compares the versions now. The chance to be wrong is split over the three
// comparisons.
func (r *Rollout) Evidence() []Evidence {
	g := &r.spec.Guard
	alpha := (1 - g.Confidence) / 3
	return []Evidence{
		r.ttft.judge("ttft", alpha, g.TTFT), r.itl.judge("itl", alpha, g.ITL), judgeErrors(&r.rates, alpha, g.Errors),
	}
}

// Tick looks at the evidence and takes the step that follows, if any. It reports
// whether something changed.
func (r *Rollout) Tick(now fleet.Time, ready [2]bool) bool {
	if r.state.over() {
		return false
	}
	changed := r.block(now, !ready[Canary])
	all := r.Evidence()
	worst, fine, why := r.weigh(all)
	enough := r.rates[Canary].n >= r.spec.Guard.Samples
	switch {
	case enough && worst == Worse:
		r.move(now, RolledBack, 0, why, "")
		return true
	case r.state == Running && enough && worst == Suspect:
		r.move(now, Held, r.weight, why, "")
		return true
	case r.state == Running && r.spec.Auto && enough && fine && !r.blocked && now.Sub(r.since) >= r.spec.Every:
		r.advance(now, "the guard is content: "+why, "")
		return true
	}
	return changed
}

// weigh returns the worst verdict, whether every comparison with observations is
// content, and a sentence.
func (r *Rollout) weigh(all []Evidence) (worst Verdict, fine bool, why string) {
	fine = true
	for i := range all {
		e := &all[i]
		if e.Verdict > worst {
			worst, why = e.Verdict, e.sentence()
		}
		// A quantity that nobody shows, such as times where nothing is streamed, has
		// nothing to say.
		if e.Verdict != Fine && (e.N[Baseline] > 0 || e.N[Canary] > 0) {
			fine = false
		}
	}
	if fine {
		why = fmt.Sprintf("%d requests of the canary are within the margins", r.rates[Canary].n)
	}
	return worst, fine, why
}

func (e *Evidence) sentence() string {
	if e.Name == "errors" {
		return fmt.Sprintf("errors of the canary are %s: %.2f %% of %d, baseline %.2f %% of %d; the difference is at least %.2f %%, %.2f %% is accepted",
			e.Verdict, e.Canary*100, e.N[Canary], e.Baseline*100, e.N[Baseline], e.Low*100, e.Margin*100)
	}
	return fmt.Sprintf("%s of the canary is %s: %.4g s, baseline %.4g s; the ratio is at least %.3g, %.3g is accepted",
		e.Name, e.Verdict, e.Canary, e.Baseline, e.Low, e.Margin)
}

// block notes that the canary cannot or can again take its share.
func (r *Rollout) block(now fleet.Time, blocked bool) bool {
	if r.blocked == blocked {
		return false
	}
	r.blocked = blocked
	why := "the canary has a ready replica again"
	if blocked {
		why = "the canary has no ready replica; its share goes to the baseline"
	}
	r.note(now, r.state, r.weight, why, "")
	return true
}

// advance goes to the next step, or to the end.
func (r *Rollout) advance(now fleet.Time, why, by string) {
	next := r.step + 1
	if next >= len(r.spec.Steps) || r.spec.Steps[next] >= 1 {
		r.move(now, Promoted, 1, why, by)
		return
	}
	r.step = next
	r.move(now, Running, r.spec.Steps[next], why, by)
}

// Promote goes to the next step whatever the guard says, or with full to the end.
func (r *Rollout) Promote(now fleet.Time, full bool, by string) error {
	switch {
	case r.state.over():
		return fmt.Errorf("the rollout is over: %s", r.state)
	case full:
		r.move(now, Promoted, 1, "promoted", by)
	default:
		r.advance(now, "promoted by a step", by)
	}
	return nil
}

// Hold keeps the weight as it is. The guard still goes back where it must.
func (r *Rollout) Hold(now fleet.Time, by string) error {
	if r.state.over() {
		return fmt.Errorf("the rollout is over: %s", r.state)
	}
	r.move(now, Held, r.weight, "held", by)
	return nil
}

// Abort sends everything back to the baseline, also after a promotion.
func (r *Rollout) Abort(now fleet.Time, by string) error {
	if r.state == Aborted || r.state == RolledBack {
		return fmt.Errorf("the rollout is over: %s", r.state)
	}
	r.move(now, Aborted, 0, "aborted", by)
	return nil
}

// Restore puts a rollout where it was before a restart.
func (r *Rollout) Restore(now fleet.Time, s State, weight float64) {
	if !(weight >= 0) || weight > 1 || s == r.state && weight == r.weight {
		return
	}
	for i, w := range r.spec.Steps {
		if w <= weight {
			r.step = i
		}
	}
	r.move(now, s, weight, "restored after a restart", "")
}

func (r *Rollout) move(now fleet.Time, s State, weight float64, why, by string) {
	if s.over() {
		r.pins = pins{}
	}
	r.note(now, s, weight, why, by)
	r.state, r.weight, r.since = s, weight, now
}

func (r *Rollout) note(now fleet.Time, s State, to float64, why, by string) {
	from := r.weight
	if len(r.steps) == 0 {
		from, to = 0, r.weight
	}
	if len(r.steps) >= maxSteps {
		copy(r.steps, r.steps[1:])
		r.steps = r.steps[:maxSteps-1]
	}
	r.steps = append(r.steps, Step{At: now, State: s, From: from, To: to, Why: why, By: by, Evidence: r.Evidence(), Blocked: r.blocked})
}

// Number returns v, or nil where it is none: for JSON.
func Number(v float64) *float64 {
	if math.IsNaN(v) || math.IsInf(v, 0) {
		return nil
	}
	return &v
}
