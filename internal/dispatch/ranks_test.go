// SPDX-License-Identifier: Apache-2.0

package dispatch

import (
	"fmt"
	"math/rand/v2"
	"slices"
	"strconv"
	"testing"
	"time"

	"github.com/penstock-project/penstock/internal/engine"
	"github.com/penstock-project/penstock/internal/fleet"
	"github.com/penstock-project/penstock/internal/route"
)

// newRankWorld is a fleet of n endpoints with so many ranks each, scraped each second.
func newRankWorld(t testing.TB, n, ranks int, p engine.Profile, o Options) *world {
	o.Profile = p
	w := &world{t: t, d: New(o), p: p, live: map[uint64]*live{}, now: 1e9, ranks: ranks, scrape: fleet.Time(time.Second)}
	for i := range n {
		w.ids = append(w.ids, fmt.Sprintf("r-%d", i))
		for range ranks {
			w.cores = append(w.cores, engine.NewCore(p, engine.CoreOptions{}))
			w.sent = append(w.sent, 0)
		}
	}
	w.observe()
	return w
}

// rankSnapshot is what a scrape would say of engines that tell their ranks apart.
func (w *world) rankSnapshot() *fleet.Snapshot {
	w.version++
	s := &fleet.Snapshot{Version: w.version, At: w.now}
	for i, id := range w.ids {
		e := fleet.EndpointState{Endpoint: fleet.Endpoint{
			ID: id, URL: "http://" + id, Phase: fleet.PhaseReady, Models: []string{"m"}, Engine: "vllm", Rank: -1,
		}}
		e.ScrapedAt, e.Notes = w.now, fleet.NoteRanks
		for r := range w.ranks {
			st := w.cores[i*w.ranks+r].Stats(w.now)
			known := func(v int64) fleet.Value { return fleet.Known(float64(v), w.now) }
			l := fleet.Load{
				Model: "m", Rank: r, Running: known(int64(st.Running)), Waiting: known(int64(st.Waiting)), KVUsage: fleet.Known(st.KVUsage(), w.now),
				KVTokens: known(int64(w.p.KVTokens)), Preemptions: known(st.Preemptions), Finished: known(st.Finished),
				PromptTokens: known(st.PromptTokens), OutputTokens: known(st.OutputTokens),
			}
			e.Loads = append(e.Loads, l)
			e.Running = fleet.Known(e.Running.V+l.Running.V, w.now)
			e.Waiting = fleet.Known(e.Waiting.V+l.Waiting.V, w.now)
			e.KVTokens = fleet.Known(e.KVTokens.V+l.KVTokens.V, w.now)
			e.Finished = fleet.Known(e.Finished.V+l.Finished.V, w.now)
		}
		s.Endpoints = append(s.Endpoints, e)
	}
	return s
}

// rankOf is the core that an engine gives a request to: the rank that it names, else
// the one with the least of four times the waiting and the running.
func (w *world) rankOf(endpoint int, pin string) int {
	first := endpoint * w.ranks
	if pin != "" && !w.deaf {
		r, err := strconv.Atoi(pin)
		if err != nil || r < 0 || r >= w.ranks {
			w.t.Fatalf("pin %q", pin)
		}
		return first + r
	}
	best, least := first, -1
	for k := range w.ranks {
		c := first + (k+int(w.seq))%w.ranks
		st := w.cores[c].Stats(w.now)
		if load := 4*st.Waiting + st.Running; least < 0 || load < least {
			best, least = c, load
		}
	}
	return best
}

// A prefix goes to the rank that has it, and ranks are loaded each by itself.
func TestRankHasThePrefix(t *testing.T) {
	w := newRankWorld(t, 2, 2, testProfile(), Options{})
	at := map[int][]int{} // cores by conversation
	var pins []string
	w.onSend = func(s Send) {
		pins = append(pins, s.Pin)
		if s.Endpoint != "r-0" && s.Endpoint != "r-1" || s.URL != "http://"+s.Endpoint {
			t.Errorf("sent to %q at %q", s.Endpoint, s.URL)
		}
	}
	for turn := range 4 {
		for c := range 8 {
			w.arrive(prompt(16, part{uint64(100 * c), 1600 + 160*turn}), 20)
			at[c] = append(at[c], w.picks[len(w.picks)-1])
			if turn > 0 {
				w.run(fleet.Never)
			}
		}
		w.run(fleet.Never)
	}
	for c := range 8 {
		if slices.Min(at[c]) != slices.Max(at[c]) {
			t.Errorf("conversation %d went to ranks %v", c, at[c])
		}
	}
	for i, n := range w.sent {
		if n != 8 {
			t.Errorf("rank %d of the fleet got %d of 32 requests: %v", i, n, w.sent)
		}
	}
	if slices.Contains(pins, "") {
		t.Errorf("pins %q", pins)
	}
	w.check()
	rows := w.d.Ledger(w.now, nil)
	if len(rows) != 2 || rows[0].Endpoint != "r-0" || rows[0].Sent != 16 || len(rows[0].Ranks) != 2 || rows[1].Ranks[1].Rank != 1 || rows[1].Ranks[1].Sent != 8 {
		t.Errorf("ledger %+v", rows)
	}
	if rows[0].CacheBlocks == 0 || rows[0].CacheBlocks != rows[0].Ranks[0].CacheBlocks+rows[0].Ranks[1].CacheBlocks {
		t.Errorf("cached blocks %d, by rank %d and %d", rows[0].CacheBlocks, rows[0].Ranks[0].CacheBlocks, rows[0].Ranks[1].CacheBlocks)
	}
}

// What a scrape says of one rank is that rank's alone.
func TestRankLoads(t *testing.T) {
	d := New(Options{Profile: testProfile(), Policy: route.LeastRequests(1)})
	look := func(at fleet.Time) {
		e := fleet.EndpointState{Endpoint: fleet.Endpoint{ID: "a", URL: "http://a", Phase: fleet.PhaseReady, Engine: "vllm", Rank: -1}}
		e.ScrapedAt, e.Notes = at, fleet.NoteRanks
		e.Running, e.Waiting, e.KVUsage = fleet.Known(15, at), fleet.Known(37, at), fleet.Known(0.97, at)
		e.KVTokens, e.MaxSeqs = fleet.Known(1000, at), fleet.Known(64, at)
		e.Loads = []fleet.Load{
			{Model: "m", Rank: 0, Running: fleet.Known(12, at), Waiting: fleet.Known(37, at), KVUsage: fleet.Known(0.97, at), KVTokens: fleet.Known(600, at), Finished: fleet.Known(4, at)},
			{Model: "m", Rank: 1, Running: fleet.Known(3, at), Waiting: fleet.Known(0, at), KVUsage: fleet.Known(0.05, at), Finished: fleet.Known(0, at)},
		}
		d.Observe(at, &fleet.Snapshot{At: at, Endpoints: []fleet.EndpointState{e}}, nil)
	}
	look(1e9)
	look(2e9) // others' load counts once two scrapes show it
	full, idle := d.slots[d.names["a@0"]], d.slots[d.names["a@1"]]
	if full.State.Running.V != 12 || full.State.Waiting.V != 37 || full.State.KVUsage.V != 0.97 || full.KVTokens != 600 || full.MaxSeqs != 32 {
		t.Errorf("rank 0: %+v, %v tokens, %v seats", full.State.Signals, full.KVTokens, full.MaxSeqs)
	}
	if idle.State.Running.V != 3 || idle.State.KVUsage.V != 0.05 || idle.KVTokens != 500 || idle.State.Rank != 1 {
		t.Errorf("rank 1: %+v, %v tokens", idle.State.Signals, idle.KVTokens)
	}
	if full.ForeignUnstarted < 30 || idle.ForeignUnstarted != 0 || idle.ForeignStreams != 2 {
		t.Errorf("load of others: %v and %v waiting, %v streams", full.ForeignUnstarted, idle.ForeignUnstarted, idle.ForeignStreams)
	}
	_, v, sends := d.Arrive(3e9, prompt(16, part{1, 160}), nil)
	if v.Kind != Sent || sends[0].Endpoint != "a" || sends[0].Pin != "1" {
		t.Errorf("sent %+v", sends)
	}
}

// Where the engine tells of one rank only, of ranks with gaps, or is none that takes
// pins, an endpoint is one candidate and no request names a rank.
func TestNoRanks(t *testing.T) {
	for name, change := range map[string]func(e *fleet.EndpointState){
		"one rank":             func(e *fleet.EndpointState) { e.Loads, e.Notes = nil, 0 },
		"two models":           func(e *fleet.EndpointState) { e.Loads[1].Rank, e.Loads[1].Model, e.Notes = 0, "n", 0 },
		"numbered from four":   func(e *fleet.EndpointState) { e.Loads[0].Rank, e.Loads[1].Rank = 4, 5 },
		"an engine without":    func(e *fleet.EndpointState) { e.Engine = "trtllm" },
		"not scraped yet":      func(e *fleet.EndpointState) { e.Signals = fleet.Signals{} },
		"no counters by rank":  func(e *fleet.EndpointState) { e.Loads[1].Finished = fleet.Value{} },
		"a number too large":   func(e *fleet.EndpointState) { e.Loads[1].Rank = maxRanks },
		"nothing known of any": func(e *fleet.EndpointState) { e.Running = fleet.Value{} },
	} {
		w := newRankWorld(t, 1, 2, testProfile(), Options{})
		d := New(Options{Profile: testProfile()})
		s := w.snapshot()
		change(&s.Endpoints[0])
		d.Observe(1e9, s, nil)
		_, _, sends := d.Arrive(2e9, prompt(16, part{1, 160}), nil)
		if len(sends) != 1 || sends[0].Pin != "" || len(d.slots) != 1 || d.split {
			t.Errorf("%s: %d slots, %+v", name, len(d.slots), sends)
		}
	}
}

// Honoured pins are found to be, ignored ones too, and an endpoint that ignores them is
// one candidate until its process is another.
func TestPins(t *testing.T) {
	for _, deaf := range []bool{false, true} {
		for _, rate := range []float64{2, 40} {
			w := newRankWorld(t, 1, 2, testProfile(), Options{})
			w.deaf = deaf
			rng := rand.New(rand.NewPCG(3, 4))
			at := w.now
			for k := range 1500 {
				at += fleet.Time(rng.ExpFloat64() / rate * 1e9)
				w.timers = append(w.timers, arrival{at, prompt(16, part{uint64(50 * (k % 20)), 320}), 1 + rng.IntN(12)})
			}
			w.run(fleet.Never)
			w.check()
			p := w.d.Ledger(w.now, nil)[0].Pins
			want := PinsHonoured
			if deaf {
				want = PinsIgnored
			}
			t.Logf("ignored %v, %v requests a second: %+v", deaf, rate, *p)
			if p.Verdict != want {
				t.Errorf("ignored %v, %v requests a second: %+v, want %v", deaf, rate, *p, want)
			}
			_, _, sends := w.d.Arrive(w.now, prompt(16, part{7, 160}), nil)
			if (sends[0].Pin == "") != deaf {
				t.Errorf("ignored %v: pin %q", deaf, sends[0].Pin)
			}
			if !deaf {
				continue
			}
			again := w.snapshot()
			again.Endpoints[0].StartTime = fleet.Known(50, w.now)
			w.d.Observe(w.now, again, nil)
			again = w.snapshot()
			again.Endpoints[0].StartTime = fleet.Known(60, w.now)
			w.d.Observe(w.now, again, nil)
			if _, _, sends = w.d.Arrive(w.now, prompt(16, part{7, 160}), nil); sends[0].Pin == "" {
				t.Error("the new process is not asked for a rank")
			}
		}
	}
}

// A process that fails fails for all of its ranks: none is tried again, all are ejected
// and all come back together.
func TestRanksFailTogether(t *testing.T) {
	w := newRankWorld(t, 2, 2, testProfile(), Options{})
	r := prompt(16, part{1, 160})
	k, _, sends := w.d.Arrive(w.now, r, nil)
	bad := sends[0].Endpoint
	v, sends := w.d.Retry(w.now, k, fleet.OutcomeConnectError, nil)
	if v.Kind != Sent || sends[0].Endpoint == bad || sends[0].Pin == "" {
		t.Fatalf("%v, %+v", v, sends)
	}
	for i := range w.d.slots {
		a := &w.d.aux[i]
		if ejected := a.breaker.open(w.now); ejected != (a.home.id == bad) {
			t.Errorf("%s: ejected %v", w.d.slots[i].ID, ejected)
		}
	}
	if v, _ = w.d.Retry(w.now, k, fleet.OutcomeConnectError, nil); v.Kind != Refused {
		t.Errorf("a third attempt: %v", v)
	}
	w.d.End(w.now, k, fleet.Outcome{Kind: fleet.OutcomeConnectError}, nil)
	w.now += 2e9
	w.observe()
	for i := range w.d.slots {
		if w.d.aux[i].breaker.open(w.now) {
			t.Errorf("%s is still ejected", w.d.slots[i].ID)
		}
	}
}

// A KV event changes what is believed of the rank that told it.
func TestRankEvents(t *testing.T) {
	w := newRankWorld(t, 1, 2, testProfile(), Options{Events: true})
	blocks := prompt(16, part{1, 1600}).Blocks
	w.d.Cached(w.now, &CacheEvent{Kind: CacheStored, Endpoint: "r-0", Rank: 1, Blocks: blocks})
	rows := w.d.Ledger(w.now, nil)[0].Ranks
	if rows[0].CacheBlocks != 0 || rows[1].CacheBlocks != len(blocks) {
		t.Errorf("%d and %d blocks", rows[0].CacheBlocks, rows[1].CacheBlocks)
	}
	if _, _, sends := w.d.Arrive(w.now, prompt(16, part{1, 1600}), nil); sends[0].Pin != "1" {
		t.Errorf("pin %q", sends[0].Pin)
	}
	w.d.Cached(w.now, &CacheEvent{Kind: CacheStored, Endpoint: "r-0", Rank: 9, Blocks: blocks})
}

// A proxy that moves a request by itself takes its rank along.
func TestAlternativesOfARank(t *testing.T) {
	w := newRankWorld(t, 3, 2, testProfile(), Options{})
	r := prompt(16, part{1, 160})
	k, v, sends := w.d.Arrive(w.now, r, nil)
	first := sends[0]
	alts := w.d.Alternatives(v.Decision, 3, nil)
	if len(alts) != 2 || slices.Contains(alts, first.URL) || alts[0] == alts[1] {
		t.Fatalf("sent to %s, alternatives %v", first.URL, alts)
	}
	w.d.Bind(k, fleet.HostPort(alts[1]))
	v, sends = w.d.Retry(w.now, k, fleet.OutcomeConnectError, nil)
	if v.Kind != Sent || sends[0].URL != alts[1] || sends[0].Pin != first.Pin {
		t.Errorf("%v: %+v, want rank %s at %s", v, sends, first.Pin, alts[1])
	}
}

// Routers that see the same ranks charge each other's requests to them; where one takes
// the endpoint for one candidate, the other charges it as a whole.
func TestRankNotes(t *testing.T) {
	mine := newRankWorld(t, 1, 2, testProfile(), Options{Share: true})
	theirs := newRankWorld(t, 1, 2, testProfile(), Options{Share: true})
	_, _, sends := mine.d.Arrive(mine.now, prompt(16, part{1, 1600}), nil)
	hear := func(from, to *Dispatch) []EndpointLoad {
		for _, n := range from.TakeNotes(nil) {
			to.Hear(mine.now, 1, &n, nil)
		}
		return to.Ledger(mine.now, nil)
	}
	rank, _ := strconv.Atoi(sends[0].Pin)
	rows := hear(mine.d, theirs.d)
	if rows[0].PeerInFlight != 1 || rows[0].Ranks[rank].PeerInFlight != 1 {
		t.Errorf("%+v", rows)
	}
	theirs.d.homes["r-0"].check.verdict = PinsIgnored
	theirs.observe()
	mine.d.Arrive(mine.now, prompt(16, part{2, 1600}), nil)
	if rows = hear(mine.d, theirs.d); rows[0].PeerInFlight != 2 || theirs.d.Peer(1).Unknown != 0 {
		t.Errorf("one candidate there: %+v", rows)
	}
	theirs.d.Arrive(mine.now, prompt(16, part{3, 1600}), nil)
	if rows = hear(theirs.d, mine.d); rows[0].PeerInFlight != 1 || mine.d.Peer(1).Unknown != 0 {
		t.Errorf("ranks here: %+v", rows)
	}
}

// The life of a request does not allocate, whatever rank it names.
func TestRanksDoNotAllocate(t *testing.T) {
	w := newRankWorld(t, 4, 4, testProfile(), Options{})
	r := prompt(16, part{1, 3200})
	out := make([]Send, 0, 8)
	life := func() {
		w.now += 1e6
		k, _, sends := w.d.Arrive(w.now, r, out[:0])
		w.d.FirstToken(w.now, k, sends[:0])
		w.d.End(w.now, k, fleet.Outcome{Kind: fleet.OutcomeOK, PromptTokens: 3200, CachedTokens: 1600, OutputTokens: 10}, out[:0])
	}
	for range 100 {
		life()
	}
	if n := testing.AllocsPerRun(200, life); n != 0 {
		t.Errorf("%v allocations", n)
	}
}

// An engine of several API servers does not tell when it started. That it counts anew
// shows that it is another process, which may honour pins.
func TestPinsAreTriedAnewWithoutAStartTime(t *testing.T) {
	w := newRankWorld(t, 1, 2, testProfile(), Options{})
	look := func(finished float64) {
		w.now += 1e9
		s := w.rankSnapshot()
		s.Endpoints[0].Finished = fleet.Known(finished, w.now)
		w.d.Observe(w.now, s, nil)
	}
	pin := func() string {
		k, _, sends := w.d.Arrive(w.now, prompt(16, part{7, 160}), nil)
		w.d.End(w.now, k, fleet.Outcome{Kind: fleet.OutcomeClientGone}, nil)
		return sends[0].Pin
	}
	look(100)
	w.d.homes["r-0"].check.verdict = PinsIgnored
	if look(120); pin() != "" {
		t.Error("the same process is asked for a rank again")
	}
	if look(3); pin() == "" {
		t.Error("the new process is not asked for a rank")
	}
}
