// SPDX-License-Identifier: Apache-2.0

package relay

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net/http"
	"os"
	"time"
)

// FailureKind says how an attempt failed before its answer began.
type FailureKind uint8

// Failure kinds.
const (
	FailConnect    FailureKind = iota // no connection: nothing was sent
	FailBroken                        // the end of the connection or a reset in place of an answer
	FailTimeout                       // one of our limits ran out after the connection stood
	FailBadAnswer                     // what came was no HTTP answer
	FailClientGone                    // the context ended
	FailFrozen                        // the Waiter gave up
)

var failureNames = [...]string{"connect", "broken", "timeout", "bad answer", "client gone", "no sign of life"}

func (k FailureKind) String() string { return failureNames[k] }

// Failure is why there is no answer.
type Failure struct {
	Kind  FailureKind
	Stale bool // a used connection turned out closed, so the request was sent twice
	Err   error
}

func (f *Failure) Error() string { return fmt.Sprintf("%s: %v", f.Kind, f.Err) }

// Unwrap returns the cause.
func (f *Failure) Unwrap() error { return f.Err }

// Send sends r to the replica with the given base URL and waits for the head of
// the answer and the first byte of its body: an engine sends the head of a stream
// before it begins to work, and while nothing has gone to the client the request
// can be sent elsewhere. The error is a *Failure. An Answer must be relayed, read
// or closed.
func (c *Client) Send(ctx context.Context, base string, r *Request) (*Answer, error) {
	rep, err := c.lookup(base)
	if err != nil {
		return nil, &Failure{Kind: FailConnect, Err: err}
	}
	now := time.Now()
	polled := r.Polled && c.polls != nil && rep.tls == nil
	x := rep.take(now, polled)
	stale := false
	for {
		if x == nil {
			x, err = rep.dial(ctx, polled)
			if now = time.Now(); err != nil {
				if ctx.Err() != nil {
					return nil, &Failure{Kind: FailClientGone, Stale: stale, Err: ctx.Err()}
				}
				return nil, &Failure{Kind: FailConnect, Stale: stale, Err: err}
			}
		}
		a, f := x.exchange(ctx, r, now)
		if f == nil {
			a.Stale = stale
			return a, nil
		}
		x.close()
		if f.Kind == FailBroken && x.reused && !stale && !x.got {
			c.stats.stale.Add(1)
			stale, x = true, nil
			continue
		}
		f.Stale = stale
		return nil, f
	}
}

// Answer is an answer whose head has come.
type Answer struct {
	Status int
	// Length of the body in bytes; -1: not told (a stream).
	Length int64
	Stale  bool // a used connection turned out closed, so the request was sent twice

	head   head
	fields []field
	x      *conn
	ctx    context.Context
	stop   func() bool
	chunks chunks
	left   int64
	state  bodyState
	excess bool // more came than belongs to the answer

	back        *Back // where the client's connection goes; see Take
	closeClient bool
}

// exchange sends r over x and reads the beginning of the answer.
func (x *conn) exchange(ctx context.Context, r *Request, now time.Time) (*Answer, *Failure) {
	x.needBuffer()
	x.got = false
	stop := context.AfterFunc(ctx, x.end)
	sendErr := x.send(now, r)
	wait := x.rep.c.o.FirstByte
	if sendErr != nil {
		// A replica may refuse a request before it has read it whole, and close.
		wait = time.Second
	}
	a := &Answer{x: x, ctx: ctx, stop: stop}
	err := x.readHead(a, r, now, wait)
	if err == nil {
		err = a.firstByte(r, now)
	}
	if err == nil {
		if sendErr != nil {
			a.head.close = true
		}
		return a, nil
	}
	stop()
	if sendErr != nil && !x.got {
		err = sendErr
	}
	return nil, &Failure{Kind: failureKind(ctx, err), Err: err}
}

func failureKind(ctx context.Context, err error) FailureKind {
	switch {
	case ctx.Err() != nil:
		return FailClientGone
	case err == errFrozen:
		return FailFrozen
	case isTimeout(err):
		return FailTimeout
	case err == errHead || err == errHeadLong || err == errFramed || err == errSwitch:
		return FailBadAnswer
	}
	return FailBroken
}

// maxInformational bounds the 1xx answers before the answer.
const maxInformational = 16

// readHead reads the head of the answer into a, 1xx answers before it aside.
func (x *conn) readHead(a *Answer, r *Request, now time.Time, wait time.Duration) error {
	for range maxInformational {
		n, err := x.readHeadBytes(r, now, wait)
		if err != nil {
			return err
		}
		h, fields, err := parseHead(x.buf[x.r:x.r+n], x.fields[:0])
		x.fields = fields
		if err != nil {
			return err
		}
		x.r += n
		if h.status >= 200 {
			a.head, a.fields, a.Status = h, fields, h.status
			a.frame(r.Method)
			return nil
		}
		if h.status == http.StatusSwitchingProtocols {
			return errSwitch
		}
		if r.Informational != nil && h.status != http.StatusContinue {
			hdr := http.Header{}
			for _, f := range fields {
				hdr[f.key] = append(hdr[f.key], f.value)
			}
			r.Informational(h.status, hdr)
		}
	}
	return errHead
}

// readHeadBytes reads until buf[r:] holds a whole head and returns its length.
func (x *conn) readHeadBytes(r *Request, now time.Time, wait time.Duration) (int, error) {
	searched := 0
	for {
		if n := headEnd(x.buf[x.r:x.w], searched); n > 0 {
			if n > x.rep.c.o.MaxHead {
				return 0, errHeadLong
			}
			return n, nil
		}
		searched = x.w - x.r
		if searched >= x.rep.c.o.MaxHead {
			return 0, errHeadLong
		}
		if x.w == len(x.buf) {
			x.makeRoom()
		}
		if _, err := x.await(r, now, wait); err != nil {
			if err == io.EOF && searched > 0 {
				return 0, io.ErrUnexpectedEOF
			}
			return 0, err
		}
	}
}

var errFrozen = errors.New("no sign of life")

// asking is how often a Waiter is asked.
const asking = 500 * time.Millisecond

// await reads once like fill, from now on within wait, and asks the Waiter.
func (x *conn) await(r *Request, now time.Time, wait time.Duration) (int, error) {
	if r.Waiter == nil || wait <= asking {
		return x.fill(now, wait)
	}
	for begin := now; ; now = time.Now() {
		waited := now.Sub(begin)
		if waited >= wait {
			return 0, os.ErrDeadlineExceeded
		}
		n, err := x.fill(now, min(asking, wait-waited))
		if err == nil || !isTimeout(err) {
			return n, err
		}
		if !r.Waiter.Patient(time.Since(begin)) {
			return 0, errFrozen
		}
	}
}

// makeRoom moves what is unread to the beginning of the buffer, or doubles it.
func (x *conn) makeRoom() {
	buf := x.buf
	if x.r == 0 {
		buf = make([]byte, 2*len(x.buf))
	}
	x.w = copy(buf, x.buf[x.r:x.w])
	x.r = 0
	x.buf = buf
}
