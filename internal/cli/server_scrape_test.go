// SPDX-License-Identifier: Apache-2.0

package cli

import (
	"io"
	"net/http"
	"net/url"
	"strings"
	"testing"

	"github.com/penstock-project/penstock/internal/config"
)

// Whoever scrapes reaches metrics and probes, by any name of the host, and nothing of
// the admin API.
func TestScrapeListener(t *testing.T) {
	e := newEngine(t)
	s, stop := runServer(t, func(c *config.Config) { c.Listen.Prometheus = "127.0.0.1:0" }, e.URL)
	base := s.MetricsURL()
	if base == "" {
		t.Fatal("no listener")
	}
	replica := url.PathEscape(strings.TrimPrefix(e.URL, "http://"))
	for _, c := range []struct {
		method, path string
		status       int
		want         string
	}{
		{"GET", "/metrics", 200, "penstock_build_info"},
		{"GET", "/healthz", 200, "ok"},
		{"GET", "/readyz", 200, "ok"},
		{"GET", "/replicas/" + replica + "/metrics", 200, "vllm:num_requests_running"},
		{"GET", "/api/v1/status", 404, ""},
		{"GET", "/api/v1/decisions", 404, ""},
		{"GET", "/", 404, ""},
		{"POST", "/metrics", 405, ""},
		{"POST", "/api/v1/replicas/" + replica + "/drain", 404, ""},
	} {
		req, err := http.NewRequest(c.method, base+c.path, nil)
		if err != nil {
			t.Fatal(err)
		}
		req.Host = "penstock.models.svc"
		res, err := http.DefaultClient.Do(req)
		if err != nil {
			t.Fatal(err)
		}
		body, _ := io.ReadAll(res.Body)
		res.Body.Close()
		if res.StatusCode != c.status || !strings.Contains(string(body), c.want) {
			t.Errorf("%s %s: %d %.200s", c.method, c.path, res.StatusCode, body)
		}
	}
	if err := stop(); err != nil {
		t.Error(err)
	}
	if _, err := http.Get(base + "/healthz"); err == nil {
		t.Error("the listener is still open")
	}
}
