// SPDX-License-Identifier: Apache-2.0

package relay

import (
	"context"
	"crypto/tls"
	"errors"
	"io"
	"net"
	"os"
	"sync"
	"sync/atomic"
	"syscall"
	"time"
)

// readBuffer is what one read from a replica takes at most, in bytes. It is kept
// with the connection; an event of a stream has some 200 bytes.
const readBuffer = 16 << 10

// conn is one connection to a replica, used by one request at a time. Only abort
// may be called from another goroutine.
type conn struct {
	rep    *replica
	nc     net.Conn
	poll   *pollConn       // nc, where it stands in a set of ours; nil: in the runtime's poller
	raw    syscall.RawConn // nil: cannot be asked
	peek   peeker
	buf    []byte
	r, w   int // buf[r:w] was read and not used
	reused bool
	got    bool      // something came in answer to the current request
	since  time.Time // when it began to idle
	gone   atomic.Bool
	end    func() // close, so that asking for it takes no memory

	readBy, writeBy time.Time // deadlines in force
	out             []byte    // request head, and a small body
	vec             net.Buffers
	vecStore        [4][]byte
	fields          []field
}

// dial opens a connection to the replica.
func (r *replica) dial(ctx context.Context, polled bool) (*conn, error) {
	ctx, cancel := context.WithTimeout(ctx, r.c.o.Connect)
	defer cancel()
	nc, err := r.c.o.Dial(ctx, "tcp", r.addr)
	if err == nil && r.tls != nil {
		t := tls.Client(nc, r.tls)
		if err = t.HandshakeContext(ctx); err != nil {
			nc.Close()
		}
		nc = t
	}
	if err != nil {
		r.c.stats.dialFailed.Add(1)
		return nil, err
	}
	r.c.stats.dialed.Add(1)
	r.c.stats.open.Add(1)
	x := &conn{rep: r, nc: nc}
	x.end = x.close
	if polled {
		if c, ok := r.c.polls.adopt(nc); ok {
			x.nc, x.poll = c, c
			return x, nil
		}
	}
	x.peek.init()
	inner := nc
	if t, ok := nc.(*tls.Conn); ok {
		inner = t.NetConn()
	}
	if sc, ok := inner.(syscall.Conn); ok {
		x.raw, _ = sc.SyscallConn()
	}
	return x, nil
}

// closedByPeer reports whether an idle connection is closed, or holds bytes that
// nobody asked for, without waiting.
func (x *conn) closedByPeer() bool {
	if x.gone.Load() || x.r != x.w {
		return true
	}
	if x.poll != nil {
		return x.poll.unfit()
	}
	return x.raw != nil && x.peek.readable(x.raw)
}

// close closes the connection once.
func (x *conn) close() {
	if !x.gone.Swap(true) {
		x.rep.c.stats.open.Add(-1)
		x.nc.Close()
	}
}

// refresh reports whether a deadline in force, cur, is far from the wanted one. A
// deadline is set only when it has aged by a quarter of its length: setting it
// costs more than a small read.
func refresh(cur, now time.Time, d time.Duration) bool {
	left := cur.Sub(now)
	return left < d-d/4 || left > d+d/4
}

// readBuffers are the buffers of connections that are not in use.
var readBuffers = sync.Pool{New: func() any { return new([readBuffer]byte) }}

// needBuffer makes sure that there is a buffer; it is empty.
func (x *conn) needBuffer() {
	if x.buf == nil {
		x.buf = readBuffers.Get().(*[readBuffer]byte)[:]
	}
	x.r, x.w = 0, 0
}

// dropBuffer gives the buffer, from which all is used, back: an idle connection and
// a stream that a set copies need none.
func (x *conn) dropBuffer() {
	if len(x.buf) == readBuffer {
		readBuffers.Put((*[readBuffer]byte)(x.buf))
	}
	x.buf, x.r, x.w = nil, 0, 0
}

// fill reads once into the free part of buf, which must not be empty.
func (x *conn) fill(now time.Time, wait time.Duration) (int, error) {
	if x.r == x.w {
		x.r, x.w = 0, 0
	}
	if refresh(x.readBy, now, wait) {
		x.readBy = now.Add(wait)
		if err := x.nc.SetReadDeadline(x.readBy); err != nil {
			return 0, err
		}
	}
	n, err := x.nc.Read(x.buf[x.w:])
	x.w += n
	if n > 0 {
		x.got = true
		return n, nil // an error will come again
	}
	if err == nil {
		err = io.ErrNoProgress
	}
	return 0, err
}

// send writes a request.
func (x *conn) send(now time.Time, r *Request) error {
	size := r.bodyLen()
	wait := x.rep.c.o.Send + time.Duration(size>>20)*time.Second
	if refresh(x.writeBy, now, wait) {
		x.writeBy = now.Add(wait)
		if err := x.nc.SetWriteDeadline(x.writeBy); err != nil {
			return err
		}
	}
	x.out = appendHead(x.out[:0], x.rep, r, size)
	if size <= smallBody {
		for _, p := range r.Body {
			x.out = append(x.out, p...)
		}
		_, err := x.nc.Write(x.out)
		return err
	}
	x.vec = append(x.vecStore[:0], x.out)
	for _, p := range r.Body {
		if len(p) > 0 {
			x.vec = append(x.vec, p)
		}
	}
	_, err := x.vec.WriteTo(x.nc)
	clear(x.vecStore[:])
	return err
}

// smallBody is up to which length in bytes a body is copied behind its head: one
// write costs less than gathering.
const smallBody = 16 << 10

// trimOut lets go of an unusually large head.
func (x *conn) trimOut() {
	if cap(x.out) > 4*smallBody {
		x.out = nil
	}
}

// isTimeout reports whether one of our deadlines ran out.
func isTimeout(err error) bool {
	var ne net.Error
	return errors.Is(err, os.ErrDeadlineExceeded) || errors.Is(err, context.DeadlineExceeded) || errors.As(err, &ne) && ne.Timeout()
}
