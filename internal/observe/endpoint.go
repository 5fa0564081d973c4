// SPDX-License-Identifier: Apache-2.0

package observe

import (
	"cmp"
	"context"
	"errors"
	"math/rand/v2"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/penstock-project/penstock/internal/fleet"
)

// How often an endpoint is asked. While it is not ready it is asked often, so that
// a start is noticed at once; a failed one at least every 5 s.
const (
	healthEvery  = 2 * time.Second
	notReadyLook = 500 * time.Millisecond
	failedLook   = 2 * time.Second
	modelsEvery  = 10 * time.Second
	maxBackoff   = 16
)

// endpoint watches one replica. Its goroutine owns the fields above mu; mu guards
// those below it.
type endpoint struct {
	o      *Observer
	target Target
	probe  prober

	gate    gate
	engine  Engine
	list    served
	sig     fleet.Signals
	backoff int // scrape interval, as a multiple
	memory  []fleet.Adapter
	known   bool // adapters that are resident come from the engine itself
	renewed bool // the process is a new one, and its models were not read yet

	loader loader
	start  restartWatch
	stop   context.CancelFunc

	mu        sync.Mutex
	state     fleet.EndpointState // what is seen of it
	latest    Target              // as the source tells it now
	drained   string              // why the operator drained it; "" not
	drainedAt fleet.Time
	life      fleet.Time // last sign of life that others reported
	path      string     // of its metrics
}

// run asks until ctx ends.
func (e *endpoint) run(ctx context.Context) {
	var nextLook, nextScrape, nextModels time.Time
	clock := time.Now
	for ctx.Err() == nil {
		now := clock()
		if !now.Before(nextLook) {
			due := !now.Before(nextModels) || e.gate.phase != fleet.PhaseReady
			if e.look(ctx, due) && due {
				nextModels = clock().Add(jitter(modelsEvery))
			}
			nextLook = clock().Add(jitter(e.lookEvery()))
		}
		if !clock().Before(nextScrape) {
			if e.gate.phase != fleet.PhasePending && e.gate.phase != fleet.PhaseFailed {
				restarted, hung := e.scrape(ctx)
				if restarted || hung { // does it answer at all?
					nextLook = clock()
				}
				if restarted { // a new process: is its model there?
					nextModels = clock()
				}
			}
			nextScrape = clock().Add(jitter(e.o.interval * time.Duration(max(1, e.backoff))))
		}
		e.compose()
		next := nextLook
		if nextScrape.Before(next) {
			next = nextScrape
		}
		sleep(ctx, next.Sub(clock()))
	}
}

func (e *endpoint) lookEvery() time.Duration {
	switch {
	case e.gate.phase == fleet.PhaseFailed:
		return failedLook
	case e.gate.phase != fleet.PhaseReady:
		return notReadyLook
	case e.gate.dead > 0:
		return notReadyLook // one bad look: settle the question
	}
	return healthEvery
}

// jitter spreads the questions of many routers and replicas: 0.9 to 1.1 of d.
func jitter(d time.Duration) time.Duration {
	return time.Duration(float64(d) * (0.9 + 0.2*rand.Float64()))
}

func sleep(ctx context.Context, d time.Duration) {
	if d <= 0 {
		return
	}
	t := time.NewTimer(d)
	defer t.Stop()
	select {
	case <-ctx.Done():
	case <-t.C:
	}
}

// look asks for health and, where due, for the models, and moves the gate. It
// reports whether the models were read.
func (e *endpoint) look(ctx context.Context, models bool) (read bool) {
	v, reason := e.probe.health(ctx)
	if v == lookReady && models {
		var list served
		list, v, reason = e.probe.models(ctx)
		if v == lookReady {
			read = true
			e.take(list)
			if e.engine == EngineUnknown {
				e.engine = list.engine
			}
			if want := e.o.wanted(); !listsAny(list.names, want) {
				v, reason = lookLoading, "model "+strings.Join(want, " or ")+" is not listed yet"
				if len(want) == 0 {
					reason = "no model is listed yet"
				}
			}
		}
	}
	if v == lookDead && reason == "/health answers 503" && !e.gate.was {
		v = lookLoading
	}
	if ctx.Err() != nil {
		return read
	}
	now := e.o.clock()
	e.mu.Lock()
	e.gate.alive(e.life)
	e.mu.Unlock()
	defer func() {
		e.mu.Lock()
		e.life = max(e.life, e.gate.life)
		e.mu.Unlock()
	}()
	wasFailed := e.gate.phase == fleet.PhaseFailed
	if e.gate.look(now, v, reason, e.o.lastReady(e.target.ID)) {
		if wasFailed && e.gate.phase == fleet.PhaseReady {
			e.start.cameBack(now)
		}
		e.o.log.Info("replica changed", "pool", e.o.pool, "replica", e.target.ID, "url", e.target.URL,
			"phase", e.gate.phase.String(), "slow", e.gate.slow, "reason", e.gate.reason)
		e.compose()
		e.o.kick()
	}
	return read
}

// take notes what the replica lists. What was loaded into a process before this one is
// forgotten only now: a load may have met the new process before its metrics were read, and
// this list tells which it was.
func (e *endpoint) take(list served) {
	e.list = list
	if e.renewed {
		e.renewed = false
		e.compose()
		e.loader.forget()
	}
}

func listsAny(names, want []string) bool {
	if len(want) == 0 {
		return len(names) > 0
	}
	for _, w := range want {
		if slices.Contains(names, w) {
			return true
		}
	}
	return false
}

// scrape reads the metrics and reports whether they show a new process, and whether
// there was no answer in time.
func (e *endpoint) scrape(ctx context.Context) (restarted, hung bool) {
	began := time.Now()
	sig := fleet.Signals{Adapters: e.sig.Adapters[:0:0], Loads: e.sig.Loads[:0:0]}
	wait := answerTimeout
	if e.backoff > 1 {
		wait = scrapeTimeout // it is known to be slow
	}
	out, err := e.probe.scrape(ctx, EngineUnknown, wait, e.o.clock, &sig)
	if ctx.Err() != nil {
		return false, false
	}
	took := time.Since(began)
	switch {
	case errors.Is(err, errNoMetrics):
		e.sig.ScrapeError = err.Error()
		e.sig.Notes |= fleet.NoteNoMetrics
		e.backoff = maxBackoff
		return false, false
	case err != nil:
		e.sig.ScrapeError = err.Error()
		e.backoff = min(2*max(1, e.backoff), maxBackoff)
		return false, errors.Is(err, errNoAnswer)
	case out.Series == 0:
		// An answer without a name that we know says nothing: unknown, not idle.
		e.sig.ScrapeError = "no known metric among those of the replica"
		return false, false
	case took > e.o.interval/2:
		e.backoff = min(2*max(1, e.backoff), maxBackoff)
	default:
		e.backoff = 1
	}
	now := e.o.clock()
	e.gate.alive(now)
	e.mu.Lock()
	e.life = max(e.life, now)
	e.mu.Unlock()
	if out.Engine != EngineUnknown {
		e.engine = out.Engine
	}
	restarted = e.start.scrape(now, &sig)
	if restarted {
		e.gate.restarted()
		e.memory = nil
		e.renewed = true
	}
	e.known = out.AdaptersComplete
	e.memory = remember(e.memory, &sig, e.list.names, e.known)
	sig.Adapters = e.memory
	e.sig = sig
	return restarted, false
}

// remember merges what an engine says of its adapters with what it said before.
// vLLM lists only adapters with requests; one that was in use and is idle now is
// most likely still in its slot, so it becomes resident, not absent. At keeps the
// moment when it was last seen in use; of more adapters than slots the ones seen
// last stay.
func remember(before []fleet.Adapter, sig *fleet.Signals, models []string, complete bool) []fleet.Adapter {
	if complete {
		return slices.Clone(sig.Adapters)
	}
	var out, idle []fleet.Adapter
	running := 0
	for _, a := range sig.Adapters {
		if a.State == fleet.AdapterResident {
			idle = append(idle, a)
			continue
		}
		if a.State == fleet.AdapterRunning {
			running++
		}
		out = append(out, a)
	}
	for _, a := range before {
		if a.State == fleet.AdapterRunning || a.State == fleet.AdapterResident {
			a.State = fleet.AdapterResident
			idle = append(idle, a)
		}
	}
	slices.SortStableFunc(idle, func(a, b fleet.Adapter) int { return cmp.Compare(b.At, a.At) })
	free := len(idle)
	if sig.LoRASlots.OK() {
		free = max(0, int(sig.LoRASlots.V)-running)
	}
	for _, a := range idle {
		known := slices.ContainsFunc(out, func(b fleet.Adapter) bool { return b.Name == a.Name })
		// One that the engine does not list any more was unloaded.
		if free > 0 && !known && (len(models) == 0 || slices.Contains(models, a.Name)) {
			out = append(out, a)
			free--
		}
	}
	slices.SortFunc(out, func(a, b fleet.Adapter) int { return cmp.Compare(a.Name, b.Name) })
	return out
}

// compose notes what is seen of the endpoint; its own goroutine calls it.
func (e *endpoint) compose() {
	t := e.target
	s := fleet.EndpointState{
		Endpoint: fleet.Endpoint{
			ID: t.ID, URL: t.URL, Models: e.list.names, AdapterNames: e.list.adapters, Engine: e.engine.String(),
			MaxModelLen: e.list.maxLen,
			Phase:       e.gate.phase, Since: e.gate.since, Reason: e.gate.reason, Slow: e.gate.slow,
		},
		Signals: e.sig,
	}
	s.StartTime = e.start.value()
	e.mu.Lock()
	defer e.mu.Unlock()
	if s.Phase == fleet.PhaseReady && s.Asleep.OK() && s.Asleep.V >= 0.5 {
		s.Phase, s.Since, s.Reason = fleet.PhaseAsleep, s.Asleep.At, "the engine sleeps"
		if e.state.Phase == fleet.PhaseAsleep {
			s.Since = e.state.Since
		}
	}
	e.state, e.path = s, metricPaths[e.probe.path]
}

// row returns what the snapshot says of the endpoint: what is seen of it, and over
// it what the operator or the source said.
func (e *endpoint) row() fleet.EndpointState {
	e.mu.Lock()
	defer e.mu.Unlock()
	s := e.state
	s.Role, s.Rank, s.LifeAt = e.latest.Role, e.latest.Rank, e.life
	e.loader.show(e.o.clock(), &s)
	reason := e.drained
	if reason == "" && e.latest.Draining {
		reason = cmp.Or(e.latest.Reason, "is being taken away")
	}
	if reason != "" && s.Phase != fleet.PhaseFailed && s.Phase != fleet.PhasePending {
		s.Phase, s.Reason, s.Since = fleet.PhaseDraining, reason, e.drainedAt
	}
	return s
}

// setDrained says why the endpoint drains, "" that it does not.
func (e *endpoint) setDrained(now fleet.Time, reason string) {
	e.mu.Lock()
	defer e.mu.Unlock()
	if e.drained == "" {
		e.drainedAt = now
	}
	e.drained = reason
}

// listed takes what the source says of the endpoint now.
func (e *endpoint) listed(now fleet.Time, t Target) {
	e.mu.Lock()
	defer e.mu.Unlock()
	if t.Draining && !e.latest.Draining && e.drained == "" {
		e.drainedAt = now
	}
	e.latest = t
}

// restartWatch tells a new process in place from the old one: by the start time
// that the engine exports, by counters that go back, and by having been gone.
type restartWatch struct {
	engine  float64 // start time that the engine told last; 0 none
	at      fleet.Time
	bump    float64 // start time that we concluded; 0 none
	prompt  float64
	output  float64
	counted bool
}

// scrape compares with the last scrape and reports a restart.
func (w *restartWatch) scrape(now fleet.Time, s *fleet.Signals) bool {
	restarted := false
	told := s.StartTime.Or(0)
	if told > 0 {
		// Engines round the start time; a second is no restart.
		if w.engine > 0 && (told > w.engine+1 || told < w.engine-1) {
			restarted = true
			if told < w.engine {
				w.bump = float64(now) / 1e9
			}
		}
		w.engine, w.at = told, now
	}
	p, o := s.PromptTokens, s.OutputTokens
	if w.counted && (p.OK() && p.V < w.prompt || o.OK() && o.V < w.output) {
		if !restarted {
			w.bump = float64(now) / 1e9
		}
		restarted = true
	}
	if p.OK() || o.OK() {
		w.prompt, w.output, w.counted = p.Or(0), o.Or(0), true
	}
	if w.at < now {
		w.at = now
	}
	return restarted
}

// cameBack notes that the endpoint answers again after it was refused: the
// process behind it is most likely a new one. Where the engine tells its start
// time, that decides.
func (w *restartWatch) cameBack(now fleet.Time) {
	if w.engine == 0 {
		w.bump, w.at = float64(now)/1e9, now
	}
}

// value is the start time as the snapshot tells it: it grows with every restart.
func (w *restartWatch) value() fleet.Value {
	v := max(w.engine, w.bump)
	if v == 0 {
		return fleet.Value{}
	}
	return fleet.Value{V: v, At: w.at}
}
