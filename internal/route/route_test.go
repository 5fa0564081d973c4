// SPDX-License-Identifier: Apache-2.0

package route

import (
	"encoding/json"
	"fmt"
	"math"
	"strings"
	"testing"

	"pgregory.net/rapid"

	"github.com/penstock-project/penstock/internal/fleet"
)

var coef = Coef{Base: 0.010, PTok: 100e-6, PAttn: 1e-9, DSeq: 50e-6, DCtx: 1e-7, Chunk: 1000}

// input is a question over slots named a, b, c, ...
func input(prompt float64, slots ...Slot) *Input {
	in := &Input{
		Now: 100e9, Request: &fleet.Request{ID: "q", Model: "m", Blocks: make([]uint64, int(prompt)/100)},
		PromptTokens: prompt, BlockTokens: 100,
		Slots: slots, Drops: make([]Drop, len(slots)), Hits: make([]int32, len(slots)), Pinned: make([]int32, len(slots)),
		Engine:          coef,
		Context:         Context{Pressure: 0.5, MeanOutput: 200, OwnOutput: 100, Exchange: 0.25, HitShare: 0.5},
		SnapshotVersion: 3, SnapshotAt: 99e9,
	}
	for i := range in.Request.Blocks {
		in.Request.Blocks[i] = Mix(uint64(i), 17)
	}
	for i := range slots {
		s := &slots[i]
		s.ID = string(rune('a' + i))
		s.Key = Mix(uint64(i), 5)
		if s.Speed == 0 {
			s.Speed = 1
		}
		if s.KVLimit == 0 {
			s.KVLimit = 1
		}
		in.Drops[i] = s.Drop
	}
	return in
}

// The price of one state, each term computed by hand.
func TestPrice(t *testing.T) {
	in := input(3000, Slot{
		InFlight: 6, Unstarted: 2, Streams: 4, CtxTokens: 20000, Generated: 500,
		PendingSum: 0.3, HeadEstimate: 0.2, HeadSince: 99.9e9,
		PinnedBlocks: 300, CacheBlocks: 995, CacheCap: 1000, KVTokens: 40000, MaxSeqs: 64,
	})
	in.Hits[0], in.Pinned[0] = 10, 6
	var d Decision
	Penstock().Pick(in, &d)
	c := d.Pick()

	// 1000 of 3000 tokens are cached: n = 2000 in 2 chunks.
	work := 1e3 * (2000*100e-6 + 1e-9*2000*(3000-1000)) // 204 ms
	step := 1e3 * (0.010 + 4*50e-6 + 20000*1e-7)        // 12.2 ms
	k := 1 + step/100                                   // a full chunk takes 100 ms
	used := (300*100.0 + 500 + 2400) / 40000            // 2400 tokens are newly pinned
	want := map[Term]float64{
		TermPending:     (300 - 90) * k, // the head is 100 ms into its 200 ms
		TermPrefill:     work,
		TermSteps:       2.5 * step,
		TermToCome:      work * 0.5,
		TermStreams:     work * 0.25 * 4,
		TermEvicted:     work * 2 * 0.5, // 20 new blocks do not fit beside 995 of 1000
		TermDecode:      1e3 * 0.25 * 100 * (4*50e-6 + 20000*1e-7),
		TermMemoryPrice: 0.15 * 100 * step * (2400.0 / 40000) * used * used * used / (1 - used),
	}
	sum := 0.0
	for term := range Term(NumTerms) {
		if got := float64(c.Terms[term]); math.Abs(got-want[term]) > 1e-3*(1+want[term]) {
			t.Errorf("%s: %.3f ms, want %.3f", term, got, want[term])
		}
		sum += want[term]
	}
	if math.Abs(c.CostMS-sum) > 0.01 {
		t.Errorf("cost %.3f ms, want %.3f", c.CostMS, sum)
	}
	own := want[TermPending] + want[TermPrefill] + want[TermSteps]
	if math.Abs(d.PredictedTTFTMS-own) > 0.01 || d.PredictedCached != 1000 {
		t.Errorf("predicted %.3f ms and %d cached, want %.3f and 1000", d.PredictedTTFTMS, d.PredictedCached, own)
	}

	// Where first tokens come fast, what it costs the streams counts as well.
	in.Context.Exchange = 0.02
	Penstock().Pick(in, &d)
	if got, want := float64(d.Pick().Terms[TermDecode]), 1.8*1e3*0.02*100*(4*50e-6+20000*1e-7); math.Abs(got-want) > 1e-3 {
		t.Errorf("decode %.3f ms, want %.3f", got, want)
	}
	in.Context.Exchange = 0.25

	// Terms that are left out are zero, the others as they were.
	in.Context.Without = TermPending.Only() | TermEvicted.Only()
	Penstock().Pick(in, &d)
	c = d.Pick()
	if c.Terms[TermPending] != 0 || c.Terms[TermEvicted] != 0 || math.Abs(float64(c.Terms[TermPrefill])-work) > 0.01 {
		t.Errorf("terms %v", c.Terms)
	}
	if math.Abs(c.CostMS-(sum-want[TermPending]-want[TermEvicted])) > 0.05 || math.Abs(c.OwnMS-(own-want[TermPending])) > 0.05 {
		t.Errorf("cost %.3f, own %.3f", c.CostMS, c.OwnMS)
	}
}

// Waits for memory and for a seat.
func TestMemoryWait(t *testing.T) {
	full := Candidate{UsedKV: 9000, NewKV: 2000, LimitKV: 10000, CtxTokens: 8000, Streams: 10, SeatsFree: 5}
	if w, _, _ := full.memory(20, 100); math.Abs(w-1000*100*20/9000.0) > 1e-9 {
		t.Errorf("wait for memory %v ms, want 222", w)
	}
	// Nothing streams yet: what is there ends all the same, in the time of an answer.
	fresh := full
	fresh.CtxTokens, fresh.Streams = 0, 0
	if w, _, _ := fresh.memory(20, 100); math.Abs(w-1000*100*20/9000.0) > 1e-9 {
		t.Errorf("wait for memory without a stream %v ms, want 222", w)
	}
	seats := Candidate{CtxTokens: 8000, Streams: 10, SeatsFree: -2}
	if w, _, _ := seats.memory(20, 100); math.Abs(w-3*100*20/10.0) > 1e-9 {
		t.Errorf("wait for a seat %v ms, want 600", w)
	}
	free := Candidate{UsedKV: 10, NewKV: 10, LimitKV: 100, SeatsFree: 1}
	if w, _, _ := free.memory(20, 100); w != 0 {
		t.Errorf("wait %v ms with room, want 0", w)
	}
}

func TestPending(t *testing.T) {
	s := Slot{Unstarted: 3, PendingSum: 1, HeadEstimate: 0.4, HeadSince: 10e9}
	for _, c := range []struct{ after, want float64 }{
		{0, 1}, {0.2, 0.82}, {0.4, 0.64}, {3, 0.64}, {5, 0.64 + 1.4},
	} {
		if got := s.Pending(fleet.Time(10e9 + c.after*1e9)); math.Abs(got-c.want) > 1e-9 {
			t.Errorf("after %v s: %v s, want %v", c.after, got, c.want)
		}
	}
	idle := Slot{PendingSum: 1, ForeignPending: 0.5}
	if got := idle.Pending(0); got != 0.5 {
		t.Errorf("idle: %v s, want the others' 0.5", got)
	}
}

func TestDropsAndReasons(t *testing.T) {
	in := input(1000, Slot{}, Slot{Drop: DropDraining}, Slot{Streams: 3, InFlight: 3})
	for _, name := range Names() {
		p, err := New(name, 1)
		if err != nil {
			t.Fatal(err)
		}
		var d Decision
		for range 20 {
			p.Pick(in, &d)
			if d.Chosen == 1 || d.Chosen < 0 || d.Policy != name || d.Why == "" || d.Candidates[1].Drop != DropDraining {
				t.Errorf("%s chose %d (%s)", name, d.Chosen, d.Why)
			}
		}
		none := input(1000, Slot{Drop: DropFailed}, Slot{Drop: DropNotReady})
		p.Pick(none, &d)
		if d.Chosen != -1 || d.Index != -1 || d.Why != WhyNoReplica || d.Pick() != nil {
			t.Errorf("%s chose %d of none", name, d.Chosen)
		}
	}
	if _, err := New("magic", 1); err == nil || !strings.Contains(err.Error(), "penstock") {
		t.Errorf("unknown policy: %v", err)
	}
}

func TestSimplePolicies(t *testing.T) {
	picks := func(p Policy, in *Input, n int) []int32 {
		var d Decision
		var out []int32
		for range n {
			p.Pick(in, &d)
			out = append(out, d.Chosen)
		}
		return out
	}
	in := input(1000, Slot{InFlight: 5}, Slot{InFlight: 2}, Slot{InFlight: 9}, Slot{InFlight: 2})
	if got := fmt.Sprint(picks(RoundRobin(), in, 6)); got != "[0 1 2 3 0 1]" {
		t.Errorf("round robin: %s", got)
	}
	count := func(ps []int32) (n [4]int) {
		for _, p := range ps {
			n[p]++
		}
		return n
	}
	if n := count(picks(LeastRequests(1), in, 1000)); n[0] != 0 || n[2] != 0 || n[1] < 400 {
		t.Errorf("least requests: %v", n)
	}
	if n := count(picks(PowerOfTwo(1), in, 6000)); n[2] != 0 || n[0] < 800 || n[0] > 1200 {
		t.Errorf("power of two: %v, want none of the worst and a sixth of the third", n)
	}
	if n := count(picks(Random(1), in, 4000)); n[0] < 880 || n[1] < 880 || n[2] < 880 || n[3] < 880 {
		t.Errorf("random: %v", n)
	}
	in.Hits = []int32{2, 0, 7, 7}
	if n := count(picks(Affinity(), in, 10)); n[2]+n[3] != 10 || n[2] != 0 && n[3] != 0 {
		t.Errorf("prefix affinity: %v, want always the same of those with 7 blocks", n)
	}
	p := Random(3)
	var a, b Decision
	p.(Peeker).Peek(in, &a)
	p.Pick(in, &b)
	if a.Chosen != b.Chosen {
		t.Errorf("a look changed the next pick from %d to %d", a.Chosen, b.Chosen)
	}
}

// Equal candidates: the same key agrees whatever the order of the slots, keys are
// spread, and an endpoint that joins takes only its share.
func TestTies(t *testing.T) {
	counts := [4]int{}
	moved := 0
	for key := range 4000 {
		four := input(1000, Slot{}, Slot{}, Slot{}, Slot{})
		four.Request.Session = Mix(uint64(key), 3)
		var d Decision
		Penstock().Pick(four, &d)
		if d.Tied != 4 || d.Why != WhyTie {
			t.Fatalf("tied %d, %s", d.Tied, d.Why)
		}
		counts[d.Chosen]++
		was := four.Slots[d.Chosen].Key
		five := input(1000, Slot{}, Slot{}, Slot{}, Slot{}, Slot{})
		five.Slots[0].Key, five.Slots[4].Key = five.Slots[4].Key, five.Slots[0].Key
		five.Request.Session = four.Request.Session
		Penstock().Pick(five, &d)
		if got := five.Slots[d.Chosen].Key; got != was {
			moved++
			if got != Mix(4, 5) {
				t.Fatalf("key %d moved between endpoints that stayed", key)
			}
		}
	}
	for _, n := range counts {
		if n < 900 || n > 1100 {
			t.Errorf("keys over endpoints: %v", counts)
		}
	}
	if moved < 700 || moved > 900 {
		t.Errorf("%d of 4000 keys moved to a fifth endpoint, want about 800", moved)
	}
}

func TestDemotedByLoad(t *testing.T) {
	in := input(1000, Slot{Unstarted: 1, InFlight: 1, PendingSum: 5, HeadEstimate: 5, HeadSince: 100e9}, Slot{})
	in.Hits[0] = 9
	var d Decision
	Penstock().Pick(in, &d)
	if d.Chosen != 1 || !d.DemotedByLoad || d.Why != WhyDemoted || d.MarginMS < 1000 {
		t.Errorf("chose %d, demoted %v, %q, margin %v", d.Chosen, d.DemotedByLoad, d.Why, d.MarginMS)
	}
}

func drawSlots(t *rapid.T) []Slot {
	n := rapid.IntRange(1, 150).Draw(t, "n")
	slots := make([]Slot, n)
	for i := range slots {
		s := &slots[i]
		s.Unstarted = int32(rapid.IntRange(0, 5).Draw(t, "unstarted"))
		s.Streams = int32(rapid.IntRange(0, 60).Draw(t, "streams"))
		s.InFlight = s.Unstarted + s.Streams
		s.PendingSum = float64(s.Unstarted) * rapid.Float64Range(0, 2).Draw(t, "pending")
		s.HeadEstimate = s.PendingSum / max(1, float64(s.Unstarted))
		s.HeadSince = 100e9
		s.CtxTokens = float64(s.Streams) * 2000
		s.KVTokens, s.MaxSeqs = 300_000, 64
		if rapid.IntRange(0, 9).Draw(t, "drop") == 0 {
			s.Drop = DropFailed
		}
	}
	return slots
}

// The choice is the cheapest candidate, terms add up, and a copy of a large
// decision keeps the choice and the cheapest.
func TestPickProperties(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		in := input(rapid.Float64Range(1, 30000).Draw(t, "prompt"), drawSlots(t)...)
		for i := range in.Hits {
			in.Hits[i] = int32(rapid.IntRange(0, len(in.Request.Blocks)).Draw(t, "hit"))
		}
		var d, small Decision
		Penstock().Pick(in, &d)
		small.CopyFrom(&d, 8)
		p := d.Pick()
		if p == nil {
			return
		}
		cheaper := 0
		for i := range d.Candidates {
			c := &d.Candidates[i]
			if c.Drop != DropNone {
				continue
			}
			sum := 0.0
			for _, v := range c.Terms {
				sum += float64(v)
			}
			if math.Abs(sum-c.CostMS) > 1e-4*(1+sum) {
				t.Fatalf("terms add up to %v, cost %v", sum, c.CostMS)
			}
			if c.CostMS < p.CostMS-TieMS {
				t.Fatalf("chose %v ms, there is %v ms", p.CostMS, c.CostMS)
			}
			if c.CostMS < p.CostMS {
				cheaper++
			}
		}
		if len(small.Candidates) > 8 || small.Pick() == nil || small.Pick().Endpoint != p.Endpoint {
			t.Fatalf("the copy has %d candidates and chose %v", len(small.Candidates), small.Pick())
		}
		if got := len(small.Candidates) + int(small.Omitted); got != len(d.Candidates) {
			t.Fatalf("kept and omitted are %d of %d", got, len(d.Candidates))
		}
		if cheaper == 0 && d.MarginMS >= 0 && len(small.Candidates) > 1 {
			second := math.Inf(1)
			for i := range small.Candidates {
				if c := &small.Candidates[i]; int32(i) != small.Index && c.Drop == DropNone {
					second = math.Min(second, c.CostMS)
				}
			}
			if math.Abs(second-p.CostMS-d.MarginMS) > 1e-9 {
				t.Fatalf("the next best of the copy is %v dearer, of all %v", second-p.CostMS, d.MarginMS)
			}
		}
	})
}

// Each flip that is named changes the choice, and a little less of it does not.
func TestWouldChangeIf(t *testing.T) {
	in := input(4000,
		Slot{InFlight: 20, Streams: 20, CtxTokens: 40000, KVTokens: 500_000},
		Slot{InFlight: 9, Unstarted: 1, Streams: 8, CtxTokens: 16000, PendingSum: 0.2, HeadEstimate: 0.2, HeadSince: 100e9, KVTokens: 500_000},
		Slot{Drop: DropDraining})
	in.Hits[0] = 30
	var d Decision
	Penstock().Pick(in, &d)
	if d.Pick().Endpoint != "a" {
		t.Fatalf("chose %s", d.Pick().Endpoint)
	}
	flips := WouldChangeIf(&d)
	t.Log(flips)
	if len(flips) < 3 {
		t.Errorf("flips: %q", flips)
	}
	chosen := func(change func(*Candidate), i int) int {
		e := d
		e.Candidates = append([]Candidate(nil), d.Candidates...)
		change(&e.Candidates[i])
		e.Candidates[i].Price(&e.Engine, &e.Context, e.PromptTokens)
		e.Index, e.Tied = -1, 0
		e.choose(in.Slots)
		return int(e.Index)
	}
	for _, f := range flips {
		var v float64
		var name string
		fields := strings.Fields(f)
		name = fields[0]
		i := int(name[0] - 'a')
		for _, w := range fields {
			fmt.Sscanf(w, "%f", &v)
		}
		for _, off := range []float64{0, 1} {
			got := chosen(func(c *Candidate) {
				switch {
				case strings.Contains(f, "in flight >="):
					addStreams(&d)(c, v-float64(c.InFlight)-off)
				case strings.Contains(f, "in flight <="):
					loseStreams(c, float64(c.InFlight)-v-off)
				case strings.Contains(f, "pending >="):
					c.PendingMS = float32(v - 2*off)
				case strings.Contains(f, "pending <="):
					c.PendingMS = float32(v + 2*off)
				case strings.Contains(f, "cached >="):
					gainCache(c, v-float64(c.Cached)-8*off)
				case strings.Contains(f, "cached <="):
					loseCache(c, float64(c.Cached)-v-8*off)
				default:
					t.Errorf("unknown flip %q", f)
				}
			}, i)
			if changed := got != 0; changed != (off == 0) {
				t.Errorf("%q, less %v of it: chose %d", f, off, got)
			}
		}
	}
	LeastRequests(1).Pick(in, &d)
	if got := WouldChangeIf(&d); len(got) == 0 || got[0] != "a in flight <= 8" {
		t.Errorf("least requests: %q", got)
	}
	Random(1).Pick(in, &d)
	if got := WouldChangeIf(&d); got == nil || len(got) != 0 {
		t.Errorf("random: %q, want an empty list", got)
	}
}

func TestRecord(t *testing.T) {
	in := input(2000,
		Slot{InFlight: 1, Streams: 1, CtxTokens: 900, KVTokens: 100_000, State: &fleet.EndpointState{Signals: fleet.Signals{
			ScrapedAt: 98e9, Running: fleet.Known(2, 98e9), KVUsage: fleet.Known(0.25, 98e9),
		}}},
		Slot{}, Slot{Drop: DropNotReady})
	var c Capture
	c.Reset("chat", &fleet.Request{ID: "q-1", Tenant: "acme", Model: "m", PromptTokens: 2000, Arrived: 99.5e9})
	var d Decision
	Penstock().Pick(in, &d)
	c.Decision.CopyFrom(&d, MaxCaptured)
	c.Finished, c.HeldFor = true, 5e8
	c.Outcome = fleet.Outcome{
		Kind: fleet.OutcomeOK, Status: 200, FirstToken: 100.5e9, End: 102e9, PromptTokens: 2011, CachedTokens: -1, OutputTokens: 40,
	}
	r := c.Record()
	b, err := json.Marshal(r)
	if err != nil {
		t.Fatal(err)
	}
	var back Record
	if err := json.Unmarshal(b, &back); err != nil {
		t.Fatal(err)
	}
	for _, want := range []string{
		`{"schema":"penstock/decision/v1","id":"q-1","time":"1970-01-01T00:01:40Z","pool":"chat"`,
		`"request":{"tenant":"acme","model":"m","adapter":"","prompt_tokens":2000`,
		`"snapshot":{"version":3,"age_ms":1000}`, `"chosen":"b"`, `"endpoint":"c","dropped":"not_ready","cost_ms":null`,
		`{"name":"running","value":2,"unit":"requests","age_ms":2000}`, `{"name":"waiting","value":null,"unit":"requests","age_ms":null}`,
		`{"name":"kv_usage","value":0.25,"unit":"ratio","age_ms":2000}`, `"would_change_if":["`,
		`"outcome":{"status":200,"kind":"ok","ttft_ms":1000,"e2e_ms":2500,"queue_ms":500,"prompt_tokens":2011,"cached_tokens":null,"output_tokens":40,"predicted_cached_tokens":0}`,
	} {
		if !strings.Contains(string(b), want) {
			t.Errorf("no %s in\n%s", want, b)
		}
	}
}
