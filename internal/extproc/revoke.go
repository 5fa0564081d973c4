// SPDX-License-Identifier: Apache-2.0

package extproc

import (
	"sync/atomic"

	"github.com/penstock-project/penstock/internal/entry"
)

// turn says who may answer on the stream of a request that ends with its key: its
// session while it handles a frame, whoever closed the key while it waits for one.
// gRPC lets nobody else end the wait; the proxy does, once it got the last word.
type turn struct {
	watch *entry.Watch // nil: the request may outlive its key, and the session has every turn
	state atomic.Int32
	said  chan struct{} // closed when the last word was said from outside of the session
	out   bool          // the request was ended with its key
}

// Whose turn it is.
const (
	turnSession int32 = iota
	turnNobody
	turnKey // for good
)

// watchKey makes the request end with its key, where that is wanted.
func (ss *session) watchKey() {
	w := ss.srv.o.Door.Watches
	if w == nil || ss.terms.who.Key == "" {
		return
	}
	ss.turn.said = make(chan struct{})
	ss.ctx, ss.turn.watch = w.Add(ss.ctx, ss.terms.who.Key, ss.keyClosed)
}

// takeTurn begins what follows on the wait for a frame. It is false where the request
// was ended meanwhile.
func (ss *session) takeTurn() bool {
	if ss.turn.watch == nil || ss.turn.state.CompareAndSwap(turnNobody, turnSession) {
		return true
	}
	<-ss.turn.said
	return false
}

// giveTurn ends what was done for a frame. A key that was closed meanwhile ends the
// request now.
func (ss *session) giveTurn() error {
	t := &ss.turn
	if t.watch == nil {
		return nil
	}
	t.state.Store(turnNobody)
	if t.watch.Closed() && t.state.CompareAndSwap(turnNobody, turnSession) {
		return ss.turnOut()
	}
	return nil
}

// keyClosed ends the request while the session waits for a frame. It runs beside the
// session.
func (ss *session) keyClosed() {
	if ss.turn.state.CompareAndSwap(turnNobody, turnKey) {
		_ = ss.turnOut() // a proxy that is gone misses it
		close(ss.turn.said)
	}
}

// turnOut ends a request whose key was closed. The client gets a 401 where nothing of
// an answer has reached it, else the proxy cuts its connection.
func (ss *session) turnOut() error {
	if ss.answered && ss.responseMode != modeNone {
		return errEnd // it has all of the answer
	}
	ss.turn.out = true
	e := entry.Unauthorized()
	if ss.status != 0 {
		e.Message = "the API key was closed within this answer"
	}
	return ss.refuse(e)
}
