// SPDX-License-Identifier: Apache-2.0

package dispatch

import (
	"math"
	"testing"
	"time"

	"pgregory.net/rapid"

	"github.com/penstock-project/penstock/internal/fleet"
)

// listener hears all that a dispatch tells, at once, and lists the same endpoints.
type listener struct {
	d     *Dispatch
	notes []Note
}

func (l *listener) follow(m *model) {
	l.d.Observe(m.now, m.snap, nil)
	l.notes = m.d.TakeNotes(l.notes[:0])
	for i := range l.notes {
		l.d.Hear(m.now, 1, &l.notes[i], nil)
	}
}

// listen lets a listener hear what m does call by call: a list that changes between two
// calls must not come before what the first one told.
func listen(m *model, d *Dispatch) *listener {
	l := &listener{d: d}
	m.after = func() { l.follow(m) }
	return l
}

// TestPeers: whatever a router does, one that hears its notes counts the same at every
// endpoint; one that joins in the middle gets there; and when the router is done, or
// gone, nothing of it is left.
func TestPeers(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		o := Options{Queue: rapid.Bool().Draw(t, "queue"), Profile: testProfile(), Share: true, Fixed: true}
		other := func() *Dispatch { return New(Options{Profile: testProfile(), Share: true, Fixed: true}) }
		m := &model{t: t, d: New(o), now: 1e9, snap: &fleet.Snapshot{}, reqs: map[Ticket]fleet.Request{}, tried: map[Ticket][]string{}}
		l := listen(m, other())
		m.observe()
		for range rapid.IntRange(1, 100).Draw(t, "steps") {
			m.step()
		}
		compare(t, m, l.d)

		late := other()
		late.Observe(m.now, m.snap, nil)
		for _, n := range m.d.Tell(nil) {
			late.Hear(m.now, 1, &n, nil)
		}
		for _, r := range late.Ledger(m.now, nil) {
			if w := rowOf(m.d, m.now, r.Endpoint); w != nil && r.Drop == w.Drop && (r.PeerInFlight != w.InFlight || r.PeerQueued != w.Queued) {
				t.Fatalf("a late one counts %d and %d, there are %d and %d at %s", r.PeerInFlight, r.PeerQueued, w.InFlight, w.Queued, r.Endpoint)
			}
		}
		late.PeerGone(m.now, 1, nil)
		empty(t, late, m.now)

		m.finish()
		empty(t, l.d, m.now)
		if p := l.d.Peer(1); p.InFlight != 0 || p.Held != 0 {
			t.Fatalf("left over %+v", p)
		}
	})
}

// TestPeersOfHeld: whatever becomes of requests that no replica can take, a router that
// hears of them, from the beginning or from the middle on, knows as many.
func TestPeersOfHeld(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		o := Options{Queue: rapid.Bool().Draw(t, "queue"), Profile: testProfile(), Share: true, Fixed: true, HoldFor: 2e9}
		other := func() *Dispatch { return New(Options{Profile: testProfile(), Share: true, Fixed: true}) }
		m := &model{t: t, d: New(o), now: 1e9, snap: &fleet.Snapshot{}, reqs: map[Ticket]fleet.Request{}, tried: map[Ticket][]string{}}
		l := listen(m, other())
		m.observe()
		for range rapid.IntRange(1, 100).Draw(t, "steps") {
			sameCold(t, m, l.d)
			m.step()
		}
		late := other()
		late.Observe(m.now, m.snap, nil)
		for _, n := range m.d.Tell(nil) {
			late.Hear(m.now, 1, &n, nil)
		}
		sameCold(t, m, late)
		late.PeerGone(m.now, 1, nil)
		empty(t, late, m.now)
		m.finish()
		empty(t, l.d, m.now)
	})
}

func rowOf(d *Dispatch, now fleet.Time, id string) *EndpointLoad {
	rows := d.Ledger(now, nil)
	for i := range rows {
		if rows[i].Endpoint == id {
			return &rows[i]
		}
	}
	return nil
}

// compare holds what a listener counts against what there is. An endpoint that left
// while requests were there may be gone at one of the two already.
func compare(t *rapid.T, m *model, d *Dispatch) {
	for i := range m.d.slots {
		if !m.d.aux[i].used || m.d.aux[i].gone {
			continue
		}
		s := &m.d.slots[i]
		k, ok := d.names[s.ID]
		if !ok {
			t.Fatalf("%s is not listed", s.ID)
		}
		o := &d.slots[k]
		if d.aux[k].peers != o.InFlight {
			t.Fatalf("%d of %d in flight are the peer's", d.aux[k].peers, o.InFlight)
		}
		if m.d.n.Leaked > 0 || d.n.Leaked > 0 {
			continue // each writes off for itself
		}
		if s.InFlight != o.InFlight || s.Unstarted+s.Streams != o.Unstarted+o.Streams || s.Queued != o.Queued {
			t.Fatalf("at %s the peer counts %d %d %d %d, there are %d %d %d %d", s.ID, o.InFlight, o.Unstarted, o.Streams, o.Queued, s.InFlight, s.Unstarted, s.Streams, s.Queued)
		}
		if math.Abs(s.QueuedWork-o.QueuedWork) > 1e-6 {
			t.Fatalf("work held at %s %v, the peer knows %v", s.ID, s.QueuedWork, o.QueuedWork)
		}
	}
}

// empty checks that a dispatch without requests of its own is charged with nothing.
func empty(t *rapid.T, d *Dispatch, now fleet.Time) {
	for i := range d.slots {
		s, a := &d.slots[i], &d.aux[i]
		if s.InFlight != 0 || s.Unstarted != 0 || s.Streams != 0 || s.PendingSum != 0 || s.CtxTokens != 0 || s.TailTokens != 0 || s.Queued != 0 || a.peers != 0 || s.QueuedWork != 0 {
			t.Fatalf("left behind at %q: %+v", s.ID, s)
		}
	}
	if len(d.leaders) != 0 {
		t.Fatalf("%d are still led by what is gone", len(d.leaders))
	}
	if d.heldThere != 0 || d.coldThere != 0 || d.silent != 0 || d.n.InFlight != 0 {
		t.Fatalf("left behind: %d held, %d for any replica, %d silent, %d in flight", d.heldThere, d.coldThere, d.silent, d.n.InFlight)
	}
}

// sameCold checks that a dispatch without requests of its own knows what another one
// holds for want of a replica, and that it was told of it once.
func sameCold(t *rapid.T, m *model, d *Dispatch) {
	if w := d.Waiting(m.now, time.Second); w.Cold != int(m.d.limbo.n) || w.Held+w.Late < w.Cold {
		t.Fatalf("%d wait for any replica, the peer knows %+v", m.d.limbo.n, w)
	}
	for i := m.d.limbo.head; i >= 0; i = m.d.entries[i].next {
		if !d.ToldCold(1, m.d.ticket(i)) {
			t.Fatal("the peer would count a request that waits for any replica again")
		}
	}
}
