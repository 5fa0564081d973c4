// SPDX-License-Identifier: Apache-2.0

package console

import (
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"
	"time"

	"github.com/penstock-project/penstock/internal/journal"
)

// byBearer takes the role from the bearer token of a test.
type byBearer struct{}

func (byBearer) Operator(r *http.Request) (Operator, bool, time.Duration) {
	name := strings.TrimPrefix(r.Header.Get("Authorization"), "Bearer ")
	switch name {
	case "read", "operate", "admin", "":
		return Operator{Name: "key-" + name, Role: name}, name != "", 0
	case "later":
		return Operator{}, false, 3 * time.Second
	case "odd":
		return Operator{Name: "odd", Role: "root"}, true, 0
	}
	return Operator{Name: name}, name == "plain", 0
}

type fakeRollouts struct{ did []string }

func (f *fakeRollouts) Rollouts() []Rollout { return []Rollout{{Name: "review", State: "running"}} }

func (f *fakeRollouts) Act(name, what, by string) (bool, error) {
	f.did = append(f.did, name+" "+what+" "+by)
	return name == "review", nil
}

func TestRoles(t *testing.T) {
	audit, err := journal.OpenAudit("", nil)
	if err != nil {
		t.Fatal(err)
	}
	ro := &fakeRollouts{}
	s := New(Options{Pools: func() []Pool { return nil }, Doorkeeper: byBearer{}, Audit: audit, Rollouts: ro, Loopback: true,
		Metrics: http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) { writeText(w, "x 1\n") })})
	ask := func(method, path, bearer string) *httptest.ResponseRecorder {
		r := httptest.NewRequest(method, path, nil)
		r.Host = "127.0.0.1:9900"
		if bearer != "" {
			r.Header.Set("Authorization", "Bearer "+bearer)
		}
		w := httptest.NewRecorder()
		s.ServeHTTP(w, r)
		return w
	}
	for _, c := range []struct {
		method, path, who string
		status            int
	}{
		{"GET", "/healthz", "", 200}, {"GET", "/readyz", "", 200},
		{"GET", "/api/v1/status", "", 401}, {"GET", "/metrics", "", 401}, {"GET", "/api/v1/status", "stranger", 401}, {"GET", "/api/v1/status", "later", 503},
		{"GET", "/api/v1/status", "plain", 403}, {"GET", "/api/v1/status", "odd", 403}, {"GET", "/api/v1/status", "read", 200}, {"GET", "/metrics", "read", 200},
		{"POST", "/api/v1/rollout/review/promote", "", 401}, {"POST", "/api/v1/rollout/review/promote", "read", 403},
		{"POST", "/api/v1/rollout/review/promote", "operate", 200}, {"POST", "/api/v1/rollout/review/abort", "admin", 200},
		{"POST", "/api/v1/rollout/other/hold", "operate", 404}, {"POST", "/api/v1/rollout/review/dance", "operate", 404},
		{"POST", "/api/v1/config/x", "operate", 403}, {"DELETE", "/api/v1/status", "read", 403},
		{"POST", "/api/v1/replay?policy=min-ttft", "read", 200}, {"POST", "/api/v1/replay?policy=min-ttft", "plain", 403}, {"POST", "/api/v1/scale/chat/ask", "read", 404},
		{"GET", "/api/v1/audit", "read", 200}, {"GET", "/api/v1/rollout", "read", 200},
	} {
		if w := ask(c.method, c.path, c.who); w.Code != c.status {
			t.Errorf("%s %s as %q: %d %s", c.method, c.path, c.who, w.Code, w.Body)
		}
	}
	if got := strings.Join(ro.did, ", "); got != "review promote key-operate, review abort key-admin, other hold key-operate" {
		t.Errorf("done: %s", got)
	}
	var lines []string
	for _, e := range audit.Last(100) {
		lines = append(lines, e.Who+" "+e.Action+" "+e.Target+map[bool]string{true: " ok", false: " no"}[e.OK])
	}
	want := "key-read status  no, key-operate config x no, key-operate rollout.dance review no, key-operate rollout.hold other no, " +
		"key-admin rollout.abort review ok, key-operate rollout.promote review ok, key-read rollout.promote review no"
	if got := strings.Join(lines, ", "); got != want {
		t.Errorf("audit:\n%s\nwant\n%s", got, want)
	}
	if h := ask("GET", "/api/v1/status", "").Header()["Www-Authenticate"]; len(h) != 2 {
		t.Errorf("challenge %q", h)
	}
}

func TestHosts(t *testing.T) {
	for _, c := range []struct {
		loopback bool
		host     string
		ok       bool
	}{
		{true, "localhost:9900", true}, {true, "evil.example", false}, {true, "10.0.0.1:9900", false},
		{false, "10.0.0.1:9900", true}, {false, "[fd00::1]:9900", true}, {false, "Penstock.example.com", true}, {false, "evil.example", false}, {false, "", false},
	} {
		s := &Server{o: Options{Loopback: c.loopback, Hosts: []string{"penstock.example.com"}}}
		if s.hostAllowed(c.host) != c.ok {
			t.Errorf("%+v", c)
		}
	}
}
