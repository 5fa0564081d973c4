// SPDX-License-Identifier: Apache-2.0

package console

import (
	"bufio"
	"encoding/json"
	"math"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"
	"time"

	"pgregory.net/rapid"

	"github.com/penstock-project/penstock/internal/diagnose"
	"github.com/penstock-project/penstock/internal/fleet"
	"github.com/penstock-project/penstock/internal/route"
)

// TestHistogram: a quantile lies within 5 % of the exact one.
func TestHistogram(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		values := rapid.SliceOfN(rapid.Float64Range(0.2, 600_000), 1, 60).Draw(t, "values")
		q := rapid.Float64Range(0.01, 1).Draw(t, "q")
		var h histogram
		for _, v := range values {
			h.add(v)
		}
		got := h.quantile(q)
		rank := max(1, int(math.Ceil(q*float64(len(values)))))
		below, upTo := 0, 0
		for _, v := range values {
			if v < got/1.06 {
				below++
			}
			if v <= got*1.06 {
				upTo++
			}
		}
		if below >= rank || upTo < rank {
			t.Fatalf("quantile %v of %v is %v", q, values, got)
		}
	})
	if v := new(histogram).quantile(0.5); !math.IsNaN(v) {
		t.Errorf("of nothing: %v", v)
	}
}

func TestWindow(t *testing.T) {
	var w window
	for sec := int64(1000); sec < 1200; sec++ {
		w.at(sec).add(&route.Brief{Kind: "ok", TTFTMS: 100, Prompt: 100, Cached: 60, Output: 5, MeanCached: 10, BestCached: 50})
	}
	w.at(1199).add(&route.Brief{Kind: "timeout", TTFTMS: -1, Prompt: 100, Cached: -1, MeanCached: -1, BestCached: -1})
	w.at(1199).add(&route.Brief{Kind: "client_gone", TTFTMS: -1, Prompt: 0, Cached: -1, MeanCached: -1, BestCached: -1})
	r := recentOf(w.over(1199, 60))
	if r.Requests != 62 || r.Failed != 1 || math.Abs(float64(r.TTFTP95MS)-100) > 6 || r.Hit != 0.6 || r.HitRandom != 0.1 {
		t.Errorf("%+v", r)
	}
	// What was found was there: the ceiling is never under the actual share.
	if r.HitBest != 0.6 {
		t.Errorf("ceiling %v", r.HitBest)
	}
	if n := w.over(1300, 60).requests; n != 0 {
		t.Errorf("a minute later there are still %d", n)
	}
}

// TestSettle: a state counts once it has held, being down at once.
func TestSettle(t *testing.T) {
	h := newHistory()
	p := h.pool("chat")
	at := time.Unix(5000, 0)
	step := func(s diagnose.State, after time.Duration) diagnose.State {
		at = at.Add(after)
		h.settle(p, "chat", diagnose.Verdict{State: s}, at)
		return p.verdict.State
	}
	for i, c := range []struct {
		s     diagnose.State
		after time.Duration
		want  diagnose.State
	}{
		{diagnose.StateGood, 0, diagnose.StateGood}, {diagnose.StateStrained, time.Second, diagnose.StateGood}, {diagnose.StateGood, time.Second, diagnose.StateGood},
		{diagnose.StateStrained, time.Second, diagnose.StateGood}, {diagnose.StateStrained, 4 * time.Second, diagnose.StateGood}, {diagnose.StateStrained, 2 * time.Second, diagnose.StateStrained},
		{diagnose.StateDown, time.Second, diagnose.StateDown}, {diagnose.StateGood, time.Second, diagnose.StateGood}, {diagnose.StateIdle, time.Second, diagnose.StateIdle},
	} {
		if got := step(c.s, c.after); got != c.want {
			t.Errorf("step %d: %s, want %s", i, got, c.want)
		}
	}
	if len(h.marks) != 4 {
		t.Errorf("marks %+v", h.marks)
	}
}

func TestHistoryIsBounded(t *testing.T) {
	h := newHistory()
	now := time.Unix(100_000, 0)
	st := &PoolStatus{Name: "chat"}
	for i := range 3 * maxSpans {
		st.Replica = []ReplicaStatus{{ID: "r0", Phase: []string{"ready", "failed"}[i%2]}}
		h.phases(h.pool("chat"), st, now.Add(time.Duration(i)*time.Millisecond))
	}
	h.forget(now.Add(10 * time.Second))
	if len(h.spans) != maxSpans || len(h.marks) != maxMarks {
		t.Errorf("%d spans, %d marks", len(h.spans), len(h.marks))
	}
	st.Replica = nil
	h.phases(h.pool("chat"), st, now.Add(20*time.Second))
	h.forget(now.Add(time.Hour))
	if len(h.spans) != 0 || len(h.marks) != 0 {
		t.Errorf("an hour later: %d spans, %d marks", len(h.spans), len(h.marks))
	}
}

// TestFindingsKeepTheirTime: a finding that stays is one interval, one that goes is
// closed.
func TestFindingsKeepTheirTime(t *testing.T) {
	h := newHistory()
	at := time.Unix(100, 0)
	f := diagnose.New("signals-stale", "replica chat/r1", "", 0)
	for i := range 5 {
		h.hold([]diagnose.Finding{f}, at.Add(time.Duration(i)*time.Second))
	}
	h.hold(nil, at.Add(9*time.Second))
	h.hold([]diagnose.Finding{f}, at.Add(12*time.Second))
	if len(h.findings) != 2 || !h.findings[0].From.Equal(at) || h.findings[0].To == nil || h.findings[0].To.Sub(at) != 9*time.Second || h.findings[1].To != nil {
		t.Errorf("%+v %+v", h.findings[0], h.findings[1])
	}
}

func TestLiveStream(t *testing.T) {
	a := newAdmin(t)
	srv := httptest.NewServer(a)
	defer srv.Close()
	res, err := http.Get(srv.URL + "/api/v1/live?decisions=1&filter=model%3Dm")
	if err != nil {
		t.Fatal(err)
	}
	defer res.Body.Close()
	lines := bufio.NewScanner(res.Body)
	lines.Buffer(nil, 1<<20)
	event := func() (name, data string) {
		for lines.Scan() {
			if v, ok := strings.CutPrefix(lines.Text(), "event: "); ok {
				name = v
			} else if v, ok := strings.CutPrefix(lines.Text(), "data: "); ok {
				return name, v
			}
		}
		t.Fatal("the stream ended")
		return "", ""
	}
	name, data := event()
	var l Live
	if err := json.Unmarshal([]byte(data), &l); err != nil || name != "tick" || len(l.Pools) != 1 || l.Pools[0].Replicas[0].ID != "r0" {
		t.Fatalf("%s %s: %v", name, data, err)
	}
	// The subscription follows the first state, so records come until one is seen.
	stop := make(chan struct{})
	defer close(stop)
	go func() {
		for {
			select {
			case <-stop:
				return
			case <-time.After(5 * time.Millisecond):
				a.j.Record(&route.Record{Schema: route.Schema, ID: "other", Pool: "chat", Time: time.Unix(9, 0)})
				a.j.Record(&route.Record{Schema: route.Schema, ID: "mine", Pool: "chat", Time: time.Unix(9, 0), Request: route.Asked{Model: "m"}})
			}
		}
	}()
	var b rows
	name, data = event()
	if err := json.Unmarshal([]byte(data), &b); err != nil || name != "decisions" || len(b.Rows) == 0 || len(b.Rows) > rowsMost {
		t.Fatalf("%s %s: %v", name, data, err)
	}
	for _, r := range b.Rows {
		if r.ID != "mine" {
			t.Errorf("%s passes the filter", r.ID)
		}
	}
	a.tick()
	for name != "tick" {
		name, data = event()
	}
	if !strings.Contains(data, `"state":"`) {
		t.Errorf("%s", data)
	}
}

func TestSeries(t *testing.T) {
	a := newAdmin(t)
	ttft := 240.0
	a.j.Record(&route.Record{Schema: route.Schema, ID: "q", Pool: "chat", Chosen: "r0", Outcome: &route.Result{Kind: "ok", TTFTMS: &ttft}})
	a.tick()
	var s struct {
		End   int64
		Pools []struct {
			Name    string
			Columns map[string][]*float64
		}
		Phases []Span
	}
	w := a.do("GET", "/api/v1/series?pool=chat", "")
	if err := json.Unmarshal(w.Body.Bytes(), &s); err != nil || len(s.Pools) != 1 || len(s.Phases) != 1 || s.Phases[0].Phase != fleet.PhaseReady.String() {
		t.Fatalf("%s: %v", w.Body, err)
	}
	c := s.Pools[0].Columns
	if len(c) != numColumns || *c["ready"][0] != 1 || math.Abs(*c["ttft_p95_ms"][0]-240) > 13 || c["hit"][0] != nil || c["desired"][0] != nil {
		t.Errorf("%s", w.Body)
	}
	if p := a.Status().Pools[0]; p.Verdict == nil || p.Recent.Requests != 1 || p.SLO == nil {
		t.Errorf("status %+v", p)
	}
}

func TestPages(t *testing.T) {
	a := newAdmin(t)
	for _, path := range []string{"/", "/decisions", "/decisions/x", "/scale/chat", "/incident", "/whatif", "/tenants", "/models", "/rollout"} {
		w := a.do("GET", path, "")
		if w.Code != 200 || !strings.HasPrefix(w.Header().Get("Content-Type"), "text/html") || !strings.Contains(w.Header().Get("Content-Security-Policy"), "default-src 'none'") {
			t.Errorf("%s: %d %v", path, w.Code, w.Header())
		}
	}
	if w := a.do("GET", "/assets/nothing.js", ""); w.Code != 404 {
		t.Errorf("%d", w.Code)
	}
	if w := a.do("GET", "/", "", "If-None-Match", a.do("GET", "/", "").Header().Get("ETag")); w.Code != 304 {
		t.Errorf("the same page again: %d", w.Code)
	}
}

func TestReplayOfASentJournal(t *testing.T) {
	a := newAdmin(t)
	line := `{"schema":"penstock/decision/v1","id":"x","time":"2026-11-29T10:00:00Z","policy":"penstock","chosen":"r1","candidates":[]}` + "\n"
	w := a.do("POST", "/api/v1/replay?policy=least-requests&policy=min-ttft", line+line)
	if b := w.Body.String(); w.Code != 200 || strings.Count(b, `"policy"`) != 2 || !strings.Contains(b, `"from": "2026-11-29T10:00:00Z"`) && !strings.Contains(b, `"from":"2026-11-29T10:00:00Z"`) {
		t.Errorf("%d %s", w.Code, w.Body)
	}
	for query, body := range map[string]string{"": line, "?policy=random": line, "?policy=min-ttft": "no journal\n", "?policy=x": ""} {
		if w := a.do("POST", "/api/v1/replay"+query, body); w.Code != 400 {
			t.Errorf("%q %q: %d %s", query, body, w.Code, w.Body)
		}
	}
	if w := a.do("POST", "/api/v1/replay?policy=min-ttft", ""); w.Code != 200 || !strings.Contains(w.Body.String(), `null`) {
		t.Errorf("an empty journal: %d %s", w.Code, w.Body)
	}
}

func TestWhatIfAndReplay(t *testing.T) {
	a := newAdmin(t)
	w := a.do("POST", "/api/v1/whatif", `{"replicas":2,"shared":0.5,"requests":300,"policies":["random","penstock"]}`)
	if w.Code != 200 || strings.Count(w.Body.String(), `"policy"`) != 2 {
		t.Errorf("%d %s", w.Code, w.Body)
	}
	for _, body := range []string{`{"replicas":0}`, `{"policies":["x"]}`, `nonsense`} {
		if w := a.do("POST", "/api/v1/whatif", body); w.Code != 400 {
			t.Errorf("%s: %d %s", body, w.Code, w.Body)
		}
	}
	if w := a.do("GET", "/api/v1/replay?policy=random", ""); w.Code != 400 || !strings.Contains(w.Body.String(), "cannot be replayed") {
		t.Errorf("%d %s", w.Code, w.Body)
	}
	if w := a.do("GET", "/api/v1/replay?policy=least-requests", ""); w.Code != 200 || !strings.Contains(w.Body.String(), `"records":0`) {
		t.Errorf("%d %s", w.Code, w.Body)
	}
	if w := a.do("GET", "/api/v1/decisions/none/repick?policy=penstock", ""); w.Code != 404 {
		t.Errorf("%d", w.Code)
	}
	if w := a.do("GET", "/api/v1/findings", ""); w.Code != 200 || !strings.Contains(w.Body.String(), diagnose.Schema) {
		t.Errorf("%d %s", w.Code, w.Body)
	}
}

// freeWhileWritten is a client during whose reading the history must not be locked.
type freeWhileWritten struct {
	*httptest.ResponseRecorder
	h      *history
	locked bool
}

func (w *freeWhileWritten) Write(b []byte) (int, error) {
	if w.h.mu.TryLock() {
		w.h.mu.Unlock()
	} else {
		w.locked = true
	}
	return w.ResponseRecorder.Write(b)
}

func TestSeriesDoesNotHoldTheHistory(t *testing.T) {
	a := newAdmin(t)
	a.tick()
	w := &freeWhileWritten{ResponseRecorder: httptest.NewRecorder(), h: a.history}
	a.series(w, httptest.NewRequest("GET", "/api/v1/series", nil))
	if w.locked || w.Body.Len() == 0 {
		t.Errorf("locked %v while %d bytes were written", w.locked, w.Body.Len())
	}
}
