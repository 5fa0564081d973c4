// SPDX-License-Identifier: Apache-2.0

package gateway

import (
	"context"
	"fmt"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/zeebo/xxh3"

	"github.com/penstock-project/penstock/internal/entry"
	"github.com/penstock-project/penstock/internal/fleet"
	"github.com/penstock-project/penstock/internal/rollout"
)

// ArmPlace is where a version of a rollout is: a model or adapter by a name of the
// catalogue, or a model of a pool that has no names of its own.
type ArmPlace struct {
	Model string
	Pool  string // "": the one that the name leads to
}

// RolloutOptions are one rollout and where its versions are.
type RolloutOptions struct {
	Spec   rollout.Spec
	Arms   [2]ArmPlace // by rollout.Arm
	Shadow ShadowOptions
	// State and Weight continue a rollout that ran before a restart, where Resume is set.
	Resume bool
	State  rollout.State
	Weight float64
}

// ShadowOptions copy requests of the baseline to the canary; the answers are dropped.
type ShadowOptions struct {
	Share         float64 // of the requests of the baseline, 0 to 1
	TokensPerHour int64   // prompt and output; 0: no shadow traffic
	Concurrent    int     // shadow requests at a time; 0: 8
}

// Rollouts are the rollouts that run. It is safe for concurrent use.
type Rollouts struct {
	clock func() fleet.Time
	// Changed is told of each step after it was taken, from any goroutine. Set it
	// before requests come; nil: nobody is.
	Changed func(r *RolloutState)

	byModel atomic.Pointer[map[string]*liveRollout]
	cat     func() *Catalogue

	requests, tokens *prometheus.CounterVec
	ttft             *prometheus.HistogramVec
	shadows          *prometheus.CounterVec
}

// liveRollout is one rollout with its lock.
type liveRollout struct {
	all *Rollouts
	o   RolloutOptions

	mu   sync.Mutex
	core *rollout.Rollout

	places atomic.Pointer[armTargets]
	shadow shadowBudget
	series [2]armSeries
}

type armSeries struct {
	ok, failed, prompt, output prometheus.Counter
	ttft                       prometheus.Observer
}

// armTargets are the places of both versions in one catalogue.
type armTargets struct {
	of *Catalogue
	at [2]*target // nil: the catalogue has none
}

// RolloutState is the state of one rollout for status pages and records.
type RolloutState struct {
	Spec     rollout.Spec
	Arms     [2]ArmPlace
	State    rollout.State
	Blocked  bool
	Weight   float64
	Since    fleet.Time
	Steps    []rollout.Step
	Evidence []rollout.Evidence
	Totals   [2]rollout.Totals
	Shadow   ShadowState
	// ShadowOptions bound the shadow traffic.
	ShadowOptions ShadowOptions
}

func newRollouts(h *Handler, reg prometheus.Registerer) *Rollouts {
	r := &Rollouts{clock: h.o.Clock, cat: h.catalogue.Load}
	counter := func(name, help string, labels ...string) *prometheus.CounterVec {
		return prometheus.NewCounterVec(prometheus.CounterOpts{Name: "penstock_rollout_" + name, Help: help}, labels)
	}
	r.requests = counter("requests_total", "Requests by version of a rollout and outcome.", "rollout", "arm", "outcome")
	r.tokens = counter("tokens_total", "Tokens by version of a rollout.", "rollout", "arm", "kind")
	r.shadows = counter("shadow_total", "Requests that were copied to the canary, by result.", "rollout", "result")
	r.ttft = prometheus.NewHistogramVec(prometheus.HistogramOpts{Name: "penstock_rollout_ttft_seconds",
		Help: "From the head of a streamed request to the first token sent on, by version of a rollout.", Buckets: bucketsTTFT}, []string{"rollout", "arm"})
	if reg != nil {
		reg.MustRegister(r.requests, r.tokens, r.shadows, r.ttft, rolloutCollector{r})
	}
	r.byModel.Store(&map[string]*liveRollout{})
	return r
}

// Rollouts returns the rollouts of this handler.
func (h *Handler) Rollouts() *Rollouts { return h.rollouts }

// Set replaces the rollouts. One that stays as it was goes on where it is.
func (r *Rollouts) Set(list []RolloutOptions) error {
	old, next := *r.byModel.Load(), map[string]*liveRollout{}
	for _, o := range list {
		if was := old[o.Spec.Model]; was != nil && sameRollout(&was.o, &o) {
			next[o.Spec.Model] = was
			continue
		}
		now := r.clock()
		core, err := rollout.New(now, o.Spec)
		if err != nil {
			return fmt.Errorf("rollout %s: %w", o.Spec.Name, err)
		}
		if o.Resume {
			core.Restore(now, o.State, o.Weight)
		}
		l := &liveRollout{all: r, o: o, core: core}
		for _, arm := range []rollout.Arm{rollout.Baseline, rollout.Canary} {
			n, a := o.Spec.Name, arm.String()
			l.series[arm] = armSeries{
				ok: r.requests.WithLabelValues(n, a, "ok"), failed: r.requests.WithLabelValues(n, a, "failed"), ttft: r.ttft.WithLabelValues(n, a),
				prompt: r.tokens.WithLabelValues(n, a, "prompt"), output: r.tokens.WithLabelValues(n, a, "output"),
			}
		}
		next[o.Spec.Model] = l
	}
	r.byModel.Store(&next)
	return nil
}

func sameRollout(a, b *RolloutOptions) bool {
	return a.Arms == b.Arms && a.Shadow == b.Shadow && slices.Equal(a.Spec.Steps, b.Spec.Steps) && a.Spec.Name == b.Spec.Name &&
		a.Spec.Sticky == b.Spec.Sticky && a.Spec.Every == b.Spec.Every && a.Spec.Auto == b.Spec.Auto && a.Spec.Guard == b.Spec.Guard
}

// Run looks at the evidence of every rollout once a second until ctx ends.
func (r *Rollouts) Run(ctx context.Context) {
	t := time.NewTicker(time.Second)
	defer t.Stop()
	for {
		select {
		case <-ctx.Done():
			return
		case <-t.C:
			r.Tick()
		}
	}
}

// Tick takes the steps that the evidence calls for.
func (r *Rollouts) Tick() {
	for _, l := range *r.byModel.Load() {
		l.change(func(now fleet.Time) error {
			l.core.Tick(now, l.targets().ready())
			return nil
		})
	}
}

// change makes a change and tells of every step that it took.
func (l *liveRollout) change(f func(now fleet.Time) error) error {
	l.mu.Lock()
	before := len(l.core.Steps())
	var last rollout.Step
	if before > 0 {
		last = l.core.Steps()[before-1]
	}
	err := f(l.all.clock())
	steps := l.core.Steps()
	var st *RolloutState
	if len(steps) != before || steps[len(steps)-1].At != last.At {
		st = l.state()
	}
	l.mu.Unlock()
	if st != nil && l.all.Changed != nil {
		l.all.Changed(st)
	}
	return err
}

// state returns the state; l.mu is held.
func (l *liveRollout) state() *RolloutState {
	return &RolloutState{
		Spec: l.core.Spec(), Arms: l.o.Arms, State: l.core.State(), Blocked: l.core.Blocked(), Weight: l.core.Weight(), Since: l.core.Since(),
		Steps: slices.Clone(l.core.Steps()), Evidence: l.core.Evidence(), Totals: l.core.Totals(), ShadowOptions: l.o.Shadow, Shadow: l.shadow.state(l.o.Shadow, l.all.clock()),
	}
}

// States returns the state of every rollout, by name.
func (r *Rollouts) States() []*RolloutState {
	var out []*RolloutState
	for _, l := range *r.byModel.Load() {
		l.mu.Lock()
		out = append(out, l.state())
		l.mu.Unlock()
	}
	slices.SortFunc(out, func(a, b *RolloutState) int { return compareNames(a.Spec.Name, b.Spec.Name) })
	return out
}

func compareNames(a, b string) int {
	switch {
	case a < b:
		return -1
	case a > b:
		return 1
	}
	return 0
}

// Act does what an operator asks: promote, promote-all, hold or abort. found is false
// where there is no rollout of that name.
func (r *Rollouts) Act(name, what, by string) (found bool, err error) {
	for _, l := range *r.byModel.Load() {
		if l.o.Spec.Name != name {
			continue
		}
		return true, l.change(func(now fleet.Time) error {
			switch what {
			case "promote":
				return l.core.Promote(now, false, by)
			case "promote-all":
				return l.core.Promote(now, true, by)
			case "hold":
				return l.core.Hold(now, by)
			case "abort":
				return l.core.Abort(now, by)
			}
			return fmt.Errorf("a rollout cannot %s", what)
		})
	}
	return false, nil
}

// find returns the rollout of a name that clients ask for; nil where there is none.
func (r *Rollouts) find(model []byte) *liveRollout { return (*r.byModel.Load())[string(model)] }

// targets returns where the versions are in the catalogue that is in use.
func (l *liveRollout) targets() *armTargets {
	cat := l.all.cat()
	if t := l.places.Load(); t != nil && t.of == cat {
		return t
	}
	t := &armTargets{of: cat}
	for i, p := range l.o.Arms {
		t.at[i] = cat.arm(l.o.Spec.Model, p)
	}
	l.places.Store(t)
	return t
}

// arm makes the target of a version, under the name that clients ask for.
func (c *Catalogue) arm(alias string, p ArmPlace) *target {
	var t *target
	if p.Pool == "" {
		t = c.names[p.Model]
	} else {
		for _, e := range c.pools {
			if e.Name == p.Pool {
				t = e.own(p.Model)
			}
		}
	}
	if t == nil {
		return nil
	}
	return &target{Place: entry.Place{Name: alias, Model: t.Model, Adapter: t.Adapter, Rename: true, Tenants: t.Tenants}, pool: t.pool}
}

// own returns what a pool itself means by a name, whoever else has it; nil where the
// pool has models and this is none of them.
func (p *poolEntry) own(name string) *target {
	for i := range p.Models {
		m := &p.Models[i]
		at := entry.Place{Name: name, Model: m.Name, Tenants: nameSet(m.Tenants)}
		switch {
		case m.Name == name:
		case slices.Contains(m.Aliases, name):
			at.Rename = true
		case slices.Contains(m.Adapters, name):
			at.Adapter = name
		default:
			continue
		}
		return &target{Place: at, pool: p}
	}
	if t := p.names()[name]; t != nil {
		return t
	}
	if len(p.Models) == 0 {
		return &target{Place: entry.Place{Name: name, Model: name}, pool: p}
	}
	return nil
}

// ready reports whether a replica lists the model and takes requests.
func (t *target) ready() bool {
	if t == nil || t.pool.Flow == nil {
		return false
	}
	snap := t.pool.Flow.Snapshot()
	if snap == nil {
		return false
	}
	for i := range snap.Endpoints {
		if e := &snap.Endpoints[i]; e.Phase == fleet.PhaseReady && (len(e.Models) == 0 || slices.Contains(e.Models, t.EngineName())) {
			return true
		}
	}
	return false
}

func (t *armTargets) ready() [2]bool { return [2]bool{t.at[0].ready(), t.at[1].ready()} }

// assign picks the version of a request and where it is.
func (l *liveRollout) assign(c *call) (*target, rollout.Arm) {
	t := l.targets()
	ready := t.ready()
	for i := range t.at {
		// Who may not use a version gets the other one.
		if t.at[i] == nil || !c.who.MayUse(&t.at[i].Place) || !c.mayEnter(t.at[i].pool) {
			ready[i] = false
		}
	}
	k := rollout.Key{Tenant: c.who.Tenant, Session: c.scan.CacheKey, User: c.scan.User}
	switch {
	case c.who.User != "":
		k.User = xxh3.HashString(c.who.User)
	case k.User == 0 && c.who.Key != "":
		k.User = xxh3.HashString(c.who.Key)
	case k.User == 0 && c.who.Tenant == "":
		k.User = xxh3.HashString(c.id) // nobody: each request by itself
	}
	l.mu.Lock()
	arm := l.core.Assign(l.all.clock(), k, ready)
	l.mu.Unlock()
	if t.at[arm] == nil {
		arm = 1 - arm
	}
	return t.at[arm], arm
}

// observe takes what became of a request of a version.
func (l *liveRollout) observe(arm rollout.Arm, s rollout.Sample) {
	l.mu.Lock()
	l.core.Observe(arm, s)
	l.mu.Unlock()
	m := &l.series[arm]
	if s.Failed {
		m.failed.Inc()
	} else {
		m.ok.Inc()
	}
	m.prompt.Add(float64(s.Prompt))
	m.output.Add(float64(s.Output))
	if s.TTFT > 0 {
		m.ttft.Observe(s.TTFT)
	}
}

// accountRollout tells the rollout what became of the call. A client that left, or
// that asked for what cannot be, says nothing of a version.
func (c *call) accountRollout() {
	if c.rollout == nil || c.target == nil || c.req.Via != "" {
		return // another pool's time is not this version's
	}
	o := &c.outcome
	s := rollout.Sample{Prompt: max(o.PromptTokens, 0), Output: max(o.OutputTokens, 0)}
	switch o.Kind {
	case fleet.OutcomeOK:
	case fleet.OutcomeRefused:
		if c.status < 500 {
			return
		}
		s.Failed = true
	case fleet.OutcomeClientGone, fleet.OutcomeClientError:
		return
	default:
		s.Failed = true
	}
	if c.told {
		s.TTFT = c.first.Sub(c.read).Seconds() // without the upload, which is the client's
		if c.frames > 1 {
			s.ITL = c.last.Sub(c.first).Seconds() / float64(c.frames-1)
		}
	}
	c.rollout.observe(c.arm, s)
}

// rolloutCollector shows weights and states.
type rolloutCollector struct{ r *Rollouts }

var (
	descWeight = prometheus.NewDesc("penstock_rollout_weight", "Share of the canary.", []string{"rollout"}, nil)
	descState  = prometheus.NewDesc("penstock_rollout_state", "1 for the state that a rollout is in.", []string{"rollout", "state"}, nil)
)

// Describe implements prometheus.Collector.
func (c rolloutCollector) Describe(ch chan<- *prometheus.Desc) {
	ch <- descWeight
	ch <- descState
}

// Collect implements prometheus.Collector.
func (c rolloutCollector) Collect(ch chan<- prometheus.Metric) {
	for _, l := range *c.r.byModel.Load() {
		l.mu.Lock()
		weight, state, blocked := l.core.Weight(), l.core.State().String(), l.core.Blocked()
		l.mu.Unlock()
		if blocked && state == rollout.Running.String() {
			state = "blocked"
		}
		ch <- prometheus.MustNewConstMetric(descWeight, prometheus.GaugeValue, weight, l.o.Spec.Name)
		ch <- prometheus.MustNewConstMetric(descState, prometheus.GaugeValue, 1, l.o.Spec.Name, state)
	}
}
