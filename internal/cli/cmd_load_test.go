// SPDX-License-Identifier: Apache-2.0

package cli

import (
	"bytes"
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

	"github.com/penstock-project/penstock/internal/load"
)

// loadEnv runs `penstock load` with args in-process.
func loadEnv(t *testing.T, stdin string, args ...string) (code int, stdout, stderr string) {
	t.Helper()
	var out, errs bytes.Buffer
	e := &Env{
		Args: append([]string{"load"}, args...), Stdin: strings.NewReader(stdin), Stdout: &out, Stderr: &errs,
		Getenv: func(string) string { return "" }, Now: time.Now, Context: t.Context(),
		Terminal: func() (bool, int) { return false, 80 },
	}
	code = Main(e)
	return code, out.String(), errs.String()
}

// engineStub answers like an engine; with fail set every request gets a 503.
func engineStub(t *testing.T, fail bool) string {
	t.Helper()
	srv := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if r.URL.Path == "/v1/models" {
			fmt.Fprint(w, `{"data":[{"id":"stub","max_model_len":2048}]}`)
			return
		}
		if fail {
			w.WriteHeader(http.StatusServiceUnavailable)
			fmt.Fprint(w, `{"error":{"message":"no replica is ready"}}`)
			return
		}
		io.Copy(io.Discard, r.Body)
		w.Header().Set("Content-Type", "text/event-stream")
		for range 3 {
			fmt.Fprint(w, `data: {"choices":[{"index":0,"delta":{"content":"x"}}]}`+"\n\n")
			w.(http.Flusher).Flush()
		}
		fmt.Fprint(w, `data: {"choices":[{"index":0,"delta":{},"finish_reason":"length"}]}`+"\n\n"+
			`data: {"choices":[],"usage":{"prompt_tokens":100,"completion_tokens":3,"prompt_tokens_details":{"cached_tokens":25}}}`+"\n\ndata: [DONE]\n\n")
	}))
	t.Cleanup(srv.Close)
	return srv.URL
}

func TestLoadReportsJSON(t *testing.T) {
	code, out, errs := loadEnv(t, "", "--target", engineStub(t, false), "--requests", "20", "--concurrency", "4", "--no-think", "-o", "json")
	if code != ExitOK {
		t.Fatalf("exit %d: %s", code, errs)
	}
	var r load.Report
	if err := json.Unmarshal([]byte(out), &r); err != nil {
		t.Fatalf("%v in %s", err, out)
	}
	if r.Schema != load.Schema || r.Requests != 20 || len(r.Errors) != 0 || r.Model != "stub" ||
		r.HitRatio == nil || *r.HitRatio != 0.25 || r.TTFT == nil || r.TTFT.P50 <= 0 || r.TokensPerS.Out <= 0 {
		t.Errorf("%s", out)
	}
	if errs != "" {
		t.Errorf("standard error: %q", errs)
	}
}

func TestLoadTraceFromStdin(t *testing.T) {
	const trace = "arrival,prompt_tokens,output_tokens\n0,50,3\n0.5,60,3\n1,70,3\n"
	code, out, errs := loadEnv(t, trace, "--target", engineStub(t, false), "--trace", "-", "--speedup", "100", "--factor", "2")
	if code != ExitOK || !strings.HasPrefix(out, "log trace on ") || !strings.Contains(out, "model stub: 6 requests in ") {
		t.Errorf("exit %d\n%s%s", code, out, errs)
	}
}

func TestLoadAllFailed(t *testing.T) {
	url := engineStub(t, true)
	code, out, errs := loadEnv(t, "", "--target", url, "--requests", "3")
	if code != ExitFailed || !strings.Contains(errs, "all 3 requests failed, such as http_503: ") {
		t.Errorf("exit %d\n%s%s", code, out, errs)
	}
	if !strings.Contains(out, "3 x http_503") {
		t.Errorf("%s", out)
	}
}

func TestLoadRefusesBadFlags(t *testing.T) {
	bad := filepath.Join(t.TempDir(), "bad.csv")
	if err := os.WriteFile(bad, []byte("arrival,prompt_tokens,output_tokens\n1,2,x\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	for _, tc := range []struct {
		args string
		want string
	}{
		{"--workload poem", `--workload: workload "poem" is unknown`},
		{"--rate 1 --concurrency 1", "--rate and --concurrency exclude each other"},
		{"--rate 0", "--rate must be more than 0"},
		{"--rate -1", "--rate must be at least 0"},
		{"--share 1", "--share 1 is out of range"},
		{"--speedup 2", "--speedup needs --trace"},
		{"--trace x --rate 2", "--rate does not go with --trace"},
		{"--trace " + bad, "--trace: bad.csv:2: output_tokens: \"x\" is no number"},
		{"--trace /does/not/exist", "no such file"},
		{"--trace - --format yaml", `--format: format "yaml" is unknown`},
		{"--sweep --trace x", "--trace does not go with --sweep"},
		{"--sweep --stream=false", "--sweep needs --stream"},
		{"--api grpc", `--api "grpc" is unknown`},
		{"--target localhost:80", "is no base URL"},
		{"--api-key-file /does/not/exist", "--api-key-file"},
		{"-o yaml", `--output "yaml" is unknown`},
		{"extra", "takes no arguments"},
	} {
		code, out, errs := loadEnv(t, "", strings.Fields(tc.args)...)
		if code != ExitUsage || !strings.Contains(errs, tc.want) || out != "" {
			t.Errorf("%s: exit %d, %q, %q; want %q", tc.args, code, out, errs, tc.want)
		}
	}
}

func TestLoadTargetNotThere(t *testing.T) {
	srv := httptest.NewServer(nil)
	srv.Close()
	code, _, errs := loadEnv(t, "", "--target", srv.URL)
	if code != ExitUnreachable || !strings.Contains(errs, "cannot ask "+srv.URL) || !strings.Contains(errs, "hint:") {
		t.Errorf("exit %d, %q", code, errs)
	}
}

func TestLoadSweepWithoutCapacity(t *testing.T) {
	code, out, errs := loadEnv(t, "", "--target", engineStub(t, true), "--sweep", "--rate", "0.08", "--duration", "50ms", "-o", "json")
	var r struct {
		Schema string
		Sweep  sweepResult
	}
	if err := json.Unmarshal([]byte(out), &r); err != nil || code != ExitFindings {
		t.Fatalf("exit %d, %v\n%s%s", code, err, out, errs)
	}
	if r.Schema != load.Schema || r.Sweep.CapacityS != 0 || len(r.Sweep.Steps) == 0 {
		t.Errorf("%s", out)
	}
}

func TestProgressLine(t *testing.T) {
	p := load.Progress{Elapsed: 15 * time.Second, Done: 1234, Failed: 2, Running: 8, TTFT: 120 * time.Millisecond, HitRatio: 0.56}
	want := "[##########..........] 15s  1,234 done  2 failed  8 running  TTFT p50 120 ms  hit 56%"
	if got := progressLine(p, 30*time.Second, 0, 100); got != want {
		t.Errorf("%q", got)
	}
	if got := progressLine(p, 0, 0, 20); len(got) != 19 {
		t.Errorf("%q is not cut to 19 columns", got)
	}
}
