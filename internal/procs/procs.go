// SPDX-License-Identifier: Apache-2.0

// Package procs is the process pool: it starts, watches, drains and ends replicas
// that are processes on this machine, by a template of their command.
//
// One goroutine (Run) owns the life of every process; the rest of the program sees a
// flow.Hand, which is told how many there should be, and an observe.Source, which
// lists where they are. A process that is to go gets no new request, ends what it
// has, and only then its signal. Each runs in a process group of its own, so that
// workers that it started end with it.
package procs

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net/http"
	"os"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/penstock-project/penstock/internal/fleet"
	"github.com/penstock-project/penstock/internal/flow"
	"github.com/penstock-project/penstock/internal/observe"
)

// Options of a Pool. Pool and Command are needed.
type Options struct {
	Pool string
	// Command is the program and its arguments. {port}, {host}, {url}, {model}, {pool}
	// and {id} stand for what the process is given.
	Command []string
	Model   string // for {model}
	Max     int    // most processes at a time, draining ones included; 0: 8
	// Dir keeps logs and the file that lets a later Penstock find the processes of
	// one that died. "": a directory that is thrown away, and processes that end with
	// this one.
	Dir string
	// Keep leaves the processes running when Run ends, for the next Penstock to adopt.
	// It needs Dir.
	Keep       bool
	DrainLimit time.Duration // longest wait for requests in flight before the signal; 0: 10 min
	StopGrace  time.Duration // from SIGTERM to SIGKILL; 0: 30 s
	// Sleep is how long a replica that is not needed sleeps (its weights off the
	// accelerator) before it is ended; 0: it is ended at once.
	Sleep time.Duration
	// Seen tells what the rest of the program knows of a replica; nil: nothing. It must
	// not call the Pool.
	Seen func(id string) (Seen, bool)
	// Analyse reads the log of a start; nil: stages are not told apart.
	Analyse func(log []byte) Start
	Clock   func() fleet.Time // nil: the wall clock
	Log     *slog.Logger      // nil: discard
	client  *http.Client
	pause   func(failures int) time.Duration // nil: pauseAfter; tests shorten it
}

// Seen is what is known of a replica from the outside.
type Seen struct {
	Phase    fleet.Phase
	Since    fleet.Time // of the phase
	InFlight int        // requests that it has, by whoever counts most
	At       fleet.Time // of the count
}

// Start is what the log of a starting process says.
type Start struct {
	Phase fleet.Phase // loading or warming
	Stage string      // the stage it is in, in the words of diagnosis; "" unknown
	Fault string      // why it failed, with what to do; "" nothing known
}

// Pool is the processes of one pool. All methods are safe for concurrent use.
type Pool struct {
	o    Options
	log  *slog.Logger
	wake chan struct{}

	mu       sync.Mutex
	procs    []*proc // oldest first
	want     int
	victims  []string
	next     int // number of the next process
	failures int // starts in a row that failed
	retryAt  time.Time
	lastFail string
	listed   chan struct{} // closed when the list of targets changes
	running  bool
	dirty    bool // the state file is behind
	temp     bool // dir is thrown away
	starter  chan func()
}

// New prepares a pool and adopts, or ends, what an earlier Penstock left behind in
// Dir. Nothing is started before Run. An error means that Dir cannot be used or that
// another Penstock uses it.
func New(o Options) (*Pool, error) {
	if len(o.Command) == 0 {
		return nil, errors.New("procs: no command")
	}
	if o.Keep && o.Dir == "" {
		return nil, errors.New("procs: to keep processes needs a directory for their state")
	}
	o.Max = cmp.Or(o.Max, 8)
	o.DrainLimit = cmp.Or(o.DrainLimit, 10*time.Minute)
	o.StopGrace = cmp.Or(o.StopGrace, 30*time.Second)
	if o.Log == nil {
		o.Log = slog.New(slog.DiscardHandler)
	}
	if o.Clock == nil {
		o.Clock = func() fleet.Time { return fleet.At(time.Now()) }
	}
	if o.Seen == nil {
		o.Seen = func(string) (Seen, bool) { return Seen{}, false }
	}
	if o.pause == nil {
		o.pause = pauseAfter
	}
	if o.client == nil {
		o.client = &http.Client{Timeout: 30 * time.Second}
	}
	p := &Pool{o: o, log: o.Log.With("pool", o.Pool), wake: make(chan struct{}, 1), listed: make(chan struct{})}
	if o.Dir == "" {
		p.temp = true
		return p, nil
	}
	if err := os.MkdirAll(o.Dir, 0o750); err != nil {
		return nil, err
	}
	if err := p.adopt(); err != nil {
		return nil, err
	}
	return p, nil
}

// Name implements flow.Hand.
func (p *Pool) Name() string { return "process" }

// Apply implements flow.Hand. It returns at once; Run does the work. More than Max
// are never started, whatever is asked for.
func (p *Pool) Apply(_ context.Context, want int, victims []string) error {
	if want < 0 {
		return fmt.Errorf("procs: %d replicas are not possible", want)
	}
	p.mu.Lock()
	if want != p.want {
		p.want, p.dirty = want, true
		p.log.Info("replicas asked for", "want", want, "there", p.live())
	}
	p.victims = append(p.victims[:0], victims...)
	p.mu.Unlock()
	p.kick()
	return nil
}

// State implements flow.Hand.
func (p *Pool) State(context.Context) (flow.HandState, error) {
	p.mu.Lock()
	defer p.mu.Unlock()
	s := flow.HandState{Replicas: len(p.procs), Wanted: p.want}
	for _, r := range p.procs {
		if r.state != stateRunning || r.ready {
			continue
		}
		s.Pending = append(s.Pending, flow.Pending{ID: r.id, Phase: r.phase.String(), Since: fleet.At(r.started), Reason: r.stage})
	}
	// What is missing waits for the pause after a failed start.
	reason := p.trouble()
	for i := p.live(); i < min(p.want, p.o.Max) && reason != ""; i++ {
		s.Pending = append(s.Pending, flow.Pending{
			ID: fmt.Sprintf("%s-waits-%d", p.o.Pool, i), Phase: fleet.PhasePending.String(), Since: p.o.Clock(), Reason: reason,
		})
	}
	switch {
	case p.failures >= loopAfter:
		s.Blocked = reason
	case p.want > p.o.Max:
		s.Blocked = fmt.Sprintf("replicas.process.max is %d", p.o.Max)
	}
	return s, nil
}

// trouble says why the next start waits; "" where it does not.
func (p *Pool) trouble() string {
	if p.failures == 0 {
		return ""
	}
	s := fmt.Sprintf("%d starts in a row failed, the next is tried at %s: %s", p.failures, p.retryAt.UTC().Format("15:04:05"), p.lastFail)
	if p.failures >= loopAfter {
		s = "crash loop: " + s
	}
	return s
}

// live is how many processes are there that are not on their way out.
func (p *Pool) live() int {
	n := 0
	for _, r := range p.procs {
		if r.state == stateRunning {
			n++
		}
	}
	return n
}

// String implements observe.Source.
func (p *Pool) String() string { return "process " + p.o.Command[0] }

// Watch returns the targets at present and a channel that is closed when they
// change.
func (p *Pool) watch() ([]observe.Target, <-chan struct{}) {
	p.mu.Lock()
	defer p.mu.Unlock()
	var list []observe.Target
	for _, r := range p.procs {
		t := observe.Target{ID: r.id, URL: r.url, Rank: -1}
		switch r.state {
		case stateDraining, stateStopping:
			t.Draining, t.Reason = true, r.why
		case stateGone:
			continue
		}
		list = append(list, t)
	}
	return list, p.listed
}

// Source returns the pool as a source of replicas.
func (p *Pool) Source() observe.Source { return source{p} }

type source struct{ p *Pool }

// Run implements observe.Source.
func (s source) Run(ctx context.Context, up func([]observe.Target)) error {
	for {
		list, changed := s.p.watch()
		up(list)
		select {
		case <-ctx.Done():
			return ctx.Err()
		case <-changed:
		}
	}
}

func (s source) String() string { return s.p.String() }

// publish tells sources that the list changed; p.mu is held.
func (p *Pool) publish() {
	close(p.listed)
	p.listed = make(chan struct{})
	p.dirty = true
}

func (p *Pool) kick() {
	select {
	case p.wake <- struct{}{}:
	default:
	}
}

// Info is one process, for people and tests.
type Info struct {
	ID, URL, Phase, Stage, Log, Why string
	PID, Port                       int
	Ready, Adopted                  bool
	State                           string // running, draining, stopping, asleep
}

// List shows the processes, oldest first.
func (p *Pool) List() []Info {
	p.mu.Lock()
	defer p.mu.Unlock()
	var out []Info
	for _, r := range p.procs {
		out = append(out, Info{ID: r.id, URL: r.url, Phase: r.phase.String(), Stage: r.stage, Log: r.logPath, Why: r.why, PID: r.pid, Port: r.port,
			Ready: r.ready, Adopted: r.adopted, State: r.state.String()})
	}
	return out
}

// fill writes the values of a process into the template.
func (p *Pool) fill(r *proc) []string {
	rep := strings.NewReplacer("{port}", fmt.Sprint(r.port), "{host}", host, "{url}", r.url, "{model}", p.o.Model, "{pool}", p.o.Pool, "{id}", r.id)
	out := slices.Clone(p.o.Command)
	for i := range out {
		out[i] = rep.Replace(out[i])
	}
	return out
}

// host is where processes listen: nobody but this machine needs to reach them.
const host = "127.0.0.1"
