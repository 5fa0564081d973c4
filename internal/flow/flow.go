// SPDX-License-Identifier: Apache-2.0

// Package flow runs one live pool: a dispatch with its lock, its timer, the
// callers that wait for their turn and the recorder of decisions.
package flow

import (
	"context"
	"log/slog"
	"sync"
	"sync/atomic"
	"time"

	"github.com/penstock-project/penstock/internal/dispatch"
	"github.com/penstock-project/penstock/internal/fleet"
	"github.com/penstock-project/penstock/internal/route"
)

// Recorder takes the record of each request that ended. Record must not block.
// A Recorder that also implements CaptureRecorder is handed the compact form
// instead, which costs the request no allocation.
type Recorder interface {
	Record(r *route.Record)
}

// CaptureRecorder keeps captures and expands them when somebody reads. Ownership
// of c passes to the recorder; what it returns, nil or a capture that it no longer
// needs, is used again.
type CaptureRecorder interface {
	Capture(c *route.Capture) (reuse *route.Capture)
}

// Options of a Flow.
type Options struct {
	Pool     string
	Dispatch *dispatch.Dispatch // owned by the Flow from now on
	Recorder Recorder           // nil: decisions are not kept
	// Seed makes policies that draw repeatable; see SetPolicy.
	Seed uint64
	// Clock is the present; nil is the wall clock at the start of the Flow plus the
	// time that passed since, which no adjustment of the wall clock moves. It never
	// goes back.
	Clock func() fleet.Time
	Log   *slog.Logger // nil: discard
	// Alive, where set, is told that bytes of an answer came from an endpoint:
	// evidence of life while its probes time out. It must not block.
	Alive func(endpoint string)
}

// NoReplicaError says that no replica can take a request. The gateway answers 503
// with Retry-After (404 where Cause says that no replica serves the model).
type NoReplicaError struct {
	Cause      route.Drop
	Reason     string
	RetryAfter time.Duration
	Late       bool // a replica could take it, but not by its deadline
}

func (e *NoReplicaError) Error() string { return e.Reason }

// errClosed is what a pool that shuts down answers.
func errClosed() error {
	return &NoReplicaError{Cause: route.DropGone, Reason: "the router is shutting down", RetryAfter: time.Second}
}

func noReplica(cause route.Drop, reason string) *NoReplicaError {
	e := &NoReplicaError{Cause: cause, Reason: reason, RetryAfter: time.Second}
	switch cause {
	case route.DropNotReady, route.DropAsleep, route.DropGone:
		e.RetryAfter = 5 * time.Second // starts take longer than a blink
	case route.DropFailed, route.DropDraining:
		e.RetryAfter = 2 * time.Second
	}
	return e
}

// Flow is one live pool. All methods are safe for concurrent use.
type Flow struct {
	o     Options
	clock func() fleet.Time
	snap  atomic.Pointer[fleet.Snapshot]

	mu      sync.Mutex
	d       *dispatch.Dispatch
	sends   []dispatch.Send // reused by each call
	waiting map[dispatch.Ticket]*Grant
	spare   []*route.Capture
	preview route.Capture
	timer   *time.Timer
	armed   fleet.Time // when timer fires; fleet.Never: it is stopped
	closed  bool
	sink    func([]dispatch.Note) // for other routers; nil: none
	notes   []dispatch.Note
	tape    Tape // nil: nobody keeps what happens
	event   dispatch.Event

	watcher atomic.Pointer[Watcher]
	warm    atomic.Bool  // a replica was ready in the last snapshot
	readyAt atomic.Int64 // when a replica is expected that can take requests; 0 unknown
}

// spareMost bounds the captures kept for reuse: more than this many requests in
// flight at a time is a burst.
const spareMost = 1024

// New starts a pool. Close ends it.
func New(o Options) *Flow {
	if o.Clock == nil {
		start := time.Now()
		base := fleet.At(start)
		o.Clock = func() fleet.Time { return base.Add(time.Since(start)) }
	}
	if o.Log == nil {
		o.Log = slog.New(slog.DiscardHandler)
	}
	f := &Flow{o: o, clock: o.Clock, d: o.Dispatch, waiting: map[dispatch.Ticket]*Grant{}, armed: fleet.Never}
	f.timer = time.AfterFunc(time.Hour, f.tick)
	f.timer.Stop()
	return f
}

// Close refuses new requests and ends those that wait. Grants stay valid.
func (f *Flow) Close() {
	f.mu.Lock()
	defer f.mu.Unlock()
	if f.closed {
		return
	}
	f.closed = true
	f.timer.Stop()
	f.armed = fleet.Never
	for t, g := range f.waiting {
		delete(f.waiting, t)
		o := unknown(fleet.OutcomeRefused)
		o.End = f.clock()
		g.over = true
		g.finish(0, o)
		g.wake <- errClosed()
		f.happen(o.End, dispatch.Event{Kind: dispatch.EventEnd, Ticket: t, Outcome: o})
	}
}

// tick runs when the dispatch's timer is due.
func (f *Flow) tick() {
	f.mu.Lock()
	defer f.mu.Unlock()
	if f.closed {
		return
	}
	f.armed = fleet.Never
	f.happen(f.clock(), dispatch.Event{Kind: dispatch.EventTick})
}

// deliver hands sends to the callers that wait for them and sets the timer anew.
// The lock is held.
func (f *Flow) deliver(sends []dispatch.Send) {
	for i := range sends {
		s := &sends[i]
		g := f.waiting[s.Ticket]
		if g == nil {
			continue // its caller has it in hand
		}
		delete(f.waiting, s.Ticket)
		if s.Slot < 0 {
			g.over = true
			o := unknown(fleet.OutcomeRefused)
			o.End = f.clock()
			g.finish(s.Held, o)
			g.wake <- f.noReplica(s.Cause, s.Reason)
			f.ended(g, o)
			continue
		}
		g.take(s)
		g.wake <- nil
	}
	clear(sends) // keep no request alive
	f.sends = sends[:0]
	f.tell()
	f.arm()
}

// arm sets the timer to when the dispatch has something to do.
func (f *Flow) arm() {
	next := f.d.NextTimer()
	if next == f.armed || f.closed {
		return
	}
	f.armed = next
	if next == fleet.Never {
		f.timer.Stop()
		return
	}
	f.timer.Reset(max(0, next.Sub(f.clock())))
}

// Acquire decides where r goes. It returns at once, or waits while the router
// holds the request; it fails with *NoReplicaError or the context's error. The
// caller does not change r before Done.
func (f *Flow) Acquire(ctx context.Context, r *fleet.Request) (*Grant, error) {
	if err := ctx.Err(); err != nil {
		return nil, context.Cause(ctx)
	}
	g := &Grant{f: f, req: r}
	f.mu.Lock()
	if f.closed {
		f.mu.Unlock()
		return nil, errClosed()
	}
	now := f.clock()
	t, v, sends := f.arrive(now, r)
	g.ticket, g.arrived, g.cold = t, now, v.Reason != "" && v.Late == 0
	if r.Arrived != 0 && r.Arrived < now {
		g.arrived = r.Arrived
	}
	g.open(&v, now)
	tell := f.arrived(now, r, &v)
	switch v.Kind {
	case dispatch.Refused:
		g.over = true
		o := unknown(fleet.OutcomeRefused)
		o.End = now
		f.ended(g, o)
		c := g.finish(0, o)
		err := f.noReplica(v.Cause, v.Reason)
		if v.Late > 0 {
			err.Late, err.RetryAfter = true, v.Late
		}
		f.deliver(sends)
		f.mu.Unlock()
		tell()
		f.record(c)
		return nil, err
	case dispatch.Sent:
		for i := range sends {
			if sends[i].Ticket == t {
				g.take(&sends[i])
			}
		}
		f.deliver(sends)
		f.mu.Unlock()
		tell()
		return g, nil
	}
	g.wake = make(chan error, 1)
	f.waiting[t] = g
	f.deliver(sends)
	f.mu.Unlock()
	tell()
	return g.await(ctx)
}

// arrive asks the dispatch. A fault in there must not keep the lock: it would hang
// every request behind it.
func (f *Flow) arrive(now fleet.Time, r *fleet.Request) (dispatch.Ticket, dispatch.Verdict, []dispatch.Send) {
	done := false
	defer func() {
		if !done {
			f.mu.Unlock()
		}
	}()
	t, v, sends := f.do(now, dispatch.Event{Kind: dispatch.EventArrive, Request: r})
	done = true
	return t, v, sends
}

// await waits until a held request may go.
func (g *Grant) await(ctx context.Context) (*Grant, error) {
	select {
	case err := <-g.wake:
		if err == nil {
			return g, nil
		}
		g.f.record(g.capture.Swap(nil))
		return nil, err
	case <-ctx.Done():
		f := g.f
		f.mu.Lock()
		delete(f.waiting, g.ticket)
		f.mu.Unlock()
		// Whether it was still held or sent a moment ago: the client is gone.
		g.Done(unknown(fleet.OutcomeClientGone))
		f.record(g.capture.Swap(nil)) // refused at the same moment
		return nil, context.Cause(ctx)
	}
}

func unknown(k fleet.OutcomeKind) fleet.Outcome {
	return fleet.Outcome{
		Kind: k, PromptTokens: fleet.UnknownTokens, CachedTokens: fleet.UnknownTokens, OutputTokens: fleet.UnknownTokens,
	}
}

// record hands a finished capture to the recorder. The lock is not held.
func (f *Flow) record(c *route.Capture) {
	if c == nil {
		return
	}
	switch r := f.o.Recorder.(type) {
	case CaptureRecorder:
		c = r.Capture(c)
	case Recorder:
		r.Record(c.Record())
	}
	if c == nil {
		return
	}
	f.mu.Lock()
	if len(f.spare) < spareMost {
		f.spare = append(f.spare, c)
	}
	f.mu.Unlock()
}

// Observe takes a new snapshot in.
func (f *Flow) Observe(s *fleet.Snapshot) {
	f.snap.Store(s)
	f.warm.Store(s.Count(fleet.PhaseReady) > 0)
	f.mu.Lock()
	defer f.mu.Unlock()
	if !f.closed {
		f.happen(f.clock(), dispatch.Event{Kind: dispatch.EventSnapshot, Snapshot: s})
	}
}

// Snapshot returns the last snapshot; nil before the first.
func (f *Flow) Snapshot() *fleet.Snapshot { return f.snap.Load() }

// Preview returns the record of a decision on r that is not carried out.
func (f *Flow) Preview(r *fleet.Request) *route.Record {
	f.mu.Lock()
	defer f.mu.Unlock()
	c := &f.preview
	c.Reset(f.o.Pool, r)
	var d route.Decision
	f.do(f.clock(), dispatch.Event{Kind: dispatch.EventPreview, Request: r, Decision: &d})
	c.Decision.CopyFrom(&d, route.MaxCaptured)
	return c.Record()
}

// SetPolicy changes the policy by name; nothing in flight is lost.
func (f *Flow) SetPolicy(name string) error {
	p, err := route.New(name, f.o.Seed)
	if err != nil {
		return err
	}
	f.mu.Lock()
	defer f.mu.Unlock()
	f.do(f.clock(), dispatch.Event{Kind: dispatch.EventPolicy, Policy: p, Seed: f.o.Seed})
	return nil
}

// SetShadow sets the policy that decides without effect, by name; "": none.
func (f *Flow) SetShadow(name string) error {
	var p route.Policy
	if name != "" {
		var err error
		if p, err = route.New(name, f.o.Seed+1); err != nil {
			return err
		}
	}
	f.mu.Lock()
	defer f.mu.Unlock()
	f.do(f.clock(), dispatch.Event{Kind: dispatch.EventShadow, Policy: p, Seed: f.o.Seed + 1})
	return nil
}

// BytesPerToken returns the learned length of a token of the model's prompts, in
// bytes of hashed text.
func (f *Flow) BytesPerToken(model string) float64 {
	f.mu.Lock()
	defer f.mu.Unlock()
	return f.d.BytesPerToken(model)
}

// Stats is the state of a pool for status and metrics.
type Stats struct {
	Pool      string
	Totals    dispatch.Totals
	Shadow    dispatch.ShadowStats
	Endpoints []dispatch.EndpointLoad
}

// Stats returns the state at this moment.
func (f *Flow) Stats() Stats {
	f.mu.Lock()
	defer f.mu.Unlock()
	now := f.clock()
	return Stats{Pool: f.o.Pool, Totals: f.d.Totals(now), Shadow: f.d.Shadow(), Endpoints: f.d.Ledger(now, nil)}
}
