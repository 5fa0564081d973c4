// SPDX-License-Identifier: Apache-2.0

// Package dispatch is the state of one live pool: what was sent where and is
// still in flight, what each replica's prefix cache is believed to hold, what
// waits in the router's own queue. It turns events into sends.
//
// A Dispatch reads no clock and starts no goroutine: every method takes the moment
// it happens at, moments never go back, and the same calls give the same sends,
// byte for byte. Package flow drives one with a lock and timers, package sim in
// virtual time.
package dispatch

import (
	"time"

	"github.com/penstock-project/penstock/internal/engine"
	"github.com/penstock-project/penstock/internal/fleet"
	"github.com/penstock-project/penstock/internal/prefix"
	"github.com/penstock-project/penstock/internal/route"
)

// Ticket names one request from Arrive to End. It is never zero and not reused
// while another request could still be called by it.
type Ticket uint64

// Send is an instruction: put this request on the wire now. A Send with Slot -1
// says instead that a held request will not be sent, and why; its ticket is over.
type Send struct {
	Ticket   Ticket
	Slot     int32
	Endpoint string // endpoint ID
	URL      string
	Pin      string // data-parallel rank to ask the engine for; "": the endpoint is one
	Request  *fleet.Request
	// Decision is valid until the next call of the Dispatch.
	Decision *route.Decision
	// Held is how long the request waited in the router so far.
	Held   time.Duration
	Cause  route.Drop // with Slot -1
	Reason string     // with Slot -1
}

// VerdictKind says what became of an arrival or of a retry.
type VerdictKind uint8

// Verdicts.
const (
	Sent    VerdictKind = iota // a Send for it was appended
	Held                       // it waits; its Send comes out of a later call
	Refused                    // no replica can take it; its ticket is over
)

var verdictNames = [...]string{"sent", "held", "refused"}

func (k VerdictKind) String() string {
	if int(k) < len(verdictNames) {
		return verdictNames[k]
	}
	return "unknown"
}

// Verdict is the answer to an arrival or a retry.
type Verdict struct {
	Kind VerdictKind
	// Decision is what was decided, also where nothing was sent. Valid until the
	// next call of the Dispatch.
	Decision *route.Decision
	// Cause is the drop reason that came closest to being a candidate, and Reason
	// says in words what the pool looks like. Set when Kind is Refused.
	Cause  route.Drop
	Reason string
	// Late is by how much the first token was predicted to miss the deadline of a
	// request that was refused for it; 0 where that was not the reason. In so long
	// the replicas will have worked off what stands in the way.
	Late time.Duration
}

// Index is what a Dispatch needs of a prefix index; *prefix.Index is one.
type Index interface {
	Add(slot int32, capacityBlocks int)
	SetCapacity(slot int32, capacityBlocks int)
	Remove(slot int32)
	Clear(slot int32)
	MatchPinned(blocks []uint64, hits, pinned []int32)
	Pin(now fleet.Time, slot int32, blocks []uint64) prefix.Ref
	Unpin(now fleet.Time, r prefix.Ref)
	MatchOne(slot int32, blocks []uint64) int
	PinnedPrefix(slot int32, blocks []uint64) int
	Pinned(slot int32) int
	Used(slot int32) int
	Capacity(slot int32) int
	Feedback(slot int32, expectedTokens, cachedTokens int)
	Agreement(slot int32) prefix.Agreement
	Sweep(n int) bool
}

// Options of a Dispatch. The zero value works: policy penstock, the default
// engine profile, no queue.
type Options struct {
	Pool   string
	Policy route.Policy // nil: penstock
	// Profile holds the coefficients to start from; the zero Profile is
	// engine.DefaultProfile. KV size and seats come from the replicas' own metrics
	// where they tell.
	Profile engine.Profile
	// Fixed keeps the coefficients as they are instead of learning corrections
	// from observed TTFT and ITL.
	Fixed bool
	// Queue turns the router's own queue on: replicas are given work for two decode
	// steps, the rest waits here in a better order than first come first served.
	Queue bool
	// MaxHold bounds how long the queue may hold one request: MaxHold times what
	// first come first served would have cost it when it came, plus one second. Then
	// it is sent, whatever the replica's state. 0 means DefaultMaxHold.
	MaxHold float64
	// HoldMost bounds what the order costs in time as well: a request is held for at most
	// HoldMost longer than first come first served would have held it, or MostTimes as
	// long where that is more; 0: there is no such bound. It does not apply once requests
	// of several tenants came: one that floods must be held for as long as its share asks
	// for.
	HoldMost time.Duration
	// Unguarded keeps mechanisms on that measurably harm; see Guard. For comparisons.
	Unguarded bool
	// HoldFor is how long a request may wait while no replica is ready; 0 refuses
	// at once.
	HoldFor time.Duration
	// Index to use; nil makes one bounded by IndexBytes (0: 256 MiB).
	Index      Index
	IndexBytes int64
	BlockBytes int                // bytes of text in a block; 0: prefix.DefaultBlockBytes
	Weights    map[string]float64 // shares of tenants in the queue; 1 where absent
	// Share gathers what other routers should know; see TakeNotes.
	Share bool
	// Events lets KV events correct the index that the Dispatch makes.
	Events bool
	// Bare leaves out of decisions what only a reader of records needs. For
	// simulation.
	Bare bool
	// Without leaves parts of the policy out, to measure what they are worth.
	Without Without
}

// Without are parts of the picker and of its queue that are left out of an
// otherwise unchanged run. The zero value leaves out nothing.
type Without struct {
	Terms route.Terms // of the price
	Order bool        // the queue is first come first served
	Steal bool        // a replica with room takes nothing from other queues
	Meet  bool        // requests of one new beginning do not wait for each other, nor share a step
	Again bool        // a held request whose cache is gone is not asked for anew
}

// DefaultMaxHold is the MaxHold that applies where none is set. Eight times first
// come first served is far beyond what the order asks for outside overload, so the
// bound costs nothing there.
const DefaultMaxHold = 8

// MostTimes is how many times first come first served a request may always be held,
// HoldMost or not. Twice costs 2.4 % of mean time to first token on cells of seed 71,
// three times 1 %.
const MostTimes = 3

// HoldPlus is what is added to MaxHold times first come first served, in seconds.
const HoldPlus = 1

// DefaultHoldMost is the HoldMost that routers go by. Clients begin to give up after
// about a minute, so the order of the queue must not cost one that much. It is not a
// bound on the wait itself: where the fleet is so far behind that first come first
// served waits for a minute, sending at a minute is first come first served, and the
// mean time to first token of such fleets was up to eight times what it is in order.
const DefaultHoldMost = time.Minute
