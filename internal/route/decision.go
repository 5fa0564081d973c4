// SPDX-License-Identifier: Apache-2.0

package route

import (
	"math"

	"github.com/penstock-project/penstock/internal/fleet"
)

// Candidate is one endpoint as a decision saw it: the raw inputs of its price and
// the price. Unknown scraped values are negative.
type Candidate struct {
	Slot     int32
	Drop     Drop
	Full     bool   // placing the request evicts cached blocks
	Joins    bool   // it is computed in the same step as a prompt that begins as it does
	Endpoint string // endpoint ID

	Hit      int32   // leading blocks believed cached
	Cached   float32 // tokens of the prompt believed cached
	Uncached float32 // tokens to prefill
	Credit   float32 // of those, paid for by earlier requests

	CostMS float64           // sum of Terms, or the policy's own score; less is better
	OwnMS  float64           // expected time to first token
	Terms  [NumTerms]float32 // ms

	// Raw inputs: own accounting.
	InFlight  int32
	Unstarted int32
	Queued    int32
	Streams   float32 // others' included
	CtxTokens float32 // tokens
	Yielding  float32 // of the streams, those of a tenant over its share
	PendingMS float32
	AheadMS   float32
	Behind    float32 // requests
	QueuedKV  float32 // tokens of KV memory that the queued requests will take, at most
	UsedKV    float32 // tokens of KV memory in use before placing
	NewKV     float32 // tokens that placing pins in addition
	LimitKV   float32 // tokens that can be used; 0 unknown
	SeatsFree float32 // seats in the batch left; +Inf unknown
	AdapterMS float32
	Speed     float32

	// Raw inputs: the last scrape.
	Running     float32 // requests
	Waiting     float32 // requests
	KVUsage     float32 // share, 0..1
	ScrapeAgeMS float32
}

// Decision is what a policy decided and all that it looked at. It is written into
// memory of the caller; CopyFrom makes a copy that outlives the next pick.
type Decision struct {
	Policy string
	At     fleet.Time
	Chosen int32 // slot, -1 none
	// Index is the chosen candidate's place in Candidates, -1 none.
	Index int32
	Wait  bool   // held in the router's queue for Chosen
	Why   string // one of the Why constants

	Candidates []Candidate
	// Omitted counts candidates that a copy left out to stay small.
	Omitted  int32
	MarginMS float64 // cost of the next best candidate less that of the chosen one; -1 where there is none
	// TieKey and Tied say how equal costs were decided: by the rendezvous hash of
	// TieKey among Tied candidates.
	TieKey uint64
	// Deepest is how many leading blocks are believed cached at the candidate that has
	// most of them.
	Deepest int32
	Tied    int32
	// DemotedByLoad says that a candidate with more of the prompt in its cache was
	// passed over because of its load.
	DemotedByLoad bool

	SnapshotVersion uint64
	SnapshotAt      fleet.Time

	PromptTokens    float64 // estimate at the time
	BlockTokens     float64
	PredictedCached int     // tokens at the chosen endpoint
	PredictedTTFTMS float64 // at the chosen endpoint

	// Priced says that the candidates carry terms in milliseconds that add up to
	// their cost. Policies that choose by another rule carry them for comparison.
	Priced  bool
	Engine  Coef
	Context Context
	blind   float64   // Input.Blind
	part    int32     // Input.Part, or what the beginning says in its place; -1: none
	slots   []Slot    // Input.Slots; nil in a copy
	costs   []float64 // memory of CopyFrom

	Shadow ShadowPick
}

// ShadowPick is what a policy without effect would have chosen. The zero value: none
// was asked.
type ShadowPick struct {
	Policy   string
	Slot     int32
	Endpoint string
	// ExtraMS is the predicted cost of its pick less that of the one that was made;
	// known where Priced is set.
	ExtraMS float64
	Priced  bool
}

// Why a candidate was chosen, in words for people. Records carry them as they are.
const (
	WhyCheapest  = "lowest cost"
	WhyTie       = "lowest cost, tie decided by rendezvous hash"
	WhyDemoted   = "demoted by load: the warmest replica costs more"
	WhyOnly      = "only candidate"
	WhyRandom    = "random"
	WhyRotation  = "next in rotation"
	WhyFewest    = "fewest requests in flight"
	WhyFewer     = "fewer requests in flight than the other of two drawn"
	WhyAffinity  = "longest cached prefix"
	WhyHome      = "home of the prefix by rendezvous hash"
	WhyReleased  = "its turn in the queue"
	WhyOverdue   = "the bound on waiting was reached"
	WhyStolen    = "taken from a longer queue by a replica with room"
	WhyMoved     = "asked again: the cache it waited for is gone"
	WhyFollows   = "waits with the first request of the same new beginning"
	WhyNoReplica = "no replica can take it"
)

// Reset empties d for a new pick and keeps its memory.
func (d *Decision) Reset() {
	*d = Decision{Candidates: d.Candidates[:0], costs: d.costs, Chosen: -1, Index: -1, MarginMS: -1}
}

// Pick returns the chosen candidate, nil where there is none.
func (d *Decision) Pick() *Candidate {
	if d.Index < 0 || int(d.Index) >= len(d.Candidates) {
		return nil
	}
	return &d.Candidates[d.Index]
}

// Settle makes the candidate at an index the choice, whatever its cost, and says
// why: the router's queue chose it, not the policy.
func (d *Decision) Settle(index int32, why string) {
	d.Index, d.Tied, d.MarginMS, d.DemotedByLoad, d.Wait = index, 0, -1, false, false
	d.take(why)
}

// Only makes d a decision with a single candidate, a copy of c.
func (d *Decision) Only(in *Input, policy string, c *Candidate) {
	d.stamp(in, policy)
	d.Priced = true
	d.Candidates = append(d.Candidates, *c)
}

// CopyFrom makes d a copy of s that keeps at most max candidates, with what their
// last scrape said: the chosen one and the cheapest. Slots without an endpoint are
// left out. d's memory is reused, and some of s's.
func (d *Decision) CopyFrom(s *Decision, max int) {
	c, costs := d.Candidates[:0], d.costs
	*d = *s
	d.Index, d.slots, d.costs = -1, nil, costs
	limit, equal := math.Inf(1), 0
	all := len(s.Candidates) <= max
	if !all {
		// Below the limit there are fewer than max; of those at the limit as many
		// are kept as there is room for, one place less where the choice is none of
		// those below.
		s.listCosts()
		limit = cheapest(s.costs, max)
		equal = max
		for i, v := range s.costs {
			if v < limit || int32(i) == s.Index {
				equal--
			}
		}
	}
	for i := range s.Candidates {
		switch {
		case int32(i) == s.Index:
			d.Index = int32(len(c))
		case all || s.costs[i] < limit:
		case s.costs[i] == limit && equal > 0:
			equal--
		case s.Candidates[i].Endpoint == "":
			continue
		default:
			d.Omitted++
			continue
		}
		x := &s.Candidates[i]
		if x.Endpoint == "" {
			continue
		}
		c = append(c, *x)
		if int(x.Slot) < len(s.slots) {
			c[len(c)-1].scraped(s.At, s.slots[x.Slot].State)
		}
	}
	d.Candidates = c
}

// listCosts lists the costs of the candidates, infinite for those that were dropped.
// Candidates are large; over a thousand of them it pays to go over their costs alone.
func (d *Decision) listCosts() {
	d.costs = d.costs[:0]
	for i := range d.Candidates {
		v := math.Inf(1)
		if x := &d.Candidates[i]; x.Drop == DropNone {
			v = x.CostMS
		}
		d.costs = append(d.costs, v)
	}
}

// cheapest returns the n-th smallest of the costs that are finite, the largest of them
// where there are fewer. n is at most MaxCaptured.
func cheapest(costs []float64, n int) float64 {
	var heap [MaxCaptured]float64 // max-heap of the n smallest so far
	n = min(n, MaxCaptured)
	k := 0
	for _, v := range costs {
		if k == n && v >= heap[0] || math.IsInf(v, 1) {
			continue
		}
		p := 0
		if k < n {
			for p = k; p > 0 && heap[(p-1)/2] < v; p = (p - 1) / 2 {
				heap[p] = heap[(p-1)/2]
			}
			k++
		} else {
			for c := 1; c < n; c = 2*p + 1 {
				if c+1 < n && heap[c+1] > heap[c] {
					c++
				}
				if heap[c] <= v {
					break
				}
				heap[p], p = heap[c], c
			}
		}
		heap[p] = v
	}
	return heap[0]
}
