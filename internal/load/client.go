// SPDX-License-Identifier: Apache-2.0

package load

import (
	"bytes"
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"io"
	"net"
	"strconv"
	"strings"
	"sync"
	"time"
)

// idleLimit is how long a connection may rest before it is not used again: engines
// close theirs after 5 s and a request that meets the closing is lost.
const idleLimit = 3 * time.Second

// maxHead bounds the head of an answer.
const maxHead = 64 << 10

// dialer opens a connection to host:port.
type dialer func(ctx context.Context, network, addr string) (net.Conn, error)

// client keeps connections to one target.
type client struct {
	target *Target
	dial   dialer

	mu   sync.Mutex
	idle []*conn // the most recently used last
}

// conn is one connection with its read buffer.
type conn struct {
	net.Conn
	buf    []byte
	r, w   int // unread bytes are buf[r:w]
	readAt time.Time
	rested time.Time
	used   bool // has carried an answer before
}

// get returns a connection that is fit for use, or a new one.
func (c *client) get(ctx context.Context) (*conn, error) {
	now := time.Now()
	c.mu.Lock()
	for n := len(c.idle); n > 0; n = len(c.idle) {
		x := c.idle[n-1]
		c.idle[n-1] = nil
		c.idle = c.idle[:n-1]
		if now.Sub(x.rested) < idleLimit {
			c.mu.Unlock()
			return x, nil
		}
		x.Close()
	}
	c.mu.Unlock()
	nc, err := c.dial(ctx, "tcp", c.target.addr)
	if err != nil {
		return nil, err
	}
	if c.target.tls {
		host, _, _ := net.SplitHostPort(c.target.addr)
		tc := tls.Client(nc, &tls.Config{ServerName: host, NextProtos: []string{"http/1.1"}})
		if err := tc.HandshakeContext(ctx); err != nil {
			nc.Close()
			return nil, err
		}
		nc = tc
	}
	return &conn{Conn: nc, buf: make([]byte, 16<<10)}, nil
}

func (c *client) put(x *conn) {
	x.rested = time.Now()
	x.used = true
	c.mu.Lock()
	c.idle = append(c.idle, x)
	c.mu.Unlock()
}

// close closes all connections that rest.
func (c *client) close() {
	c.mu.Lock()
	defer c.mu.Unlock()
	for _, x := range c.idle {
		x.Close()
	}
	c.idle = nil
}

// fill reads more bytes; the buffer must not be full.
func (x *conn) fill() error {
	if x.r == x.w {
		x.r, x.w = 0, 0
	} else if x.w == len(x.buf) {
		copy(x.buf, x.buf[x.r:x.w])
		x.r, x.w = 0, x.w-x.r
	}
	if x.w == len(x.buf) {
		if len(x.buf) >= maxHead {
			return errors.New("a line of the answer is too long")
		}
		x.buf = append(x.buf, make([]byte, len(x.buf))...)
	}
	n, err := x.Read(x.buf[x.w:])
	x.readAt = time.Now()
	x.w += n
	if n > 0 {
		return nil
	}
	return err
}

// line returns the next line without its end; it is valid until the next read.
func (x *conn) line() ([]byte, error) {
	from := x.r
	for {
		if i := bytes.IndexByte(x.buf[from:x.w], '\n'); i >= 0 {
			l := x.buf[x.r : from+i]
			x.r = from + i + 1
			return bytes.TrimSuffix(l, []byte{'\r'}), nil
		}
		seen := x.w - x.r
		if err := x.fill(); err != nil {
			return nil, err
		}
		from = x.r + seen
	}
}

// head is what matters of the head of an answer.
type head struct {
	status  int
	length  int64 // -1 unknown
	chunked bool
	close   bool
	events  bool // text/event-stream
}

func (x *conn) head() (head, error) {
	for {
		h, err := x.oneHead()
		if err != nil || h.status >= 200 {
			return h, err
		}
	}
}

func (x *conn) oneHead() (head, error) {
	h := head{length: -1}
	l, err := x.line()
	if err != nil {
		return h, err
	}
	proto, rest, _ := strings.Cut(string(l), " ")
	if len(rest) < 3 || !strings.HasPrefix(proto, "HTTP/1.") {
		return h, fmt.Errorf("no HTTP/1.1 answer: %q", excerpt(l))
	}
	h.close = proto == "HTTP/1.0"
	if h.status, err = strconv.Atoi(rest[:3]); err != nil || h.status < 100 {
		return h, fmt.Errorf("no HTTP status: %q", excerpt(l))
	}
	for {
		if l, err = x.line(); err != nil {
			return h, err
		}
		if len(l) == 0 {
			return h, nil
		}
		k, v, ok := bytes.Cut(l, []byte{':'})
		if !ok {
			return h, fmt.Errorf("no header: %q", excerpt(l))
		}
		v = bytes.TrimSpace(v)
		switch {
		case asciiEqual(k, "content-length"):
			if h.length, err = strconv.ParseInt(string(v), 10, 64); err != nil || h.length < 0 {
				return h, fmt.Errorf("content-length %q", excerpt(v))
			}
		case asciiEqual(k, "transfer-encoding"):
			h.chunked = asciiEqual(v, "chunked")
		case asciiEqual(k, "connection"):
			h.close = h.close || asciiEqual(v, "close")
		case asciiEqual(k, "content-type"):
			h.events = len(v) >= 17 && asciiEqual(v[:17], "text/event-stream")
		}
	}
}

func asciiEqual(b []byte, s string) bool {
	return len(b) == len(s) && strings.EqualFold(string(b), s)
}

// body hands the bytes of the body to feed as they come and returns whether the
// connection may be used again. feed may return false to stop.
func (x *conn) body(h head, feed func(p []byte, at time.Time)) (reuse bool, err error) {
	switch {
	case h.chunked:
		err = x.chunks(feed)
	case h.length >= 0:
		err = x.exactly(h.length, feed)
	default:
		for {
			if x.r < x.w {
				feed(x.buf[x.r:x.w], x.readAt)
				x.r = x.w
			}
			if err = x.fill(); err != nil {
				if err == io.EOF {
					err = nil
				}
				return false, err
			}
		}
	}
	return err == nil && !h.close && x.r == x.w, err
}

func (x *conn) exactly(n int64, feed func([]byte, time.Time)) error {
	for n > 0 {
		if x.r == x.w {
			if err := x.fill(); err != nil {
				return noEOF(err)
			}
		}
		k := int(min(n, int64(x.w-x.r)))
		feed(x.buf[x.r:x.r+k], x.readAt)
		x.r += k
		n -= int64(k)
	}
	return nil
}

func (x *conn) chunks(feed func([]byte, time.Time)) error {
	for {
		l, err := x.line()
		if err != nil {
			return noEOF(err)
		}
		size, _, _ := bytes.Cut(l, []byte{';'})
		n, err := strconv.ParseInt(string(bytes.TrimSpace(size)), 16, 64)
		if err != nil || n < 0 {
			return fmt.Errorf("chunk size %q", excerpt(l))
		}
		if n == 0 {
			for { // trailers
				if l, err = x.line(); err != nil {
					return noEOF(err)
				}
				if len(l) == 0 {
					return nil
				}
			}
		}
		if err := x.exactly(n, feed); err != nil {
			return err
		}
		if l, err = x.line(); err != nil {
			return noEOF(err)
		}
		if len(l) != 0 {
			return fmt.Errorf("%q after a chunk", excerpt(l))
		}
	}
}

// noEOF makes the end of the connection within a body an error of its own.
func noEOF(err error) error {
	if err == io.EOF {
		return io.ErrUnexpectedEOF
	}
	return err
}
