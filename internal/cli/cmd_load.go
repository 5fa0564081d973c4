// SPDX-License-Identifier: Apache-2.0

package cli

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"github.com/penstock-project/penstock/internal/load"
	"github.com/penstock-project/penstock/internal/workload"
)

// loadFlags are the flags of `penstock load`.
type loadFlags struct {
	target, model, keyFile, api string
	stream, stopEarly           bool
	timeout                     time.Duration

	workload           string
	rate, cv, share    float64
	concurrency        int
	requests, adapters int
	duration           time.Duration
	seed               uint64
	maxContext         int
	noThink            bool

	traces             []string
	format, member     string
	speedup            float64
	factor             int
	noJitter, openLoop bool

	sweeps  bool
	sloTTFT time.Duration

	kind  workload.Kind   // what workload names
	trace *workload.Trace // what traces hold; nil for synthetic traffic
}

func loadCmd(e *Env) *cobra.Command {
	f := &loadFlags{}
	c := grouped(groupRun, &cobra.Command{
		Use:   "load",
		Short: "Drive an OpenAI-compatible endpoint with a workload or a trace",
		Long: `Drive any OpenAI-compatible endpoint with synthetic traffic or a recorded trace
and measure what its clients see.

Synthetic traffic is open loop with --rate (requests arrive whether or not answers
keep up) and closed loop with --concurrency (so many users, each waiting for its
answers). A trace is played at its own times; --speedup plays its clock faster,
--factor lays shifted copies of it over each other.

An error inside a stream, a stream that breaks off and an empty success are errors.
The exit code is 1 when every request failed.`,
		Example: `  penstock load --target http://127.0.0.1:8080 --workload chat --rate 20 --duration 1m
  penstock load --workload agent --concurrency 16 --requests 500 -o json
  penstock load --trace access.csv --speedup 10
  penstock load --sweep --slo-ttft 1s --workload chat
  penstock load --trace conversation_trace.jsonl --speedup 20 --duration 1m`,
		Args: noArgs,
	})
	out := outputFlag(c, "text", "json")
	fl := c.Flags()
	fl.StringVar(&f.target, "target", "http://127.0.0.1:8080", "base URL of the endpoint, without /v1")
	fl.StringVar(&f.model, "model", "", "model to ask for (default: the first of /v1/models)")
	fl.StringVar(&f.api, "api", "chat", "API to call: chat or completions")
	fl.StringVar(&f.keyFile, "api-key-file", "", "file with the key to send as a bearer token")
	fl.BoolVar(&f.stream, "stream", true, "ask for event streams; without, there is no time to first token")
	fl.BoolVar(&f.stopEarly, "stop-early", false, "leave the length of answers to the model instead of ignore_eos")
	fl.DurationVar(&f.timeout, "timeout", 10*time.Minute, "limit of one request")
	fl.StringVar(&f.workload, "workload", "chat", "synthetic traffic: "+kindNames())
	fl.Float64Var(&f.rate, "rate", 0, "open loop: mean requests a second")
	fl.Float64Var(&f.cv, "cv", 1, "open loop: coefficient of variation of the gaps between sessions; 1 is Poisson")
	fl.IntVar(&f.concurrency, "concurrency", 0, "closed loop: number of users (default 8 without --rate and --trace)")
	fl.BoolVar(&f.noThink, "no-think", false, "closed loop: send the next turn at once")
	fl.Float64Var(&f.share, "share", 0, "part of the prompt tokens that an earlier prompt begins with, 0 to 0.99 (default: what the workload has)")
	fl.IntVar(&f.adapters, "adapters", 0, "send to LoRA adapters adapter-0 .. adapter-(N-1), Zipf distributed")
	fl.IntVar(&f.requests, "requests", 0, "stop after so many requests")
	fl.DurationVar(&f.duration, "duration", 0, "stop sending after this time (default 30s for synthetic traffic without --requests)")
	fl.Uint64Var(&f.seed, "seed", 1, "seed of everything that is drawn")
	fl.IntVar(&f.maxContext, "max-context", 0, "cut prompt and answer to so many tokens (default: max_model_len of the model, where it is told)")
	fl.StringArrayVar(&f.traces, "trace", nil, "play a trace file, - for standard input; .gz and .tar.gz are unpacked (repeatable)")
	fl.StringVar(&f.format, "format", "auto", "format of the trace: auto, "+formatNames())
	fl.StringVar(&f.member, "member", "", "of an archive, read only members whose name contains this")
	fl.Float64Var(&f.speedup, "speedup", 1, "play the trace's clock so many times faster")
	fl.IntVar(&f.factor, "factor", 1, "lay so many shifted copies of the trace over each other")
	fl.BoolVar(&f.noJitter, "no-jitter", false, "leave coarse time stamps of the trace as they are")
	fl.BoolVar(&f.openLoop, "open", false, "send the turns of a session at their own times instead of after the answer")
	fl.BoolVar(&f.sweeps, "sweep", false, "find the highest rate at which 99 % of the first tokens come within --slo-ttft; --duration is that of one step")
	fl.DurationVar(&f.sloTTFT, "slo-ttft", 2*time.Second, "sweep: limit of the time to first token")
	c.RunE = func(c *cobra.Command, _ []string) error {
		if err := f.check(c); err != nil {
			return err
		}
		return f.run(e, *out)
	}
	return c
}

func kindNames() string {
	var s []string
	for _, k := range workload.Kinds() {
		s = append(s, string(k))
	}
	return strings.Join(s, ", ")
}

func formatNames() string {
	var s []string
	for _, k := range workload.Formats() {
		s = append(s, string(k))
	}
	return strings.Join(s, ", ")
}

// check refuses what does not fit together and fills the defaults.
func (f *loadFlags) check(c *cobra.Command) error {
	set := c.Flags().Changed
	if f.api != "chat" && f.api != "completions" {
		return usagef("", "--api %q is unknown; use one of: chat, completions", f.api)
	}
	if len(f.traces) > 0 {
		for _, n := range []string{"workload", "rate", "cv", "share", "adapters"} {
			if set(n) {
				return usagef("--speedup and --factor change the load of a trace", "--%s does not go with --trace", n)
			}
		}
	} else {
		for _, n := range []string{"format", "member", "speedup", "factor", "no-jitter"} {
			if set(n) {
				return usagef("add --trace FILE", "--%s needs --trace", n)
			}
		}
	}
	if f.rate > 0 && f.concurrency > 0 {
		return usagef("--rate is the open loop, --concurrency the closed one", "--rate and --concurrency exclude each other")
	}
	for _, v := range []struct {
		flag  string
		value float64
		least float64
	}{
		{"rate", f.rate, 0}, {"concurrency", float64(f.concurrency), 0}, {"requests", float64(f.requests), 0},
		{"duration", f.duration.Seconds(), 0}, {"timeout", f.timeout.Seconds(), 0}, {"max-context", float64(f.maxContext), 0},
		{"adapters", float64(f.adapters), 0}, {"factor", float64(f.factor), 1}, {"speedup", f.speedup, 1e-6}, {"cv", f.cv, 0},
	} {
		if !(v.value >= v.least) {
			return usagef("", "--%s must be at least %v", v.flag, v.least)
		}
		if set(v.flag) && v.value == 0 && v.flag != "timeout" {
			return usagef("", "--%s must be more than 0", v.flag)
		}
	}
	if f.sweeps {
		return f.checkSweep(c)
	}
	if len(f.traces) == 0 {
		if f.rate == 0 && f.concurrency == 0 {
			f.concurrency = 8
		}
		if f.requests == 0 && f.duration == 0 {
			f.duration = 30 * time.Second
		}
	}
	return nil
}

// checkSweep is check for --sweep, whose steps are open loops of one length.
func (f *loadFlags) checkSweep(c *cobra.Command) error {
	for _, n := range []string{"trace", "concurrency", "requests"} {
		if c.Flags().Changed(n) {
			return usagef("a sweep sends synthetic traffic at rates of its own", "--%s does not go with --sweep", n)
		}
	}
	if !f.stream {
		return usagef("", "--sweep needs --stream: without it there is no time to first token")
	}
	if f.sloTTFT <= 0 {
		return usagef("", "--slo-ttft must be more than 0")
	}
	if f.rate == 0 {
		f.rate = 4
	}
	if f.duration == 0 {
		f.duration = 10 * time.Second
	}
	return nil
}

// spec is the synthetic traffic that the flags ask for.
func (f *loadFlags) spec() workload.Spec {
	return workload.Spec{
		Kind: f.kind, Seed: f.seed, Rate: f.rate, CV: f.cv, Share: f.share,
		Adapters: f.adapters, MaxContext: f.maxContext, Open: f.openLoop, Steady: f.rate > 0,
	}
}

// prepare reads what can be read before anything is connected, so that a mistake
// in the flags or in a trace is the first thing that is reported.
func (f *loadFlags) prepare(e *Env) error {
	if _, err := load.ParseTarget(f.target); err != nil {
		return usagef("", "--%v", err)
	}
	if len(f.traces) == 0 {
		var err error
		if f.kind, err = workload.ParseKind(f.workload); err != nil {
			return usagef("", "--workload: %v", err)
		}
		if err = f.spec().Validate(); err != nil {
			return usagef("", "--%v", err)
		}
		return nil
	}
	format, err := workload.ParseFormat(f.format)
	if err != nil {
		return usagef("", "--format: %v", err)
	}
	for _, name := range f.traces {
		t, err := load.ReadTraceFile(name, e.Stdin, f.member, workload.ReadOptions{
			Format: format, Seed: f.seed, NoJitter: f.noJitter,
		})
		if err != nil {
			return traceFault(err)
		}
		if f.trace == nil {
			f.trace = t
		} else if err := f.trace.Add(t); err != nil {
			return traceFault(err)
		}
	}
	return nil
}

// source returns the traffic and its name.
func (f *loadFlags) source() (workload.Source, string, error) {
	if f.trace == nil {
		g, err := workload.NewGenerator(f.spec())
		return g, string(f.kind), err
	}
	return f.trace.Source(workload.Play{
		Speedup: f.speedup, Factor: f.factor, Open: f.openLoop, Seed: f.seed, MaxContext: f.maxContext,
	}), fmt.Sprintf("%s trace", f.trace.Format), nil
}

func traceFault(err error) error {
	hint := "the formats are: " + formatNames()
	if errors.Is(err, fs.ErrNotExist) {
		hint = ""
	}
	var te *workload.TraceError
	if errors.As(err, &te) && te.Line > 0 {
		hint = "docs/reference/traces.md describes the columns and fields of every format"
	}
	return &Fault{Code: ExitUsage, Err: fmt.Errorf("--trace: %w", err), Hint: hint}
}

// connect finds the model and its context length.
func (f *loadFlags) connect(ctx context.Context) (*load.Target, error) {
	t, err := load.ParseTarget(f.target)
	if err != nil {
		return nil, usagef("", "--%v", err)
	}
	if f.keyFile != "" {
		key, err := os.ReadFile(f.keyFile)
		if err != nil {
			return nil, usagef("", "--api-key-file: %v", err)
		}
		t.Key = strings.TrimSpace(string(key))
		if t.Key == "" || strings.ContainsAny(t.Key, "\r\n\x00") {
			return nil, usagef("", "--api-key-file: %s holds no single key", f.keyFile)
		}
	}
	models, err := t.Models(ctx)
	if err == nil && len(models) == 0 && f.model == "" {
		return nil, failf("is a model loaded? or name one with --model", "%s lists no model", t.URL)
	}
	if err != nil {
		if f.model != "" {
			return t, nil // an endpoint need not list its models
		}
		return nil, &Fault{Code: ExitUnreachable, Err: fmt.Errorf("cannot ask %s for its models: %w", t.URL, err),
			Hint: "is it running? --target takes the base URL; --model NAME skips the question"}
	}
	if f.model == "" {
		f.model = models[0].ID
	}
	for _, m := range models {
		if m.ID == f.model && f.maxContext == 0 {
			f.maxContext = usableContext(m.MaxContext)
		}
	}
	return t, nil
}

// usableContext leaves room for what a chat template adds to a prompt and for a
// tokenizer that counts a little differently. 0 stays 0, which is no limit.
func usableContext(told int) int {
	if told == 0 {
		return 0
	}
	return max(told-told/50-64, 1)
}

func (f *loadFlags) run(e *Env, output string) error {
	if err := f.prepare(e); err != nil {
		return err
	}
	target, err := f.connect(e.Context)
	if err != nil {
		return err
	}
	if f.sweeps {
		return f.sweep(e, target, output)
	}
	src, name, err := f.source()
	if err != nil {
		return err
	}
	feed := workload.NewFeed(src, workload.FeedOptions{Users: f.concurrency, Limit: f.requests, NoThink: f.noThink})
	r := load.New(load.Options{
		Target: target, Model: f.model, Feed: feed, Workload: name,
		Completions: f.api == "completions", NoStream: !f.stream, StopEarly: f.stopEarly,
		Timeout: f.timeout, Duration: f.duration, Grace: f.timeout,
	})
	bar := startProgress(e, r, f.duration, f.requests)
	rep := r.Run(e.Context)
	bar.stop()
	if output == "json" {
		if err := printJSON(e.Stdout, rep); err != nil {
			return err
		}
	} else {
		printLoad(e.Stdout, rep)
	}
	if rep.Late != nil && rep.Late.P99 > 50 {
		fmt.Fprintf(e.Stderr, "penstock: warning: requests were sent %.0f ms late at p99: the generator itself was short of CPU, and the figures show it\n", rep.Late.P99)
	}
	if rep.Requests > 0 && rep.Failed() == rep.Requests {
		kind := keysInOrder(rep.Errors)[0]
		return failf("try one request by hand: curl "+target.URL+"/v1/models",
			"all %d requests failed, such as %s: %s", rep.Requests, kind, rep.ErrorExamples[kind])
	}
	return nil
}
