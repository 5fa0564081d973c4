// SPDX-License-Identifier: Apache-2.0

package flow

import (
	"time"

	"github.com/penstock-project/penstock/internal/dispatch"
	"github.com/penstock-project/penstock/internal/fleet"
	"github.com/penstock-project/penstock/internal/route"
)

// A Watcher is told of every request of a pool. Its methods must not block and must
// not call the Flow; they may be called from several goroutines at a time.
type Watcher interface {
	// Arrived says that r came at now. cached are the prompt tokens that the chosen
	// replica is expected to have, cold says that no replica could take it: it is
	// held, or refused where the pool does not hold.
	Arrived(now fleet.Time, r *fleet.Request, cached int, cold bool)
	// Ended says what became of a request.
	Ended(e Ending)
}

// Ending is the end of a request in the moments that objectives are about.
type Ending struct {
	Kind           fleet.OutcomeKind
	Arrived, First fleet.Time // First 0: no first token was seen
	End            fleet.Time
	Output         int           // tokens; negative unknown
	Held           time.Duration // in the router
	Cold           bool          // no replica could take it when it came
}

// Watch sets who is told of requests; nil: nobody.
func (f *Flow) Watch(w Watcher) {
	if w == nil {
		f.watcher.Store(nil)
		return
	}
	f.watcher.Store(&w)
}

// arrived tells the watcher of an arrival, once what is returned is called: outside
// of the lock.
func (f *Flow) arrived(now fleet.Time, r *fleet.Request, v *dispatch.Verdict) func() {
	w := f.watcher.Load()
	if w == nil || v.Kind == dispatch.Refused && v.Cause != route.DropNone && !wanting(v.Cause) {
		return func() {}
	}
	cached := 0
	if v.Kind == dispatch.Sent && v.Decision != nil {
		cached = v.Decision.PredictedCached
	}
	cold := v.Reason != "" && v.Late == 0
	return func() { (*w).Arrived(now, r, cached, cold) }
}

// wanting reports whether a refusal for this cause is a request that more replicas
// would have served.
func wanting(cause route.Drop) bool {
	switch cause {
	case route.DropModel, route.DropAdapter, route.DropRole, route.DropSubset:
		return false
	}
	return true
}

// ended tells the watcher of an end; the lock is held.
func (f *Flow) ended(g *Grant, o fleet.Outcome) {
	w := f.watcher.Load()
	if w == nil {
		return
	}
	(*w).Ended(Ending{Kind: o.Kind, Arrived: g.arrived, First: o.FirstToken, End: o.End, Output: o.OutputTokens, Held: g.held, Cold: g.cold})
}

// SetHold changes how long and how many requests wait while no replica takes them.
func (f *Flow) SetHold(h dispatch.Hold) {
	f.mu.Lock()
	defer f.mu.Unlock()
	if !f.closed {
		f.happen(f.clock(), dispatch.Event{Kind: dispatch.EventHold, Hold: h})
	}
}

// SetReadyAt says when a replica is expected to be ready, for Retry-After; 0 where
// that is unknown.
func (f *Flow) SetReadyAt(t fleet.Time) { f.readyAt.Store(int64(t)) }

// Cold reports whether no replica was ready in the last snapshot.
func (f *Flow) Cold() bool { return !f.warm.Load() }

// Waiting counts what is held, against an objective for the first token.
func (f *Flow) Waiting(objective time.Duration) dispatch.Waiting {
	f.mu.Lock()
	defer f.mu.Unlock()
	return f.d.Waiting(f.clock(), objective)
}

// noReplica says why a request is refused and when to come again: when the next
// replica is expected, where the refusal is for want of one.
func (f *Flow) noReplica(cause route.Drop, reason string) *NoReplicaError {
	e := noReplica(cause, reason)
	if at := fleet.Time(f.readyAt.Load()); at != 0 && wanting(cause) {
		if left := at.Sub(f.clock()); left > 0 {
			e.RetryAfter = left.Round(time.Second) + time.Second
		}
	}
	return e
}
