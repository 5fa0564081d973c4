// SPDX-License-Identifier: Apache-2.0

package dispatch

import (
	"fmt"
	"math/rand/v2"
	"testing"
	"time"

	"github.com/penstock-project/penstock/internal/engine"
	"github.com/penstock-project/penstock/internal/fleet"
	"github.com/penstock-project/penstock/internal/route"
)

// adapterWorld is a fleet that serves adapters, of which a load takes real seconds and
// is believed to take others.
func adapterWorld(t *testing.T, replicas, slots, adapters int, real, believed float64, o Options) *world {
	p, _ := engine.Lookup("llama-3.1-8b-rtxpro6000")
	p.LoRASlots, p.LoRALoad = slots, real
	w := newWorld(t, 0, p, o)
	w.d.learned.adapterMS = believed * 1e3
	for i := range replicas {
		w.cores = append(w.cores, engine.NewCore(p, engine.CoreOptions{}))
		w.ids = append(w.ids, fmt.Sprintf("r-%d", i))
		w.sent = append(w.sent, 0)
	}
	w.models = []string{"m"}
	for i := range adapters {
		w.models = append(w.models, fmt.Sprintf("a%d", i))
	}
	w.observe()
	return w
}

// adapterTraffic asks for adapters, the first one as often as all others together, for
// a time.
func adapterTraffic(w *world, adapters, most int, every, length time.Duration) {
	rng := rand.New(rand.NewPCG(3, 4))
	end := w.now.Add(length)
	for at, k := w.now, 0; at < end; k++ {
		r := prompt(16, part{uint64(1000 + k), most/4 + rng.IntN(most*3/4)})
		a := 0
		if rng.IntN(2) == 0 {
			a = 1 + rng.IntN(adapters-1)
		}
		r.Adapter = fmt.Sprintf("a%d", a)
		at = at.Add(time.Duration(rng.ExpFloat64() * float64(every)))
		w.timers = append(w.timers, arrival{at, r, 10 + rng.IntN(20)})
	}
	w.run(fleet.Never)
	w.check()
}

// Where loads are believed to take five seconds and take none, requests crowd where
// their adapter is. That is found out, and they go where they wait least. It is tried
// again later.
func TestAffinityThatHarms(t *testing.T) {
	for _, queue := range []bool{false, true} {
		ttft := map[bool]float64{}
		for _, unguarded := range []bool{true, false} {
			w := adapterWorld(t, 4, 8, 40, 0, 5, Options{Fixed: true, Queue: queue, Unguarded: unguarded})
			left := 0
			w.onSend = func(s Send) {
				if s.Decision.Context.Without.Has(route.TermAdapter) {
					left++
					if s.Decision.Pick().Terms[route.TermAdapter] != 0 {
						t.Fatal("the term is off and in the price")
					}
				}
			}
			adapterTraffic(w, 40, 8000, 100*time.Millisecond, 5*time.Minute)
			g := w.d.Totals(w.now).Guards
			ttft[unguarded] = w.ttft / float64(w.finished)
			t.Logf("queue %v, unguarded %v: mean TTFT %.3f s, %d decisions without the term of %d, loads take %.2f of what is believed, %+v",
				queue, unguarded, ttft[unguarded], left, w.finished, w.d.guards.loads.value(w.now, 5), g)
			if unguarded != (g[GuardAdapter].Switched == 0) || unguarded != (left == 0) {
				t.Errorf("queue %v, unguarded %v: switched off %d times", queue, unguarded, g[GuardAdapter].Switched)
			}
		}
		if ttft[false] > 0.8*ttft[true] {
			t.Errorf("queue %v: mean TTFT %.3f s with the guard, %.3f s without", queue, ttft[false], ttft[true])
		}
	}
}

// Where loads take what they are believed to, affinity stays on.
func TestAffinityThatHelps(t *testing.T) {
	for _, load := range []float64{0.05, 0.5, 2} {
		for _, every := range []time.Duration{400 * time.Millisecond, 100 * time.Millisecond, 50 * time.Millisecond} {
			w := adapterWorld(t, 4, 8, 24, load, load, Options{Queue: true})
			adapterTraffic(w, 24, 2000, every, 3*time.Minute)
			g := w.d.Totals(w.now).Guards[GuardAdapter]
			t.Logf("load %g s, every %v: mean TTFT %.3f s, loads take %.2f of what is believed, %+v", load, every, w.ttft/float64(w.finished), w.d.guards.loads.value(w.now, load), g)
			if g.Switched > 0 {
				t.Errorf("load %g s, every %v: it was switched off", load, every)
			}
		}
	}
}

// Where few adapters fit and requests run with all of them, single decisions promise
// more than all of them together get. Affinity that is off is on again as soon as it
// shows, and stays on for a while.
func TestAffinityComesBack(t *testing.T) {
	ttft := map[bool]float64{}
	for _, unguarded := range []bool{true, false} {
		w := adapterWorld(t, 4, 4, 40, 0, 5, Options{Fixed: true, Unguarded: unguarded})
		var first, last fleet.Time // of the decisions without the term
		w.onSend = func(s Send) {
			if s.Decision.Context.Without.Has(route.TermAdapter) {
				if last = w.now; first == 0 {
					first = w.now
				}
			}
		}
		adapterTraffic(w, 40, 2000, 20*time.Millisecond, 5*time.Minute)
		g := w.d.Totals(w.now).Guards[GuardAdapter]
		ttft[unguarded] = w.ttft / float64(w.finished)
		t.Logf("unguarded %v: mean TTFT %.3f s, off for %v, %+v", unguarded, ttft[unguarded], last.Sub(first), g)
		if unguarded != (g.Switched == 0) || g.Switched > 1 || last.Sub(first) > guardFirst/2 {
			t.Errorf("unguarded %v: switched off %d times, for %v", unguarded, g.Switched, last.Sub(first))
		}
	}
	if ttft[false] > 1.1*ttft[true] {
		t.Errorf("mean TTFT %.3f s with the guard, %.3f s without", ttft[false], ttft[true])
	}
}
