// SPDX-License-Identifier: Apache-2.0

package scalesim

import (
	"container/list"

	"github.com/penstock-project/penstock/internal/workload"
)

// Caches says how prompts that share their beginning are routed, which decides how
// much of them is still to be computed.
type Caches string

// Routers that a trace can be played behind.
const (
	CachesAware  Caches = "aware"  // to the replica that holds most of the prompt
	CachesRandom Caches = "random" // to any
	CachesNone   Caches = "none"   // nothing is reused
)

// cacheReplicas is the fleet over which prompts are spread to find their hits. The
// hits are found beforehand, since a run would have them depend on the scaler that
// is judged; a cold cache after a start is not in them.
const cacheReplicas = 8

// caches are the prefix caches of a fleet of constant size: LRU over blocks.
type caches struct {
	mode   Caches
	block  int
	blocks []uint64
	fleet  []lru
	rng    *workload.Rand
}

type lru struct {
	most  int
	at    map[uint64]*list.Element
	order list.List // front: used last
	load  int
}

// newCaches returns the caches that a trace is played against. Traces that know
// nothing of their texts find nothing there.
func newCaches(t *workload.Trace, o *TraceOptions) *caches {
	c := &caches{mode: o.Caches, block: t.BlockTokens, rng: workload.NewRand(o.Seed, "caches", 0)}
	if c.mode == "" {
		c.mode = CachesAware
	}
	if c.block == 0 && t.Format == workload.FormatLog {
		c.block = 64
	}
	if c.block == 0 || c.mode == CachesNone {
		c.mode = CachesNone
		return c
	}
	c.fleet = make([]lru, cacheReplicas)
	for i := range c.fleet {
		c.fleet[i].most = max(1, o.Profile.KVTokens/c.block)
		c.fleet[i].at = map[uint64]*list.Element{}
	}
	return c
}

// hit is how many tokens of a prompt are cached where it goes. The last token is
// always computed.
func (c *caches) hit(it *workload.Item, turn *workload.Turn) int32 {
	if c.mode == CachesNone {
		return 0
	}
	c.blocks = turn.Blocks(c.blocks[:0], c.block, workload.AdapterSeed(it.Session.Adapter))
	best, hits := c.rng.IntN(len(c.fleet)), 0
	if c.mode == CachesAware {
		for i := range c.fleet {
			n := c.fleet[i].match(c.blocks)
			if n > hits || n == hits && c.fleet[i].load < c.fleet[best].load {
				best, hits = i, n
			}
		}
	} else {
		hits = c.fleet[best].match(c.blocks)
	}
	c.fleet[best].load += turn.PromptTokens - hits*c.block
	c.fleet[best].use(c.blocks)
	return int32(min(hits*c.block, turn.PromptTokens-1))
}

func (l *lru) match(blocks []uint64) int {
	n := 0
	for n < len(blocks) && l.at[blocks[n]] != nil {
		n++
	}
	return n
}

// use touches the blocks from the end on, so that a prefix outlives what follows it.
func (l *lru) use(blocks []uint64) {
	for i := len(blocks) - 1; i >= 0; i-- {
		if e := l.at[blocks[i]]; e != nil {
			l.order.MoveToFront(e)
			continue
		}
		l.at[blocks[i]] = l.order.PushFront(blocks[i])
		if len(l.at) > l.most {
			last := l.order.Back()
			delete(l.at, last.Value.(uint64))
			l.order.Remove(last)
		}
	}
}
