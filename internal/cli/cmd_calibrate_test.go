// SPDX-License-Identifier: Apache-2.0

package cli

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"math"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/penstock-project/penstock/internal/testinput"
)

func calibrate(t *testing.T, args ...string) (calibration, string, int) {
	t.Helper()
	var out, errs bytes.Buffer
	e := &Env{
		Args: append([]string{"calibrate", "-o", "json"}, args...), Stdin: strings.NewReader(""), Stdout: &out, Stderr: &errs,
		Getenv: func(string) string { return "" }, Now: time.Now, Terminal: func() (bool, int) { return false, 80 }, Context: context.Background(),
	}
	code := Main(e)
	var c calibration
	if out.Len() > 0 {
		if err := json.Unmarshal(out.Bytes(), &c); err != nil {
			t.Fatal(err)
		}
	}
	return c, errs.String(), code
}

// The halves that were held out of measured runs of a dense model: at most 2 % of the
// end-to-end time of a request, at most 5 % of the mean time to first token.
func TestCalibrateRealRuns(t *testing.T) {
	for _, tc := range []struct {
		run  string
		args []string
	}{
		{"RTX4090_Llama-3.1-8B", []string{"--profile", "llama-3.1-8b-h100", "--accelerator", "RTX 4090", "--kv-tokens", "41408", "--max-num-batched-tokens", "2048"}},
		{"RTXPRO6000_Llama-3.1-8B", []string{"--profile", "llama-3.1-8b-rtxpro6000"}},
		{"RTXPRO6000_Qwen3-30B-A3B-Instruct-2507", []string{"--profile", "qwen3-30b-a3b-2xrtxpro6000"}},
	} {
		t.Run(tc.run, func(t *testing.T) {
			c, errs, code := calibrate(t, append(tc.args, testinput.Shared(t, "traces/llmservingsim/"+tc.run+"/requests.jsonl"))...)
			if code != ExitOK {
				t.Fatalf("exit code %d: %s", code, errs)
			}
			h := c.HeldOut
			t.Logf("end to end %.2f %%, time to first token %.1f %% a request, mean %+.1f %%", 100*h.E2E, 100*h.TTFTEach, 100*h.TTFTMean)
			if c.Rows.Usable != 300 || h.Rows+c.Fit.Rows != 300 || h.E2E > 0.02 || math.Abs(h.TTFTMean) > 0.05 {
				t.Errorf("%+v", c.HeldOut)
			}
		})
	}
}

// A journal of two replicas: what the router held back is no time of the replica, and
// the rows of one do not overlap with those of the other.
func TestCalibrateJournal(t *testing.T) {
	var b strings.Builder
	t0 := time.Date(2026, 5, 1, 12, 0, 0, 0, time.UTC)
	for i := range 120 {
		// An idle replica: 20 ms a step, 0.1 ms a prompt token.
		prompt, output := 200+37*(i%11), 5+i%17
		ttft := 20 + 0.1*float64(prompt)
		fmt.Fprintf(&b, `{"schema":"penstock/decision/v1","id":"%d","time":"%s","request":{"prompt_tokens":1,"stream":true},"chosen":"r%d",`+
			`"outcome":{"kind":"ok","queue_ms":500,"ttft_ms":%g,"e2e_ms":%g,"prompt_tokens":%d,"cached_tokens":0,"output_tokens":%d}}`+"\n",
			i, t0.Add(time.Duration(i)*2*time.Second).Format(time.RFC3339Nano), i%2, 500+ttft, 500+ttft+20*float64(output-1), prompt, output)
	}
	name := filepath.Join(t.TempDir(), "j.jsonl")
	if err := os.WriteFile(name, []byte(b.String()), 0o600); err != nil {
		t.Fatal(err)
	}
	for _, tc := range []struct {
		args []string
		rows int
	}{{nil, 120}, {[]string{"--replica", "r1"}, 60}} {
		c, errs, code := calibrate(t, append(tc.args, "--accelerator", "unheard of", name)...)
		if code != ExitOK {
			t.Fatalf("exit code %d: %s", code, errs)
		}
		if c.Rows.Usable != tc.rows || c.HeldOut.E2E > 0.01 || math.Abs(c.Profile.PTok/1e-4-1) > 0.1 || !c.NoCeiling {
			t.Errorf("%v: %+v, %v s a prompt token", tc.args, c.HeldOut, c.Profile.PTok)
		}
	}
	if _, errs, code := calibrate(t, "--replica", "r7", name); code != ExitUsage || !strings.Contains(errs, "there are: r0, r1") {
		t.Errorf("exit code %d: %s", code, errs)
	}
}

// --check fits nothing: requests of an idle replica whose step takes as long as the
// profile says are foreseen, those of one twice as slow are not.
func TestCalibrateCheck(t *testing.T) {
	dir := t.TempDir()
	for _, tc := range []struct {
		slow float64
		off  bool
	}{{1, false}, {2, true}} {
		p, err := loadProfile("llama-3.1-8b-rtxpro6000")
		if err != nil {
			t.Fatal(err)
		}
		var b strings.Builder
		b.WriteString("arrival,prompt_tokens,cached_tokens,output_tokens,ttft,e2e\n")
		for i := range 40 {
			prompt, output := 100+7*i, 10
			ttft := tc.slow * (p.Base + p.PrefillSeconds(prompt, prompt))
			e2e := ttft
			for k := 1; k < output; k++ {
				e2e += tc.slow * p.DecodeStepSeconds(1, float64(prompt+k))
			}
			fmt.Fprintf(&b, "%d,%d,0,%d,%.6f,%.6f\n", 10*i, prompt, output, ttft, e2e)
		}
		file := filepath.Join(dir, "rows.csv")
		if err := os.WriteFile(file, []byte(b.String()), 0o644); err != nil {
			t.Fatal(err)
		}
		var out, errs bytes.Buffer
		e := &Env{
			Args: []string{"calibrate", "-o", "json", "--check", file}, Stdin: strings.NewReader(""), Stdout: &out, Stderr: &errs,
			Getenv: func(string) string { return "" }, Now: time.Now, Terminal: func() (bool, int) { return false, 80 }, Context: context.Background(),
		}
		if code := Main(e); code != ExitOK {
			t.Fatalf("exit code %d: %s", code, errs.String())
		}
		var j judgement
		if err := json.Unmarshal(out.Bytes(), &j); err != nil {
			t.Fatal(err)
		}
		if j.Rows.Usable != 40 || j.Profile != "llama-3.1-8b-rtxpro6000" || (math.Abs(j.E2EMean) > 0.02) != tc.off {
			t.Errorf("%v times as slow: %+v", tc.slow, j)
		}
	}
}
