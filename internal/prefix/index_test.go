// SPDX-License-Identifier: Apache-2.0

package prefix

import (
	"testing"

	"pgregory.net/rapid"
)

func long(n int, seed uint64) []uint64 {
	blocks := make([]uint64, n)
	c := seed
	for i := range blocks {
		c = Chain(c, uint64(i)+1)
		blocks[i] = c
	}
	return blocks
}

func TestEvictionTakesTheEndOfTheOldestPromptFirst(t *testing.T) {
	x := NewIndex(Options{})
	x.Add(0, 10)
	if x.Capacity(0) != 9 {
		t.Fatalf("believed capacity %d, want 90 %% of 10", x.Capacity(0))
	}
	a, b := long(6, 1), long(5, 2)
	x.Insert(0, 0, a)
	x.Insert(0, 0, b)
	if got := x.MatchOne(0, a); got != 4 {
		t.Errorf("%d blocks of the older prompt are left, want its first 4", got)
	}
	if got := x.MatchOne(0, b); got != 5 {
		t.Errorf("%d blocks of the newer prompt are left, want all 5", got)
	}
	if !x.Full(0) || x.Stats().Evictions != 2 {
		t.Errorf("full %v, %d evictions, want true and 2", x.Full(0), x.Stats().Evictions)
	}
}

func TestPinnedBlocksStayAndArePricedOnce(t *testing.T) {
	x := NewIndex(Options{})
	x.Add(0, 10)
	a := long(6, 1)
	r1, r2 := x.Pin(0, 0, a), x.Pin(0, 0, a[:4])
	x.Insert(0, 0, long(8, 2))
	if x.MatchOne(0, a) != 6 || x.Pinned(0) != 6 {
		t.Fatalf("match %d, pinned %d, want 6 and 6", x.MatchOne(0, a), x.Pinned(0))
	}
	x.Unpin(0, r1)
	if x.Pinned(0) != 4 || x.PinnedPrefix(0, a) != 4 {
		t.Errorf("pinned %d, prefix %d, want 4 and 4", x.Pinned(0), x.PinnedPrefix(0, a))
	}
	x.Unpin(0, r2)
	if x.Pinned(0) != 0 {
		t.Errorf("pinned %d, want 0", x.Pinned(0))
	}
}

func TestRestartIsForgottenAtOnce(t *testing.T) {
	x := NewIndex(Options{})
	x.Add(0, 1000)
	x.Add(1, 1000)
	a := long(100, 1)
	ref := x.Pin(0, 0, a)
	x.Insert(0, 1, a)
	x.Clear(0)
	hits := make([]int32, x.Slots())
	if x.Match(a, hits); hits[0] != 0 || hits[1] != 100 {
		t.Errorf("hits %v, want [0 100]", hits)
	}
	other := x.Pin(0, 0, a)
	x.Unpin(0, ref) // of the life before: must not touch the new pin
	if x.Pinned(0) != 100 {
		t.Errorf("pinned %d, want 100", x.Pinned(0))
	}
	x.Unpin(0, other)
	x.Remove(1)
	for x.Sweep(1) {
	}
	if x.Match(a, hits); hits[0] != 100 || hits[1] != 0 {
		t.Errorf("hits %v, want [100 0]", hits)
	}
}

// The events of a replica that restarts, and of one that is joined late.
func TestRestartSequence(t *testing.T) {
	x := NewIndex(Options{Events: true})
	x.Add(0, 0)
	x.Add(1, 0)
	h, z := long(4, 1), long(1, 9)
	hits := make([]int32, 2)
	want := func(when string, blocks []uint64, a, b int32) {
		t.Helper()
		if x.Match(blocks, hits); hits[0] != a || hits[1] != b {
			t.Errorf("%s: hits %v, want [%d %d]", when, hits, a, b)
		}
	}
	x.StoreBlocks(0, 0, h[:3])
	x.StoreBlocks(0, h[2], h[3:])
	want("stored", h, 4, 0)
	x.Clear(0) // the sequence went back
	x.StoreBlocks(0, 0, z)
	want("after the restart", h, 0, 0)
	x.StoreBlocks(1, 0, h[:2])
	want("joined late", h[:2], 0, 2)
	x.Clear(1)
	want("all blocks cleared", h[:2], 0, 0)
}

func TestUnknownParentIsDropped(t *testing.T) {
	x := NewIndex(Options{Events: true})
	x.Add(0, 0)
	h := long(4, 1)
	x.StoreBlocks(0, h[1], h[2:])
	if x.MatchOne(0, h) != 0 || x.Used(0) != 0 || x.Stats().Orphans != 2 {
		t.Errorf("match %d, used %d, orphans %d, want 0, 0, 2", x.MatchOne(0, h), x.Used(0), x.Stats().Orphans)
	}
}

func TestLostEventsHalveTheCredit(t *testing.T) {
	x := NewIndex(Options{Events: true})
	x.Add(0, 0)
	h := long(8, 1)
	x.StoreBlocks(0, 0, h)
	x.MarkUnsure(0)
	hits := make([]int32, 1)
	if x.Match(h, hits); hits[0] != 4 || !x.Unsure(0) || x.MatchOne(0, h) != 4 {
		t.Errorf("hits %v, want half of 8", hits)
	}
	for range sureAgain {
		x.Feedback(0, 100, 90)
	}
	if x.Match(h, hits); hits[0] != 8 || x.Unsure(0) {
		t.Errorf("hits %v after good predictions, want 8", hits)
	}
}

func TestFeedbackCorrectsTheCapacity(t *testing.T) {
	x := NewIndex(Options{})
	x.Add(0, 1000)
	x.Feedback(0, 100, 69)
	if got, want := x.lane(0).capacity, 900*0.98; got != want {
		t.Errorf("capacity %v after a bad prediction, want %v", got, want)
	}
	x.Feedback(0, 100, 70)
	if got, want := x.lane(0).capacity, 900*0.98*1.002; got != want {
		t.Errorf("capacity %v after a good one, want %v", got, want)
	}
	for range 100 {
		x.Feedback(0, 0, 0)
	}
	if got := x.Capacity(0); got != 900 {
		t.Errorf("capacity %d, want at most 90 %% of the KV cache", got)
	}
	x.Feedback(0, 100, -1) // the engine did not tell
	if x.Agreement(0).Requests != agreeWindow {
		t.Error("an unknown count must not be counted")
	}
}

func TestDisagreementIsSeen(t *testing.T) {
	x := NewIndex(Options{})
	x.Add(0, 1000)
	for range agreeMin - 1 {
		x.Feedback(0, 800, 20)
	}
	if x.Agreement(0).Disagrees {
		t.Error("too few requests to judge")
	}
	x.Feedback(0, 800, 0)
	a := x.Agreement(0)
	if r, ok := a.Ratio(); !a.Disagrees || !ok || r > 0.03 || a.Missed != 1 || a.Predicted != agreeMin {
		t.Errorf("predicted 80 %%, observed 2 %%: %+v", a)
	}
}

func TestAgreementForgets(t *testing.T) {
	x := NewIndex(Options{})
	x.Add(0, 1000)
	for range 100 {
		x.Feedback(0, 800, 0)
	}
	for i := range agreeWindow {
		x.Feedback(0, 100, i%2*200) // every second one has more than expected
	}
	a := x.Agreement(0)
	want := Agreement{Requests: agreeWindow, Predicted: agreeWindow, Missed: agreeWindow / 2, Expected: 100 * agreeWindow, Cached: 50 * agreeWindow}
	if a != want {
		t.Errorf("%+v, want %+v", a, want)
	}
}

func TestCapacityFollowsTheEngine(t *testing.T) {
	x := NewIndex(Options{})
	x.Add(0, 0)
	if x.Capacity(0) != DefaultCapacity {
		t.Errorf("capacity %d while unknown", x.Capacity(0))
	}
	x.SetCapacity(0, 1000)
	x.Feedback(0, 10, 0)
	x.SetCapacity(0, 2000)
	if got := x.Capacity(0); got != 1764 {
		t.Errorf("capacity %d, want what was learnt in proportion: 1764", got)
	}
	x.Insert(0, 0, long(1500, 1))
	x.SetCapacity(0, 1000)
	if x.Used(0) > 882 {
		t.Errorf("%d blocks in a cache believed to hold 882", x.Used(0))
	}
}

func TestBytesAreBounded(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		bound := rapid.Int64Range(2000, 60000).Draw(t, "bound")
		x := NewIndex(Options{MaxBytes: bound, Events: rapid.Bool().Draw(t, "events")})
		for s := range int32(4) {
			x.Add(s, 1<<20)
		}
		const longest = 60
		slack := int64(longest * (8 + nodeBytes + 2*holdBytes + 4*entryBytes))
		for i := range 60 {
			n := rapid.IntRange(1, longest).Draw(t, "n")
			x.Insert(0, int32(i%4), long(n, rapid.Uint64Range(1, 30).Draw(t, "chain")))
			if got := x.Stats().Bytes; got > bound+slack {
				t.Fatalf("%d bytes, bound %d", got, bound)
			}
		}
		checkIndex(t, x)
	})
}

func TestEverythingPinnedIsRefused(t *testing.T) {
	x := NewIndex(Options{MaxBytes: 1000})
	x.Add(0, 1<<20)
	x.Pin(0, 0, long(200, 1))
	if r := x.Pin(0, 0, long(200, 2)); r != (Ref{}) || x.Stats().Refused != 1 || x.Used(0) != 200 {
		t.Errorf("ref %v, refused %d, used %d", r, x.Stats().Refused, x.Used(0))
	}
}

func TestUnknownSlotsAreIgnored(t *testing.T) {
	x := NewIndex(Options{Events: true})
	b := long(3, 1)
	x.Insert(0, 3, b)
	x.Unpin(0, x.Pin(0, -1, b))
	x.StoreBlocks(2, 0, b)
	x.RemoveBlocks(2, b)
	x.Remove(7)
	x.Clear(7)
	x.SetCapacity(7, 1)
	x.Feedback(7, 1, 1)
	x.MarkUnsure(7)
	if x.MatchOne(7, b) != 0 || x.Used(7)+x.Pinned(7)+x.Capacity(7)+x.PinnedPrefix(7, b) != 0 || x.Full(7) || x.Unsure(7) {
		t.Error("a slot that was never added must read as empty")
	}
}

func TestMatchAndPinDoNotAllocate(t *testing.T) {
	x := NewIndex(Options{})
	prompts := make([][]uint64, 50)
	for i := range prompts {
		prompts[i] = append(long(100, 1), long(100, uint64(i+2))...)
	}
	for s := range int32(100) {
		x.Add(s, 4000)
	}
	hits, pinned := make([]int32, 100), make([]int32, 100)
	i := 0
	round := func() {
		b := prompts[i%len(prompts)]
		x.MatchPinned(b, hits, pinned)
		x.Unpin(0, x.Pin(0, int32(i%100), b))
		i++
	}
	for range 10000 {
		round()
	}
	if n := testing.AllocsPerRun(1000, round); n != 0 {
		t.Errorf("%v allocations a request, want 0", n)
	}
}

func FuzzLoad(f *testing.F) {
	x := NewIndex(Options{})
	x.Add(0, 100)
	x.Insert(0, 0, long(20, 1))
	x.Insert(0, 0, append(long(10, 1), long(5, 2)...))
	f.Add(x.Save(nil, 1, func(int32) string { return "a" }))
	f.Add([]byte(snapshotMagic))
	f.Fuzz(func(t *testing.T, data []byte) {
		for _, d := range [][]byte{data, seal(data)} {
			y := NewIndex(Options{})
			y.Add(0, 100)
			err := y.Load(d, 1, func(string) int32 { return 0 })
			if err != nil && y.Stats().Entries != 0 {
				t.Fatalf("%v, and yet %d entries", err, y.Stats().Entries)
			}
			checkIndex(t, y)
		}
	})
}
