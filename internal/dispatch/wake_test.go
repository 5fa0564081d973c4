// SPDX-License-Identifier: Apache-2.0

package dispatch

import (
	"testing"
	"time"

	"github.com/penstock-project/penstock/internal/fleet"
)

// phases changes what the next snapshot says of every replica.
func (w *world) seeAs(p fleet.Phase) {
	s := w.snapshot()
	for i := range s.Endpoints {
		s.Endpoints[i].Phase = p
	}
	w.carry(w.d.Observe(w.now, s, w.sends[:0]))
}

// What is held while nothing is ready goes as there is room, so that those who come
// after the first replica is ready find a place in the batch; all of it is served.
func TestHeldGoOnARamp(t *testing.T) {
	p := testProfile()
	w := newWorld(t, 1, p, Options{HoldFor: 10 * time.Minute})
	w.d.SetHold(w.now, Hold{For: 10 * time.Minute, Most: 200, Ramp: true})
	w.seeAs(fleet.PhaseLoading)
	for i := range 210 {
		v := w.arrive(prompt(16, part{uint64(i), 512}), 64)
		if want := i >= 200; (v.Kind == Refused) != want {
			t.Fatalf("arrival %d: %v %s", i, v.Kind, v.Reason)
		}
	}
	if got := w.d.Waiting(w.now, 2*time.Second); got.Held != 200 || got.Late != 0 || got.Cold != 200 {
		t.Errorf("waiting: %+v", got)
	}
	w.now = w.now.Add(3 * time.Minute)
	if got := w.d.Waiting(w.now, 2*time.Second); got.Late != 200 || got.Oldest != 180 {
		t.Errorf("waiting: %+v", got)
	}
	w.scrape = fleet.Time(time.Second)
	w.observe()
	if w.sent[0] == 0 || w.sent[0] > 40 {
		t.Errorf("%d of 200 went at once, want a few", w.sent[0])
	}
	worst := 0.0
	w.onFirst = func(r *fleet.Request) {
		if r.ID == "fresh" {
			worst = max(worst, w.now.Seconds(r.Arrived))
		}
	}
	for i := range 20 {
		r := prompt(16, part{uint64(1000 + i), 512})
		r.ID = "fresh"
		w.arrive(r, 64)
		w.run(w.now.Add(300 * time.Millisecond))
	}
	w.run(w.now.Add(10 * time.Minute))
	if w.finished != 220 || w.refused != 10 {
		t.Errorf("%d served and %d refused, want 220 and 10", w.finished, w.refused)
	}
	if worst > 2 {
		t.Errorf("a fresh request waited %.1f s for its first token behind late ones", worst)
	}
}

// A request whose wait is over is refused while nothing is ready, and sent where it
// only waits for its turn.
func TestWaitEndsWhileReplicasAreReady(t *testing.T) {
	w := newWorld(t, 1, testProfile(), Options{})
	w.d.SetHold(w.now, Hold{For: 5 * time.Second, Ramp: true})
	w.seeAs(fleet.PhaseLoading)
	for i := range 100 {
		w.arrive(prompt(16, part{uint64(i), 2048}), 32)
	}
	w.now = w.now.Add(4 * time.Second)
	w.scrape = fleet.Time(time.Second)
	w.observe()
	w.run(w.now.Add(5 * time.Minute))
	if w.finished != 100 || w.refused != 0 {
		t.Errorf("%d served, %d refused", w.finished, w.refused)
	}
	w.seeAs(fleet.PhaseLoading)
	w.scrape = 0
	w.arrive(prompt(16, part{7, 512}), 32)
	// A longer wait holds for those that wait already.
	w.d.SetHold(w.now, Hold{For: time.Minute, Ramp: true})
	w.run(w.now.Add(20 * time.Second))
	if w.refused != 0 {
		t.Error("refused before the longer wait was over")
	}
	w.run(w.now.Add(time.Minute))
	if w.refused != 1 {
		t.Errorf("%d refused after its wait, want 1", w.refused)
	}
}
