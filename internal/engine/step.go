// SPDX-License-Identifier: Apache-2.0

package engine

import (
	"math"

	"github.com/penstock-project/penstock/internal/fleet"
)

// step is a run of n steps with the same batch: one step that computes prompts, or
// as many decode steps as pass before anything changes. The i-th of them (from 0)
// takes first + i*grow ticks, since each adds one token a sequence to the context.
type step struct {
	busy  bool
	start fleet.Time
	frac  int64 // ticks past start, < ticksPerNS
	first int64
	grow  int64
	n     int64
	end   fleet.Time
	// prompt tokens and (token, context) pairs computed; only where n is 1
	prompts int
	pairs   float64
	// the last answer of stepsBy, which is asked for each sequence at one moment
	asked  fleet.Time
	over   int64
	answer bool
}

// ticksAfter is the length of the first j steps.
func (s *step) ticksAfter(j int64) int64 { return j*s.first + s.grow*(j*(j-1)/2) }

// at is when the first j steps are over.
func (s *step) at(j int64) fleet.Time {
	return s.start + fleet.Time((s.frac+s.ticksAfter(j))/ticksPerNS)
}

// stepsBy is how many of the steps, but for the last, are over at now.
func (s *step) stepsBy(now fleet.Time) int64 {
	if s.n <= 1 || now <= s.start {
		return 0
	}
	if now >= s.end {
		return s.n - 1
	}
	if !s.answer || s.asked != now {
		s.answer, s.asked, s.over = true, now, s.solve(now)
	}
	return s.over
}

// solve is stepsBy for a moment within the run.
func (s *step) solve(now fleet.Time) int64 {
	// Solve first*j + grow*j*(j-1)/2 = elapsed in floats, then correct exactly.
	t := float64(now-s.start) * ticksPerNS
	j := t / float64(s.first)
	if s.grow > 0 {
		b := float64(s.first)/float64(s.grow) - 0.5
		j = math.Sqrt(b*b+2*t/float64(s.grow)) - b
	}
	k := min(max(int64(j), 0), s.n-1)
	for k > 0 && s.at(k) > now {
		k--
	}
	for k < s.n-1 && s.at(k+1) <= now {
		k++
	}
	return k
}

// run does all transitions up to and including now.
func (c *Core) run(now fleet.Time, out []Event) []Event {
	for {
		if !c.cur.busy {
			if c.wake > now || c.waiting.n == 0 {
				c.wake = c.idleWake()
				return out
			}
			c.cur.start, c.cur.frac = c.wake, 0
			c.wake = fleet.Never
			out = c.begin(out)
			continue
		}
		if c.cur.end > now {
			return out
		}
		out = c.complete(out)
		end := c.cur.frac + c.cur.ticksAfter(c.cur.n)
		c.cur.start += fleet.Time(end / ticksPerNS)
		c.cur.frac = end % ticksPerNS
		c.cur.busy = false
		if c.running.n+c.waiting.n > 0 {
			out = c.begin(out)
		}
	}
}

func (c *Core) idleWake() fleet.Time {
	if c.waiting.n == 0 {
		return fleet.Never
	}
	return c.wake
}

// begin plans the step that starts at c.cur.start: decodes first, then the prompt
// that is under way, then whoever waits, as the token budget and the KV cache allow.
func (c *Core) begin(out []Event) []Event {
	out, preempted := c.growDecodes(out)
	var plan prefillPlan
	plan.budget = max(1, c.p.ChunkTokens-c.decoding)
	decodes, ctx := c.decoding, c.ctx
	if c.partial >= 0 {
		c.prefill(c.partial, &plan)
	}
	if !preempted {
		out = c.admit(out, &plan)
	}
	if c.running.n == 0 {
		return out // nobody waits: an empty replica admits whatever Submit let in
	}
	c.inStep = true
	s := &c.cur
	s.busy, s.n, s.grow, s.answer = true, 1, 0, false
	s.prompts, s.pairs = plan.tokens, plan.attn
	s.first = c.base + c.dSeq*int64(decodes) + c.dCtx*ctx
	if plan.tokens > 0 || plan.loads > 0 {
		s.first += ticks(c.p.PTok*float64(plan.tokens) + c.p.PAttn*plan.attn + c.p.LoRALoad*float64(plan.loads))
	} else {
		s.grow = c.dCtx * int64(decodes)
		if !c.o.Tokens && !preempted {
			s.n = c.quietSteps()
		}
	}
	s.first = max(s.first, ticksPerNS) // time always moves
	s.end = s.at(s.n)
	return out
}

type prefillPlan struct {
	budget, tokens, loads int
	attn                  float64
}

// prefill gives a sequence its chunk of the step.
func (c *Core) prefill(id int32, plan *prefillPlan) {
	s := &c.slots[id]
	n := min(plan.budget, int(s.target-s.computed))
	plan.attn += float64(n) * (float64(s.computed) + float64(n)/2)
	plan.tokens += n
	plan.budget -= n
	s.computed += int32(n)
	c.n.prefilledTokens += int64(n)
	c.nameBlocks(id, int(s.computed))
	if s.computed < s.target {
		c.partial = id
		return
	}
	c.partial = -1
	c.done = append(c.done, id)
}

// nameBlocks names the blocks whose tokens [0, computed) fill them, so that others
// can share them.
func (c *Core) nameBlocks(id int32, computed int) {
	s := &c.slots[id]
	to := min(computed/c.p.BlockTokens, len(s.seq.Blocks))
	from := int(s.named)
	if to <= from {
		return
	}
	s.tip = c.kv.extend(s.tip, s.seq.Blocks, from, to)
	s.named = int32(to)
	s.anon -= int32(to - from)
	c.kv.anon -= to - from
}

// admit lets waiting sequences into the batch, first come first served. One whose
// adapter finds no slot is passed over; one that finds no memory holds back all.
func (c *Core) admit(out []Event, plan *prefillPlan) []Event {
	for id := c.waiting.head; id >= 0 && plan.budget > 0 && c.running.n < c.p.MaxSeqs && c.partial < 0; {
		s := &c.slots[id]
		next := s.next
		if !c.lora.fits(s.adapter) {
			id = next
			continue
		}
		limit := min(len(s.seq.Blocks), (int(s.target)-1)/c.p.BlockTokens)
		hit, unused, tip, off := c.kv.match(s.seq.Blocks, limit)
		need := c.blocksFor(int(s.target)) - hit
		if need+unused > c.kv.available() {
			return out
		}
		c.unlink(&c.waiting, id)
		c.n.waitingTokens -= int64(s.target)
		c.lora.wait(s.adapter, -1)
		plan.loads += c.lora.use(s.adapter)
		s.tip = c.kv.pin(tip, off)
		s.named, s.anon = int32(hit), int32(need)
		c.kv.anon += need
		c.kv.evict()
		s.computed = int32(max(hit*c.p.BlockTokens, min(s.seq.Known, s.seq.PromptTokens-1)))
		if !s.admitted {
			s.admitted, s.cached = true, s.computed
			c.n.queries += int64(s.seq.PromptTokens)
			c.n.hits += int64(s.cached)
		}
		s.state = slotPrefill
		s.order, c.order = c.order, c.order+1
		c.link(&c.running, id, false)
		out = append(out, Event{Kind: EventAdmitted, Seq: s.seq.ID, At: c.cur.start, Cached: int(s.cached), Output: int(s.output)})
		c.prefill(id, plan)
		id = next
	}
	return out
}

// growDecodes takes the blocks that decoding sequences open in this step and
// preempts the latest arrivals where there are none left.
func (c *Core) growDecodes(out []Event) ([]Event, bool) {
	preempted := false
	for {
		need := c.growth(c.steps, 1)
		if need <= c.kv.available() {
			c.kv.anon += need
			c.kv.evict()
			return out, preempted
		}
		preempted = true
		out = c.preempt(c.running.tail, out)
	}
}

// growth is how many blocks the decoding sequences open in n steps from step s: a
// sequence opens one when the tokens before its newest fill whole blocks.
func (c *Core) growth(s, n int64) int {
	b := int64(len(c.ring))
	g := n / b * int64(c.decoding)
	if n %= b; n == 0 || c.decoding == 0 {
		return int(g)
	}
	// Backwards from here, around the ring.
	i := int64(c.ringIndex(1-s)) + 1
	if n > i {
		g += total(c.ring[b-(n-i):])
		n = i
	}
	return int(g + total(c.ring[i-n:i]))
}

func total(v []int32) int64 {
	g := int64(0)
	for _, x := range v {
		g += int64(x)
	}
	return g
}

func (c *Core) ringIndex(x int64) int {
	b := int64(len(c.ring))
	if x %= b; x < 0 {
		x += b
	}
	return int(x)
}

// quietSteps is how many decode steps pass from here before a sequence ends or the
// memory runs out.
func (c *Core) quietSteps() int64 {
	n := c.finish[0].at - c.steps
	room := c.kv.available()
	if int64(c.decoding)*((n-1)/int64(len(c.ring))+1) <= int64(room) {
		return n
	}
	lo, hi := int64(1), n // growth after lo steps fits; this step's is taken already
	for lo < hi {
		m := (lo + hi + 1) / 2
		if c.growth(c.steps+1, m-1) <= room {
			lo = m
		} else {
			hi = m - 1
		}
	}
	return lo
}

// settle turns j finished steps of the current run into state, so that the step in
// progress is its first.
func (c *Core) settle(j int64) {
	s := &c.cur
	if j == 0 {
		return
	}
	c.kv.anon += c.growth(c.steps+1, j)
	c.kv.evict()
	c.count(j)
	t := s.ticksAfter(j)
	s.start += fleet.Time((s.frac + t) / ticksPerNS)
	s.frac = (s.frac + t) % ticksPerNS
	s.first += j * s.grow
	s.n -= j
	s.answer = false
}

// count books j steps of the current run.
func (c *Core) count(j int64) {
	c.n.engineSteps += j
	c.n.busy += c.cur.ticksAfter(j)
	c.n.prompts += int64(c.cur.prompts)
	c.n.pairs += c.cur.pairs
	c.n.decodes += j * int64(c.decoding)
	c.n.context += j*c.ctx + int64(c.decoding)*(j*(j-1)/2)
	c.n.output += j * int64(c.decoding)
	c.ctx += j * int64(c.decoding)
	c.steps += j
}

// cut ends the current run with the step in progress, since something changed.
func (c *Core) cut(now fleet.Time) {
	if !c.cur.busy || c.cur.n == 1 {
		return
	}
	c.settle(c.cur.stepsBy(now))
	c.cur.n, c.cur.answer = 1, false
	c.cur.end = c.cur.at(1)
}
