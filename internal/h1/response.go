// SPDX-License-Identifier: Apache-2.0

package h1

import (
	"bufio"
	"bytes"
	"fmt"
	"io"
	"net"
	"net/http"
	"slices"
	"strconv"
	"strings"
	"sync/atomic"
	"time"

	"golang.org/x/net/http/httpguts"
)

// outSize is what is gathered before it is written, in bytes: the head and a short
// body go out in one write.
const outSize = 4096

// guessSize is up to which length, in bytes, an answer of unknown length is held to
// find its length.
const guessSize = 2048

// response is the http.ResponseWriter of a connection. It also does what an
// http.ResponseController asks for.
type response struct {
	c      *conn
	header http.Header
	out    []byte // to be written: head and framing, and small pieces of the body
	held   []byte // body whose length may become known
	vec    net.Buffers
	vecs   [2][]byte
	names  []string

	status  int   // 0: none yet
	length  int64 // that the head says; -1: none
	unclear bool  // it says one that is none: there is no guessing it
	written int64
	sent    bool // the head is in out, or went out
	chunked bool
	closes  bool // the connection ends with this answer
}

func (w *response) reset() {
	clear(w.header)
	w.out, w.held = w.out[:0], w.held[:0]
	w.status, w.length, w.written = 0, -1, 0
	w.unclear, w.sent, w.chunked, w.closes = false, false, false, false
}

// Header implements http.ResponseWriter.
func (w *response) Header() http.Header { return w.header }

// bodyAllowed reports whether an answer with this status has a body.
func bodyAllowed(status int) bool {
	return status >= 200 && status != http.StatusNoContent && status != http.StatusNotModified
}

// WriteHeader implements http.ResponseWriter. 1xx answers go out at once.
func (w *response) WriteHeader(status int) {
	if status < 100 || status > 999 {
		panic(fmt.Sprintf("invalid status %d", status))
	}
	if w.status != 0 || w.c.taken {
		return
	}
	if status < 200 && status != http.StatusSwitchingProtocols {
		w.statusLine(status)
		w.fields(func(name string) bool { return name != "Content-Length" && name != "Transfer-Encoding" })
		w.out = append(w.out, "\r\n"...)
		w.flush()
		return
	}
	w.status = status
	if v := w.header["Content-Length"]; len(v) > 0 {
		n, err := strconv.ParseInt(v[0], 10, 64)
		if err != nil || n < 0 || len(v) > 1 {
			delete(w.header, "Content-Length")
			w.unclear = true
			return
		}
		w.length = n
	}
}

// Write implements io.Writer.
func (w *response) Write(p []byte) (int, error) {
	if w.c.taken {
		return 0, http.ErrHijacked
	}
	if w.status == 0 {
		w.WriteHeader(http.StatusOK)
	}
	if len(p) == 0 {
		return 0, nil
	}
	if !bodyAllowed(w.status) {
		return 0, http.ErrBodyNotAllowed
	}
	if w.length >= 0 && w.written+int64(len(p)) > w.length {
		w.closes = true // who answers with more than it said is not to be trusted further
		return 0, http.ErrContentLength
	}
	w.written += int64(len(p))
	if !w.sent {
		if w.length < 0 && !w.unclear && len(w.held)+len(p) <= guessSize {
			w.held = append(w.held, p...)
			return len(p), nil
		}
		w.begin(p)
	}
	if err := w.put(p); err != nil {
		return 0, err
	}
	return len(p), nil
}

// begin writes the head, and what was held, to out. first is the beginning of the body
// where nothing is held.
func (w *response) begin(first []byte) {
	if len(w.held) > 0 {
		first = w.held
	}
	w.chunked = w.length < 0 && bodyAllowed(w.status)
	w.writeHead(first)
	if held := w.held; len(held) > 0 {
		w.held = w.held[:0]
		w.put(held) // small: it fits
	}
}

// put appends a piece of the body with its framing, and writes when there is enough.
func (w *response) put(p []byte) error {
	if w.chunked {
		w.out = strconv.AppendUint(w.out, uint64(len(p)), 16)
		w.out = append(w.out, "\r\n"...)
	}
	if len(w.out)+len(p)+2 <= outSize {
		w.out = append(w.out, p...)
	} else {
		w.vecs[0], w.vecs[1] = w.out, p
		w.vec = w.vecs[:]
		_, err := w.vec.WriteTo(w.c.nc)
		clear(w.vecs[:])
		w.out = w.out[:0]
		if err != nil {
			w.closes = true
			return err
		}
	}
	if w.chunked {
		w.out = append(w.out, "\r\n"...)
	}
	return nil
}

// flush writes what is gathered.
func (w *response) flush() error {
	if len(w.out) == 0 {
		return nil
	}
	_, err := w.c.nc.Write(w.out)
	w.out = w.out[:0]
	if cap(w.out) > 4*outSize {
		w.out = nil
	}
	if err != nil {
		w.closes = true
	}
	return err
}

// FlushError sends on what was written so far.
func (w *response) FlushError() error {
	if w.c.taken {
		return http.ErrHijacked
	}
	if w.status == 0 {
		w.WriteHeader(http.StatusOK)
	}
	if !w.sent {
		w.begin(nil)
	}
	return w.flush()
}

// Flush implements http.Flusher.
func (w *response) Flush() { _ = w.FlushError() }

// finish ends the answer after the handler returned.
func (w *response) finish() error {
	if w.status == 0 {
		w.WriteHeader(http.StatusOK)
	}
	if !w.sent {
		if w.length < 0 && !w.unclear && bodyAllowed(w.status) {
			w.length = int64(len(w.held))
			w.header["Content-Length"] = []string{strconv.FormatInt(w.length, 10)}
		}
		w.begin(nil)
	}
	if w.chunked {
		w.out = append(w.out, "0\r\n\r\n"...)
	}
	if w.length >= 0 && w.written < w.length && bodyAllowed(w.status) {
		w.closes = true // it must look cut
	}
	if !w.closes && w.c.body.left > 0 && !w.c.discard() {
		w.closes = true
	}
	return w.flush()
}

// writeHead appends the head. first is the beginning of the body.
func (w *response) writeHead(first []byte) {
	w.sent = true
	h := w.header
	for _, v := range h["Connection"] {
		w.closes = w.closes || strings.EqualFold(v, "close")
	}
	if !w.closes && (w.c.s.ending.Load() || w.c.body.left > 0 && !w.c.discard()) {
		w.closes = true
		h["Connection"] = closeValue
	}
	w.statusLine(w.status)
	if _, said := h["Content-Type"]; !said && len(first) > 0 && h["Content-Encoding"] == nil {
		h["Content-Type"] = []string{http.DetectContentType(first)}
	}
	w.fields(func(name string) bool {
		switch name {
		case "Transfer-Encoding":
			return false
		case "Content-Length":
			return bodyAllowed(w.status)
		case "Content-Type":
			return w.status != http.StatusNotModified
		}
		return true
	})
	if _, said := h["Date"]; !said {
		w.out = append(w.out, "Date: "...)
		w.out = append(w.out, date()...)
		w.out = append(w.out, "\r\n"...)
	}
	if w.chunked {
		w.out = append(w.out, "Transfer-Encoding: chunked\r\n"...)
	}
	w.out = append(w.out, "\r\n"...)
}

var closeValue = []string{"close"}

func (w *response) statusLine(status int) {
	w.out = append(w.out, "HTTP/1.1 "...)
	w.out = strconv.AppendInt(w.out, int64(status), 10)
	w.out = append(w.out, ' ')
	if text := http.StatusText(status); text != "" {
		w.out = append(w.out, text...)
	} else {
		w.out = append(w.out, "status code "...)
		w.out = strconv.AppendInt(w.out, int64(status), 10)
	}
	w.out = append(w.out, "\r\n"...)
}

// fields appends the fields that wanted keeps, in order.
func (w *response) fields(wanted func(name string) bool) {
	w.names = w.names[:0]
	for name := range w.header {
		w.names = append(w.names, name)
	}
	slices.Sort(w.names)
	for _, name := range w.names {
		if !wanted(name) || !httpguts.ValidHeaderFieldName(name) {
			continue
		}
		for _, v := range w.header[name] {
			w.out = append(w.out, name...)
			w.out = append(w.out, ": "...)
			w.out = append(w.out, oneLine(v)...)
			w.out = append(w.out, "\r\n"...)
		}
	}
}

// oneLine is a value that cannot end its line.
func oneLine(v string) string {
	if strings.ContainsAny(v, "\r\n") {
		v = strings.NewReplacer("\r", " ", "\n", " ").Replace(v)
	}
	return strings.Trim(v, " \t")
}

// second is a moment as the Date field has it.
type second struct {
	unix int64
	text string
}

var lastDate atomic.Pointer[second]

// date returns the present for the Date field.
func date() string {
	now := time.Now()
	if d := lastDate.Load(); d != nil && d.unix == now.Unix() {
		return d.text
	}
	d := &second{now.Unix(), now.UTC().Format(http.TimeFormat)}
	lastDate.Store(d)
	return d.text
}

// SetReadDeadline bounds the reading of the body.
func (w *response) SetReadDeadline(t time.Time) error {
	w.c.wantRead = t
	return nil
}

// SetWriteDeadline bounds writing. A deadline that is near the one in force, by a
// quarter of its length, stays.
func (w *response) SetWriteDeadline(t time.Time) error {
	c := w.c
	if t.IsZero() || c.writeBy.IsZero() {
		if t.Equal(c.writeBy) {
			return nil
		}
	} else if now := time.Now(); t.After(now) && !refresh(c.writeBy, now, t.Sub(now)) {
		return nil
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.cutIt {
		return nil
	}
	c.writeBy = t
	return c.nc.SetWriteDeadline(t)
}

// Hijack gives the connection to the handler, with what was read beyond the request.
func (w *response) Hijack() (net.Conn, *bufio.ReadWriter, error) {
	c := w.c
	if c.taken {
		return nil, nil, http.ErrHijacked
	}
	if w.status != 0 && !w.sent {
		w.begin(nil)
	}
	if err := w.flush(); err != nil {
		return nil, nil, err
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.cutIt {
		return nil, nil, net.ErrClosed
	}
	c.taken = true
	c.unwatch()
	c.nc.SetDeadline(time.Time{})
	c.visitor.Leaves()
	rest := slices.Clone(c.buf[c.r:c.w])
	r := bufio.NewReaderSize(io.MultiReader(bytes.NewReader(rest), c.nc), max(len(rest), 16))
	r.Peek(len(rest))
	return c.nc, bufio.NewReadWriter(r, bufio.NewWriterSize(c.nc, 16)), nil
}
