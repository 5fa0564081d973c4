// SPDX-License-Identifier: Apache-2.0

package route

import (
	"testing"

	"github.com/penstock-project/penstock/internal/fleet"
)

// peerSlot is one replica of a hand-computed state.
type peerSlot struct {
	hit      int32   // blocks of 100 tokens
	pending  float64 // uncached tokens without a first token
	inFlight int32
	used     int     // blocks pinned
	waiting  float64 // scraped
	kv       float64 // scraped
	drop     Drop
}

// peerInput is a prompt of 1,000 tokens in blocks of 100 over the given replicas.
// Prefill takes 1 ms a token.
func peerInput(slots ...peerSlot) *Input {
	in := &Input{
		Now: 1e9, Request: &fleet.Request{}, PromptTokens: 1000, BlockTokens: 100,
		Engine: Coef{Base: 1e-3, PTok: 1e-3, Chunk: 1e9}, Bare: true, Arrival: 1,
	}
	for i := range 10 {
		in.Request.Blocks = append(in.Request.Blocks, Mix(uint64(i), 99))
	}
	for i, s := range slots {
		in.Slots = append(in.Slots, Slot{
			ID: string(rune('a' + i)), Key: Mix(uint64(i), 7), Speed: 1, InFlight: s.inFlight,
			Unstarted: min(1, int32(s.pending)), UncachedTokens: s.pending, PendingSum: s.pending * 1e-3,
			HeadSince: 1e9, PinnedBlocks: s.used,
			State: &fleet.EndpointState{Signals: fleet.Signals{Waiting: fleet.Known(s.waiting, 1), KVUsage: fleet.Known(s.kv, 1)}},
		})
		in.Hits = append(in.Hits, s.hit)
		in.Pinned = append(in.Pinned, 0)
		in.Drops = append(in.Drops, s.drop)
	}
	return in
}

func pickOf(t *testing.T, name string, in *Input) int32 {
	t.Helper()
	p, err := New(name, 1)
	if err != nil {
		t.Fatal(err)
	}
	var d Decision
	p.Pick(in, &d)
	if d.Chosen >= 0 && in.Drops[d.Chosen] != DropNone {
		t.Fatalf("%s chose a replica that takes no request", name)
	}
	return d.Chosen
}

// Each row is computed by hand from the description in the policy's comment.
func TestPeersOnSmallStates(t *testing.T) {
	for _, c := range []struct {
		name, policy string
		slots        []peerSlot
		want         int32
	}{
		// (pending + own) x (in flight + 1): 1000x1, (400+200)x2 = 1200.
		{"lmetric counts pending tokens", PolicyLMetric, []peerSlot{{}, {hit: 8, pending: 400, inFlight: 1}}, 0},
		// own x (in flight + 1): 1000x1, 200x2 = 400.
		{"lmetric-new does not", PolicyLMetricNew, []peerSlot{{}, {hit: 8, pending: 400, inFlight: 1}}, 1},
		// 200x6 = 1200 against 1000x1.
		{"lmetric-new leaves a full batch", PolicyLMetricNew, []peerSlot{{}, {hit: 8, inFlight: 5}}, 0},
		// queue + prefill: 1.0 s, 0.9 + 0.2 s; streams do not count.
		{"min-ttft waits for nobody", PolicyMinTTFT, []peerSlot{{inFlight: 50}, {hit: 8, pending: 900}}, 0},
		{"min-ttft takes the warm one", PolicyMinTTFT, []peerSlot{{inFlight: 50}, {hit: 8, pending: 700}}, 1},
		// prefill + decode: 1000 + 0 + 1000 = 2000; 200 + 900 + 1000 = 2100.
		{"dynamo adds decode blocks", PolicyDynamo, []peerSlot{{}, {hit: 8, used: 9}}, 0},
		// 4x1000 + 1000 = 5000; 4x200 + 900 + 1000 = 2700.
		{"dynamo-4 weighs prefill more", PolicyDynamo4, []peerSlot{{}, {hit: 8, used: 9}}, 1},
		// 80 % is warm enough; 286,704 tokens may be pending above the least.
		{"sticky stays", PolicySticky, []peerSlot{{}, {hit: 8, pending: 286_000}}, 1},
		{"sticky lets go when saturated", PolicySticky, []peerSlot{{}, {hit: 8, pending: 287_000}}, 0},
		{"sticky ignores 70 %", PolicySticky, []peerSlot{{}, {hit: 7, pending: 10}}, 0},
		{"sticky takes the lighter of two warm", PolicySticky, []peerSlot{{}, {hit: 8, pending: 20}, {hit: 10, pending: 30}}, 1},
		// 0.3 of the prompt must match; 0.3 itself is not enough.
		{"sglang follows the tree", PolicySGLang, []peerSlot{{}, {hit: 4, inFlight: 60}}, 1},
		{"sglang ignores a short match", PolicySGLang, []peerSlot{{}, {hit: 3, inFlight: 60}}, 0},
		// 65 - 0 > 64 and 65 > 1.5x0: shortest queue.
		{"sglang balances", PolicySGLang, []peerSlot{{}, {hit: 10, inFlight: 65}}, 0},
		// 130 - 65 > 64 and 130 > 97.5; and 195 - 131 = 64 is not above 64.
		{"sglang balances relatively", PolicySGLang, []peerSlot{{inFlight: 65}, {hit: 10, inFlight: 130}}, 0},
		{"sglang stays at the bound", PolicySGLang, []peerSlot{{inFlight: 131}, {hit: 10, inFlight: 195}}, 1},
		// 3x0 + 2x1 + 2x1 = 4; 3x0.8 + 2x0 + 2x0.9 = 4.2.
		{"3:2:2 takes the warm one", PolicyLLMD, []peerSlot{{}, {hit: 8, waiting: 3, kv: 0.1}}, 1},
		// 0 + 1 + 1 = 2; 0.8 + 0 + 0.9 = 1.7.
		{"1:1:1 takes the idle one", PolicyGAIE, []peerSlot{{}, {hit: 8, waiting: 3, kv: 0.1}}, 0},
		// equal queues score 1 each: 0 + 1 + 0.5; 0.1 + 1 + 0.5.
		{"equal queues do not count", PolicyGAIE, []peerSlot{{waiting: 4, kv: 0.5}, {hit: 1, waiting: 4, kv: 0.5}}, 1},
		// 500/2000 = 0.25; 0.15x0.5/0.5 = 0.15.
		{"least-load weighs KV and tokens", PolicyLeastLoad, []peerSlot{{pending: 500}, {kv: 0.5}}, 1},
		// 0.05; 0.15x0.9/0.1 = 1.35.
		{"least-load shuns full KV", PolicyLeastLoad, []peerSlot{{pending: 100}, {hit: 10, kv: 0.9}}, 0},
		{"a dropped replica is no candidate", PolicyLMetric, []peerSlot{{drop: DropDraining}, {pending: 1e6}}, 1},
	} {
		t.Run(c.name, func(t *testing.T) {
			if got := pickOf(t, c.policy, peerInput(c.slots...)); got != c.want {
				t.Errorf("%s picked %d, want %d", c.policy, got, c.want)
			}
		})
	}
}

func TestHashingPeers(t *testing.T) {
	for _, name := range []string{PolicyCHWBL, PolicyPrefixHash} {
		t.Run(name, func(t *testing.T) {
			idle := peerInput(make([]peerSlot, 4)...)
			home := pickOf(t, name, idle)
			for i := range idle.Slots {
				idle.Slots[i].InFlight = 10
			}
			if got := pickOf(t, name, idle); got != home {
				t.Errorf("even load moved the prefix from %d to %d", home, got)
			}
			// mean (3x10 + 20)/4 = 12.5; bound ceil(51/4 x 1.25) = 16; 1.25 x 12.5 = 15.6.
			idle.Slots[home].InFlight = 20
			idle.Slots[(home+1)%4].InFlight = 9
			away := pickOf(t, name, idle)
			if away == home {
				t.Error("an overloaded home was kept")
			}
			if name == PolicyPrefixHash && away != (home+1)%4 {
				t.Errorf("picked %d, want the one with the fewest requests, %d", away, (home+1)%4)
			}
			idle.Drops[home] = DropFailed
			if got := pickOf(t, name, idle); got == home {
				t.Error("a failed home was kept")
			}
		})
	}
}

// Adding a replica to four moves about a fifth of the prefixes, and only to it.
func TestRingMovesFewPrefixes(t *testing.T) {
	for _, name := range []string{PolicyCHWBL, PolicyPrefixHash} {
		moved := 0
		const n = 1000
		for i := range n {
			four, five := peerInput(make([]peerSlot, 4)...), peerInput(make([]peerSlot, 5)...)
			for _, in := range []*Input{four, five} {
				for k := range in.Request.Blocks {
					in.Request.Blocks[k] = Mix(uint64(i), uint64(k))
				}
			}
			a, b := pickOf(t, name, four), pickOf(t, name, five)
			if a != b {
				moved++
				if b != 4 {
					t.Fatalf("%s moved a prefix from %d to %d, which were both there before", name, a, b)
				}
			}
		}
		if share := float64(moved) / n; share < 0.12 || share > 0.3 {
			t.Errorf("%s moved %.2f of the prefixes, want about 0.2", name, share)
		}
	}
}

func TestPeersTiesAreSpread(t *testing.T) {
	for _, name := range []string{PolicyLMetric, PolicyMinTTFT, PolicyDynamo, PolicySticky, PolicyLLMD, PolicyLeastLoad} {
		p, err := New(name, 5)
		if err != nil {
			t.Fatal(err)
		}
		var n [4]int
		var d Decision
		in := peerInput(make([]peerSlot, 4)...)
		for range 400 {
			p.Pick(in, &d)
			n[d.Chosen]++
		}
		for i, k := range n {
			if k < 60 || k > 140 {
				t.Errorf("%s: replica %d has %d of 400 equal choices", name, i, k)
			}
		}
	}
}

func TestPeersDoNotAllocate(t *testing.T) {
	slots := make([]peerSlot, 64)
	for i := range slots {
		slots[i] = peerSlot{hit: int32(i % 11), pending: float64(i * 13 % 500), inFlight: int32(i % 7)}
	}
	in := peerInput(slots...)
	for _, p := range peers(1) {
		var d Decision
		p.Pick(in, &d)
		if n := testing.AllocsPerRun(50, func() { p.Pick(in, &d) }); n != 0 {
			t.Errorf("%s: %v allocations a pick, want 0", p.Name(), n)
		}
	}
}
