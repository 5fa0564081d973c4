// SPDX-License-Identifier: Apache-2.0

package relay

import (
	"context"
	"errors"
	"io"
	"net/http"
	"strconv"
	"strings"
	"time"
)

// bodyState is where the body of an answer is.
type bodyState uint8

const (
	bodyLength  bodyState = iota // left bytes follow
	bodyChunked                  // chunks follow
	bodyToEnd                    // all until the end of the connection
	bodyDone
)

// frame decides how the body is framed.
func (a *Answer) frame(method string) {
	h := &a.head
	a.Length = h.length
	switch {
	case method == http.MethodHead || h.status == http.StatusNoContent || h.status == http.StatusNotModified:
		a.state = bodyDone
		if h.status == http.StatusNoContent {
			a.Length = -1
		}
	case h.chunked:
		a.state = bodyChunked
	case h.length >= 0:
		a.state, a.left = bodyLength, h.length
		if a.left == 0 {
			a.state = bodyDone
		}
	default:
		a.state = bodyToEnd
		h.close = true
	}
	if h.keep > 0 {
		a.x.rep.lower(h.keep)
	}
}

// firstByte waits until a byte of the body has been read.
func (a *Answer) firstByte(r *Request, now time.Time) error {
	x := a.x
	if a.state == bodyDone || x.r < x.w {
		return nil
	}
	_, err := x.await(r, now, x.rep.c.o.FirstByte)
	if err == io.EOF && a.state == bodyToEnd {
		a.state = bodyDone
		return nil
	}
	return err
}

// Header returns the value of the first header with the canonical name key. It is
// to be asked before the answer is relayed, read or closed, like CopyHeader.
func (a *Answer) Header(key string) string {
	for _, f := range a.fields {
		if f.key == key {
			return f.value
		}
	}
	return ""
}

// CopyHeader adds the headers that go on to the client, Content-Length included,
// to dst.
func (a *Answer) CopyHeader(dst http.Header) {
	values := make([]string, len(a.fields)+1)
	for i, f := range a.fields {
		if a.head.named != nil && contains(a.head.named, f.key) {
			continue
		}
		if old := dst[f.key]; old != nil {
			dst[f.key] = append(old, f.value)
			continue
		}
		values[i] = f.value
		dst[f.key] = values[i : i+1 : i+1]
	}
	if a.Length >= 0 {
		n := len(values) - 1
		values[n] = strconv.FormatInt(a.Length, 10)
		dst["Content-Length"] = values[n:]
	}
}

// Sink sees the body of an answer on its way. Its methods are called before Relay
// returns, by one goroutine at a time; they must not block.
type Sink interface {
	// Payload gets the next bytes and returns what goes to the client. p is valid
	// until it returns; so is the result until the next call.
	Payload(p []byte) []byte
	// Written says that what Payload returned has gone to the client since now.
	Written(now time.Time)
	// End says that no more will come from the replica, and returns last words for
	// the client. It is not asked when the client is gone. Where the answer is not
	// whole, nil leaves it without an end, so that it looks cut; an empty slice ends
	// it in good order without a word.
	End(e Ending) []byte
}

// Take does what Relay does, with an epoll set and without the client's server: it
// takes the client's connection from the server, and gives it to b when the answer
// is over, or closes it where closes says so. It returns nil where this answer
// cannot be copied so: call Relay then. Else the handler may return, which frees what
// the server holds for a request, and the rest is done by calling rest, once,
// from any goroutine; done says that all is accounted for, which b waits for. The
// head must have been written in HTTP/1.1
// without TLS, over a connection that CanGoBack.
func (a *Answer) Take(w http.ResponseWriter, s Sink, b *Back, closes bool) (rest func() (Ending, error), done func()) {
	if b == nil || a.x.poll == nil || a.state != bodyChunked {
		return nil, nil
	}
	nc, rw, err := http.NewResponseController(w).Hijack()
	if err != nil {
		return nil, nil
	}
	// From here on the context says nothing of the client: it ends with the handler.
	left := !a.stop()
	a.ctx, a.stop = context.Background(), func() bool { return true }
	a.back, a.closeClient = b, closes
	return a.takePolled(nc, rw, s, left)
}

// Ending says how the relaying of an answer ended.
type Ending uint8

// Endings. Only after EndComplete is the answer whole; after all but EndClientGone
// the client is still there.
const (
	EndComplete   Ending = iota
	EndBroken            // the replica's connection ended or broke within the answer
	EndStalled           // the replica fell silent for too long
	EndClientGone        // the client left, or took nothing for too long
)

var endingNames = [...]string{"complete", "broken", "stalled", "client gone"}

func (e Ending) String() string { return endingNames[e] }

// Relay copies the body to w, whose header has been written. It returns when the
// answer is over, whatever the reason, and has let go of the connection. err is
// the cause where the ending is not EndComplete.
func (a *Answer) Relay(w http.ResponseWriter, s Sink) (e Ending, err error) {
	stream := a.state == bodyChunked || a.state == bodyToEnd || strings.HasPrefix(a.Header("Content-Type"), "text/event-stream")
	out := newWriter(w, a.x.rep.c.o.ClientWrite, stream)
	for a.state != bodyDone {
		p, err := a.next()
		if len(p) > 0 {
			now := time.Now()
			if werr := out.write(now, s.Payload(p)); werr != nil {
				a.Close()
				return EndClientGone, werr
			}
			s.Written(now)
		}
		if err != nil {
			return a.broken(out, s, err), err
		}
	}
	a.release()
	if last := s.End(EndComplete); last != nil {
		if err := out.write(time.Now(), last); err != nil {
			return EndClientGone, err
		}
	}
	return EndComplete, nil
}

// broken ends an answer that came to no end of its own.
func (a *Answer) broken(out *writer, s Sink, err error) Ending {
	e := EndBroken
	switch {
	case a.ctx.Err() != nil:
		e = EndClientGone
	case isTimeout(err):
		e = EndStalled
	}
	a.Close()
	if e == EndClientGone {
		return e
	}
	if last := s.End(e); last != nil && out.write(time.Now(), last) != nil {
		return EndClientGone
	}
	return e
}

// next returns the payload of what has been read, or of one more read. The slice
// is valid until the next call. At the end of the answer the state is bodyDone.
func (a *Answer) next() ([]byte, error) {
	x := a.x
	if x.r == x.w {
		if _, err := x.fill(time.Now(), x.rep.c.o.Stall); err != nil {
			if err == io.EOF && a.state == bodyToEnd {
				a.state = bodyDone
				return nil, nil
			}
			if err == io.EOF {
				err = io.ErrUnexpectedEOF
			}
			return nil, err
		}
	}
	b := x.buf[x.r:x.w]
	switch a.state {
	case bodyChunked:
		p, used, done, err := a.chunks.decode(b)
		x.r += used
		if done {
			a.state = bodyDone
		}
		return p, err
	case bodyLength:
		n := int(min(a.left, int64(len(b))))
		x.r += n
		if a.left -= int64(n); a.left == 0 {
			a.state = bodyDone
		}
		return b[:n], nil
	}
	x.r = x.w
	return b, nil
}

var errTooLong = errors.New("the body is longer than the limit")

// ReadAll reads the body, at most limit bytes within wait, and lets go of the
// connection. It returns what it got also on error.
func (a *Answer) ReadAll(limit int, wait time.Duration) ([]byte, error) {
	t := time.AfterFunc(wait, a.x.close)
	defer t.Stop()
	var body []byte
	for a.state != bodyDone {
		p, err := a.next()
		if err == nil && len(body)+len(p) > limit {
			err = errTooLong
		}
		if err != nil {
			a.Close()
			return body, err
		}
		body = append(body, p...)
	}
	if t.Stop() {
		a.release()
	} else {
		a.Close()
	}
	return body, nil
}

// release gives the connection back after a complete answer.
func (a *Answer) release() {
	x := a.x
	if !a.stop() || a.head.close || a.excess || x.r != x.w || x.gone.Load() {
		x.close()
		return
	}
	x.dropBuffer()
	x.trimOut()
	x.rep.put(x, time.Now())
}

// Close gives up an answer: the connection to the replica is closed at once.
func (a *Answer) Close() {
	a.stop()
	a.x.close()
}

// flusher is a response writer that sends on what it holds.
type flusher interface{ FlushError() error }

// writer writes to a client with a deadline for each write.
type writer struct {
	w      http.ResponseWriter
	ctl    http.ResponseController
	flush  flusher // nil: the answer is sent on when it is whole
	wait   time.Duration
	by     time.Time
	noTime bool // w knows no deadlines
}

func newWriter(w http.ResponseWriter, wait time.Duration, stream bool) *writer {
	o := &writer{w: w, wait: wait, ctl: *http.NewResponseController(w)}
	if stream {
		if o.flush, _ = w.(flusher); o.flush == nil {
			o.flush = plainFlusher{&o.ctl}
		}
	}
	return o
}

func (o *writer) write(now time.Time, p []byte) error {
	if !o.noTime && refresh(o.by, now, o.wait) {
		o.by = now.Add(o.wait)
		o.noTime = o.ctl.SetWriteDeadline(o.by) != nil
	}
	if len(p) > 0 {
		if _, err := o.w.Write(p); err != nil {
			return err
		}
	}
	return o.finish()
}

// finish sends on what is left of a stream.
func (o *writer) finish() error {
	if o.flush == nil {
		return nil
	}
	return o.flush.FlushError()
}

// plainFlusher flushes through whatever wraps the server's own response writer.
type plainFlusher struct{ ctl *http.ResponseController }

// FlushError flushes; a writer that cannot is no error.
func (f plainFlusher) FlushError() error {
	if err := f.ctl.Flush(); err != nil && !errors.Is(err, http.ErrNotSupported) {
		return err
	}
	return nil
}
