// SPDX-License-Identifier: Apache-2.0

// Package route decides where one request goes: it filters the endpoints of a
// pool, prices each one in milliseconds and picks the cheapest.
//
// It declares what a picker may look at (Input, Slot, QueueView), what it must
// leave behind (Decision, Candidate) and how a decision reads as JSON (Record).
// It keeps no state about the fleet: package dispatch owns the accounting and the
// prefix index and hands views of both in.
package route

// Term is one part of the price of sending a request to an endpoint. All terms
// are in milliseconds and add up to the cost.
type Term uint8

// The terms of the penstock policy. The first five are the delay of the request
// itself and add up to its expected time to first token; the next four are the
// delay it causes to others.
const (
	TermPending     Term = iota // prefill sent there that has no first token yet
	TermAhead                   // work in the router's own queue that goes first
	TermMemoryWait              // until KV memory or a seat in the batch is free
	TermPrefill                 // its own uncached prompt tokens
	TermSteps                   // decode steps that its prefill rides on
	TermBehind                  // requests in the router's queue that it would delay
	TermToCome                  // requests that are expected to arrive meanwhile
	TermStreams                 // running streams that stall during its prefill
	TermEvicted                 // owners of cached blocks that it would push out
	TermDecode                  // its own decode, among the streams there
	TermMemoryPrice             // KV memory that it newly pins
	TermAdapter                 // load time of its LoRA adapter
	TermFollowers               // less: what earlier requests paid for want of the copy that it makes
	NumTerms        = iota
)

var termNames = [NumTerms]string{
	"pending", "ahead", "memory_wait", "prefill", "steps", "behind", "to_come",
	"streams", "evicted", "decode", "memory_price", "adapter", "followers",
}

func (t Term) String() string {
	if int(t) < NumTerms {
		return termNames[t]
	}
	return "unknown"
}

// Terms is a set of terms. Zero is the empty set.
type Terms uint16

// Only returns the set of one term.
func (t Term) Only() Terms { return 1 << t }

// Has reports whether t is in the set.
func (s Terms) Has(t Term) bool { return s&(1<<t) != 0 }

// Names returns the names of the terms in the set, in their order; nil for none.
func (s Terms) Names() []string {
	var out []string
	for t := range Term(NumTerms) {
		if s.Has(t) {
			out = append(out, t.String())
		}
	}
	return out
}

// Drop says why an endpoint was not a candidate. DropNone means that it was one.
type Drop uint8

// Drop reasons, in the order in which they are checked: the first that holds is
// reported.
const (
	DropNone     Drop = iota
	DropGone          // no longer in the snapshot
	DropNotReady      // pending, pulling, loading, warming
	DropAsleep        // weights are off the accelerator
	DropDraining      // finishes what it has
	DropFailed        // dead, or not answering as a model server
	DropRole          // one half of a split pool, which is not served
	DropModel         // does not serve the model
	DropAdapter       // cannot serve the adapter
	DropTried         // an attempt of this request failed there
	DropEjected       // failed lately; a trial follows after a cool-down
	DropSubset        // outside the endpoints that the request is bound to
	DropKept          // kept for other tenants: this one is over its share
	NumDrops     = iota
)

var dropNames = [NumDrops]string{
	"", "gone", "not_ready", "asleep", "draining", "failed", "role", "model_not_served",
	"adapter_not_served", "tried_already", "ejected", "outside_subset", "kept_for_others",
}

func (d Drop) String() string {
	if int(d) < NumDrops {
		return dropNames[d]
	}
	return "unknown"
}

// Coef are the coefficients of an engine's step time, in seconds (DESIGN 5), and
// its scheduler's limits:
//
//	step = Base + PTok*P + PAttn*sum n*(ctx + n/2) + DSeq*decodes + DCtx*sum ctx
type Coef struct {
	Base  float64 // a step that does nothing
	PTok  float64 // a prefilled token
	PAttn float64 // a prefilled token, per token of its context
	DSeq  float64 // a decoding sequence in a step
	DCtx  float64 // a token of context of a decoding sequence in a step
	Chunk float64 // tokens that a step prefills at most; > 0
}

// Prefill returns the seconds of prefill work of n uncached tokens at the end of
// a prompt of total tokens, decode steps excluded.
func (c *Coef) Prefill(n, total float64) float64 {
	return n*c.PTok + c.PAttn*n*(total-n/2)
}

// Step returns the seconds of one decode step of streams sequences that hold
// ctxTokens tokens of context together.
func (c *Coef) Step(streams, ctxTokens float64) float64 {
	return c.Base + c.DSeq*streams + c.DCtx*ctxTokens
}

// Mix is a 64-bit finalizer: every bit of the result depends on every bit of a
// and b (the constants are those of splitmix64).
func Mix(a, b uint64) uint64 {
	z := a ^ (b * 0x9e3779b97f4a7c15)
	z = (z ^ (z >> 30)) * 0xbf58476d1ce4e5b9
	z = (z ^ (z >> 27)) * 0x94d049bb133111eb
	return z ^ (z >> 31)
}
