// SPDX-License-Identifier: Apache-2.0

package gateway

import (
	"bufio"
	"bytes"
	"context"
	"fmt"
	"io"
	"log/slog"
	"net"
	"net/http"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/penstock-project/penstock/internal/dispatch"
	"github.com/penstock-project/penstock/internal/entry"
	"github.com/penstock-project/penstock/internal/fleet"
	"github.com/penstock-project/penstock/internal/flow"
	"github.com/penstock-project/penstock/internal/relay"
	"github.com/penstock-project/penstock/internal/route"
)

// replica is an engine that runs a script for each connection.
type replica struct {
	l     net.Listener
	url   string
	conns atomic.Int64
	seen  atomic.Int64 // requests read
	wg    sync.WaitGroup
	mu    sync.Mutex
	open  map[net.Conn]bool
}

// scripted starts a replica; the script answers one request and reports whether
// the connection stays open.
func scripted(t testing.TB, script func(c net.Conn, req *http.Request, body []byte) bool) *replica {
	t.Helper()
	// Of a socket for several paths at a time the kernel drops no packets for a test.
	var lc net.ListenConfig
	lc.SetMultipathTCP(false)
	l, err := lc.Listen(context.Background(), "tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	u := &replica{l: l, url: "http://" + l.Addr().String(), open: map[net.Conn]bool{}}
	u.wg.Go(func() {
		for {
			c, err := l.Accept()
			if err != nil {
				return
			}
			u.conns.Add(1)
			u.mu.Lock()
			u.open[c] = true
			u.mu.Unlock()
			u.wg.Go(func() { u.serve(c, script) })
		}
	})
	t.Cleanup(u.kill)
	return u
}

func (u *replica) serve(c net.Conn, script func(net.Conn, *http.Request, []byte) bool) {
	defer func() {
		u.mu.Lock()
		delete(u.open, c)
		u.mu.Unlock()
		c.Close()
	}()
	r := bufio.NewReader(c)
	for {
		req, err := http.ReadRequest(r)
		if err != nil {
			return
		}
		body, err := io.ReadAll(req.Body)
		if err != nil {
			return
		}
		u.seen.Add(1)
		if !script(c, req, body) {
			return
		}
	}
}

// kill closes the listener and every connection.
func (u *replica) kill() {
	u.l.Close()
	u.mu.Lock()
	for c := range u.open {
		c.Close()
	}
	u.mu.Unlock()
	u.wg.Wait()
}

// says answers every request with the same bytes; "CLOSE" at their end closes.
func says(t testing.TB, answer string) *replica {
	text, closes := strings.CutSuffix(answer, "CLOSE")
	return scripted(t, func(c net.Conn, _ *http.Request, _ []byte) bool {
		io.WriteString(c, text)
		return !closes
	})
}

// jsonAnswer is a whole HTTP answer with a JSON body.
func jsonAnswer(status int, body string) string {
	return fmt.Sprintf("HTTP/1.1 %d X\r\nContent-Type: application/json\r\nContent-Length: %d\r\n\r\n%s", status, len(body), body)
}

const (
	okBody    = `{"id":"c","object":"chat.completion","model":"m","choices":[{"index":0,"message":{"role":"assistant","content":"hi"},"finish_reason":"stop"}],"usage":{"prompt_tokens":7,"completion_tokens":2,"total_tokens":9}}`
	chatBody  = `{"model":"m","messages":[{"role":"user","content":"hello"}]}`
	streamReq = `{"model":"m","messages":[{"role":"user","content":"hello"}],"stream":true}`
	sseHead   = "HTTP/1.1 200 OK\r\nContent-Type: text/event-stream; charset=utf-8\r\nTransfer-Encoding: chunked\r\n\r\n"
	token     = `data: {"id":"c","choices":[{"index":0,"delta":{"content":"x"},"finish_reason":null}]}` + "\n\n"
	finish    = `data: {"id":"c","choices":[{"index":0,"delta":{},"finish_reason":"stop"}]}` + "\n\n"
	done      = "data: [DONE]\n\n"
)

func chunk(s string) string { return fmt.Sprintf("%x\r\n%s\r\n", len(s), s) }

// stream is a whole event stream in one chunk for each event.
func stream(events ...string) string {
	out := sseHead
	for _, e := range events {
		out += chunk(e)
	}
	return out + "0\r\n\r\n"
}

// fixture is a gateway over real sockets.
type fixture struct {
	t       testing.TB
	h       *Handler
	flow    *flow.Flow
	relay   *relay.Client
	reg     *prometheus.Registry
	url     string
	srv     *Server
	log     syncBuffer
	records records
	version uint64
}

type syncBuffer struct {
	mu sync.Mutex
	b  bytes.Buffer
}

func (s *syncBuffer) Write(p []byte) (int, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.b.Write(p)
}

func (s *syncBuffer) String() string {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.b.String()
}

type records struct {
	mu  sync.Mutex
	all []*route.Record
}

func (r *records) Record(x *route.Record) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.all = append(r.all, x)
}

func (r *records) last() *route.Record {
	r.mu.Lock()
	defer r.mu.Unlock()
	if len(r.all) == 0 {
		return nil
	}
	return r.all[len(r.all)-1]
}

// setup changes a fixture before it starts.
type setup struct {
	models   []Model
	relay    relay.Options
	options  Options
	dispatch dispatch.Options
	serve    func(*http.Server)
}

func newFixture(t testing.TB, s setup, urls ...string) *fixture {
	t.Helper()
	f := &fixture{t: t, reg: prometheus.NewRegistry()}
	s.dispatch.Pool = "p"
	if s.dispatch.Policy == nil {
		p, err := route.New("round-robin", 1)
		if err != nil {
			t.Fatal(err)
		}
		s.dispatch.Policy = p
	}
	f.flow = flow.New(flow.Options{Pool: "p", Dispatch: dispatch.New(s.dispatch), Recorder: &f.records})
	s.relay.Epoll = s.relay.Epoll || testEpoll
	if s.relay.Connect == 0 {
		s.relay.Connect = time.Minute // a machine that does much else connects late
	}
	f.relay = relay.New(s.relay)
	if s.models == nil {
		s.models = []Model{{Name: "m", Aliases: []string{"alias", "a-much-longer-public-name"}, Adapters: []string{"lora"}}}
	}
	cat, err := NewCatalogue([]Pool{{Name: "p", Flow: f.flow, Models: s.models}})
	if err != nil {
		t.Fatal(err)
	}
	o := s.options
	o.Catalogue, o.Relay, o.Registerer, o.Router = cat, f.relay, f.reg, "gw-1"
	if o.Auth == nil {
		o.Auth = entry.Anonymous{Debug: true}
	}
	o.Log = slog.New(slog.NewTextHandler(&f.log, &slog.HandlerOptions{Level: slog.LevelDebug}))
	f.h = New(o)
	f.observe(fleet.PhaseReady, urls...)
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	f.url = "http://" + l.Addr().String()
	f.srv = NewServer(f.h, nil, o.Log)
	if s.serve != nil {
		s.serve(f.srv.Server)
	}
	go f.srv.Serve(l)
	t.Cleanup(func() {
		f.srv.Close()
		f.flow.Close()
		f.relay.Close()
	})
	return f
}

// observe gives the pool a snapshot with these replicas.
func (f *fixture) observe(phase fleet.Phase, urls ...string) {
	f.version++
	s := &fleet.Snapshot{Pool: "p", Version: f.version, At: fleet.At(time.Now())}
	for i, u := range urls {
		s.Endpoints = append(s.Endpoints, fleet.EndpointState{Endpoint: fleet.Endpoint{
			ID: fmt.Sprintf("r%d", i), URL: u, Phase: phase, Models: []string{"m", "lora"}, Rank: -1,
		}})
	}
	f.flow.Observe(s)
}

// post sends a body and returns the answer with its body read.
func (f *fixture) post(path, body string, headers ...string) (*http.Response, string) {
	f.t.Helper()
	res, text, err := f.try(path, body, headers...)
	if err != nil {
		f.t.Fatal(err)
	}
	return res, text
}

func (f *fixture) try(path, body string, headers ...string) (*http.Response, string, error) {
	req, err := http.NewRequestWithContext(context.Background(), "POST", f.url+path, strings.NewReader(body))
	if err != nil {
		return nil, "", err
	}
	for i := 0; i+1 < len(headers); i += 2 {
		req.Header.Add(headers[i], headers[i+1])
	}
	res, err := http.DefaultClient.Do(req)
	if err != nil {
		return nil, "", err
	}
	defer res.Body.Close()
	text, err := io.ReadAll(res.Body)
	return res, string(text), err
}

func (f *fixture) chat(body string, headers ...string) (*http.Response, string) {
	f.t.Helper()
	return f.post("/v1/chat/completions", body, headers...)
}

// settled waits until nothing is left of any request and fails where it never is.
func (f *fixture) settled() {
	f.t.Helper()
	var st Stats
	var fs flow.Stats
	for end := time.Now().Add(time.Minute); time.Now().Before(end); time.Sleep(time.Millisecond) {
		st, fs = f.h.Stats(), f.flow.Stats()
		clean := st.InFlight == 0 && st.BodyBytes == 0 && st.Relay.Open == st.Relay.Idle && fs.Totals.InFlight == 0 && fs.Totals.Held == 0
		for _, e := range fs.Endpoints {
			clean = clean && e.InFlight == 0 && e.PendingMS == 0 && e.Streams == 0
		}
		if clean {
			return
		}
	}
	f.t.Fatalf("left over: %+v %+v", st, fs)
}

// outcome waits for the record of the n-th request and returns its result.
func (f *fixture) outcome(n int) *route.Result {
	f.t.Helper()
	f.waitFor("a record", func() bool { f.records.mu.Lock(); defer f.records.mu.Unlock(); return len(f.records.all) >= n })
	return f.records.last().Outcome
}

func (f *fixture) waitFor(what string, ok func() bool) {
	f.t.Helper()
	for end := time.Now().Add(time.Minute); !ok(); time.Sleep(time.Millisecond) {
		if time.Now().After(end) {
			f.t.Fatalf("%s did not come", what)
		}
	}
}

// metric returns the sum of a metric over all its series that have the label
// values given.
func (f *fixture) metric(name string, values ...string) float64 {
	f.t.Helper()
	f.waitFor("the last account", func() bool { return f.h.Stats().InFlight == 0 })
	all, err := f.reg.Gather()
	if err != nil {
		f.t.Fatal(err)
	}
	sum := 0.0
	for _, fam := range all {
		if fam.GetName() != "penstock_gateway_"+name {
			continue
		}
		for _, m := range fam.GetMetric() {
			has := map[string]bool{}
			for _, l := range m.GetLabel() {
				has[l.GetValue()] = true
			}
			match := true
			for _, v := range values {
				match = match && has[v]
			}
			if match {
				sum += m.GetCounter().GetValue() + m.GetGauge().GetValue() + float64(m.GetHistogram().GetSampleCount())
			}
		}
	}
	return sum
}
