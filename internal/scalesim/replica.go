// SPDX-License-Identifier: Apache-2.0

package scalesim

import "math"

// never is later than every moment of a run, in seconds.
const never = math.MaxFloat64

// job is one request at one replica.
type job struct {
	id   int32 // index into the stream
	left int32 // prompt tokens not prefilled yet
	done int32 // context tokens already in the cache (cached prefix and finished chunks)
}

// finish says at which decode step a stream gives its last token.
type finish struct {
	step int64
	id   int32
}

// replica is one engine at request level: continuous batching with chunked
// prefill, where decode steps between two events are jumped over in closed form.
// An event costs O(log streams), whatever the length of an answer.
type replica struct {
	id    int
	slot  int // in the clock; -1 while no engine runs
	state replicaState
	asked float64 // when it was started
	ready float64 // when it becomes ready; never for a dead start
	crash float64 // when it crashes; never for one that does not
	stuck float64 // share of the start-up after which a dead start hangs
	warm  float64 // before it nothing is computed, though the port may answer

	refused bool // there is no accelerator for it

	t     float64 // end of the last step computed
	next  float64 // end of the step, or of the jump, in progress
	jump  int64   // decode steps in progress; 0 while prefilling
	steps int64   // steps done: every stream gets one token a step
	ctx   float64 // context tokens of the running streams
	kv    int64   // tokens of KV cache reserved
	run   []finish
	pre   []job // prefill queue; head first
	head  int
	chunk []chunkPart
	work  float64 // seconds of prefill outstanding
}

// chunkPart is what one prefill gets of the step in progress.
type chunkPart struct {
	tokens int32
	last   bool // completes the prompt
}

type replicaState uint8

const (
	starting replicaState = iota
	serving
	draining
	gone
)

// inFlight is the number of requests inside.
func (r *replica) inFlight() int { return len(r.run) + len(r.pre) - r.head }

// waiting is the number of requests whose prefill has not begun.
func (r *replica) waiting() int {
	n := 0
	for _, j := range r.pre[r.head:] {
		if j.left > 0 && j.done == 0 {
			n++
		}
	}
	if n > 0 && len(r.chunk) > 0 {
		n--
	}
	return max(0, n)
}

// submit hands request id over at moment now. The step in progress ends first.
func (s *run) submit(r *replica, id int32, now float64) {
	st := s.st
	j := job{id: id, left: max(1, st.in[id]), done: st.ctx[id] - max(1, st.in[id])}
	r.kv += int64(st.ctx[id] + st.out[id])
	r.work += s.prefill[id]
	if r.head > 0 && r.head == len(r.pre) {
		r.pre, r.head = r.pre[:0], 0
	}
	r.pre = append(r.pre, j)
	if r.next == never {
		r.t = math.Max(now, r.warm)
		s.begin(r)
		s.heap.fix(r)
		return
	}
	if r.jump > 0 && now >= r.t { // cut the jump at the first step boundary from now on
		a := s.m.Base + s.m.DSeq*float64(len(r.run)) + s.m.DCtx*r.ctx
		b := s.m.DCtx * float64(len(r.run))
		k := stepsUntil(a, b, now-r.t)
		if k < r.jump {
			r.jump = k
			r.next = r.t + jumpSeconds(a, b, k)
			s.heap.fix(r)
		}
	}
}

// jumpSeconds is the time of k decode steps of which the first takes a seconds
// and each further one b seconds more than the one before.
func jumpSeconds(a, b float64, k int64) float64 {
	return float64(k)*a + b*float64(k)*float64(k-1)/2
}

// stepsUntil is the least k >= 1 whose steps take d seconds or more.
func stepsUntil(a, b, d float64) int64 {
	if d <= a {
		return 1
	}
	// b/2 k^2 + (a-b/2) k - d = 0
	h := a - b/2
	k := 2 * d / (h + math.Sqrt(h*h+2*b*d))
	n := int64(math.Ceil(k - 1e-9))
	return max(1, n)
}

// begin starts the next step or jump at r.t.
func (s *run) begin(r *replica) {
	n := len(r.run)
	r.chunk, r.jump = r.chunk[:0], 0
	if r.head < len(r.pre) {
		budget := int32(max(s.m.ChunkTokens/4, s.m.ChunkTokens-n))
		dt := s.m.Base + s.m.DSeq*float64(n) + s.m.DCtx*r.ctx
		for i := r.head; i < len(r.pre) && budget > 0; i++ {
			j := r.pre[i]
			k := min(j.left, budget)
			budget -= k
			dt += float64(k) * (s.m.PTok + s.m.PAttn*(float64(j.done)+float64(k)/2))
			r.chunk = append(r.chunk, chunkPart{k, k == j.left})
		}
		r.next = r.t + dt
		return
	}
	if n == 0 {
		r.next = never
		return
	}
	r.jump = max(1, r.run[0].step-r.steps)
	a := s.m.Base + s.m.DSeq*float64(n) + s.m.DCtx*r.ctx
	r.next = r.t + jumpSeconds(a, s.m.DCtx*float64(n), r.jump)
}

// complete ends the step or jump in progress: streams get their tokens, prompts
// that are done become streams, and the next step begins.
func (s *run) complete(r *replica) {
	st := s.st
	r.t = r.next
	k := max(1, r.jump)
	r.steps += k
	r.ctx += float64(k) * float64(len(r.run))
	for len(r.run) > 0 && r.run[0].step <= r.steps {
		id := r.run[0].id
		r.run = popFinish(r.run)
		r.ctx -= float64(st.ctx[id] + st.out[id])
		s.finished(r, id)
	}
	for _, c := range r.chunk {
		j := &r.pre[r.head]
		sec := float64(c.tokens) * (s.m.PTok + s.m.PAttn*(float64(j.done)+float64(c.tokens)/2))
		r.work = math.Max(0, r.work-sec)
		j.left -= c.tokens
		j.done += c.tokens
		if !c.last {
			break
		}
		r.head++
		id := j.id
		s.first[id] = float32(r.t - st.at[id])
		s.firstAt[id] = r.t
		s.ttft.add(r.t, float64(s.first[id]))
		if st.out[id] <= 1 {
			s.finished(r, id)
			continue
		}
		r.ctx += float64(st.ctx[id] + 1)
		r.run = pushFinish(r.run, finish{r.steps + int64(st.out[id]) - 1, id})
	}
	if r.head == len(r.pre) {
		r.work = 0 // no residue of rounding, so that ties are ties
	}
	if r.head > 64 && r.head*2 > len(r.pre) {
		r.pre = r.pre[:copy(r.pre, r.pre[r.head:])]
		r.head = 0
	}
	s.begin(r)
}

func pushFinish(h []finish, f finish) []finish {
	h = append(h, f)
	i := len(h) - 1
	for i > 0 {
		p := (i - 1) / 2
		if h[p].step <= f.step {
			break
		}
		h[i] = h[p]
		i = p
	}
	h[i] = f
	return h
}

func popFinish(h []finish) []finish {
	n := len(h) - 1
	f := h[n]
	h = h[:n]
	if n == 0 {
		return h
	}
	i := 0
	for {
		c := 2*i + 1
		if c >= n {
			break
		}
		if c+1 < n && h[c+1].step < h[c].step {
			c++
		}
		if f.step <= h[c].step {
			break
		}
		h[i] = h[c]
		i = c
	}
	h[i] = f
	return h
}

// clock is a binary heap of replicas by the end of their step in progress.
type clock struct{ h []*replica }

func (c *clock) add(r *replica) {
	r.slot = len(c.h)
	c.h = append(c.h, r)
	c.fix(r)
}

func (c *clock) fix(r *replica) {
	i := r.slot
	for i > 0 {
		p := (i - 1) / 2
		if c.h[p].next <= r.next {
			break
		}
		c.set(i, c.h[p])
		i = p
	}
	for {
		k := 2*i + 1
		if k >= len(c.h) {
			break
		}
		if k+1 < len(c.h) && c.h[k+1].next < c.h[k].next {
			k++
		}
		if r.next <= c.h[k].next {
			break
		}
		c.set(i, c.h[k])
		i = k
	}
	c.set(i, r)
}

func (c *clock) set(i int, r *replica) { c.h[i] = r; r.slot = i }

func (c *clock) remove(r *replica) {
	n := len(c.h) - 1
	last := c.h[n]
	i := r.slot
	c.h = c.h[:n]
	r.slot = -1
	if last != r {
		c.set(i, last)
		c.fix(last)
	}
}
