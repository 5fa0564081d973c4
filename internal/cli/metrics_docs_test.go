// SPDX-License-Identifier: Apache-2.0

package cli

import (
	"fmt"
	"os"
	"path/filepath"
	"regexp"
	"runtime"
	"slices"
	"strings"
	"testing"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/penstock-project/penstock/deploy/alerts"
	"github.com/penstock-project/penstock/deploy/monitoring"
	"github.com/penstock-project/penstock/internal/config"
)

// writeMetrics in the environment writes the page of metrics, the dashboard and the
// alert rules anew.
const writeMetrics = "PENSTOCK_WRITE_METRICS"

// metricRow is one metric as a server registers it.
type metricRow struct{ name, kind, help, labels string }

// hist are the metrics that are histograms: their description does not tell.
var hist = regexp.MustCompile(`^penstock_(gateway_(request_duration|queue|overhead|ttft|inter_token)|rollout_ttft|rollout_itl|epp_pick_duration)_seconds$`)

var descText = regexp.MustCompile(`(?s)^Desc\{fqName: "([^"]*)", help: "(.*?)", (?:unit: "[^"]*", )?constLabels: \{(.*?)\}, variableLabels: \{(.*?)\}`)

// metricTable asks a server with everything turned on for its metrics.
func metricTable(t *testing.T) []metricRow {
	t.Helper()
	c := config.Default()
	c.Listen.HTTP, c.Listen.Admin, c.Listen.EPP = "127.0.0.1:0", "127.0.0.1:0", "127.0.0.1:0"
	p := config.DefaultPool("chat")
	p.Models = []config.Model{{Name: "m"}}
	p.Replicas.Static = []string{"http://127.0.0.1:1"}
	c.Pools = []config.Pool{p}
	s, err := buildServer(serverOptions{Config: c})
	if err != nil {
		t.Fatal(err)
	}
	defer s.Close()
	found := make(chan *prometheus.Desc, 4096)
	s.reg.Describe(found)
	close(found)
	var out []metricRow
	for d := range found {
		g := descText.FindStringSubmatch(d.String())
		if g == nil {
			t.Fatalf("cannot read %s", d)
		}
		if !strings.HasPrefix(g[1], "penstock_") {
			continue
		}
		labels := g[4]
		if g[1] == "penstock_build_info" {
			labels = "version,revision,go"
		}
		r := metricRow{name: g[1], help: strings.ReplaceAll(g[2], `\"`, `"`), labels: strings.ReplaceAll(labels, ",", ", ")}
		switch {
		case hist.MatchString(r.name):
			r.kind = "histogram"
		case strings.HasSuffix(r.name, "_total"):
			r.kind = "counter"
		default:
			r.kind = "gauge"
		}
		out = append(out, r)
	}
	slices.SortFunc(out, func(a, b metricRow) int { return strings.Compare(a.name, b.name) })
	return out
}

func repoFile(name string) string {
	_, file, _, _ := runtime.Caller(0)
	return filepath.Join(filepath.Dir(file), "..", "..", filepath.FromSlash(name))
}

// upToDate compares a generated file with what is in the repository.
func upToDate(t *testing.T, name string, want []byte) {
	t.Helper()
	if os.Getenv(writeMetrics) != "" {
		if err := os.MkdirAll(filepath.Dir(repoFile(name)), 0o755); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(repoFile(name), want, 0o644); err != nil {
			t.Fatal(err)
		}
	}
	have, err := os.ReadFile(repoFile(name))
	if err != nil || string(have) != string(want) {
		t.Errorf("%s is not what the table of metrics gives; run: %s=1 go test ./internal/cli -run TestMetricsAreDocumented", name, writeMetrics)
	}
}

func TestMetricsAreDocumented(t *testing.T) {
	table := metricTable(t)
	var b strings.Builder
	b.WriteString("# Metrics\n\n`/metrics` of the admin listener, in the text format of Prometheus. A value that is unknown is left out, never exported as 0.\n" +
		"The metrics of each replica, verbatim: `/replicas/ID/metrics`; a list of all replicas for Prometheus' HTTP service discovery:\n`/api/v1/http_sd`. Beside these come the usual `go_` and `process_` metrics.\n\n" +
		"The dashboard `deploy/grafana/penstock.json` and the alert rules `deploy/alerts/penstock.rules.yaml` use these names; a test\nkeeps page, dashboard and rules equal to what a server registers.\n\n" +
		"| Metric | Type | Labels | Meaning |\n|---|---|---|---|\n")
	for _, r := range table {
		fmt.Fprintf(&b, "| `%s` | %s | %s | %s |\n", r.name, r.kind, r.labels, strings.ReplaceAll(r.help, "|", "\\|"))
	}
	upToDate(t, "docs/reference/metrics.md", []byte(b.String()))
	upToDate(t, "deploy/grafana/penstock.json", monitoring.Dashboard())
	upToDate(t, "deploy/alerts/penstock.rules.yaml", monitoring.Rules())
}

// TestMonitoringUsesRealMetrics: every name in the dashboard and in the rules is one
// that a server registers, and runbooks exist.
func TestMonitoringUsesRealMetrics(t *testing.T) {
	known := map[string]bool{}
	for _, r := range metricTable(t) {
		known[r.name] = true
		if r.kind == "histogram" {
			known[r.name+"_bucket"] = true
		}
	}
	name := regexp.MustCompile(`\bpenstock_[a-z0-9_]+\b`)
	for what, text := range map[string]string{"dashboard": string(monitoring.Dashboard()), "rules": string(monitoring.Rules()), "rules of the picker": string(alerts.EPP)} {
		for _, n := range name.FindAllString(text, -1) {
			if !known[n] {
				t.Errorf("the %s use %s, which no server registers", what, n)
			}
		}
	}
	for _, a := range monitoring.Alerts() {
		if _, err := os.Stat(repoFile(a.Runbook)); err != nil {
			t.Errorf("%s: the runbook %s does not exist", a.Name, a.Runbook)
		}
	}
}
