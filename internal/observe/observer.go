// SPDX-License-Identifier: Apache-2.0

// Package observe finds the replicas of a pool, watches their health and reads
// their metrics, and publishes a fleet.Snapshot of each tick.
//
// Nothing here is on the way of a request: requests read the last snapshot.
// What cannot be read keeps its last value and its age; what was never read is
// unknown, and unknown is not zero.
package observe

import (
	"cmp"
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"net/http"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"github.com/penstock-project/penstock/internal/config"
	"github.com/penstock-project/penstock/internal/fleet"
)

// Options of an Observer.
type Options struct {
	Pool   string
	Source Source
	// Models are names of which a replica must list at least one before it is ready;
	// empty: any model will do.
	Models   []string
	APIKey   config.Secret // sent as a bearer token; empty: none
	TLS      *tls.Config   // nil: the system's roots
	Interval time.Duration // between scrapes and between snapshots; 0: 1 s
	// Publish takes each snapshot, from one goroutine; nil: nobody is told.
	Publish func(*fleet.Snapshot)
	// Adapters are kept loaded at every replica; the zero value loads none.
	Adapters AdapterPlan
	Log      *slog.Logger      // nil: discard
	Clock    func() fleet.Time // nil: the wall clock
	// Dial opens connections to replicas; nil: TCP. Transport, where there is one, has its own.
	Dial func(ctx context.Context, network, address string) (net.Conn, error)
	// Transport asks the replicas; nil: a transport of its own.
	Transport http.RoundTripper
}

// Observer watches one pool. All methods are safe for concurrent use.
type Observer struct {
	pool     string
	interval time.Duration
	publish  func(*fleet.Snapshot)
	log      *slog.Logger
	clock    func() fleet.Time
	client   *http.Client
	loads    *http.Client // for loads of adapters, which take their time
	auth     string
	// dial opens connections of the plain client; nil: client does it all.
	dial func(ctx context.Context, network, address string) (net.Conn, error)

	models atomic.Pointer[[]string]
	plan   atomic.Pointer[AdapterPlan]
	snap   atomic.Pointer[fleet.Snapshot]
	nudge  chan struct{}
	source chan Source

	mu        sync.Mutex
	endpoints map[string]*endpoint
	listed    bool              // the source has told a list
	drained   map[string]string // by ID, also of endpoints that are away
	version   uint64
	wg        sync.WaitGroup
}

// New returns an Observer that does nothing before Run.
func New(o Options) *Observer {
	ob := &Observer{
		pool: o.Pool, interval: cmp.Or(o.Interval, time.Second), publish: o.Publish, log: orDiscard(o.Log),
		clock: o.Clock, nudge: make(chan struct{}, 1), source: make(chan Source, 1),
		endpoints: map[string]*endpoint{}, drained: map[string]string{},
	}
	if ob.clock == nil {
		ob.clock = func() fleet.Time { return fleet.At(time.Now()) }
	}
	if ob.publish == nil {
		ob.publish = func(*fleet.Snapshot) {}
	}
	if !o.APIKey.Empty() {
		ob.auth = "Bearer " + o.APIKey.Reveal()
	}
	rt := o.Transport
	if o.Dial == nil {
		o.Dial = (&net.Dialer{}).DialContext
	}
	if rt == nil {
		ob.dial = o.Dial
		rt = &http.Transport{
			// Compressing 50 kB a second costs an engine more than sending them.
			DisableCompression: true,
			TLSClientConfig:    o.TLS,
			DialContext: func(ctx context.Context, network, address string) (net.Conn, error) {
				ctx, cancel := context.WithTimeout(ctx, answerTimeout)
				defer cancel()
				return o.Dial(ctx, network, address)
			},
			MaxIdleConns: 0, MaxIdleConnsPerHost: 1, IdleConnTimeout: 30 * time.Second,
			ResponseHeaderTimeout: scrapeTimeout,
		}
	}
	// A redirect would let a replica point us elsewhere with its key.
	ob.client = &http.Client{Transport: rt, CheckRedirect: func(*http.Request, []*http.Request) error { return http.ErrUseLastResponse }}
	ob.loads = &http.Client{Transport: rt, CheckRedirect: ob.client.CheckRedirect}
	if t, ok := rt.(*http.Transport); ok {
		slow := t.Clone()
		slow.ResponseHeaderTimeout = loadTimeout
		ob.loads.Transport = slow
	}
	ob.SetModels(o.Models)
	ob.SetAdapters(o.Adapters)
	ob.source <- o.Source
	return ob
}

// SetModels changes which models make a replica ready.
func (o *Observer) SetModels(names []string) {
	c := slices.Clone(names)
	o.models.Store(&c)
}

func (o *Observer) wanted() []string { return *o.models.Load() }

// SetSource changes where replicas are found. Endpoints that the new source lists
// under the same ID and URL stay as they are.
func (o *Observer) SetSource(s Source) {
	for {
		select {
		case o.source <- s:
			return
		default:
		}
		select {
		case <-o.source: // a source that nobody has started
		default:
		}
	}
}

// Run watches until ctx ends.
func (o *Observer) Run(ctx context.Context) error {
	defer o.wg.Wait()
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	stopSource := func() {}
	defer func() { stopSource() }()
	tick := time.NewTicker(o.interval)
	defer tick.Stop()
	for {
		select {
		case <-ctx.Done():
			return ctx.Err()
		case s := <-o.source:
			stopSource()
			stopSource = o.startSource(ctx, s)
			continue
		case <-tick.C:
		case <-o.nudge:
		}
		o.emit()
	}
}

// startSource runs a source and returns what stops it and waits for its end.
func (o *Observer) startSource(ctx context.Context, s Source) func() {
	ctx2, cancel := context.WithCancel(ctx)
	done := make(chan struct{})
	go func() {
		defer close(done)
		err := s.Run(ctx2, func(list []Target) {
			if ctx2.Err() == nil {
				o.update(ctx, list)
			}
		})
		if err != nil && ctx2.Err() == nil {
			o.log.Error("discovery ended", "pool", o.pool, "source", s.String(), "error", err)
		}
	}()
	return func() { cancel(); <-done }
}

// update makes the endpoints those of the list.
func (o *Observer) update(ctx context.Context, list []Target) {
	o.mu.Lock()
	seen := make(map[string]bool, len(list))
	for _, t := range list {
		seen[t.ID] = true
		e := o.endpoints[t.ID]
		if e != nil && e.target.URL != t.URL {
			e.stop() // another place under the same name is another replica
			e = nil
		}
		if e == nil {
			o.endpoints[t.ID] = o.start(ctx, t)
			o.log.Info("replica found", "pool", o.pool, "replica", t.ID, "url", t.URL)
			continue
		}
		e.listed(o.clock(), t)
	}
	for id, e := range o.endpoints {
		if !seen[id] {
			e.stop()
			delete(o.endpoints, id)
			o.log.Info("replica gone", "pool", o.pool, "replica", id)
		}
	}
	o.listed = true
	o.mu.Unlock()
	o.kick()
}

// start begins to watch one target; o.mu is held.
func (o *Observer) start(ctx context.Context, t Target) *endpoint {
	ctx, cancel := context.WithCancel(ctx)
	e := &endpoint{o: o, target: t, stop: cancel, backoff: 1, probe: prober{base: t.URL, auth: o.auth, client: o.client}}
	if o.dial != nil {
		e.probe.plain = newPlain(t.URL, o.auth, o.dial)
	}
	now := o.clock()
	e.gate.since = now
	e.setDrained(now, o.drained[t.ID])
	e.listed(now, t)
	e.compose()
	e.loader = loader{base: t.URL, auth: o.auth, client: o.loads}
	o.wg.Go(func() { e.run(ctx) })
	o.wg.Go(func() { e.keepLoaded(ctx) })
	return e
}

// kick asks for a snapshot before the next tick.
func (o *Observer) kick() {
	select {
	case o.nudge <- struct{}{}:
	default:
	}
}

// emit builds a snapshot and hands it out.
func (o *Observer) emit() {
	o.mu.Lock()
	if !o.listed {
		o.mu.Unlock()
		return // nothing is known yet; an empty fleet would be a claim
	}
	o.version++
	s := &fleet.Snapshot{Pool: o.pool, Version: o.version, At: o.clock(), Endpoints: make([]fleet.EndpointState, 0, len(o.endpoints))}
	for _, e := range o.endpoints {
		s.Endpoints = append(s.Endpoints, e.row())
	}
	o.mu.Unlock()
	slices.SortFunc(s.Endpoints, func(a, b fleet.EndpointState) int { return cmp.Compare(a.ID, b.ID) })
	o.snap.Store(s)
	o.publish(s)
}

// Snapshot returns the last snapshot, nil before the first.
func (o *Observer) Snapshot() *fleet.Snapshot { return o.snap.Load() }

// lastReady reports whether no other endpoint than id is ready.
func (o *Observer) lastReady(id string) bool {
	s := o.snap.Load()
	if s == nil {
		return true
	}
	for i := range s.Endpoints {
		if s.Endpoints[i].ID != id && s.Endpoints[i].Phase == fleet.PhaseReady {
			return false
		}
	}
	return true
}

// ErrUnknownReplica says that no replica has the name.
var ErrUnknownReplica = errors.New("unknown replica")

// Drain takes an endpoint out: it finishes what it has and gets nothing new. It
// outlives a restart of the replica, not one of Penstock.
func (o *Observer) Drain(id, reason string) error {
	return o.setDrained(id, cmp.Or(reason, "drained by operator"))
}

// Undrain is the opposite of Drain.
func (o *Observer) Undrain(id string) error { return o.setDrained(id, "") }

func (o *Observer) setDrained(id, reason string) error {
	o.mu.Lock()
	e := o.endpoints[id]
	if e == nil {
		o.mu.Unlock()
		return fmt.Errorf("%w %q", ErrUnknownReplica, id)
	}
	if reason == "" {
		delete(o.drained, id)
	} else {
		o.drained[id] = reason
	}
	e.setDrained(o.clock(), reason)
	o.mu.Unlock()
	o.log.Info("replica drain set", "pool", o.pool, "replica", id, "drained", reason != "", "reason", reason)
	o.kick()
	return nil
}

// Alive notes that bytes of a response of the endpoint were seen: evidence of life
// while probes time out. It is cheap and may be called for every frame.
func (o *Observer) Alive(id string) {
	o.mu.Lock()
	e := o.endpoints[id]
	o.mu.Unlock()
	if e == nil {
		return
	}
	now := o.clock()
	e.mu.Lock()
	e.life = max(e.life, now)
	e.mu.Unlock()
}

// Metrics asks a replica for its exposition and returns the answer as it comes,
// for a verbatim pass-through. The caller closes the body.
func (o *Observer) Metrics(ctx context.Context, id string) (*http.Response, error) {
	o.mu.Lock()
	e := o.endpoints[id]
	o.mu.Unlock()
	if e == nil {
		return nil, fmt.Errorf("%w %q", ErrUnknownReplica, id)
	}
	e.mu.Lock()
	path := cmp.Or(e.path, metricPaths[0])
	e.mu.Unlock()
	p := prober{base: e.target.URL, auth: o.auth, client: o.client}
	return p.get(ctx, path)
}
