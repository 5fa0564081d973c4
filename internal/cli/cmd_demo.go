// SPDX-License-Identifier: Apache-2.0

package cli

import (
	"context"
	"fmt"
	"io"
	"time"

	"github.com/spf13/cobra"

	"github.com/penstock-project/penstock/internal/load"
	"github.com/penstock-project/penstock/internal/route"
)

// demoFlags are the flags of `penstock demo`.
type demoFlags struct {
	listen, admin string
	duration      time.Duration
	phase         time.Duration
	seed          uint64
	weather       bool
	scale         bool
	lora          bool
}

// Shares of the time that a demo of a set length has beside its two phases: the
// ends of the phases, and the restart between them.
const (
	demoShortest = 20 * time.Second
	demoTail     = 3 * time.Second
)

func demoCmd(e *Env) *cobra.Command {
	f := &demoFlags{}
	c := grouped(groupRun, &cobra.Command{
		Use:   "demo",
		Short: "Simulated replicas, gateway and load: the difference to random in numbers",
		Long: `Start eight simulated replicas, the gateway in front of them and users who hold
conversations: 70 % of their prompt tokens were sent before. They talk once under
random balancing and once under Penstock's policy, with cold caches at the start of
each, and the difference is printed beside the rule of thumb for it.

Then it goes on until ^C: try the printed commands meanwhile. With --duration it
ends by itself.`,
		Example: `  penstock demo
  penstock demo --duration 40s -o json
  penstock demo --weather
  penstock demo --scale --duration 90s
  penstock demo --lora -o json`,
		Args: noArgs,
	})
	out := outputFlag(c, "text", "json")
	fl := c.Flags()
	fl.StringVar(&f.listen, "listen", "127.0.0.1:8080", "address of the gateway")
	fl.StringVar(&f.admin, "admin", "127.0.0.1:9900", "address of the admin API")
	fl.DurationVar(&f.duration, "duration", 0, "end after this time, start and stop included (default: go on until ^C)")
	fl.DurationVar(&f.phase, "phase", 20*time.Second, "length of each of the two phases without --duration")
	fl.Uint64Var(&f.seed, "seed", 1, "seed of the conversations")
	fl.BoolVar(&f.weather, "weather", false, "show what the router does while replicas hang, fail, slow down and restart")
	fl.BoolVar(&f.scale, "scale", false, "show the scaler: a pool of processes from zero through a burst and back, in "+scaleDemoLength.String())
	fl.BoolVar(&f.lora, "lora", false, "show the placement of LoRA adapters against random, in "+loraDemoLength.String()+"; exit code 3 where it falls short")
	c.RunE = func(c *cobra.Command, _ []string) error {
		switch {
		case f.scale && f.weather || f.lora && (f.scale || f.weather):
			return usagef("", "--scale, --weather and --lora exclude each other")
		case f.lora && f.duration != 0 && f.duration < loraDemoLeast:
			return usagef("", "--duration must be at least %s with --lora", loraDemoLeast)
		case f.lora:
			return runLoRADemo(c.Context(), e, f, *out == "json")
		case f.scale && f.duration != 0 && f.duration < scaleDemoLeast:
			return usagef("", "--duration must be at least %s with --scale", scaleDemoLeast)
		case f.scale:
			return runScaleDemo(c.Context(), e, f, *out == "json")
		case f.duration != 0 && f.duration < demoShortest:
			return usagef("", "--duration must be at least %s", demoShortest)
		case f.phase < 2*time.Second:
			return usagef("", "--phase must be at least 2s")
		case *out == "json" && f.duration == 0:
			return usagef("add --duration 40s", "-o json needs --duration: without it the demo has no end")
		}
		return runDemo(c.Context(), e, f, *out == "json")
	}
	return c
}

// demoReport is the JSON result of a demo.
type demoReport struct {
	Schema   string      `json:"schema"` // penstock/demo/v1
	Replicas int         `json:"replicas"`
	Phases   []demoPhase `json:"phases"` // one for each policy
	Formula  demoFormula `json:"formula"`
	// Weather tells what happened to the replicas and to the requests meanwhile.
	Weather []weatherEvent `json:"weather,omitempty"`
}

// demoPhase is what clients saw under one policy.
type demoPhase struct {
	Policy    string         `json:"policy"`
	DurationS float64        `json:"duration_s"`
	Requests  int            `json:"requests"`
	Errors    int            `json:"errors"`
	ErrorKind map[string]int `json:"errors_by_kind,omitempty"`
	HitRatio  float64        `json:"hit_ratio"` // cached over all prompt tokens, as the replicas report
	TTFT      demoTTFT       `json:"ttft_ms"`
}

type demoTTFT struct {
	P50 float64 `json:"p50"`
	P99 float64 `json:"p99"`
}

// demoFormula is the rule of thumb for the hit ratio with share s and R replicas.
type demoFormula struct {
	Random float64 `json:"random"` // s/R
	Aware  float64 `json:"aware"`  // 0.8 s
}

func newDemoReport() *demoReport {
	return &demoReport{
		Schema: "penstock/demo/v1", Replicas: demoReplicas, Phases: []demoPhase{},
		Formula: demoFormula{Random: demoShare / demoReplicas, Aware: demoShare * demoAware},
	}
}

// phaseOf condenses the report of a run.
func phaseOf(policy string, r *load.Report) demoPhase {
	p := demoPhase{Policy: policy, DurationS: r.DurationS, Requests: r.Requests, Errors: r.Failed()}
	if p.Errors > 0 {
		p.ErrorKind = r.Errors
	}
	if r.HitRatio != nil {
		p.HitRatio = *r.HitRatio
	}
	if r.TTFT != nil {
		p.TTFT = demoTTFT{P50: r.TTFT.P50, P99: r.TTFT.P99}
	}
	return p
}

func runDemo(ctx context.Context, e *Env, f *demoFlags, json bool) error {
	begin := time.Now()
	policy := demoPolicies[0]
	if f.weather {
		policy = route.PolicyPenstock
	}
	d, err := startDemo(ctx, e, f.listen, f.admin, policy)
	defer d.close()
	if err != nil || ctx.Err() != nil {
		return err
	}
	if f.weather {
		return d.runWeather(ctx, f, json)
	}
	if !json {
		d.printIntro(e.Stdout)
	}
	length := f.phase
	if f.duration > 0 {
		// Two phases, each with its tail, and the cold restart between them.
		length = (f.duration - time.Since(begin) - 2*demoTail - time.Second) / 2
	}
	rep := newDemoReport()
	for i, policy := range demoPolicies {
		if err := d.turnTo(ctx, i); err != nil {
			return err
		}
		r, err := d.runner(f.seed, length, nil)
		if err != nil {
			return err
		}
		fmt.Fprintf(e.Stderr, "penstock: policy %s, caches cold, %s\n", policy, length.Round(time.Second))
		bar := startProgress(e, r, length, 0)
		res := r.Run(ctx)
		bar.stop()
		if ctx.Err() != nil {
			return nil
		}
		rep.Phases = append(rep.Phases, phaseOf(policy, res))
	}
	if json {
		return printJSON(e.Stdout, rep)
	}
	printDemo(e.Stdout, rep)
	if f.duration > 0 {
		return nil
	}
	fmt.Fprintf(e.Stdout, "\nThe users go on under penstock until ^C.\n\n")
	return d.goOn(ctx, e.Stdout, f.seed+1)
}

// goOn keeps the users talking and prints what the last seconds were like.
func (d *demoFleet) goOn(ctx context.Context, w io.Writer, seed uint64) error {
	var last demoWindow
	r, err := d.runner(seed, 0, last.add)
	if err != nil {
		return err
	}
	done := make(chan struct{})
	go func() {
		defer close(done)
		r.Run(ctx)
	}()
	const every = 5 * time.Second
	tick := time.NewTicker(every)
	defer tick.Stop()
	for {
		select {
		case <-done:
			return nil
		case <-tick.C:
			fmt.Fprintln(w, last.line(time.Now(), every))
		}
	}
}
