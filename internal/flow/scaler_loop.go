// SPDX-License-Identifier: Apache-2.0

package flow

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"slices"
	"sync"
	"time"

	"github.com/penstock-project/penstock/internal/dispatch"
	"github.com/penstock-project/penstock/internal/engine"
	"github.com/penstock-project/penstock/internal/fleet"
	"github.com/penstock-project/penstock/internal/scale"
)

// Modes of a scaler loop.
const (
	ModeRecommend = "recommend" // says how many there should be
	ModeAct       = "act"       // and sees to it
)

// ScalerOptions describe the loop of one pool. Flow, Profile and SLO are needed.
type ScalerOptions struct {
	Pool    string
	Flow    *Flow
	Profile engine.Profile // what one replica does, as believed at first
	SLO     engine.SLO
	// Policy is what the operator wants; Capacity, TTFT and ITL are filled in here.
	Policy scale.Policy
	Mode   string
	Hand   Hand          // nil: nobody moves replicas; the loop recommends
	Hold   dispatch.Hold // while it acts; For 0: longer than a start-up takes
	Models []string      // names of which a replica must list one
	// Override is what an operator asked of an earlier process, and Keep keeps what is
	// asked of this one; nil: it ends with the process. Keep is called by one goroutine
	// at a time.
	Override Override
	Keep     func(Override) error
	// Accelerators are shared with the loops of other pools; nil: with nobody. A loop
	// without a Hand has no part in them.
	Accelerators *Accelerators
	// Tick takes the inputs and the result of every evaluation; nil: nobody does.
	Tick func(*ScaleTick)
	// Period is the time between evaluations; 0: scale.EvaluationPeriod.
	Period  time.Duration
	History int               // records that are kept; 0: 2000
	Clock   func() fleet.Time // nil: the wall clock
	Log     *slog.Logger      // nil: discard
}

// Scaler is the loop of one pool: what is offered and what is there go into a
// scale.Scaler, its recommendation goes to a Hand. All methods are safe for concurrent
// use.
type Scaler struct {
	o      ScalerOptions
	log    *slog.Logger
	demand *demand
	gather *gatherer
	nudge  chan struct{}

	keeping sync.Mutex // of what the operator asked for; taken before mu

	mu       sync.Mutex
	policy   scale.Policy
	mode     string
	hold     dispatch.Hold
	override Override
	lost     string         // why the last of it was not kept
	acts     uint64         // how often the operator asked for something
	seen     uint64         // how much of that last knows
	history  []*ScaleRecord // newest last
	last     *ScaleRecord
	applied  *ScaleApplied
	done     map[string]uint64 // applications by result
	ticks    tickLog           // has a lock of its own

	// Below: of the goroutine that runs the loop.
	scaler   *scale.Scaler
	began    fleet.Time
	found    bool // replicas were there when the loop began
	state    HandState
	stateAt  fleet.Time
	stateErr error
	table    []float64
	tableFor tableKey
	outside  bool // a lone request misses the objective
	changed  bool // the policy changed since the last tick
	differed fleet.Time
	holdSet  dispatch.Hold
}

// tableKey is what the capacity table was computed for.
type tableKey struct {
	profile engine.Profile
	shape   engine.Shape
	n       int
}

// Least and most length of a capacity table, and how far the mean request or a
// coefficient must have moved for another one.
const (
	tableLeast = 33
	tableMost  = 129
	tableDrift = 0.1
)

const (
	// gatherFor is how long a request that finds no replica waits for company before
	// the pool wakes: a burst is told from a single request, within the 100 ms in which
	// a start has to be decided.
	gatherFor = 40 * time.Millisecond
	// kickRest is the least time between two evaluations out of turn.
	kickRest = 250 * time.Millisecond
	// restartQuiet is how long a loop that finds replicas when it begins does not take
	// any away: what they carry has not been seen.
	restartQuiet = 60 * time.Second
	// handTimeout bounds a call of a hand.
	handTimeout = 10 * time.Second
	// stateFresh is how old the word of the hand may be for an evaluation out of turn.
	stateFresh = 15 * time.Second
)

// NewScaler wires a loop and makes it the watcher of its Flow. Nothing runs before
// Run.
func NewScaler(o ScalerOptions) *Scaler {
	if o.Clock == nil {
		o.Clock = func() fleet.Time { return fleet.At(time.Now()) }
	}
	if o.Log == nil {
		o.Log = slog.New(slog.DiscardHandler)
	}
	o.Period = cmp.Or(o.Period, time.Duration(scale.EvaluationPeriod*float64(time.Second)))
	o.History = cmp.Or(o.History, 2000)
	o.Policy.Pool, o.Policy.Explain = o.Pool, true
	o.Policy.TTFT, o.Policy.ITL = o.SLO.TTFT, o.SLO.ITL
	s := &Scaler{
		o: o, override: o.Override, log: o.Log.With("pool", o.Pool), policy: o.Policy, mode: o.Mode, hold: o.Hold, nudge: make(chan struct{}, 1), changed: true, done: map[string]uint64{},
		demand: &demand{slo: o.SLO, kick: make(chan struct{}, 1), profile: o.Profile, shape: priorShape},
		gather: &gatherer{pool: o.Pool},
	}
	if o.Accelerators != nil && o.Hand != nil {
		o.Accelerators.join(o.Pool)
	}
	if o.Flow != nil {
		o.Flow.Watch(s.demand)
	}
	return s
}

// Run evaluates until ctx ends: every period, and at once when a request finds no
// replica.
func (s *Scaler) Run(ctx context.Context) {
	s.began = s.o.Clock()
	tick := time.NewTicker(s.o.Period)
	defer tick.Stop()
	s.refresh(ctx)
	s.found = s.stateErr == nil && s.state.Replicas > 0
	s.Evaluate(ctx)
	rest := time.NewTimer(0)
	defer rest.Stop()
	kick := s.demand.kick
	for {
		select {
		case <-ctx.Done():
			return
		case <-tick.C:
			s.refresh(ctx)
		case <-s.nudge:
			s.refresh(ctx)
		case <-rest.C:
			kick = s.demand.kick
			continue
		case <-kick:
			kick = nil
			if !pause(ctx, gatherFor) {
				return
			}
			rest.Reset(kickRest)
			if s.o.Clock().Sub(s.stateAt) > stateFresh {
				s.refresh(ctx)
			}
		}
		s.Evaluate(ctx)
	}
}

func pause(ctx context.Context, d time.Duration) bool {
	t := time.NewTimer(d)
	defer t.Stop()
	select {
	case <-ctx.Done():
		return false
	case <-t.C:
		return true
	}
}

// refresh asks the hand what is there.
func (s *Scaler) refresh(ctx context.Context) {
	if s.o.Hand == nil {
		return
	}
	ctx, cancel := context.WithTimeout(ctx, handTimeout)
	defer cancel()
	st, err := s.o.Hand.State(ctx)
	s.stateErr = err
	if err == nil {
		s.state = st
	}
	s.stateAt = s.o.Clock()
}

// Evaluate is one pass. Run calls it; tests may.
func (s *Scaler) Evaluate(ctx context.Context) *ScaleRecord {
	s.mu.Lock()
	policy, mode, asked, lost, changed, acts := s.policy, s.mode, s.override, s.lost, s.changed, s.acts
	s.changed = false
	s.mu.Unlock()
	now := s.o.Clock()
	tick := &ScaleTick{Schema: ScaleTickSchema, Pool: s.o.Pool, Time: now, Offers: s.demand.take()}
	if n := len(tick.Offers); n > 0 { // one that came while this pass began
		tick.Time = max(now, tick.Offers[n-1].At)
	}
	if s.fit(&policy) || s.scaler == nil {
		tick.Capacity = s.table
	}
	if changed || s.scaler == nil {
		policy.Capacity = nil
		tick.Policy = &policy
		if policy.Zone != nil {
			tick.Zone = policy.Zone.String()
		}
	}
	s.look(tick, &policy)
	rec := tick.play(&s.scaler)
	tick.Recommendation = rec
	x := s.finish(rec, &policy, mode, &asked, lost)
	s.share(x, &policy, mode == ModeAct && !asked.Paused && x.Owner == "")
	s.act(ctx, x, mode, asked.Paused)
	tick.Desired, tick.Applied = x.Desired, x.Applied
	s.ticks.add(tick)
	if s.o.Tick != nil {
		s.o.Tick(tick)
	}
	s.keep(x, acts)
	return x
}

// fit computes the capacity table anew where what it was computed for has moved, and
// reports whether it did.
func (s *Scaler) fit(policy *scale.Policy) bool {
	st := s.o.Flow.Stats()
	kv, seqs := 0.0, 0.0
	if snap := s.o.Flow.Snapshot(); snap != nil {
		for i := range snap.Endpoints {
			if e := &snap.Endpoints[i]; e.Phase == fleet.PhaseReady {
				kv, seqs = e.KVTokens.Or(kv), e.MaxSeqs.Or(seqs)
			}
		}
	}
	p, shape := s.demand.learn(s.o.Profile, st.Totals.Engine, kv, seqs)
	n := tableLeast
	if most, _ := policy.EffectiveMax(); most >= n {
		n = min(tableMost, most+2)
	}
	k := tableKey{p, shape, n}
	if s.table != nil && !moved(&s.tableFor, &k) {
		return false
	}
	table, fine := tableOf(&p, shape, s.o.SLO, n)
	s.table, s.outside, s.tableFor = table, !fine, k
	return true
}

func moved(a, b *tableKey) bool {
	far := func(x, y float64) bool { return x != y && (y > x*(1+tableDrift) || y < x*(1-tableDrift)) }
	p, q := &a.profile, &b.profile
	return a.n != b.n || far(a.shape.Prompt, b.shape.Prompt) || far(a.shape.Prompt-a.shape.Cached, b.shape.Prompt-b.shape.Cached) ||
		far(a.shape.Output, b.shape.Output) || far(p.Base, q.Base) || far(p.PTok, q.PTok) || far(p.PAttn, q.PAttn) ||
		far(p.DSeq, q.DSeq) || far(p.DCtx, q.DCtx) || far(float64(p.KVTokens), float64(q.KVTokens)) || p.MaxSeqs != q.MaxSeqs
}

// look fills in what is known of the fleet.
func (s *Scaler) look(t *ScaleTick, policy *scale.Policy) {
	t.Wanted = -1
	if s.o.Hand != nil {
		t.Wanted = s.state.Wanted
		if s.state.Blocked != "" {
			t.Events = []string{s.state.Blocked}
		}
	}
	snap := s.o.Flow.Snapshot()
	t.Replicas = merge(snap, s.state.Pending, t.Time)
	w := s.o.Flow.Waiting(time.Duration(policy.TTFT * float64(time.Second)))
	st := s.o.Flow.Stats()
	g := &t.Gateway
	g.Known = !s.found || t.Time.Sub(s.began) > restartQuiet
	g.Held, g.Late, g.OldestS, g.InFlight = w.Held, w.Late, w.Oldest, st.Totals.InFlight
	for i := range st.Endpoints {
		g.InFlight += st.Endpoints[i].PeerInFlight
	}
	g.Work = float64(w.Held+w.Late) * s.tableFor.profile.WorkSeconds(s.tableFor.shape)
	s.demand.counts(t.Time, g)
	s.gather.signals(t.Time, snap, &st, g)
	t.Load = loads(snap, &st)
	switch {
	case s.stateErr != nil:
		t.NoOpinion = "the hand does not tell what is there: " + s.stateErr.Error()
	case snap == nil && s.o.Hand == nil:
		t.NoOpinion = "no replica has been looked for yet"
	default:
		t.NoOpinion = mismatch(snap, s.o.Models)
	}
}

// finish makes a record of a recommendation, with the bounds that the loop adds.
func (s *Scaler) finish(rec *scale.Recommendation, policy *scale.Policy, mode string, asked *Override, lost string) *ScaleRecord {
	x := recordOf(rec)
	x.Mode = mode
	x.override(asked, lost)
	if s.o.Hand != nil {
		x.Hand, x.Owner, x.Blocked, x.leader = s.o.Hand.Name(), s.state.Owner, s.state.Blocked, s.state.Leader
		for i := range x.Pending {
			for _, p := range s.state.Pending {
				if p.ID == x.Pending[i].ID && p.Reason != "" {
					x.Pending[i].Reason = p.Reason
				}
			}
		}
	}
	note := func(code, format string, a ...any) {
		x.Conditions = append(x.Conditions, scale.Condition{Code: code, Message: fmt.Sprintf(format, a...), Since: x.Time})
	}
	if s.outside {
		note("ObjectiveOutOfReach", "a lone request of the usual size misses the objective on an idle replica; more replicas do not help that")
	}
	if n := s.gather.liars; n > 0 {
		note("ReplicaReportsDiffer", "%d replicas report a full KV cache although little was sent there and nothing waits; their word is not used", n)
	}
	if x.Blocked != "" {
		note("Blocked", "%s", x.Blocked)
	}
	if x.NoOpinion != "" && x.Desired == nil {
		note(cmp.Or(codeOf(x.NoOpinion), "NoOpinion"), "%s", x.NoOpinion)
	}
	// A pool whose requests are too late already is busy, whatever a rule expects.
	if x.Desired != nil && *x.Desired < x.Current && s.busy(rec) {
		x.constrain("busy", x.Current, "requests are held that are too late already")
	}
	if x.Desired != nil && *x.Desired < x.Current && silent(s.o.Flow.Snapshot(), fleet.Time(x.Time)) {
		x.constrain("silent", x.Current, "no replica has told anything for a while: what others ask of them is not known")
	}
	if asked.Pinned != nil && x.Desired != nil {
		n := *asked.Pinned
		if most, _ := policy.EffectiveMax(); most >= 0 {
			n = min(n, most) // the bounds may have changed since
		}
		if *x.Desired == n {
			x.Sentence += " (pinned)"
		}
		x.constrain("pinned", n, "by the operator, until `penstock scale resume`")
		x.Binding = "pinned"
	}
	if x.Desired != nil && *x.Desired != x.Current {
		s.differed = fleet.Time(x.Time)
	}
	x.DifferedAt = scale.Moment(s.differed)
	s.demand.mu.Lock()
	x.InputAt = scale.Moment(s.demand.inputAt)
	if n := s.demand.ok + s.demand.missed + s.demand.coldEnded; n > 0 {
		v := tidy(float64(s.demand.ok+s.demand.coldEnded-s.demand.coldMissed) / float64(n))
		x.Attained = &v
	}
	s.demand.mu.Unlock()
	return x
}

// silentAfter is how long replicas that used to tell may fail to before nothing is taken
// away for it.
const silentAfter = 10 * time.Second

// silent reports whether every ready replica used to tell and now fails to. One that
// does may be at fault itself; all of them are cut off.
func silent(snap *fleet.Snapshot, now fleet.Time) bool {
	ready := 0
	if snap == nil {
		return false
	}
	for i := range snap.Endpoints {
		e := &snap.Endpoints[i]
		if e.Phase != fleet.PhaseReady {
			continue
		}
		if ready++; e.ScrapeError == "" || e.ScrapedAt == 0 || now.Sub(e.ScrapedAt) < silentAfter {
			return false
		}
	}
	return ready > 0
}

func (s *Scaler) busy(rec *scale.Recommendation) bool {
	for i := range rec.Signals {
		if v := rec.Signals[i].Value; rec.Signals[i].Name == "held requests" && v != nil && rec.Signals[i].Note != "" {
			return true
		}
	}
	return false
}

// act asks the hand for what is desired, and sees to what is held meanwhile.
func (s *Scaler) act(ctx context.Context, x *ScaleRecord, mode string, paused bool) {
	hand := s.o.Hand
	acts := hand != nil && mode == ModeAct
	s.setHold(x, acts)
	if !acts || x.Desired == nil {
		return
	}
	err := s.reason(x, paused)
	if err == nil {
		ctx, cancel := context.WithTimeout(ctx, handTimeout)
		defer cancel()
		err = hand.Apply(ctx, *x.Desired, x.Victims)
	} else if errors.Is(err, errPaused) {
		return
	}
	x.Applied = &ScaleApplied{At: scale.Moment(s.o.Clock()), OK: err == nil}
	if err != nil {
		x.Applied.Error = err.Error()
	} else if *x.Desired != s.state.Wanted {
		s.log.Info("scaled", "from", s.state.Wanted, "to", *x.Desired, "why", x.Sentence)
		s.state.Wanted = *x.Desired
	}
	s.mu.Lock()
	before := s.applied
	s.applied = x.Applied
	s.done[map[bool]string{true: "ok", false: "error"}[err == nil]]++
	s.mu.Unlock()
	if err != nil && (before == nil || before.Error != x.Applied.Error) {
		s.log.Warn("the number of replicas cannot be set", "wanted", *x.Desired, "error", err.Error())
	}
}

var errPaused = errors.New("paused")

// reason says why the hand must not be asked; nil where it may.
func (s *Scaler) reason(x *ScaleRecord, paused bool) error {
	switch {
	case paused:
		return errPaused
	case x.Owner != "":
		return fmt.Errorf("%s moves this object, too: not acting against it", x.Owner)
	}
	return nil
}

// setHold keeps the wait of held requests longer than a start-up takes, and tells
// when the next replica is expected.
func (s *Scaler) setHold(x *ScaleRecord, acts bool) {
	at := x.earliest()
	if at == 0 && acts && x.Ready == 0 {
		at = fleet.Time(x.Time).AddSeconds(x.StartP50)
	}
	if x.Ready > 0 {
		at = 0
	}
	s.o.Flow.SetReadyAt(at)
	s.mu.Lock()
	h := s.hold
	s.mu.Unlock()
	if !acts {
		return
	}
	h.Ramp = true
	if h.For == 0 {
		h.For = max(time.Minute, time.Duration((1.6*x.StartP90+30)*float64(time.Second)).Round(10*time.Second))
	}
	if h != s.holdSet {
		s.holdSet = h
		s.o.Flow.SetHold(h)
	}
}

// keep remembers a record that was made when so many acts of the operator were known.
func (s *Scaler) keep(x *ScaleRecord, acts uint64) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.last, s.seen = x, acts
	s.history = append(s.history, x)
	if n := len(s.history) - s.o.History; n > 0 {
		s.history = slices.Delete(s.history, 0, n)
	}
}

// Last is the newest record; nil before the first evaluation.
func (s *Scaler) Last() *ScaleRecord {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.last
}

// Heeded reports whether Last was made knowing all that the operator asked for. One that
// was under way when he did was not.
func (s *Scaler) Heeded() bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.seen == s.acts
}

// History returns the last records, newest first.
func (s *Scaler) History(limit int) []*ScaleRecord {
	s.mu.Lock()
	defer s.mu.Unlock()
	n := min(limit, len(s.history))
	out := make([]*ScaleRecord, 0, n)
	for i := range n {
		out = append(out, s.history[len(s.history)-1-i])
	}
	return out
}

// Applied counts how often the hand was asked, by result.
func (s *Scaler) Applied(result string) uint64 {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.done[result]
}

// SetPolicy replaces what the operator wants; what was learned stays.
func (s *Scaler) SetPolicy(p scale.Policy, mode string, hold dispatch.Hold) {
	p.Pool, p.Explain, p.TTFT, p.ITL = s.o.Pool, true, s.o.SLO.TTFT, s.o.SLO.ITL
	s.set(func() { s.policy, s.mode, s.hold, s.changed = p, mode, hold, true })
}

func (s *Scaler) set(change func()) {
	s.mu.Lock()
	change()
	s.mu.Unlock()
	select {
	case s.nudge <- struct{}{}:
	default:
	}
}

// Wakes reports whether a request that finds no replica brings one about. leader is ""
// where this loop sees to it, else the process that does once it is told.
func (s *Scaler) Wakes() (leader string, ok bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.o.Hand == nil || s.mode != ModeAct || s.override.Paused {
		return "", false
	}
	if s.last == nil || s.last.Owner == "" {
		return "", true
	}
	return s.last.leader, s.last.leader != ""
}
