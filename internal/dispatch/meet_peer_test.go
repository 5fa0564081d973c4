// SPDX-License-Identifier: Apache-2.0

package dispatch

import (
	"testing"

	"pgregory.net/rapid"

	"github.com/penstock-project/penstock/internal/engine"
	"github.com/penstock-project/penstock/internal/fleet"
	"github.com/penstock-project/penstock/internal/route"
)

// went is what a router sent.
type went struct {
	router int
	ticket Ticket
	slot   int32
	req    *fleet.Request
	cached int // tokens that it expected in the cache
}

// pair is two routers before the same replicas, of which each hears the other at once.
type pair struct {
	d    [2]*Dispatch
	now  fleet.Time
	lag  bool // nobody hears anything for now
	deaf bool // what leads and follows is not told, as by an older router
	went []went
}

func newPair(n int) *pair {
	prof, _ := engine.Lookup("llama-3.1-8b-rtxpro6000")
	prof.KVTokens = 400_000
	p := &pair{now: 1e9}
	s := &fleet.Snapshot{Version: 1, At: p.now}
	for i := range n {
		s.Endpoints = append(s.Endpoints, fleet.EndpointState{Endpoint: fleet.Endpoint{
			ID: string(rune('a' + i)), Phase: fleet.PhaseReady, Models: []string{"m"},
		}})
	}
	for k := range p.d {
		p.d[k] = New(Options{Queue: true, Fixed: true, Share: true, Profile: prof})
		p.d[k].Observe(p.now, s, nil)
	}
	return p
}

func (p *pair) carry(k int, sends []Send) {
	for _, s := range sends {
		p.went = append(p.went, went{k, s.Ticket, s.Slot, s.Request, s.Decision.PredictedCached})
	}
}

// talk lets them hear each other until nobody has anything to say.
func (p *pair) talk() {
	if p.lag {
		return // what is told waits
	}
	for k := 0; k < 2; {
		notes := p.d[k].TakeNotes(nil)
		for i := range notes {
			if p.deaf {
				notes[i].Lead, notes[i].Follow = 0, 0
			}
			p.carry(1-k, p.d[1-k].Hear(p.now, 1, &notes[i], nil))
		}
		if k++; len(notes) > 0 {
			k = 0
		}
	}
}

func (p *pair) arrive(k int, r *fleet.Request) (Ticket, Verdict) {
	t, v, out := p.d[k].Arrive(p.now, r, nil)
	p.carry(k, out)
	p.talk()
	return t, v
}

// serve lets replicas answer in the order of the sends, until all is done.
func (p *pair) serve() {
	for i := 0; i < len(p.went); i++ {
		p.now = p.now.AddSeconds(0.2)
		p.answer(i)
	}
}

// answer lets the replica of a send give all of its answer now.
func (p *pair) answer(i int) {
	g := p.went[i]
	p.carry(g.router, p.d[g.router].FirstToken(p.now, g.ticket, nil))
	p.talk()
	p.carry(g.router, p.d[g.router].End(p.now, g.ticket, fleet.Outcome{
		Kind: fleet.OutcomeOK, End: p.now, PromptTokens: g.req.PromptTokens, CachedTokens: g.cached, OutputTokens: 20,
	}, nil))
	p.talk()
}

// Requests of one new beginning that have to wait meet at one replica, whichever routers
// they come to: the one that leads goes first, wherever it is held, and those of the
// other router behind it find in the cache what it leaves there.
func TestSiblingsMeetAcrossRouters(t *testing.T) {
	const siblings, busy = 4, 9
	for _, deaf := range []bool{false, true} {
		p := newPair(3)
		p.deaf = deaf
		for k := range busy { // each replica is busy and has two that wait for it
			p.arrive(k%2, prompt(16, part{uint64(100 + k), 12000}))
		}
		lead, v := p.arrive(0, prompt(16, part{1, 6000}, part{200, 100}))
		if v.Kind != Held {
			t.Fatal("the first one is not held")
		}
		slot, first := v.Decision.Chosen, p.d[0].entries[p.d[0].find(lead)].req.Blocks[0]
		follow := 0
		for k := range siblings {
			_, v := p.arrive(1, prompt(16, part{1, 6000}, part{uint64(300 + k), 100}))
			if v.Kind == Held && v.Decision.Why == route.WhyFollows && v.Decision.Chosen == slot {
				follow++
			}
		}
		p.serve()
		if len(p.went) != busy+1+siblings {
			t.Fatalf("%d were sent", len(p.went))
		}
		cold, before := 0, 0
		for i, g := range p.went {
			if g.req.Blocks[0] != first {
				continue
			}
			if g.cached < 5900 {
				cold++
			}
			if g.ticket == lead && g.router == 0 {
				before = i
			} else if before == 0 && !deaf {
				t.Error("one goes before the one that leads it")
			}
		}
		t.Logf("deaf %v: %d follow, %d compute the beginning", deaf, follow, cold)
		if !deaf && (follow != siblings || cold != 1) {
			t.Errorf("%d of %d follow, %d compute the beginning", follow, siblings, cold)
		}
		if deaf && cold < 2 {
			t.Error("routers that were told nothing meet: the test shows no difference")
		}
		for k := range p.d {
			if n := len(p.d[k].leaders); n != 0 {
				t.Errorf("router %d: %d leaders are left", k, n)
			}
		}
	}
}

func TestCommonMarks(t *testing.T) {
	long := make([]uint64, 1000)
	for i := range long {
		long[i] = uint64(i + 1)
	}
	e := entry{req: &fleet.Request{Blocks: long}}
	e.mark()
	if e.stride != 16 || len(e.marks) != 62 {
		t.Fatalf("%d marks, one in %d blocks", len(e.marks), e.stride)
	}
	for _, c := range []struct {
		blocks []uint64
		want   int
	}{{long, 992}, {long[:500], 496}, {long[:15], 0}, {nil, 0}, {append(long[:100:100], 7, 8), 96}} {
		if got := commonMarks(c.blocks, e.marks, int(e.stride)); got != c.want {
			t.Errorf("%d of %d, want %d", got, len(c.blocks), c.want)
		}
	}
	e.req.Blocks = long[:64]
	if e.mark(); e.stride != 1 || len(e.marks) != 64 || commonMarks(long, e.marks, 1) != 64 {
		t.Errorf("%d marks, one in %d blocks", len(e.marks), e.stride)
	}
}

// Whatever begins alike and comes to whichever router, nothing is held once the replicas
// have answered all that was sent: no two routers wait for each other.
func TestRoutersWaitForNobody(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		p := newPair(rapid.IntRange(1, 3).Draw(t, "replicas"))
		p.lag = rapid.Bool().Draw(t, "lag")
		done, came := 0, rapid.IntRange(1, 60).Draw(t, "requests")
		answer := func() {
			i := done
			done++
			p.now = p.now.AddSeconds(rapid.Float64Range(0, 0.3).Draw(t, "pause"))
			for k := range p.d {
				p.carry(k, p.d[k].Tick(p.now, nil))
				p.talk()
			}
			p.answer(i)
		}
		for n := range came {
			p.now = p.now.AddSeconds(0.001)
			if p.lag && n%4 == 0 { // what was said meanwhile is heard late
				p.lag = false
				p.talk()
				p.lag = true
			}
			for done < len(p.went) && rapid.IntRange(0, 3).Draw(t, "answer") == 0 {
				answer()
			}
			begins := rapid.IntRange(1, 4).Draw(t, "begins")
			p.arrive(rapid.IntRange(0, 1).Draw(t, "router"), prompt(16,
				part{uint64(begins), rapid.IntRange(1, 5).Draw(t, "thousands") * 1000}, part{uint64(100 + n), 100}))
		}
		p.lag = false
		p.talk()
		for done < len(p.went) {
			answer()
			for range 2 { // each may leave the place to the other for so long
				if done < len(p.went) {
					break
				}
				p.now = p.now.Add(yieldMost)
				for k := range p.d {
					p.carry(k, p.d[k].Tick(p.now, nil))
					p.talk()
				}
			}
		}
		if len(p.went) != came || p.d[0].queued+p.d[1].queued != 0 {
			t.Fatalf("%d of %d were sent, %d and %d are held", len(p.went), came, p.d[0].queued, p.d[1].queued)
		}
		for k := range p.d {
			if len(p.d[k].leaders) != 0 || p.d[k].heldThere != 0 {
				t.Fatalf("router %d: %d leaders are left, %d held there", k, len(p.d[k].leaders), p.d[k].heldThere)
			}
		}
	})
}
