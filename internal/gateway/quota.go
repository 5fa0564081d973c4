// SPDX-License-Identifier: Apache-2.0

package gateway

import (
	"bytes"
	"context"
	"net/http"

	"github.com/penstock-project/penstock/internal/admit"
	"github.com/penstock-project/penstock/internal/entry"
	"github.com/penstock-project/penstock/internal/fleet"
	"github.com/penstock-project/penstock/internal/share"
	"github.com/penstock-project/penstock/internal/wire"
)

// quota is what a call holds of its tenant's limits.
type quota struct {
	lease *share.Lease // nil: it has no limits
	// strip says that we asked the engine for the usage at the end of the stream and
	// take it out again: the client did not ask for it.
	strip    bool
	stripper wire.UsageStripper
	cancel   context.CancelFunc // ends the answer for a hard limit; nil: there is none
	stopped  bool               // a hard limit ended the answer
	bytes    int64              // of an answer, where tokens can only be guessed from them
}

// precheck refuses a caller who has nothing left before the body is read.
func (c *call) precheck() error {
	if no := c.h.door.Quotas.Precheck(c.who.Tenant, c.who.Key); no != nil {
		return c.overLimit(no)
	}
	return nil
}

// reserve takes what the request may use from its tenant's limits.
func (c *call) reserve() error {
	m := c.h.door.Quotas
	if !m.Metered(c.who.Tenant) {
		return nil
	}
	lease, no := m.Reserve(c.ctx, share.Ask{
		Tenant: c.who.Tenant, Key: c.who.Key, Model: c.target.EngineName(),
		Prompt: c.req.PromptTokens, MaxTokens: entry.OutputCap(c.route.surface, c.scan.MostTokens), N: c.scan.Answers(),
	})
	if no != nil {
		return c.overLimit(no)
	}
	c.quota.lease = lease
	surface := c.route.surface
	c.quota.strip = c.scan.Stream && !c.scan.IncludeUsage && !c.target.pool.noUsage.Load() &&
		(surface == fleet.SurfaceChat || surface == fleet.SurfaceCompletions)
	if lease.Hard() {
		c.ctx, c.quota.cancel = context.WithCancel(c.ctx)
	}
	return nil
}

// overLimit makes the answer to a request that a limit keeps out.
func (c *call) overLimit(no *share.Refused) error {
	h := c.w.Header()
	for _, f := range no.Head {
		h[f.Name] = []string{f.Value}
	}
	c.h.metrics.overLimit(no.Name).Inc()
	c.limit = no.Name
	return entry.OverLimit(no)
}

// tellLimits sets the headers that say what was left at admission.
func (c *call) tellLimits() {
	if c.quota.lease == nil {
		return
	}
	h := c.w.Header()
	fields := c.quota.lease.Head
	values := make([]string, len(fields))
	for i, f := range fields {
		values[i] = f.Value
		h[f.Name] = values[i : i+1 : i+1]
	}
}

// count takes n more tokens of the answer from the limits. Where a hard one is
// reached it ends the answer.
func (c *call) count(n int) {
	if c.quota.lease.Count(n) && c.quota.cancel != nil && !c.quota.stopped {
		c.quota.stopped = true
		c.quota.cancel()
	}
}

// sayStopped ends a stream that a hard limit, or the end of its key, cut with an error
// event.
func (c *call) sayStopped() {
	fault := wire.Error{Status: http.StatusTooManyRequests, Code: wire.CodeRateLimited,
		Message: "the limit of tokens was reached within this answer; what came so far is incomplete"}
	if !c.quota.stopped {
		fault.Status, fault.Code = http.StatusUnauthorized, wire.CodeUnauthorized
		fault.Message = "the API key was closed within this answer; what came so far is incomplete"
	}
	c.fault, c.source = fault.Code, "gateway"
	c.outcome.Kind = fleet.OutcomeOK // the replica did what it was asked for
	last := append([]byte(nil), c.answer.Gap()...)
	ctl := http.NewResponseController(c.w)
	if _, err := c.w.Write(fault.AppendEvent(last, c.route.family, c.id, c.answer.ResponseID())); err == nil {
		ctl.Flush() // a client that left misses it
	}
}

// settle ends the reservation with what was used. It is called for every request,
// however it ended.
func (c *call) settle() {
	q := &c.quota
	if q.cancel != nil {
		q.cancel()
	}
	if q.lease == nil {
		return
	}
	u, estimated := c.usage()
	whole := c.outcome.Kind == fleet.OutcomeOK && !q.stopped && !c.watch.Closed()
	if whole {
		q.lease.Pace(u.Output, c.upstream)
	}
	q.lease.Settle(u, whole)
	c.h.metrics.settled(estimated).Inc()
}

// bytesPerToken guesses tokens from the bytes of an answer that tells no usage.
const bytesPerToken = 4

// usage is what the request used, and whether that is an estimate.
func (c *call) usage() (u admit.Usage, estimated bool) {
	o := &c.outcome
	if c.grant == nil || c.phase < phaseFirstByte || o.Kind == fleet.OutcomeConnectError || o.Kind == fleet.OutcomeRefused && c.phase < phaseAnswer {
		return admit.Usage{}, false // no engine had it
	}
	u.Requests = 1
	switch {
	case o.Kind == fleet.OutcomeClientError || (o.Kind == fleet.OutcomeEngineError || o.Kind == fleet.OutcomeBroken) && c.frames == 0:
		return u, false // it was refused, or failed before it gave anything
	case o.PromptTokens >= 0:
		u.Prompt, u.Cached = int64(o.PromptTokens), int64(max(o.CachedTokens, 0))
	default:
		u.Prompt, estimated = c.quota.lease.Prompt(), true
	}
	switch {
	case c.follow && c.answer.OutputTokens >= 0:
		u.Output = int64(c.answer.OutputTokens)
	case c.follow && c.events:
		u.Output, estimated = int64(c.answer.Frames), true
	case c.phase == phaseAnswer && (c.route.generates || c.route.surface == fleet.SurfaceTranscriptions):
		u.Output, estimated = c.quota.bytes/bytesPerToken, true
	}
	if o.Kind == fleet.OutcomeClientGone && c.route.generates && !c.scan.Stream && (!c.follow || c.answer.OutputTokens < 0) {
		// The engine works on an answer that comes as a whole from the first moment on,
		// and nobody sees how much of it is there when the client leaves.
		u.Output, estimated = max(u.Output, c.quota.lease.Produced(c.upstream)), true
	}
	return u, estimated
}

// refusesUsage reports whether an engine refused a request because it does not know
// the option that asks for usage. Its pool is not asked again.
func (c *call) refusesUsage(k *held) bool {
	return c.quota.strip && k.status == http.StatusBadRequest && bytes.Contains(k.body, []byte("stream_options"))
}
