// SPDX-License-Identifier: Apache-2.0

package flow

import (
	"context"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/penstock-project/penstock/internal/dispatch"
	"github.com/penstock-project/penstock/internal/scale"
)

// A request that another router holds wakes the pool like one of ours, to as many as
// the same requests would here; once a replica takes it it is not counted again.
func TestHeldElsewhereWakes(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		policy := scale.Policy{Min: 0, Max: 8, StartUp: 60, IdleAfter: 120}
		ours, theirs := newLoop(policy, ModeAct, 60*time.Second), newLoop(policy, ModeAct, 60*time.Second)
		for _, l := range []*loop{ours, theirs} {
			l.run(t)
		}
		time.Sleep(12 * time.Second) // not at the moment of an evaluation in turn
		ctx, cancel := context.WithCancel(t.Context())
		var wg sync.WaitGroup
		notes := []dispatch.Note{}
		for k := range 24 {
			wg.Go(func() { _ = ours.ask(ctx, 4000) })
			notes = append(notes, dispatch.Note{Kind: dispatch.NoteCold, Ticket: dispatch.Ticket(k + 1), Prompt: 4000, BlockTokens: 128, Stream: true})
		}
		theirs.f.Hear(1, notes)
		time.Sleep(100 * time.Millisecond)
		if a, b := ours.st.asked(), theirs.st.asked(); len(a) == 0 || len(b) == 0 || a[0] < 2 || a[0] != b[0] {
			t.Fatalf("%v for our own, %v for those of another router", a, b)
		}
		if w := theirs.f.Waiting(time.Second); w.Held != 24 || w.Cold != 24 {
			t.Errorf("%+v", w)
		}
		theirs.demand.take()
		for k := range notes { // the endpoint is not listed here: it does not matter for the demand
			notes[k] = dispatch.Note{Kind: dispatch.NoteSent, Ticket: notes[k].Ticket, Key: 7, Prompt: 4000, Uncached: 4000}
		}
		theirs.f.Hear(1, notes)
		if left := theirs.demand.take(); len(left) != 0 {
			t.Errorf("counted again: %v", left)
		}
		if w := theirs.f.Waiting(time.Second); w.Held+w.Late != 0 {
			t.Errorf("left behind: %+v", w)
		}
		cancel()
		wg.Wait()
	})
}

// One that follows another Penstock wakes through it, one that a person has stopped
// does not.
func TestFollowerWakes(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		l := newLoop(scale.Policy{Min: 0, Max: 4, StartUp: 10}, ModeAct, time.Second)
		l.st.leader, l.st.owner = "host_ab12", "another Penstock acts: host_ab12"
		l.run(t)
		time.Sleep(time.Second)
		if leader, ok := l.Wakes(); !ok || leader != "host_ab12" {
			t.Errorf("%q %v", leader, ok)
		}
		l.st.mu.Lock()
		l.st.leader, l.st.owner = "", "kubectl"
		l.st.mu.Unlock()
		time.Sleep(time.Minute)
		if _, ok := l.Wakes(); ok {
			t.Error("it waits to be told, and says that it wakes")
		}
	})
}
