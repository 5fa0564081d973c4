// SPDX-License-Identifier: Apache-2.0

package relay

import (
	"bufio"
	"bytes"
	"context"
	"crypto/tls"
	"crypto/x509"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"
)

// upstream is a replica that runs a script for each connection.
type upstream struct {
	t     *testing.T
	l     net.Listener
	url   string
	conns atomic.Int64
	wg    sync.WaitGroup
}

// serve starts a replica; n counts its connections from 1.
func serve(t *testing.T, script func(n int, c net.Conn, r *bufio.Reader)) *upstream {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	u := &upstream{t: t, l: l, url: "http://" + l.Addr().String()}
	u.wg.Go(func() {
		for {
			c, err := l.Accept()
			if err != nil {
				return
			}
			n := int(u.conns.Add(1))
			u.wg.Go(func() {
				defer c.Close()
				script(n, c, bufio.NewReader(c))
			})
		}
	})
	t.Cleanup(func() { l.Close(); u.wg.Wait() })
	return u
}

// request reads one request; nil at the end of the connection.
func request(r *bufio.Reader) *http.Request {
	req, err := http.ReadRequest(r)
	if err != nil {
		return nil
	}
	body, err := io.ReadAll(req.Body)
	if err != nil {
		return nil
	}
	req.Body = io.NopCloser(bytes.NewReader(body))
	return req
}

// answering serves every request with the same bytes; "CLOSE" at their end closes.
func answering(t *testing.T, answer string) *upstream {
	text, closes := strings.CutSuffix(answer, "CLOSE")
	return serve(t, func(_ int, c net.Conn, r *bufio.Reader) {
		for request(r) != nil {
			if io.WriteString(c, text); closes {
				return
			}
		}
	})
}

func client(t *testing.T, o Options) *Client {
	o.Epoll = testEpoll
	c := New(o)
	t.Cleanup(c.Close)
	return c
}

func get() *Request { return &Request{Method: "GET", Target: "/x", Polled: testEpoll} }

func post(body string) *Request {
	return &Request{Method: "POST", Target: "/x", Body: [3][]byte{[]byte(body)}, Polled: testEpoll}
}

// plain is a sink that passes everything.
type plain struct {
	bytes, writes int
	last          string
}

func (p *plain) Payload(b []byte) []byte { p.bytes += len(b); return b }
func (p *plain) Written(time.Time)       { p.writes++ }
func (p *plain) End(e Ending) []byte {
	if p.last == "" || e == EndComplete {
		return nil
	}
	return []byte(p.last)
}

// exchange sends r and returns status, header, body and ending.
func exchange(t *testing.T, c *Client, base string, r *Request) (*httptest.ResponseRecorder, Ending, error) {
	t.Helper()
	a, err := c.Send(context.Background(), base, r)
	if err != nil {
		return nil, 0, err
	}
	w := httptest.NewRecorder()
	a.CopyHeader(w.Header())
	w.WriteHeader(a.Status)
	e, _ := a.Relay(w, &plain{last: "LAST"})
	return w, e, nil
}

func TestFramings(t *testing.T) {
	for _, c := range []struct{ name, method, answer, body, length string }{
		{"length", "GET", "HTTP/1.1 200 OK\r\nContent-Length: 5\r\n\r\nhello", "hello", "5"},
		{"no body", "GET", "HTTP/1.1 200 OK\r\nContent-Length: 0\r\n\r\n", "", "0"},
		{"chunked", "GET", "HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n3\r\nhel\r\n2\r\nlo\r\n0\r\n\r\n", "hello", ""},
		{"extension and trailer", "GET", "HTTP/1.1 200 OK\r\ntransfer-encoding: Chunked\r\n\r\n3;a=b\r\nhel\r\n02 ;q=\"x\"\r\nlo\r\n0\r\nX-T: 1\r\nX-U: 2\r\n\r\n", "hello", ""},
		{"empty chunked", "GET", "HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n", "", ""},
		{"to the end", "GET", "HTTP/1.1 200 OK\r\n\r\nhelloCLOSE", "hello", ""},
		{"http 1.0", "GET", "HTTP/1.0 200 OK\r\nContent-Length: 5\r\n\r\nhelloCLOSE", "hello", "5"},
		{"empty to the end", "GET", "HTTP/1.1 200 OK\r\n\r\nCLOSE", "", ""},
		{"head", "HEAD", "HTTP/1.1 200 OK\r\nContent-Length: 5\r\n\r\n", "", "5"},
		{"204", "GET", "HTTP/1.1 204 No Content\r\n\r\n", "", ""},
		{"304", "GET", "HTTP/1.1 304 Not Modified\r\nContent-Length: 99\r\n\r\n", "", "99"},
		{"no reason", "GET", "HTTP/1.1 200\r\nContent-Length: 5\r\n\r\nhello", "hello", "5"},
		{"bare line ends", "GET", "HTTP/1.1 200 OK\nContent-Length: 5\n\nhello", "hello", "5"},
		{"informational", "GET", "HTTP/1.1 100 Continue\r\n\r\nHTTP/1.1 103 Early Hints\r\nLink: x\r\n\r\nHTTP/1.1 200 OK\r\nContent-Length: 5\r\n\r\nhello", "hello", "5"},
	} {
		t.Run(c.name, func(t *testing.T) {
			u := answering(t, c.answer)
			cl := client(t, Options{})
			for range 3 {
				r := get()
				r.Method = c.method
				hints := 0
				r.Informational = func(status int, h http.Header) {
					if hints++; status != 103 || h.Get("Link") != "x" {
						t.Errorf("informational %d %v", status, h)
					}
				}
				w, e, err := exchange(t, cl, u.url, r)
				if err != nil || e != EndComplete {
					t.Fatal(e, err)
				}
				if w.Body.String() != c.body || w.Header().Get("Content-Length") != c.length {
					t.Errorf("body %q, header %v", w.Body, w.Header())
				}
				if c.name == "informational" && hints != 1 {
					t.Errorf("%d informational answers", hints)
				}
			}
			want := int64(1)
			if strings.HasSuffix(c.answer, "CLOSE") {
				want = 3
			}
			if n := u.conns.Load(); n != want {
				t.Errorf("%d connections, want %d", n, want)
			}
		})
	}
}

func TestHeadersPerHop(t *testing.T) {
	var got http.Header
	u := serve(t, func(_ int, c net.Conn, r *bufio.Reader) {
		for req := request(r); req != nil; req = request(r) {
			got = req.Header
			got.Set("Host", req.Host)
			got.Set("Target", req.RequestURI)
			io.WriteString(c, "HTTP/1.1 200 OK\r\nConnection: keep-alive, X-Hop\r\nX-Hop: 1\r\nKeep-Alive: timeout=60\r\nX-Two: a\r\nx-two: b\r\nContent-Length: 2\r\nProxy-Authenticate: x\r\n\r\nok")
		}
	})
	r := post("body")
	r.Target = "/v1/x?a=1&b=%20"
	r.Header = http.Header{"Connection": {"close, X-Mine"}, "X-Mine": {"1"}, "Te": {"trailers"}, "Upgrade": {"h2c"}, "X-Custom": {"a", "b"},
		"Expect": {"100-continue"}, "Content-Length": {"99"}, "Authorization": {"Bearer x"}}
	w, _, err := exchange(t, client(t, Options{}), u.url+"/base/", r)
	if err != nil {
		t.Fatal(err)
	}
	h := w.Header()
	if h.Get("X-Hop") != "" || h.Get("Keep-Alive") != "" || h.Get("Connection") != "" || h.Get("Proxy-Authenticate") != "" || len(h["X-Two"]) != 2 {
		t.Errorf("answer: %v", h)
	}
	if got.Get("X-Mine") != "" || got.Get("Te") != "" || got.Get("Upgrade") != "" || got.Get("Expect") != "" || got.Get("Content-Length") != "4" ||
		len(got["X-Custom"]) != 2 || got.Get("Authorization") != "Bearer x" || got.Get("Target") != "/base/v1/x?a=1&b=%20" || "http://"+got.Get("Host") != u.url {
		t.Errorf("request: %v", got)
	}
}

func TestAnswersThatAreNone(t *testing.T) {
	for _, answer := range []string{
		"garbage\r\n\r\n", "HTTP/2 200 OK\r\n\r\n", "HTTP/1.1 2x0 OK\r\n\r\n", "HTTP/1.1 200 OK\r\nno colon\r\n\r\n",
		"HTTP/1.1 200 OK\r\nBad Name: x\r\n\r\n", "HTTP/1.1 200 OK\r\nA: b\x00\r\n\r\n", "HTTP/1.1 200 OK\r\nA: b\r\n folded\r\n\r\n",
		"HTTP/1.1 200 OK\r\nContent-Length: 5\r\nContent-Length: 6\r\n\r\nhello!", "HTTP/1.1 200 OK\r\nContent-Length: -5\r\n\r\n",
		"HTTP/1.1 200 OK\r\nContent-Length: 5x\r\n\r\nhello", "HTTP/1.1 200 OK\r\nTransfer-Encoding: gzip, chunked\r\n\r\n0\r\n\r\n",
		"HTTP/1.1 101 Switching Protocols\r\nUpgrade: x\r\n\r\n", strings.Repeat("HTTP/1.1 103 x\r\n\r\n", 20),
		"HTTP/1.1 200 OK\r\nX: " + strings.Repeat("y", 80<<10) + "\r\n\r\n",
	} {
		u := answering(t, answer+"CLOSE")
		_, _, err := exchange(t, client(t, Options{}), u.url, get())
		var f *Failure
		if !errors.As(err, &f) || f.Kind != FailBadAnswer {
			t.Errorf("%.40q: %v", answer, err)
		}
		if n := u.conns.Load(); n != 1 {
			t.Errorf("%.40q: sent %d times", answer, n)
		}
	}
}

func TestLongHead(t *testing.T) {
	long := strings.Repeat("y", 40<<10)
	u := answering(t, "HTTP/1.1 200 OK\r\nX: "+long+"\r\nContent-Length: 5\r\n\r\nhello")
	c := client(t, Options{})
	for range 2 {
		w, _, err := exchange(t, c, u.url, get())
		if err != nil || w.Header().Get("X") != long || w.Body.String() != "hello" {
			t.Fatal(err)
		}
	}
}

func TestBrokenBodies(t *testing.T) {
	for _, c := range []struct{ answer, body string }{
		{"HTTP/1.1 200 OK\r\nContent-Length: 50\r\n\r\nhel", "helLAST"},
		{"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n3\r\nhel\r\n", "helLAST"},
		{"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n3\r\nhelXX", "helLAST"},
		{"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\nfffffffffffffffff\r\nhel", "LAST"},
		{"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n3\nhel", "LAST"},
	} {
		u := answering(t, c.answer+"CLOSE")
		w, e, err := exchange(t, client(t, Options{}), u.url, get())
		if err != nil || e != EndBroken || w.Body.String() != c.body {
			t.Errorf("%q: %v %v", c.answer, e, err)
		}
	}
}

func TestNoByteOfTheBodyIsNoAnswer(t *testing.T) {
	for _, answer := range []string{"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\nCLOSE", "HTTP/1.1 200 OK\r\nContent-Length: 5\r\n\r\nCLOSE", "HTTP/1.1 20CLOSE", "CLOSE"} {
		u := answering(t, answer)
		_, _, err := exchange(t, client(t, Options{}), u.url, get())
		var f *Failure
		if !errors.As(err, &f) || f.Kind != FailBroken || f.Stale || u.conns.Load() != 1 {
			t.Errorf("%q: %v", answer, err)
		}
	}
}

func TestConnectFailure(t *testing.T) {
	l, _ := net.Listen("tcp", "127.0.0.1:0")
	l.Close()
	for _, base := range []string{"http://" + l.Addr().String(), "ftp://x", "http://", "://"} {
		_, err := client(t, Options{}).Send(context.Background(), base, get())
		var f *Failure
		if !errors.As(err, &f) || f.Kind != FailConnect {
			t.Errorf("%s: %v", base, err)
		}
	}
}

const ok = "HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nok"

func TestIdleConnectionClosedByReplica(t *testing.T) {
	closed := make(chan struct{})
	u := serve(t, func(n int, c net.Conn, r *bufio.Reader) {
		for request(r) != nil {
			io.WriteString(c, ok)
			if n == 1 {
				c.Close()
				close(closed)
				return
			}
		}
	})
	c := client(t, Options{})
	exchange(t, c, u.url, get())
	<-closed
	waitFor(t, func() bool { // the FIN is on its way
		w, _, err := exchange(t, c, u.url, get())
		return err == nil && w.Body.String() == "ok" && c.Stats().FoundClosed+c.Stats().Stale == 1
	})
}

func TestRaceOfAReusedConnection(t *testing.T) {
	u := serve(t, func(n int, c net.Conn, r *bufio.Reader) {
		for i := 0; request(r) != nil; i++ {
			if n == 1 && i == 1 {
				return // took the request and closed: the race of keep-alive
			}
			io.WriteString(c, ok)
		}
	})
	c := client(t, Options{})
	for i := range 3 {
		w, _, err := exchange(t, c, u.url, post("x"))
		if err != nil || w.Body.String() != "ok" {
			t.Fatal(i, err)
		}
	}
	if s := c.Stats(); s.Stale != 1 || s.Dialed != 2 {
		t.Errorf("%+v", s)
	}
}

func TestRaceIsRetriedOnce(t *testing.T) {
	u := serve(t, func(n int, c net.Conn, r *bufio.Reader) {
		for i := 0; request(r) != nil && n == 1 && i == 0; i++ {
			io.WriteString(c, ok)
		}
	})
	c := client(t, Options{})
	exchange(t, c, u.url, get())
	_, err := c.Send(context.Background(), u.url, get())
	var f *Failure
	if !errors.As(err, &f) || f.Kind != FailBroken || !f.Stale || u.conns.Load() != 2 {
		t.Errorf("%v, %d connections", err, u.conns.Load())
	}
}

func TestTimeouts(t *testing.T) {
	release := make(chan struct{})
	defer close(release) // before the clean-up that waits for the replicas
	hang := func(first string) *upstream {
		return serve(t, func(_ int, c net.Conn, r *bufio.Reader) {
			request(r)
			io.WriteString(c, first)
			<-release
		})
	}
	o := Options{FirstByte: 30 * time.Millisecond, Stall: 30 * time.Millisecond}
	for _, first := range []string{"", "HTTP/1.1 200", "HTTP/1.1 200 OK\r\nContent-Length: 5\r\n\r\n"} {
		_, err := client(t, o).Send(context.Background(), hang(first).url, get())
		var f *Failure
		if !errors.As(err, &f) || f.Kind != FailTimeout {
			t.Errorf("%q: %v", first, err)
		}
	}
	o = Options{Stall: 30 * time.Millisecond}
	w, e, err := exchange(t, client(t, o), hang("HTTP/1.1 200 OK\r\nContent-Length: 5\r\n\r\nhe").url, get())
	if err != nil || e != EndStalled || w.Body.String() != "heLAST" {
		t.Errorf("%v %v", e, err)
	}
	o = Options{Connect: 10 * time.Millisecond, Dial: func(ctx context.Context, _, _ string) (net.Conn, error) {
		<-ctx.Done()
		return nil, ctx.Err()
	}}
	_, err = client(t, o).Send(context.Background(), "http://x", get())
	var f *Failure
	if !errors.As(err, &f) || f.Kind != FailConnect {
		t.Errorf("%v", err)
	}
}

func TestClientLeaves(t *testing.T) {
	for _, first := range []string{"", "HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n", "HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n2\r\nhi\r\n"} {
		ctx, leave := context.WithCancel(context.Background())
		seen := make(chan struct{})
		u := serve(t, func(_ int, c net.Conn, r *bufio.Reader) {
			request(r)
			io.WriteString(c, first)
			if !strings.Contains(first, "hi") {
				leave()
			}
			r.ReadByte()
			close(seen)
		})
		c := client(t, Options{})
		a, err := c.Send(ctx, u.url, get())
		if err == nil {
			leave()
			if e, _ := a.Relay(httptest.NewRecorder(), &plain{last: "LAST"}); e != EndClientGone {
				t.Errorf("%q: %v", first, e)
			}
		} else if f := err.(*Failure); f.Kind != FailClientGone {
			t.Errorf("%q: %v", first, err)
		}
		<-seen
		if s := c.Stats(); s.Open != 0 || s.Idle != 0 {
			t.Errorf("%q: %+v", first, s)
		}
	}
}

func TestIdleConnectionsAreClosed(t *testing.T) {
	ended := make(chan struct{})
	u := serve(t, func(_ int, c net.Conn, r *bufio.Reader) {
		for request(r) != nil {
			io.WriteString(c, ok)
		}
		close(ended)
	})
	c := client(t, Options{Idle: 20 * time.Millisecond})
	exchange(t, c, u.url, get())
	<-ended
	waitFor(t, func() bool { return c.Stats().Idle == 0 && c.Stats().Open == 0 })
}

func TestKeepAliveHeaderLowersIdle(t *testing.T) {
	u := answering(t, "HTTP/1.1 200 OK\r\nKeep-Alive: timeout=1, max=5\r\nContent-Length: 2\r\n\r\nok")
	c := client(t, Options{})
	for range 3 {
		exchange(t, c, u.url, get())
	}
	if u.conns.Load() != 3 || c.Stats().Idle != 0 {
		t.Errorf("%d connections", u.conns.Load())
	}
}

func TestTLS(t *testing.T) {
	srv := httptest.NewTLSServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		b, _ := io.ReadAll(r.Body)
		fmt.Fprintf(w, "%s %d", r.Proto, len(b))
	}))
	t.Cleanup(srv.Close)
	roots := x509.NewCertPool()
	roots.AddCert(srv.Certificate())
	c := client(t, Options{TLS: &tls.Config{RootCAs: roots}})
	for range 3 {
		w, _, err := exchange(t, c, srv.URL, post(strings.Repeat("x", 100000)))
		if err != nil || w.Body.String() != "HTTP/1.1 100000" {
			t.Fatal(err)
		}
	}
	if s := c.Stats(); s.Dialed != 1 {
		t.Errorf("%+v", s)
	}
	_, err := client(t, Options{}).Send(context.Background(), srv.URL, get())
	var f *Failure
	if !errors.As(err, &f) || f.Kind != FailConnect {
		t.Errorf("unknown authority: %v", err)
	}
}

func TestBodyInParts(t *testing.T) {
	got := make(chan string, 4)
	u := serve(t, func(_ int, c net.Conn, r *bufio.Reader) {
		for req := request(r); req != nil; req = request(r) {
			b, _ := io.ReadAll(req.Body)
			got <- string(b)
			io.WriteString(c, ok)
		}
	})
	c := client(t, Options{})
	for _, n := range []int{1, 100, 400 << 10} {
		parts := [3][]byte{[]byte(strings.Repeat("a", n)), []byte(strings.Repeat("b", n)), []byte(strings.Repeat("c", n))}
		if _, _, err := exchange(t, c, u.url, &Request{Method: "POST", Target: "/", Body: parts}); err != nil {
			t.Fatal(err)
		}
		if s := <-got; s != string(parts[0])+string(parts[1])+string(parts[2]) {
			t.Errorf("%d bytes came of %d", len(s), 3*n)
		}
	}
}

func TestRefusedBeforeTheBodyWasRead(t *testing.T) {
	u := serve(t, func(_ int, c net.Conn, r *bufio.Reader) {
		if _, err := http.ReadRequest(r); err == nil {
			io.WriteString(c, "HTTP/1.1 413 Too Large\r\nConnection: close\r\nContent-Length: 3\r\n\r\nbig")
			c.(*net.TCPConn).CloseWrite()
			io.CopyN(io.Discard, r, 1<<20)
		}
	})
	w, _, err := exchange(t, client(t, Options{}), u.url, post(strings.Repeat("x", 20<<20)))
	if err != nil || w.Code != 413 || w.Body.String() != "big" {
		t.Fatal(err)
	}
}

func TestReadAll(t *testing.T) {
	u := answering(t, "HTTP/1.1 503 Busy\r\nTransfer-Encoding: chunked\r\n\r\n5\r\nhello\r\n0\r\n\r\n")
	c := client(t, Options{})
	for _, limit := range []int{5, 4} {
		a, err := c.Send(context.Background(), u.url, get())
		if err != nil {
			t.Fatal(err)
		}
		b, err := a.ReadAll(limit, time.Minute)
		if (err == nil) != (limit == 5) || limit == 5 && string(b) != "hello" {
			t.Errorf("limit %d: %q %v", limit, b, err)
		}
	}
	if s := c.Stats(); s.Idle != 0 || s.Open != 0 {
		t.Errorf("%+v", s)
	}
}

// waitFor waits until f is true; it fails after long.
func waitFor(t *testing.T, f func() bool) {
	t.Helper()
	for end := time.Now().Add(time.Minute); !f(); time.Sleep(time.Millisecond) {
		if time.Now().After(end) {
			t.Fatal("it did not come true")
		}
	}
}
