// SPDX-License-Identifier: Apache-2.0

package dispatch

import (
	"math/rand/v2"
	"testing"

	"github.com/penstock-project/penstock/internal/fleet"
	"github.com/penstock-project/penstock/internal/route"
)

// One popular system prompt must neither pull the whole fleet's load to the
// replica that has it, nor lose its cache under load.
func TestHotPrefix(t *testing.T) {
	rng := rand.New(rand.NewPCG(1, 2))
	ask := func(k int) *fleet.Request {
		return prompt(16, part{1, 2000}, part{uint64(1000 + k), 50 + rng.IntN(351)})
	}
	w := newWorld(t, 4, testProfile(), Options{})

	var shared, hit int
	for k := range 40 { // one at a time
		w.arrive(ask(k), 120)
		w.run(fleet.Never)
		if k > 0 {
			shared += 2000
		}
	}
	hit = w.cached
	if low := float64(hit) / float64(shared); low < 0.9 {
		t.Errorf("low load: %.2f of the shareable tokens were cached, want 0.9", low)
	}

	w.cached, w.prompt = 0, 0
	worst := 0.0
	holding := map[int]bool{}
	var warm, demoted int
	w.onSend = func(s Send) {
		holding[int(s.Slot)] = true
		if s.Decision.DemotedByLoad {
			demoted++
		}
		if s.Decision.Pick().Hit >= 2000/16 {
			warm++
		}
	}
	for k := range 400 {
		w.timers = append(w.timers, arrival{w.now + fleet.Time(k)*5e7, ask(100 + k), 120})
	}
	// The load is 20 requests a second of 3 s each: above the 16 seats of one
	// replica once the first 3 s have filled them.
	loaded := w.now + 3e9
	for len(w.timers) > 0 {
		w.run(w.timers[0].at)
		total, most := 0, 0
		for _, r := range w.d.Ledger(w.now, nil) {
			total += r.InFlight
			most = max(most, r.InFlight)
		}
		if mean := float64(total) / 4; w.now > loaded && total > 16 {
			worst = max(worst, float64(most)/mean)
		}
	}
	w.run(fleet.Never)
	w.check()
	rate := float64(w.cached) / float64(400*2000)
	t.Logf("burst: %d finished, max/mean in flight %.2f, %d replicas hold the prefix, hit rate %.2f, demoted %d, sent %v, mean TTFT %.3f s",
		w.finished, worst, len(holding), rate, demoted, w.sent, w.ttft/float64(w.finished))
	if worst > 1.5 {
		t.Errorf("a replica had %.2f times the mean in flight, at most 1.5", worst)
	}
	if len(holding) < 2 {
		t.Errorf("%d replicas hold the prefix, want 2", len(holding))
	}
	if rate < 0.9 {
		t.Errorf("hit rate under load %.2f, want 0.9", rate)
	}
	if demoted == 0 || w.d.Totals(w.now).DemotedByLoad != uint64(demoted) {
		t.Errorf("%d picks were demoted by load, the total says %d", demoted, w.d.Totals(w.now).DemotedByLoad)
	}
}

// Unique parts decide between replicas that all hold the shared prefix.
func TestLongestPrefixAmongWarm(t *testing.T) {
	w := newWorld(t, 4, testProfile(), Options{})
	var homes []int
	for k := range 8 {
		w.arrive(prompt(16, part{1, 2000}, part{uint64(100 + k), 3000}), 20)
		homes = append(homes, w.picks[len(w.picks)-1])
		if k%2 == 1 {
			w.run(fleet.Never)
		}
	}
	w.run(fleet.Never)
	for k := range 8 {
		w.arrive(prompt(16, part{1, 2000}, part{uint64(100 + k), 3000}, part{uint64(200 + k), 200}), 20)
		if got := w.picks[len(w.picks)-1]; got != homes[k] {
			t.Errorf("conversation %d went to %d, its turn before to %d", k, got, homes[k])
		}
		w.run(fleet.Never)
	}
}

// Between two scrapes the router's own accounting keeps a burst spread out.
func TestHerdBetweenScrapes(t *testing.T) {
	for _, c := range []struct {
		name string
		ask  func(k int, rng *rand.Rand) *fleet.Request
	}{
		{"unique", func(k int, rng *rand.Rand) *fleet.Request { return prompt(16, part{uint64(k), 200 + rng.IntN(800)}) }},
		{"identical", func(int, *rand.Rand) *fleet.Request { return prompt(16, part{1, 600}) }},
		{"short", func(int, *rand.Rand) *fleet.Request { return prompt(128, part{1, 40}) }},
		{"silent", func(k int, rng *rand.Rand) *fleet.Request {
			r := prompt(16, part{uint64(k), 200 + rng.IntN(800)})
			r.Stream = false
			return r
		}},
	} {
		for _, scrape := range []fleet.Time{15e9, 60e9} {
			rng := rand.New(rand.NewPCG(3, 4))
			p := testProfile()
			p.MaxSeqs = 256
			w := newWorld(t, 8, p, Options{})
			w.scrape, w.nextLook = scrape, w.now+scrape
			for k := range 500 {
				w.timers = append(w.timers, arrival{w.now + fleet.Time(k)*4e6, c.ask(k, rng), 100})
			}
			w.run(w.now + 2e9)
			t.Logf("%s: %v", c.name, w.sent)
			for i, n := range w.sent {
				if n < 40 || n > 85 {
					t.Errorf("%s: replica %d got %d of 500 requests, want 40 to 85: %v", c.name, i, n, w.sent)
				}
			}
			w.run(fleet.Never)
			w.check()
		}
	}
}

// A long prompt counts for more than a short one.
func TestPromptSizeCounts(t *testing.T) {
	p := testProfile()
	p.MaxSeqs = 256
	w := newWorld(t, 2, p, Options{})
	w.arrive(prompt(16, part{1, 30000}), 10)
	big := w.picks[0]
	for k := range 20 {
		w.arrive(prompt(16, part{uint64(10 + k), 50}), 10)
		if w.picks[len(w.picks)-1] == big {
			t.Errorf("request %d went behind a prompt of 30,000 tokens", k)
		}
	}
}

// Two routers without a shared store send the turns of a conversation to the same
// replica; a fifth replica takes its share of new ones and no more.
func TestTwoRoutersAgree(t *testing.T) {
	for _, hint := range []bool{false, true} {
		a := newWorld(t, 4, testProfile(), Options{})
		b := newWorld(t, 4, testProfile(), Options{})
		turn := func(s, turns int) *fleet.Request {
			parts := []part{{uint64(s * 1000), 600}}
			for k := range turns {
				parts = append(parts, part{uint64(s*1000 + k + 1), 150})
			}
			r := prompt(16, parts...)
			if hint {
				r.Session = route.Mix(uint64(s), 99)
			}
			return r
		}
		home := map[int]int{}
		same, total := 0, 0
		for k := range 5 {
			for s := range 200 {
				w := a
				if (k+s)%2 == 1 {
					w = b
				}
				w.arrive(turn(s, k), 10)
				w.run(fleet.Never)
				got := w.picks[len(w.picks)-1]
				if k == 0 {
					home[s] = got
					continue
				}
				total++
				if got == home[s] {
					same++
				}
			}
		}
		if share := float64(same) / float64(total); share < 0.99 {
			t.Errorf("hint %v: %.3f of the turns went to the same replica, want 0.99", hint, share)
		}
		spread := map[int]int{}
		for _, r := range home {
			spread[r]++
		}
		five := newWorld(t, 5, testProfile(), Options{})
		moved := 0
		for s := range 200 {
			five.arrive(turn(s, 0), 10)
			five.run(fleet.Never)
			if five.picks[s] != home[s] {
				moved++
			}
		}
		t.Logf("hint %v: same %d of %d, homes %v, moved to a fifth %d of 200", hint, same, total, spread, moved)
		if moved > 60 {
			t.Errorf("hint %v: %d of 200 conversations move when a fifth replica joins, at most 60", hint, moved)
		}
		for r := range 4 {
			if spread[r] < 30 {
				t.Errorf("hint %v: homes are not spread: %v", hint, spread)
			}
		}
	}
}

// A common system prompt must not pull every conversation to one replica once
// there is load.
func TestCommonPromptSpreads(t *testing.T) {
	w := newWorld(t, 4, testProfile(), Options{})
	for k := range 64 {
		w.timers = append(w.timers, arrival{w.now + fleet.Time(k)*1e8, prompt(16, part{1, 1000}, part{uint64(100 + k), 300}), 200})
	}
	w.run(fleet.Never)
	w.check()
	t.Logf("conversations: %v", w.sent)
	for i, n := range w.sent {
		if n == 0 {
			t.Errorf("replica %d got none of 64 conversations: %v", i, w.sent)
		}
	}
}

// Requests of one new prefix that come at once, before its first block exists
// anywhere, stay together where there is other work to do: what was sent counts as
// cached from the moment of sending.
func TestSiblingsStayTogether(t *testing.T) {
	p := testProfile()
	p.MaxSeqs = 256
	w := newWorld(t, 4, p, Options{Fixed: true})
	rng := rand.New(rand.NewPCG(8, 9))
	at := w.now
	for k := range 400 { // background: about half of what the fleet carries
		at += fleet.Time(rng.ExpFloat64() * 25e7)
		w.timers = append(w.timers, arrival{at, prompt(16, part{uint64(100+k) << 20, 2000 + rng.IntN(2000)}), 50})
	}
	w.run(w.timers[300].at)
	w.picks = w.picks[:0]
	for k := range 8 {
		w.arrive(prompt(16, part{7, 6000}, part{uint64(5000+k) << 20, 40}), 100)
	}
	places := map[int]bool{}
	for _, r := range w.picks {
		places[r] = true
	}
	t.Logf("8 siblings went to %v", w.picks)
	if len(places) > 2 {
		t.Errorf("8 siblings were computed at %d replicas: %v", len(places), w.picks)
	}
	w.run(fleet.Never)
	w.check()
}
