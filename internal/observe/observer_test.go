// SPDX-License-Identifier: Apache-2.0

package observe

import (
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net"
	"net/http"
	"os"
	"slices"
	"strings"
	"sync"
	"syscall"
	"testing"
	"testing/synctest"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/penstock-project/penstock/internal/config"
	"github.com/penstock-project/penstock/internal/fleet"
)

// fakeReplica is a model server without a network.
type fakeReplica struct {
	refused bool
	frozen  bool // no answer at all
	health  int  // status; 0 is 200
	slow    bool // health gives no answer
	models  string
	metrics string
	asked   int
	key     string // value that Authorization must have
	json    bool   // /metrics answers JSON, the exposition is beside it
	// load answers /v1/load_lora_adapter; nil: nothing but GETs may come.
	load func(body string) (status int, answer string)
}

type fakeFleet struct {
	mu sync.Mutex
	r  map[string]*fakeReplica
	// before runs before a request is answered, where it is set.
	before func(path string)
}

func (f *fakeFleet) set(host string, fn func(*fakeReplica)) {
	f.mu.Lock()
	defer f.mu.Unlock()
	if f.r[host] == nil {
		f.r[host] = &fakeReplica{models: `{"data":[{"id":"m","owned_by":"vllm"}]}`, metrics: "vllm:num_requests_running 1\n"}
	}
	fn(f.r[host])
}

func (f *fakeFleet) RoundTrip(req *http.Request) (*http.Response, error) {
	f.mu.Lock()
	before := f.before
	f.mu.Unlock()
	if before != nil {
		before(req.URL.Path)
	}
	f.mu.Lock()
	r, ok := f.r[req.URL.Host]
	var c fakeReplica
	if ok {
		r.asked++
		c = *r
	}
	f.mu.Unlock()
	if c.load != nil && req.Method == http.MethodPost && req.URL.Path == "/v1/load_lora_adapter" {
		body, _ := io.ReadAll(req.Body)
		status, answer := c.load(string(body))
		return &http.Response{StatusCode: status, Header: http.Header{}, Body: io.NopCloser(strings.NewReader(answer)), Request: req}, nil
	}
	if req.Method != http.MethodGet {
		return nil, fmt.Errorf("a %s to a replica", req.Method)
	}
	if !ok || c.refused {
		return nil, &net.OpError{Op: "dial", Err: os.NewSyscallError("connect", syscall.ECONNREFUSED)}
	}
	status, body, head := http.StatusOK, "", http.Header{}
	switch req.URL.Path {
	case "/health":
		if c.slow {
			c.frozen = true
		}
		if c.health != 0 {
			status = c.health
		}
	case "/v1/models":
		body = c.models
		if c.key != "" && req.Header.Get("Authorization") != c.key {
			status = http.StatusUnauthorized
		}
	case "/metrics", "/prometheus/metrics":
		body = c.metrics
		if c.json && req.URL.Path == "/metrics" {
			body, head = `[{"gpuMemUsage":1}]`, http.Header{"Content-Type": {"application/json"}}
		}
		if body == "" {
			status = http.StatusNotFound
		}
	default:
		status = http.StatusNotFound
	}
	if c.frozen {
		<-req.Context().Done()
		return nil, req.Context().Err()
	}
	return &http.Response{StatusCode: status, Header: head, Body: io.NopCloser(strings.NewReader(body)), Request: req}, nil
}

// watched runs an observer over hosts in a bubble and hands back what it
// publishes.
func watched(t *testing.T, hosts []string, o Options) (*Observer, *fakeFleet, func() map[string]fleet.EndpointState) {
	t.Helper()
	f := &fakeFleet{r: map[string]*fakeReplica{}}
	var urls []string
	for _, h := range hosts {
		f.set(h, func(*fakeReplica) {})
		urls = append(urls, "http://"+h)
	}
	if o.Source == nil {
		o.Source = StaticURLs(urls)
	}
	o.Transport = f
	o.Pool = "p"
	ob := New(o)
	ctx, cancel := context.WithCancel(t.Context())
	done := make(chan struct{})
	go func() {
		defer close(done)
		// What the test sets before it waits for the first time is there from the start.
		time.Sleep(time.Nanosecond)
		if err := ob.Run(ctx); !errors.Is(err, context.Canceled) {
			t.Errorf("Run: %v", err)
		}
	}()
	t.Cleanup(func() { cancel(); <-done })
	return ob, f, func() map[string]fleet.EndpointState {
		synctest.Wait()
		out := map[string]fleet.EndpointState{}
		if s := ob.Snapshot(); s != nil {
			for _, e := range s.Endpoints {
				out[e.ID] = e
			}
		}
		return out
	}
}

func phase(t *testing.T, e fleet.EndpointState, want fleet.Phase, reason string) {
	t.Helper()
	if e.Phase != want || !strings.Contains(e.Reason, reason) {
		t.Errorf("%s is %s (%q), want %s (%q)", e.ID, e.Phase, e.Reason, want, reason)
	}
}

func TestColdReplicaGetsNoTraffic(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		_, f, state := watched(t, []string{"a:1"}, Options{Models: []string{"m"}})
		f.set("a:1", func(r *fakeReplica) { r.refused = true })
		time.Sleep(3 * time.Second)
		phase(t, state()["a:1"], fleet.PhasePending, "connection refused")
		f.set("a:1", func(r *fakeReplica) { r.refused, r.health = false, 503 })
		time.Sleep(2 * time.Second)
		phase(t, state()["a:1"], fleet.PhaseLoading, "503")
		f.set("a:1", func(r *fakeReplica) { r.health, r.models = 0, `{"data":[]}` })
		time.Sleep(2 * time.Second)
		phase(t, state()["a:1"], fleet.PhaseLoading, "model m is not listed yet")
		f.set("a:1", func(r *fakeReplica) { r.models = `{"data":[{"id":"m"},{"id":"ad","parent":"m"}]}` })
		time.Sleep(time.Second)
		e := state()["a:1"]
		phase(t, e, fleet.PhaseReady, "")
		if d := cmp.Diff([]string{"ad", "m"}, e.Models); d != "" {
			t.Error(d)
		}
		if d := cmp.Diff([]string{"ad"}, e.AdapterNames); d != "" {
			t.Error(d)
		}
		time.Sleep(2 * time.Second)
		if e = state()["a:1"]; e.Running.V != 1 || e.Engine != "vllm" || e.ScrapeError != "" {
			t.Errorf("signals %+v, engine %q", e.Signals, e.Engine)
		}
	})
}

func TestDeadAndBack(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		_, f, state := watched(t, []string{"a:1", "b:1"}, Options{})
		time.Sleep(10 * time.Second)
		phase(t, state()["a:1"], fleet.PhaseReady, "")
		f.set("a:1", func(r *fakeReplica) { r.refused = true })
		time.Sleep(3 * time.Second)
		phase(t, state()["a:1"], fleet.PhaseFailed, "connection refused")
		time.Sleep(27 * time.Second)
		f.set("a:1", func(r *fakeReplica) { r.refused = false })
		time.Sleep(5 * time.Second)
		e := state()["a:1"]
		phase(t, e, fleet.PhaseReady, "")
		if !e.StartTime.OK() {
			t.Error("coming back after a refused connection is a new process")
		}
		phase(t, state()["b:1"], fleet.PhaseReady, "")
		if state()["b:1"].StartTime.OK() {
			t.Error("a replica that never went away has a start time out of nothing")
		}
	})
}

func TestBusyIsNotDead(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		ob, f, state := watched(t, []string{"a:1", "b:1"}, Options{})
		time.Sleep(5 * time.Second)
		f.set("a:1", func(r *fakeReplica) { r.slow = true })
		time.Sleep(2 * time.Minute)
		if e := state()["a:1"]; e.Phase != fleet.PhaseReady || !e.Slow {
			t.Errorf("scrapes succeed, so it is busy: %s slow %v (%s)", e.Phase, e.Slow, e.Reason)
		}
		// Nothing answers, but bytes of a response flow.
		f.set("a:1", func(r *fakeReplica) { r.frozen = true })
		for range 60 {
			time.Sleep(time.Second)
			ob.Alive("a:1")
		}
		if e := state()["a:1"]; e.Phase != fleet.PhaseReady || !e.Slow {
			t.Errorf("bytes flow, so it is busy: %s slow %v (%s)", e.Phase, e.Slow, e.Reason)
		}
		// Now nothing at all.
		time.Sleep(time.Minute)
		phase(t, state()["a:1"], fleet.PhaseFailed, "no sign of life")
		f.set("a:1", func(r *fakeReplica) { r.frozen, r.slow = false, false })
		time.Sleep(10 * time.Second)
		if e := state()["a:1"]; e.Phase != fleet.PhaseReady || e.Slow {
			t.Errorf("it recovered: %s slow %v (%s)", e.Phase, e.Slow, e.Reason)
		}
		// The last one is never taken out for being slow.
		f.set("b:1", func(r *fakeReplica) { r.refused = true })
		time.Sleep(10 * time.Second)
		f.set("a:1", func(r *fakeReplica) { r.frozen = true })
		time.Sleep(5 * time.Minute)
		if e := state()["a:1"]; e.Phase != fleet.PhaseReady || !e.Slow {
			t.Errorf("the last one: %s slow %v (%s)", e.Phase, e.Slow, e.Reason)
		}
	})
}

// TestGateTrace plays the situation of a slow engine second by second: probes time
// out, scrapes fail too, and only the bytes of responses tell that it lives.
func TestGateTrace(t *testing.T) {
	at := func(s int) fleet.Time { return fleet.Time(1e18).Add(time.Duration(s) * time.Second) }
	var g gate
	g.look(at(0), lookReady, "", false)
	for _, step := range []struct {
		t      int
		v      verdict
		scrape bool
		bytes  bool
		slow   bool
	}{
		{0, lookReady, true, true, false},
		{10, lookSlow, true, true, true},
		{20, lookSlow, false, true, true},
		{30, lookSlow, false, true, true},
		{40, lookSlow, true, true, true},
		{60, lookReady, true, true, true},
		{70, lookReady, true, true, false},
	} {
		if step.scrape || step.bytes {
			g.alive(at(step.t))
		}
		g.look(at(step.t), step.v, "x", false)
		if g.phase != fleet.PhaseReady || g.slow != step.slow {
			t.Errorf("t=%d: %s, slow %v, want ready, slow %v", step.t, g.phase, g.slow, step.slow)
		}
	}
	for _, s := range []int{80, 82} {
		g.look(at(s), lookDead, "connection refused", true)
	}
	if g.phase != fleet.PhaseFailed {
		t.Errorf("refused twice: %s; a fact takes even the last one out", g.phase)
	}
	g.look(at(84), lookReady, "", true)
	if g.phase != fleet.PhaseFailed {
		t.Errorf("one good look brings it back: %s", g.phase)
	}
	g.look(at(86), lookReady, "", true)
	if g.phase != fleet.PhaseReady {
		t.Errorf("two good looks: %s", g.phase)
	}
}

func TestRestartInPlace(t *testing.T) {
	text := func(start, tokens float64) string {
		return fmt.Sprintf("process_start_time_seconds %f\nvllm:prompt_tokens_total %f\nvllm:num_requests_running 0\n", start, tokens)
	}
	synctest.Test(t, func(t *testing.T) {
		_, f, state := watched(t, []string{"a:1", "b:1"}, Options{})
		f.set("a:1", func(r *fakeReplica) { r.metrics = text(100, 5000) })
		f.set("b:1", func(r *fakeReplica) { r.metrics = "llamacpp:prompt_tokens_total 700\nllamacpp:requests_processing 0\n" })
		time.Sleep(5 * time.Second)
		want(t, "start", state()["a:1"].StartTime, 100)
		unknown(t, "start of an engine that does not tell", state()["b:1"].StartTime)
		f.set("a:1", func(r *fakeReplica) { r.metrics = text(170, 20) })
		f.set("b:1", func(r *fakeReplica) { r.metrics = "llamacpp:prompt_tokens_total 3\nllamacpp:requests_processing 0\n" })
		time.Sleep(3 * time.Second)
		want(t, "start", state()["a:1"].StartTime, 170)
		phase(t, state()["a:1"], fleet.PhaseReady, "")
		first := state()["b:1"].StartTime
		if !first.OK() {
			t.Error("counters went back: a restart")
		}
		// The same start time, but counters go back: the engine behind the server is new.
		f.set("a:1", func(r *fakeReplica) { r.metrics = text(170, 1) })
		time.Sleep(3 * time.Second)
		if v := state()["a:1"].StartTime; v.V <= 170 {
			t.Errorf("start %v does not grow", v)
		}
	})
}

func TestAdaptersAreRemembered(t *testing.T) {
	info := func(running string, clock int) string {
		return fmt.Sprintf("vllm:num_requests_running 0\nvllm:lora_requests_info{max_lora=\"2\",running_lora_adapters=%q,waiting_lora_adapters=\"\"} %d\n", running, clock)
	}
	states := func(e fleet.EndpointState) string {
		var out []string
		for _, a := range e.Adapters {
			out = append(out, a.Name+"="+a.State.String())
		}
		return strings.Join(out, " ")
	}
	synctest.Test(t, func(t *testing.T) {
		_, f, state := watched(t, []string{"a:1"}, Options{})
		models := `{"data":[{"id":"m"},{"id":"x"},{"id":"y"},{"id":"z"}]}`
		step := func(metrics, want string) {
			t.Helper()
			f.set("a:1", func(r *fakeReplica) { r.metrics, r.models = metrics, models })
			time.Sleep(2 * modelsEvery) // the list is read
			if got := states(state()["a:1"]); got != want {
				t.Errorf("adapters %q, want %q", got, want)
			}
		}
		step(info("x", 1), "x=running")
		step(info("", 2), "x=resident")
		step(info("y", 3), "x=resident y=running")
		step(info("z", 4), "y=resident z=running")
		step(info("", 5), "y=resident z=resident")
		models = `{"data":[{"id":"m"},{"id":"z"}]}`
		step(info("", 6), "z=resident")
	})
}

func TestScrapeTrouble(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		_, f, state := watched(t, []string{"a:1", "none:1", "odd:1"}, Options{})
		f.set("none:1", func(r *fakeReplica) { r.metrics, r.models = "", `{"data":[{"id":"q:latest","owned_by":"library"}]}` })
		f.set("odd:1", func(r *fakeReplica) { r.metrics = "<html>hello</html>\n" })
		time.Sleep(5 * time.Second)
		if e := state()["none:1"]; e.Phase != fleet.PhaseReady || e.Engine != "ollama" || e.Running.OK() || e.Notes&fleet.NoteNoMetrics == 0 {
			t.Errorf("an engine without metrics: %+v", e)
		}
		if e := state()["none:1"]; !slices.Equal(e.Models, []string{"q", "q:latest"}) {
			t.Errorf("models %q: Ollama answers to q, too", e.Models)
		}
		if e := state()["odd:1"]; e.Phase != fleet.PhaseReady || e.Running.OK() || e.ScrapeError == "" {
			t.Errorf("a page instead of metrics: %+v", e)
		}
		before := state()["a:1"]
		f.set("a:1", func(r *fakeReplica) { r.metrics = "" })
		time.Sleep(5 * time.Second)
		e := state()["a:1"]
		if e.Running != before.Running && !e.Running.OK() || e.ScrapeError == "" {
			t.Errorf("the last known value is lost: %+v", e.Signals)
		}
		if age, ok := e.Running.Age(fleet.At(time.Now())); !ok || age < 3*time.Second {
			t.Errorf("the age of the last known value is %v", age)
		}
		f.mu.Lock()
		asked := f.r["none:1"].asked
		f.mu.Unlock()
		time.Sleep(time.Minute)
		f.mu.Lock()
		n := f.r["none:1"].asked - asked
		f.mu.Unlock()
		if n > 60 {
			t.Errorf("%d questions a minute to a replica without metrics", n)
		}
	})
}

func TestMetricsBesideJSON(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		ob, f, state := watched(t, []string{"a:1"}, Options{})
		f.set("a:1", func(r *fakeReplica) { r.json, r.metrics = true, "trtllm_num_requests_running 4\n" })
		time.Sleep(3 * time.Second)
		if e := state()["a:1"]; e.Running.V != 4 || e.Engine != "trtllm" || e.ScrapeError != "" {
			t.Errorf("%+v", e)
		}
		res, err := ob.Metrics(t.Context(), "a:1")
		if err != nil {
			t.Fatal(err)
		}
		defer res.Body.Close()
		if b, _ := io.ReadAll(res.Body); string(b) != "trtllm_num_requests_running 4\n" {
			t.Errorf("passed through: %q", b)
		}
	})
}

// TestBrokenEngine: a server whose engine died keeps answering, but not well.
func TestBrokenEngine(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		_, f, state := watched(t, []string{"a:1"}, Options{})
		time.Sleep(3 * time.Second)
		f.set("a:1", func(r *fakeReplica) { r.health = 503 })
		time.Sleep(4 * time.Second)
		phase(t, state()["a:1"], fleet.PhaseFailed, "/health answers 503")
		f.set("a:1", func(r *fakeReplica) { r.health, r.models = 0, `{"data":[]}` })
		time.Sleep(4 * time.Second)
		phase(t, state()["a:1"], fleet.PhaseLoading, "no model is listed yet")
		f.set("a:1", func(r *fakeReplica) { r.models = `{"data":[{"id":"m"}]}` })
		time.Sleep(4 * time.Second)
		phase(t, state()["a:1"], fleet.PhaseReady, "")
		// Its model goes away under it.
		f.set("a:1", func(r *fakeReplica) { r.models = "not json" })
		time.Sleep(40 * time.Second)
		phase(t, state()["a:1"], fleet.PhaseLoading, "not a list of models")
	})
}

func TestDrain(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		ob, f, state := watched(t, []string{"a:1", "b:1"}, Options{})
		time.Sleep(2 * time.Second)
		if err := ob.Drain("a:1", ""); err != nil {
			t.Fatal(err)
		}
		phase(t, state()["a:1"], fleet.PhaseDraining, "drained by operator")
		phase(t, state()["b:1"], fleet.PhaseReady, "")
		f.set("a:1", func(r *fakeReplica) { r.refused = true })
		time.Sleep(5 * time.Second)
		phase(t, state()["a:1"], fleet.PhaseFailed, "refused")
		f.set("a:1", func(r *fakeReplica) { r.refused = false })
		time.Sleep(10 * time.Second)
		phase(t, state()["a:1"], fleet.PhaseDraining, "drained")
		if err := ob.Undrain("a:1"); err != nil {
			t.Fatal(err)
		}
		phase(t, state()["a:1"], fleet.PhaseReady, "")
		if err := ob.Drain("c", ""); !errors.Is(err, ErrUnknownReplica) {
			t.Errorf("error %v", err)
		}
	})
}

func TestAPIKey(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var log strings.Builder
		_, f, state := watched(t, []string{"a:1"}, Options{APIKey: config.NewSecret("canary-k"), Log: slog.New(slog.NewTextHandler(&log, nil))})
		f.set("a:1", func(r *fakeReplica) { r.key = "Bearer other" })
		time.Sleep(2 * time.Second)
		phase(t, state()["a:1"], fleet.PhaseLoading, "asks for a key")
		f.set("a:1", func(r *fakeReplica) { r.key = "Bearer canary-k" })
		time.Sleep(2 * time.Second)
		phase(t, state()["a:1"], fleet.PhaseReady, "")
		if strings.Contains(log.String(), "canary") {
			t.Error("the key is in the log")
		}
	})
}

func TestSourceChanges(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		ob, f, state := watched(t, []string{"a:1"}, Options{})
		time.Sleep(2 * time.Second)
		v := ob.Snapshot().Version
		f.set("b:1", func(*fakeReplica) {})
		ob.SetSource(StaticURLs([]string{"http://a:1/", "http://b:1"}))
		time.Sleep(2 * time.Second)
		s := state()
		phase(t, s["a:1"], fleet.PhaseReady, "")
		phase(t, s["b:1"], fleet.PhaseReady, "")
		if ob.Snapshot().Version <= v {
			t.Error("the version does not grow")
		}
		ob.SetSource(StaticURLs([]string{"http://b:1"}))
		time.Sleep(time.Second)
		if s := state(); len(s) != 1 || s["b:1"].Phase != fleet.PhaseReady {
			t.Errorf("after the change: %+v", s)
		}
	})
}
