// SPDX-License-Identifier: Apache-2.0

package engine

import (
	"fmt"
	"math"
	"strings"
	"testing"

	"github.com/penstock-project/penstock/internal/fleet"
)

// measure plays a chat load on a replica and returns what a client would have seen.
func measure(p Profile, n int, rate float64) []Row {
	seqs, at := chatLoad(n, p.BlockTokens, rate)
	rows := make([]Row, n)
	c := NewCore(p, CoreOptions{})
	take := func(now fleet.Time) {
		for _, e := range c.Advance(now, nil) {
			r := &rows[e.Seq-1]
			switch e.Kind {
			case EventFirstToken:
				r.TTFT, r.Cached = e.At.Seconds(at[e.Seq-1]), e.Cached
			case EventFinished:
				r.E2E = e.At.Seconds(at[e.Seq-1])
			}
		}
	}
	for i := range seqs {
		take(at[i])
		rows[i].Arrival, rows[i].Prompt, rows[i].Output = float64(at[i])/1e9, seqs[i].PromptTokens, seqs[i].OutputTokens
		c.Submit(at[i], seqs[i])
	}
	take(fleet.Never - 1)
	return rows
}

// TestFitFindsTheModel starts from another accelerator's profile.
func TestFitFindsTheModel(t *testing.T) {
	truth, _ := Lookup("llama-3.1-8b-rtxpro6000")
	start, _ := Lookup("llama-3.1-8b-h100")
	start.KVTokens, start.ChunkTokens, start.MaxSeqs = truth.KVTokens, truth.ChunkTokens, truth.MaxSeqs
	f, err := Fit(start, measure(truth, 150, 8))
	if err != nil {
		t.Fatal(err)
	}
	t.Logf("error %.2f %%, TTFT %+.1f %%, weights %.4f, %s", 100*f.E2EError, 100*f.TTFTError, f.Weight, fmt.Sprintf("%.3g", coefficients(&f.Profile)))
	if f.E2EError > 0.01 || math.Abs(f.TTFTError) > 0.05 {
		t.Errorf("end to end %.2f %%, time to first token %+.1f %%", 100*f.E2EError, 100*f.TTFTError)
	}
	for _, n := range []int{1, 16, 64} {
		got, want := f.Profile.DecodeStepSeconds(n, float64(1000*n)), truth.DecodeStepSeconds(n, float64(1000*n))
		if math.Abs(got/want-1) > 0.05 {
			t.Errorf("decode step of %d: %.2f ms, truth %.2f ms", n, 1e3*got, 1e3*want)
		}
	}
}

// TestFitToRealEngine fits a measured run anew, from a profile of the wrong
// accelerator.
func TestFitToRealEngine(t *testing.T) {
	start, _ := Lookup("llama-3.1-8b-h100")
	start.KVTokens, start.ChunkTokens, start.MaxSeqs = 520000, 2048, 128
	var rows []Row
	for _, r := range loadRun(t, "RTXPRO6000_Llama-3.1-8B", "sharegpt-llama-3.1-8b-300-sps10.jsonl", 16) {
		rows = append(rows, Row{Arrival: r.Queued, TTFT: r.First - r.Queued, E2E: r.Last - r.Queued, Prompt: r.Prompt, Output: r.Output})
	}
	f, err := Fit(start, rows)
	if err != nil {
		t.Fatal(err)
	}
	t.Logf("error %.2f %%, TTFT %+.1f %%, weights %.4f, %.3g", 100*f.E2EError, 100*f.TTFTError, f.Weight, coefficients(&f.Profile))
	if f.E2EError > 0.02 {
		t.Errorf("error %.2f %%", 100*f.E2EError)
	}
}

func TestFitRefuses(t *testing.T) {
	p, _ := Lookup("llama-3.1-8b-rtxpro6000")
	good := measure(p, 40, 5)
	edit := func(f func([]Row) []Row) []Row { return f(append([]Row(nil), good...)) }
	for _, tc := range []struct {
		want string
		rows []Row
	}{
		{"at least 20", edit(func(r []Row) []Row { return r[:10] })},
		{"make no sense", edit(func(r []Row) []Row { r[3].E2E = r[3].TTFT / 2; return r })},
		{"make no sense", edit(func(r []Row) []Row { r[3].Cached = r[3].Prompt + 1; return r })},
		{"make no sense", edit(func(r []Row) []Row { r[3].TTFT = math.NaN(); return r })},
		{"KV tokens", edit(func(r []Row) []Row { r[3].Prompt = 1 << 20; return r })},
		{"one output token", edit(func(r []Row) []Row {
			for i := range r {
				r[i].Output = 1
			}
			return r
		})},
	} {
		if _, err := Fit(p, tc.rows); err == nil || !strings.Contains(err.Error(), tc.want) {
			t.Errorf("%v, want it to say %q", err, tc.want)
		}
	}
}

// TestFitHalf fits one half of measured runs and predicts the other.
func TestFitHalf(t *testing.T) {
	for _, tc := range []struct {
		start, dir, workload string
		kv, seqs             int
	}{
		{"llama-3.1-8b-h100", "RTX4090_Llama-3.1-8B", "sharegpt-llama-3.1-8b-300-sps10.jsonl", 41408, 256},
		{"llama-3.1-8b-h100", "RTXPRO6000_Llama-3.1-8B", "sharegpt-llama-3.1-8b-300-sps10.jsonl", 520000, 128},
	} {
		t.Run(tc.dir, func(t *testing.T) {
			start, _ := Lookup(tc.start)
			start.KVTokens, start.ChunkTokens, start.MaxSeqs = tc.kv, 2048, tc.seqs
			var rows []Row
			for _, r := range loadRun(t, tc.dir, tc.workload, 16) {
				rows = append(rows, Row{Arrival: r.Queued, TTFT: r.First - r.Queued, E2E: r.Last - r.Queued, Prompt: r.Prompt, Output: r.Output})
			}
			f, h, err := FitHalf(start, rows)
			if err != nil {
				t.Fatal(err)
			}
			t.Logf("fitted to %d: %.2f %%, TTFT %+.1f %%; held out %d: %.2f %%, TTFT %+.1f %%, each %.1f %%; weights %.4f",
				f.Rows, 100*f.E2EError, 100*f.TTFTError, h.Rows, 100*h.E2EError, 100*h.TTFTError, 100*h.TTFTEach, f.Weight)
			if f.Rows+h.Rows != len(rows) || h.E2EError > 0.02 || math.Abs(h.TTFTError) > 0.05 {
				t.Errorf("held out %d of %d: end to end %.2f %%, mean TTFT %+.1f %%", h.Rows, len(rows), 100*h.E2EError, 100*h.TTFTError)
			}
		})
	}
	p, _ := Lookup("llama-3.1-8b-rtxpro6000")
	if _, _, err := FitHalf(p, measure(p, 30, 5)); err == nil || !strings.Contains(err.Error(), "hold out a half") {
		t.Errorf("30 rows: %v", err)
	}
}

func TestJudge(t *testing.T) {
	p, _ := Lookup(DefaultProfile)
	rows := measure(p, 200, 4)
	right, err := Judge(p, rows)
	if err != nil {
		t.Fatal(err)
	}
	if right.Rows != 200 || right.E2EError > 1e-6 || math.Abs(right.TTFTError) > 1e-6 {
		t.Errorf("its own rows: %+v", right)
	}
	p.Base *= 1.3
	p.DSeq *= 1.3
	wrong, err := Judge(p, rows)
	if err != nil || wrong.E2EMean < 0.1 || wrong.E2EError < 0.1 {
		t.Errorf("a slower profile: %+v, %v", wrong, err)
	}
	p.KVTokens = p.BlockTokens
	if _, err := Judge(p, rows); err == nil {
		t.Error("a cache that holds no request is taken")
	}
}
