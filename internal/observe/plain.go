// SPDX-License-Identifier: Apache-2.0

package observe

import (
	"bufio"
	"context"
	"errors"
	"io"
	"net"
	"net/http"
	"net/url"
	"strings"
	"sync"
	"syscall"
	"time"
)

const (
	maxHead = 1 << 20
	// keepAtMost is for how long a connection may have been unused: engines close
	// theirs after 5 s.
	keepAtMost = 4 * time.Second
)

// plain asks one replica over one connection of its own, from one goroutine: GETs over
// HTTP/1.1 without TLS. http.Transport takes more CPU time for its goroutines and
// timers than reading and parsing an exposition does. It stays in use for all else.
type plain struct {
	dial  func(ctx context.Context, network, address string) (net.Conn, error)
	addr  string // host:port
	path  string // before every target
	lines string // of every head, behind the request line

	nc    net.Conn // nil: none is open
	since time.Time
	stop  func() bool // of what closes nc at the end of the context
	from  io.LimitedReader
	out   []byte
	mem   *readMemory // while an answer is read
	body  plainBody
}

// readMemory is what reading an answer takes. Replicas are many, and each is asked
// once a second: they share it.
type readMemory struct {
	in  *bufio.Reader
	buf [16 << 10]byte
}

var readMemories = sync.Pool{New: func() any { return &readMemory{in: bufio.NewReaderSize(nil, 64<<10)} }}

// newPlain returns nil where the URL asks for more than it can do.
func newPlain(base, auth string, dial func(ctx context.Context, network, address string) (net.Conn, error)) *plain {
	u, err := url.Parse(base)
	if err != nil || u.Scheme != "http" || u.Host == "" || u.User != nil || u.RawQuery != "" || u.Fragment != "" ||
		strings.ContainsAny(auth, "\r\n") || !ascii(u.Host) || strings.Contains(u.Host, "%") { // a zone is not for the Host header
		return nil
	}
	port := u.Port()
	if port == "" {
		port = "80"
	}
	c := &plain{dial: dial, addr: net.JoinHostPort(u.Hostname(), port), path: strings.TrimRight(u.EscapedPath(), "/")}
	c.lines = " HTTP/1.1\r\nHost: " + u.Host + "\r\nUser-Agent: penstock\r\n"
	if auth != "" {
		c.lines += "Authorization: " + auth + "\r\n"
	}
	c.lines += "\r\n"
	return c
}

func ascii(s string) bool {
	return strings.IndexFunc(s, func(r rune) bool { return r <= ' ' || r > '~' }) < 0
}

// errUnusual says that an answer is one for http.Transport.
var errUnusual = errors.New("an answer of a kind that the plain client does not read")

// plainGet is what http.ReadResponse must know of the request.
var plainGet = &http.Request{Method: http.MethodGet}

// get asks for a target and returns the head of the answer. The caller reads the body
// and closes it before the next get. All of it must be over by the given moment.
func (c *plain) get(ctx context.Context, target string, by time.Time) (*http.Response, error) {
	if c.nc != nil && (time.Since(c.since) > keepAtMost || stirs(c.nc)) {
		c.close()
	}
	reused := c.nc != nil
	res, err := c.try(ctx, target, by)
	if err != nil && reused && closedMeanwhile(err) && ctx.Err() == nil {
		res, err = c.try(ctx, target, by)
	}
	return res, err
}

// try is one attempt of get. After an error there is no connection.
func (c *plain) try(ctx context.Context, target string, by time.Time) (*http.Response, error) {
	if c.nc == nil {
		if err := c.open(ctx, by); err != nil {
			return nil, err
		}
	}
	c.mem = readMemories.Get().(*readMemory)
	c.from = io.LimitedReader{R: c.nc, N: maxHead}
	c.mem.in.Reset(&c.from)
	c.out = append(append(append(append(c.out[:0], "GET "...), c.path...), target...), c.lines...)
	err := c.nc.SetDeadline(by)
	if err == nil {
		_, err = c.nc.Write(c.out)
	}
	var res *http.Response
	if err == nil {
		// The end of the connection before a byte came shows as io.EOF.
		if _, err = c.mem.in.Peek(1); err == nil {
			res, err = http.ReadResponse(c.mem.in, plainGet)
		}
	}
	if err == nil && res.StatusCode < http.StatusOK || err != nil && !ofConnection(err) {
		err = errUnusual
	}
	if err != nil {
		c.end(false)
		return nil, err
	}
	c.from.N += maxMetricsBody
	c.body = plainBody{c: c, from: res.Body, close: res.Close}
	res.Body = &c.body
	return res, nil
}

// plainBody is the body of the answer that is being read.
type plainBody struct {
	c     *plain
	from  io.Reader
	close bool // the replica closes the connection behind it
	whole bool
}

func (b *plainBody) Read(p []byte) (int, error) {
	if b.whole {
		return 0, io.EOF
	}
	n, err := b.from.Read(p)
	b.whole = err == io.EOF
	return n, err
}

// Close implements io.Closer. What is unread is not read.
func (b *plainBody) Close() error {
	b.c.end(b.whole && !b.close)
	return nil
}

func (c *plain) open(ctx context.Context, by time.Time) error {
	dctx, cancel := context.WithDeadline(ctx, earlier(by, time.Now().Add(answerTimeout)))
	defer cancel()
	nc, err := c.dial(dctx, "tcp", c.addr)
	if err != nil {
		return err
	}
	c.nc = nc
	c.stop = context.AfterFunc(ctx, func() { nc.Close() })
	return nil
}

func earlier(a, b time.Time) time.Time {
	if b.Before(a) {
		return b
	}
	return a
}

// end lets go of an answer. whole says that its body was read to the end and that the
// connection can be used again.
func (c *plain) end(whole bool) {
	if c.mem == nil {
		return
	}
	if !whole || c.mem.in.Buffered() > 0 {
		c.close()
	}
	c.since = time.Now()
	c.mem.in.Reset(nil)
	readMemories.Put(c.mem)
	c.mem, c.from.R = nil, nil
}

func (c *plain) close() {
	if c.nc != nil {
		c.stop()
		c.nc.Close()
		c.nc = nil
	}
}

// ofConnection reports whether an error is one of the connection, not of what came.
func ofConnection(err error) bool {
	var ne net.Error
	return err == io.EOF || errors.Is(err, io.ErrUnexpectedEOF) || errors.As(err, &ne)
}

// closedMeanwhile reports whether an error may come of a connection that the replica
// closed while it was idle.
func closedMeanwhile(err error) bool {
	return err == io.EOF || errors.Is(err, syscall.ECONNRESET) || errors.Is(err, syscall.EPIPE)
}
