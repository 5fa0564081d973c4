// SPDX-License-Identifier: Apache-2.0

package console

import (
	"bufio"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/penstock-project/penstock/internal/config"
	"github.com/penstock-project/penstock/internal/dispatch"
	"github.com/penstock-project/penstock/internal/fleet"
	"github.com/penstock-project/penstock/internal/flow"
	"github.com/penstock-project/penstock/internal/journal"
	"github.com/penstock-project/penstock/internal/observe"
	"github.com/penstock-project/penstock/internal/route"
)

const exposition = `vllm:num_requests_running{engine="0",model_name="m"} 3.0
vllm:num_requests_waiting{engine="0",model_name="m"} 1.0
vllm:kv_cache_usage_perc{engine="0",model_name="m"} 0.5
vllm:prefix_cache_queries_total{engine="0",model_name="m"} 100
vllm:prefix_cache_hits_total{engine="0",model_name="m"} 56
vllm:lora_requests_info{max_lora="2",running_lora_adapters="legal",waiting_lora_adapters=""} 1.7e9
`

type explainer struct{}

type badBody struct{ error }

func (badBody) StatusCode() int { return http.StatusBadRequest }

func (explainer) Explain(_ context.Context, s fleet.Surface, body []byte) (*route.Record, error) {
	if !json.Valid(body) {
		return nil, badBody{errors.New("body is not JSON")}
	}
	return &route.Record{Schema: route.Schema, Request: route.Asked{Surface: s.String()}}, nil
}

// admin is a server over one pool with one live replica, "r0".
type admin struct {
	*Server
	j        *journal.Journal
	observer *observe.Observer
	up       *atomic.Bool
}

func newAdmin(t *testing.T) *admin {
	t.Helper()
	up := new(atomic.Bool)
	up.Store(true)
	replica := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if !up.Load() {
			panic(http.ErrAbortHandler)
		}
		switch r.URL.Path {
		case "/health":
		case "/v1/models":
			fmt.Fprint(w, `{"data":[{"id":"m","owned_by":"vllm"},{"id":"legal"}]}`)
		case "/metrics":
			w.Header().Set("Content-Type", "text/plain; version=0.0.4")
			fmt.Fprint(w, exposition)
		default:
			http.NotFound(w, r)
		}
	}))
	t.Cleanup(replica.Close)
	j, err := journal.New(journal.Options{Memory: 10})
	if err != nil {
		t.Fatal(err)
	}
	f := flow.New(flow.Options{Pool: "chat", Dispatch: dispatch.New(dispatch.Options{Pool: "chat"}), Recorder: j})
	ob := observe.New(observe.Options{
		Pool: "chat", Source: observe.Static{{ID: "r0", URL: replica.URL, Rank: -1}}, Models: []string{"m"},
		Interval: 20 * time.Millisecond, Publish: f.Observe,
	})
	ctx, cancel := context.WithCancel(t.Context())
	done := make(chan struct{})
	go func() { defer close(done); _ = ob.Run(ctx) }()
	t.Cleanup(func() { cancel(); <-done; f.Close(); j.Close() })
	cfg := config.Default()
	s := New(Options{
		Pools: func() []Pool {
			return []Pool{{Name: "chat", Models: []string{"m"}, Adapters: []string{"legal", "sql"}, Source: "static", Flow: f, Observer: ob}}
		},
		Journal: j, Explain: explainer{}, Config: func() *config.Config { return cfg }, Version: "v0", Loopback: true,
		Ready: func() error {
			if f.Snapshot() == nil || f.Snapshot().Count(fleet.PhaseReady) == 0 {
				return errors.New("no replica is ready")
			}
			return nil
		},
	})
	a := &admin{Server: s, j: j, observer: ob, up: up}
	for {
		snap := f.Snapshot() // decisions follow what the observer tells
		if st := s.Status(); len(st.Pools[0].Replica) == 1 && st.Pools[0].Replica[0].Running != nil && snap != nil && snap.Count(fleet.PhaseReady) == 1 {
			break
		}
		time.Sleep(5 * time.Millisecond)
	}
	return a
}

func (a *admin) do(method, path, body string, head ...string) *httptest.ResponseRecorder {
	r := httptest.NewRequest(method, "http://127.0.0.1:9900"+path, strings.NewReader(body))
	for i := 0; i+1 < len(head); i += 2 {
		if head[i] == "Host" {
			r.Host = head[i+1]
		}
		r.Header.Set(head[i], head[i+1])
	}
	w := httptest.NewRecorder()
	a.ServeHTTP(w, r)
	return w
}

func TestStatus(t *testing.T) {
	a := newAdmin(t)
	w := a.do("GET", "/api/v1/status", "")
	var st Status
	if err := json.Unmarshal(w.Body.Bytes(), &st); err != nil || st.Schema != StatusSchema || !st.Ready {
		t.Fatalf("%s: %v", w.Body, err)
	}
	p := st.Pools[0]
	r := p.Replica[0]
	if p.Ready != 1 || p.HitRatio == nil || *p.HitRatio != 0.56 || r.Running.Value != 3 || r.Waiting.Value != 1 || r.KVUsage.Value != 0.5 ||
		r.Engine != "vllm" || r.Phase != "ready" || r.SignalAgeMS == nil || r.KVTokens != nil || r.Own == nil {
		t.Errorf("status %s", w.Body)
	}
	if len(p.Adapters) != 2 || p.Adapters[0].Holders != 1 || p.Adapters[0].Listed != 1 || p.Adapters[1].Name != "sql" || p.Adapters[1].Listed != 0 {
		t.Errorf("adapters %+v", p.Adapters)
	}
}

func TestDecisions(t *testing.T) {
	a := newAdmin(t)
	for i := range 15 {
		a.j.Record(&route.Record{Schema: route.Schema, ID: fmt.Sprint("q", i), Request: route.Asked{Model: "m"}})
	}
	var list Decisions
	w := a.do("GET", "/api/v1/decisions?limit=2&filter=model%3Dm", "")
	if err := json.Unmarshal(w.Body.Bytes(), &list); err != nil || len(list.Decisions) != 2 || list.Decisions[0].ID != "q14" {
		t.Errorf("%s: %v", w.Body, err)
	}
	if w := a.do("GET", "/api/v1/decisions/q13", ""); w.Code != 200 || !strings.Contains(w.Body.String(), `"id":"q13"`) {
		t.Errorf("%d %s", w.Code, w.Body)
	}
	for path, code := range map[string]int{
		"/api/v1/decisions/q1": 404, "/api/v1/decisions?limit=0": 400, "/api/v1/decisions?filter=x%3E1": 400, "/nothing": 404,
	} {
		if w := a.do("GET", path, ""); w.Code != code || !strings.Contains(w.Body.String(), `"error"`) {
			t.Errorf("%s: %d %s", path, w.Code, w.Body)
		}
	}
}

func TestStream(t *testing.T) {
	a := newAdmin(t)
	srv := httptest.NewServer(a)
	defer srv.Close()
	res, err := http.Get(srv.URL + "/api/v1/decisions/stream?filter=model%3Dm")
	if err != nil {
		t.Fatal(err)
	}
	defer res.Body.Close()
	lines := bufio.NewScanner(res.Body)
	lines.Scan() // the greeting: the subscription follows it
	stop := make(chan struct{})
	go func() {
		for {
			a.j.Record(&route.Record{Schema: route.Schema, ID: "other"})
			a.j.Record(&route.Record{Schema: route.Schema, ID: "mine", Request: route.Asked{Model: "m"}})
			select {
			case <-stop:
				return
			case <-time.After(5 * time.Millisecond):
			}
		}
	}()
	defer close(stop)
	for lines.Scan() {
		if strings.Contains(lines.Text(), "other") {
			t.Fatal("the filter is ignored")
		}
		if strings.HasPrefix(lines.Text(), "data: ") {
			break
		}
	}
	if !strings.Contains(lines.Text(), `"id":"mine"`) {
		t.Errorf("got %q", lines.Text())
	}
}

func TestExplainGuessesTheSurface(t *testing.T) {
	a := newAdmin(t)
	for body, want := range map[string]string{`{"messages":[]}`: "chat", `{"prompt":"x"}`: "completions"} {
		if w := a.do("POST", "/api/v1/explain", body); w.Code != 200 || !strings.Contains(w.Body.String(), `"surface":"`+want+`"`) {
			t.Errorf("%s: %d %s", body, w.Code, w.Body)
		}
	}
	if w := a.do("POST", "/api/v1/explain", "{"); w.Code != 400 {
		t.Errorf("%d %s", w.Code, w.Body)
	}
	if w := a.do("POST", "/api/v1/explain?surface=tea", "{}"); w.Code != 400 {
		t.Errorf("%d %s", w.Code, w.Body)
	}
}

func TestDrain(t *testing.T) {
	a := newAdmin(t)
	phase := func(want string) {
		t.Helper()
		for a.Status().Pools[0].Replica[0].Phase != want {
			time.Sleep(2 * time.Millisecond)
		}
	}
	if w := a.do("POST", "/api/v1/replicas/r0/drain", "{}"); w.Code != 200 || !strings.Contains(w.Body.String(), `"phase":"draining"`) {
		t.Fatalf("%d %s", w.Code, w.Body)
	}
	phase("draining")
	if w := a.do("GET", "/readyz", ""); w.Code != 503 || w.Header().Get("Retry-After") == "" {
		t.Errorf("readyz %d %s", w.Code, w.Body)
	}
	if w := a.do("POST", "/api/v1/replicas/r0/undrain", "{}"); w.Code != 200 {
		t.Fatalf("%d %s", w.Code, w.Body)
	}
	phase("ready")
	w := a.do("POST", "/api/v1/replicas/r9/drain", "{}")
	if w.Code != 404 || !strings.Contains(w.Body.String(), "known are: r0") {
		t.Errorf("%d %s", w.Code, w.Body)
	}
}

func TestReplicaMetricsAreVerbatim(t *testing.T) {
	a := newAdmin(t)
	w := a.do("GET", "/replicas/r0/metrics", "")
	if w.Code != 200 || w.Body.String() != exposition || !strings.Contains(w.Header().Get("Content-Type"), "0.0.4") {
		t.Errorf("%d %q", w.Code, w.Body)
	}
	a.up.Store(false)
	w = a.do("GET", "/replicas/r0/metrics", "")
	if w.Code != 502 || !strings.Contains(w.Body.String(), "its last scrape is") {
		t.Errorf("%d %s", w.Code, w.Body)
	}
	var sd []sdGroup
	if err := json.Unmarshal(a.do("GET", "/api/v1/http_sd", "").Body.Bytes(), &sd); err != nil || len(sd) != 1 || sd[0].Labels["replica"] != "r0" {
		t.Errorf("%v, %v", sd, err)
	}
}

// TestForeignPages: neither a page that reaches loopback under a name of its own
// nor a form on another site gets anything.
func TestForeignPages(t *testing.T) {
	a := newAdmin(t)
	for host, code := range map[string]int{"evil.example": 403, "evil.example:9900": 403, "localhost:9900": 200, "[::1]:9900": 200, "127.0.0.1": 200} {
		if w := a.do("GET", "/api/v1/status", "", "Host", host); w.Code != code {
			t.Errorf("host %s: %d", host, w.Code)
		}
	}
	w := a.do("POST", "/api/v1/replicas/r0/drain", "", "Sec-Fetch-Site", "cross-site", "Origin", "https://evil.example")
	if w.Code != 403 {
		t.Errorf("a foreign form: %d", w.Code)
	}
}

func TestConfig(t *testing.T) {
	a := newAdmin(t)
	w := a.do("GET", "/api/v1/config", "")
	if c, err := config.Parse("x", w.Body.Bytes(), config.Options{}); err != nil || len(config.Diff(c, config.Default())) != 0 {
		t.Errorf("%v\n%s", err, w.Body)
	}
	w = a.do("GET", "/api/v1/config", "", "Accept", "application/json")
	if c, err := config.Parse("x", w.Body.Bytes(), config.Options{}); err != nil || len(config.Diff(c, config.Default())) != 0 {
		t.Errorf("%v\n%s", err, w.Body)
	}
}
