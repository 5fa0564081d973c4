// SPDX-License-Identifier: Apache-2.0

package dispatch

import (
	"math"
	"math/rand/v2"
	"testing"
	"time"

	"github.com/penstock-project/penstock/internal/engine"
	"github.com/penstock-project/penstock/internal/fleet"
	"github.com/penstock-project/penstock/internal/route"
)

// busy plays n requests of a mixed load, about as much as the fleet carries.
func busy(w *world, n int, every fleet.Time, change func(k int, r *fleet.Request)) {
	rng := rand.New(rand.NewPCG(8, 9))
	at := w.now
	for k := range n {
		own := 100 + rng.IntN(500)
		if rng.IntN(5) == 0 {
			own = 4000 + rng.IntN(8000)
		}
		r := prompt(16, part{uint64(rng.IntN(6)), 1000}, part{uint64(100 + k), own})
		if change != nil {
			change(k, r)
		}
		at += fleet.Time(rng.ExpFloat64() * float64(every))
		w.timers = append(w.timers, arrival{at, r, 20 + rng.IntN(150)})
	}
	w.run(fleet.Never)
	w.check()
}

// The queue lowers the mean time to first token under load, holds nothing while a
// replica idles, and keeps its bound.
func TestQueue(t *testing.T) {
	means := map[bool]float64{}
	p, _ := engine.Lookup("llama-3.1-8b-rtxpro6000")
	p.KVTokens = 400_000
	for _, on := range []bool{false, true} {
		w := newWorld(t, 4, p, Options{Queue: on, Fixed: true})
		var held int
		var longest time.Duration
		w.onSend = func(s Send) {
			if s.Held > 0 {
				held++
				longest = max(longest, s.Held)
			}
			if on {
				checkIdle(t, w)
			}
			if d := s.Decision; d.Pick() == nil || d.Pick().Endpoint != s.Endpoint || d.Wait {
				t.Fatalf("sent to %s with decision %+v", s.Endpoint, d)
			}
		}
		rng := rand.New(rand.NewPCG(8, 9))
		at := w.now
		for k := range 2000 { // documents of 4,000 to 40,000 tokens, all different
			n := int(4000 * math.Pow(10, rng.Float64()))
			at += fleet.Time(rng.ExpFloat64() * 310e6)
			w.timers = append(w.timers, arrival{at, prompt(16, part{uint64(100 + k), n}), 100 + rng.IntN(200)})
		}
		w.run(fleet.Never)
		w.check()
		means[on] = w.ttft / float64(w.finished)
		tot := w.d.Totals(w.now)
		t.Logf("queue %v: mean TTFT %.3f s, E2E %.3f s, hit %.2f, held %d, longest %v, stolen %d, moved %d, overdue %d",
			on, means[on], w.e2e/float64(w.finished), float64(w.cached)/float64(w.prompt), held, longest, tot.Stolen, tot.Moved, tot.Overdue)
		if on == (held == 0) || w.finished != 2000 {
			t.Errorf("queue %v: held %d, finished %d", on, held, w.finished)
		}
	}
	if means[true] > 0.8*means[false] {
		t.Errorf("mean TTFT %.3f s with the queue, %.3f s without", means[true], means[false])
	}
}

// checkIdle: nothing is held for a replica that has no waiting work.
func checkIdle(t *testing.T, w *world) {
	t.Helper()
	for i := range w.d.slots {
		if w.d.aux[i].queue.n > 0 && w.d.slots[i].Unstarted == 0 && w.d.lent == 1 {
			t.Fatalf("%d requests wait for replica %d, which has nothing to do", w.d.aux[i].queue.n, i)
		}
	}
}

// Nobody waits longer than the stated bound, even under twice the load that the
// fleet carries and with an order that would starve long prompts.
func TestQueueBound(t *testing.T) {
	p := testProfile()
	p.MaxSeqs = 128
	w := newWorld(t, 2, p, Options{Queue: true, Fixed: true, MaxHold: 2})
	fcfs := map[string]float64{}
	overdue := 0
	w.onSend = func(s Send) {
		e := &w.d.entries[w.d.find(s.Ticket)]
		fcfs[s.Request.ID] = e.fcfs
		bound := 2*e.fcfs + 1
		if s.Held.Seconds() > bound+1e-6 {
			t.Errorf("held %v, first come first served would have cost %.2f s", s.Held, e.fcfs)
		}
		if s.Decision.Why == route.WhyOverdue {
			overdue++
		}
	}
	busy(w, 1500, 5e7, nil)
	t.Logf("overdue %d of %d", overdue, w.finished)
	if overdue == 0 {
		t.Error("the bound was never reached: the load is too low for this test")
	}
}

// The bound in time is on what the order costs, not on the wait: in a fleet that is
// behind by far more than the bound, requests still go in the better order.
func TestQueueBoundInTime(t *testing.T) {
	p := testProfile()
	p.MaxSeqs = 128
	const most = 5 * time.Second
	mean := func(o Options) float64 {
		o.Queue, o.Fixed = true, true
		w := newWorld(t, 2, p, o)
		longest := 0.0
		w.onSend = func(s Send) {
			e := &w.d.entries[w.d.find(s.Ticket)]
			longest = max(longest, e.fcfs)
			if o.HoldMost > 0 && s.Held.Seconds() > max(MostTimes*e.fcfs, e.fcfs+most.Seconds())+1e-6 {
				t.Errorf("held %v, first come first served would have cost %.2f s", s.Held, e.fcfs)
			}
		}
		busy(w, 1500, 5e7, nil)
		if longest < 4*most.Seconds() {
			t.Fatalf("first come first served waits for %.1f s at most: the load is too low for this test", longest)
		}
		return w.ttft / float64(w.finished)
	}
	bounded := mean(Options{HoldMost: most})
	free, fcfs := mean(Options{}), mean(Options{Without: Without{Order: true}})
	t.Logf("mean TTFT %.2f s, without the bound %.2f s, first come first served %.2f s", bounded, free, fcfs)
	if bounded > (free+fcfs)/2 {
		t.Error("the bound costs most of what the order buys")
	}
}

// A more urgent class goes first; of two tenants the one that floods delays itself.
func TestQueueOrder(t *testing.T) {
	p := testProfile()
	p.MaxSeqs = 128
	run := func(change func(k int, r *fleet.Request), of func(r *fleet.Request) bool) (mean float64) {
		w := newWorld(t, 2, p, Options{Queue: true, Fixed: true})
		n, sum := 0, 0.0
		w.onSend = func(s Send) {
			if of(s.Request) {
				n++
				sum += s.Held.Seconds()
			}
		}
		busy(w, 1000, 8e7, change)
		return sum / float64(n)
	}
	small := func(k int, r *fleet.Request) bool { return k%10 == 0 }
	urgent := func(k int, r *fleet.Request) {
		r.Class = 1
		if small(k, r) {
			r.Class = 0
		}
	}
	first := run(urgent, func(r *fleet.Request) bool { return r.Class == 0 })
	rest := run(urgent, func(r *fleet.Request) bool { return r.Class == 1 })
	flood := func(k int, r *fleet.Request) {
		r.Tenant = "flood"
		if small(k, r) {
			r.Tenant = "calm"
		}
	}
	calm := run(flood, func(r *fleet.Request) bool { return r.Tenant == "calm" })
	loud := run(flood, func(r *fleet.Request) bool { return r.Tenant == "flood" })
	same := run(nil, func(r *fleet.Request) bool { return true })
	t.Logf("held: class 0 %.3f s, class 1 %.3f s; calm %.3f s, flood %.3f s; all the same %.3f s", first, rest, calm, loud, same)
	if first > rest/4 {
		t.Errorf("the urgent class waited %.3f s, the other %.3f s", first, rest)
	}
	if calm > loud/4 {
		t.Errorf("the calm tenant waited %.3f s, the flooding one %.3f s", calm, loud)
	}
}

// Bare decisions and full ones send the same requests to the same replicas.
func TestBareSendsTheSame(t *testing.T) {
	var picks [2][]int
	for i, bare := range []bool{false, true} {
		w := newWorld(t, 4, testProfile(), Options{Queue: true, Bare: bare})
		busy(w, 1000, 7e7, nil)
		picks[i] = w.picks
	}
	for k := range picks[0] {
		if picks[0][k] != picks[1][k] {
			t.Fatalf("send %d went to %d, bare to %d", k, picks[0][k], picks[1][k])
		}
	}
}

// A replica that dies hands its queue on.
func TestQueueOfDeadReplica(t *testing.T) {
	p := testProfile()
	w := newWorld(t, 2, p, Options{Queue: true})
	for k := range 60 {
		w.arrive(prompt(16, part{uint64(k % 2), 8000}, part{uint64(100 + k), 2000}), 50)
	}
	held := w.d.Totals(w.now).Held
	if held == 0 {
		t.Fatal("nothing is held")
	}
	s := w.snapshot()
	s.Endpoints[0].Phase = fleet.PhaseFailed
	w.carry(w.d.Observe(w.now, s, w.sends[:0]))
	for _, r := range w.d.Ledger(w.now, nil) {
		if r.Endpoint == "r-0" && r.Queued != 0 {
			t.Errorf("%d requests wait for a dead replica", r.Queued)
		}
	}
	if got := w.d.Totals(w.now).Held; got > held {
		t.Errorf("held %d before, %d after", held, got)
	}
	w.run(fleet.Never)
	w.check()
}

func TestBuckets(t *testing.T) {
	last := int8(-1)
	for x := 1e-5; x < 1000; x *= 1.01 {
		b := bucketOf(x)
		if b < last || b > last+1 || b >= buckets {
			t.Fatalf("bucket of %v s is %d after %d", x, b, last)
		}
		last = b
	}
	if last != buckets-1 || bucketOf(0) != 0 {
		t.Errorf("buckets end at %d", last)
	}
}

// A held request whose cache is pushed out meanwhile is asked again, and moves where
// that is better.
func TestQueueAsksAgain(t *testing.T) {
	p := testProfile()
	p.KVTokens = 40_000
	w := newWorld(t, 3, p, Options{Queue: true, Fixed: true})
	rng := rand.New(rand.NewPCG(8, 9))
	why := map[string]int{}
	w.onSend = func(s Send) { why[s.Decision.Why]++ }
	at := w.now
	for k := range 1500 { // more conversations than the caches hold
		at += fleet.Time(rng.ExpFloat64() * 9e7)
		w.timers = append(w.timers, arrival{at, prompt(16, part{uint64(rng.IntN(30)) << 20, 5000}, part{uint64(100 + k), 100}), 20 + rng.IntN(60)})
	}
	w.run(fleet.Never)
	w.check()
	tot := w.d.Totals(w.now)
	t.Logf("moved %d, stolen %d, why %v, hit %.2f", tot.Moved, tot.Stolen, why, float64(w.cached)/float64(w.prompt))
	if tot.Moved == 0 || tot.Stolen == 0 || w.finished != 1500 {
		t.Errorf("moved %d, stolen %d, finished %d", tot.Moved, tot.Stolen, w.finished)
	}
}
