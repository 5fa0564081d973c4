// SPDX-License-Identifier: Apache-2.0

// Package replica is a vLLM-compatible HTTP server on one simulated engine replica
// and a wall clock: the fleet of the demo, of tests, and of anyone without an
// accelerator. It speaks the wire format of vLLM 0.32 and says that it is simulated
// in its Server header and in /version.
//
// One goroutine a replica drives the engine and wakes those requests that have new
// tokens; each request writes its own answer. Text is deterministic filler, the
// tokenizer is its own, and times, batching, caching and memory are those of package
// engine.
package replica

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"sync"
	"time"

	"github.com/penstock-project/penstock/internal/engine"
	"github.com/penstock-project/penstock/internal/fleet"
)

// Options describe one replica. Only Models is needed.
type Options struct {
	Models  []string       // names that it serves; the first is the one that answers carry by default
	Profile engine.Profile // the zero Profile means engine.DefaultProfile
	Speed   float64        // how many times faster than the modelled accelerator; 0 means 1
	Listen  string         // host:port of Start; port 0 picks one

	MaxSeqs     int // overrides the profile where > 0
	KVTokens    int // overrides the profile where > 0
	MaxModelLen int // overrides the profile where > 0
	// MaxQueued refuses requests with 503 when so many are running or waiting; 0: no limit.
	MaxQueued int
	LoRA      []string // adapters that are loaded at the start

	Startup         time.Duration // wall time from Start until the port answers
	ShutdownTimeout time.Duration // how long Shutdown lets running answers go on
	KeepAlive       time.Duration // idle connections are closed after it; 0: 5 s, as the real server does
	StreamInterval  int           // tokens a streamed chunk, at least; 0 means 1
	Quantum         time.Duration // least time between two looks at the engine while it streams; 0 means 2 ms
	OutputMean      float64       // tokens that the model answers on average when nothing cuts it short; 0 means 180

	SleepMode bool // answers /sleep and /wake_up

	// Ranks is how many data-parallel ranks share the address, each with the cache and
	// the seats of the profile; 0 means 1. A request goes to the one that it names in
	// X-data-parallel-rank, else to the one with the least load; IgnoreRank leaves the
	// header unread, as other servers do.
	Ranks      int
	IgnoreRank bool

	KVEvents string    // ZMQ endpoint of the KV event stream; "" off
	KVReplay string    // ZMQ endpoint where readers ask for events again; "" off
	Log      io.Writer // start-up and shutdown log; nil discards
}

// Server is one replica. Its methods are safe for concurrent use.
type Server struct {
	opt     Options
	profile engine.Profile
	models  []string

	mu       sync.Mutex
	ranks    []*rank
	turnOf   int // rank whose turn it is among equals
	clock    clock
	jobs     map[uint64]*job
	nextID   uint64
	draining bool
	asleep   int  // level of sleep; 0: awake
	broken   bool // draining time is over: answers that still run end with an error
	adapters adapterSet
	states   []engine.AdapterState
	born     time.Time
	fds      int // open files at fdsAt
	fdsAt    time.Time

	wake    chan struct{}
	stop    chan struct{}
	done    chan struct{}
	ended   sync.Once
	mux     *http.ServeMux
	http    httpCounters
	weather weather
	idle    idleCloser

	lnMu   sync.Mutex
	ln     net.Listener
	srv    *http.Server
	listen string
}

// New makes a replica whose engine runs at once; it listens only after Start. The
// caller has to Close it.
func New(o Options) (*Server, error) {
	if len(o.Models) == 0 {
		return nil, errors.New("replica: no model name")
	}
	p := o.Profile
	if p.BlockTokens == 0 {
		p, _ = engine.Lookup(engine.DefaultProfile)
	}
	for _, v := range []struct {
		to   *int
		from int
	}{{&p.MaxSeqs, o.MaxSeqs}, {&p.KVTokens, o.KVTokens}, {&p.MaxModelLen, o.MaxModelLen}} {
		if v.from > 0 {
			*v.to = v.from
		}
	}
	p.ChunkTokens = max(p.ChunkTokens, p.MaxSeqs+1)
	// What does not fit into the cache could never run; the real engine refuses to start.
	p.MaxModelLen = min(p.MaxModelLen, p.Blocks()*p.BlockTokens)
	if err := p.Validate(); err != nil {
		return nil, fmt.Errorf("replica: %w", err)
	}
	setDefault(&o.Speed, 1)
	setDefault(&o.KeepAlive, 5*time.Second)
	setDefault(&o.StreamInterval, 1)
	setDefault(&o.Quantum, 2*time.Millisecond)
	setDefault(&o.OutputMean, 180)
	if o.Log == nil {
		o.Log = io.Discard
	}
	s := &Server{
		opt: o, profile: p, models: o.Models, jobs: map[uint64]*job{}, clock: newClock(o.Speed),
		wake: make(chan struct{}, 1), stop: make(chan struct{}), done: make(chan struct{}),
		born: time.Now(), listen: o.Listen,
	}
	s.adapters.reset(o.LoRA, s.born)
	s.idle.init(o.KeepAlive)
	s.weather.init()
	s.routes()
	for n := range max(1, o.Ranks) {
		r := newRank(n, p, o.KVEvents != "")
		if err := r.openEvents(&o, p.BlockTokens); err != nil {
			s.closeEvents()
			return nil, fmt.Errorf("replica: KV events: %w", err)
		}
		s.ranks = append(s.ranks, r)
	}
	go s.loop()
	return s, nil
}

func setDefault[T comparable](v *T, def T) {
	var zero T
	if *v == zero {
		*v = def
	}
}

// Profile returns the profile in force, with the overrides of the options.
func (s *Server) Profile() engine.Profile { return s.profile }

// Stats returns the engine's state now, all ranks together.
func (s *Server) Stats() engine.Stats {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.stats(s.clock.at(time.Now()))
}

// InFlight is the number of requests that are running or waiting.
func (s *Server) InFlight() int {
	s.mu.Lock()
	defer s.mu.Unlock()
	return len(s.jobs)
}

// Close stops everything at once: listener, connections, engine.
func (s *Server) Close() {
	s.weather.set(Faults{}) // whoever is held must be able to leave
	s.closeListener(true)
	s.ended.Do(func() { close(s.stop) })
	<-s.done
	s.closeEvents()
}

func (s *Server) closeEvents() {
	for _, r := range s.ranks {
		if r.events != nil {
			r.events.close()
		}
	}
}

// Shutdown is what the real server does on SIGTERM: /health stays 200, new work is
// refused with 500, running answers go on for the shutdown timeout, what runs then
// ends with an error event. It returns when all is over.
func (s *Server) Shutdown(ctx context.Context) {
	s.logf("Shutdown asked for; %d requests in flight, at most %v for them", s.InFlight(), s.opt.ShutdownTimeout)
	s.mu.Lock()
	s.draining = true
	s.mu.Unlock()
	deadline := time.NewTimer(s.opt.ShutdownTimeout)
	defer deadline.Stop()
	tick := time.NewTicker(20 * time.Millisecond)
	defer tick.Stop()
	for s.InFlight() > 0 {
		select {
		case <-tick.C:
			continue
		case <-deadline.C:
		case <-ctx.Done():
		}
		break
	}
	s.mu.Lock()
	s.broken = true
	for _, j := range s.jobs {
		j.lose()
	}
	s.mu.Unlock()
	grace, cancel := context.WithTimeout(ctx, time.Second)
	defer cancel()
	s.lnMu.Lock()
	srv := s.srv
	s.lnMu.Unlock()
	if srv != nil {
		_ = srv.Shutdown(grace) // what does not end in time is cut by Close
	}
	s.Close()
	s.logf("Shut down")
}

// now is the engine's time. The caller holds the lock.
func (s *Server) now() fleet.Time { return s.clock.at(time.Now()) }
