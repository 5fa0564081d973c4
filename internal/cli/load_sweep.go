// SPDX-License-Identifier: Apache-2.0

package cli

import (
	"context"
	"fmt"
	"io"
	"time"

	"github.com/penstock-project/penstock/internal/load"
	"github.com/penstock-project/penstock/internal/workload"
)

// sweepGoal is the part of the requests that must meet the SLO.
const sweepGoal = 0.99

// sweepReport is what `penstock load --sweep -o json` prints: the run at the highest
// rate that met the goal, and how it was found.
type sweepReport struct {
	*load.Report
	Sweep sweepResult `json:"sweep"`
}

type sweepResult struct {
	SLOTTFTms float64     `json:"slo_ttft_ms"`
	Goal      float64     `json:"goal"`       // part of the requests
	CapacityS float64     `json:"capacity_s"` // requests a second; 0 where no rate met the goal
	Steps     []sweepStep `json:"steps"`
}

type sweepStep struct {
	Rate       float64       `json:"rate"`       // asked for, requests a second
	Attainment float64       `json:"attainment"` // part of the requests that were good and within the SLO
	Requests   int           `json:"requests"`
	TTFT       *load.Latency `json:"ttft_ms"`
}

// sweep looks for the highest open-loop rate at which sweepGoal of the requests get
// their first token within the SLO: doubling until it is missed, then halving the
// interval until it is a tenth wide.
func (f *loadFlags) sweep(e *Env, target *load.Target, output string) error {
	res := sweepResult{SLOTTFTms: float64(f.sloTTFT) / 1e6, Goal: sweepGoal}
	var best *load.Report
	low, high := 0.0, 0.0
	for rate := f.rate; ; {
		rep, attained, err := f.sweepStep(e, target, rate, uint64(len(res.Steps)))
		if err != nil {
			return err
		}
		if e.Context.Err() != nil {
			break
		}
		res.Steps = append(res.Steps, sweepStep{Rate: round3(rate), Attainment: round3(attained), Requests: rep.Requests, TTFT: rep.TTFT})
		fmt.Fprintf(e.Stderr, "penstock: %.3g requests/s: %.1f %% within %s\n", rate, attained*100, f.sloTTFT)
		if attained >= sweepGoal {
			low, best = rate, rep
		} else {
			high = rate
		}
		switch {
		case high == 0:
			rate *= 2
		case low == 0:
			rate /= 2
		default:
			rate = (low + high) / 2
		}
		if low > 0 && high > 0 && high-low < 0.1*high || rate < 0.05 || len(res.Steps) >= 24 {
			break
		}
	}
	res.CapacityS = round3(low)
	if best == nil {
		best = &load.Report{Schema: load.Schema, Target: target.URL, Model: f.model, Workload: f.workload, Errors: map[string]int{}}
	}
	if output == "json" {
		if err := printJSON(e.Stdout, sweepReport{best, res}); err != nil {
			return err
		}
	} else {
		printSweep(e.Stdout, best, res)
	}
	if low == 0 {
		return errSilent(ExitFindings)
	}
	return nil
}

func round3(v float64) float64 { return float64(int(v*1000+0.5)) / 1000 }

// sweepStep runs one rate. Each step has prompts of its own, so that none profits
// from what the step before left in the caches.
func (f *loadFlags) sweepStep(e *Env, target *load.Target, rate float64, n uint64) (*load.Report, float64, error) {
	spec := f.spec()
	spec.Rate, spec.Seed, spec.Steady = rate, f.seed+n, true
	src, err := workload.NewGenerator(spec)
	if err != nil {
		return nil, 0, usagef("", "--%v", err)
	}
	good, all := 0, 0
	r := load.New(load.Options{
		Target: target, Model: f.model, Workload: string(f.kind),
		Feed:        workload.NewFeed(src, workload.FeedOptions{NoThink: f.noThink}),
		Completions: f.api == "completions", StopEarly: f.stopEarly,
		Timeout: f.timeout, Duration: f.duration, Grace: 2 * f.sloTTFT,
		// A request that the end of the step cut counts by the first token it got or did not.
		Each: func(x *load.Result) {
			all++
			if x.Error == "" && x.TTFT > 0 && x.TTFT <= f.sloTTFT {
				good++
			}
		},
	})
	rep := r.Run(e.Context)
	if all == 0 {
		return rep, 0, nil
	}
	return rep, float64(good) / float64(all), pause(e.Context, time.Second)
}

// pause lets the queues of a step that was too much run empty.
func pause(ctx context.Context, d time.Duration) error {
	t := time.NewTimer(d)
	defer t.Stop()
	select {
	case <-t.C:
	case <-ctx.Done():
	}
	return nil
}

func printSweep(w io.Writer, best *load.Report, s sweepResult) {
	fmt.Fprintf(w, "%10s %12s %10s %10s %10s\n", "rate", "within SLO", "requests", "TTFT p50", "TTFT p99")
	for _, st := range s.Steps {
		p50, p99 := "-", "-"
		if st.TTFT != nil {
			p50, p99 = milliText(st.TTFT.P50), milliText(st.TTFT.P99)
		}
		fmt.Fprintf(w, "%8.2f/s %10.1f %% %10s %10s %10s\n", st.Rate, st.Attainment*100, withCommas(st.Requests), p50, p99)
	}
	if s.CapacityS == 0 {
		fmt.Fprintf(w, "\nno rate met the goal: %.0f %% of the first tokens within %s\n", s.Goal*100, milliText(s.SLOTTFTms))
		return
	}
	fmt.Fprintf(w, "\ncapacity about %.2f requests/s with %.0f %% of the first tokens within %s; the run there:\n\n", s.CapacityS, s.Goal*100, milliText(s.SLOTTFTms))
	printLoad(w, best)
}
