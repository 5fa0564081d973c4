// SPDX-License-Identifier: Apache-2.0

package relay

import (
	"bufio"
	"context"
	"fmt"
	"io"
	"net"
	"net/http"
	"strings"
	"sync"
	"testing"
	"time"
)

// explosive is a sink that panics on the payload that holds BOOM.
type explosive struct{ plain }

func (e *explosive) Payload(b []byte) []byte {
	if strings.Contains(string(b), "BOOM") {
		panic("boom")
	}
	return e.plain.Payload(b)
}

// taking serves every request with the stream of a replica that was taken from the
// server, and reports what rest panicked with.
func taking(t *testing.T, c *Client, base string) (addr string, panics chan any) {
	t.Helper()
	back := NewBack(&net.TCPAddr{})
	panics = make(chan any, 64)
	var wg sync.WaitGroup
	srv := &http.Server{Handler: http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		req := get()
		req.Target = r.URL.Path
		a, err := c.Send(r.Context(), base, req)
		if err != nil {
			t.Error(err)
			return
		}
		a.CopyHeader(w.Header())
		w.WriteHeader(a.Status)
		rest, done := a.Take(w, &explosive{}, back, r.Close)
		if rest == nil {
			t.Error("not taken")
			a.Close()
			return
		}
		wg.Go(func() {
			defer done()
			defer func() { panics <- recover() }()
			rest()
		})
	})}
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	go srv.Serve(back)
	go srv.Serve(l)
	t.Cleanup(func() {
		srv.Close()
		back.Close()
		back.Cut()
		if err := back.Wait(context.Background()); err != nil {
			t.Error(err)
		}
		wg.Wait()
	})
	return l.Addr().String(), panics
}

// A sink that fails ends its stream, which looks cut, and no other.
func TestPanicOfASinkInTheSet(t *testing.T) {
	if !testEpoll {
		t.Skip("streams are in no set")
	}
	u := serve(t, func(_ int, c net.Conn, r *bufio.Reader) {
		for req := request(r); req != nil; req = request(r) {
			io.WriteString(c, "HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n")
			for i := range 5 {
				text := "data"
				if i == 3 && req.URL.Path == "/boom" {
					text = "BOOM"
				}
				if _, err := fmt.Fprintf(c, "4\r\n%s\r\n", text); err != nil {
					return
				}
				time.Sleep(2 * time.Millisecond)
			}
			io.WriteString(c, "0\r\n\r\n")
		}
	})
	cl := client(t, Options{})
	addr, panics := taking(t, cl, u.url)
	for _, path := range []string{"/ok", "/boom", "/ok", "/boom", "/ok"} {
		res, err := http.Get("http://" + addr + path)
		if err != nil {
			t.Fatal(err)
		}
		body, err := io.ReadAll(res.Body)
		res.Body.Close()
		p := <-panics
		if path == "/ok" && (err != nil || string(body) != strings.Repeat("data", 5) || p != nil) {
			t.Errorf("%s: %v %q %v", path, err, body, p)
		}
		if path == "/boom" && (err == nil || p != "boom") {
			t.Errorf("%s: %v %q %v", path, err, body, p)
		}
	}
}

// An answer that is larger than any buffer arrives whole, whatever the sizes of its
// chunks.
func TestLargeStreamThroughTheSet(t *testing.T) {
	if !testEpoll {
		t.Skip("streams are in no set")
	}
	var want strings.Builder
	for i := range 3000 {
		fmt.Fprintf(&want, "%0*d", i%977+1, i)
	}
	u := serve(t, func(_ int, c net.Conn, r *bufio.Reader) {
		for request(r) != nil {
			io.WriteString(c, "HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n")
			w := bufio.NewWriterSize(c, 70000)
			for i := range 3000 {
				s := fmt.Sprintf("%0*d", i%977+1, i)
				fmt.Fprintf(w, "%x;ext=1\r\n%s\r\n", len(s), s)
			}
			io.WriteString(w, "0\r\nTrailer: x\r\n\r\n")
			w.Flush()
		}
	})
	addr, _ := taking(t, client(t, Options{}), u.url)
	for range 5 {
		res, err := http.Get("http://" + addr + "/")
		if err != nil {
			t.Fatal(err)
		}
		body, err := io.ReadAll(res.Body)
		res.Body.Close()
		if err != nil || string(body) != want.String() {
			t.Errorf("%d of %d bytes, %v", len(body), want.Len(), err)
		}
	}
}
