// SPDX-License-Identifier: Apache-2.0

package cli

import (
	"fmt"
	"io"
	"sync"
	"time"

	"github.com/penstock-project/penstock/internal/load"
	"github.com/penstock-project/penstock/internal/route"
)

// printIntro says what runs and what to try.
func (d *demoFleet) printIntro(w io.Writer) {
	gw, server := d.server.GatewayURL(), atServer(d.server.AdminURL())
	fmt.Fprintf(w, `%d simulated replicas (Llama 3.1 8B on an RTX 4090 each) behind %s
%d users in conversations; %.0f %% of their prompt tokens were sent before

Look at it in a browser:
  %s/

Try it in another terminal:
  curl %s/v1/models
  curl %s/v1/chat/completions -H 'content-type: application/json' \
    -d '{"model":"%s","max_tokens":20,"messages":[{"role":"user","content":"Hello"}]}'
  penstock status%s
  penstock top%s
  penstock explain --last%s

`, len(d.replicas), gw, demoUsers, demoShare*100, d.server.AdminURL(), gw, gw, demoModel, server, server, server)
}

// printDemo writes the comparison.
func printDemo(w io.Writer, r *demoReport) {
	fmt.Fprintf(w, "%-10s %10s %16s %10s %10s %9s %7s\n", "policy", "hit ratio", "rule of thumb", "TTFT p50", "TTFT p99", "requests", "errors")
	for _, p := range r.Phases {
		thumb := fmt.Sprintf("s/R = %.0f %%", r.Formula.Random*100)
		if p.Policy == route.PolicyPenstock {
			thumb = fmt.Sprintf("%.1f s = %.0f %%", demoAware, r.Formula.Aware*100)
		}
		fmt.Fprintf(w, "%-10s %8.0f %% %16s %10s %10s %9s %7s\n", p.Policy, p.HitRatio*100, thumb,
			milliText(p.TTFT.P50), milliText(p.TTFT.P99), withCommas(p.Requests), withCommas(p.Errors))
	}
	fmt.Fprintf(w, "\ns is the share of prompt tokens that were sent before (%.0f %%), R the number of replicas (%d).\n",
		demoShare*100, r.Replicas)
	if len(r.Phases) > 0 && r.Phases[0].HitRatio > r.Formula.Random {
		fmt.Fprintln(w, "Random finds more than s/R because a replica keeps what it once had to compute.")
	}
}

// demoWindow gathers the results since the last line.
type demoWindow struct {
	mu             sync.Mutex
	ttft           load.Histogram
	requests, bad  int
	prompt, cached int
}

func (d *demoWindow) add(r *load.Result) {
	if r.Cut {
		return
	}
	d.mu.Lock()
	defer d.mu.Unlock()
	d.requests++
	if r.Error != "" {
		d.bad++
		return
	}
	d.ttft.Add(r.TTFT)
	if r.CachedTokens >= 0 {
		d.prompt += r.PromptTokens
		d.cached += r.CachedTokens
	}
}

// line summarises the window and starts the next one.
func (d *demoWindow) line(now time.Time, over time.Duration) string {
	d.mu.Lock()
	defer d.mu.Unlock()
	hit := "-"
	if d.prompt > 0 {
		hit = fmt.Sprintf("%.0f %%", float64(d.cached)/float64(d.prompt)*100)
	}
	s := fmt.Sprintf("%s  %5.1f requests/s  hit %5s  TTFT p50 %8s  p99 %8s  errors %d",
		now.Format(time.TimeOnly), float64(d.requests)/over.Seconds(), hit,
		milliText(float64(d.ttft.Quantile(0.5))/1e6), milliText(float64(d.ttft.Quantile(0.99))/1e6), d.bad)
	d.ttft, d.requests, d.bad, d.prompt, d.cached = load.Histogram{}, 0, 0, 0, 0
	return s
}
