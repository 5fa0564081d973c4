// SPDX-License-Identifier: Apache-2.0

package prefix

import (
	"slices"
	"testing"

	"github.com/penstock-project/penstock/internal/fleet"
	"pgregory.net/rapid"
)

// model is the naive index: per replica the blocks with their time of last use,
// whole prompts as slices. Within one use the end of a prompt is older.
type model struct {
	replicas map[int32]*modelReplica
	clock    int
}

type modelReplica struct {
	capacity int
	at       map[uint64]modelBlock
	pins     map[uint64]int
}

type modelBlock struct {
	used   int // time of last use
	depth  int
	parent uint64
}

func (m *model) evict(r *modelReplica) (evicted int) {
	for len(r.at) > r.capacity {
		var worst uint64
		found := false
		for b, v := range r.at {
			if r.pins[b] > 0 {
				continue
			}
			w := r.at[worst]
			if !found || v.used < w.used || v.used == w.used && v.depth > w.depth {
				worst, found = b, true
			}
		}
		if !found {
			break
		}
		delete(r.at, worst)
		evicted++
	}
	return evicted
}

func (m *model) insert(slot int32, blocks []uint64, pin bool) {
	r := m.replicas[slot]
	m.clock++
	parent := uint64(0)
	for d, b := range blocks {
		r.at[b] = modelBlock{used: m.clock, depth: d, parent: parent}
		parent = b
		if pin {
			r.pins[b]++
		}
	}
	m.evict(r)
}

func (m *model) unpin(slot int32, blocks []uint64) {
	r := m.replicas[slot]
	m.clock++
	for _, b := range blocks {
		if r.pins[b]--; r.pins[b] == 0 {
			delete(r.pins, b)
			v := r.at[b]
			v.used = m.clock
			r.at[b] = v
		}
	}
	m.evict(r)
}

func (m *model) hits(slot int32, blocks []uint64) int {
	r := m.replicas[slot]
	for i, b := range blocks {
		if _, ok := r.at[b]; !ok {
			return i
		}
	}
	return len(blocks)
}

func (m *model) pinned(slot int32, blocks []uint64) int {
	for i, b := range blocks {
		if m.replicas[slot].pins[b] == 0 {
			return i
		}
	}
	return len(blocks)
}

// chainOf makes a prompt from small symbols, so that prompts share beginnings.
func chainOf(symbols []byte) []uint64 {
	blocks := make([]uint64, len(symbols))
	c := uint64(7)
	for i, s := range symbols {
		c = Chain(c, uint64(s)+1)
		blocks[i] = c
	}
	return blocks
}

func drawPrompt(t *rapid.T, label string) []uint64 {
	return chainOf(rapid.SliceOfN(rapid.SampledFrom([]byte{0, 0, 0, 0, 1, 2}), 1, 12).Draw(t, label))
}

type flight struct {
	slot   int32
	blocks []uint64
	ref    Ref
}

func TestIndexAgainstNaiveModel(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		x := NewIndex(Options{})
		m := &model{replicas: map[int32]*modelReplica{}}
		const slots = 3
		// A restarted process gets a new slot now and then; here slots stay.
		restart := func(slot int32, capacity int) {
			x.Add(slot, 0)
			x.lane(slot).capacity = float64(capacity)
			m.replicas[slot] = &modelReplica{capacity: capacity, at: map[uint64]modelBlock{}, pins: map[uint64]int{}}
		}
		for s := range int32(slots) {
			restart(s, rapid.IntRange(1, 40).Draw(t, "capacity"))
		}
		var flights []flight
		hits, pinned := make([]int32, slots), make([]int32, slots)
		for range rapid.IntRange(1, 80).Draw(t, "steps") {
			slot := rapid.Int32Range(0, slots-1).Draw(t, "slot")
			switch op := rapid.IntRange(0, 9).Draw(t, "op"); {
			case op < 4:
				b := drawPrompt(t, "insert")
				x.Insert(0, slot, b)
				m.insert(slot, b, false)
			case op < 6:
				b := drawPrompt(t, "pin")
				flights = append(flights, flight{slot, b, x.Pin(0, slot, b)})
				m.insert(slot, b, true)
			case op < 8 && len(flights) > 0:
				i := rapid.IntRange(0, len(flights)-1).Draw(t, "flight")
				f := flights[i]
				flights = slices.Delete(flights, i, i+1)
				x.Unpin(0, f.ref)
				m.unpin(f.slot, f.blocks)
			case op == 8 && rapid.IntRange(0, 5).Draw(t, "rare") == 0:
				c := m.replicas[slot].capacity
				restart(slot, c)
				for _, f := range flights {
					if f.slot == slot {
						x.Unpin(0, f.ref) // void
					}
				}
				flights = slices.DeleteFunc(flights, func(f flight) bool { return f.slot == slot })
			}
			b := drawPrompt(t, "match")
			x.MatchPinned(b, hits, pinned)
			for s := range int32(slots) {
				compareSlot(t, x, m, s, b, int(hits[s]), int(pinned[s]))
			}
			checkIndex(t, x)
		}
		x.Sweep(1 << 20)
		for s := range int32(slots) {
			x.Remove(s)
		}
		for x.Sweep(3) {
		}
		if st := x.Stats(); st.Bytes != 0 || st.Entries != 0 || st.Blocks != 0 || st.Replicas != 0 {
			t.Fatalf("after removing all: %+v", st)
		}
	})
}

// compareSlot compares what the index and the model say of one replica.
func compareSlot(t *rapid.T, x *Index, m *model, s int32, b []uint64, hits, pinned int) {
	r := m.replicas[s]
	if want := m.hits(s, b); hits != want || x.MatchOne(s, b) != want {
		t.Fatalf("slot %d: hits %d, one %d, model %d", s, hits, x.MatchOne(s, b), want)
	}
	if want := m.pinned(s, b); pinned != want || x.PinnedPrefix(s, b) != want {
		t.Fatalf("slot %d: pinned %d, one %d, model %d", s, pinned, x.PinnedPrefix(s, b), want)
	}
	if x.Used(s) != len(r.at) || x.Pinned(s) != len(r.pins) {
		t.Fatalf("slot %d: used %d pinned %d, model %d %d", s, x.Used(s), x.Pinned(s), len(r.at), len(r.pins))
	}
	if x.Used(s) > r.capacity && x.Used(s) != x.Pinned(s) {
		t.Fatalf("slot %d: %d blocks over the capacity %d, pinned %d", s, x.Used(s), r.capacity, x.Pinned(s))
	}
}

// checkIndex verifies what must always hold inside.
func checkIndex(t interface{ Fatalf(string, ...any) }, x *Index) {
	var holds, entries int64
	for id := 1; id < len(x.lanes); id++ {
		l := &x.lanes[id]
		seen := map[uint32]bool{}
		var used, pinned int64
		for k, first := range [...]uint32{l.oldest, l.pinOld} {
			prev := uint32(0)
			for i := first; i != 0; i = x.s.hold(i).newer {
				h := x.s.hold(i)
				n := x.s.node(h.node)
				if h.older != prev || int(h.lane) != id || (h.pins > 0) != (k == 1) {
					t.Fatalf("lane %d: hold %d is badly linked", id, i)
				}
				if h.up != 0 && seen[h.up] {
					t.Fatalf("lane %d: hold %d stands behind the one above it", id, i)
				}
				if h.up == 0 && n.start != 0 || h.up != 0 && x.below(h.up) != int(n.start) {
					t.Fatalf("lane %d: hold %d starts at %d, the one above ends at %d", id, i, n.start, x.below(h.up))
				}
				if h.up != 0 && x.s.hold(h.up).kids == 0 {
					t.Fatalf("lane %d: hold %d is not counted above", id, i)
				}
				if h.up != 0 && !x.holes && x.s.hold(h.up).held != x.s.node(x.s.hold(h.up).node).len {
					t.Fatalf("lane %d: hold %d below a hold that is not whole", id, i)
				}
				if h.held > n.len || h.pins > 0 && h.held != n.len || h.held == 0 && h.kids == 0 {
					t.Fatalf("lane %d: hold %d has %d of %d, %d pins", id, i, h.held, n.len, h.pins)
				}
				if x.findHold(h.node, h.lane) != i || x.findHead(x.s.run(n)[0], int(n.start)) != h.node {
					t.Fatalf("lane %d: hold %d cannot be found", id, i)
				}
				seen[i] = true
				used += int64(h.held)
				if h.pins > 0 {
					pinned += int64(n.len)
				}
				holds++
				prev = i
			}
		}
		if used != l.used || pinned != l.pinned {
			t.Fatalf("lane %d: used %d, counted %d; pinned %d, counted %d", id, l.used, used, l.pinned, pinned)
		}
		entries += used
	}
	if holds != x.s.liveHold || entries != x.stats.Entries || int64(x.pairs.n) != holds || int64(x.heads.n) != x.s.liveNode {
		t.Fatalf("counts: holds %d of %d, entries %d of %d, pairs %d, heads %d of %d",
			holds, x.s.liveHold, entries, x.stats.Entries, x.pairs.n, x.heads.n, x.s.liveNode)
	}
}

func TestEventsAgainstNaiveModel(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		x := NewIndex(Options{Events: true})
		const slots = 3
		have := [slots]map[uint64]bool{}
		for s := range int32(slots) {
			x.Add(s, 1000)
			have[s] = map[uint64]bool{}
		}
		hits := make([]int32, slots)
		for range rapid.IntRange(1, 80).Draw(t, "steps") {
			slot := rapid.Int32Range(0, slots-1).Draw(t, "slot")
			b := drawPrompt(t, "prompt")
			switch op := rapid.IntRange(0, 9).Draw(t, "op"); {
			case op < 5: // a stored event for a part of a prompt
				from := rapid.IntRange(0, len(b)-1).Draw(t, "from")
				parent := uint64(0)
				if from > 0 {
					parent = b[from-1]
				}
				x.StoreBlocks(slot, parent, b[from:])
				if from == 0 || have[slot][parent] {
					for _, h := range b[from:] {
						have[slot][h] = true
					}
				}
			case op < 8: // removed, from the end as engines do, or from the middle
				from := rapid.IntRange(0, len(b)-1).Draw(t, "from")
				to := rapid.IntRange(from, len(b)).Draw(t, "to")
				gone := slices.Clone(b[from:to])
				slices.Reverse(gone)
				x.RemoveBlocks(slot, gone)
				for _, h := range gone {
					delete(have[slot], h)
				}
			case op == 8:
				x.Insert(0, slot, b)
				for _, h := range b {
					have[slot][h] = true
				}
			case rapid.IntRange(0, 9).Draw(t, "rare") == 0:
				x.Clear(slot)
				have[slot] = map[uint64]bool{}
			}
			q := drawPrompt(t, "match")
			x.Match(q, hits)
			for s := range int32(slots) {
				want := 0
				for want < len(q) && have[s][q[want]] {
					want++
				}
				if int(hits[s]) != want || x.MatchOne(s, q) != want {
					t.Fatalf("slot %d: hits %d, one %d, model %d", s, hits[s], x.MatchOne(s, q), want)
				}
				if x.Used(s) != len(have[s]) {
					t.Fatalf("slot %d: used %d, model %d", s, x.Used(s), len(have[s]))
				}
			}
			checkIndex(t, x)
		}
	})
}

func TestSnapshotRestoresTheIndex(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		x := NewIndex(Options{})
		for s := range int32(3) {
			x.Add(s, rapid.IntRange(1, 30).Draw(t, "capacity"))
		}
		var last Ref
		for range rapid.IntRange(0, 40).Draw(t, "steps") {
			slot := rapid.Int32Range(0, 2).Draw(t, "slot")
			if b := drawPrompt(t, "prompt"); rapid.Bool().Draw(t, "pin") {
				x.Unpin(0, last)
				last = x.Pin(0, slot, b)
			} else {
				x.Insert(0, slot, b)
			}
		}
		x.Unpin(0, last)
		names := []string{"a", "", "c"}
		data := x.Save([]byte("head"), 42, func(s int32) string { return names[s] })[4:]
		y := NewIndex(Options{})
		y.Add(5, int(x.lane(0).kv))
		err := y.Load(data, 42, func(n string) int32 {
			if n == "a" {
				return 5
			}
			return -1
		})
		if err != nil {
			t.Fatal(err)
		}
		checkIndex(t, y)
		if y.Used(5) != x.Used(0) {
			t.Fatalf("used %d, want %d", y.Used(5), x.Used(0))
		}
		// Equal now, and equal while pressure evicts in the same order.
		for range 10 {
			b := drawPrompt(t, "pressure")
			if got, want := y.MatchOne(5, b), x.MatchOne(0, b); got != want {
				t.Fatalf("match %d, want %d", got, want)
			}
			x.Insert(fleet.Time(0), 0, b)
			y.Insert(fleet.Time(0), 5, b)
		}
	})
}
