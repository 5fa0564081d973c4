// SPDX-License-Identifier: Apache-2.0

package relay

import (
	"context"
	"errors"
	"net"
	"sync"
	"time"
)

var (
	errClientLeft = errors.New("the client left")
	errCut        = errors.New("the server closes")
)

// clientIdle is how long a client's connection is kept between a stream and its
// next request: longer than common client pools keep one (90 s).
const clientIdle = 120 * time.Second

// parkedConn is a client's connection that waits for its next request.
type parkedConn interface{ evict() }

// running is a stream under way.
type running interface{ clientLeft(err error) }

// Back is where connections of clients that were taken from an http.Server for a
// stream go afterwards: a listener for the same server. It also knows the streams,
// since the server, which gave the connections away, does not. All methods are safe
// for concurrent use.
type Back struct {
	addr net.Addr

	mu      sync.Mutex
	some    sync.Cond
	queue   []net.Conn
	parked  map[parkedConn]struct{}
	streams map[running]struct{}
	none    chan struct{} // closed when the last stream ends; nil: nobody waits
	closed  bool
}

// NewBack returns a listener that says it has the given address.
func NewBack(addr net.Addr) *Back {
	b := &Back{addr: addr, parked: map[parkedConn]struct{}{}, streams: map[running]struct{}{}}
	b.some.L = &b.mu
	return b
}

// Accept returns the next connection that comes back with a request.
func (b *Back) Accept() (net.Conn, error) {
	b.mu.Lock()
	defer b.mu.Unlock()
	for len(b.queue) == 0 && !b.closed {
		b.some.Wait()
	}
	if b.closed {
		return nil, net.ErrClosed
	}
	c := b.queue[0]
	b.queue = b.queue[1:]
	return c, nil
}

// Addr implements net.Listener.
func (b *Back) Addr() net.Addr { return b.addr }

// Close closes the connections that wait, and those that would come back later.
// Streams go on; see Wait and Cut.
func (b *Back) Close() error {
	b.mu.Lock()
	b.closed = true
	queue, parked := b.queue, b.parked
	b.queue, b.parked = nil, map[parkedConn]struct{}{}
	b.some.Broadcast()
	b.mu.Unlock()
	for _, c := range queue {
		c.Close()
	}
	for p := range parked {
		p.evict()
	}
	return nil
}

// Streams returns how many streams there are.
func (b *Back) Streams() int {
	b.mu.Lock()
	defer b.mu.Unlock()
	return len(b.streams)
}

// Wait returns when no stream is left, or with the error of ctx.
func (b *Back) Wait(ctx context.Context) error {
	b.mu.Lock()
	if len(b.streams) == 0 {
		b.mu.Unlock()
		return nil
	}
	if b.none == nil {
		b.none = make(chan struct{})
	}
	none := b.none
	b.mu.Unlock()
	select {
	case <-none:
		return nil
	case <-ctx.Done():
		return ctx.Err()
	}
}

// Cut ends all streams as if their clients had left.
func (b *Back) Cut() {
	b.mu.Lock()
	all := make([]running, 0, len(b.streams))
	for s := range b.streams {
		all = append(all, s)
	}
	b.mu.Unlock()
	for _, s := range all {
		s.clientLeft(errCut)
	}
}

// begin counts a stream.
func (b *Back) begin(s running) {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.streams[s] = struct{}{}
}

func (b *Back) end(s running) {
	b.mu.Lock()
	defer b.mu.Unlock()
	delete(b.streams, s)
	if len(b.streams) == 0 && b.none != nil {
		close(b.none)
		b.none = nil
	}
}

// keep takes note of a connection that waits; false: the server closes.
func (b *Back) keep(p parkedConn) bool {
	b.mu.Lock()
	defer b.mu.Unlock()
	if b.closed {
		return false
	}
	b.parked[p] = struct{}{}
	return true
}

func (b *Back) drop(p parkedConn) {
	b.mu.Lock()
	defer b.mu.Unlock()
	delete(b.parked, p)
}

// Give hands a connection to the server that accepts from b.
func (b *Back) Give(c net.Conn) { b.give(nil, c) }

// give returns a connection to the server; p is what waited for it, nil: nothing.
func (b *Back) give(p parkedConn, c net.Conn) {
	b.mu.Lock()
	defer b.mu.Unlock()
	if p != nil {
		delete(b.parked, p)
	}
	if b.closed {
		c.Close()
		return
	}
	b.queue = append(b.queue, c)
	b.some.Signal()
}
