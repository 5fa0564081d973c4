// SPDX-License-Identifier: Apache-2.0

package console

import (
	"context"
	"fmt"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"
	"time"

	"github.com/prometheus/common/expfmt"
	"github.com/prometheus/common/model"

	"github.com/penstock-project/penstock/internal/dispatch"
	"github.com/penstock-project/penstock/internal/flow"
	"github.com/penstock-project/penstock/internal/journal"
	"github.com/penstock-project/penstock/internal/observe"
)

// TestHostileReplicaPage: what a replica sends as its metrics is never a page that runs
// its scripts with the session of whoever looks at it, and cannot spoil the page of all.
func TestHostileReplicaPage(t *testing.T) {
	replica := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		switch r.URL.Path {
		case "/v1/models":
			fmt.Fprint(w, `{"data":[{"id":"m","owned_by":"vllm"}]}`)
		case "/metrics":
			w.Header().Set("Content-Type", "text/html")
			w.Header().Set("Set-Cookie", "penstock_session=mine")
			fmt.Fprint(w, "x{penstock_pool=\"other\",penstock_replica=\"r9\"} 1\n# <script>fetch('/api/v1/replicas/r0/drain',{method:'POST'})</script>\n")
		}
	}))
	defer replica.Close()
	f := flow.New(flow.Options{Pool: "chat", Dispatch: dispatch.New(dispatch.Options{Pool: "chat"})})
	defer f.Close()
	ob := observe.New(observe.Options{Pool: "chat", Source: observe.Static{{ID: "r0", URL: replica.URL, Rank: -1}}, Models: []string{"m"},
		Interval: 20 * time.Millisecond, Publish: f.Observe})
	ctx, cancel := context.WithCancel(t.Context())
	done := make(chan struct{})
	go func() { defer close(done); _ = ob.Run(ctx) }()
	defer func() { cancel(); <-done }()
	s := New(Options{Pools: func() []Pool { return []Pool{{Name: "chat", Flow: f, Observer: ob}} }, Loopback: true})
	ask := func(path string) *httptest.ResponseRecorder {
		w := httptest.NewRecorder()
		s.ServeHTTP(w, httptest.NewRequest("GET", "http://127.0.0.1:9900"+path, nil))
		return w
	}
	for ob.Snapshot() == nil || len(ob.Snapshot().Endpoints) == 0 {
		time.Sleep(5 * time.Millisecond)
	}
	w := ask("/replicas/r0/metrics")
	if h := w.Header(); w.Code != 200 || !strings.HasPrefix(h.Get("Content-Type"), "text/plain") || !strings.Contains(h.Get("Content-Security-Policy"), "sandbox") || h.Get("Set-Cookie") != "" {
		t.Errorf("%d %v", w.Code, h)
	}
	if text := ask("/federate").Body.String(); !strings.Contains(text, `x{penstock_pool="chat",penstock_replica="r0"} 1`) {
		t.Errorf("federated: %s", text)
	}
}

// TestStrangersLeaveNoAudit: without a credential nothing is written in the name of
// somebody, and only a judged attempt to sign in is written at all.
func TestStrangersLeaveNoAudit(t *testing.T) {
	audit, err := journal.OpenAudit("", nil)
	if err != nil {
		t.Fatal(err)
	}
	s := New(Options{Pools: func() []Pool { return nil }, Doorkeeper: &oneKey{key: "s3cret", role: "read"}, Audit: audit, Loopback: true})
	post := func(path, body string) {
		r := httptest.NewRequest("POST", "http://127.0.0.1:9900"+path, strings.NewReader(body))
		r.Header.Set("Content-Type", "application/x-www-form-urlencoded")
		s.ServeHTTP(httptest.NewRecorder(), r)
	}
	for _, path := range []string{"/logout", "/assets/replicas/r0/drain", "/healthz", "/favicon.svg"} {
		post(path, "")
	}
	if l := audit.Last(10); len(l) != 0 {
		t.Errorf("strangers wrote %+v", l)
	}
	post("/login", "key=wrong")
	post("/login", "key=s3cret")
	l := audit.Last(10)
	if len(l) != 2 || l[0].Who != "k1" || !l[0].OK || l[1].Who != "unknown" || l[1].OK || l[1].Role != "" || l[1].Action != "login" {
		t.Errorf("audit %+v", l)
	}
}

// FuzzFederate: no exposition of a replica makes the page of all fail.
func FuzzFederate(f *testing.F) {
	f.Add(exposition)
	f.Add("# TYPE x histogram\nx_bucket{le=\"+Inf\"} 1\nx_sum NaN\n# TYPE y summary\ny{quantile=\"0.5\"} 1 12\n{\"a.b\",c=\"d\"} 1\n")
	f.Fuzz(func(t *testing.T, s string) {
		parser := expfmt.NewTextParser(model.UTF8Validation)
		families, _ := parser.TextToMetricFamilies(strings.NewReader(s))
		for _, m := range families {
			_, _ = expfmt.MetricFamilyToText(&strings.Builder{}, m)
		}
	})
}
