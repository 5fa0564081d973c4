// SPDX-License-Identifier: Apache-2.0

package dispatch

import (
	"testing"

	"github.com/penstock-project/penstock/internal/engine"
	"github.com/penstock-project/penstock/internal/fleet"
)

// Requests of one new beginning that have to wait meet at one replica: the beginning
// is computed once, though no cache holds it when they come.
func TestSiblingsMeetWhileHeld(t *testing.T) {
	p, _ := engine.Lookup("llama-3.1-8b-rtxpro6000")
	p.KVTokens = 400_000
	w := newWorld(t, 3, p, Options{Queue: true, Fixed: true})
	for k := range 12 { // every replica is busy and has something waiting
		w.timers = append(w.timers, arrival{w.now, prompt(16, part{uint64(100 + k), 12000}), 50})
	}
	const siblings = 6
	at := w.now.AddSeconds(0.05)
	for k := range siblings {
		w.timers = append(w.timers, arrival{at, prompt(16, part{1, 6000}, part{uint64(200 + k), 100}), 50})
	}
	used, follows, n := map[int32]bool{}, 0, 0
	w.onSend = func(s Send) {
		if len(s.Request.Blocks) < 12000/16 {
			used[s.Slot] = true
			n++
		}
	}
	for len(w.timers) > 0 {
		w.run(w.timers[0].at)
	}
	for i := range w.d.entries {
		if e := &w.d.entries[i]; e.state == stateQueued && len(e.req.Blocks) < 12000/16 {
			follows++
		}
	}
	if follows != siblings || len(w.d.leaders) == 0 {
		t.Fatalf("%d of %d siblings are held, %d leaders", follows, siblings, len(w.d.leaders))
	}
	w.run(fleet.Never)
	w.check()
	if len(used) != 1 || n != siblings {
		t.Errorf("%d siblings went to %d replicas", n, len(used))
	}
	if most := (siblings - 1) * 6000; w.cached < most {
		t.Errorf("%d tokens were found in caches, want %d", w.cached, most)
	}
	if len(w.d.leaders) != 0 {
		t.Errorf("%d leaders are left", len(w.d.leaders))
	}
}

func TestCommon(t *testing.T) {
	for _, c := range []struct {
		a, b []uint64
		want int
	}{
		{nil, nil, 0},
		{[]uint64{1, 2}, nil, 0},
		{[]uint64{1, 2, 3}, []uint64{1, 2}, 2},
		{[]uint64{1, 2, 3}, []uint64{1, 5, 6}, 1},
		{[]uint64{4}, []uint64{1}, 0},
	} {
		if got := common(c.a, c.b); got != c.want {
			t.Errorf("common(%v, %v) = %d, want %d", c.a, c.b, got, c.want)
		}
	}
}

// Siblings that come at one moment to replicas that decode are computed in one step:
// they stay together, though nothing is held. The production code without that spreads
// them, which shows that the test can fail.
func TestSiblingsShareAStep(t *testing.T) {
	p, _ := engine.Lookup("llama-3.1-8b-rtxpro6000")
	p.KVTokens = 400_000
	for _, alone := range []bool{false, true} {
		w := newWorld(t, 3, p, Options{Fixed: true, Without: Without{Meet: alone}})
		for k := range 12 { // every replica streams
			w.timers = append(w.timers, arrival{w.now, prompt(16, part{uint64(100 + k), 200}), 4000})
		}
		const siblings = 6
		at := w.now.AddSeconds(10)
		for range siblings {
			w.timers = append(w.timers, arrival{at, prompt(16, part{1, 1600}), 50})
		}
		used := map[int32]bool{}
		w.onSend = func(s Send) {
			if len(s.Request.Blocks) == 100 {
				used[s.Slot] = true
			}
		}
		w.run(fleet.Never)
		w.check()
		if together := len(used) == 1; together == alone {
			t.Errorf("siblings went to %d replicas, priced alone: %v", len(used), alone)
		}
	}
}
