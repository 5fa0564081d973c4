// SPDX-License-Identifier: Apache-2.0

package load

import (
	"bufio"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"math"
	"net"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/penstock-project/penstock/internal/workload"
	"pgregory.net/rapid"
)

const (
	content = `data: {"choices":[{"index":0,"delta":{"content":"Hi"},"finish_reason":null}]}` + "\n\n"
	finish  = `data: {"choices":[{"index":0,"delta":{},"finish_reason":"stop"}]}` + "\n\n"
	usage   = `data: {"choices":[],"usage":{"prompt_tokens":98,"completion_tokens":2,"prompt_tokens_details":{"cached_tokens":64}}}` + "\n\n"
	over    = "data: [DONE]\n\n"
)

// step is a pause and then bytes from the server.
type step struct {
	after time.Duration
	bytes string
}

// script is a server on a pipe that answers every request with the same steps and
// then closes, or not.
type script struct {
	steps []step
	hold  bool // keep the connection open afterwards
	seen  []string
}

func (s *script) dial(context.Context, string, string) (net.Conn, error) {
	client, server := net.Pipe()
	go func() {
		defer server.Close()
		r := bufio.NewReader(server)
		for {
			req, err := http.ReadRequest(r)
			if err != nil {
				return
			}
			body, _ := io.ReadAll(req.Body)
			s.seen = append(s.seen, req.Method+" "+req.URL.Path+" "+string(body))
			for _, st := range s.steps {
				time.Sleep(st.after)
				if _, err := io.WriteString(server, st.bytes); err != nil {
					return
				}
			}
			if !s.hold {
				return
			}
		}
	}()
	return client, nil
}

func chunked(parts ...string) string {
	var b strings.Builder
	b.WriteString("HTTP/1.1 200 OK\r\nContent-Type: text/event-stream; charset=utf-8\r\nTransfer-Encoding: chunked\r\n\r\n")
	for _, p := range parts {
		fmt.Fprintf(&b, "%x\r\n%s\r\n", len(p), p)
	}
	return b.String()
}

const lastChunk = "0\r\n\r\n"

func plain(status int, typ, body string) string {
	return fmt.Sprintf("HTTP/1.1 %d X\r\nContent-Type: %s\r\nContent-Length: %d\r\n\r\n%s", status, typ, len(body), body)
}

// run sends n single-turn requests one after the other.
func run(t *testing.T, s *script, n int, set func(*Options)) *Report {
	t.Helper()
	target, err := ParseTarget("http://engine:8000/v1")
	if err != nil {
		t.Fatal(err)
	}
	var list []*workload.Session
	for i := range n {
		list = append(list, &workload.Session{ID: uint64(i), Turns: []workload.Turn{{
			Prompt: []workload.Segment{{ID: 1, Tokens: 4}}, PromptTokens: 4, OutputTokens: 2,
		}}})
	}
	o := Options{
		Target: target, Model: "m", Dial: s.dial, Timeout: time.Minute,
		Feed: workload.NewFeed(workload.NewList(list), workload.FeedOptions{Users: 1}),
	}
	if set != nil {
		set(&o)
	}
	r := New(o).Run(t.Context())
	time.Sleep(5 * time.Minute) // of the bubble: lets the servers come to their ends
	return r
}

func TestAnswersAreJudged(t *testing.T) {
	for _, tc := range []struct {
		name  string
		steps []step
		want  string // kind of error, "" for none
	}{
		{"standard", []step{{0, chunked(content, finish, usage, over) + lastChunk}}, ""},
		{"one byte at a time", bytesOf(chunked(content, content, finish, usage, over) + lastChunk), ""},
		{"no DONE", []step{{0, chunked(content, finish) + lastChunk}}, ""},
		{"usage without choices", []step{{0, chunked(content, finish, `data: {"usage":{"prompt_tokens":98,"completion_tokens":2}}`+"\n\n", over) + lastChunk}}, ""},
		{"comment lines", []step{{0, chunked(": keep-alive\n\n", content, finish, over) + lastChunk}}, ""},
		{"close-delimited", []step{{0, "HTTP/1.0 200 OK\r\nContent-Type: text/event-stream\r\n\r\n" + content + finish + over}}, ""},
		{"100 Continue first", []step{{0, "HTTP/1.1 100 Continue\r\n\r\n" + chunked(content, finish, over) + lastChunk}}, ""},
		{"chunk extension and trailer", []step{{0, chunked() + "4;x=1\r\ndata\r\n" + fmt.Sprintf("%x\r\n%s\r\n", len(content[4:])+len(finish), content[4:]+finish) + "0\r\nX-T: 1\r\n\r\n"}}, ""},
		{"whole answer", []step{{0, plain(200, "application/json", `{"choices":[{"index":0,"message":{"content":"Hi"},"finish_reason":"stop"}],"usage":{"prompt_tokens":9,"completion_tokens":3}}`)}}, ""},

		{"503", []step{{0, plain(503, "application/json", `{"error":{"message":"no replica"}}`)}}, "http_503"},
		{"400", []step{{0, plain(400, "application/json", `{"error":{"message":"too long"}}`)}}, "http_400"},
		{"error in the stream", []step{{0, chunked(`data: {"error": {"message": "x", "type": "GatewayTimeout", "code": 504}}`+"\n\n", over) + lastChunk}}, "in_stream_504"},
		{"error object", []step{{0, chunked(`data: {"object":"error","message":"too long","type":"BadRequestError","param":null,"code":400}`+"\n\n", over) + lastChunk}}, "in_stream_400"},
		{"detail", []step{{0, chunked(`data: {"detail":"max context length exceeded"}`+"\n\n", over) + lastChunk}}, "in_stream_400"},
		{"error after content", []step{{0, chunked(content, `data: {"error": {"message": "x", "code": 500}}`+"\n\n", over) + lastChunk}}, "in_stream_500"},
		{"cut after content", []step{{0, chunked(content)}}, "truncated"},
		{"clean end without finish", []step{{0, chunked(content) + lastChunk}}, "truncated"},
		{"cut before content", []step{{0, chunked()}}, "broken"},
		{"no answer", nil, "broken"},
		{"garbage", []step{{0, "SSH-2.0-OpenSSH\r\n"}}, "broken"},
		{"empty success", []step{{0, chunked(finish, over) + lastChunk}}, "empty"},
		{"hangs", []step{{2 * time.Minute, "x"}}, "timeout"},
		{"hangs within", []step{{0, chunked(content)}, {2 * time.Minute, "x"}}, "timeout"},
	} {
		t.Run(tc.name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				steps := append([]step{{time.Millisecond, ""}}, tc.steps...)
				r := run(t, &script{steps: steps}, 1, nil)
				if r.Requests != 1 || r.Unfinished != 0 {
					t.Fatalf("%d requests, %d unfinished", r.Requests, r.Unfinished)
				}
				if tc.want == "" {
					if len(r.Errors) != 0 || r.E2E == nil {
						t.Fatalf("errors %v %v, E2E %v", r.Errors, r.ErrorExamples, r.E2E)
					}
					if r.TTFT != nil && r.TTFT.Mean <= 0 {
						t.Errorf("TTFT %+v", r.TTFT)
					}
					return
				}
				if r.Errors[tc.want] != 1 || len(r.Errors) != 1 {
					t.Errorf("errors %v, want %s", r.Errors, tc.want)
				}
				if r.TTFT != nil || r.ITL != nil || r.E2E != nil || r.HitRatio != nil || r.OutputTokens != 0 {
					t.Errorf("a failed request counts in the statistics: %+v", r)
				}
			})
		})
	}
}

func bytesOf(s string) []step {
	var steps []step
	for i := range len(s) {
		steps = append(steps, step{time.Microsecond, s[i : i+1]})
	}
	return steps
}

func TestTimesAndRatios(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := &script{hold: true, steps: []step{
			{100 * time.Millisecond, chunked(content)},
			{20 * time.Millisecond, fmt.Sprintf("%x\r\n%s\r\n", len(content), content)},
			{30 * time.Millisecond, fmt.Sprintf("%x\r\n%s\r\n", len(finish+usage+over), finish+usage+over) + lastChunk},
		}}
		r := run(t, s, 4, nil)
		if len(r.Errors) > 0 || r.Requests != 4 {
			t.Fatalf("%d requests, errors %v", r.Requests, r.ErrorExamples)
		}
		near := func(name string, got, want float64) {
			t.Helper()
			if math.Abs(got-want) > 0.011*want {
				t.Errorf("%s is %v, want %v", name, got, want)
			}
		}
		near("TTFT p50", r.TTFT.P50, 100)
		near("TTFT mean", r.TTFT.Mean, 100)
		near("ITL p99", r.ITL.P99, 20)
		near("E2E p90", r.E2E.P90, 150)
		near("TPOT mean", r.TPOT.Mean, 50)
		near("hit ratio", *r.HitRatio, 64.0/98)
		near("duration", r.DurationS, 0.6)
		near("tokens in", r.TokensPerS.In, 4*98/0.6)
		near("tokens out", r.TokensPerS.Out, 4*2/0.6)
		want := `POST /v1/chat/completions {"model":"m","messages":[{"role":"user","content":"` +
			string(workload.AppendText(nil, 1, 4)) +
			`"}],"max_tokens":2,"ignore_eos":true,"stream":true,"stream_options":{"include_usage":true}}`
		if len(s.seen) != 4 || s.seen[0] != want {
			t.Errorf("%d requests, first\n%s\nwant\n%s", len(s.seen), s.seen[0], want)
		}
	})
}

func TestDurationAndGrace(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := &script{hold: true, steps: []step{{3 * time.Second, chunked(content, finish, over) + lastChunk}}}
		r := run(t, s, 100, func(o *Options) { o.Duration, o.Grace = 10*time.Second, time.Second })
		if r.Requests != 3 || r.Unfinished != 1 || len(r.Errors) != 0 {
			t.Errorf("%d requests, %d unfinished, errors %v; want 3, 1, none", r.Requests, r.Unfinished, r.Errors)
		}
	})
}

func TestRefusedConnectionsDoNotSpin(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		dials := 0
		r := run(t, &script{}, 1000, func(o *Options) {
			o.Duration = time.Second
			o.Dial = func(context.Context, string, string) (net.Conn, error) {
				dials++
				return nil, fmt.Errorf("connection refused")
			}
		})
		if r.Errors["connect"] != r.Requests || dials > 11 {
			t.Errorf("%d dials, errors %v", dials, r.Errors)
		}
	})
}

func TestReportIsVersionedJSON(t *testing.T) {
	b, err := json.Marshal((&tally{}).report(time.Second))
	if err != nil {
		t.Fatal(err)
	}
	var m map[string]any
	if err := json.Unmarshal(b, &m); err != nil {
		t.Fatal(err)
	}
	for _, k := range []string{"schema", "requests", "errors", "hit_ratio", "ttft_ms", "itl_ms", "e2e_ms", "tokens_per_s"} {
		if _, ok := m[k]; !ok {
			t.Errorf("%s is missing", k)
		}
	}
	if m["schema"] != "penstock/load/v1" || m["hit_ratio"] != nil || m["ttft_ms"] != nil {
		t.Errorf("%s", b)
	}
}

func TestHistogramQuantiles(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		var h, a, b Histogram
		n := rapid.IntRange(1, 300).Draw(t, "n")
		var all []float64
		for i := range n {
			d := time.Duration(rapid.Int64Range(2000, 1e11).Draw(t, "d"))
			h.Add(d)
			if i%2 == 0 {
				a.Add(d)
			} else {
				b.Add(d)
			}
			all = append(all, float64(d))
		}
		a.Merge(&b)
		for _, q := range []float64{0, 0.5, 0.9, 0.99, 1} {
			rank := max(int(math.Ceil(q*float64(n))), 1)
			below, upTo := 0, 0
			got := float64(h.Quantile(q))
			for _, v := range all {
				if v < got/1.006 {
					below++
				}
				if v <= got*1.006 {
					upTo++
				}
			}
			if below >= rank || upTo < rank {
				t.Fatalf("quantile %v of %d is %v: %d below, %d up to it", q, n, got, below, upTo)
			}
			if a.Quantile(q) != h.Quantile(q) {
				t.Fatal("merged halves differ from the whole")
			}
		}
	})
}

func TestParseTarget(t *testing.T) {
	for _, tc := range []struct{ in, url, addr string }{
		{"http://127.0.0.1:8080", "http://127.0.0.1:8080", "127.0.0.1:8080"},
		{"http://h:1/v1/", "http://h:1", "h:1"},
		{"https://api.example.com/llm/v1", "https://api.example.com/llm", "api.example.com:443"},
		{"http://[::1]", "http://[::1]", "[::1]:80"},
		{"127.0.0.1:8080", "", ""},
		{"ftp://x", "", ""},
		{"http://x?y=1", "", ""},
	} {
		got, err := ParseTarget(tc.in)
		if tc.url == "" {
			if err == nil {
				t.Errorf("%s was taken", tc.in)
			}
			continue
		}
		if err != nil || got.URL != tc.url || got.addr != tc.addr {
			t.Errorf("%s: %+v, %v", tc.in, got, err)
		}
	}
}

func TestModels(t *testing.T) {
	srv := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if r.URL.Path != "/v1/models" || r.Header.Get("Authorization") != "Bearer k" {
			http.Error(w, "no", http.StatusNotFound)
			return
		}
		fmt.Fprint(w, `{"object":"list","data":[{"id":"a","max_model_len":4096},{"id":"b","parent":"a"}]}`)
	}))
	defer srv.Close()
	target, err := ParseTarget(srv.URL)
	if err != nil {
		t.Fatal(err)
	}
	if _, err := target.Models(t.Context()); err == nil || !strings.Contains(err.Error(), "404") {
		t.Errorf("error %v, want 404", err)
	}
	target.Key = "k"
	m, err := target.Models(t.Context())
	if err != nil || len(m) != 2 || m[0] != (Model{ID: "a", MaxContext: 4096}) || m[1].Parent != "a" {
		t.Errorf("%+v, %v", m, err)
	}
}
