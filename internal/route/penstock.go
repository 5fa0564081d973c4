// SPDX-License-Identifier: Apache-2.0

package route

import "math"

// PolicyPenstock is the name of the default policy.
const PolicyPenstock = "penstock"

// Constants of the price. They are weights of terms in milliseconds, chosen once
// on simulated workloads of seven families; none is meant to be tuned.
const (
	evictionPrice = 2.0  // times the hit share: expected repeats of an evicted prefix
	memoryPrice   = 0.15 // of a decode step for each output token, times the share pinned
	memoryFactor  = 20.0 // at most: the price rises as used^3/(1-used)
	leastFree     = 0.03 // free share below which the price rises no more
	// bothSides is the exchange rate below which a stream's part of the decode steps is
	// charged for the others as well, in full where a second of E2E is worth next to
	// nothing. Above it requests wait for seats and memory, which fuller batches give
	// back sooner.
	bothSides = 0.1
)

// penstock prices each candidate with what the request costs there, itself and
// others, in milliseconds.
type penstock struct{}

// Penstock returns the default policy: least expected delay, of the request itself
// and of those that it delays, with the price of the memory that it pins.
func Penstock() Policy { return penstock{} }

func (penstock) Name() string    { return PolicyPenstock }
func (penstock) SeesQueue() bool { return true }

func (penstock) Pick(in *Input, d *Decision) {
	d.begin(in, PolicyPenstock)
	d.price(in)
	d.choose(in.Slots)
}

// price fills in the cost of each candidate that was not dropped.
func (d *Decision) price(in *Input) {
	d.Priced = true
	for i := range d.Candidates {
		c := &d.Candidates[i]
		if c.Drop != DropNone {
			c.CostMS, c.OwnMS, c.Terms = math.Inf(1), 0, [NumTerms]float32{}
			continue
		}
		c.price(in)
	}
}

// price fills in what depends on the slot beside the accounting, and the cost.
func (c *Candidate) price(in *Input) {
	if in.Queue != nil && c.Queued > 0 {
		x := in.Engine.Prefill(float64(c.Uncached), in.PromptTokens) * float64(c.Speed)
		ahead, behind := in.Queue.Position(c.Slot, in.Request.Class, in.Tenant, x)
		c.AheadMS, c.Behind = float32(ahead*1e3), float32(behind)
	}
	if in.AdapterCold != nil && in.AdapterCold[c.Slot] {
		c.AdapterMS = float32(in.Context.AdapterMS)
		if in.AdapterWait != nil {
			c.AdapterMS += float32(in.AdapterWait[c.Slot])
		}
	}
	c.Price(&in.Engine, &in.Context, in.PromptTokens)
}

// Add adds milliseconds to one of the candidate's own terms and to its cost.
func (c *Candidate) Add(t Term, ms float64) {
	c.Terms[t] += float32(ms)
	c.CostMS += ms
	c.OwnMS += ms
}

// PriceAt prices the request of in at one slot as the penstock policy does. Of Hits,
// Pinned and Joins only the slot's own element is read.
func (c *Candidate) PriceAt(in *Input, slot int32) {
	c.Slot, c.Drop, c.Endpoint = slot, DropNone, in.Slots[slot].ID
	c.observe(in, &in.Slots[slot])
	c.price(in)
}

// Price computes the candidate's terms from its raw inputs, for a prompt of prompt
// tokens. It is pure: what-if questions change an input and price again.
//
// With n uncached tokens, x their prefill seconds, step one decode step there and
// k the share of time that is left for prefill beside decode steps:
//
//	own delay  (pending + ahead + memory wait)*k + x + (1/2 + chunks)*step, or of a step
//	           only the part of a chunk that n is, where it joins a prompt that is pending
//	others     x * (behind + to come + exchange*streams + 2*hit share where the cache is full)
//	decode     exchange * output * (DSeq*streams + DCtx*context), up to twice that where
//	           first tokens come fast: what it costs the streams is about what they cost it
//	memory     0.15 * output * step * newly pinned share * used^3/(1 - used)
//	followers  less the part of x, and of what it costs others, that earlier requests
//	           paid for want of the copy that it makes; nothing where the cache is full
func (c *Candidate) Price(e *Coef, x *Context, prompt float64) {
	speed := float64(c.Speed) * 1e3 // seconds of the pool's model to ms here
	n, streams, ctx := float64(c.Uncached), float64(c.Streams), float64(c.CtxTokens)
	work := e.Prefill(n, prompt) * speed
	step := e.Step(streams, ctx) * speed
	k := 1 + step/(e.Chunk*e.PTok*speed)
	chunks := math.Ceil(n / e.Chunk)
	full := 0.0
	if c.Full {
		full = evictionPrice * x.HitShare
	}
	wait, used, share := c.memory(step, x.MeanOutput)
	if c.Queued > 0 {
		wait = c.afterQueue(step, x.MeanOutput)
	}

	t := &c.Terms
	pending, ahead, wait := float64(c.PendingMS)*k, float64(c.AheadMS)*k, wait*k
	steps := (0.5 + chunks) * step
	if c.Joins {
		steps = n / e.Chunk * step
	}
	behind, toCome := work*float64(c.Behind), work*x.Pressure
	stall, evicted := work*x.Exchange*max(0, streams-float64(c.Yielding)), work*full
	decode := x.Exchange * x.OwnOutput * (e.DSeq*streams + e.DCtx*ctx) * speed
	decode *= 1 + max(0, 1-x.Exchange/bothSides)
	memory := memoryPrice * x.OwnOutput * step * share * min(memoryFactor, used*used*used/max(leastFree, 1-used))
	adapter := float64(c.AdapterMS)

	followers := 0.0
	if c.Credit > 0 && n > 0 && !c.Full {
		followers = -min(1, float64(c.Credit)/n) * (work + behind + toCome + stall + evicted)
	}

	c.OwnMS = pending + ahead + wait + work + steps + adapter
	c.CostMS = c.OwnMS + behind + toCome + stall + evicted + decode + memory + followers
	t[TermPending], t[TermAhead], t[TermMemoryWait] = float32(pending), float32(ahead), float32(wait)
	t[TermPrefill], t[TermSteps] = float32(work), float32(steps)
	t[TermBehind], t[TermToCome] = float32(behind), float32(toCome)
	t[TermStreams], t[TermEvicted] = float32(stall), float32(evicted)
	t[TermDecode], t[TermMemoryPrice], t[TermAdapter] = float32(decode), float32(memory), float32(adapter)
	t[TermFollowers] = float32(followers)
	if x.Without != 0 {
		c.leaveOut(x.Without)
	}
}

// ownTerms are those that add up to the expected time to first token.
const ownTerms Terms = 1<<TermPending | 1<<TermAhead | 1<<TermMemoryWait | 1<<TermPrefill | 1<<TermSteps | 1<<TermAdapter

// leaveOut makes terms zero and adds up the others.
func (c *Candidate) leaveOut(without Terms) {
	c.CostMS, c.OwnMS = 0, 0
	for t := range Term(NumTerms) {
		if without.Has(t) {
			c.Terms[t] = 0
			continue
		}
		c.CostMS += float64(c.Terms[t])
		if ownTerms.Has(t) {
			c.OwnMS += float64(c.Terms[t])
		}
	}
}

// memory returns the wait until KV memory and a seat in the batch are free, in the
// unit of step, the used share after placing and the share that is newly pinned.
// Requests end, and give memory and seats back, every output*step on average.
func (c *Candidate) memory(step, output float64) (wait, used, share float64) {
	return c.memoryOf(step, output, c.ends())
}

// ends is the KV memory in tokens of what was sent there, which comes free as it ends.
// What waits for its first token ends as well: a replica without a stream yet is not full
// for ever.
func (c *Candidate) ends() float64 { return max(1, float64(c.CtxTokens), float64(c.UsedKV)) }

func (c *Candidate) memoryOf(step, output, ends float64) (wait, used, share float64) {
	if limit := float64(c.LimitKV); limit > 0 {
		use := float64(c.UsedKV) + float64(c.NewKV)
		used, share = use/limit, float64(c.NewKV)/limit
		if use > limit {
			wait = (use - limit) * output * step / ends
		}
	}
	if c.SeatsFree < 1 {
		seats := (1 - float64(c.SeatsFree)) * output * step / max(1, float64(c.Streams))
		wait = max(wait, seats)
	}
	return wait, used, share
}

// afterQueue is the wait for memory and a seat once the requests of the router's
// queue that go first have taken theirs. They are not there yet and give nothing back.
func (c *Candidate) afterQueue(step, output float64) float64 {
	q := *c
	first := max(0, float32(c.Queued)-c.Behind)
	q.SeatsFree -= first
	q.UsedKV += c.QueuedKV * first / float32(c.Queued)
	wait, _, _ := q.memoryOf(step, output, c.ends())
	return wait
}

// MemoryWaitMS returns the milliseconds until the candidate has room in its KV
// memory and its batch.
func (c *Candidate) MemoryWaitMS(e *Coef, x *Context) float64 {
	step := e.Step(float64(c.Streams), float64(c.CtxTokens)) * float64(c.Speed) * 1e3
	w, _, _ := c.memory(step, x.MeanOutput)
	return w
}

// PrefillCostMS is the part of the cost, others' delay included, that is due to
// computing what is missing of the prompt.
func (c *Candidate) PrefillCostMS() float64 {
	t := &c.Terms
	return float64(t[TermPrefill] + t[TermBehind] + t[TermToCome] + t[TermStreams] + t[TermEvicted])
}

// AloneMS is the cost without what earlier requests paid.
func (c *Candidate) AloneMS() float64 { return c.CostMS - float64(c.Terms[TermFollowers]) }
