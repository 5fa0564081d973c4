// SPDX-License-Identifier: Apache-2.0

package flow

import (
	"github.com/penstock-project/penstock/internal/dispatch"
	"github.com/penstock-project/penstock/internal/fleet"
)

// Tape is given all that happens to a dispatch, in order, and what came of it: enough
// to let it happen again. It is called with the lock held, must not block and keeps
// nothing of what it is given.
type Tape interface {
	Event(e *dispatch.Event)
	Result(t dispatch.Ticket, v *dispatch.Verdict, sends []dispatch.Send)
}

// SetTape starts a tape; the dispatch must be fresh. Call it before anything happens.
func (f *Flow) SetTape(t Tape) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.tape = t
}

// do lets an event happen at now. The lock is held.
func (f *Flow) do(now fleet.Time, e dispatch.Event) (dispatch.Ticket, dispatch.Verdict, []dispatch.Send) {
	e.At = now
	f.event = e
	if f.tape != nil {
		f.tape.Event(&f.event)
	}
	t, v, sends := f.d.Apply(&f.event, f.sends[:0])
	if f.tape != nil {
		f.tape.Result(t, &v, sends)
	}
	f.event = dispatch.Event{} // keep nothing alive
	return t, v, sends
}

// happen is do for events that only lead to sends, which it delivers.
func (f *Flow) happen(now fleet.Time, e dispatch.Event) {
	_, _, sends := f.do(now, e)
	f.deliver(sends)
}

// Cached takes in what a replica told of its prefix cache.
func (f *Flow) Cached(e *dispatch.CacheEvent) {
	f.mu.Lock()
	defer f.mu.Unlock()
	if !f.closed {
		f.happen(f.clock(), dispatch.Event{Kind: dispatch.EventCache, Cache: e})
	}
}

// SaveIndex appends a snapshot of the prefix index to dst; see dispatch.SaveIndex. It
// holds the lock for as long as that takes, a millisecond for some ten thousand runs
// of blocks.
func (f *Flow) SaveIndex(dst []byte, check uint64) []byte {
	f.mu.Lock()
	defer f.mu.Unlock()
	return f.d.SaveIndex(dst, check)
}

// CheckIndex reports why Warm would refuse a snapshot.
func (f *Flow) CheckIndex(data []byte, check uint64) error {
	f.mu.Lock()
	defer f.mu.Unlock()
	return f.d.CheckIndex(data, check)
}

// Warm fills the prefix index from a snapshot.
func (f *Flow) Warm(data []byte, check uint64) error {
	f.mu.Lock()
	defer f.mu.Unlock()
	now := f.clock()
	if err := f.d.CheckIndex(data, check); err != nil {
		return err
	}
	f.happen(now, dispatch.Event{Kind: dispatch.EventWarm, Data: data, Key: check})
	return nil
}
