// SPDX-License-Identifier: Apache-2.0

package flow

import (
	"context"
	"sync/atomic"
	"time"

	"github.com/penstock-project/penstock/internal/dispatch"
	"github.com/penstock-project/penstock/internal/fleet"
	"github.com/penstock-project/penstock/internal/route"
)

// Grant is one request at one endpoint. Its methods are for one goroutine at a
// time, except Done, which any goroutine may call.
type Grant struct {
	f       *Flow
	req     *fleet.Request
	ticket  dispatch.Ticket
	wake    chan error // nil where it never waited
	capture atomic.Pointer[route.Capture]
	tokens  atomic.Int64 // not yet reported

	// Below: under the lock of the Flow.
	over      bool
	cold      bool // no replica could take it when it came
	arrived   fleet.Time
	id, url   string
	pin       string
	cached    int
	ttft      time.Duration
	decode    time.Duration
	output    int
	held      time.Duration
	first     fleet.Time
	attempts  int
	duplicate bool
	alts      []string
}

// tokensAtOnce is how many output tokens are gathered before the dispatch hears of
// them: it needs the context to a few tokens in hundreds.
const tokensAtOnce = 32

// open starts the record of a request with the decision of its arrival.
func (g *Grant) open(v *dispatch.Verdict, now fleet.Time) {
	f := g.f
	if f.o.Recorder == nil || g.req.Private {
		return
	}
	var c *route.Capture
	if n := len(f.spare); n > 0 {
		c, f.spare = f.spare[n-1], f.spare[:n-1]
	} else {
		c = &route.Capture{}
	}
	c.Reset(f.o.Pool, g.req)
	if c.Arrived == 0 || c.Arrived > now {
		c.Arrived = now
	}
	if v.Decision != nil && v.Kind != dispatch.Sent { // take copies that of a send
		c.Decision.CopyFrom(v.Decision, route.MaxCaptured)
	}
	g.capture.Store(c)
}

// take makes a send the grant's place. The lock is held.
func (g *Grant) take(s *dispatch.Send) {
	g.id, g.url, g.pin, g.held = s.Endpoint, s.URL, s.Pin, s.Held
	g.attempts++
	g.first = 0
	g.tokens.Store(0)
	if s.Decision != nil {
		if n := g.req.Alternatives; n > 0 {
			g.alts = g.f.d.Alternatives(s.Decision, n, g.alts[:0])
		}
		g.decode, g.output = expectedDecode(s.Decision), int(s.Decision.Context.MeanOutput)
		g.cached = s.Decision.PredictedCached
		g.ttft = time.Duration(s.Decision.PredictedTTFTMS * 1e6)
	}
	c := g.capture.Load()
	if c == nil {
		return
	}
	c.Sent, c.HeldFor = s.Decision.At, fleet.Time(s.Held)
	c.Decision.CopyFrom(s.Decision, route.MaxCaptured)
}

// finish completes the record. It returns the capture for the recorder.
func (g *Grant) finish(held time.Duration, o fleet.Outcome) *route.Capture {
	c := g.capture.Load()
	if c == nil {
		return nil
	}
	if held > 0 {
		c.HeldFor = fleet.Time(held)
	}
	c.Outcome, c.Finished, c.MaybeDuplicate = o, true, g.duplicate
	return c
}

// Endpoint returns where to send the request now; it changes after Retry.
func (g *Grant) Endpoint() (id, url string) { return g.id, g.url }

// PinHeader asks an engine for the data-parallel rank that computes a request.
const PinHeader = "X-Data-Parallel-Rank"

// Pin returns the value of PinHeader that the request carries to the endpoint; "":
// none. It changes with Endpoint.
func (g *Grant) Pin() string { return g.pin }

// PredictedCached returns how many prompt tokens are expected in the endpoint's
// cache.
func (g *Grant) PredictedCached() int { return g.cached }

// PredictedTTFT returns the expected time to first token from sending; 0 where the
// policy predicts none.
func (g *Grant) PredictedTTFT() time.Duration { return g.ttft }

// Alternatives returns the URLs of the endpoints that were next in cost, as many
// as the request asked for, cheapest first.
func (g *Grant) Alternatives() []string { return g.alts }

// ExpectedDecode returns how long an answer of the usual length takes from its
// first token to its end; 0 where the policy prices nothing.
func (g *Grant) ExpectedDecode() time.Duration { return g.decode }

// ExpectedOutput returns how many tokens an answer of the pool usually has; 0 where
// the policy prices nothing.
func (g *Grant) ExpectedOutput() int { return g.output }

// expectedDecode is the usual output at the speed of a step of the chosen endpoint.
func expectedDecode(d *route.Decision) time.Duration {
	p := d.Pick()
	if p == nil {
		return 0
	}
	step := d.Engine.Step(float64(p.Streams)+1, float64(p.CtxTokens)+d.PromptTokens)
	return time.Duration(d.Context.MeanOutput * step * 1e9)
}

// Held returns how long the router held the request before sending.
func (g *Grant) Held() time.Duration { return g.held }

// Attempts returns how many endpoints the request was given to so far, at least 1.
func (g *Grant) Attempts() int { return g.attempts }

// MaybeDuplicate reports whether a failed attempt may have been executed.
func (g *Grant) MaybeDuplicate() bool { return g.duplicate }

// FirstToken says that the first byte of the answer came. Only the first call after
// Acquire or Retry counts.
func (g *Grant) FirstToken() {
	f := g.f
	g.alive()
	f.mu.Lock()
	defer f.mu.Unlock()
	if g.over || g.first != 0 {
		return
	}
	g.first = f.clock()
	f.happen(g.first, dispatch.Event{Kind: dispatch.EventFirst, Ticket: g.ticket})
}

// Tokens says that n more output tokens came.
func (g *Grant) Tokens(n int) {
	if g.tokens.Add(int64(n)) < tokensAtOnce {
		return
	}
	f := g.f
	g.alive()
	f.mu.Lock()
	defer f.mu.Unlock()
	g.progress()
}

// alive passes evidence of life on.
func (g *Grant) alive() {
	if fn := g.f.o.Alive; fn != nil {
		fn(g.id)
	}
}

// progress reports the gathered tokens. The lock is held.
func (g *Grant) progress() {
	if n := g.tokens.Swap(0); !g.over && n > 0 {
		g.f.do(g.f.clock(), dispatch.Event{Kind: dispatch.EventProgress, Ticket: g.ticket, Tokens: int(n)})
	}
}

// Retry says how the attempt failed, before any byte reached the client, and moves
// the grant to another endpoint. On error (*NoReplicaError, the context's error)
// there is none; Done is still due.
//
// A connect that failed moves on as long as there are endpoints not tried; EOF,
// reset and engine errors move once, and the first two count as a possible
// duplicate. Whether an ending may be retried at all is the caller's to know: never
// on a timeout, never after the first byte.
func (g *Grant) Retry(ctx context.Context, kind fleet.OutcomeKind) error {
	if ctx.Err() != nil {
		return context.Cause(ctx)
	}
	f := g.f
	f.mu.Lock()
	defer f.mu.Unlock()
	if g.over {
		return errClosed()
	}
	now := f.clock()
	if c := g.capture.Load(); c != nil {
		c.Attempts = append(c.Attempts, route.Attempt{Endpoint: g.id, Kind: kind, At: now})
	}
	_, v, sends := f.do(now, dispatch.Event{Kind: dispatch.EventRetry, Ticket: g.ticket, Fault: kind})
	var err error
	if v.Kind == dispatch.Sent {
		g.duplicate = g.duplicate || kind == fleet.OutcomeBroken
		for i := range sends {
			if sends[i].Ticket == g.ticket {
				g.take(&sends[i])
			}
		}
	} else {
		err = f.noReplica(v.Cause, v.Reason)
	}
	f.deliver(sends)
	return err
}

// Moved says that the attempt failed and that a proxy, which was given the list of
// Alternatives, has taken the request to another endpoint by itself. hostPort is
// where it is now. It reports whether that is an endpoint of the pool that takes
// requests; where not, the request counts nowhere until Done.
func (g *Grant) Moved(hostPort string, kind fleet.OutcomeKind) bool {
	f := g.f
	f.mu.Lock()
	if g.over {
		f.mu.Unlock()
		return false
	}
	// From here on the request may be there only.
	f.do(f.clock(), dispatch.Event{Kind: dispatch.EventBind, Ticket: g.ticket, Data: []byte(hostPort)})
	f.mu.Unlock()
	return g.Retry(context.Background(), kind) == nil
}

// Done is the last word on the request. The first call counts.
func (g *Grant) Done(o fleet.Outcome) {
	f := g.f
	f.mu.Lock()
	if g.over {
		f.mu.Unlock()
		return
	}
	g.progress()
	g.over = true
	if o.End == 0 {
		o.End = f.clock()
	}
	if o.FirstToken == 0 {
		o.FirstToken = g.first
	}
	_, _, sends := f.do(f.clock(), dispatch.Event{Kind: dispatch.EventEnd, Ticket: g.ticket, Outcome: o})
	c := g.finish(0, o)
	g.capture.Store(nil)
	f.ended(g, o)
	f.deliver(sends)
	f.mu.Unlock()
	f.record(c)
}
