// SPDX-License-Identifier: Apache-2.0

package flow

import (
	"context"

	"github.com/penstock-project/penstock/internal/dispatch"
	"github.com/penstock-project/penstock/internal/fleet"
	"github.com/penstock-project/penstock/internal/route"
)

// Flow is one live pool. All methods are safe for concurrent use.
type Flow struct{}

// New starts a pool. Close ends it.
func New(o Options) *Flow { return &Flow{} }

// Acquire decides where r goes. It returns at once, or waits while the router
// holds the request; it fails with *NoReplicaError or the context's error. The
// caller does not change r before Done.
func (f *Flow) Acquire(ctx context.Context, r *fleet.Request) (*Grant, error) { return nil, nil }

// Observe takes a new snapshot in.
func (f *Flow) Observe(s *fleet.Snapshot) {}

// Snapshot returns the last snapshot; nil before the first.
func (f *Flow) Snapshot() *fleet.Snapshot { return nil }

// Preview returns the record of a decision on r that is not carried out.
func (f *Flow) Preview(r *fleet.Request) *route.Record { return nil }

// SetPolicy changes the policy by name; nothing in flight is lost.
func (f *Flow) SetPolicy(name string) error { return nil }

// BytesPerToken returns the learned length of a token of the model's prompts, in
// bytes of hashed text.
func (f *Flow) BytesPerToken(model string) float64 { return 4 }

// Stats is the state of a pool for status and metrics.
type Stats struct {
	Pool      string
	Totals    dispatch.Totals
	Endpoints []dispatch.EndpointLoad
}

// Stats returns the state at this moment.
func (f *Flow) Stats() Stats { return Stats{} }

// Close refuses new requests and ends those that wait. Grants stay valid.
func (f *Flow) Close() {}

// Grant is one request at one endpoint. Its methods are for one goroutine at a
// time, except Done, which any goroutine may call.
type Grant struct{}

// Endpoint returns where to send the request now; it changes after Retry.
func (g *Grant) Endpoint() (id, url string) { return "", "" }

// PredictedCached returns how many prompt tokens are expected in the endpoint's
// cache.
func (g *Grant) PredictedCached() int { return 0 }

// FirstToken says that the first byte of the answer came.
func (g *Grant) FirstToken() {}

// Tokens says that n more output tokens came.
func (g *Grant) Tokens(n int) {}

// Retry says how the attempt failed, before any byte reached the client, and moves
// the grant to another endpoint. On error (*NoReplicaError, the context's error)
// there is none; Done is still due.
func (g *Grant) Retry(ctx context.Context, kind fleet.OutcomeKind) error { return nil }

// Done is the last word on the request. The first call counts.
func (g *Grant) Done(o fleet.Outcome) {}
