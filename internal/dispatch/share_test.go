// SPDX-License-Identifier: Apache-2.0

package dispatch

import (
	"cmp"
	"fmt"
	"math/rand/v2"
	"slices"
	"testing"

	"github.com/penstock-project/penstock/internal/engine"
	"github.com/penstock-project/penstock/internal/fleet"
)

// withFlood plays two calm tenants for a minute, and where flood is set a third that
// sends ten times what each of them does from second 10 to 40. It returns the mean
// time to first token of the calm ones in seconds and the world.
func withFlood(t *testing.T, flood bool, look func(w *world, s Send)) (float64, *world) {
	p, _ := engine.Lookup("llama-3.1-8b-rtxpro6000")
	p.KVTokens = 200_000
	w := newWorld(t, 6, p, Options{Queue: true, Fixed: true})
	rng := rand.New(rand.NewPCG(3, 4))
	n := uint64(1000)
	add := func(tenant string, from, to, every float64) {
		for at := from; at < to; at += every * rng.ExpFloat64() {
			n++
			r := prompt(16, part{n, 3000 + rng.IntN(3000)})
			r.Tenant = tenant
			w.timers = append(w.timers, arrival{w.now.AddSeconds(at), r, 30 + rng.IntN(60)})
		}
	}
	add("calm-0", 0, 60, 0.2)
	add("calm-1", 0, 60, 0.2)
	if flood {
		add("flood", 10, 40, 0.02)
	}
	slices.SortFunc(w.timers, func(a, b arrival) int { return cmp.Compare(a.at, b.at) })
	came := map[*fleet.Request]fleet.Time{}
	for _, a := range w.timers {
		came[a.req] = a.at
	}
	sum, calm := 0.0, 0
	w.onFirst = func(r *fleet.Request) {
		if r.Tenant != "flood" {
			sum += w.now.Seconds(came[r])
			calm++
		}
	}
	w.onSend = func(s Send) { look(w, s) }
	w.run(fleet.Never)
	w.check()
	return sum / float64(calm), w
}

// A tenant that floods keeps to some of the replicas and costs the others little;
// it gets all that it asked for in the end, and then nobody is over a share.
func TestOverShare(t *testing.T) {
	alone, _ := withFlood(t, false, func(w *world, _ Send) {
		if o, over := w.d.OverShare(); over {
			t.Fatalf("%v is over its share among equals", o)
		}
	})
	places, outside := map[int]bool{}, 0
	beside, w := withFlood(t, true, func(w *world, s Send) {
		o, over := w.d.OverShare()
		if !over {
			return
		}
		if o.Tenant != "flood" {
			t.Fatalf("%v is over its share", o)
		}
		places[o.Places] = true
		if s.Request.Tenant == "flood" && !w.d.shares.allowed[s.Slot] {
			outside++
		}
	})
	t.Logf("calm tenants: %.3f s alone, %.3f s beside a flood, which had %v replicas", alone, beside, places)
	if len(places) == 0 || places[0] || places[6] && len(places) == 1 {
		t.Errorf("the flood had %v of 6 replicas", places)
	}
	if outside > 0 {
		t.Errorf("%d requests of the flood went to replicas kept for others", outside)
	}
	if beside > 1.25*alone {
		t.Errorf("mean time to first token %.3f s beside a flood, %.3f s alone", beside, alone)
	}
	for i := range w.d.aux {
		a := &w.d.aux[i].share
		if a.over != 0 || a.overKV > 1e-6 || a.othersKV > 1e-6 || w.d.slots[i].Yielding != 0 || w.d.slots[i].QueuedLast != 0 {
			t.Errorf("slot %d still books %+v", i, *a)
		}
	}
	for k := range 2 {
		w.now = w.now.AddSeconds(overEnds + 1)
		r := prompt(16, part{uint64(k), 100})
		r.Tenant = fmt.Sprint("calm-", k)
		w.timers = append(w.timers, arrival{w.now, r, 3})
		w.run(fleet.Never)
	}
	if o, over := w.d.OverShare(); over {
		t.Errorf("%v is over its share long after its last request", o)
	}
}

// A tenant that is over its share for a while gets its fair share all the same: with the
// others' memory kept free for them it would wait for minutes at replicas that idle.
func TestOverShareIsServed(t *testing.T) {
	p, _ := engine.Lookup("llama-3.1-8b-rtxpro6000")
	p.KVTokens = 120_000
	w := newWorld(t, 4, p, Options{Queue: true, Fixed: true})
	rng := rand.New(rand.NewPCG(5, 6))
	n, work := uint64(1000), 0.0
	add := func(tenant string, from, to, every float64, output int) {
		for at := from; at < to; at += every * rng.ExpFloat64() {
			n++
			r := prompt(16, part{n, 3000 + rng.IntN(3000)})
			r.Tenant = tenant
			w.timers = append(w.timers, arrival{w.now.AddSeconds(at), r, output})
			if tenant == "burst" {
				work += p.PrefillSeconds(r.PromptTokens, r.PromptTokens)
			}
		}
	}
	for _, calm := range []string{"calm-0", "calm-1"} {
		add(calm, 0, 12, 0.2, 600) // fills the memory, which is remembered
		add(calm, 12, 80, 1, 50)
	}
	add("burst", 8, 14, 0.03, 100)
	slices.SortFunc(w.timers, func(a, b arrival) int { return cmp.Compare(a.at, b.at) })
	start, last, over := w.now, 0.0, false
	w.onSend = func(Send) {
		_, now := w.d.OverShare()
		over = over || now
	}
	w.onFirst = func(r *fleet.Request) {
		if r.Tenant == "burst" {
			last = w.now.Seconds(start)
		}
	}
	w.run(fleet.Never)
	w.check()
	// A third of four replicas; decoding, which counts as well, comes on top.
	fair := 8 + work/(4.0/3)
	t.Logf("over its share: %v, the last of the burst was answered at %.0f s, at %.0f s by its fair share of prefill", over, last, fair)
	if !over {
		t.Error("the burst was not taken for a flood")
	}
	if last > 1.75*fair {
		t.Errorf("the last request of the burst got its first token %.0f s after the start, its fair share has it at %.0f s", last, fair)
	}
}
