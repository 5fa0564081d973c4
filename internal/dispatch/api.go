// SPDX-License-Identifier: Apache-2.0

package dispatch

import (
	"github.com/penstock-project/penstock/internal/fleet"
	"github.com/penstock-project/penstock/internal/route"
)

// Dispatch is one pool. Not safe for concurrent use.
type Dispatch struct{}

// New returns an empty pool: nothing can be sent before the first Observe.
func New(o Options) *Dispatch { return &Dispatch{} }

// Observe takes a new snapshot in: endpoints come, go and change phase; a replica
// that restarted loses its place in the index; held requests may go.
func (d *Dispatch) Observe(now fleet.Time, s *fleet.Snapshot, out []Send) []Send { return out }

// Arrive takes a request in and decides. The Dispatch keeps r, which the caller
// does not change, until End.
func (d *Dispatch) Arrive(now fleet.Time, r *fleet.Request, out []Send) (Ticket, Verdict, []Send) {
	return 0, Verdict{}, out
}

// FirstToken says that the first byte of the answer came.
func (d *Dispatch) FirstToken(now fleet.Time, t Ticket, out []Send) []Send { return out }

// Progress says that tokens more output tokens came.
func (d *Dispatch) Progress(now fleet.Time, t Ticket, tokens int) {}

// Retry says that the attempt failed before the first byte and asks for another
// endpoint, those tried excluded. On Refused the ticket stays open until End.
func (d *Dispatch) Retry(now fleet.Time, t Ticket, kind fleet.OutcomeKind, out []Send) (Verdict, []Send) {
	return Verdict{}, out
}

// End is the last word on a ticket, whatever the ending. A second End of the same
// ticket does nothing.
func (d *Dispatch) End(now fleet.Time, t Ticket, o fleet.Outcome, out []Send) []Send { return out }

// Tick does what was due by now.
func (d *Dispatch) Tick(now fleet.Time, out []Send) []Send { return out }

// NextTimer is when Tick has something to do; fleet.Never where nothing is due.
func (d *Dispatch) NextTimer() fleet.Time { return fleet.Never }

// Preview decides without sending: explain a request that is not run.
func (d *Dispatch) Preview(now fleet.Time, r *fleet.Request, out *route.Decision) {}

// SetPolicy changes the policy; what is in flight or held stays.
func (d *Dispatch) SetPolicy(p route.Policy) {}

// Policy returns the name of the policy in use.
func (d *Dispatch) Policy() string { return "" }

// BytesPerToken returns the learned length of a token of the model's prompts, in
// bytes of hashed text.
func (d *Dispatch) BytesPerToken(model string) float64 { return 4 }

// EndpointLoad is one row of Ledger: what this router has at an endpoint.
type EndpointLoad struct {
	Endpoint          string
	Slot              int32
	Drop              route.Drop // why it takes no request now; DropNone: it does
	InFlight          int
	Unstarted         int
	Streams           int
	PendingMS         float64
	CtxTokens         float64
	PinnedBlocks      int
	CacheBlocks       int
	CacheCap          int
	Queued            int
	QueuedMS          float64
	Slowness          float64 // 1: as the pool's coefficients say
	KVLimit           float64 // share of the KV memory that is usable without preemption
	PredictedCached   int64   // tokens that finished requests were expected to find cached
	ObservedCached    int64   // tokens that the engine said they found
	Sent              uint64  // attempts
	Failed            uint64  // failed attempts
	Leaked            uint64  // in-flight counts that reconciliation wrote off
	Restarts          uint64  // restarts that were noticed
	EjectedUntil      fleet.Time
	ForeignStreams    float64
	ForeignUnstarted  float64
	IndexDisagreement bool // predictions of cached tokens fail here
}

// Ledger appends one row per endpoint, in slot order, to rows.
func (d *Dispatch) Ledger(now fleet.Time, rows []EndpointLoad) []EndpointLoad { return rows }

// Totals sums up a pool.
type Totals struct {
	InFlight      int // sent and not ended
	Held          int // in the router's queue, or waiting for a replica
	Arrived       uint64
	Sent          uint64 // attempts
	Ended         uint64
	Refused       uint64
	Retried       uint64
	DemotedByLoad uint64 // a warmer replica was passed over
	AwayFromWarm  uint64 // sent to a replica with less than half of the best hit
	Stolen        uint64
	Moved         uint64
	Overdue       uint64 // released because the bound on waiting was reached
	Leaked        uint64
	Policy        string
	Engine        route.Coef
	Context       route.Context
	BytesPerToken float64
}

// Totals returns the sums at now.
func (d *Dispatch) Totals(now fleet.Time) Totals { return Totals{} }
