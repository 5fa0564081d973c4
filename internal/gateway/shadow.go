// SPDX-License-Identifier: Apache-2.0

package gateway

import (
	"context"
	"net/http"
	"sync"
	"time"

	"github.com/zeebo/xxh3"

	"github.com/penstock-project/penstock/internal/fleet"
	"github.com/penstock-project/penstock/internal/prefix"
	"github.com/penstock-project/penstock/internal/relay"
	"github.com/penstock-project/penstock/internal/rollout"
	"github.com/penstock-project/penstock/internal/wire"
)

// Defaults of shadow traffic.
const (
	shadowAtATime = 8
	shadowTime    = 10 * time.Minute
	shadowOutput  = 1024 // tokens taken from the budget for an answer without a cap
	shadowClass   = 255  // behind everything else
)

// ShadowState is what the shadow traffic of a rollout has used.
type ShadowState struct {
	Running int
	Sent    uint64
	Skipped uint64 // the budget was used up, or as many ran as may
	Tokens  int64  // used since the start
	Left    int64  // of the budget now
}

// shadowBudget is a bucket of tokens that refills over an hour.
type shadowBudget struct {
	mu   sync.Mutex
	left float64
	at   fleet.Time // of the last refill; 0: it is full
	s    ShadowState
}

func (b *shadowBudget) refill(o ShadowOptions, now fleet.Time) {
	most := float64(o.TokensPerHour)
	if b.at == 0 {
		b.left = most
	} else {
		b.left = min(most, b.left+most*now.Sub(b.at).Hours())
	}
	b.at = now
}

// take reserves n tokens and a place.
func (b *shadowBudget) take(o ShadowOptions, now fleet.Time, n int64) bool {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.refill(o, now)
	atATime := o.Concurrent
	if atATime <= 0 {
		atATime = shadowAtATime
	}
	if float64(n) > b.left || b.s.Running >= atATime {
		b.s.Skipped++
		return false
	}
	b.left -= float64(n)
	b.s.Running++
	b.s.Sent++
	return true
}

// settle gives back what was reserved beyond what was used.
func (b *shadowBudget) settle(reserved, used int64) {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.left += float64(reserved - used)
	b.s.Running--
	b.s.Tokens += used
}

func (b *shadowBudget) state(o ShadowOptions, now fleet.Time) ShadowState {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.refill(o, now)
	b.s.Left = int64(b.left)
	return b.s
}

// shadow is one copy of a request at the canary. Nobody waits for it.
type shadow struct {
	l        *liveRollout
	to       *target
	req      fleet.Request
	out      relay.Request
	answer   wire.AnswerScanner
	follow   bool
	start    time.Time
	first    time.Time
	last     time.Time
	frames   int
	reserved int64
	grant    interface {
		FirstToken()
		Tokens(n int)
	}
}

// shadowed copies the request to the canary where its turn has come, the budget
// allows it, and the tenant's policy lets its data go there.
func (c *call) shadowed() {
	l := c.rollout
	if l == nil || c.arm != rollout.Baseline || c.translation.on || l.o.Shadow.TokensPerHour <= 0 {
		return
	}
	if float64(xxh3.HashString(c.id)>>11)/(1<<53) >= l.o.Shadow.Share {
		return
	}
	l.mu.Lock()
	over := l.core.State() >= rollout.RolledBack
	l.mu.Unlock()
	to := l.targets().at[rollout.Canary]
	if over || !to.ready() || !c.who.MayUse(&to.Place) || !c.mayEnter(to.pool) {
		return
	}
	output := int64(shadowOutput)
	if n := c.scan.MostTokens; n > 0 {
		output = int64(n)
	}
	s := &shadow{l: l, to: to, reserved: int64(c.req.PromptTokens) + output*int64(c.scan.Answers())}
	if !l.shadow.take(l.o.Shadow, l.all.clock(), s.reserved) {
		l.all.shadows.WithLabelValues(l.o.Spec.Name, "skipped").Inc()
		return
	}
	s.copy(c)
	go s.run(c.h)
}

// copy takes what it needs of a call, whose memory is used again when it is over.
func (s *shadow) copy(c *call) {
	head, tail := wire.Splice(c.body, c.edits(s.to))
	s.out = relay.Request{Method: c.out.Method, Target: c.out.Target, Header: c.out.Header.Clone()}
	s.out.Body[0] = append(head, tail...)
	s.out.Header[headerRequestID] = []string{c.id + ".shadow"}
	if a := s.to.pool.Authorization; a != "" {
		s.out.Header["Authorization"] = []string{a}
	} else if c.target.pool.Authorization != "" {
		delete(s.out.Header, "Authorization")
	}
	var hasher prefix.Hasher
	c.h.door.Fill(&s.req, &c.scan, c.body, &hasher, &s.to.Place, c.salt, s.to.pool.Flow.BytesPerToken(s.to.Model))
	s.req.ID, s.req.Class, s.req.Private = c.id+".shadow", shadowClass, c.req.Private
	s.req.Arm = s.l.o.Spec.Name + "/shadow"
}

func (s *shadow) run(h *Handler) {
	used, result := int64(0), "failed"
	defer func() {
		if v := recover(); v != nil && v != http.ErrAbortHandler {
			h.metrics.panics.Inc()
			h.o.Log.Error("a shadow request made the gateway panic", "id", s.req.ID, "panic", panicText(v))
		}
		s.l.shadow.settle(s.reserved, used)
		s.l.all.shadows.WithLabelValues(s.l.o.Spec.Name, result).Inc()
	}()
	ctx, cancel := context.WithTimeout(context.Background(), shadowTime)
	defer cancel()
	g, err := s.to.pool.Flow.Acquire(ctx, &s.req)
	if err != nil {
		result = "refused"
		return
	}
	outcome := fleet.Outcome{Kind: fleet.OutcomeBroken, PromptTokens: -1, CachedTokens: -1, OutputTokens: -1}
	defer func() { g.Done(outcome) }()
	s.grant, s.start = g, time.Now()
	_, url := g.Endpoint()
	setPin(s.out.Header, g.Pin())
	a, err := h.o.Relay.Send(ctx, url, &s.out)
	if err != nil {
		s.l.observe(rollout.Canary, rollout.Sample{Failed: true})
		return
	}
	kind := a.Header("Content-Type")
	events := hasMediaType(kind, "text/event-stream")
	s.follow = a.Status < 300 && (events || hasMediaType(kind, "application/json"))
	s.answer.Reset(events, "")
	status := a.Status
	end, _ := a.Relay(&nowhere{}, s)
	s.answer.Close()
	outcome.Kind, outcome.Status = statusKind(status), status
	outcome.PromptTokens, outcome.CachedTokens, outcome.OutputTokens = s.answer.PromptTokens, s.answer.CachedTokens, s.answer.OutputTokens
	used = int64(s.req.PromptTokens + max(s.answer.Tokens(), 0))
	if outcome.Kind == fleet.OutcomeClientError {
		result = "client_error"
		return
	}
	sample := rollout.Sample{Failed: outcome.Kind != fleet.OutcomeOK || end != relay.EndComplete || s.answer.ErrorCode != 0,
		Prompt: max(outcome.PromptTokens, 0), Output: max(outcome.OutputTokens, s.answer.Frames)}
	if !s.first.IsZero() {
		sample.TTFT = s.first.Sub(s.start).Seconds()
		if s.frames > 1 {
			sample.ITL = s.last.Sub(s.first).Seconds() / float64(s.frames-1)
		}
	}
	if !sample.Failed {
		result = "ok"
	} else if outcome.Kind == fleet.OutcomeOK {
		outcome.Kind = fleet.OutcomeTruncated
	}
	s.l.observe(rollout.Canary, sample)
}

// Payload implements relay.Sink: it looks and drops.
func (s *shadow) Payload(p []byte) []byte {
	if s.follow {
		s.answer.Feed(p)
	}
	return nil
}

// Written implements relay.Sink.
func (s *shadow) Written(now time.Time) {
	n := s.answer.Frames - s.frames
	if n == 0 {
		return
	}
	s.frames, s.last = s.answer.Frames, now
	if s.first.IsZero() {
		s.first = now
		s.grant.FirstToken()
	}
	s.grant.Tokens(n)
}

// End implements relay.Sink.
func (s *shadow) End(relay.Ending) []byte { return nil }

// nowhere is a client that takes everything.
type nowhere struct{ h http.Header }

// Header implements http.ResponseWriter.
func (n *nowhere) Header() http.Header {
	if n.h == nil {
		n.h = http.Header{}
	}
	return n.h
}

// Write implements http.ResponseWriter.
func (n *nowhere) Write(p []byte) (int, error) { return len(p), nil }

// WriteHeader implements http.ResponseWriter.
func (n *nowhere) WriteHeader(int) {}

// FlushError has nothing to flush.
func (n *nowhere) FlushError() error { return nil }

// mayEnter reports whether the data policy of the caller's tenant lets its prompts
// reach a pool.
func (c *call) mayEnter(p *poolEntry) bool { return c.h.door.MayReach(c.who.Tenant, p.Name) }
