// SPDX-License-Identifier: Apache-2.0

package engine

import "github.com/penstock-project/penstock/internal/fleet"

// Stats is what a replica's metrics endpoint would say. Totals count from the
// start or the last Reset.
type Stats struct {
	Running  int // sequences in the batch, those in prefill included
	Decoding int // of them, those that get a token each step
	Waiting  int // all that wait
	Deferred int // of them, those that wait for an adapter slot and not for capacity

	WaitingTokens int // tokens that waiting sequences have to compute, cache hits not deducted
	PrefillTokens int // tokens that the sequence in partial prefill has still to compute
	ContextTokens int // tokens that decoding sequences hold

	KVTokens       int // capacity
	KVUsedTokens   int // in blocks that sequences hold
	KVCachedTokens int // in named blocks, held or not

	CacheQueries int64 // prompt tokens looked up, at the first admission of a sequence
	CacheHits    int64 // of them, found
	PromptTokens int64 // of sequences that have had their first token
	OutputTokens int64
	Prefilled    int64 // tokens computed as prompt, after preemptions again

	Finished, Cancelled, Rejected int64
	Preemptions, AdapterLoads     int64
	AdapterEvictions              int64 // loads that pushed another adapter out
	Steps                         int64
	BusySeconds                   float64 // time in finished steps
}

// KVUsage is the share of the KV cache that sequences hold, 0..1.
func (s *Stats) KVUsage() float64 {
	if s.KVTokens == 0 {
		return 0
	}
	return float64(s.KVUsedTokens) / float64(s.KVTokens)
}

// Stats returns the state at now. Steps that are over but were skipped count.
func (c *Core) Stats(now fleet.Time) Stats {
	var j int64
	if c.cur.busy {
		j = c.cur.stepsBy(now)
	}
	anon := c.kv.anon
	if j > 0 {
		anon += c.growth(c.steps+1, j)
	}
	b := c.p.BlockTokens
	s := Stats{
		Running: c.running.n, Decoding: c.decoding, Waiting: c.waiting.n, Deferred: c.deferred(),
		WaitingTokens: int(c.n.waitingTokens), ContextTokens: int(c.ctx + j*int64(c.decoding)),
		KVTokens: c.kv.total * b, KVUsedTokens: (anon + c.kv.pinned) * b,
		KVCachedTokens: min(c.kv.named, c.kv.total-anon) * b,
		CacheQueries:   c.n.queries, CacheHits: c.n.hits, PromptTokens: c.n.prompt,
		OutputTokens: c.n.output + j*int64(c.decoding), Prefilled: c.n.prefilledTokens,
		Finished: c.n.finished, Cancelled: c.n.cancelled, Rejected: c.n.rejected,
		Preemptions: c.n.preempted, AdapterLoads: c.lora.loads, AdapterEvictions: c.lora.loads - int64(len(c.lora.resident)),
		Steps:       c.n.engineSteps + j,
		BusySeconds: float64(c.n.busy+c.cur.ticksAfter(j)) / ticksPerNS / 1e9,
	}
	if c.partial >= 0 {
		s.PrefillTokens = int(c.slots[c.partial].target - c.slots[c.partial].computed)
	}
	return s
}

// InFlight returns how many sequences the replica has, those that wait included.
func (c *Core) InFlight() int { return c.running.n + c.waiting.n }

func (c *Core) deferred() int {
	if c.lora.waiting == 0 {
		return 0
	}
	n := 0
	for i := c.waiting.head; i >= 0; i = c.slots[i].next {
		if !c.lora.fits(c.slots[i].adapter) {
			n++
		}
	}
	return n
}
