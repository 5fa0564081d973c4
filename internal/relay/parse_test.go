// SPDX-License-Identifier: Apache-2.0

package relay

import (
	"bufio"
	"bytes"
	"context"
	"io"
	"net"
	"net/http"
	"net/http/httputil"
	"strconv"
	"strings"
	"testing"
	"time"
)

// unchunk decodes b in reads of n bytes.
func unchunk(b []byte, n int) (payload []byte, used int, done bool, err error) {
	var c chunks
	if n <= 0 {
		n = max(len(b), 1)
	}
	b = bytes.Clone(b)
	for used < len(b) && !done && err == nil {
		end := min(used+n, len(b))
		var p []byte
		var k int
		p, k, done, err = c.decode(b[used:end])
		payload = append(payload, p...)
		used += k
	}
	return
}

func FuzzChunks(f *testing.F) {
	for _, s := range []string{"3\r\nabc\r\n0\r\n\r\n", "3;x=y\r\nabc\r\n01\r\nd\r\n0\r\nT: v\r\n\r\nrest", "G\r\n", "3\r\nabcX", "ffffffffffffffff\r\n", "0\r\n\r\n"} {
		f.Add([]byte(s), uint8(0))
		f.Add([]byte(s), uint8(1))
	}
	f.Fuzz(func(t *testing.T, b []byte, n uint8) {
		whole, used, done, err := unchunk(b, 0)
		p, used2, done2, err2 := unchunk(b, int(n))
		if !bytes.Equal(whole, p) || used != used2 || done != done2 || err != err2 {
			t.Fatalf("reads of %d differ: %q %d %v %v, whole: %q %d %v %v", n, p, used2, done2, err2, whole, used, done, err)
		}
		if !done {
			return
		}
		// What we take for complete, the standard library must read to the same bytes.
		want, err := io.ReadAll(httputil.NewChunkedReader(bytes.NewReader(b[:used])))
		if err == nil && !bytes.Equal(want, whole) {
			t.Fatalf("got %q, want %q", whole, want)
		}
	})
}

func FuzzHead(f *testing.F) {
	for _, s := range []string{
		"HTTP/1.1 200 OK\r\nContent-Length: 5\r\nA: b\r\n\r\n", "HTTP/1.0 404 x\n\n", "HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\nContent-Length: 1\r\n\r\n",
		"HTTP/1.1 200 OK\r\nConnection: close, x\r\nKeep-Alive: timeout=5\r\n\r\n", "HTTP/1.1 99 x\r\n\r\n",
	} {
		f.Add([]byte(s))
	}
	f.Fuzz(func(t *testing.T, b []byte) {
		n := headEnd(b, 0)
		if n == 0 {
			return
		}
		for i := range n {
			if k := headEnd(b[:i], 0); k != 0 {
				t.Fatalf("the head of %d bytes also ends at %d", n, k)
			}
			if k := headEnd(b, i); k < n && k != 0 {
				t.Fatalf("searching from %d finds %d, want %d", i, k, n)
			}
		}
		h, fields, err := parseHead(b[:n], nil)
		if err != nil {
			return
		}
		resp, err := http.ReadResponse(bufio.NewReader(bytes.NewReader(b[:n])), nil)
		if err != nil {
			return // the standard library is stricter about some names
		}
		if resp.StatusCode != h.status {
			t.Fatalf("status %d, want %d", h.status, resp.StatusCode)
		}
		for _, x := range fields {
			if !contains(resp.Header[x.key], x.value) {
				t.Fatalf("%q: %q is not in %v", x.key, x.value, resp.Header)
			}
		}
		if h.status >= 200 && h.status != 204 && h.status != 304 && !h.chunked && h.length >= 0 && resp.ContentLength != h.length {
			t.Fatalf("length %d, want %d", h.length, resp.ContentLength)
		}
		if h.chunked != (len(resp.TransferEncoding) > 0) && !h.http10 {
			t.Fatalf("chunked %v, want %v", h.chunked, resp.TransferEncoding)
		}
	})
}

// quiet is a response writer without a client.
type quiet struct{ h http.Header }

func (q *quiet) Header() http.Header              { return q.h }
func (q *quiet) WriteHeader(int)                  {}
func (q *quiet) Write(b []byte) (int, error)      { return len(b), nil }
func (q *quiet) FlushError() error                { return nil }
func (q *quiet) SetWriteDeadline(time.Time) error { return nil }

func TestNoAllocationPerChunk(t *testing.T) {
	event := "data: {\"choices\":[{\"delta\":{\"content\":\"x\"}}]}\n\n"
	chunk := []byte(strconv.FormatInt(int64(len(event)), 16) + "\r\n" + event + "\r\n")
	const n = 2000
	next := make(chan struct{})
	u := serve(t, func(_ int, c net.Conn, r *bufio.Reader) {
		for request(r) != nil {
			io.WriteString(c, "HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n")
			for range n {
				c.Write(chunk)
				<-next
			}
			io.WriteString(c, "0\r\n\r\n")
		}
	})
	c := client(t, Options{})
	one := func() {
		a, err := c.Send(context.Background(), u.url, get())
		if err != nil {
			t.Fatal(err)
		}
		s := &stepper{next: next}
		if e, err := a.Relay(&quiet{http.Header{}}, s); e != EndComplete || s.writes != n {
			t.Fatal(e, err, s.writes)
		}
	}
	one()
	// The stream as a whole allocates a few times, whatever its length.
	if got := testing.AllocsPerRun(3, one); got > 100 {
		t.Errorf("%v allocations for %d chunks", got, n)
	}
}

type stepper struct {
	plain
	next chan struct{}
}

func (s *stepper) Written(now time.Time) {
	s.plain.Written(now)
	s.next <- struct{}{}
}

func TestChunksAtEveryCut(t *testing.T) {
	in := "5\r\nhello\r\n1;a=\"b\"\r\n \r\n00005\r\nworld\r\n0\r\nA: b\r\n\r\nHTTP/1.1"
	for n := range len(in) {
		p, used, done, err := unchunk([]byte(in), n)
		if string(p) != "hello world" || !done || err != nil || in[used:] != "HTTP/1.1" {
			t.Fatalf("reads of %d: %q %d %v %v", n, p, used, done, err)
		}
	}
	for _, bad := range []string{"\r\n", "x\r\n", "5\nhello", "5\r\nhelloX", "5\r\nhello\rX", "5;" + strings.Repeat("x", 10<<10), "0\r\n" + strings.Repeat("A: b\r\n", 4<<10), "5;a\n"} {
		if _, _, done, err := unchunk([]byte(bad), 1); err == nil || done {
			t.Errorf("%.20q passed", bad)
		}
	}
}
