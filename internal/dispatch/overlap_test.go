// SPDX-License-Identifier: Apache-2.0

package dispatch

import (
	"slices"
	"testing"
	"time"

	"github.com/penstock-project/penstock/internal/engine"
	"github.com/penstock-project/penstock/internal/fleet"
)

// address is one address with several engines behind it, each of which computes one
// prompt after the other. It tells of none of them.
type address struct {
	t       *testing.T
	d       *Dispatch
	now     fleet.Time
	engines []fleet.Time // when each is free
	firsts  []event      // first tokens to come, in order of time
	tokens  float64      // of prompts so far, as a counter that a restart clears
	version uint64
	n       int // prompts so far, no two alike
	sends   []Send
}

type event struct {
	at     fleet.Time
	ticket Ticket
}

func newAddress(t *testing.T, engines int) *address {
	p, _ := engine.Lookup("llama-3.1-8b-rtxpro6000")
	a := &address{t: t, now: 1e9, engines: make([]fleet.Time, engines), tokens: 1}
	a.d = New(Options{Profile: p, Queue: true, Fixed: true, HoldFor: time.Hour})
	a.look()
	return a
}

func (a *address) look() {
	a.version++
	s := &fleet.Snapshot{Version: a.version, At: a.now}
	e := fleet.EndpointState{Endpoint: fleet.Endpoint{ID: "r", URL: "http://r", Phase: fleet.PhaseReady, Models: []string{"m"}}}
	e.KVTokens, e.PromptTokens, e.ScrapedAt = fleet.Known(2e6, a.now), fleet.Known(a.tokens, a.now), a.now
	s.Endpoints = append(s.Endpoints, e)
	a.serve(a.d.Observe(a.now, s, a.sends[:0]))
}

// serve gives requests to the engine that is free first.
func (a *address) serve(sends []Send) {
	a.sends = sends
	for _, s := range sends {
		k := 0
		for i := range a.engines {
			if a.engines[i] < a.engines[k] {
				k = i
			}
		}
		n := s.Request.PromptTokens
		a.engines[k] = max(a.engines[k], a.now).AddSeconds(a.d.o.Profile.PrefillSeconds(n, n))
		a.firsts = append(a.firsts, event{a.engines[k], s.Ticket})
		slices.SortStableFunc(a.firsts, func(x, y event) int { return int(min(1, max(-1, x.at-y.at))) })
		a.tokens += float64(n)
	}
}

// play sends a prompt every so many seconds, long and short ones in turn, for a while.
func (a *address) play(every, length float64) {
	end, next, idle := a.now.AddSeconds(length), a.now, 0
	for a.now < end || len(a.firsts) > 0 {
		timer := a.d.NextTimer()
		at := min(next, timer)
		if len(a.firsts) > 0 {
			at = min(at, a.firsts[0].at)
		}
		if idle++; at > a.now {
			idle = 0
		}
		if idle > 1000 {
			a.t.Fatalf("nothing moves at %v: timer %v", a.now, timer)
		}
		a.now = max(a.now, at)
		switch {
		case len(a.firsts) > 0 && a.firsts[0].at <= a.now:
			k := a.firsts[0].ticket
			a.firsts = a.firsts[1:]
			a.serve(a.d.FirstToken(a.now, k, a.sends[:0]))
			a.serve(a.d.End(a.now, k, fleet.Outcome{Kind: fleet.OutcomeOK}, a.sends[:0]))
		case next <= a.now:
			next = next.AddSeconds(every)
			if a.now >= end {
				next = fleet.Never
				continue
			}
			a.n++
			_, _, out := a.d.Arrive(a.now, prompt(16, part{uint64(a.n) << 20, []int{8000, 2500}[a.n%2]}), a.sends[:0])
			a.serve(out)
		default:
			a.serve(a.d.Tick(a.now, a.sends[:0]))
		}
	}
}

// Two engines behind one address are found out, and then nothing is held for it; one
// engine is never taken for two. A restart may change which it is, so it is asked anew.
func TestOverlap(t *testing.T) {
	one := newAddress(t, 1)
	one.play(0.35, 300)
	if n := one.d.Totals(one.now).Overlaps; n > 0 {
		t.Errorf("one engine was taken for several, %d times", n)
	}
	two := newAddress(t, 2)
	two.play(0.22, 60)
	if !two.d.parallel(0) {
		t.Fatal("two engines were not found")
	}
	held := two.d.Totals(two.now).Queue.Held
	two.play(0.22, 60)
	if n := two.d.Totals(two.now).Queue.Held - held; n > 0 {
		t.Errorf("%d requests were held once they were found", n)
	}
	two.tokens = 0 // another process answers now
	two.now = two.now.AddSeconds(1)
	two.look()
	if two.d.parallel(0) {
		t.Error("what was found outlives the process")
	}
	// A queue that was empty for long starts anew.
	two.now = two.now.AddSeconds(3600)
	if o := &two.d.aux[0].overlap; two.d.probeDue(0) || o.since != 0 && two.d.aux[0].queue.n > 0 {
		t.Errorf("a pair is due without a queue: %+v", o)
	}
}
