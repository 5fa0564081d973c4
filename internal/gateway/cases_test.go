// SPDX-License-Identifier: Apache-2.0

package gateway

import (
	"bufio"
	"context"
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	"regexp"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/penstock-project/penstock/internal/dispatch"
	"github.com/penstock-project/penstock/internal/fleet"
	"github.com/penstock-project/penstock/internal/testinput"
)

// examples splits a file of streams: "### N" lines part them.
func examples(t *testing.T, rel string) map[string]string {
	t.Helper()
	b, err := os.ReadFile(testinput.Shared(t, rel))
	if err != nil {
		t.Fatal(err)
	}
	out := map[string]string{}
	marks := regexp.MustCompile(`(?m)^### (\d+).*\n`).FindAllSubmatchIndex(b, -1)
	for i, p := range marks {
		end := len(b)
		if i+1 < len(marks) {
			end = marks[i+1][0]
		}
		out[string(b[p[2]:p[3]])] = string(b[p[1]:end])
	}
	return out
}

func TestUsageShapes(t *testing.T) {
	for name, text := range examples(t, "cases/39-usage-chunk-shapes/streams.txt") {
		// Cut in the middle of the word usage.
		cut := strings.Index(text, `"usage"`) + 3
		f := newFixture(t, setup{}, says(t, sseHead+chunk(text[:cut])+chunk(text[cut:])+"0\r\n\r\n").url)
		_, body := f.chat(streamReq)
		if body != text {
			t.Errorf("stream %s: bytes changed", name)
		}
		o := f.outcome(1)
		if o.Kind != "ok" || o.PromptTokens == nil || *o.PromptTokens != 98 || *o.OutputTokens != 2 {
			t.Errorf("stream %s: %+v", name, o)
		}
		if f.metric("prompt_tokens_total") != 98 || f.metric("output_tokens_total") != 2 {
			t.Errorf("stream %s: metrics", name)
		}
		f.settled()
	}
}

func TestErrorsWithinStreams(t *testing.T) {
	want := map[string]string{"1": "engine_error", "2": "client_error", "3": "client_error", "4": "truncated"}
	for name, text := range examples(t, "cases/40-midstream-error/streams.txt") {
		answer := sseHead + chunk(text)
		if name == "4" {
			answer += "CLOSE"
		} else {
			answer += "0\r\n\r\n"
		}
		f := newFixture(t, setup{}, says(t, answer).url)
		_, body := f.chat(streamReq)
		o := f.outcome(1)
		if o.Kind != want[name] {
			t.Errorf("stream %s: %+v", name, o)
		}
		if f.metric("ttft_seconds") != 0 {
			t.Errorf("stream %s counts for TTFT", name)
		}
		if name != "4" {
			if body != text {
				t.Errorf("stream %s: %s", name, body)
			}
		} else if rest, ok := strings.CutPrefix(body, text); !ok || !strings.HasPrefix(rest, "\ndata: {\"error\":{") || !strings.HasSuffix(rest, "data: [DONE]\n\n") {
			t.Errorf("stream 4: %q", body)
		}
		f.settled()
	}
}

func TestErrorBeforeTheStreamStaysAStatus(t *testing.T) {
	b, err := os.ReadFile(testinput.Shared(t, "cases/40-midstream-error/upstream-400.http"))
	if err != nil {
		t.Fatal(err)
	}
	head, body, _ := strings.Cut(strings.ReplaceAll(string(b), "\r", ""), "\n\n")
	answer := strings.ReplaceAll(head, "\n", "\r\n") + fmt.Sprintf("\r\ncontent-length: %d\r\n\r\n%s", len(body), body)
	f := newFixture(t, setup{}, says(t, answer).url)
	res, got := f.chat(streamReq)
	if res.StatusCode != 400 || got != body {
		t.Errorf("%d %s", res.StatusCode, got)
	}
}

// However a stream falls short, it does not look complete.
func TestTruncatedStreams(t *testing.T) {
	for _, c := range []struct{ name, path, req, answer, want string }{
		{"end in good order", "/v1/chat/completions", streamReq, stream(token), "data: {\"error\":"},
		{"nothing at all", "/v1/chat/completions", streamReq, stream(), "data: {\"error\":"},
		{"within an event", "/v1/chat/completions", streamReq, sseHead + chunk(token+token[:20]) + "CLOSE", "\n\ndata: {\"error\":"},
		{"within the framing", "/v1/chat/completions", streamReq, sseHead + chunk(token) + "zz\r\nCLOSE", "data: {\"error\":"},
		{"anthropic", "/v1/messages", `{"model":"m","messages":[],"stream":true,"max_tokens":1}`, sseHead + chunk("event: ping\ndata: {\"type\":\"ping\"}\n\n") + "CLOSE", "event: error\ndata: {\"type\":\"error\""},
		{"responses", "/v1/responses", `{"model":"m","input":"x","stream":true}`, sseHead + chunk("data: {\"type\":\"response.created\",\"response\":{\"id\":\"resp_7\"}}\n\n") + "CLOSE", `event: response.failed` + "\n" + `data: {"type":"response.failed","response":{"id":"resp_7"`},
	} {
		f := newFixture(t, setup{}, says(t, c.answer).url)
		res, body := f.post(c.path, c.req)
		if res.StatusCode != 200 || !strings.Contains(body, c.want) {
			t.Errorf("%s: %d %q", c.name, res.StatusCode, body)
		}
		if o := f.outcome(1); o.Kind != "truncated" {
			t.Errorf("%s: %+v", c.name, o)
		}
		f.settled()
	}
	// Behind its own end a stream may lose its connection.
	f := newFixture(t, setup{}, says(t, sseHead+chunk(token+finish+done)+"CLOSE").url)
	if _, body := f.chat(streamReq); body != token+finish+done {
		t.Errorf("%q", body)
	}
	if o := f.outcome(1); o.Kind != "ok" {
		t.Errorf("%+v", o)
	}
	// A cut answer that we cannot add a word to looks cut.
	for _, answer := range []string{
		"HTTP/1.1 200 OK\r\nContent-Type: application/json\r\nContent-Length: 500\r\n\r\n{\"id\":CLOSE",
		strings.Replace(sseHead, "\r\n\r\n", "\r\nContent-Encoding: gzip\r\n\r\n", 1) + chunk("\x1f\x8b") + "CLOSE",
	} {
		f = newFixture(t, setup{}, says(t, answer).url)
		if _, body, err := f.try("/v1/chat/completions", chatBody, "Accept-Encoding", "gzip"); err == nil {
			t.Errorf("a cut answer passed for whole: %q", body)
		}
		if o := f.outcome(1); o.Kind != "truncated" {
			t.Errorf("%+v", o)
		}
		f.settled()
	}
}

// Short streams that answer at once, many at a time: none may be cut. A proxy that
// hands its server's body on while it answers cuts one in ten thousand.
func TestNoShortStreamIsCut(t *testing.T) {
	u := scripted(t, func(c net.Conn, _ *http.Request, _ []byte) bool {
		io.WriteString(c, sseHead+chunk(token))
		io.WriteString(c, chunk(finish))
		_, err := io.WriteString(c, chunk(done)+"0\r\n\r\n")
		return err == nil
	})
	f := newFixture(t, setup{}, u.url)
	tr := &http.Transport{MaxIdleConnsPerHost: 32}
	defer tr.CloseIdleConnections()
	var clients sync.WaitGroup
	for range 32 {
		clients.Go(func() {
			for range 60 {
				res, err := (&http.Client{Transport: tr}).Post(f.url+"/v1/chat/completions", "application/json", strings.NewReader(streamReq))
				if err != nil {
					t.Error(err)
					return
				}
				b, err := io.ReadAll(res.Body)
				res.Body.Close()
				if err != nil || string(b) != token+finish+done {
					t.Errorf("%v %q", err, b)
				}
			}
		})
	}
	clients.Wait()
	f.settled()
}

func TestContentShapesPass(t *testing.T) {
	file, err := os.Open(testinput.Shared(t, "cases/44-content-shapes/requests.jsonl"))
	if err != nil {
		t.Fatal(err)
	}
	defer file.Close()
	var got string
	u := scripted(t, func(c net.Conn, _ *http.Request, body []byte) bool {
		got = string(body)
		io.WriteString(c, jsonAnswer(200, okBody))
		return true
	})
	f := newFixture(t, setup{}, u.url)
	re := regexp.MustCompile(`^\{"case":(\d+),"body":(.*)\}$`)
	for sc := bufio.NewScanner(file); sc.Scan(); {
		m := re.FindStringSubmatch(sc.Text())
		res, body := f.chat(m[2])
		switch m[1] {
		case "9", "10":
			if res.StatusCode != 400 || !strings.Contains(body, `"error":{"message"`) {
				t.Errorf("request %s: %d %s", m[1], res.StatusCode, body)
			}
		default:
			if res.StatusCode != 200 || got != m[2] {
				t.Errorf("request %s: %d, sent on %s", m[1], res.StatusCode, got)
			}
		}
	}
	f.settled()
}

func TestBodySizes(t *testing.T) {
	var length int64
	u := scripted(t, func(c net.Conn, r *http.Request, body []byte) bool {
		length = int64(len(body))
		io.WriteString(c, jsonAnswer(200, okBody))
		return true
	})
	f := newFixture(t, setup{}, u.url)
	for _, n := range []int{32768, 32769, 65537, 131073, 659770, 1100000, 4194305, 20971520, 32 << 20, 32<<20 + 1, 40000000} {
		pre, post := `{"model":"m","messages":[{"role":"user","content":"`, `"}]}`
		body := pre + strings.Repeat("a", n-len(pre)-len(post)) + post
		for _, chunked := range []bool{false, true} {
			if chunked && n != 4194305 && n != 32<<20+1 {
				continue
			}
			var rd io.Reader = strings.NewReader(body)
			if chunked {
				rd = io.MultiReader(rd)
			}
			length = 0
			res, err := http.Post(f.url+"/v1/chat/completions", "application/json", rd)
			if err != nil {
				t.Fatalf("%d bytes: %v", n, err)
			}
			text, _ := io.ReadAll(res.Body)
			res.Body.Close()
			if n <= 32<<20 {
				if res.StatusCode != 200 || length != int64(n) {
					t.Errorf("%d bytes: %d, %d sent on", n, res.StatusCode, length)
				}
			} else if res.StatusCode != 413 || length != 0 || !strings.Contains(string(text), "33554432") || !strings.Contains(string(text), "request_too_large") || res.Close != chunked {
				t.Errorf("%d bytes: %d, close %v, %s", n, res.StatusCode, res.Close, text)
			}
		}
	}
	f.settled()
}

func TestLargeAnswer(t *testing.T) {
	const n = 43994856
	u := scripted(t, func(c net.Conn, _ *http.Request, _ []byte) bool {
		fmt.Fprintf(c, "HTTP/1.1 200 OK\r\nContent-Type: application/json\r\nContent-Length: %d\r\n\r\n", n)
		io.CopyN(c, strings.NewReader(`{"data":[`+strings.Repeat("0.125,", n/6+2)), n)
		return true
	})
	f := newFixture(t, setup{}, u.url)
	res, err := http.Post(f.url+"/v1/embeddings", "application/json", strings.NewReader(`{"model":"m","input":"x"}`))
	if err != nil {
		t.Fatal(err)
	}
	defer res.Body.Close()
	if got, err := io.Copy(io.Discard, res.Body); got != n || err != nil {
		t.Errorf("%d bytes came, %v", got, err)
	}
	f.settled()
}

// leaver is a client that can leave at any moment, or close its sending side only.
type leaver struct {
	*net.TCPConn
	r *bufio.Reader
}

func leave(t *testing.T, f *fixture, body string) *leaver {
	t.Helper()
	c, err := net.Dial("tcp", strings.TrimPrefix(f.url, "http://"))
	if err != nil {
		t.Fatal(err)
	}
	fmt.Fprintf(c, "POST /v1/chat/completions HTTP/1.1\r\nHost: x\r\nContent-Type: application/json\r\nContent-Length: %d\r\n\r\n%s", len(body), body)
	return &leaver{c.(*net.TCPConn), bufio.NewReader(c)}
}

// In every window the replica learns within a second that the client left, and
// nothing is left of the request.
func TestClientLeaves(t *testing.T) {
	for _, half := range []bool{false, true} {
		for _, window := range []string{"before the head", "before the first byte", "within the stream", "within the answer"} {
			t.Run(fmt.Sprintf("%s, half %v", window, half), func(t *testing.T) {
				here := make(chan struct{})
				seen := make(chan time.Time, 1)
				u := scripted(t, func(c net.Conn, _ *http.Request, _ []byte) bool {
					switch window {
					case "before the first byte":
						io.WriteString(c, sseHead)
					case "within the stream":
						io.WriteString(c, sseHead+chunk(token+token+token))
					case "within the answer":
						io.WriteString(c, "HTTP/1.1 200 OK\r\nContent-Type: application/json\r\nContent-Length: 9999\r\n\r\n"+strings.Repeat(" ", 5000))
					}
					close(here)
					c.Read(make([]byte, 1))
					seen <- time.Now()
					return false
				})
				f := newFixture(t, setup{}, u.url)
				c := leave(t, f, streamReq)
				<-here
				if strings.HasPrefix(window, "within") {
					// Of a stream the head may come before the first event.
					for line := ""; ; {
						var err error
						if line, err = c.r.ReadString('\n'); err != nil {
							t.Fatal(err)
						}
						if window == "within the answer" || strings.HasPrefix(line, "data:") {
							break
						}
					}
				}
				left := time.Now()
				if half {
					c.CloseWrite()
				} else {
					c.Close()
				}
				if d := (<-seen).Sub(left); d > time.Second {
					t.Errorf("the replica learnt of it after %v", d)
				}
				if half { // no empty success for somebody who still reads
					c.SetReadDeadline(time.Now().Add(time.Minute))
					rest, _ := io.ReadAll(c.r)
					if !strings.HasPrefix(window, "within") && len(rest) > 0 || strings.HasSuffix(string(rest), "0\r\n\r\n") {
						t.Errorf("the answer ended like a whole one: %q", rest)
					}
					c.Close()
				}
				f.settled()
				o := f.outcome(1)
				if o.Kind != "client_gone" || o.Status != 499 {
					t.Errorf("%+v", o)
				}
				if window == "within the stream" && (o.OutputTokens == nil || *o.OutputTokens != 3) {
					t.Errorf("tokens so far: %+v", o)
				}
				f.waitFor("the metric", func() bool { return f.metric("upstream_cancels_total") == 1 && f.metric("errors_total") == 0 })
				if log := f.log.String(); !strings.Contains(log, "client_closed_request") || !strings.Contains(log, "status=499") {
					t.Errorf("log: %s", log)
				}
			})
		}
	}
}

func TestClientLeavesWhileQueued(t *testing.T) {
	u := says(t, jsonAnswer(200, okBody))
	f := newFixture(t, setup{dispatch: dispatch.Options{HoldFor: time.Minute}})
	f.observe(fleet.PhaseLoading, u.url)
	c := leave(t, f, chatBody)
	f.waitFor("the queue", func() bool { return f.flow.Stats().Totals.Held == 1 })
	c.Close()
	f.settled()
	f.observe(fleet.PhaseReady, u.url)
	if u.seen.Load() != 0 {
		t.Error("it was sent nevertheless")
	}
	if f.metric("client_disconnects_total", "queued") != 1 {
		t.Error("not counted")
	}
}

func TestClientLeavesWhileUploading(t *testing.T) {
	u := says(t, jsonAnswer(200, okBody))
	f := newFixture(t, setup{}, u.url)
	c, err := net.Dial("tcp", strings.TrimPrefix(f.url, "http://"))
	if err != nil {
		t.Fatal(err)
	}
	io.WriteString(c, "POST /v1/chat/completions HTTP/1.1\r\nHost: x\r\nContent-Length: 5000\r\n\r\n{\"model\":")
	f.waitFor("the request", func() bool { return f.h.Stats().InFlight == 1 })
	c.Close()
	f.settled()
	if u.seen.Load() != 0 || f.metric("client_disconnects_total", "upload") != 1 {
		t.Error("not seen as a client that left")
	}
}

func TestH2ClientLeaves(t *testing.T) {
	here, seen := make(chan struct{}), make(chan struct{})
	u := scripted(t, func(c net.Conn, _ *http.Request, _ []byte) bool {
		close(here)
		c.Read(make([]byte, 1))
		close(seen)
		return false
	})
	f := newFixture(t, setup{}, u.url)
	var p http.Protocols
	p.SetUnencryptedHTTP2(true)
	tr := &http.Transport{Protocols: &p}
	defer tr.CloseIdleConnections()
	ctx, cancel := context.WithCancel(context.Background())
	req, _ := http.NewRequestWithContext(ctx, "POST", f.url+"/v1/chat/completions", strings.NewReader(streamReq))
	go func() {
		<-here
		cancel()
	}()
	if res, err := tr.RoundTrip(req); err == nil {
		res.Body.Close()
		t.Error("an answer came")
	}
	<-seen
	f.settled()
}
