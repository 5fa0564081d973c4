// SPDX-License-Identifier: Apache-2.0

package cli

import (
	"cmp"
	"context"
	"fmt"
	"io"
	"os"
	"strings"
	"sync"
	"time"

	"github.com/penstock-project/penstock/internal/config"
	"github.com/penstock-project/penstock/internal/flow"
	"github.com/penstock-project/penstock/internal/load"
	"github.com/penstock-project/penstock/internal/scale"
	"github.com/penstock-project/penstock/internal/workload"
)

// The demo of the scaler lives faster than a fleet: a start takes seconds and the
// pool goes to zero soon after the last request. Its replicas are processes.
const (
	scaleDemoLength = 90 * time.Second
	scaleDemoLeast  = 60 * time.Second
	scaleDemoStart  = 4 * time.Second // until a replica is ready
	scaleDemoIdle   = 8 * time.Second
	scaleDemoMax    = 6
	scaleDemoRate   = 8.0 // requests a second
	scaleDemoCold   = 3 * time.Second
	// scaleDemoTail is the time from the last request to the end: to idle, to drain, to
	// stop.
	scaleDemoTail = 14 * time.Second
)

// scaleDemoTuning is the scaler with the pauses of a fleet cut to the demo's: the rule
// is the same.
func scaleDemoTuning() *scale.Tuning {
	t := scale.DefaultTuning()
	t.DownDelay, t.UpRest = 3, 6
	return &t
}

// scaleDemoReport is the JSON result.
type scaleDemoReport struct {
	Schema     string          `json:"schema"` // penstock/demo-scale/v1
	DurationS  float64         `json:"duration_s"`
	StartS     float64         `json:"start_s"` // that a replica takes
	Requests   int             `json:"requests"`
	Served     int             `json:"served"`
	Lost       int             `json:"lost"`
	Errors     map[string]int  `json:"errors"`
	DecidedMS  *float64        `json:"first_start_decided_ms"` // after the first request; null: never
	FirstTTFT  *float64        `json:"first_ttft_s"`
	TTFT       *load.Latency   `json:"ttft_ms"`
	Offered    float64         `json:"offered"` // highest mean of a minute, seconds of replica time a second
	Needed     int             `json:"needed"`  // replicas that carry that
	Peak       int             `json:"peak"`    // most that were ready
	PeakWanted int             `json:"peak_wanted"`
	ZeroAfterS *float64        `json:"zero_after_s"` // from the last request; null: it never got there
	LeftBehind int             `json:"processes_left"`
	Steps      []scaleDemoStep `json:"steps"`
	OK         bool            `json:"ok"`
	Verdict    string          `json:"verdict"`
}

// scaleDemoStep is one change, with the sentence that explains it.
type scaleDemoStep struct {
	AtS     float64 `json:"at_s"`
	Desired int     `json:"desired"`
	Ready   int     `json:"ready"`
	Pending int     `json:"pending"`
	Binding string  `json:"binding"`
	Why     string  `json:"why"`
}

// scaleDemo is a running demo.
type scaleDemo struct {
	env    *Env
	json   bool
	began  time.Time
	server *server
	rep    *scaleDemoReport

	mu      sync.Mutex
	first   time.Time // of the first request
	lastAt  time.Time // end of the last
	decided time.Time // of the first start
}

func runScaleDemo(ctx context.Context, e *Env, f *demoFlags, json bool) error {
	length := cmp.Or(f.duration, scaleDemoLength)
	self, err := os.Executable()
	if err != nil {
		return failf("", "where is this program? %v", err)
	}
	cfg := config.Default()
	cfg.Listen.HTTP, cfg.Listen.Admin = f.listen, f.admin
	p := config.DefaultPool(demoPool)
	p.Models = []config.Model{{Name: demoModel}}
	p.Engine.Profile = demoProfile
	p.Replicas.Process = config.Process{Max: scaleDemoMax, StopGrace: 5 * time.Second, Command: []string{
		self, "replica", "--model", "{model}", "--listen", "{host}:{port}", "--profile", demoProfile, "--startup", scaleDemoStart.String()}}
	p.Scale.Min, p.Scale.Max, p.Scale.StartUp, p.Scale.IdleAfter = 0, scaleDemoMax, scaleDemoStart, scaleDemoIdle
	cfg.Pools = []config.Pool{p}
	s, err := buildServer(serverOptions{Config: cfg, Interval: 500 * time.Millisecond, DrainTimeout: 2 * time.Second,
		ScaleTuning: scaleDemoTuning(), ScalePeriod: time.Second})
	if err != nil {
		return err
	}
	d := &scaleDemo{env: e, json: json, began: time.Now(), server: s, rep: &scaleDemoReport{
		Schema: "penstock/demo-scale/v1", StartS: scaleDemoStart.Seconds(), Steps: []scaleDemoStep{}, Errors: map[string]int{}}}
	run, cancel := context.WithCancel(context.WithoutCancel(ctx))
	stopped := make(chan error, 1)
	go func() { stopped <- s.Run(run) }()
	err = d.play(ctx, f, length)
	cancel()
	if serr := <-stopped; err == nil && serr != nil {
		err = failf("", "the server ended: %v", serr)
	}
	if err != nil || ctx.Err() != nil {
		return err
	}
	return d.finish()
}

// play takes the pool from zero through a burst and back.
func (d *scaleDemo) play(ctx context.Context, f *demoFlags, length time.Duration) error {
	if !d.json {
		d.intro()
	}
	watch, stop := context.WithCancel(ctx)
	defer stop()
	var wg sync.WaitGroup
	wg.Go(func() { d.follow(watch) })
	defer wg.Wait()
	if !wait(ctx, scaleDemoCold) {
		return nil
	}
	r, err := d.runner(f.seed, length-scaleDemoCold-scaleDemoTail)
	if err != nil {
		return err
	}
	res := r.Run(ctx)
	if ctx.Err() != nil {
		return nil
	}
	d.rep.Requests, d.rep.Lost, d.rep.TTFT = res.Requests+res.Unfinished, res.Failed()+res.Unfinished, res.TTFT
	d.rep.Served = d.rep.Requests - d.rep.Lost
	if len(res.Errors) > 0 {
		d.rep.Errors = res.Errors
	}
	d.untilZero(ctx)
	stop()
	return nil
}

// untilZero waits until no process is left, within the time that the demo has.
func (d *scaleDemo) untilZero(ctx context.Context) {
	for deadline := time.Now().Add(scaleDemoTail + 10*time.Second); time.Now().Before(deadline) && ctx.Err() == nil; {
		if len(d.pool().procs.List()) == 0 {
			d.mu.Lock()
			v := time.Since(d.lastAt).Seconds()
			d.mu.Unlock()
			d.rep.ZeroAfterS = &v
			return
		}
		wait(ctx, 50*time.Millisecond)
	}
	d.rep.LeftBehind = len(d.pool().procs.List())
}

func (d *scaleDemo) pool() *livePool { return d.server.pools[0] }

func wait(ctx context.Context, d time.Duration) bool {
	select {
	case <-ctx.Done():
		return false
	case <-time.After(d):
		return true
	}
}

// runner is the burst: prompts of their own, at a rate that does not wait for answers.
func (d *scaleDemo) runner(seed uint64, length time.Duration) (*load.Runner, error) {
	target, err := load.ParseTarget(d.server.GatewayURL())
	if err != nil {
		return nil, err
	}
	g, err := workload.NewGenerator(workload.Spec{Kind: workload.KindChat, Seed: seed, Rate: scaleDemoRate, Turns: 1, EvenTurns: true, Apps: 1, Input: 1500, Output: 60,
		Open: true, MaxContext: 6000})
	if err != nil {
		return nil, err
	}
	return load.New(load.Options{Target: target, Model: demoModel, Workload: string(workload.KindChat), Feed: workload.NewFeed(g, workload.FeedOptions{}),
		Duration: length, Grace: 30 * time.Second, Timeout: time.Minute, Each: d.ended}), nil
}

// ended notes the moments of a request.
func (d *scaleDemo) ended(r *load.Result) {
	d.mu.Lock()
	defer d.mu.Unlock()
	if end := r.Start.Add(r.E2E); end.After(d.lastAt) {
		d.lastAt = end
	}
	if d.first.IsZero() || r.Start.Before(d.first) {
		v := r.TTFT.Seconds()
		d.first, d.rep.FirstTTFT = r.Start, &v
	}
}

// follow writes down every change that the scaler makes, as it comes.
func (d *scaleDemo) follow(ctx context.Context) {
	var last *flow.ScaleRecord
	for ctx.Err() == nil {
		h, _ := d.server.ScaleHistory(demoPool, 50)
		for i := len(h) - 1; i >= 0; i-- {
			if r := h[i]; last == nil || r.Time > last.Time {
				d.see(r, last)
				last = r
			}
		}
		wait(ctx, 20*time.Millisecond)
	}
}

// see takes in one evaluation.
func (d *scaleDemo) see(r, before *flow.ScaleRecord) {
	d.mu.Lock()
	defer d.mu.Unlock()
	d.rep.Peak = max(d.rep.Peak, r.Ready)
	for i := range r.Signals {
		if s := &r.Signals[i]; s.Value != nil && strings.HasSuffix(s.Name, "mean of 60 s") && *s.Value > d.rep.Offered {
			d.rep.Offered, d.rep.Needed = *s.Value, s.Desired
		}
	}
	if r.Desired == nil {
		return
	}
	d.rep.PeakWanted = max(d.rep.PeakWanted, *r.Desired)
	at := wallOf(r)
	if *r.Desired > 0 && d.decided.IsZero() {
		d.decided = at
	}
	if before != nil && before.Desired != nil && *before.Desired == *r.Desired && before.Ready == r.Ready {
		return
	}
	st := scaleDemoStep{AtS: float64(at.Sub(d.began).Milliseconds()) / 1e3, Desired: *r.Desired, Ready: r.Ready, Pending: len(r.Pending), Binding: r.Binding, Why: r.Sentence}
	d.rep.Steps = append(d.rep.Steps, st)
	if !d.json {
		printScaleDemoStep(d.env.Stdout, &st)
	}
}

// wallOf is when an evaluation was made; the applied moment is the nearest to the act.
func wallOf(r *flow.ScaleRecord) time.Time {
	if r.Applied != nil {
		return wallTime(r.Applied.At)
	}
	return wallTime(r.Time)
}

func (d *scaleDemo) intro() {
	gw, server := d.server.GatewayURL(), atServer(d.server.AdminURL())
	fmt.Fprintf(d.env.Stdout, `A pool of processes at zero behind %s; a replica takes %s to start.
%.0f requests a second come after %s, and stop later.

Try it in another terminal:
  penstock explain scale%s
  penstock scale status%s

`, gw, scaleDemoStart, scaleDemoRate, scaleDemoCold, server, server)
	fmt.Fprintf(d.env.Stdout, "%8s  %7s  %5s  %7s  %s\n", "AFTER", "DESIRED", "READY", "COMING", "WHY")
}

func printScaleDemoStep(w io.Writer, s *scaleDemoStep) {
	fmt.Fprintf(w, "%7.1fs  %7d  %5d  %7d  %s\n", s.AtS, s.Desired, s.Ready, s.Pending, s.Why)
}

// finish judges, prints, and makes the exit code.
func (d *scaleDemo) finish() error {
	r := d.rep
	r.DurationS = float64(time.Since(d.began).Milliseconds()) / 1e3
	if !d.decided.IsZero() && !d.first.IsZero() {
		v := float64(d.decided.Sub(d.first).Microseconds()) / 1e3
		r.DecidedMS = &v
	}
	var wrong []string
	if r.Requests == 0 {
		wrong = append(wrong, "no request was sent")
	}
	if r.Lost > 0 {
		wrong = append(wrong, fmt.Sprintf("%d of %d requests were lost", r.Lost, r.Requests))
	}
	if r.Peak < r.Needed {
		wrong = append(wrong, fmt.Sprintf("%d replicas were ready at most, %d were needed", r.Peak, r.Needed))
	}
	if r.ZeroAfterS == nil {
		wrong = append(wrong, "the pool did not go back to zero")
	}
	r.OK = len(wrong) == 0
	r.Verdict = strings.Join(wrong, "; ")
	if r.OK {
		r.Verdict = fmt.Sprintf("all %d requests were served; from zero to %d replicas, %d were needed, and back to zero %.0f s after the last request",
			r.Requests, r.Peak, r.Needed, *r.ZeroAfterS)
	}
	if d.json {
		if err := printJSON(d.env.Stdout, r); err != nil {
			return err
		}
	} else {
		d.print()
	}
	if !r.OK {
		return errSilent(ExitFindings)
	}
	return nil
}

func (d *scaleDemo) print() {
	w, r := d.env.Stdout, d.rep
	fmt.Fprintf(w, "\n%s requests, %s served, %s lost", withCommas(r.Requests), withCommas(r.Served), withCommas(r.Lost))
	if r.DecidedMS != nil {
		fmt.Fprintf(w, "; the first start was decided %.0f ms after the first request", *r.DecidedMS)
	}
	if r.FirstTTFT != nil {
		fmt.Fprintf(w, ", its answer began after %.1f s", *r.FirstTTFT)
	}
	fmt.Fprintln(w)
	if r.TTFT != nil {
		fmt.Fprintf(w, "TTFT p50 %s, p90 %s, p99 %s\n", milliText(r.TTFT.P50), milliText(r.TTFT.P90), milliText(r.TTFT.P99))
	}
	fmt.Fprintf(w, "\n%s\n", r.Verdict)
}
