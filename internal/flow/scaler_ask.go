// SPDX-License-Identifier: Apache-2.0

package flow

import (
	"cmp"
	"errors"
	"fmt"
	"io"
	"slices"
	"sync"

	"github.com/penstock-project/penstock/internal/fleet"
	"github.com/penstock-project/penstock/internal/scale"
)

// ScaleAskSchema names the form of the answer to another policy over recorded ticks.
const ScaleAskSchema = "penstock/scale-ask/v1"

// ScaleAsk says what other targets would have kept over the demand of recorded ticks.
// The work that was offered is as recorded. The fleet is played: what was asked for is
// ready after the start-up time that the scaler knew at that moment, and what was no
// longer wanted goes at once. Held requests and the load that replicas told are as recorded,
// though another fleet would have changed them.
type ScaleAsk struct {
	Pool    string      `json:"pool"`
	From    fleet.Time  `json:"-"`
	Seconds float64     `json:"seconds"` // from the first tick to the last
	Ticks   int         `json:"ticks"`
	Skipped int         `json:"skipped"` // before the first that can be played
	Then    ScaleFleet  `json:"then"`    // as recorded
	Now     ScaleFleet  `json:"now"`     // with the other targets
	Points  []ScaleStep `json:"points"`  // where one of the four numbers changed, at most maxSteps
}

// ScaleFleet is what a fleet cost over a window, and what it lacked.
type ScaleFleet struct {
	ReplicaHours float64 `json:"replica_hours"` // of replicas that were ready or on their way
	Peak         int     `json:"peak"`          // most replicas wanted at a time
	Reversals    int     `json:"reversals"`     // changes of direction of what was wanted
	// ShortSeconds is how long the work offered in the last minute was more than the ready
	// replicas carry.
	ShortSeconds float64 `json:"short_seconds"`
}

// ScaleStep is a moment at which one of the numbers changed.
type ScaleStep struct {
	At          scale.Moment `json:"at"`
	Then        int          `json:"then"` // wanted, as recorded
	ThenReady   int          `json:"then_ready"`
	Now         int          `json:"now"`
	NowReady    int          `json:"now_ready"`
	NowSentence string       `json:"now_sentence"`
}

// ScaleTargets are the targets that may be asked about; nil keeps what was in force.
type ScaleTargets struct {
	Attainment *float64 `json:"attainment,omitempty"` // share in time: 0.95, 0.98, 0.99 or 0.995
	Min        *int     `json:"min,omitempty"`        // replicas
	Max        *int     `json:"max,omitempty"`        // replicas
	IdleAfter  *float64 `json:"idle_after_s,omitempty"`
	StepUp     *int     `json:"step_up,omitempty"`   // most replicas of one change; 0: no bound
	StepDown   *int     `json:"step_down,omitempty"` // likewise
}

// Check says what is wrong with targets.
func (t *ScaleTargets) Check() error {
	switch {
	case t.Attainment != nil && !(*t.Attainment >= 0.5 && *t.Attainment <= 0.999):
		return fmt.Errorf("attainment is %v; want a share from 0.5 to 0.999, such as 0.98", *t.Attainment)
	case t.Min != nil && (*t.Min < 0 || *t.Min > maxAsked):
		return fmt.Errorf("min is %d; want 0 to %d replicas", *t.Min, maxAsked)
	case t.Max != nil && (*t.Max < 1 || *t.Max > maxAsked):
		return fmt.Errorf("max is %d; want 1 to %d replicas", *t.Max, maxAsked)
	case t.Min != nil && t.Max != nil && *t.Min > *t.Max:
		return fmt.Errorf("min is %d and max %d", *t.Min, *t.Max)
	case t.IdleAfter != nil && !(*t.IdleAfter > 0 && *t.IdleAfter < 1e6):
		return fmt.Errorf("idle_after_s is %v; want more than 0 seconds", *t.IdleAfter)
	case t.StepUp != nil && *t.StepUp < 0, t.StepDown != nil && *t.StepDown < 0:
		return errors.New("a step is 0, no bound, or more")
	}
	return nil
}

// Apply puts the targets in the place of those of a policy.
func (t *ScaleTargets) Apply(p *scale.Policy) {
	set(&p.Attainment, t.Attainment)
	set(&p.Min, t.Min)
	set(&p.Max, t.Max)
	set(&p.IdleAfter, t.IdleAfter)
	set(&p.StepUp, t.StepUp)
	set(&p.StepDown, t.StepDown)
	if p.Max > 0 && p.Min > p.Max { // the one that was not asked about gives way
		if t.Max != nil {
			p.Min = p.Max
		} else {
			p.Max = p.Min
		}
	}
}

func set[T any](to *T, from *T) {
	if from != nil {
		*to = *from
	}
}

// maxAsked bounds the replicas of a question.
const maxAsked = 1000

// maxSteps bounds the points of an answer; the last ones are kept.
const maxSteps = 2000

// AskScale plays the ticks of a journal under a policy that change makes of the recorded
// one. Capacity stays as recorded.
func AskScale(r io.Reader, change func(*scale.Policy)) ([]ScaleAsk, error) {
	byName := map[string]*asked{}
	var order []*asked
	err := eachTick(r, func(t *ScaleTick) {
		p := byName[t.Pool]
		if p == nil {
			p = &asked{out: ScaleAsk{Pool: t.Pool}, change: change}
			byName[t.Pool] = p
			order = append(order, p)
		}
		p.tick(t)
	})
	if err != nil {
		return nil, err
	}
	out := make([]ScaleAsk, len(order))
	for i, p := range order {
		p.out.Seconds = p.last.Sub(p.out.From).Seconds()
		out[i] = p.out
	}
	return out, nil
}

// Ask plays the evaluations in memory, at most the last tickMemory of them, under a
// policy that change makes of the one that was in force. The scaler that is asked begins
// without what the real one had learned before the first of them.
func (s *Scaler) Ask(change func(*scale.Policy)) ScaleAsk {
	ticks := s.ticks.all()
	p := &asked{out: ScaleAsk{Pool: s.o.Pool}, change: change}
	for i := range ticks {
		p.tick(&ticks[i])
	}
	p.out.Seconds = p.last.Sub(p.out.From).Seconds()
	return p.out
}

// Bounds of the evaluations in memory.
const (
	tickMemory  = 720     // evaluations: an hour of one every five seconds
	offerMemory = 200_000 // requests in them
)

// tickLog keeps the last evaluations of a pool, and the policy and the capacity that
// were in force at the first of them. Its methods may be called from any goroutine.
type tickLog struct {
	mu       sync.Mutex
	ticks    []*ScaleTick
	offers   int
	policy   *scale.Policy
	zone     string
	capacity []float64
}

// add keeps a tick, which nobody changes any more.
func (l *tickLog) add(t *ScaleTick) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.ticks = append(l.ticks, t)
	l.offers += len(t.Offers)
	for len(l.ticks) > 1 && (len(l.ticks) > tickMemory || l.offers > offerMemory) {
		gone := l.ticks[0]
		l.force(gone)
		l.ticks[0] = nil
		l.ticks = l.ticks[1:]
		l.offers -= len(gone.Offers)
	}
}

func (l *tickLog) force(t *ScaleTick) {
	if t.Policy != nil {
		l.policy, l.zone = t.Policy, t.Zone
	}
	if t.Capacity != nil {
		l.capacity = t.Capacity
	}
}

// all returns the ticks, the first with the policy and the capacity in force.
func (l *tickLog) all() []ScaleTick {
	l.mu.Lock()
	defer l.mu.Unlock()
	out := make([]ScaleTick, len(l.ticks))
	for i, t := range l.ticks {
		out[i] = *t
	}
	if len(out) > 0 {
		if out[0].Policy == nil {
			out[0].Policy, out[0].Zone = l.policy, l.zone
		}
		if out[0].Capacity == nil {
			out[0].Capacity = l.capacity
		}
	}
	return out
}

// asked plays one pool.
type asked struct {
	change    func(*scale.Policy)
	s         *scale.Scaler
	out       ScaleAsk
	last      fleet.Time
	made      int // replicas that were ever asked for, for their names
	fleet     []ReplicaPhase
	due       []fleet.Time // when fleet[i] is ready
	then, now direction
	before    ScaleStep // numbers of the last tick
}

// direction counts changes of direction of a number.
type direction struct {
	at, sign int
	known    bool
}

func (d *direction) turned(n int) bool {
	was, sign := d.sign, 0
	if d.known && n > d.at {
		sign = 1
	} else if d.known && n < d.at {
		sign = -1
	}
	d.at, d.known = n, true
	if sign != 0 {
		d.sign = sign
	}
	return sign != 0 && was != 0 && sign != was
}

func (p *asked) tick(t *ScaleTick) {
	if !t.playable(&p.s) {
		p.out.Skipped++
		return
	}
	if p.out.Ticks == 0 {
		p.out.From, p.last = t.Time, t.Time
		for _, r := range t.Replicas {
			if r.live() {
				began := cmp.Or(r.Since, t.Time)
				p.fleet, p.due = append(p.fleet, r), append(p.due, began.AddSeconds(t.Recommendation.StartP50S))
			}
		}
	} else {
		p.charge(t)
	}
	p.out.Ticks++
	for i := range p.fleet {
		if p.fleet[i].Phase != fleet.PhaseReady && p.due[i] <= t.Time {
			p.fleet[i].Phase, p.fleet[i].Since = fleet.PhaseReady, p.due[i]
		}
	}
	own := *t
	own.Replicas, own.Wanted, own.Events = p.fleet, len(p.fleet), nil
	if t.Policy != nil {
		q := *t.Policy
		p.change(&q)
		own.Policy = &q
	}
	r := own.play(&p.s)
	if !r.NoOpinion {
		p.resize(t.Time, r)
	}
	p.note(t, r)
}

// live reports whether a replica is ready or on its way.
func (r *ReplicaPhase) live() bool {
	return r.Phase != fleet.PhaseDraining && r.Phase != fleet.PhaseFailed
}

// charge adds what both fleets cost since the last tick.
func (p *asked) charge(t *ScaleTick) {
	dt := t.Time.Sub(p.last).Seconds()
	p.last = t.Time
	if dt <= 0 {
		return
	}
	live := 0
	for _, r := range t.Replicas {
		if r.live() {
			live++
		}
	}
	p.out.Then.ReplicaHours += dt / 3600 * float64(live)
	p.out.Now.ReplicaHours += dt / 3600 * float64(len(p.fleet))
	rec := t.Recommendation
	if rec.PerReplica <= 0 {
		return
	}
	need := rec.Offered / rec.PerReplica
	if need > float64(p.before.ThenReady) {
		p.out.Then.ShortSeconds += dt
	}
	if need > float64(p.before.NowReady) {
		p.out.Now.ShortSeconds += dt
	}
}

// resize makes the played fleet what the recommendation wants: new replicas are ready after
// the learned start-up time, the youngest go first.
func (p *asked) resize(now fleet.Time, r *scale.Recommendation) {
	for len(p.fleet) > r.Final {
		n := len(p.fleet) - 1
		p.fleet, p.due = p.fleet[:n], p.due[:n]
	}
	for len(p.fleet) < r.Final {
		p.made++
		p.fleet = append(p.fleet, ReplicaPhase{ID: fmt.Sprintf("asked-%d", p.made), Phase: fleet.PhasePending, Since: now})
		p.due = append(p.due, now.AddSeconds(r.StartP50S))
	}
}

func (p *asked) note(t *ScaleTick, r *scale.Recommendation) {
	step := ScaleStep{At: scale.Moment(t.Time), Then: t.Recommendation.Final, Now: len(p.fleet), ThenReady: t.Recommendation.Ready, NowSentence: r.Sentence}
	for i := range p.fleet {
		if p.fleet[i].Phase == fleet.PhaseReady {
			step.NowReady++
		}
	}
	if p.then.turned(step.Then) {
		p.out.Then.Reversals++
	}
	if p.now.turned(step.Now) {
		p.out.Now.Reversals++
	}
	p.out.Then.Peak = max(p.out.Then.Peak, step.Then)
	p.out.Now.Peak = max(p.out.Now.Peak, step.Now)
	was := p.before
	p.before = step
	if p.out.Ticks > 1 && was.Then == step.Then && was.Now == step.Now && was.ThenReady == step.ThenReady && was.NowReady == step.NowReady {
		return
	}
	if len(p.out.Points) >= maxSteps {
		p.out.Points = slices.Delete(p.out.Points, 0, 1)
	}
	p.out.Points = append(p.out.Points, step)
}
