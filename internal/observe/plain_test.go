// SPDX-License-Identifier: Apache-2.0

package observe

import (
	"bufio"
	"context"
	"fmt"
	"io"
	"net"
	"net/http"
	"strings"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/penstock-project/penstock/internal/fleet"
)

// spoken is a replica that says the same to each request.
type spoken struct {
	url             string
	text            string
	closes, hangs   bool
	accepted, asked atomic.Int32
	heads           chan http.Header
	done            chan struct{}
}

// newSpoken makes one. Where text ends in CLOSE the connection is closed behind it, and
// where it ends in HANG nothing more is said or read.
func newSpoken(t *testing.T, text string) *spoken {
	s := &spoken{url: "http://a:1", heads: make(chan http.Header, 100), done: make(chan struct{})}
	s.text, s.closes = strings.CutSuffix(text, "CLOSE")
	s.text, s.hangs = strings.CutSuffix(s.text, "HANG")
	t.Cleanup(func() { close(s.done) })
	return s
}

func (s *spoken) serve(c net.Conn) {
	defer c.Close()
	s.accepted.Add(1)
	in := bufio.NewReader(c)
	for {
		req, err := http.ReadRequest(in)
		if err != nil {
			return
		}
		s.asked.Add(1)
		s.heads <- req.Header
		io.WriteString(c, s.text)
		if s.hangs {
			<-s.done
		}
		if s.closes {
			return
		}
	}
}

// dial connects by a pipe, which needs no time: for a bubble of synctest.
func (s *spoken) dial(context.Context, string, string) (net.Conn, error) {
	a, b := net.Pipe()
	go s.serve(b)
	return a, nil
}

// speak starts one that listens.
func speak(t *testing.T, text string) *spoken {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	s := newSpoken(t, text)
	s.url = "http://" + l.Addr().String()
	t.Cleanup(func() { l.Close() })
	go func() {
		for {
			c, err := l.Accept()
			if err != nil {
				return
			}
			go s.serve(c)
		}
	}()
	return s
}

const few = "vllm:num_requests_running 3\nvllm:num_requests_waiting 2\n"

func framed(head string) string {
	return fmt.Sprintf("HTTP/1.1 200 OK\r\n%sContent-Length: %d\r\n\r\n%s", head, len(few), few)
}

// Both clients say the same of a replica, whatever it answers.
func TestPlainJudgesAsTransport(t *testing.T) {
	for _, c := range []struct {
		name, text string
		running    bool   // a scrape reads the metrics
		scrape     string // in the error of a scrape
	}{
		{"content-length", framed(""), true, ""},
		{"chunked", "HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n1c\r\nvllm:num_requests_running 3\n\r\n1c\r\nvllm:num_requests_waiting 2\n\r\n0\r\nX: y\r\n\r\n", true, ""},
		{"to the end of the connection", "HTTP/1.1 200 OK\r\n\r\n" + few + "CLOSE", true, ""},
		{"HTTP/1.0", "HTTP/1.0 200 OK\r\n\r\n" + few + "CLOSE", true, ""},
		{"says close", framed("Connection: close\r\n") + "CLOSE", true, ""},
		{"an informational answer first", "HTTP/1.1 103 Early Hints\r\nLink: x\r\n\r\n" + framed(""), true, ""},
		{"no metrics", "HTTP/1.1 404 Not Found\r\nContent-Length: 4\r\n\r\nnope", false, "404"},
		{"an error", "HTTP/1.1 500 Oops\r\nContent-Length: 0\r\n\r\n", false, "answers 500"},
		{"loading", "HTTP/1.1 503 Wait\r\nContent-Length: 0\r\n\r\n", false, "answers 503"},
		{"a redirect", "HTTP/1.1 302 Found\r\nLocation: http://127.0.0.1:1/\r\nContent-Length: 0\r\n\r\n", false, "answers 302"},
		{"a key is wanted", "HTTP/1.1 401 No\r\nContent-Length: 0\r\n\r\n", false, "answers 401"},
		{"closes", "CLOSE", false, "closed without an answer"},
		{"breaks off in the head", "HTTP/1.1 200 OK\r\nContent-LenCLOSE", false, "missing colon"},
		{"breaks off in the body", "HTTP/1.1 200 OK\r\nContent-Length: 999\r\n\r\n" + few + "CLOSE", false, "closed without an answer"},
		{"garbage", "SSH-2.0-OpenSSH_9.2\r\nCLOSE", false, "malformed HTTP"},
		{"broken framing", "HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\nzz\r\nCLOSE", false, "chunk"},
		{"two lengths", "HTTP/1.1 200 OK\r\nContent-Length: 1\r\nContent-Length: 2\r\n\r\nabCLOSE", false, "Content-Length"},
		{"an endless head", "HTTP/1.1 200 OK\r\n" + strings.Repeat("A: "+strings.Repeat("y", 32<<10)+"\r\n", 64) + "CLOSE", false, ""},
	} {
		synctest.Test(t, func(t *testing.T) {
			type said struct {
				v              verdict
				reason, scrape string
				running        fleet.Value
			}
			ask := func(plainly bool) (s said) {
				r := newSpoken(t, c.text)
				ob := New(Options{Source: Static{}, Dial: r.dial})
				defer ob.client.CloseIdleConnections()
				p := prober{base: r.url, client: ob.client}
				if plainly {
					p.plain = newPlain(r.url, "", ob.dial)
					defer p.plain.close()
				}
				s.v, s.reason = p.health(t.Context())
				for range 3 {
					var sig fleet.Signals
					if _, err := p.scrape(t.Context(), EngineUnknown, answerTimeout, func() fleet.Time { return testNow }, &sig); err != nil {
						s.scrape = err.Error()
					}
					s.running = sig.Running
				}
				return s
			}
			got, want := ask(true), ask(false)
			if c.name == "an endless head" { // each says so in its own words
				if got.scrape == "" || got.v == lookReady || want.scrape == "" || want.v == lookReady {
					t.Errorf("%s: said %+v and %+v", c.name, got, want)
				}
				return
			}
			if got != want {
				t.Errorf("%s: said %+v, http.Transport says %+v", c.name, got, want)
			}
			if got.running.OK() != c.running || !strings.Contains(got.scrape, c.scrape) {
				t.Errorf("%s: said %+v", c.name, got)
			}
		})
	}
}

// One connection serves all questions, and one that the replica closed meanwhile is
// opened again without a word.
func TestPlainKeepsItsConnection(t *testing.T) {
	ask := func(s *spoken, n int) {
		t.Helper()
		ctx, cancel := context.WithCancel(t.Context())
		defer cancel()
		ob := New(Options{Source: Static{}})
		p := prober{base: s.url, client: ob.client, plain: newPlain(s.url, "Bearer k", ob.dial)}
		for i := range n {
			if v, reason := p.health(ctx); v != lookReady {
				t.Fatalf("question %d: %s", i, reason)
			}
			if h := <-s.heads; h.Get("Authorization") != "Bearer k" || h.Get("User-Agent") != "penstock" || h.Get("Accept-Encoding") != "" {
				t.Errorf("asked with %v", h)
			}
		}
		if p.plain == nil {
			t.Error("the plain client was given up")
		}
	}
	s := speak(t, framed(""))
	ask(s, 20)
	if s.accepted.Load() != 1 {
		t.Errorf("%d connections", s.accepted.Load())
	}
	s = speak(t, framed("")+"CLOSE")
	ask(s, 20)
	if s.accepted.Load() != 20 {
		t.Errorf("%d connections, one for each question is right", s.accepted.Load())
	}
}

// What a replica says behind an answer is not taken for the next one.
func TestPlainReadsNoAnswerTwice(t *testing.T) {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	more := make(chan struct{})
	go func() {
		for {
			c, err := l.Accept()
			if err != nil {
				return
			}
			go func() {
				defer c.Close()
				for in := bufio.NewReader(c); ; {
					req, err := http.ReadRequest(in)
					if err != nil {
						return
					}
					fmt.Fprintf(c, "HTTP/1.1 200 OK\r\nContent-Length: %d\r\n\r\n%s", len(req.URL.Path), req.URL.Path)
					if req.URL.Path == "/one" {
						<-more
						io.WriteString(c, "HTTP/1.1 200 OK\r\nContent-Length: 6\r\n\r\n/extra")
					}
				}
			}()
		}
	}()
	p := newPlain("http://"+l.Addr().String(), "", (&net.Dialer{}).DialContext)
	for _, target := range []string{"/one", "/two", "/three"} {
		res, err := p.get(t.Context(), target, time.Now().Add(time.Minute))
		if err != nil {
			t.Fatal(err)
		}
		body, err := io.ReadAll(res.Body)
		res.Body.Close()
		if err != nil || string(body) != target {
			t.Errorf("%s: %q, %v", target, body, err)
		}
		if target == "/one" {
			close(more)
			for !stirs(p.nc) {
				time.Sleep(time.Millisecond)
			}
		}
	}
	p.close()
}

// An answer that does not come is judged slow, not dead, wherever it stops, and it is
// not asked for again.
func TestPlainIsPatientOnce(t *testing.T) {
	for _, text := range []string{"HANG", "HTTP/1.1 200 OKHANG", "HTTP/1.1 200 OK\r\nContent-Length: 999\r\n\r\nvllmHANG"} {
		synctest.Test(t, func(t *testing.T) {
			s := newSpoken(t, text)
			p := prober{base: s.url, plain: newPlain(s.url, "", s.dial)}
			var sig fleet.Signals
			begin := time.Now()
			_, err := p.scrape(t.Context(), EngineUnknown, answerTimeout, func() fleet.Time { return testNow }, &sig)
			if took := time.Since(begin); err == nil || err.Error() != "/metrics gave no answer in time" || s.asked.Load() != 1 || took != answerTimeout {
				t.Errorf("%q: %v after %d questions and %s", text, err, s.asked.Load(), took)
			}
		})
	}
}

// The end of the observer closes the connection at once, also while a question waits.
func TestPlainEndsWithItsContext(t *testing.T) {
	s := speak(t, "HANG")
	ctx, cancel := context.WithCancel(t.Context())
	ob := New(Options{Source: Static{}})
	p := prober{base: s.url, client: ob.client, plain: newPlain(s.url, "", ob.dial)}
	done := make(chan struct{})
	go func() { p.health(ctx); close(done) }()
	<-s.heads
	cancel()
	<-done
}

// What it cannot do is left to http.Transport.
func TestPlainLeaves(t *testing.T) {
	for _, u := range []string{"https://a:1", "http://u:p@a", "a:1", "http://", "http://a?x=1", "http://b\u00fccher:1", "http://[fe80::1%25eth0]:8000"} {
		if newPlain(u, "", nil) != nil {
			t.Errorf("%q is not for the plain client", u)
		}
	}
	for _, c := range [][3]string{{"http://a", "a:80", ""}, {"http://a:8000/x/", "a:8000", "/x"}, {"http://[::1]:8000", "[::1]:8000", ""}} {
		if p := newPlain(c[0], "", nil); p == nil || p.addr != c[1] || p.path != c[2] {
			t.Errorf("%q: %+v", c[0], p)
		}
	}
	if newPlain("http://a", "Bearer a\r\nX: y", nil) != nil {
		t.Error("a key with a line end would be a header")
	}
}

// A replica that freezes while it is scraped is looked at as soon as the scrape has
// waited for what an answer to a look may take.
func TestFrozenInAScrapeIsNoticed(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		_, f, state := watched(t, []string{"a:1", "b:1"}, Options{})
		for k := range 10 {
			time.Sleep(10*time.Second + time.Duration(k)*270*time.Millisecond)
			f.set("a:1", func(r *fakeReplica) { r.frozen = true })
			time.Sleep(5500 * time.Millisecond)
			e := state()["a:1"]
			if !e.Slow {
				t.Errorf("round %d: not noticed after 5.5 s", k)
			}
			if age := fleet.At(time.Now()).Sub(e.LifeAt); age < 5*time.Second || age > 7*time.Second {
				t.Errorf("round %d: last sign of life %s ago", k, age)
			}
			f.set("a:1", func(r *fakeReplica) { r.frozen = false })
			time.Sleep(20 * time.Second)
		}
	})
}
