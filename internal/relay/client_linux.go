// SPDX-License-Identifier: Apache-2.0

package relay

import (
	"net"
	"sync"
	"syscall"
	"time"
)

// clientConn is the connection of a client that was taken from its server, and may
// go back with bytes that were read already.
type clientConn struct {
	*net.TCPConn
	pre []byte
	fd  int // valid while the connection is ours
}

// Read reads what was read already first.
func (c *clientConn) Read(b []byte) (int, error) {
	if len(c.pre) > 0 {
		n := copy(b, c.pre)
		if c.pre = c.pre[n:]; len(c.pre) == 0 {
			c.pre = nil
		}
		return n, nil
	}
	return c.TCPConn.Read(b)
}

// CanGoBack reports whether a connection that a server accepted can be taken from
// it for a stream, and returned.
func CanGoBack(c net.Conn) bool {
	switch c.(type) {
	case *net.TCPConn, *clientConn:
		return true
	}
	return false
}

// WithRead returns c with bytes that were read from it before it: whoever reads gets
// them first. It keeps a copy of read, and c can go back still.
func WithRead(c net.Conn, read []byte) (net.Conn, bool) {
	read = append([]byte(nil), read...)
	switch c := c.(type) {
	case *clientConn:
		c.pre = append(read, c.pre...)
		return c, true
	case *net.TCPConn:
		return &clientConn{TCPConn: c, pre: read, fd: -1}, true
	}
	return nil, false
}

// leaver waits for the end of a client's connection.
type leaver struct{ left func() }

// event: see handler.
func (l *leaver) event(events uint32) {
	if events&over != 0 {
		l.left()
	}
}

// Watch calls left when the client of a connection ends it, or half of it; several
// times, maybe. left must not block. stop ends that, and must be called before the
// connection is closed or read elsewhere. It fails where there is no epoll set.
func (c *Client) Watch(nc net.Conn, left func()) (stop func(), err error) {
	if c.polls == nil || !CanGoBack(nc) {
		return nil, syscall.ENOTSUP
	}
	cl, ok := nc.(*clientConn)
	if !ok {
		cl = &clientConn{TCPConn: nc.(*net.TCPConn), fd: -1}
	}
	if err := cl.open(); err != nil {
		return nil, err
	}
	p := c.polls.pick()
	gen, err := p.add(cl.fd, syscall.EPOLLRDHUP|edge, &leaver{left})
	if err != nil {
		return nil, err
	}
	return func() { p.remove(cl.fd, gen) }, nil
}

// open finds the descriptor.
func (c *clientConn) open() error {
	if c.fd >= 0 {
		return nil
	}
	rc, err := c.SyscallConn()
	if err != nil {
		return err
	}
	return rc.Control(func(fd uintptr) { c.fd = int(fd) })
}

// watched is a client's connection in a set: during a stream it tells that the
// client leaves, between two requests that the next one comes.
type watched struct {
	p   *poller
	cl  *clientConn
	gen uint32

	mu    sync.Mutex
	st    *stream // nil: parked, or let go
	back  *Back   // where it goes when something comes; nil: not parked
	since time.Time
}

// watch tells st when its client leaves.
func watch(p *poller, cl *clientConn, st *stream) (*watched, error) {
	w := &watched{p: p, cl: cl, st: st}
	w.mu.Lock()
	defer w.mu.Unlock()
	var err error
	w.gen, err = p.add(cl.fd, syscall.EPOLLRDHUP|edge, w)
	return w, err
}

// event: see handler.
func (w *watched) event(events uint32) {
	w.mu.Lock()
	st, back := w.st, w.back
	w.back = nil
	w.mu.Unlock()
	switch {
	case st != nil && events&over != 0:
		st.clientLeft(errClientLeft)
	case back != nil:
		w.p.unpark(w)
		if events&(syscall.EPOLLHUP|syscall.EPOLLERR) != 0 {
			back.drop(w)
			w.cl.Close()
			return
		}
		back.give(w, w.cl)
	}
}

// stop lets go of the connection; whoever calls it owns it.
func (w *watched) stop() {
	w.mu.Lock()
	w.st, w.back = nil, nil
	w.mu.Unlock()
	w.p.remove(w.cl.fd, w.gen)
}

// park keeps the connection until its client says more, and then gives it back to
// the server: an idle client takes no goroutine and no buffer.
func (w *watched) park(back *Back) {
	w.cl.SetDeadline(time.Time{})
	if len(w.cl.pre) > 0 {
		w.stop()
		back.give(nil, w.cl)
		return
	}
	w.mu.Lock()
	w.st, w.back, w.since = nil, back, time.Now()
	w.mu.Unlock()
	w.p.park()
	if !back.keep(w) || w.p.change(w.cl.fd, w.gen, syscall.EPOLLIN|syscall.EPOLLRDHUP|syscall.EPOLLONESHOT) != nil {
		w.evict()
	}
}

// evict closes the connection if it is parked still.
func (w *watched) evict() {
	w.mu.Lock()
	back := w.back
	w.back = nil
	w.mu.Unlock()
	if back == nil {
		return
	}
	w.p.unpark(w)
	back.drop(w)
	w.cl.Close()
}

// park counts a connection that is parked, and sees to it that it does not stay for
// ever.
func (p *poller) park() {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.parked++
	if !p.sweeps {
		p.sweeps = true
		time.AfterFunc(clientIdle/8, p.sweep)
	}
}

func (p *poller) unpark(w *watched) {
	p.remove(w.cl.fd, w.gen)
	p.mu.Lock()
	p.parked--
	p.mu.Unlock()
}

// sweep closes connections whose clients said nothing for too long.
func (p *poller) sweep() {
	limit := time.Now().Add(-clientIdle)
	var old []*watched
	p.mu.Lock()
	for i := range p.places {
		if w, ok := p.places[i].h.(*watched); ok {
			old = append(old, w)
		}
	}
	if p.sweeps = p.parked > 0; p.sweeps {
		time.AfterFunc(clientIdle/8, p.sweep)
	}
	p.mu.Unlock()
	for _, w := range old {
		w.mu.Lock()
		late := w.back != nil && w.since.Before(limit)
		w.mu.Unlock()
		if late {
			w.evict()
		}
	}
}
