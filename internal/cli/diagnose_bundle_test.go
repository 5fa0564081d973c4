// SPDX-License-Identifier: Apache-2.0

package cli

import (
	"archive/tar"
	"bytes"
	"compress/gzip"
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/penstock-project/penstock/internal/console"
	"github.com/penstock-project/penstock/internal/route"
)

// canary stands wherever a secret, a prompt or a name of a customer could be.
const canary = "CANARY7f3a91"

// leakyServer is an admin API that has the canary in every text from outside.
func leakyServer(t *testing.T) *httptest.Server {
	t.Helper()
	three := 3.0
	st := console.Status{
		Schema: console.StatusSchema, Time: time.Unix(1_700_000_000, 0), Ready: true,
		Config: console.ConfigState{File: "/etc/" + canary + ".yaml", Error: `bad key "` + canary + `"`},
		Pools: []console.PoolStatus{{Name: "chat", Policy: "penstock", Models: []string{"m"}, Source: "http://" + canary + "@x", Replica: []console.ReplicaStatus{{
			ID: "r0", URL: "http://user:" + canary + "@127.0.0.1:8000/?key=" + canary, Phase: "failed", Reason: `401: {"error": "` + canary + `"}`,
			ScrapeError: "http://127.0.0.1/?token=" + canary, SignalAgeMS: &three, Models: []string{}, Notes: []string{canary},
		}}}},
	}
	rec := route.Record{
		Schema: route.Schema, ID: "id1", Time: time.Unix(1_700_000_000, 0), Chosen: "r0", Policy: "penstock", Why: `because "` + canary + `"`,
		Request: route.Asked{Tenant: canary + " Corp", Model: "m", PromptTokens: 100}, Candidates: []route.PricedEndpoint{}, WouldChangeIf: []string{},
		Outcome: &route.Result{Status: 200, Kind: "ok"},
	}
	mux := http.NewServeMux()
	answer := func(v any) http.HandlerFunc {
		return func(w http.ResponseWriter, _ *http.Request) {
			w.Header().Set("Content-Type", "application/json")
			_ = json.NewEncoder(w).Encode(v)
		}
	}
	mux.HandleFunc("/api/v1/status", answer(st))
	// A field that the record does not have: a later version might.
	raw, err := json.Marshal(rec)
	if err != nil {
		t.Fatal(err)
	}
	raw = append(bytes.TrimSuffix(raw, []byte("}")), []byte(`,"prompt":"`+canary+`"}`)...)
	mux.HandleFunc("/api/v1/decisions", answer(map[string]any{"schema": "penstock/decisions/v1", "decisions": []json.RawMessage{raw}}))
	mux.HandleFunc("/replicas/r0/metrics", func(w http.ResponseWriter, _ *http.Request) {
		fmt.Fprintf(w, "# HELP vllm:x about %s\n# TYPE vllm:x gauge\nvllm:x{model_name=\"m\",user=\"%s\",url=\"/v1?k=%s\"} 3\n", canary, canary, canary)
	})
	srv := httptest.NewServer(mux)
	t.Cleanup(srv.Close)
	return srv
}

// TestBundleIsSafeToShare looks for the canary in everything that an archive holds,
// and judges the archive as another machine would.
func TestBundleIsSafeToShare(t *testing.T) {
	srv := leakyServer(t)
	dir := t.TempDir()
	write := func(name, text string) {
		if err := os.WriteFile(filepath.Join(dir, name), []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	write("engine.log", "INFO 03-01 09:00:05 [api_server.py:1] non-default args: {'api_key': ['"+canary+"']}\n"+
		"INFO 03-01 09:00:30 [x.py:1] prompt: '"+canary+"'\nINFO 03-01 09:01:30 [m.py:2] Model loading took 8.0 GiB and 40.000000 seconds\nERROR 03-01 09:02:30 [core.py:5] EngineCore failed to start. "+canary+"\n")
	write("deploy.yaml", "apiVersion: apps/v1\nkind: Deployment\nmetadata: {name: m}\nspec: {template: {spec: {containers: [{name: e, image: vllm/vllm-openai, args: [\"--api-key "+canary+" --x\"], env: [{name: HF_TOKEN, value: "+canary+"}]}]}}}\n")
	out := filepath.Join(dir, "bundle.tar.gz")
	code, stdout, stderr := run(t, false, "diagnose", "bundle", filepath.Join(dir, "engine.log"), filepath.Join(dir, "deploy.yaml"), "--file", out, "--server", srv.URL)
	if code != 0 {
		t.Fatalf("code %d\n%s%s", code, stdout, stderr)
	}
	f, err := os.Open(out)
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	zr, err := gzip.NewReader(f)
	if err != nil {
		t.Fatal(err)
	}
	tr := tar.NewReader(zr)
	names := map[string]bool{}
	for {
		h, err := tr.Next()
		if err == io.EOF {
			break
		}
		if err != nil {
			t.Fatal(err)
		}
		b, err := io.ReadAll(tr)
		if err != nil {
			t.Fatal(err)
		}
		names[strings.TrimPrefix(h.Name, "penstock-bundle/")] = true
		if i := bytes.Index(b, []byte(canary)); i >= 0 {
			t.Errorf("%s leaks: ...%s...", h.Name, b[max(0, i-80):min(len(b), i+40)])
		}
		if strings.Contains(h.Name, canary) {
			t.Errorf("a name leaks: %s", h.Name)
		}
	}
	for _, n := range []string{"status.json", "decisions.jsonl", "findings.json", "lint.json", "start.json", "metrics/chat-r0.txt"} {
		if !names[n] {
			t.Errorf("the archive has no %s: %v", n, names)
		}
	}
	code, stdout, _ = run(t, false, "diagnose", "--bundle", out)
	if code != ExitFindings || !strings.Contains(stdout, "replica-failed") || !strings.Contains(stdout, "command-single-string") || !strings.Contains(stdout, "start-failed") {
		t.Errorf("judged again: code %d\n%s", code, stdout)
	}
	if code, _, stderr := run(t, false, "diagnose", "--bundle", filepath.Join(dir, "deploy.yaml")); code != ExitUsage || stderr == "" {
		t.Errorf("something else as a bundle: code %d %s", code, stderr)
	}
}

// TestDiagnoseLive judges a server, with and without findings.
func TestDiagnoseLive(t *testing.T) {
	srv := leakyServer(t)
	code, stdout, _ := run(t, false, "diagnose", "--server", srv.URL)
	if code != ExitFindings || !strings.Contains(stdout, "replica-failed") || !strings.Contains(stdout, "no-ready-replica") || !strings.Contains(stdout, "config-rejected") {
		t.Errorf("code %d\n%s", code, stdout)
	}
	code, stdout, _ = run(t, false, "diagnose", "--server", srv.URL, "-o", "json")
	if code != ExitFindings || !strings.Contains(stdout, `"schema": "penstock/findings/v1"`) {
		t.Errorf("code %d\n%s", code, stdout)
	}
}

// TestPrometheusHistory reads a history from a Prometheus.
func TestPrometheusHistory(t *testing.T) {
	srv := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		q := r.FormValue("query")
		vals := map[string]string{
			`sum(kube_deployment_spec_replicas{namespace="prod",deployment="chat"})`: "3,3,3", `sum(sglang:num_queue_reqs{namespace="prod",})`: "0,40,90",
		}[q]
		result := "[]"
		if vals != "" {
			var parts []string
			for i, v := range strings.Split(vals, ",") {
				parts = append(parts, fmt.Sprintf(`[%d,"%s"]`, 1_700_000_000+60*i, v))
			}
			result = `[{"metric":{},"values":[` + strings.Join(parts, ",") + `]}]`
		}
		fmt.Fprintf(w, `{"status":"success","data":{"resultType":"matrix","result":%s}}`, result)
	}))
	defer srv.Close()
	code, stdout, stderr := run(t, false, "diagnose", "scaling", "--prometheus", srv.URL, "--namespace", "prod", "--deployment", "chat")
	if code != ExitFindings || !strings.Contains(stdout, "never-scaled") || !strings.Contains(stdout, "waiting rose 0 -> 90") {
		t.Errorf("code %d\n%s%s", code, stdout, stderr)
	}
	code, _, stderr = run(t, false, "diagnose", "scaling", "--prometheus", srv.URL, "--namespace", "other")
	if code != ExitFailed || !strings.Contains(stderr, "no series") {
		t.Errorf("code %d %s", code, stderr)
	}
}
