// SPDX-License-Identifier: Apache-2.0

package dispatch

import (
	"fmt"
	"testing"
	"time"

	"pgregory.net/rapid"

	"github.com/penstock-project/penstock/internal/engine"
	"github.com/penstock-project/penstock/internal/fleet"
)

func TestHarms(t *testing.T) {
	for _, c := range []struct {
		name       string
		n          int
		got, would float64
		spread     float64 // every second request waits so much longer, the others so much shorter
		want       bool
	}{
		{"nothing known", 0, 0, 0, 0, false},
		{"too few", guardLeast / 2, 9, 1, 0, false},
		{"helps", 400, 0.3, 0.6, 0.1, false},
		{"even", 400, 0.6, 0.6, 0.1, false},
		{"a little worse", 400, 0.74, 0.6, 0, false},
		{"worse", 400, 0.8, 0.6, 0, true},
		{"worse, or chance", 400, 0.8, 0.6, 3, false},
		{"milliseconds", 400, 0.008, 0.004, 0, false},
		{"far worse", guardLeast, 3, 0.6, 1, true},
	} {
		var v evidence
		for k := range c.n {
			d := c.spread
			if k%2 == 0 {
				d = -d
			}
			v.add(1e9, c.got+d, c.would)
		}
		if got := v.harms(1e9); got != c.want {
			t.Errorf("%s: harms is %v", c.name, got)
		}
	}
}

// Evidence is forgotten: what was harm an hour ago is none now.
func TestHarmIsForgotten(t *testing.T) {
	var v evidence
	for range 400 {
		v.add(1e9, 3, 1)
	}
	if later := fleet.Time(1e9).Add(10 * time.Minute); !v.harms(1e9) || v.harms(later) {
		t.Error("harm of ten minutes ago counts, or harm of now does not")
	}
}

// What harms is off for a minute, then for twice as long each time, sixteen minutes at
// most; what worked for long enough begins with a minute again.
func TestGuardLength(t *testing.T) {
	d := New(Options{Queue: true})
	now := fleet.Time(1e9)
	harm := func() time.Duration {
		for k := 0; !d.guards.of[GuardQueue].off; k++ {
			if k > 10*guardLeast {
				t.Fatal("it is never off")
			}
			d.begin(now)
			d.weighGuard(GuardQueue, 3, 1)
		}
		s := &d.guards.of[GuardQueue]
		if d.queues || d.Totals(now).QueueOn {
			t.Fatal("the queue is on")
		}
		d.begin(s.until - 1)
		if !s.off {
			t.Fatal("on before its time")
		}
		d.begin(s.until)
		if s.off || !d.queues {
			t.Fatal("off after its time")
		}
		now = s.until
		return s.length
	}
	want := []time.Duration{1, 2, 4, 8, 16, 16}
	for k, w := range want {
		if got := harm(); got != w*time.Minute {
			t.Errorf("time %d: off for %v, want %v", k, got, w*time.Minute)
		}
	}
	now = now.Add(3 * guardLongest)
	if got := harm(); got != time.Minute {
		t.Errorf("after a long time on: off for %v", got)
	}
	if n := d.guardStates(now)[GuardQueue].Switched; n != uint64(len(want)+1) {
		t.Errorf("switched off %d times", n)
	}
}

// Whatever the evidence: a mechanism that helps is never off, one that harms is off
// soon, and the same evidence gives the same states.
func TestGuardProperty(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		would := rapid.Float64Range(0.02, 20).Draw(t, "would")
		factor := rapid.SampledFrom([]float64{0.2, 0.9, 1, 1.2, 2, 5}).Draw(t, "factor")
		gaps := rapid.SliceOfN(rapid.IntRange(1, 200), 300, 400).Draw(t, "gaps ms")
		play := func() string {
			d := New(Options{Queue: true})
			now := fleet.Time(1e9)
			line := ""
			for k, g := range gaps {
				now = now.Add(time.Duration(g) * time.Millisecond)
				d.begin(now)
				d.weighGuard(GuardQueue, would*factor, would)
				s := d.guards.of[GuardQueue]
				if s.off && (factor <= 1.2 || k+1 < guardLeast) {
					t.Fatalf("off after %d requests that took %g times as long", k+1, factor)
				}
				if s.off == d.queues {
					t.Fatal("the queue is on although it harms, or off although it does not")
				}
				line += fmt.Sprint(s.off, s.until, " ")
			}
			if factor >= 2 && would >= 0.1 && d.guards.of[GuardQueue].switched == 0 {
				t.Fatalf("never off though requests take %g times as long", factor)
			}
			return line
		}
		if a, b := play(), play(); a != b {
			t.Fatal("two plays differ")
		}
	})
}

// A queue that stands in the way, here for another router that holds a request for
// every replica and never sends it, is found out and sends what it holds at once. It
// is tried again later.
func TestQueueThatHarms(t *testing.T) {
	p, _ := engine.Lookup("llama-3.1-8b-rtxpro6000")
	ttft := map[bool]float64{}
	for _, unguarded := range []bool{true, false} {
		w := newWorld(t, 3, p, Options{Queue: true, Fixed: true, Share: true, Unguarded: unguarded})
		for i := range 3 {
			n := Note{Kind: NoteHeld, Ticket: Ticket(1 + i), Key: w.d.slots[i].Key, Prompt: 10, Waited: time.Hour.Seconds(), Stream: true}
			w.d.Hear(w.now, 1, &n, nil)
		}
		if w.d.heldThere != 3 {
			t.Fatalf("%d requests are held elsewhere", w.d.heldThere)
		}
		busy(w, 1500, 80e6, nil)
		tot := w.d.Totals(w.now)
		g := tot.Guards[GuardQueue]
		ttft[unguarded] = w.ttft / float64(w.finished)
		t.Logf("unguarded %v: mean TTFT %.3f s, held %d, switched off %d times, %+v", unguarded, ttft[unguarded], tot.Queue.Held, g.Switched, g)
		if unguarded != (g.Switched == 0) {
			t.Errorf("unguarded %v: switched off %d times", unguarded, g.Switched)
		}
	}
	if ttft[false] > 0.8*ttft[true] {
		t.Errorf("mean TTFT %.3f s with the guard, %.3f s without", ttft[false], ttft[true])
	}
}

// A queue that helps stays on, at any load.
func TestGuardLeavesWhatHelps(t *testing.T) {
	p, _ := engine.Lookup("llama-3.1-8b-rtxpro6000")
	p.KVTokens = 400_000
	for _, every := range []fleet.Time{400e6, 60e6, 30e6, 20e6, 12e6} {
		w := newWorld(t, 3, p, Options{Queue: true, HoldMost: DefaultHoldMost})
		w.onSend = func(s Send) {
			fcfs := w.d.entries[w.d.find(s.Ticket)].fcfs
			if s.Held.Seconds() > max(MostTimes*fcfs, fcfs+DefaultHoldMost.Seconds())+1e-3 {
				t.Errorf("held %v, first come first served would have cost %.2f s", s.Held, fcfs)
			}
		}
		busy(w, 1500, every, nil)
		tot := w.d.Totals(w.now)
		for _, g := range tot.Guards {
			t.Logf("every %v: mean TTFT %.3f s, held %d, %+v", time.Duration(every), w.ttft/float64(w.finished), tot.Queue.Held, g)
			if g.Switched > 0 {
				t.Errorf("every %v: %s was switched off", time.Duration(every), g.Name)
			}
		}
		if q := tot.Queue; q.Nearest > 1+1e-6 {
			t.Errorf("held beyond the bound: %+v", q)
		}
	}
}

// What brought a request bounds how long it may be held, and may forbid it.
func TestHoldOfARequest(t *testing.T) {
	p := testProfile()
	for _, most := range []time.Duration{-1, 100 * time.Millisecond} {
		w := newWorld(t, 2, p, Options{Queue: true, Fixed: true})
		longest := time.Duration(0)
		w.onSend = func(s Send) { longest = max(longest, s.Held) }
		busy(w, 500, 5e7, func(_ int, r *fleet.Request) { r.Hold = most })
		if longest > max(0, most) || most > 0 && longest == 0 {
			t.Errorf("with %v the longest hold was %v", most, longest)
		}
	}
}
