// SPDX-License-Identifier: Apache-2.0

package engine

// finishEntry says at which step a decoding sequence has its last token. Entries
// form a binary heap; ties go by the order of admission.
type finishEntry struct {
	at    int64
	order int64
	slot  int32
}

func (a *finishEntry) before(b *finishEntry) bool {
	return a.at < b.at || a.at == b.at && a.order < b.order
}

// complete books the run of steps that is over and tells what came out of it.
func (c *Core) complete(out []Event) []Event {
	n := c.cur.n
	end := c.cur.end
	c.inStep = false
	if n > 1 {
		c.kv.anon += c.growth(c.steps+1, n-1)
		c.kv.evict()
	}
	c.count(n)
	if c.o.Tokens {
		for id := c.running.head; id >= 0; id = c.slots[id].next {
			if s := &c.slots[id]; s.state == slotDecode {
				out = append(out, Event{Kind: EventToken, Seq: s.seq.ID, At: end, Cached: int(s.cached), Output: int(int64(s.output) + c.steps - s.start)})
			}
		}
	}
	for len(c.finish) > 0 && c.finish[0].at <= c.steps {
		out = c.end(c.finish[0].slot, out)
	}
	done := c.done
	c.done = c.done[:0]
	for _, id := range done {
		out = c.firstToken(id, out)
	}
	return out
}

// firstToken moves a sequence whose prompt is computed to decoding: the step that
// computed it also gave a token.
func (c *Core) firstToken(id int32, out []Event) []Event {
	s := &c.slots[id]
	s.output++
	c.n.output++
	kind := EventToken
	if s.output == 1 {
		kind = EventFirstToken
		c.n.prompt += int64(s.seq.PromptTokens)
	}
	if kind == EventFirstToken || c.o.Tokens {
		out = append(out, Event{Kind: kind, Seq: s.seq.ID, At: c.cur.end, Cached: int(s.cached), Output: int(s.output)})
	}
	s.state, s.start = slotDecode, c.steps
	tokens := int64(s.seq.PromptTokens) + int64(s.output)
	c.decoding++
	c.ctx += tokens
	c.ring[c.ringIndex(tokens-c.steps)]++
	c.heapPush(finishEntry{at: c.steps + int64(s.seq.OutputTokens) - int64(s.output), order: s.order, slot: id})
	if int(s.output) >= s.seq.OutputTokens {
		out = c.end(id, out)
	}
	return out
}

// end finishes a sequence that has all its tokens.
func (c *Core) end(id int32, out []Event) []Event {
	s := &c.slots[id]
	out = append(out, Event{Kind: EventFinished, Seq: s.seq.ID, At: c.cur.end, Cached: int(s.cached), Output: s.seq.OutputTokens})
	c.n.finished++
	c.drop(id)
	return out
}

// drop removes a sequence, wherever it is.
func (c *Core) drop(id int32) {
	s := &c.slots[id]
	if s.state == slotWaiting {
		c.n.waitingTokens -= int64(s.target)
		c.lora.wait(s.adapter, -1)
		c.unlink(&c.waiting, id)
		if c.waiting.n == 0 {
			c.wakeless()
		}
	} else {
		c.leave(id)
	}
	c.ids.del(s.seq.ID)
	*s = slot{next: c.free}
	c.free = id
}

// wakeless forgets the start of a step for which nobody waits any more.
func (c *Core) wakeless() {
	if !c.cur.busy {
		c.wake = c.idleWake()
	}
}

// leave takes a running sequence out of the batch and frees its blocks, keeping
// those that have a name in the cache.
func (c *Core) leave(id int32) {
	s := &c.slots[id]
	if s.state == slotDecode {
		s.output = int32(int64(s.output) + c.steps - s.start)
		tokens := int64(s.seq.PromptTokens) + int64(s.output)
		c.decoding--
		c.ctx -= tokens
		c.ring[c.ringIndex(tokens-c.steps)]--
		c.heapRemove(s.heap)
		held := int(tokens) - 1 // tokens with a place in the cache
		if c.inStep {
			held++
		}
		s.anon = int32(c.blocksFor(held)) - s.named
		c.nameBlocks(id, int(tokens)-1) // the newest token is not computed yet
	}
	if c.partial == id {
		c.partial = -1
	}
	for i, d := range c.done {
		if d == id {
			c.done = append(c.done[:i], c.done[i+1:]...)
			break
		}
	}
	c.kv.anon -= int(s.anon)
	if s.tip >= 0 {
		c.kv.release(s.tip)
	}
	s.tip, s.named, s.anon = -1, 0, 0
	c.lora.drop(s.adapter)
	c.unlink(&c.running, id)
}

// preempt takes a running sequence out of the batch and puts it in front of all
// that wait; prompt and output so far are computed anew.
func (c *Core) preempt(id int32, out []Event) []Event {
	c.leave(id)
	s := &c.slots[id]
	s.target = int32(s.seq.PromptTokens) + s.output
	s.computed = 0
	c.n.preempted++
	c.wait(id, true)
	return append(out, Event{Kind: EventPreempted, Seq: s.seq.ID, At: c.cur.start, Cached: int(s.cached), Output: int(s.output)})
}

func (c *Core) heapPush(e finishEntry) {
	c.finish = append(c.finish, e)
	c.heapUp(len(c.finish) - 1)
}

func (c *Core) heapRemove(i int32) {
	last := len(c.finish) - 1
	c.slots[c.finish[i].slot].heap = -1
	if int(i) == last {
		c.finish = c.finish[:last]
		return
	}
	c.finish[i] = c.finish[last]
	c.finish = c.finish[:last]
	c.heapUp(int(i))
	c.heapDown(int(c.slots[c.finish[i].slot].heap))
}

func (c *Core) heapUp(i int) {
	e := c.finish[i]
	for i > 0 {
		up := (i - 1) / 2
		if !e.before(&c.finish[up]) {
			break
		}
		c.finish[i] = c.finish[up]
		c.slots[c.finish[i].slot].heap = int32(i)
		i = up
	}
	c.finish[i] = e
	c.slots[e.slot].heap = int32(i)
}

func (c *Core) heapDown(i int) {
	e := c.finish[i]
	for {
		kid := 2*i + 1
		if kid >= len(c.finish) {
			break
		}
		if kid+1 < len(c.finish) && c.finish[kid+1].before(&c.finish[kid]) {
			kid++
		}
		if !c.finish[kid].before(&e) {
			break
		}
		c.finish[i] = c.finish[kid]
		c.slots[c.finish[i].slot].heap = int32(i)
		i = kid
	}
	c.finish[i] = e
	c.slots[e.slot].heap = int32(i)
}
