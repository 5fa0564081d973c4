// SPDX-License-Identifier: Apache-2.0

package flow

import (
	"github.com/penstock-project/penstock/internal/dispatch"
	"github.com/penstock-project/penstock/internal/fleet"
)

// SetSink names who is given the notes for other routers: it is called with the lock
// held, must not block and keeps nothing of what it is given. The dispatch must have
// been made with Options.Share. Call it before the first request.
func (f *Flow) SetSink(sink func(notes []dispatch.Note)) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.sink = sink
}

// tell gives the sink what is new. The lock is held.
func (f *Flow) tell() {
	if f.sink == nil {
		return
	}
	f.notes = f.d.TakeNotes(f.notes[:0])
	if len(f.notes) > 0 {
		f.sink(f.notes)
		clear(f.notes)
	}
}

// Hear takes in what another router told. peer numbers the router, from 1.
func (f *Flow) Hear(peer int32, notes []dispatch.Note) {
	f.mu.Lock()
	defer f.mu.Unlock()
	if f.closed {
		return
	}
	now := f.clock()
	var far elsewhere
	if w := f.watcher.Load(); w != nil {
		far, _ = (*w).(elsewhere)
	}
	for i := range notes {
		n := &notes[i]
		counted := far == nil || f.d.ToldCold(peer, n.Ticket)
		f.happen(now, dispatch.Event{Kind: dispatch.EventNote, Peer: peer, Note: n})
		switch {
		case counted:
		case n.Kind == dispatch.NoteSent:
			far.ArrivedElsewhere(now, n.Prompt, n.Uncached)
		case n.Kind == dispatch.NoteCold:
			far.HeldElsewhere(now, n.Prompt, n.BlockTokens, n.Blocks)
		}
	}
}

// elsewhere is a Watcher that counts the requests of other routers, too: one of
// several routers scales, for all of them.
type elsewhere interface {
	// ArrivedElsewhere says that another router sent a request of so many prompt tokens
	// to a replica, of which it expects uncached not to be there.
	ArrivedElsewhere(now fleet.Time, prompt, uncached float64)
	// HeldElsewhere says that another router holds a request that no replica can take.
	HeldElsewhere(now fleet.Time, prompt, blockTokens float64, blocks []uint64)
}

// PeerGone forgets what another router told.
func (f *Flow) PeerGone(peer int32) {
	f.mu.Lock()
	defer f.mu.Unlock()
	if !f.closed {
		f.happen(f.clock(), dispatch.Event{Kind: dispatch.EventPeerGone, Peer: peer})
	}
}

// Tell calls fn, with the lock held, with all that another router would have to know
// now; notes that are new by then went to the sink before.
func (f *Flow) Tell(fn func(notes []dispatch.Note)) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.tell()
	fn(f.d.Tell(nil))
}

// SetRank says which of n routers that share the traffic this one is.
func (f *Flow) SetRank(rank, n int) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.do(f.clock(), dispatch.Event{Kind: dispatch.EventRank, Peer: int32(rank), Tokens: n})
}

// Peer returns what another router told and is not over.
func (f *Flow) Peer(peer int32) dispatch.PeerLoad {
	f.mu.Lock()
	defer f.mu.Unlock()
	return f.d.Peer(peer)
}
