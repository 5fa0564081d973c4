// SPDX-License-Identifier: Apache-2.0

package relay

import (
	"io"
	"net"
	"os"
	"sync"
	"syscall"
	"time"
)

// pollConn is a connection to a replica that stands in a set of ours and not in the
// runtime's. One goroutine uses it at a time, like any connection, or the set's
// goroutine copies a stream from it; Close may be called by all.
type pollConn struct {
	p     *poller
	from  net.Addr
	to    net.Addr
	wake  chan struct{}
	timer *time.Timer

	mu       sync.Mutex
	fd       int
	gen      uint32
	ready    bool // reading may bring something
	ended    bool // reading brings the end, or an error, after what is there
	writable bool // writing may take something
	closed   bool
	waiting  bool
	st       *stream // that the set's goroutine copies from here; nil: none
	readBy   time.Time
	writeBy  time.Time
}

// adopt takes a fresh TCP connection out of the runtime's poller into a set of ours.
func (ps *pollers) adopt(nc net.Conn) (*pollConn, bool) {
	tcp, ok := nc.(*net.TCPConn)
	if !ok {
		return nil, false
	}
	rc, err := tcp.SyscallConn()
	if err != nil {
		return nil, false
	}
	fd := -1
	rc.Control(func(old uintptr) {
		n, _, e := syscall.Syscall(syscall.SYS_FCNTL, old, syscall.F_DUPFD_CLOEXEC, 0)
		if e == 0 {
			fd = int(n)
		}
	})
	if fd < 0 {
		return nil, false
	}
	c := &pollConn{p: ps.pick(), fd: fd, from: tcp.LocalAddr(), to: tcp.RemoteAddr(), wake: make(chan struct{}, 1), writable: true}
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.gen, err = c.p.add(fd, streamEvents, c); err != nil {
		syscall.Close(fd)
		return nil, false
	}
	tcp.Close() // the descriptor; the connection goes on
	return c, true
}

// streamEvents are what is wanted of a connection to a replica.
const streamEvents = syscall.EPOLLIN | syscall.EPOLLOUT | syscall.EPOLLRDHUP | edge

// event takes note of what can be done now; see handler.
func (c *pollConn) event(events uint32) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.closed {
		return
	}
	if events&syscall.EPOLLOUT != 0 {
		c.writable = true
	}
	if events&over != 0 {
		c.ended = true
	}
	if events&(syscall.EPOLLIN|over) != 0 {
		c.ready = true
		if c.st != nil {
			c.st.pump()
			return
		}
	}
	c.rouse()
}

// rouse wakes the goroutine that waits, if one does. mu is held.
func (c *pollConn) rouse() {
	if c.waiting {
		c.waiting = false
		c.wake <- struct{}{}
	}
}

// wait blocks until something happens. mu is held before and after.
func (c *pollConn) wait(by time.Time) error {
	var expired <-chan time.Time
	if !by.IsZero() {
		left := time.Until(by)
		if left <= 0 {
			return os.ErrDeadlineExceeded
		}
		if c.timer == nil {
			c.timer = time.NewTimer(left)
		} else {
			c.timer.Reset(left)
		}
		defer c.timer.Stop()
		expired = c.timer.C
	}
	c.waiting = true
	c.mu.Unlock()
	var err error
	select {
	case <-c.wake:
		c.mu.Lock()
	case <-expired:
		c.mu.Lock()
		if !c.waiting { // both at a time
			<-c.wake
		} else {
			err = os.ErrDeadlineExceeded
		}
	}
	c.waiting = false
	return err
}

// Read implements net.Conn.
func (c *pollConn) Read(b []byte) (int, error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	for {
		for !c.ready && !c.closed {
			if err := c.wait(c.readBy); err != nil {
				return 0, err
			}
		}
		if c.closed {
			return 0, net.ErrClosed
		}
		c.ready = c.ended
		n, e := readNow(c.fd, b)
		switch {
		case e == syscall.EAGAIN:
			c.ready = false
			continue
		case e != 0:
			c.ready = true
			return 0, os.NewSyscallError("read", e)
		case n == 0 && len(b) > 0:
			c.ready = true
			return 0, io.EOF
		case n == len(b):
			c.ready = true
		}
		return n, nil
	}
}

// Write implements net.Conn.
func (c *pollConn) Write(b []byte) (int, error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	sent := 0
	for sent < len(b) {
		for !c.writable && !c.closed {
			if err := c.wait(c.writeBy); err != nil {
				return sent, err
			}
		}
		if c.closed {
			return sent, net.ErrClosed
		}
		n, e := writeNow(c.fd, b[sent:])
		if e == syscall.EAGAIN {
			// The kernel tells when there is room again, but only after this answer.
			c.writable = false
			continue
		}
		if e != 0 {
			return sent, os.NewSyscallError("write", e)
		}
		sent += n
	}
	return sent, nil
}

// Close implements net.Conn.
func (c *pollConn) Close() error {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.closed {
		return net.ErrClosed
	}
	c.closed = true
	c.p.remove(c.fd, c.gen)
	syscall.Close(c.fd)
	c.fd = -1
	if c.st != nil {
		c.st.finish(net.ErrClosed)
	}
	c.rouse()
	return nil
}

// unfit reports whether an idle connection has ended, or holds bytes that nobody
// asked for. It asks the kernel only where the set told of something.
func (c *pollConn) unfit() bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.closed || c.ended {
		return true
	}
	if !c.ready {
		return false
	}
	var b [1]byte
	_, _, err := syscall.Recvfrom(c.fd, b[:], syscall.MSG_PEEK|syscall.MSG_DONTWAIT)
	c.ready = false
	return err != syscall.EAGAIN && err != syscall.EINTR
}

// LocalAddr implements net.Conn.
func (c *pollConn) LocalAddr() net.Addr { return c.from }

// RemoteAddr implements net.Conn.
func (c *pollConn) RemoteAddr() net.Addr { return c.to }

// SetDeadline implements net.Conn; like the two below it holds for calls that begin
// after it.
func (c *pollConn) SetDeadline(t time.Time) error {
	c.SetReadDeadline(t)
	return c.SetWriteDeadline(t)
}

// SetReadDeadline implements net.Conn.
func (c *pollConn) SetReadDeadline(t time.Time) error {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.readBy = t
	return nil
}

// SetWriteDeadline implements net.Conn.
func (c *pollConn) SetWriteDeadline(t time.Time) error {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.writeBy = t
	return nil
}
