// SPDX-License-Identifier: Apache-2.0

package dispatch

import (
	"time"

	"github.com/penstock-project/penstock/internal/fleet"
	"github.com/penstock-project/penstock/internal/route"
)

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
	PeerInFlight      int // requests of other routers, as they told
	PeerQueued        int // requests that other routers hold for it
	Queued            int
	QueuedMS          float64
	Slowness          float64    // 1: as the pool's coefficients say
	KVLimit           float64    // share of the KV memory that is usable without preemption
	PredictedCached   int64      // tokens that finished requests were expected to find cached
	ObservedCached    int64      // tokens that the engine said they found
	Sent              uint64     // attempts
	Failed            uint64     // failed attempts
	Leaked            uint64     // in-flight counts that reconciliation wrote off
	Restarts          uint64     // restarts that were noticed
	EjectedUntil      fleet.Time // 0: not ejected
	ForeignStreams    float64    // load of others that scrapes show
	ForeignUnstarted  float64
	IndexDisagreement bool // predictions of cached tokens fail here
	Overlaps          bool // it was found to compute several prompts at a time: nothing is held for it
	CacheUnsure       bool // KV events were lost, and answers have not shown since that the index holds

	// Where several ranks share the endpoint, Ranks has a row for each, whose Rank it
	// is, and the values above are theirs together: sums, but the greatest Slowness and
	// Restarts and the least KVLimit. Pins is nil for an endpoint of one rank.
	Rank  int
	Ranks []EndpointLoad
	Pins  *PinState
}

// Ledger appends one row per endpoint, in slot order, to rows, which is empty where an
// endpoint has several ranks.
func (d *Dispatch) Ledger(now fleet.Time, rows []EndpointLoad) []EndpointLoad {
	for i := range d.slots {
		s, a := &d.slots[i], &d.aux[i]
		if !a.used {
			continue
		}
		r := EndpointLoad{
			Endpoint: s.ID, Slot: int32(i), Drop: s.Drop,
			InFlight: int(s.InFlight - a.peers), PeerInFlight: int(a.peers), PeerQueued: int(a.theirsAt()), Unstarted: int(s.Unstarted), Streams: int(s.Streams),
			PendingMS: s.Pending(now) * 1e3, CtxTokens: s.CtxTokens,
			PinnedBlocks: s.PinnedBlocks, CacheBlocks: s.CacheBlocks, CacheCap: s.CacheCap,
			Queued: int(a.queue.n), QueuedMS: a.queue.work * 1e3,
			Slowness: s.Speed, KVLimit: s.KVLimit,
			PredictedCached: a.predicted, ObservedCached: a.observed,
			Sent: a.sent, Failed: a.failed, Leaked: a.leaked, Restarts: a.restarts,
			ForeignStreams: s.ForeignStreams, ForeignUnstarted: s.ForeignUnstarted,
			Overlaps: now < a.overlap.until, IndexDisagreement: d.index.Agreement(int32(i)).Disagrees,
		}
		if x, ok := d.index.(eventIndex); ok {
			r.CacheUnsure = x.Unsure(int32(i))
		}
		if a.breaker.ejected() {
			r.EjectedUntil = a.breaker.until
			if r.Drop == route.DropNone && a.breaker.open(now) {
				r.Drop = route.DropEjected
			}
		}
		rows = append(rows, r)
	}
	if d.split {
		rows = d.foldRanks(rows)
	}
	return rows
}

// Totals sums up a pool.
type Totals struct {
	Policy        string
	Ready         int // endpoints that take requests
	InFlight      int // sent and not ended
	Held          int // in the router's queue, or waiting for a replica
	Arrived       uint64
	Sent          uint64 // attempts
	Ended         uint64 // calls of End
	Refused       uint64
	Retried       uint64
	DemotedByLoad uint64     // a warmer replica was passed over
	AwayFromWarm  uint64     // sent to a replica with less than half of the best hit
	Stolen        uint64     // taken from a longer queue
	Moved         uint64     // asked again because the cache it waited for was gone
	Overdue       uint64     // released because the bound on waiting was reached
	OverShare     uint64     // times that a tenant was found to be over its share
	Over          *OverShare // the one that is at present; nil: none
	Leaked        uint64     // written off by reconciliation
	Overlaps      uint64     // times that a replica was found to compute several prompts at a time
	QueueOn       bool       // the router's own queue is on
	MaxHold       float64
	HoldMost      time.Duration
	Queue         QueueStats
	Guards        [NumGuards]GuardState
	Engine        route.Coef // coefficients in use, corrections included
	Context       route.Context
}

// Totals returns the sums at now.
func (d *Dispatch) Totals(now fleet.Time) Totals {
	t := d.n
	t.Ready = d.ready
	t.Held = d.queued + int(d.limbo.n)
	t.QueueOn, t.MaxHold, t.HoldMost = d.queues, d.o.MaxHold, d.holdMost()
	t.Guards = d.guardStates(now)
	if o, over := d.OverShare(); over {
		t.Over = &o
	}
	t.Engine = d.learned.coef
	t.Context = d.learned.context(now, 0)
	return t
}
