// SPDX-License-Identifier: Apache-2.0

package cli

import (
	"fmt"
	"io"
	"os"
	"slices"
	"strings"
	"sync"
	"time"

	"golang.org/x/term"

	"github.com/penstock-project/penstock/internal/load"
)

// printLoad writes the report of a run for people.
func printLoad(w io.Writer, r *load.Report) {
	fmt.Fprintf(w, "%s on %s, model %s: %s requests in %s, %s failed\n\n",
		r.Workload, r.Target, r.Model, withCommas(r.Requests), time.Duration(r.DurationS*1e9).Round(100*time.Millisecond), withCommas(r.Failed()))
	fmt.Fprintf(w, "%-10s %10s %10s %10s %10s\n", "", "mean", "p50", "p90", "p99")
	for _, row := range []struct {
		name string
		l    *load.Latency
	}{{"TTFT", r.TTFT}, {"ITL", r.ITL}, {"TPOT", r.TPOT}, {"E2E", r.E2E}} {
		if row.l == nil {
			fmt.Fprintf(w, "%-10s %10s\n", row.name, "-")
			continue
		}
		fmt.Fprintf(w, "%-10s %10s %10s %10s %10s\n", row.name, milliText(row.l.Mean), milliText(row.l.P50), milliText(row.l.P90), milliText(row.l.P99))
	}
	fmt.Fprintf(w, "\n%-10s %s in, %s out a second\n", "tokens", withCommas(int(r.TokensPerS.In)), withCommas(int(r.TokensPerS.Out)))
	if r.HitRatio != nil {
		fmt.Fprintf(w, "%-10s %.1f %% of prompt tokens came from the cache\n", "hit ratio", *r.HitRatio*100)
	} else {
		fmt.Fprintf(w, "%-10s unknown: no answer told its cached tokens\n", "hit ratio")
	}
	for _, k := range keysInOrder(r.Errors) {
		fmt.Fprintf(w, "%-10s %s x %s  %s\n", "error", withCommas(r.Errors[k]), k, r.ErrorExamples[k])
	}
	if r.Unfinished > 0 {
		fmt.Fprintf(w, "%-10s %s requests were cut at the end\n", "unfinished", withCommas(r.Unfinished))
	}
}

func keysInOrder[V any](m map[string]V) []string {
	var keys []string
	for k := range m {
		keys = append(keys, k)
	}
	slices.Sort(keys)
	return keys
}

// milliText writes milliseconds with three digits that matter.
func milliText(ms float64) string {
	switch {
	case ms < 10:
		return fmt.Sprintf("%.2f ms", ms)
	case ms < 100:
		return fmt.Sprintf("%.1f ms", ms)
	case ms < 10000:
		return fmt.Sprintf("%.0f ms", ms)
	}
	return fmt.Sprintf("%.1f s", ms/1000)
}

// withCommas writes a number with a comma between groups of three digits.
func withCommas(n int) string {
	s := fmt.Sprint(n)
	for i := len(s) - 3; i > 0 && s[i-1] != '-'; i -= 3 {
		s = s[:i] + "," + s[i:]
	}
	return s
}

// progress is a bar on standard error. Where that is no terminal it says nothing.
type progress struct {
	w    io.Writer
	done chan struct{}
	wg   sync.WaitGroup
}

// startProgress shows how far r is until stop is called. The run ends after
// duration or requests, 0 being unknown.
func startProgress(e *Env, r *load.Runner, duration time.Duration, requests int) *progress {
	p := &progress{w: e.Stderr, done: make(chan struct{})}
	f, ok := e.Stderr.(*os.File)
	if !ok || !term.IsTerminal(int(f.Fd())) || e.Getenv("TERM") == "dumb" {
		return p
	}
	p.wg.Go(func() {
		t := time.NewTicker(200 * time.Millisecond)
		defer t.Stop()
		for {
			select {
			case <-p.done:
				fmt.Fprint(p.w, "\r\x1b[K")
				return
			case <-t.C:
				width, _, err := term.GetSize(int(f.Fd()))
				if err != nil || width <= 0 {
					width = 80
				}
				fmt.Fprint(p.w, "\r\x1b[K"+progressLine(r.Progress(), duration, requests, width))
			}
		}
	})
	return p
}

func (p *progress) stop() {
	close(p.done)
	p.wg.Wait()
}

// progressLine is one line of at most width columns.
func progressLine(s load.Progress, duration time.Duration, requests, width int) string {
	part := -1.0
	if duration > 0 {
		part = float64(s.Elapsed) / float64(duration)
	}
	if requests > 0 {
		part = max(part, float64(s.Done)/float64(requests))
	}
	var b strings.Builder
	if part >= 0 {
		const cells = 20
		full := min(int(part*cells), cells)
		fmt.Fprintf(&b, "[%s%s] ", strings.Repeat("#", full), strings.Repeat(".", cells-full))
	}
	fmt.Fprintf(&b, "%s  %s done", s.Elapsed.Round(time.Second), withCommas(s.Done))
	if s.Failed > 0 {
		fmt.Fprintf(&b, "  %s failed", withCommas(s.Failed))
	}
	fmt.Fprintf(&b, "  %d running", s.Running)
	if s.TTFT > 0 {
		fmt.Fprintf(&b, "  TTFT p50 %s", milliText(float64(s.TTFT)/1e6))
	}
	if s.HitRatio >= 0 {
		fmt.Fprintf(&b, "  hit %.0f%%", s.HitRatio*100)
	}
	line := b.String()
	if len(line) >= width {
		line = line[:max(width-1, 0)]
	}
	return line
}
