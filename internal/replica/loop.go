// SPDX-License-Identifier: Apache-2.0

package replica

import (
	"sync/atomic"
	"time"

	"github.com/penstock-project/penstock/internal/engine"
	"github.com/penstock-project/penstock/internal/fleet"
)

// job is one request in the engine. The loop sets its progress and notifies; the
// handler that owns it reads. Fields without a comment are guarded by Server.mu.
type job struct {
	seq    engine.Seq
	asked  int // rank that the request names; -1: none
	rank   *rank
	stream bool
	tokens []uint32 // prompt and answer; kept only for KV events, as is salt
	salt   string
	notify chan struct{}

	produced atomic.Int32 // output tokens that exist
	state    atomic.Int32 // jobRunning, jobDone, jobLost
	cached   atomic.Int32 // prompt tokens found in the cache

	maxTokens   int
	reason      string
	submitted   time.Time
	admitted    time.Time
	first       time.Time
	counted     int       // tokens whose gaps are in the metrics
	countedAt   time.Time // when the last of them came
	preemptions int
}

const (
	jobRunning int32 = iota
	jobDone
	jobLost // the engine died or restarted under it
)

func (j *job) signal() {
	select {
	case j.notify <- struct{}{}:
	default:
	}
}

func (j *job) lose() {
	j.state.CompareAndSwap(jobRunning, jobLost)
	j.signal()
}

// submit hands a job to the engine. It returns false where the replica takes no more.
func (s *Server) submit(j *job) bool {
	s.mu.Lock()
	if s.opt.MaxQueued > 0 && len(s.jobs) >= s.opt.MaxQueued {
		s.ranks[0].met.rejected++
		s.mu.Unlock()
		return false
	}
	s.nextID++
	j.seq.ID = s.nextID
	j.submitted = time.Now()
	s.jobs[j.seq.ID] = j
	now := s.clock.at(j.submitted)
	if j.asked < 0 {
		j.asked = s.idlest(now)
	}
	j.rank = s.ranks[j.asked]
	if j.rank.events != nil {
		j.rank.events.learn(j)
	}
	j.rank.core.Submit(now, j.seq)
	s.mu.Unlock()
	s.poke()
	return true
}

// abandon takes a job out of the engine before its end: the client left.
func (s *Server) abandon(j *job) {
	s.mu.Lock()
	if _, ok := s.jobs[j.seq.ID]; ok {
		delete(s.jobs, j.seq.ID)
		j.rank.core.Cancel(s.now(), j.seq.ID)
		s.publish()
	}
	if j.rank.events != nil {
		j.rank.events.forget(j)
	}
	s.mu.Unlock()
	s.poke()
}

func (s *Server) poke() {
	select {
	case s.wake <- struct{}{}:
	default:
	}
}

// loop drives the engine: it sleeps until the engine's next event, or the end of the
// step while answers stream, and never longer or more often than that.
func (s *Server) loop() {
	defer close(s.done)
	timer := time.NewTimer(time.Hour)
	defer timer.Stop()
	var events []engine.Event
	for {
		var wait time.Duration
		events, wait = s.turn(events[:0])
		timer.Reset(wait)
		select {
		case <-timer.C:
		case <-s.wake:
		case <-s.stop:
			s.mu.Lock()
			for _, j := range s.jobs {
				j.lose()
			}
			s.mu.Unlock()
			return
		}
	}
}

// turn brings the engine up to now and returns how long nothing will happen.
func (s *Server) turn(events []engine.Event) ([]engine.Event, time.Duration) {
	s.mu.Lock()
	defer s.mu.Unlock()
	wall := time.Now()
	now := s.clock.at(wall)
	for _, r := range s.ranks {
		events = r.core.Advance(now, events)
	}
	for i := range events {
		s.apply(&events[i])
	}
	// Only now, so that an answer of one token brings its end with it.
	for i := range events {
		if j := s.jobs[events[i].Seq]; j != nil && events[i].Kind == engine.EventFirstToken {
			j.signal()
		}
	}
	streaming := false
	for id, j := range s.jobs {
		if !j.stream || j.first.IsZero() {
			continue
		}
		streaming = true
		if n := int32(j.rank.core.Generated(now, id)); n >= j.produced.Load()+int32(s.opt.StreamInterval) {
			j.produced.Store(n)
			j.signal()
		}
	}
	s.publish()
	s.noteAdapters(wall)
	next := fleet.Never
	for _, r := range s.ranks {
		r.met.observeSteps(r.core.Stats(now))
		next = min(next, r.core.Next())
		if streaming {
			next = min(next, r.core.StepEnd(now))
		}
	}
	at, ok := s.clock.wallOf(next)
	if !ok {
		return events, time.Hour
	}
	return events, max(at.Sub(wall), s.opt.Quantum)
}

// apply books one event of the engine. The caller holds the lock.
func (s *Server) apply(e *engine.Event) {
	j := s.jobs[e.Seq]
	if j == nil {
		return
	}
	at := time.Now()
	if w, ok := s.clock.wallOf(e.At); ok {
		at = w
	}
	switch e.Kind {
	case engine.EventAdmitted:
		if j.admitted.IsZero() {
			j.admitted = at
			j.cached.Store(int32(e.Cached))
			j.rank.met.admitted(j)
		}
	case engine.EventFirstToken:
		j.first, j.counted, j.countedAt = at, 1, at
		j.produced.Store(1)
		j.rank.met.firstToken(j)
	case engine.EventPreempted:
		j.preemptions++
	case engine.EventFinished:
		delete(s.jobs, e.Seq)
		j.rank.met.gaps(j, e.Output, at)
		j.rank.met.finished(j, e.Output, at)
		j.produced.Store(int32(e.Output))
		j.state.Store(jobDone)
		j.signal()
	case engine.EventRejected:
		delete(s.jobs, e.Seq)
		j.lose()
	}
}

// publish sends what changed in the KV cache. The caller holds the lock.
func (s *Server) publish() {
	for _, r := range s.ranks {
		if r.events != nil {
			r.events.send(r.core)
		}
	}
}

// countGaps brings the token gaps of running answers into the metrics, so that a
// scrape sees them before the answers end. The caller holds the lock.
func (s *Server) countGaps(wall time.Time, now fleet.Time) {
	for id, j := range s.jobs {
		if !j.first.IsZero() {
			j.rank.met.gaps(j, j.rank.core.Generated(now, id), wall)
		}
	}
}
