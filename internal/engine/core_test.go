// SPDX-License-Identifier: Apache-2.0

package engine

import (
	"fmt"
	"slices"
	"sort"
	"testing"

	"github.com/google/go-cmp/cmp"
	"pgregory.net/rapid"

	"github.com/penstock-project/penstock/internal/fleet"
)

// drawProfile draws a small replica, so that memory, budget, slots and the cap on
// sequences all bind within a few dozen requests.
func drawProfile(t *rapid.T) Profile {
	p := Profile{
		Name: "drawn", TensorParallel: 1,
		Base: rapid.Float64Range(1e-4, 1e-2).Draw(t, "base"), PTok: rapid.Float64Range(1e-6, 1e-4).Draw(t, "ptok"),
		PAttn: 1e-9, DSeq: rapid.Float64Range(0, 1e-4).Draw(t, "dseq"), DCtx: rapid.Float64Range(0, 1e-5).Draw(t, "dctx"),
		BlockTokens: rapid.SampledFrom([]int{1, 2, 4, 16}).Draw(t, "block"),
		MaxSeqs:     rapid.IntRange(1, 8).Draw(t, "seqs"), MaxModelLen: 1 << 20,
		LoRASlots: rapid.IntRange(0, 2).Draw(t, "slots"), LoRALoad: 0.003,
	}
	p.ChunkTokens = p.MaxSeqs + rapid.IntRange(1, 40).Draw(t, "chunk")
	p.KVTokens = p.BlockTokens * rapid.IntRange(8, 60).Draw(t, "blocks")
	return p
}

// chain is a family of prompts: each step of the path picks one of a few children.
func chain(path []int) []uint64 {
	h := uint64(1)
	var out []uint64
	for _, x := range path {
		h = (h*31 + uint64(x+1)) * 0x9e3779b97f4a7c15
		h ^= h >> 29
		out = append(out, h)
	}
	return out
}

func drawSeq(t *rapid.T, p *Profile, id uint64) Seq {
	s := Seq{ID: id, PromptTokens: rapid.IntRange(1, p.KVTokens).Draw(t, "prompt"), OutputTokens: rapid.IntRange(1, 30).Draw(t, "output")}
	if rapid.Bool().Draw(t, "short") {
		s.PromptTokens = 1 + s.PromptTokens/4
	}
	whole := s.PromptTokens / p.BlockTokens
	if rapid.IntRange(0, 3).Draw(t, "name output") == 0 {
		whole = (s.PromptTokens + s.OutputTokens) / p.BlockTokens
	}
	path := make([]int, min(whole, rapid.IntRange(0, 60).Draw(t, "named")))
	fork := rapid.IntRange(0, len(path)).Draw(t, "fork")
	branch := rapid.IntRange(0, 3).Draw(t, "branch")
	for i := range path {
		if i >= fork {
			path[i] = branch
		}
	}
	s.Blocks = chain(path)
	if rapid.IntRange(0, 9).Draw(t, "known") == 0 {
		s.Known = rapid.IntRange(0, p.KVTokens).Draw(t, "known tokens")
	}
	if rapid.IntRange(0, 2).Draw(t, "lora") == 0 {
		s.Adapter = fmt.Sprintf("a%d", rapid.IntRange(0, 3).Draw(t, "adapter"))
		for i := range s.Blocks { // the adapter is part of the key
			s.Blocks[i] ^= uint64(len(s.Adapter)) << 60
		}
	}
	return s
}

// TestCoreAgainstReference drives the core, the core without skipping and the
// per-block oracle with the same calls, and compares all they tell.
func TestCoreAgainstReference(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		p := drawProfile(t)
		fast, slow, ref := NewCore(p, CoreOptions{BlockEvents: true}), NewCore(p, CoreOptions{Tokens: true}), newRef(p)
		var all, got, stepped []Event
		submitted := map[uint64]Seq{}
		mirror := map[uint64]bool{}
		now, next := fleet.Time(1), uint64(1)
		check := func() {
			got = fast.Advance(now, got[:0])
			stepped = slow.Advance(now, stepped[:0])
			all = append(all, got...)
			ref.advance(now)
			if want, have := byTime(ref.events), byTime(got); !slices.Equal(want, have) {
				t.Fatalf("events (- reference + core) at %d:\n%s", now, cmp.Diff(want, have))
			}
			if want, have := byTime(dropTokens(stepped)), byTime(got); !slices.Equal(want, have) {
				t.Fatalf("events (- stepping + skipping) at %d:\n%s", now, cmp.Diff(want, have))
			}
			ref.events = ref.events[:0]
			st := fast.Stats(now)
			if want := slow.Stats(now); want != st {
				t.Fatalf("stats (- stepping + skipping) at %d:\n%s", now, cmp.Diff(want, st))
			}
			st.PrefillTokens, st.BusySeconds, st.Prefilled = 0, 0, 0 // the reference does not keep them
			if want := ref.snapshot(); want != st {
				t.Fatalf("stats (- reference + core) at %d:\n%s", now, cmp.Diff(want, st))
			}
			for _, r := range ref.running {
				if g := fast.Generated(now, r.ID); g != r.output {
					t.Fatalf("sequence %d has %d tokens at %d, reference %d", r.ID, g, now, r.output)
				}
			}
			fast.cut(now) // so that skipped evictions show
			mirrorChanges(t, mirror, fast.TakeBlockChanges(nil))
			if want, have := ref.cached(), cachedBlocks(fast); !slices.Equal(want, have) {
				t.Fatalf("cached blocks (- reference + core) at %d:\n%s", now, cmp.Diff(want, have))
			}
			if len(mirror) != len(ref.cache) {
				t.Fatalf("block events leave %d blocks, cache has %d", len(mirror), len(ref.cache))
			}
			checkInvariants(t, fast)
		}
		for range rapid.IntRange(1, 60).Draw(t, "calls") {
			if rapid.IntRange(0, 3).Draw(t, "wait") > 0 {
				now += fleet.Time(rapid.IntRange(0, 60_000_000).Draw(t, "ns"))
			}
			check()
			if rapid.IntRange(0, 9).Draw(t, "cancel") == 0 {
				id := rapid.Uint64Range(1, next).Draw(t, "victim")
				a, b, r := fast.Cancel(now, id), slow.Cancel(now, id), ref.cancel(id)
				if a != r || b != r {
					t.Fatalf("cancel %d: %v %v, reference %v", id, a, b, r)
				}
				continue
			}
			s := drawSeq(t, &p, next)
			next++
			submitted[s.ID] = s
			fast.Submit(now, s)
			slow.Submit(now, s)
			ref.submit(now, s)
		}
		for fast.Next() != fleet.Never {
			now = max(now, fast.Next())
			check()
		}
		conserved(t, submitted, all, fast)
	})
}

// byTime orders events of one moment by sequence: the core tells ends of one step
// in the order of admission, the reference in that of its list.
func byTime(ev []Event) []Event {
	out := append([]Event(nil), ev...)
	sort.SliceStable(out, func(i, j int) bool {
		if out[i].At != out[j].At {
			return out[i].At < out[j].At
		}
		return out[i].Seq < out[j].Seq
	})
	return out
}

func dropTokens(ev []Event) []Event {
	var out []Event
	for _, e := range ev {
		if e.Kind != EventToken {
			out = append(out, e)
		}
	}
	return out
}

// conserved checks that each request ended exactly once, with all its tokens.
func conserved(t *rapid.T, submitted map[uint64]Seq, ev []Event, c *Core) {
	ends := map[uint64]int{}
	for _, e := range ev {
		switch e.Kind {
		case EventFinished:
			ends[e.Seq]++
			if e.Output != submitted[e.Seq].OutputTokens {
				t.Fatalf("sequence %d ended with %d tokens of %d", e.Seq, e.Output, submitted[e.Seq].OutputTokens)
			}
		case EventRejected:
			ends[e.Seq]++
		}
	}
	for id, n := range ends {
		if n != 1 {
			t.Fatalf("sequence %d ended %d times", id, n)
		}
	}
	if got, want := int64(len(ends))+c.n.cancelled, int64(len(submitted)); got != want {
		t.Fatalf("%d of %d sequences ended", got, want)
	}
	if c.kv.anon != 0 || c.kv.pinned != 0 {
		t.Fatalf("idle replica holds %d + %d blocks", c.kv.anon, c.kv.pinned)
	}
}

func mirrorChanges(t *rapid.T, m map[uint64]bool, changes []BlockChange) {
	for _, ch := range changes {
		if ch.Kind == BlocksStored && ch.HasParent && !m[ch.Parent] {
			t.Fatalf("stored after parent %x, which is not cached", ch.Parent)
		}
		for _, h := range ch.Blocks {
			if m[h] == (ch.Kind == BlocksStored) {
				t.Fatalf("block %x: %d twice", h, ch.Kind)
			}
			if ch.Kind == BlocksStored {
				m[h] = true
			} else {
				delete(m, h)
			}
		}
	}
}

func cachedBlocks(c *Core) []uint64 {
	var hs []uint64
	for i := range c.kv.nodes {
		hs = append(hs, c.kv.nodes[i].run...)
	}
	sort.Slice(hs, func(i, j int) bool { return hs[i] < hs[j] })
	return hs
}

// checkInvariants recomputes from scratch what the core keeps incrementally.
func checkInvariants(t *rapid.T, c *Core) {
	named, pinned := 0, 0
	active := make([]int32, len(c.kv.nodes))
	children := make([]int32, len(c.kv.nodes))
	for i := range c.kv.nodes {
		nd := &c.kv.nodes[i]
		named += len(nd.run)
		if nd.active > 0 {
			pinned += len(nd.run)
		}
		if len(nd.run) > 0 && nd.parent >= 0 {
			children[nd.parent]++
			if nd.active > 0 {
				active[nd.parent]++
			}
			if len(c.kv.nodes[nd.parent].run) == 0 {
				t.Fatalf("node %d outlives its parent", i)
			}
		}
	}
	anon, decodes, ctx := 0, 0, 0
	for id := c.running.head; id >= 0; id = c.slots[id].next {
		s := &c.slots[id]
		if s.tip >= 0 {
			active[s.tip]++
		}
		if s.state == slotDecode {
			decodes++
			tokens := s.seq.PromptTokens + int(int64(s.output)+c.steps-s.start)
			ctx += tokens
			if !c.inStep {
				tokens--
			}
			anon += c.blocksFor(tokens) - int(s.named)
		} else {
			anon += int(s.anon)
		}
	}
	for i := range active {
		if active[i] != c.kv.nodes[i].active || children[i] != c.kv.nodes[i].children {
			t.Fatalf("node %d: active %d children %d, counted %d %d", i, c.kv.nodes[i].active, c.kv.nodes[i].children, active[i], children[i])
		}
	}
	if named != c.kv.named || pinned != c.kv.pinned || anon != c.kv.anon || decodes != c.decoding || int64(ctx) != c.ctx {
		t.Fatalf("kept named %d pinned %d anon %d decoding %d ctx %d, counted %d %d %d %d %d",
			c.kv.named, c.kv.pinned, c.kv.anon, c.decoding, c.ctx, named, pinned, anon, decodes, ctx)
	}
	if c.kv.named+c.kv.anon > c.kv.total {
		t.Fatalf("%d named and %d open blocks of %d", c.kv.named, c.kv.anon, c.kv.total)
	}
}
