// SPDX-License-Identifier: Apache-2.0

package gateway

import (
	"errors"
	"fmt"
	"io"
	"math/bits"
	"net"
	"net/http"
	"os"
	"sync"
	"sync/atomic"
	"time"

	"github.com/penstock-project/penstock/internal/wire"
)

// buffer is the memory of one request body.
type buffer struct {
	b     []byte
	class int
}

const (
	leastClass = 12 // 4 KiB
	mostClass  = 26 // 64 MiB; larger buffers are left to the collector
)

var buffers [mostClass + 1]sync.Pool

// getBuffer returns a buffer of at least n bytes.
func getBuffer(n int) *buffer {
	class := max(leastClass, bits.Len(uint(max(n, 1)-1)))
	if class > mostClass {
		return &buffer{b: make([]byte, n), class: class}
	}
	if b, _ := buffers[class].Get().(*buffer); b != nil {
		return b
	}
	return &buffer{b: make([]byte, 1<<class), class: class}
}

func (b *buffer) put() {
	if b.class <= mostClass {
		buffers[b.class].Put(b)
	}
}

// bodies reads request bodies within limits.
type bodies struct {
	most     int64        // of one body, in bytes
	mostHeld int64        // of all bodies together, in bytes
	held     atomic.Int64 // memory of the bodies that are here, in bytes
}

// Pace of uploads: a body must come at this average after the grace. A client that
// trickles holds memory and a goroutine.
const (
	uploadGrace = 30 * time.Second
	uploadPace  = 16 << 10 // bytes per second
)

// firstRead is what is set aside for a body on the word of its length alone, in
// bytes. A lying length must not cost more than what really comes.
const firstRead = 1 << 20

var errClientGone = errors.New("the client left")

// read reads the body of r, a request that began at start. It returns an error of
// ours, or errClientGone.
func (q *bodies) read(w http.ResponseWriter, r *http.Request, start time.Time) (*buffer, int, error) {
	if r.ContentLength > q.most {
		q.drain(w, r)
		return nil, 0, q.tooLarge()
	}
	size := int64(16 << 10)
	if r.ContentLength >= 0 {
		size = min(r.ContentLength, firstRead)
	}
	buf, err := q.hold(int(size))
	if err != nil {
		return nil, 0, err
	}
	ctl := *http.NewResponseController(w) // a copy, which needs no heap
	n := 0
	// A writer that knows no deadlines has limits of its own.
	ctl.SetReadDeadline(start.Add(uploadGrace + time.Duration(size)*time.Second/uploadPace))
	for {
		if n == len(buf.b) {
			if buf, err = q.grow(buf); err != nil {
				return nil, 0, err
			}
			ctl.SetReadDeadline(start.Add(uploadGrace + time.Duration(len(buf.b))*time.Second/uploadPace))
		}
		k, err := r.Body.Read(buf.b[n:])
		n += k
		if int64(n) > q.most {
			q.release(buf)
			q.drain(w, r)
			return nil, 0, q.tooLarge()
		}
		if err == io.EOF {
			ctl.SetReadDeadline(time.Time{})
			return buf, n, nil
		}
		if err != nil {
			q.release(buf)
			return nil, 0, readError(err)
		}
	}
}

// hold sets memory aside.
func (q *bodies) hold(n int) (*buffer, error) {
	b := getBuffer(n)
	if q.held.Add(int64(len(b.b))) > q.mostHeld {
		q.release(b)
		return nil, &wire.Error{Status: http.StatusServiceUnavailable, Code: wire.CodeOverloaded, RetryAfter: time.Second,
			Message: "too many large requests are under way; try again"}
	}
	return b, nil
}

func (q *bodies) release(b *buffer) {
	q.held.Add(-int64(len(b.b)))
	b.put()
}

// grow returns a buffer twice as large with the same beginning.
func (q *bodies) grow(old *buffer) (*buffer, error) {
	defer q.release(old)
	b, err := q.hold(2 * len(old.b))
	if err != nil {
		return nil, err
	}
	copy(b.b, old.b)
	return b, nil
}

func (q *bodies) tooLarge() *wire.Error {
	return &wire.Error{Status: http.StatusRequestEntityTooLarge, Code: wire.CodeTooLarge,
		Message: fmt.Sprintf("the body is longer than the limit of %d bytes", q.most)}
}

func readError(err error) error {
	var ne net.Error
	switch {
	case errors.Is(err, os.ErrDeadlineExceeded), errors.As(err, &ne) && ne.Timeout():
		return &wire.Error{Status: http.StatusRequestTimeout, Code: wire.CodeSlowUpload, Message: "the body came too slowly"}
	case errors.Is(err, io.ErrUnexpectedEOF), errors.As(err, &ne):
		return errClientGone
	}
	return &wire.Error{Status: http.StatusBadRequest, Code: wire.CodeInvalidValue, Message: "the body cannot be read: its framing is broken"}
}

// Limits of drain.
const (
	drainBytes = 64 << 20
	drainTime  = 10 * time.Second
)

// drain reads and drops the rest of a refused body, so that a client that writes
// all of it before it reads gets to see the refusal, and can use the connection
// again. A client that asks first, or that has too much to say, is not listened to.
func (q *bodies) drain(w http.ResponseWriter, r *http.Request) {
	if r.Header["Expect"] == nil && r.ContentLength <= drainBytes {
		ctl := http.NewResponseController(w)
		ctl.SetReadDeadline(time.Now().Add(drainTime))
		n, err := io.CopyN(io.Discard, r.Body, drainBytes)
		ctl.SetReadDeadline(time.Time{})
		if err == io.EOF && n < drainBytes {
			return
		}
	}
	w.Header().Set("Connection", "close")
}
