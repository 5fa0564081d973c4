// SPDX-License-Identifier: Apache-2.0

package load

import (
	"math"
	"time"
)

// Schema is the schema name of a Report.
const Schema = "penstock/load/v1"

// Report is what a run measured. Latencies and ratios count good answers only and
// are null where there is none, so that nothing is ever reported as 0 that was not
// measured.
type Report struct {
	Schema    string         `json:"schema"`
	Target    string         `json:"target"`
	Model     string         `json:"model"`
	Workload  string         `json:"workload"`
	DurationS float64        `json:"duration_s"`
	Requests  int            `json:"requests"` // that ended, errors included
	Errors    map[string]int `json:"errors"`   // by kind
	// ErrorExamples is one message for each kind of error.
	ErrorExamples map[string]string `json:"error_examples,omitempty"`
	// HitRatio is cached over all prompt tokens, of answers whose usage tells both.
	HitRatio   *float64   `json:"hit_ratio"`
	TTFT       *Latency   `json:"ttft_ms"`
	ITL        *Latency   `json:"itl_ms"`  // gaps between events with content
	TPOT       *Latency   `json:"tpot_ms"` // (whole answer - TTFT) / (tokens - 1)
	E2E        *Latency   `json:"e2e_ms"`
	TokensPerS Throughput `json:"tokens_per_s"`

	PromptTokens int64 `json:"prompt_tokens"`
	CachedTokens int64 `json:"cached_tokens"`
	OutputTokens int64 `json:"output_tokens"`
	// Late is how late requests were sent: above a few milliseconds the generator is
	// the bottleneck and the figures are its own.
	Late *Latency `json:"late_ms"`
	// Unfinished requests were cut at the end of the run; they count nowhere else.
	Unfinished int `json:"unfinished"`
}

// Latency is a distribution in milliseconds.
type Latency struct {
	Mean float64 `json:"mean"`
	P50  float64 `json:"p50"`
	P90  float64 `json:"p90"`
	P99  float64 `json:"p99"`
}

// Throughput is in tokens a second of good answers.
type Throughput struct {
	In  float64 `json:"in"`
	Out float64 `json:"out"`
}

// LatencyOf summarises h; nil where it is empty.
func LatencyOf(h *Histogram) *Latency {
	if h.Count() == 0 {
		return nil
	}
	return &Latency{
		Mean: round(ms(h.Mean()), 3), P50: round(ms(h.Quantile(0.5)), 3),
		P90: round(ms(h.Quantile(0.9)), 3), P99: round(ms(h.Quantile(0.99)), 3),
	}
}

func ms(d time.Duration) float64 { return float64(d) / 1e6 }

func round(v float64, digits int) float64 {
	p := math.Pow(10, float64(digits))
	return math.Round(v*p) / p
}

// Failed returns the number of requests that ended in an error.
func (r *Report) Failed() int {
	n := 0
	for _, c := range r.Errors {
		n += c
	}
	return n
}

// tally collects what ended requests say. Its owner locks.
type tally struct {
	requests           int
	errors             map[string]int
	examples           map[string]string
	ttft, itl          Histogram
	tpot, e2e, late    Histogram
	in, out            int64
	hitPrompt, hitHits int64 // of answers that tell both
	unfinished         int
}

func (t *tally) add(r *Result) {
	if r.Cut {
		t.unfinished++
		return
	}
	t.requests++
	t.late.Add(r.Late)
	if r.Error != "" {
		if t.errors == nil {
			t.errors, t.examples = map[string]int{}, map[string]string{}
		}
		t.errors[r.Error]++
		if t.examples[r.Error] == "" {
			t.examples[r.Error] = r.Detail
		}
		return
	}
	t.e2e.Add(r.E2E)
	if r.TTFT > 0 {
		t.ttft.Add(r.TTFT)
		if r.OutputTokens > 1 {
			t.tpot.Add((r.E2E - r.TTFT) / time.Duration(r.OutputTokens-1))
		}
	}
	for _, g := range r.gaps {
		t.itl.Add(g)
	}
	t.in += int64(r.PromptTokens)
	t.out += int64(r.OutputTokens)
	if r.CachedTokens >= 0 {
		t.hitPrompt += int64(r.PromptTokens)
		t.hitHits += int64(r.CachedTokens)
	}
}

func (t *tally) report(wall time.Duration) *Report {
	r := &Report{
		Schema: Schema, DurationS: round(wall.Seconds(), 3),
		Requests: t.requests, Errors: map[string]int{}, ErrorExamples: map[string]string{},
		TTFT: LatencyOf(&t.ttft), ITL: LatencyOf(&t.itl), TPOT: LatencyOf(&t.tpot),
		E2E: LatencyOf(&t.e2e), Late: LatencyOf(&t.late),
		PromptTokens: t.in, OutputTokens: t.out, CachedTokens: t.hitHits,
		Unfinished: t.unfinished,
	}
	for k, n := range t.errors {
		r.Errors[k] = n
		if d := t.examples[k]; d != "" {
			r.ErrorExamples[k] = d
		}
	}
	if t.hitPrompt > 0 {
		hit := round(float64(t.hitHits)/float64(t.hitPrompt), 4)
		r.HitRatio = &hit
	}
	if s := wall.Seconds(); s > 0 {
		r.TokensPerS = Throughput{In: round(float64(t.in)/s, 1), Out: round(float64(t.out)/s, 1)}
	}
	return r
}
