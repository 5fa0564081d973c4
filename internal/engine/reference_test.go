// SPDX-License-Identifier: Apache-2.0

package engine

import (
	"sort"

	"github.com/penstock-project/penstock/internal/fleet"
)

// refCore says again what Core does, in the plainest way: one step at a time, one
// object a KV block with its own reference count, lists as slices. It is the oracle
// of the property tests and far too slow for anything else.
type refCore struct {
	p        Profile
	waiting  []*refSeq
	running  []*refSeq
	cache    map[uint64]*refBlock
	anon     int
	stamp    int
	resident []string
	busy     bool
	start    fleet.Time
	frac     int64
	ticks    int64
	done     []*refSeq
	stats    Stats
	events   []Event
}

type refBlock struct{ ref, stamp int }

type refSeq struct {
	Seq
	named, anon              int
	computed, target, output int
	cached                   int
	admitted, decode         bool
}

func newRef(p Profile) *refCore { return &refCore{p: p, cache: map[uint64]*refBlock{}} }

func (c *refCore) blocksFor(n int) int { return (n + c.p.BlockTokens - 1) / c.p.BlockTokens }

func (c *refCore) pinned() int {
	n := 0
	for _, b := range c.cache {
		if b.ref > 0 {
			n++
		}
	}
	return n
}

func (c *refCore) available() int { return c.p.Blocks() - c.anon - c.pinned() }

func (c *refCore) evict() {
	for c.anon+len(c.cache) > c.p.Blocks() {
		var victim uint64
		best := -1
		for h, b := range c.cache {
			if b.ref == 0 && (best < 0 || b.stamp < best) {
				victim, best = h, b.stamp
			}
		}
		delete(c.cache, victim)
	}
}

func (c *refCore) submit(now fleet.Time, s Seq) {
	if c.blocksFor(s.PromptTokens+s.OutputTokens) > c.p.Blocks() || (s.Adapter != "" && c.p.LoRASlots == 0) {
		c.events = append(c.events, Event{Kind: EventRejected, Seq: s.ID, At: now})
		c.stats.Rejected++
		return
	}
	c.waiting = append(c.waiting, &refSeq{Seq: s, target: s.PromptTokens})
	if !c.busy {
		c.busy, c.start, c.frac, c.ticks = true, now, 0, -1 // to begin at now
	}
}

func (c *refCore) cancel(id uint64) bool {
	for i, s := range c.waiting {
		if s.ID == id {
			c.waiting = append(c.waiting[:i], c.waiting[i+1:]...)
			c.stats.Cancelled++
			if len(c.waiting)+len(c.running) == 0 && c.ticks < 0 {
				c.busy = false
			}
			return true
		}
	}
	for _, s := range c.running {
		if s.ID == id {
			c.leave(s)
			c.stats.Cancelled++
			return true
		}
	}
	return false
}

func (c *refCore) advance(now fleet.Time) {
	for c.busy {
		if c.ticks < 0 {
			if c.start > now {
				return
			}
			c.begin()
			continue
		}
		end := c.start + fleet.Time((c.frac+c.ticks)/ticksPerNS)
		if end > now {
			return
		}
		c.complete(end)
		c.frac = (c.frac + c.ticks) % ticksPerNS
		c.start = end
		c.busy = len(c.waiting)+len(c.running) > 0
		c.ticks = -1
	}
}

func (c *refCore) begin() {
	preempted := false
	for {
		need := 0
		for _, s := range c.running {
			if s.decode && (s.PromptTokens+s.output-1)%c.p.BlockTokens == 0 {
				need++
			}
		}
		if need <= c.available() {
			break
		}
		preempted = true
		v := c.running[len(c.running)-1]
		c.leave(v)
		v.target, v.computed, v.decode = v.PromptTokens+v.output, 0, false
		c.waiting = append([]*refSeq{v}, c.waiting...)
		c.stats.Preemptions++
		c.events = append(c.events, Event{Kind: EventPreempted, Seq: v.ID, At: c.start, Cached: v.cached, Output: v.output})
	}
	decodes, ctx := 0, 0
	for _, s := range c.running {
		if s.decode {
			if (s.PromptTokens+s.output-1)%c.p.BlockTokens == 0 {
				s.anon++
				c.anon++
			}
			decodes++
			ctx += s.PromptTokens + s.output
		}
	}
	c.evict()
	budget, tokens, loads, attn := c.p.ChunkTokens-decodes, 0, 0, 0.0
	chunk := func(s *refSeq) {
		n := min(budget, s.target-s.computed)
		attn += float64(n) * (float64(s.computed) + float64(n)/2)
		tokens += n
		budget -= n
		s.computed += n
		c.name(s, s.computed)
		if s.computed == s.target {
			c.done = append(c.done, s)
		}
	}
	for _, s := range c.running {
		if !s.decode {
			chunk(s)
		}
	}
	for i := 0; !preempted && i < len(c.waiting) && budget > 0 && len(c.running) < c.p.MaxSeqs; {
		s := c.waiting[i]
		if !c.fits(s.Adapter) {
			i++
			continue
		}
		hit, unused := 0, 0
		for hit < min(len(s.Blocks), (s.target-1)/c.p.BlockTokens) {
			b := c.cache[s.Blocks[hit]]
			if b == nil {
				break
			}
			if b.ref == 0 {
				unused++
			}
			hit++
		}
		need := c.blocksFor(s.target) - hit
		if need+unused > c.available() {
			break
		}
		loads += c.load(s.Adapter)
		for _, h := range s.Blocks[:hit] {
			c.cache[h].ref++
		}
		s.named, s.anon = hit, need
		c.anon += need
		c.evict()
		s.computed = max(hit*c.p.BlockTokens, min(s.Known, s.PromptTokens-1))
		if !s.admitted {
			s.admitted, s.cached = true, s.computed
			c.stats.CacheQueries += int64(s.PromptTokens)
			c.stats.CacheHits += int64(s.cached)
		}
		c.waiting = append(c.waiting[:i], c.waiting[i+1:]...)
		c.running = append(c.running, s)
		c.events = append(c.events, Event{Kind: EventAdmitted, Seq: s.ID, At: c.start, Cached: s.cached, Output: s.output})
		chunk(s)
	}
	c.ticks = ticks(c.p.Base) + ticks(c.p.DSeq)*int64(decodes) + ticks(c.p.DCtx)*int64(ctx)
	if tokens > 0 {
		c.ticks += ticks(c.p.PTok*float64(tokens) + c.p.PAttn*attn + c.p.LoRALoad*float64(loads))
	}
}

func (c *refCore) name(s *refSeq, computed int) {
	for s.named < min(computed/c.p.BlockTokens, len(s.Blocks)) {
		h := s.Blocks[s.named]
		if c.cache[h] == nil {
			c.cache[h] = &refBlock{}
		}
		c.cache[h].ref++
		s.named++
		s.anon--
		c.anon--
	}
}

func (c *refCore) complete(end fleet.Time) {
	c.stats.Steps++
	var fin []*refSeq
	for _, s := range c.running {
		if s.decode {
			s.output++
			c.stats.OutputTokens++
			if s.output == s.OutputTokens {
				fin = append(fin, s)
			}
		}
	}
	finish := func(s *refSeq) {
		c.events = append(c.events, Event{Kind: EventFinished, Seq: s.ID, At: end, Cached: s.cached, Output: s.output})
		c.stats.Finished++
		c.leave(s)
	}
	for _, s := range fin {
		finish(s)
	}
	done := c.done
	c.done = nil
	for _, s := range done {
		s.output++
		s.decode = true
		c.stats.OutputTokens++
		if s.output == 1 {
			c.stats.PromptTokens += int64(s.PromptTokens)
			c.events = append(c.events, Event{Kind: EventFirstToken, Seq: s.ID, At: end, Cached: s.cached, Output: 1})
		}
		if s.output == s.OutputTokens {
			finish(s)
		}
	}
}

func (c *refCore) leave(s *refSeq) {
	if s.decode {
		c.name(s, s.PromptTokens+s.output-1)
	}
	for i := s.named - 1; i >= 0; i-- { // tail first
		b := c.cache[s.Blocks[i]]
		if b.ref--; b.ref == 0 {
			c.stamp++
			b.stamp = c.stamp
		}
	}
	c.anon -= s.anon
	s.named, s.anon = 0, 0
	for i, r := range c.running {
		if r == s {
			c.running = append(c.running[:i], c.running[i+1:]...)
		}
	}
	for i, r := range c.done {
		if r == s {
			c.done = append(c.done[:i], c.done[i+1:]...)
		}
	}
}

func (c *refCore) inUse(a string) bool {
	for _, s := range c.running {
		if s.Adapter == a {
			return true
		}
	}
	return false
}

func (c *refCore) fits(a string) bool {
	if a == "" || len(c.resident) < c.p.LoRASlots {
		return true
	}
	for _, r := range c.resident {
		if r == a || !c.inUse(r) {
			return true
		}
	}
	return false
}

func (c *refCore) load(a string) int {
	if a == "" {
		return 0
	}
	for i, r := range c.resident {
		if r == a {
			c.resident = append(append(c.resident[:i:i], c.resident[i+1:]...), a)
			return 0
		}
	}
	c.stats.AdapterLoads++
	if len(c.resident) == c.p.LoRASlots {
		for i, r := range c.resident {
			if !c.inUse(r) {
				c.stats.AdapterEvictions++
				c.resident = append(c.resident[:i:i], c.resident[i+1:]...)
				break
			}
		}
	}
	c.resident = append(c.resident, a)
	return 1
}

// snapshot is the comparable part of the statistics.
func (c *refCore) snapshot() Stats {
	s := c.stats
	s.Running, s.Waiting = len(c.running), len(c.waiting)
	for _, r := range c.running {
		if r.decode {
			s.Decoding++
			s.ContextTokens += r.PromptTokens + r.output
		}
	}
	for _, w := range c.waiting {
		s.WaitingTokens += w.target
		if !c.fits(w.Adapter) {
			s.Deferred++
		}
	}
	s.KVTokens = c.p.Blocks() * c.p.BlockTokens
	s.KVUsedTokens = (c.anon + c.pinned()) * c.p.BlockTokens
	s.KVCachedTokens = len(c.cache) * c.p.BlockTokens
	return s
}

func (c *refCore) cached() []uint64 {
	var hs []uint64
	for h := range c.cache {
		hs = append(hs, h)
	}
	sort.Slice(hs, func(i, j int) bool { return hs[i] < hs[j] })
	return hs
}
