// SPDX-License-Identifier: Apache-2.0

package h1

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"io"
	"log"
	"net"
	"net/http"
	"slices"
	"strings"
	"sync/atomic"
	"testing"
	"time"
)

// counted is a Visitor.
type counted struct{ asks, rests, leaves atomic.Int64 }

func (c *counted) Asks()   { c.asks.Add(1) }
func (c *counted) Rests()  { c.rests.Add(1) }
func (c *counted) Leaves() { c.leaves.Add(1) }

// fixture is a Server beside an http.Server with the same handler.
type fixture struct {
	*Server
	addr, standard string
	visits         counted
	other          chan string // what connections were given away with
}

func start(t *testing.T, h http.HandlerFunc) *fixture {
	t.Helper()
	f := &fixture{other: make(chan string, 16)}
	f.Server = New(Options{
		Handler: h, HeadTime: time.Second, IdleTime: time.Minute,
		Watch: func(net.Conn, func()) (func(), error) { return func() {}, nil },
		Open:  func(net.Conn) (context.Context, Visitor) { return context.Background(), &f.visits },
		Other: func(c net.Conn, read []byte) { f.other <- string(read); c.Close() },
	})
	l := listen(t)
	f.addr = l.Addr().String()
	go f.Serve(l)
	sl := listen(t)
	srv := &http.Server{Handler: h, ErrorLog: log.New(io.Discard, "", 0)}
	f.standard = sl.Addr().String()
	go srv.Serve(sl)
	t.Cleanup(func() {
		f.Close()
		srv.Close()
	})
	return f
}

func listen(t *testing.T) net.Listener {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { l.Close() })
	return l
}

func dial(t *testing.T, addr string) net.Conn {
	t.Helper()
	c, err := net.Dial("tcp", addr)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { c.Close() })
	c.SetDeadline(time.Now().Add(time.Minute))
	return c
}

func post(body string) string {
	return fmt.Sprintf("POST /v1/x?q=1 HTTP/1.1\r\nHost: a\r\nX-A: 1\r\nContent-Length: %d\r\n\r\n%s", len(body), body)
}

// seen is what a client sees of two requests over one connection.
func seen(t *testing.T, addr, request string) string {
	t.Helper()
	c := dial(t, addr)
	r := bufio.NewReader(c)
	var b strings.Builder
	for range 2 {
		if _, err := io.WriteString(c, request); err != nil {
			b.WriteString("not written\n")
			break
		}
		res, err := http.ReadResponse(r, &http.Request{Method: http.MethodPost})
		for err == nil && res.StatusCode < 200 {
			fmt.Fprintln(&b, res.StatusCode, res.Header)
			res, err = http.ReadResponse(r, &http.Request{Method: http.MethodPost})
		}
		if err != nil {
			b.WriteString("no answer\n")
			break
		}
		body, err := io.ReadAll(res.Body)
		if res.Header.Get("Date") == "" {
			b.WriteString("no date\n")
		}
		res.Header.Del("Date")
		var names []string
		for k, v := range res.Header {
			names = append(names, fmt.Sprint(k, v))
		}
		slices.Sort(names)
		fmt.Fprintln(&b, res.Status, names, res.ContentLength, res.TransferEncoding, res.Close, len(body), string(body[:min(len(body), 64)]), err)
	}
	return b.String()
}

// TestSameAsStandard holds what clients see to what net/http shows them.
func TestSameAsStandard(t *testing.T) {
	long := strings.Repeat("0123456789abcdef", 4096)
	echo := func(w http.ResponseWriter, r *http.Request) {
		b, err := io.ReadAll(r.Body)
		fmt.Fprint(w, r.Method, r.URL.Path, r.URL.RawQuery, r.RequestURI, r.Host, r.Header, r.ContentLength, r.Proto, len(b), err)
	}
	for name, h := range map[string]http.HandlerFunc{
		"nothing":      func(http.ResponseWriter, *http.Request) {},
		"echo":         echo,
		"status alone": func(w http.ResponseWriter, r *http.Request) { io.Copy(io.Discard, r.Body); w.WriteHeader(418) },
		"odd status":   func(w http.ResponseWriter, _ *http.Request) { w.WriteHeader(299); io.WriteString(w, "x") },
		"no content":   func(w http.ResponseWriter, _ *http.Request) { w.WriteHeader(204); w.Write([]byte("x")) },
		"not modified": func(w http.ResponseWriter, _ *http.Request) { w.Header().Set("Etag", "1"); w.WriteHeader(304) },
		"twice":        func(w http.ResponseWriter, _ *http.Request) { w.WriteHeader(201); w.WriteHeader(202) },
		"untyped":      func(w http.ResponseWriter, _ *http.Request) { io.WriteString(w, "<html>") },
		"no type": func(w http.ResponseWriter, _ *http.Request) {
			w.Header()["Content-Type"] = nil
			io.WriteString(w, "<html>")
		},
		"long": func(w http.ResponseWriter, _ *http.Request) { io.WriteString(w, long) },
		"pieces": func(w http.ResponseWriter, _ *http.Request) {
			for i := range 100 {
				io.WriteString(w, long[i:i*7])
			}
		},
		"flushed": func(w http.ResponseWriter, _ *http.Request) {
			io.WriteString(w, "a")
			w.(http.Flusher).Flush()
			io.WriteString(w, "b")
		},
		"flushed empty": func(w http.ResponseWriter, _ *http.Request) { w.(http.Flusher).Flush() },
		"length": func(w http.ResponseWriter, _ *http.Request) {
			w.Header().Set("Content-Length", "65536")
			io.WriteString(w, long)
		},
		"length, short": func(w http.ResponseWriter, _ *http.Request) {
			w.Header().Set("Content-Length", "9")
			io.WriteString(w, "abc")
		},
		"length, over": func(w http.ResponseWriter, _ *http.Request) {
			w.Header().Set("Content-Length", "3")
			io.WriteString(w, "abc")
			io.WriteString(w, "d")
		},
		"bad length": func(w http.ResponseWriter, _ *http.Request) {
			w.Header().Set("Content-Length", "x")
			io.WriteString(w, "abc")
		},
		"close": func(w http.ResponseWriter, _ *http.Request) {
			w.Header().Set("Connection", "close")
			io.WriteString(w, "abc")
		},
		"early hints": func(w http.ResponseWriter, _ *http.Request) {
			w.Header().Set("Link", "x")
			w.WriteHeader(103)
			w.Header().Del("Link")
			io.WriteString(w, "abc")
		},
		"bad fields": func(w http.ResponseWriter, _ *http.Request) {
			w.Header()["X-Split"] = []string{"a\r\nX-Evil: 1", "b"}
			w.Header()["Bad Name"] = []string{"1"}
			io.WriteString(w, "abc")
		},
		"abort": func(http.ResponseWriter, *http.Request) { panic(http.ErrAbortHandler) },
		"abort, midway": func(w http.ResponseWriter, _ *http.Request) {
			io.WriteString(w, "a")
			w.(http.Flusher).Flush()
			panic(http.ErrAbortHandler)
		},
		"closed body": func(w http.ResponseWriter, r *http.Request) {
			r.Body.Close()
			_, err := r.Body.Read(make([]byte, 1))
			fmt.Fprint(w, err)
		},
		"read deadlines": func(w http.ResponseWriter, r *http.Request) {
			http.NewResponseController(w).SetReadDeadline(time.Now().Add(time.Minute))
			echo(w, r)
		},
		"write deadline": func(w http.ResponseWriter, r *http.Request) {
			http.NewResponseController(w).SetWriteDeadline(time.Now().Add(time.Minute))
			echo(w, r)
		},
		"hijack": func(w http.ResponseWriter, r *http.Request) {
			io.Copy(io.Discard, r.Body)
			w.WriteHeader(200)
			c, _, err := http.NewResponseController(w).Hijack()
			if err != nil {
				panic(err)
			}
			io.WriteString(c, "2\r\nhi\r\n0\r\n\r\n")
			c.Close()
		},
	} {
		t.Run(name, func(t *testing.T) {
			f := start(t, h)
			for _, body := range []string{"", "hello", long[:9000], strings.Repeat(long, 3)} {
				got, want := seen(t, f.addr, post(body)), seen(t, f.standard, post(body))
				if got != want {
					t.Errorf("with a body of %d bytes:\n%s\nof net/http:\n%s", len(body), got, want)
				}
			}
			if len(f.other) > 0 {
				t.Errorf("given away: %q", <-f.other)
			}
		})
	}
}

// TestPipeline answers requests that came at once, and one that came in pieces.
func TestPipeline(t *testing.T) {
	f := start(t, func(w http.ResponseWriter, r *http.Request) {
		b, _ := io.ReadAll(r.Body)
		w.Write(b)
	})
	c := dial(t, f.addr)
	var want []string
	var all strings.Builder
	for i := range 20 {
		body := strings.Repeat(string(rune('a'+i)), i*100)
		want = append(want, body)
		all.WriteString(post(body))
	}
	go func() {
		for s := all.String(); s != ""; {
			n := min(len(s), 77)
			io.WriteString(c, s[:n])
			s = s[n:]
		}
	}()
	r := bufio.NewReader(c)
	for i, w := range want {
		res, err := http.ReadResponse(r, nil)
		if err != nil {
			t.Fatal(err)
		}
		if b, err := io.ReadAll(res.Body); err != nil || string(b) != w {
			t.Fatalf("answer %d: %q, %v", i, b, err)
		}
	}
}

// TestOther gives away what is unusual, whole, also after usual requests.
func TestOther(t *testing.T) {
	f := start(t, func(w http.ResponseWriter, _ *http.Request) { io.WriteString(w, "ok") })
	for _, s := range []string{"GET / HTTP/1.1\r\nHost: a\r\n\r\n", "PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n", "\x16\x03\x01", "POST /a HTTP/1.0\r\n\r\n",
		with("Expect: 100-continue"), "POST /" + strings.Repeat("a", 5000)} {
		c := dial(t, f.addr)
		io.WriteString(c, post("")+s)
		got := <-f.other
		for !strings.HasPrefix(s, got) || len(got) < min(len(s), 3) {
			t.Fatalf("%q was given away with %q", s, got)
		}
	}
	if n := f.visits.leaves.Load(); n > 0 {
		t.Errorf("%d connections left, which go on elsewhere", n)
	}
}

// TestSlowHead ends a connection whose head does not come.
func TestSlowHead(t *testing.T) {
	f := start(t, func(http.ResponseWriter, *http.Request) { t.Error("a request was served") })
	for _, s := range []string{"", "PO", "POST /a HTTP/1.1\r\nHost: a\r\n"} {
		c := dial(t, f.addr)
		io.WriteString(c, s)
		if n, err := c.Read(make([]byte, 1)); n != 0 || !errors.Is(err, io.EOF) {
			t.Errorf("%q: %d, %v", s, n, err)
		}
	}
}

// TestShutdown lets answers be finished, closes what idles, and takes nothing new.
func TestShutdown(t *testing.T) {
	entered, let := make(chan struct{}), make(chan struct{})
	f := start(t, func(w http.ResponseWriter, r *http.Request) {
		if r.ContentLength == 4 {
			close(entered)
			<-let
		}
		io.WriteString(w, "ok")
	})
	idle, busy := dial(t, f.addr), dial(t, f.addr)
	io.WriteString(idle, post(""))
	ir := bufio.NewReader(idle)
	res, err := http.ReadResponse(ir, nil)
	if err != nil {
		t.Fatal(err)
	}
	io.Copy(io.Discard, res.Body)
	io.WriteString(busy, post("wait"))
	<-entered
	done := make(chan error)
	go func() { done <- f.Shutdown(context.Background()) }()
	if _, err := ir.ReadByte(); err != io.EOF {
		t.Error("an idle connection stays:", err)
	}
	select {
	case <-done:
		t.Error("it did not wait")
	default:
	}
	close(let)
	if res, err = http.ReadResponse(bufio.NewReader(busy), nil); err != nil || !res.Close {
		t.Errorf("%+v %v", res, err)
	}
	if err := <-done; err != nil {
		t.Error(err)
	}
	if f.visits.leaves.Load() != 2 {
		t.Error(f.visits.leaves.Load(), "connections left")
	}
}

// TestClose ends what runs.
func TestClose(t *testing.T) {
	entered, ended := make(chan struct{}), make(chan struct{})
	f := start(t, func(_ http.ResponseWriter, r *http.Request) {
		close(entered)
		<-r.Context().Done()
		close(ended)
	})
	c := dial(t, f.addr)
	io.WriteString(c, post("x"))
	<-entered
	f.Close()
	<-ended
}

// oneConn is a listener that accepts one connection and is closed then.
type oneConn struct {
	net.Listener
	c net.Conn
}

func (l *oneConn) Accept() (net.Conn, error) {
	c := l.c
	if l.c = nil; c == nil {
		return nil, net.ErrClosed
	}
	return c, nil
}

// TestOpen notes what was accepted before Serve returns, and closes what is one too many.
func TestOpen(t *testing.T) {
	near, far := net.Pipe()
	opened := false
	s := New(Options{Open: func(net.Conn) (context.Context, Visitor) { opened = true; return nil, nil }})
	if err := s.Serve(&oneConn{c: near}); err != net.ErrClosed || !opened {
		t.Errorf("%v, noted %v", err, opened)
	}
	if _, err := far.Read(make([]byte, 1)); err != io.EOF {
		t.Errorf("one too many is open: %v", err)
	}
}
