// SPDX-License-Identifier: Apache-2.0

package procs

import (
	"context"
	"fmt"
	"net/http"
	"os"
	"slices"
	"syscall"
	"time"

	"github.com/penstock-project/penstock/internal/fleet"
)

// state is where a process is between its start and its end.
type state uint8

const (
	stateRunning  state = iota // wanted, whether it is ready or not
	stateDraining              // gets nothing new, ends what it has
	stateAsleep                // its weights are off the accelerator
	stateStopping              // had its signal
	stateGone
)

var stateNames = [...]string{"running", "draining", "asleep", "stopping", "gone"}

func (s state) String() string { return stateNames[s] }

// proc is one process. The goroutine of Run owns it; p.mu guards what others read.
type proc struct {
	id      string
	port    int
	url     string
	pid     int
	born    uint64 // of the process by the kernel's own count, so that a reused pid shows
	started time.Time
	adopted bool
	done    chan struct{} // closed when it ended; nil where it is not our child
	exit    string        // how it ended; read after done is closed
	logPath string

	state   state
	why     string    // it drains or ends
	since   time.Time // of the state
	quiet   time.Time // since when nothing was in flight while it drained; zero: something is
	killed  bool
	ready   bool // it has been ready, and is
	was     bool // it has been ready
	waking  bool // a sleeping engine was asked to wake up
	phase   fleet.Phase
	stage   string
	logSize int64 // of the log when it was last analysed
}

const (
	tickEvery = 200 * time.Millisecond
	// settle is how long nothing may be in flight before the signal: a request that
	// was sent in the moment of the drain must have shown itself.
	settle = 300 * time.Millisecond
	// loopAfter failed starts in a row are a crash loop.
	loopAfter = 3
	// calm is how long a process must have lived for its end not to count as a failed
	// start.
	calm = 30 * time.Second
	// hungAfter is how long a replica that has served may be dead to the world before
	// it is ended and replaced.
	hungAfter = 60 * time.Second
)

// pauseAfter is the wait before the next start after so many failures in a row:
// 1 s, doubling, at most 5 min.
func pauseAfter(failures int) time.Duration {
	return min(time.Second<<min(max(failures-1, 0), 10), 5*time.Minute)
}

// Run keeps the number of processes what was asked for, until ctx ends; then it ends
// them, or leaves them where Keep is set. It must run once.
func (p *Pool) Run(ctx context.Context) {
	if p.temp {
		dir, err := os.MkdirTemp("", "penstock-"+p.o.Pool+"-")
		if err != nil {
			p.log.Error("no directory for the logs of replicas; none is started", "error", err)
			<-ctx.Done()
			return
		}
		p.mu.Lock()
		p.o.Dir = dir
		p.mu.Unlock()
	}
	starter := make(chan func())
	stop := make(chan struct{})
	go serveStarts(starter, stop)
	p.mu.Lock()
	p.starter, p.running = starter, true
	p.mu.Unlock()
	tick := time.NewTicker(tickEvery)
	defer tick.Stop()
	for ctx.Err() == nil {
		p.step(time.Now())
		select {
		case <-ctx.Done():
		case <-tick.C:
		case <-p.wake:
		}
	}
	p.close()
	close(stop)
}

// step looks at every process once and does what is due.
func (p *Pool) step(now time.Time) {
	p.mu.Lock()
	p.reap(now)
	for _, r := range p.procs {
		p.look(r)
	}
	p.shrink(now)
	for _, r := range slices.Clone(p.procs) {
		p.advance(r, now)
	}
	starts := p.missing(now)
	p.mu.Unlock()
	for range starts {
		if !p.start(now) {
			break
		}
	}
	p.save()
}

// reap takes out what has ended.
func (p *Pool) reap(now time.Time) {
	kept := p.procs[:0]
	changed := false
	for _, r := range p.procs {
		if alive(r) {
			kept = append(kept, r)
			continue
		}
		changed = true
		r.signal(syscall.SIGKILL) // workers that it left behind
		p.ended(r, now)
		r.state = stateGone
	}
	clear(p.procs[len(kept):])
	p.procs = kept
	if changed {
		p.publish()
	}
}

// ended notes how a process ended.
func (p *Pool) ended(r *proc, now time.Time) {
	lived := now.Sub(r.started)
	if r.state != stateRunning {
		p.log.Info("replica process ended", "replica", r.id, "pid", r.pid, "after", lived.Round(time.Second).String(), "why", r.why)
		return
	}
	why := p.verdict(r)
	p.lastFail = why
	if r.was && lived > calm {
		p.failures = 0 // it served for a while: a new one is tried at once
		p.log.Warn("replica process died", "replica", r.id, "pid", r.pid, "exit", r.exit, "reason", why)
		return
	}
	p.failures++
	p.retryAt = now.Add(p.o.pause(p.failures))
	p.log.Error("replica process failed to start", "replica", r.id, "pid", r.pid, "exit", r.exit, "failures", p.failures,
		"next_try", p.retryAt.UTC().Format(time.RFC3339), "log", r.logPath, "reason", why)
}

// look brings what is known of a process up to date.
func (p *Pool) look(r *proc) {
	if r.state != stateRunning {
		return
	}
	seen, ok := p.o.Seen(r.id)
	switch {
	case ok && seen.Phase == fleet.PhaseReady:
		if !r.was {
			p.failures, p.lastFail = 0, ""
			p.log.Info("replica ready", "replica", r.id, "after", time.Since(r.started).Round(10*time.Millisecond).String())
		}
		r.ready, r.was, r.waking, r.phase, r.stage = true, true, false, fleet.PhaseReady, ""
		return
	case ok && seen.Phase == fleet.PhaseFailed && r.was:
		r.ready, r.phase, r.stage = false, fleet.PhaseFailed, "it does not answer"
		if now := p.o.Clock(); seen.Since != 0 && now.Sub(seen.Since) > hungAfter {
			p.lastFail = "it ran and did not answer for " + hungAfter.String()
			p.log.Error("ending a replica that does not answer", "replica", r.id, "pid", r.pid)
			r.why = "it does not answer"
			p.terminate(r, time.Now())
		}
		return
	}
	r.ready = false
	if !r.was {
		p.stages(r)
	} else if r.phase == fleet.PhaseReady {
		r.phase = fleet.PhaseLoading
	}
}

// shrink drains what is too much, victims that were named first, then what is not
// ready, then what has the least in flight.
func (p *Pool) shrink(now time.Time) {
	extra := p.live() - p.want
	if extra <= 0 {
		return
	}
	var live []*proc
	for _, r := range p.procs {
		if r.state == stateRunning {
			live = append(live, r)
		}
	}
	rank := func(r *proc) (named, phase, flight int) {
		named = slices.Index(p.victims, r.id)
		if named < 0 {
			named = len(p.victims)
		}
		if s, ok := p.o.Seen(r.id); ok {
			flight = s.InFlight
		}
		if r.ready {
			phase = 1
		}
		return named, phase, flight
	}
	slices.SortStableFunc(live, func(a, b *proc) int {
		an, ap, af := rank(a)
		bn, bp, bf := rank(b)
		switch {
		case an != bn:
			return an - bn
		case ap != bp:
			return ap - bp
		case af != bf:
			return af - bf
		}
		return b.started.Compare(a.started) // the youngest has the coldest cache
	})
	for _, r := range live[:extra] {
		p.enter(r, stateDraining, "scaled down", now)
		p.log.Info("replica drains", "replica", r.id, "limit", p.o.DrainLimit.String())
	}
	p.publish()
}

func (p *Pool) enter(r *proc, s state, why string, now time.Time) {
	r.state, r.why, r.since, r.quiet = s, why, now, time.Time{}
	p.dirty = true
}

// advance moves a process that is on its way out.
func (p *Pool) advance(r *proc, now time.Time) {
	switch r.state {
	case stateDraining:
		if !r.was {
			p.terminate(r, now) // it never had a request
			return
		}
		seen, ok := p.o.Seen(r.id)
		busy := ok && (seen.InFlight > 0 || seen.Phase == fleet.PhaseReady)
		switch {
		case now.Sub(r.since) >= p.o.DrainLimit:
			p.log.Warn("the drain took too long; ending the replica with what it has", "replica", r.id, "in_flight", seen.InFlight)
			p.terminate(r, now)
		case busy:
			r.quiet = time.Time{}
		case r.quiet.IsZero():
			r.quiet = now
		case now.Sub(r.quiet) >= settle:
			p.retire(r, now)
		}
	case stateAsleep:
		if now.Sub(r.since) >= p.o.Sleep {
			r.why = "slept long enough"
			p.terminate(r, now)
		}
	case stateStopping:
		if now.Sub(r.since) >= p.o.StopGrace && !r.killed {
			r.killed = true
			p.log.Warn("the replica ignores SIGTERM; killing it", "replica", r.id, "pid", r.pid)
			r.signal(syscall.SIGKILL)
		}
	}
}

// retire sends a drained replica to sleep where that is wanted and works, else it
// ends it.
func (p *Pool) retire(r *proc, now time.Time) {
	if p.o.Sleep > 0 && p.call(r, "/sleep?level=1") {
		p.enter(r, stateAsleep, "not needed", now)
		r.ready = false
		p.log.Info("replica sleeps", "replica", r.id, "at_most", p.o.Sleep.String())
		p.publish()
		return
	}
	p.terminate(r, now)
}

// call posts to a replica; it holds p.mu, so the engine's own limit on it is short.
func (p *Pool) call(r *proc, path string) bool {
	ctx, cancel := context.WithTimeout(context.Background(), 10*time.Second)
	defer cancel()
	req, err := http.NewRequestWithContext(ctx, http.MethodPost, r.url+path, nil)
	if err != nil {
		return false
	}
	p.mu.Unlock()
	res, err := p.o.client.Do(req)
	p.mu.Lock()
	if err != nil {
		p.log.Warn("replica does not take the call", "replica", r.id, "path", path, "error", err)
		return false
	}
	res.Body.Close()
	if res.StatusCode/100 != 2 {
		p.log.Warn("replica refuses the call", "replica", r.id, "path", path, "status", res.StatusCode)
		return false
	}
	return true
}

// terminate asks a process to end.
func (p *Pool) terminate(r *proc, now time.Time) {
	p.enter(r, stateStopping, r.why, now)
	r.signal(syscall.SIGTERM)
	p.publish()
}

// missing takes back what drains and wakes what sleeps, and returns how many must be
// started beside.
func (p *Pool) missing(now time.Time) int {
	lack := p.want - p.live()
	for _, s := range []state{stateDraining, stateAsleep} {
		for i := len(p.procs) - 1; i >= 0 && lack > 0; i-- {
			r := p.procs[i]
			if r.state != s || s == stateAsleep && !p.call(r, "/wake_up") {
				continue
			}
			p.enter(r, stateRunning, "", now)
			r.waking = s == stateAsleep
			if r.waking {
				r.phase = fleet.PhaseLoading
			}
			p.log.Info("replica taken back", "replica", r.id, "from", s.String())
			p.publish()
			lack--
		}
	}
	if now.Before(p.retryAt) && p.failures > 0 {
		return 0
	}
	if p.failures > 0 {
		lack = min(lack, 1) // one tries; the others follow when it is ready
		if slices.ContainsFunc(p.procs, func(r *proc) bool { return r.state == stateRunning && !r.was }) {
			return 0
		}
	}
	return max(0, min(lack, p.o.Max-len(p.procs)))
}

// close ends every process, or leaves them to the next Penstock.
func (p *Pool) close() {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.o.Keep {
		p.dirty = true
		p.mu.Unlock()
		p.save()
		p.mu.Lock()
		p.log.Info("replica processes go on without this Penstock", "count", len(p.procs), "dir", p.o.Dir)
		return
	}
	now := time.Now()
	for _, r := range p.procs {
		if r.state != stateStopping {
			r.why = "Penstock ends"
			p.terminate(r, now)
		}
	}
	for deadline := now.Add(p.o.StopGrace); len(p.procs) > 0; {
		p.mu.Unlock()
		time.Sleep(10 * time.Millisecond)
		p.mu.Lock()
		now = time.Now()
		p.reap(now)
		if now.After(deadline) {
			for _, r := range p.procs {
				r.signal(syscall.SIGKILL)
			}
		}
	}
	p.dirty = true
	p.mu.Unlock()
	p.save()
	p.mu.Lock()
	if p.temp {
		os.RemoveAll(p.o.Dir)
	}
}

// Fault says what stands in the way of starts, for status; "" nothing.
func (p *Pool) Fault() string {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.trouble()
}

func exitText(s *os.ProcessState) string {
	if s == nil {
		return "ended"
	}
	if w, ok := s.Sys().(syscall.WaitStatus); ok && w.Signaled() {
		return fmt.Sprintf("signal %d (%s)", int(w.Signal()), w.Signal())
	}
	return fmt.Sprintf("exit status %d", s.ExitCode())
}
