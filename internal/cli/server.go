// SPDX-License-Identifier: Apache-2.0

package cli

import (
	"cmp"
	"context"
	"crypto/rand"
	"crypto/tls"
	"encoding/binary"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"net/http"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/collectors"
	"github.com/prometheus/client_golang/prometheus/promhttp"

	"github.com/penstock-project/penstock/internal/config"
	"github.com/penstock-project/penstock/internal/console"
	"github.com/penstock-project/penstock/internal/dispatch"
	"github.com/penstock-project/penstock/internal/engine"
	"github.com/penstock-project/penstock/internal/fleet"
	"github.com/penstock-project/penstock/internal/flow"
	"github.com/penstock-project/penstock/internal/gateway"
	"github.com/penstock-project/penstock/internal/journal"
	"github.com/penstock-project/penstock/internal/kube"
	"github.com/penstock-project/penstock/internal/observe"
	"github.com/penstock-project/penstock/internal/procs"
	"github.com/penstock-project/penstock/internal/route"
	"github.com/penstock-project/penstock/internal/scale"
	"github.com/penstock-project/penstock/internal/share"
)

// serverOptions describe a server: gateway, pools, journal and admin listener in
// this process. `serve` and `demo` build the same one.
type serverOptions struct {
	Config *config.Config
	Log    *slog.Logger // nil: discard
	// Sources replaces where the replicas of a pool are found, by the name of the
	// pool.
	Sources map[string]observe.Source
	// Interval is the time between scrapes; 0: 1 s.
	Interval time.Duration
	// Kubeconfig names the file of pools that are found through Kubernetes; "": what
	// the environment says.
	Kubeconfig string
	// DrainDelay is how long a server that stops keeps taking requests while it
	// already says that it is not ready; DrainTimeout bounds the wait for streams.
	DrainDelay, DrainTimeout time.Duration
	// ScaleTuning and ScalePeriod replace the scaler's constants and its period; nil:
	// the defaults. A demo lives faster than a fleet.
	ScaleTuning *scale.Tuning
	ScalePeriod time.Duration
}

// livePool is one pool that runs.
type livePool struct {
	name     string
	cfg      config.Pool // changes on reload; guarded by server.mu once the server runs
	source   string
	flow     *flow.Flow
	observer *observe.Observer
	scaler   *flow.Scaler
	procs    *procs.Pool                    // nil: its replicas are no processes of ours
	kv       *observe.KVReader              // nil: KV events are off
	keeper   *keeper                        // of its prefix index; nil: nothing is kept
	auth     string                         // Authorization for the engines
	kube     atomic.Pointer[kube.Pool]      // the last version of its InferencePool
	taken    atomic.Pointer[fleet.Snapshot] // the last one that decisions are made on
	compat   atomic.Pointer[kube.Compat]
}

// server is a running Penstock. Build it, Run it; Reload may be called meanwhile.
type server struct {
	o             serverOptions
	log           *slog.Logger
	clock         func() fleet.Time
	router        string // name of this router in request ids
	names         *names
	front         *front
	guard         *guard
	meter         *share.Meter
	journal       *journal.Journal
	audit         *journal.Audit
	rolloutMemory *rolloutMemory
	adminTLS      bool
	recording     recording
	admin         *console.Server
	reg           *prometheus.Registry

	gatewayLn, adminLn net.Listener       // nil: that one is off
	scrapeLn           net.Listener       // nil: metrics are on the admin API only
	epp                *eppFront          // nil: the endpoint picker is off
	cluster            *clusterScaling    // nil: nothing is scaled in a cluster
	scaleLog           *journal.Lines     // of evaluations; nil: nothing on disk
	accelerators       *flow.Accelerators // that pools share
	scaleBroken        atomic.Bool        // it cannot be written
	shareLn            net.Listener       // nil: no router tells this one
	exchange           *share.Exchange    // nil: with no router
	hashKey            uint64             // that prompts are hashed with
	tls                *tls.Config        // of the gateway and the endpoint picker; nil: plain
	stopping           atomic.Bool

	pools []*livePool // the same from buildServer on

	mu    sync.Mutex
	cfg   *config.Config // what runs
	state console.ConfigState
	kube  *kube.Cluster // nil while no pool is found through Kubernetes

	watchKube func(*kube.Cluster) // watches a connection that a reload makes; nil before Run; under mu

	// background runs beside the listeners until the server stops; each function
	// returns when its context ends. Wired before Run.
	background []func(context.Context)
}

// buildServer wires a server and opens its listeners, so that a port in use is
// known before anything runs. Nothing runs before Run; Close undoes a server that
// is never run.
func buildServer(o serverOptions) (_ *server, err error) {
	if o.Log == nil {
		o.Log = slog.New(slog.DiscardHandler)
	}
	o.DrainTimeout = cmp.Or(o.DrainTimeout, 30*time.Second)
	if err := checkServable(o.Config); err != nil {
		return nil, err
	}
	s := &server{o: o, log: o.Log, cfg: o.Config, clock: monotonic(), reg: prometheus.NewRegistry()}
	s.names = newNames(net.DefaultResolver, o.Log)
	defer func() {
		if err != nil {
			s.Close()
		}
	}()
	for _, open := range []func() error{s.openPools, s.openGateway, s.openEPP, s.openCluster, s.openScale, s.openAdmin, s.openEvents, s.openScrape} {
		if err := open(); err != nil {
			return nil, err
		}
	}
	return s, nil
}

// openPools names the router and wires the pools to the journal and to other routers.
func (s *server) openPools() error {
	var seed [10]byte
	if _, err := rand.Read(seed[:]); err != nil {
		return err
	}
	c := s.o.Config
	s.router = fmt.Sprintf("%02x%02x", seed[8], seed[9])
	s.state = console.ConfigState{File: c.File(), Digest: c.Digest(), ReloadOK: true, Inert: c.Inert()}
	if err := s.openJournal(); err != nil {
		return err
	}
	if err := s.openShare(seed[:]); err != nil {
		return err
	}
	for i := range c.Pools {
		if err := s.addPool(c.Pools[i], binary.LittleEndian.Uint64(seed[:])); err != nil {
			return err
		}
	}
	return nil
}

// openGateway makes what requests pass on their way to the pools, and opens its
// listener.
func (s *server) openGateway() (err error) {
	c := s.o.Config
	if s.tls, err = serverTLS(c.TLS); err != nil {
		return err
	}
	if s.guard, err = newGuard(c); err != nil {
		return err
	}
	if s.meter, err = s.newMeter(); err != nil {
		return err
	}
	if err := s.openRecording(); err != nil {
		return err
	}
	if s.front, err = newFront(s, s.hashKey); err != nil {
		return err
	}
	if c.Listen.HTTP != "" {
		s.gatewayLn, err = listen("the gateway", "--listen", c.Listen.HTTP)
	}
	return err
}

// openAdmin makes the admin API with the metrics and rollouts that it shows.
func (s *server) openAdmin() error {
	if addr := s.o.Config.Listen.Admin; addr != "" {
		l, err := listen("the admin API", "--admin", addr)
		if err != nil {
			return err
		}
		s.adminLn = s.sealAdmin(l)
	}
	s.addMetrics()
	if err := s.openRollouts(); err != nil {
		return err
	}
	s.admin = console.New(s.secured(console.Options{
		Pools: s.consolePools, Journal: s.journal, Explain: s.front.h, Ready: s.Ready,
		Metrics: promhttp.HandlerFor(s.reg, promhttp.HandlerOpts{ErrorLog: promLog{s.log}}),
		Config:  s.Config, State: s.configState, Version: buildVersion().Version, Router: s.router,
		Listen: console.ListenState{HTTP: s.GatewayURL(), Admin: s.AdminURL(), EPP: s.EPPAddr(), TLS: s.tls != nil},
		Clock:  s.clock, Log: s.log, Peers: s.peersStatus, Scaling: s, Desired: s.desired,
	}))
	s.background = append(s.background, s.admin.Run)
	return nil
}

// monotonic returns a clock that starts at the wall clock and that no adjustment
// of it moves.
func monotonic() func() fleet.Time {
	start := time.Now()
	base := fleet.At(start)
	return func() fleet.Time { return base.Add(time.Since(start)) }
}

// checkServable refuses what must not run: a door without a lock, or a key that
// nobody checks.
func checkServable(c *config.Config) error {
	if len(c.Pools) == 0 {
		return usagef("add --replica http://127.0.0.1:8000, or pools to the configuration", "there is nothing to serve: no pool and no --replica")
	}
	if c.Listen.HTTP != "" && !guarded(c) && !config.IsLoopback(c.Listen.HTTP) {
		return usagef("make keys with `penstock key create` and name the file in auth.keysFile, or bind 127.0.0.1",
			"refusing to listen on %s without keys: anyone who reaches it could use the replicas", c.Listen.HTTP)
	}
	return checkAdmin(c)
}

func (s *server) openJournal() error {
	j := s.o.Config.Journal
	var err error
	s.journal, err = journal.New(journal.Options{
		Memory: j.Memory, Dir: j.Dir, MaxAge: j.MaxAge, MaxBytes: int64(j.MaxBytes),
		Router: s.router, Version: buildVersion().Version, Log: s.log,
	})
	if err != nil {
		return failf("name another directory with --journal-dir, or none", "journal: %v", err)
	}
	if s.audit, err = journal.OpenAudit(j.Dir, s.log); err != nil {
		return failf("name another directory with --journal-dir, or none", "audit log: %v", err)
	}
	return nil
}

// addPool wires one pool: observer, dispatch and flow.
func (s *server) addPool(p config.Pool, seed uint64) error {
	policy, err := route.New(p.Route.Policy, seed)
	if err != nil {
		return usagef("", "pool %s: %v", p.Name, err)
	}
	profile, err := poolProfile(&p)
	if err != nil {
		return err
	}
	lp := &livePool{name: p.Name, cfg: p}
	src, err := s.source(&p, lp)
	if err != nil {
		return err
	}
	lp.source = src.String()
	var key config.Secret
	if p.Engine.APIKeyFile != "" {
		if key, err = config.ReadSecret(p.Engine.APIKeyFile); err != nil {
			return failf("engine.apiKeyFile names a file with the key of the replicas", "pool %s: %v", p.Name, err)
		}
		lp.auth = "Bearer " + key.Reveal()
	}
	trust, err := engineTLS(p.Engine.TLS)
	if err != nil {
		return err
	}
	do := dispatch.Options{Pool: p.Name, Policy: policy, Profile: profile, HoldFor: p.Route.HoldFor,
		Queue: p.Route.Queue == "on", HoldMost: p.Route.QueueMost, Weights: tenantWeights(s.cfg), Share: s.exchange != nil, Events: p.Engine.Tokens == "exact"}
	lp.flow = flow.New(flow.Options{
		Pool: p.Name, Recorder: s.journal, Clock: s.clock, Log: s.log, Seed: seed,
		Alive:    func(id string) { lp.observer.Alive(id) },
		Dispatch: dispatch.New(do),
	})
	s.sharePool(lp)
	if err := s.keepPool(lp, &do, seed); err != nil {
		return err
	}
	lp.observer = observe.New(observe.Options{
		Pool: p.Name, Source: src, Models: modelNames(&p), APIKey: key, TLS: trust, Interval: s.o.Interval, Adapters: adapterPlan(&p),
		Publish: func(snap *fleet.Snapshot) {
			lp.flow.Observe(snap)
			s.warm(lp, snap)
			lp.observeKV(snap)
			lp.taken.Store(snap)
			s.epp.observed()
		}, Log: s.log, Clock: s.clock, Dial: s.names.DialContext,
	})
	s.readKV(lp)
	s.background = append(s.background, func(ctx context.Context) { s.followGuards(ctx, lp) })
	s.pools = append(s.pools, lp)
	return nil
}

// poolProfile finds the engine profile of a pool. "auto" takes the first built-in
// one of the pool's model, else the default; the router learns the difference.
func poolProfile(p *config.Pool) (engine.Profile, error) {
	if p.Engine.Profile != "" && p.Engine.Profile != "auto" {
		return loadProfile(p.Engine.Profile)
	}
	for _, m := range p.Models {
		base := strings.ToLower(m.Name[strings.LastIndex(m.Name, "/")+1:])
		for _, prof := range engine.Profiles() {
			if strings.HasPrefix(base, strings.ToLower(prof.Model)) {
				return prof, nil
			}
		}
	}
	prof, _ := engine.Lookup(engine.DefaultProfile)
	return prof, nil
}

// source returns where the replicas of a pool are found.
func (s *server) source(p *config.Pool, lp *livePool) (observe.Source, error) {
	if src := s.o.Sources[p.Name]; src != nil {
		return src, nil
	}
	switch r := &p.Replicas; {
	case r.File != "":
		return observe.File{Path: r.File, Log: s.log}, nil
	case r.DNS != "":
		return observe.DNS{URL: r.DNS, Log: s.log}, nil
	case len(r.Selector.Labels) > 0 || r.InferencePool != "":
		return s.kubeSource(p, lp)
	case len(r.Process.Command) > 0:
		return s.processSource(p, lp)
	default:
		return observe.StaticURLs(r.Static), nil
	}
}

func modelNames(p *config.Pool) []string {
	var out []string
	for _, m := range p.Models {
		out = append(out, m.Name)
	}
	return out
}

// adapterPlan is what the replicas of a pool are asked to load.
func adapterPlan(p *config.Pool) observe.AdapterPlan {
	if p.Engine.LoadAdapters == "" {
		return observe.AdapterPlan{}
	}
	return observe.AdapterPlan{Names: adapterNames(p), Path: p.Engine.LoadAdapters}
}

func adapterNames(p *config.Pool) []string {
	var out []string
	for _, m := range p.Models {
		out = append(out, m.Adapters...)
	}
	return out
}

func (s *server) addMetrics() {
	v := buildVersion()
	info := prometheus.NewGauge(prometheus.GaugeOpts{
		Name: "penstock_build_info", Help: "1, with the version in its labels.",
		ConstLabels: prometheus.Labels{"version": v.Version, "revision": v.Revision, "go": v.Go},
	})
	info.Set(1)
	s.reg.MustRegister(newQuotaCollector(s.meter), info, collectors.NewGoCollector(), collectors.NewProcessCollector(collectors.ProcessCollectorOpts{}),
		newFleetCollector(s.consolePools, s.configState, func() (uint64, uint64, uint64) {
			st := s.journal.Stats()
			return st.Records, st.Written, st.Dropped
		}, s.clock))
}

// promLog writes errors of a scrape of ours to the log.
type promLog struct{ log *slog.Logger }

func (p promLog) Println(v ...any) {
	p.log.Warn("metrics", "error", strings.TrimSpace(fmt.Sprintln(v...)))
}

// consolePools lists the pools for status and metrics.
func (s *server) consolePools() []console.Pool {
	s.mu.Lock()
	defer s.mu.Unlock()
	out := make([]console.Pool, len(s.pools))
	for i, p := range s.pools {
		out[i] = console.Pool{
			Name: p.name, Models: modelNames(&p.cfg), Adapters: adapterNames(&p.cfg), Source: p.source,
			Flow: p.flow, Observer: p.observer, KV: p.kvStates, Control: s.control(p),
		}
	}
	return out
}

// Ready says why no request can be served, nil where one can.
func (s *server) Ready() error {
	if s.stopping.Load() {
		return errors.New("the server is shutting down")
	}
	for _, p := range s.pools {
		if snap := p.taken.Load(); snap != nil && snap.Count(fleet.PhaseReady) > 0 || s.wakes(p) {
			return nil
		}
	}
	return errors.New("no replica is ready")
}

// Config returns the configuration that runs.
func (s *server) Config() *config.Config {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.cfg
}

func (s *server) configState() console.ConfigState {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.state
}

// GatewayURL is where clients connect, "" where the gateway is off.
func (s *server) GatewayURL() string {
	if s.gatewayLn == nil {
		return ""
	}
	scheme := "http"
	if s.tls != nil {
		scheme = "https"
	}
	return scheme + "://" + s.gatewayLn.Addr().String()
}

// AdminURL is the admin API, "" where it is off.
func (s *server) AdminURL() string {
	if s.adminLn == nil {
		return ""
	}
	if s.adminTLS {
		return "https://" + s.adminLn.Addr().String()
	}
	return "http://" + s.adminLn.Addr().String()
}

// Pool returns the flow and the observer of a pool, nil where there is none.
func (s *server) Pool(name string) (*flow.Flow, *observe.Observer) {
	if p := s.pool(name); p != nil {
		return p.flow, p.observer
	}
	return nil, nil
}

// pool finds a pool by its name; nil where there is none.
func (s *server) pool(name string) *livePool {
	for _, p := range s.pools {
		if p.name == name {
			return p
		}
	}
	return nil
}

// Run serves until ctx ends, then drains: it says that it is not ready, waits for
// what runs, up to a limit, and closes. It returns an error only where a listener
// broke.
func (s *server) Run(ctx context.Context) error {
	watch, stopWatch := context.WithCancel(context.WithoutCancel(ctx))
	var wg sync.WaitGroup
	defer wg.Wait()
	defer stopWatch()
	for _, p := range s.pools {
		wg.Go(func() { _ = p.observer.Run(watch) })
	}
	wg.Go(func() { s.watchKeys(watch) })
	wg.Go(func() { s.endStreams(watch) })
	wg.Go(func() { s.meter.Run(watch) })
	for _, run := range s.background {
		wg.Go(func() { run(watch) })
	}
	s.followKube(watch, &wg)
	broken := make(chan error, 3)
	gw := gateway.NewServer(s.front.h, s.tls, s.log)
	serve := func(name string, run func() error) {
		wg.Go(func() {
			if err := run(); !errors.Is(err, http.ErrServerClosed) {
				broken <- fmt.Errorf("%s: %w", name, err)
			}
		})
	}
	if s.gatewayLn != nil {
		serve("gateway", func() error {
			if tookOver() {
				s.untilReady(watch) // what comes waits in the socket, or goes to the old process
			}
			if s.tls != nil {
				return gw.ServeTLS(s.gatewayLn, "", "")
			}
			return gw.Serve(s.gatewayLn)
		})
	}
	if s.epp != nil {
		serve("endpoint picker", s.epp.serve)
	}
	admin := &http.Server{
		Handler: s.admin, ReadHeaderTimeout: 10 * time.Second, IdleTimeout: 2 * time.Minute, MaxHeaderBytes: 64 << 10,
		ErrorLog: slog.NewLogLogger(s.log.Handler(), slog.LevelDebug),
	}
	if s.adminLn != nil {
		serve("admin API", func() error { return admin.Serve(s.adminLn) })
	}
	s.log.Info("serving", "gateway", s.GatewayURL(), "epp", s.EPPAddr(), "admin", s.AdminURL(), "pools", len(s.pools), "config", s.Config().Digest())
	var err error
	select {
	case <-ctx.Done():
	case err = <-broken:
	}
	s.drain(gw)
	admin.Close()
	stopWatch()
	s.Close()
	return err
}

// drain stops the gateway without cutting what runs: not ready first, so that load
// balancers look elsewhere, then no new connections, then the wait for the rest.
func (s *server) drain(gw *gateway.Server) {
	s.stopping.Store(true)
	s.front.h.Drain()
	s.epp.observed() // not ready any more
	s.log.Info("shutting down", "in_flight", s.inFlight(), "timeout", s.o.DrainTimeout.String())
	if s.o.DrainDelay > 0 {
		time.Sleep(s.o.DrainDelay)
	}
	ctx, cancel := context.WithTimeout(context.Background(), s.o.DrainTimeout)
	defer cancel()
	done := s.epp.drain(ctx)
	defer func() { <-done }()
	if err := gw.Shutdown(ctx); err != nil {
		s.log.Warn("cutting what still runs", "in_flight", s.inFlight())
		gw.Close()
	}
}

func (s *server) inFlight() int {
	n := 0
	for _, p := range s.consolePools() {
		t := p.Flow.Stats().Totals
		n += t.InFlight + t.Held
	}
	return n
}

// Close ends what buildServer made. Run calls it; a second call does nothing.
func (s *server) Close() {
	for _, l := range []net.Listener{s.gatewayLn, s.adminLn, s.scrapeLn, s.shareLn} {
		if l != nil {
			l.Close()
		}
	}
	s.epp.close()
	s.cluster.close()
	for _, p := range s.pools {
		p.flow.Close()
	}
	if s.front != nil {
		s.front.close()
	}
	if s.journal != nil {
		s.journal.Close()
	}
	s.recording.prompts.Close()
	s.audit.Close()
	if s.scaleLog != nil {
		s.scaleLog.Close()
	}
}
