// SPDX-License-Identifier: Apache-2.0

package gateway

import (
	"bytes"
	"context"
	"errors"
	"net/http"
	"slices"

	"github.com/penstock-project/penstock/internal/entry"
	"github.com/penstock-project/penstock/internal/fleet"
	"github.com/penstock-project/penstock/internal/flow"
)

// fallen is what a call knows of the pools that it was not served by.
type fallen struct {
	tried []*poolEntry
}

// Reasons to leave a pool, as records and metrics show them.
const (
	viaNoReplica   = "no_replica"
	viaWait        = "predicted_wait"
	viaContext     = "context_length"
	viaUnreachable = "unreachable"
)

// acquire gets a place for the request: in its own pool, else in the first of the
// pool's fallbacks that can take it.
func (c *call) acquire(ctx context.Context) (*flow.Grant, error) {
	own := c.target
	if len(own.pool.Fallback) == 0 {
		return c.acquireIn(ctx)
	}
	c.fallen.tried = append(c.fallen.tried[:0], own.pool)
	if c.tooLong(own) {
		if g := c.elsewhere(ctx, viaContext); g != nil {
			return g, nil
		}
		return c.acquireIn(ctx) // its estimate may be wrong, and the engine knows
	}
	if !own.ready() {
		if g := c.elsewhere(ctx, viaNoReplica); g != nil {
			return g, nil
		}
		return c.acquireIn(ctx) // which waits, where the pool holds requests
	}
	deadline := c.req.Deadline
	if wait := own.pool.FallbackWait; wait > 0 {
		if by := c.req.Arrived.Add(wait); deadline == 0 || by < deadline {
			c.req.Deadline = by
		}
	}
	g, err := c.acquireIn(ctx)
	c.req.Deadline = deadline
	none, ok := errors.AsType[*flow.NoReplicaError](err)
	if !ok {
		return g, err
	}
	via := viaNoReplica
	if none.Late {
		via = viaWait
	}
	if g := c.elsewhere(ctx, via); g != nil {
		return g, nil
	}
	if none.Late && own.pool.FallbackWait > 0 && (deadline == 0 || c.h.o.Clock() < deadline) {
		return c.acquireIn(ctx) // nobody is sooner: then it waits here
	}
	return nil, err
}

// acquireIn asks the pool of the target.
func (c *call) acquireIn(ctx context.Context) (*flow.Grant, error) {
	ask := c.askPool
	if c.beats() {
		ask = c.waitFor
	}
	g, err := ask(ctx)
	if _, full := errors.AsType[*entry.QueueFull](err); full {
		c.h.metrics.overLimit("queue").Inc()
		c.limit = "queue"
	}
	return g, err
}

func (c *call) askPool(ctx context.Context) (*flow.Grant, error) {
	return c.h.door.Acquire(ctx, c.target.pool.Flow, &c.req)
}

// elsewhere moves the request to the first fallback that takes it; nil, with the
// request as it was, where none does.
func (c *call) elsewhere(ctx context.Context, via string) *flow.Grant {
	own, was := c.target, c.req
	was.Blocks = slices.Clone(was.Blocks) // they may live in the hasher's memory, which the others use
	cat := c.h.catalogue.Load()
	for _, name := range own.pool.Fallback {
		to := cat.spare(name, own)
		if to == nil || slices.Contains(c.fallen.tried, to.pool) || !c.mayEnter(to.pool) || !c.who.MayUse(&to.Place) || !to.ready() || c.tooLong(to) {
			continue
		}
		c.fallen.tried = append(c.fallen.tried, to.pool)
		c.target = to
		c.h.door.Fill(&c.req, &c.scan, c.body, &c.hasher, &to.Place, c.salt, to.pool.Flow.BytesPerToken(to.Model))
		c.req.ID, c.req.Tenant, c.req.Class, c.req.Private, c.req.Deadline, c.req.Arrived = was.ID, was.Tenant, was.Class, was.Private, was.Deadline, was.Arrived
		c.req.Session, c.req.Arm, c.req.Via = was.Session, was.Arm, own.pool.Name+": "+via
		g, err := c.acquireIn(ctx)
		if err == nil {
			c.h.metrics.fallbacks.WithLabelValues(own.pool.Name, to.pool.Name, via).Inc()
			c.series = c.h.metrics.of(to, c.route)
			if own.pool.Authorization != "" {
				delete(c.r.Header, "Authorization") // is for the engines of that pool only
			}
			c.quota.lease.Moved(to.EngineName())
			c.address()
			return g
		}
		if ctx.Err() != nil {
			break
		}
	}
	c.target, c.req = own, was
	return nil
}

// spare returns what serves a target's requests in another pool: the model or adapter
// of the same name, else, for a model, the pool's first one.
func (c *Catalogue) spare(pool string, own *target) *target {
	for _, p := range c.pools {
		if p.Name != pool || p.Flow == nil {
			continue
		}
		t := p.own(own.EngineName())
		if t == nil && own.Adapter == "" && len(p.Models) > 0 {
			t = &target{Place: entry.Place{Model: p.Models[0].Name, Tenants: nameSet(p.Models[0].Tenants)}, pool: p}
		}
		if t == nil || own.Adapter != t.Adapter {
			return nil
		}
		to := *t
		to.Name = own.Name
		to.Rename = own.Rename || to.EngineName() != own.Name
		return &to
	}
	return nil
}

// tooLong reports whether a prompt is longer than a pool's replicas can read, as far
// as anybody knows.
func (c *call) tooLong(t *target) bool {
	most := t.maxModelLen()
	return most > 0 && c.req.PromptTokens >= most
}

// contextMarks are what engines say of a prompt that is too long for them.
var contextMarks = [][]byte{
	[]byte("maximum context length"), []byte("context_length_exceeded"), []byte("longer than the maximum model length"), []byte("exceeds the available context size"),
	[]byte("is longer than the model's context length"),
}

// outgrew sends a request to a fallback that its own replica refused as too long, and
// reports whether it did.
func (c *call) outgrew(k *held) bool {
	if k.status != http.StatusBadRequest || len(c.target.pool.Fallback) == 0 || len(c.fallen.tried) > 1 {
		return false
	}
	if !slices.ContainsFunc(contextMarks, func(m []byte) bool { return bytes.Contains(k.body, m) }) {
		return false
	}
	return c.leave(viaContext, fleet.Outcome{Kind: fleet.OutcomeClientError, Status: k.status, PromptTokens: -1, CachedTokens: -1, OutputTokens: -1})
}

// leave ends the attempt in the pool where the request is, and moves it to a fallback.
// Where it reports false the client is still to be answered; the attempt is over where
// a fallback was asked and refused.
func (c *call) leave(via string, o fleet.Outcome) bool {
	cat := c.h.catalogue.Load()
	if !slices.ContainsFunc(c.target.pool.Fallback, func(name string) bool {
		to := cat.spare(name, c.target)
		return to != nil && !slices.Contains(c.fallen.tried, to.pool) && c.mayEnter(to.pool) && c.who.MayUse(&to.Place) && to.ready()
	}) {
		return false
	}
	// The pool reads the request until its attempt ends, so it ends first.
	c.grant.Done(o)
	g := c.elsewhere(c.ctx, via)
	if g == nil {
		return false
	}
	c.grant, c.moved = g, false
	c.outcome.Kind = fleet.OutcomeRefused
	return true
}
