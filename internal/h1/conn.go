// SPDX-License-Identifier: Apache-2.0

package h1

import (
	"bytes"
	"context"
	"errors"
	"io"
	"net"
	"net/http"
	"net/url"
	"os"
	"sync"
	"time"
)

// bufferSize holds the head of a usual request, and often its body; in bytes.
const bufferSize = 4096

// past is a deadline that ends what waits.
var past = time.Unix(1, 0)

// conn is one connection. It belongs to the goroutine that serves it; wakeIdle and
// cut are for others.
type conn struct {
	s       *Server
	nc      net.Conn
	visitor Visitor
	cancel  context.CancelFunc // of the context of its requests
	unwatch func()

	buf  []byte
	r, w int // buf[r:w] was read and not used
	head head
	base *http.Request // with the context
	req  http.Request
	url  url.URL
	body body
	resp response

	taken bool // somebody else has the connection
	cutIt bool // under mu: Close was called

	mu   sync.Mutex
	idle bool // nothing of a request was read

	readBy, writeBy time.Time // deadlines in force; zero: none
	wantRead        time.Time // deadline of the handler, for when the socket is read
}

func newConn(ctx context.Context, s *Server, nc net.Conn, v Visitor) *conn {
	ctx, cancel := context.WithCancel(ctx)
	c := &conn{s: s, nc: nc, visitor: v, cancel: cancel, buf: make([]byte, bufferSize), idle: true}
	c.base = (&http.Request{Method: http.MethodPost, Proto: "HTTP/1.1", ProtoMajor: 1, ProtoMinor: 1, RemoteAddr: nc.RemoteAddr().String()}).WithContext(ctx)
	c.body.c, c.resp.c = c, c
	c.resp.header = make(http.Header, 16)
	return c
}

// serve answers requests until the connection ends or is for somebody else.
func (c *conn) serve() {
	wait := c.s.o.HeadTime // one who connects has something to say
	for c.next(wait) {
		if !c.answer() {
			break
		}
		c.visitor.Rests()
		wait = c.s.o.IdleTime
	}
	if c.taken {
		return
	}
	c.unwatch()
	c.nc.Close()
	c.visitor.Leaves()
}

// next reads the head of the next request, which may take wait to begin. It reports
// false where there is none, or none for us.
func (c *conn) next(wait time.Duration) bool {
	c.w = copy(c.buf, c.buf[c.r:c.w])
	c.r = 0
	if c.w == 0 && !c.rest(wait) {
		return false
	}
	searched, began, limited := 0, false, false
	for {
		if c.w > 0 && !began {
			began = true
			c.visitor.Asks()
			c.busy()
		}
		if !usualStart(c.buf[:c.w]) {
			c.other()
			return false
		}
		if n := headEnd(c.buf[:c.w], searched); n > 0 {
			s := string(c.buf[:n])
			if !c.head.parse(s) {
				c.other()
				return false
			}
			c.r = n
			return true
		}
		searched = c.w
		if c.w == len(c.buf) {
			c.other()
			return false
		}
		if began && !limited {
			limited = true
			c.limit(time.Now().Add(c.s.o.HeadTime))
		}
		n, err := c.nc.Read(c.buf[c.w:])
		if n == 0 && !began && c.lastCall(err) {
			n, _ = c.nc.Read(c.buf)
		}
		if c.w += n; n == 0 {
			return false // the end, a reset or a deadline: there is nobody to tell
		}
	}
}

// lastCallTime is how long a request that is on its way while the server is told to
// end has to come.
const lastCallTime = 20 * time.Millisecond

// lastCall reports whether the wait for a request ended with err because the server
// ends: then there may be one in the socket.
func (c *conn) lastCall(err error) bool {
	if !c.s.ending.Load() || !errors.Is(err, os.ErrDeadlineExceeded) {
		return false
	}
	c.limit(time.Now().Add(lastCallTime))
	return true
}

// usualStart reports whether b may be the beginning of a usual request.
func usualStart(b []byte) bool {
	n := min(len(b), len(method))
	return string(b[:n]) == method[:n]
}

// headEnd returns the length of the head that b begins with, its empty line included;
// 0 where it is not complete. from is where a search before this one stopped.
func headEnd(b []byte, from int) int {
	from = max(from-3, 0)
	if i := bytes.Index(b[from:], []byte("\r\n\r\n")); i >= 0 {
		return from + i + 4
	}
	return 0
}

// other gives the connection away.
func (c *conn) other() {
	c.mu.Lock()
	if c.cutIt {
		c.mu.Unlock()
		return
	}
	c.taken = true
	c.unwatch()
	c.nc.SetDeadline(time.Time{})
	c.mu.Unlock()
	c.s.o.Other(c.nc, c.buf[:c.w])
}

// refresh reports whether a deadline in force, cur, is far from one in d: a deadline
// is set anew only when it has aged by a quarter of its length.
func refresh(cur, now time.Time, d time.Duration) bool {
	left := cur.Sub(now)
	return left < d-d/4 || left > d+d/4
}

// rest gets ready to wait for a request; false: the server ends.
func (c *conn) rest(wait time.Duration) bool {
	now := time.Now()
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.s.ending.Load() {
		return false
	}
	c.idle = true
	if refresh(c.readBy, now, wait) {
		c.deadline(now.Add(wait))
	}
	if !c.writeBy.IsZero() && c.writeBy.Sub(now) < wait {
		// The deadline of this answer must not catch a later one.
		c.writeBy = time.Time{}
		c.nc.SetWriteDeadline(c.writeBy)
	}
	return true
}

// busy says that a request has begun. The deadline for idling stands until something
// waits again.
func (c *conn) busy() {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.idle = false
	if c.s.ending.Load() {
		c.deadline(time.Now().Add(c.s.o.HeadTime)) // wakeIdle may have set it
	}
}

// deadline sets that of reading; c.mu is held.
func (c *conn) deadline(t time.Time) {
	if !c.cutIt {
		c.readBy = t
		c.nc.SetReadDeadline(t)
	}
}

// limit sets the deadline of reading.
func (c *conn) limit(t time.Time) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.deadline(t)
}

// wakeIdle ends the connection if it idles.
func (c *conn) wakeIdle() {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.idle {
		c.nc.SetReadDeadline(past)
	}
}

// cut ends the connection whatever it does.
func (c *conn) cut() {
	c.mu.Lock()
	defer c.mu.Unlock()
	if !c.taken {
		c.cutIt = true
		c.nc.SetDeadline(past)
		c.cancel()
	}
}

// answer lets the handler answer the request whose head was read. It reports whether
// the connection goes on with us.
func (c *conn) answer() (goesOn bool) {
	h := &c.head
	c.url = url.URL{Path: h.path, RawQuery: h.query}
	c.req = *c.base
	r := &c.req
	r.URL, r.Header, r.Host, r.ContentLength = &c.url, h.header, h.host, h.length
	r.RequestURI = h.path
	if h.query != "" {
		r.RequestURI += "?" + h.query
	}
	r.Body = http.NoBody
	if h.length > 0 {
		r.Body = &c.body
	}
	c.body.left, c.body.closed, c.wantRead = h.length, false, time.Time{}
	c.resp.reset()
	if c.handle() {
		return false
	}
	if c.taken {
		return false
	}
	err := c.resp.finish()
	if err == nil && c.body.left > 0 {
		c.linger()
	}
	return err == nil && !c.resp.closes
}

// handle runs the handler and reports whether it gave the request up.
func (c *conn) handle() (gaveUp bool) {
	defer func() {
		if f := recover(); f != nil {
			gaveUp = true
			if f != http.ErrAbortHandler {
				c.s.o.Log.Error("a handler failed", "path", c.url.Path)
			}
		}
	}()
	c.s.o.Handler.ServeHTTP(&c.resp, &c.req)
	return false
}

// lingerTime is how long a client that is still sending gets to see its answer before
// the reset that follows: as long as net/http waits.
const lingerTime = 500 * time.Millisecond

func (c *conn) linger() {
	if h, ok := c.nc.(interface{ CloseWrite() error }); ok && h.CloseWrite() == nil {
		time.Sleep(lingerTime)
	}
}

// body is the body of a request.
type body struct {
	c      *conn
	left   int64 // bytes of it that were not read
	closed bool
}

// Read reads what came with the head, then from the connection.
func (b *body) Read(p []byte) (int, error) {
	if b.closed {
		return 0, http.ErrBodyReadAfterClose
	}
	if b.left == 0 {
		return 0, io.EOF
	}
	n, err := b.c.read(p[:min(int64(len(p)), b.left)])
	b.left -= int64(n)
	switch {
	case err == io.EOF:
		err = io.ErrUnexpectedEOF
	case b.left == 0:
		err = io.EOF
	}
	return n, err
}

// Close implements io.Closer. What is left is dealt with after the answer.
func (b *body) Close() error {
	b.closed = true
	return nil
}

// read reads bytes of a body.
func (c *conn) read(p []byte) (int, error) {
	if c.r < c.w {
		n := copy(p, c.buf[c.r:c.w])
		c.r += n
		return n, nil
	}
	if !c.readBy.Equal(c.wantRead) {
		c.limit(c.wantRead)
	}
	if len(p) == 0 {
		return 0, nil
	}
	n, err := c.nc.Read(p)
	if n > 0 {
		err = nil // it will come again
	}
	return n, err
}

// Limits of what is read of a body that the handler left: as net/http does it.
const (
	discardMost = 256 << 10
	discardTime = 10 * time.Second
)

// discard reads what the handler left of the body; false: there is too much of it, or
// it does not come.
func (c *conn) discard() bool {
	if c.body.left > discardMost {
		return false
	}
	c.wantRead = time.Now().Add(discardTime)
	var scratch [1024]byte
	for c.body.left > 0 {
		n, err := c.read(scratch[:min(int64(len(scratch)), c.body.left)])
		if c.body.left -= int64(n); err != nil {
			return false
		}
	}
	return true
}
