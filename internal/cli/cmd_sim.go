// SPDX-License-Identifier: Apache-2.0

package cli

import (
	"context"
	"fmt"
	"os"
	"runtime"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"

	"github.com/spf13/cobra"

	"github.com/penstock-project/penstock/internal/engine"
	"github.com/penstock-project/penstock/internal/load"
	"github.com/penstock-project/penstock/internal/sim"
	"github.com/penstock-project/penstock/internal/workload"
)

// simCmd is the parent of the commands that run policies in virtual time.
func simCmd(e *Env) *cobra.Command {
	c := grouped(groupPlan, &cobra.Command{
		Use:   "sim",
		Short: "Run policies in virtual time, with the production code",
		Long: `Run the production router over simulated replicas in virtual time and compare
it with the pickers of the field. The same seed gives the same bytes.`,
		Example: `  penstock sim suite --quick
  penstock sim compare --trace conversation_trace.jsonl --replicas 8
  penstock sim test policies.yaml`,
		Args: noArgs,
		RunE: func(c *cobra.Command, _ []string) error { return c.Help() },
	})
	c.AddCommand(simSuiteCmd(e), simCompareCmd(e), simTestCmd(e), simScaleCmd(e), simLoRACmd(e))
	return c
}

// Sizes of the suite. The quick form is for continuous integration: a fixed seed,
// shorter runs, three cells a family.
const (
	suiteCells    = 105
	quickCells    = 21
	quickRequests = 1500
	quickSeed     = 1
)

type suiteFlags struct {
	cells, requests int
	seed            uint64
	quick           bool
	policies        []string
	jobs            int
	routers         int
	exchange        string
	ablate          bool
}

func simSuiteCmd(e *Env) *cobra.Command {
	f := &suiteFlags{}
	c := &cobra.Command{
		Use:   "suite",
		Short: "Judge the picker by its regret over cells drawn from a distribution",
		Long: `Draw cells from a distribution (workload family, lengths, sharing, burstiness,
fleet, cache, engine, load, signal quality, a replica that dies or joins), play two
workloads of each under our picker and under those of the field, and print the
regret: mean TTFT + 20 ms of ours over the best of the eleven peers IN THE CELL.

A cell depends on the seed alone. Judge a change on seeds that it was not tuned on.`,
		Example: `  penstock sim suite --quick
  penstock sim suite --cells 105 --seed 7 -o json
  penstock sim suite --ablate --cells 42 --requests 1500`,
		Args: noArgs,
	}
	out := outputFlag(c, "table", "json")
	fl := c.Flags()
	fl.IntVar(&f.cells, "cells", suiteCells, "number of cells")
	fl.Uint64Var(&f.seed, "seed", quickSeed, "seed of the cells")
	fl.BoolVar(&f.quick, "quick", false, "fewer cells ("+strconv.Itoa(quickCells)+") and shorter runs: under 50 s on two cores")
	fl.IntVar(&f.requests, "requests", 0, "requests a run (default: 2,000 to 5,000, drawn by the cell)")
	fl.StringSliceVar(&f.policies, "policy", nil, "only these policies beside ours (default: all)")
	fl.IntVar(&f.jobs, "jobs", runtime.GOMAXPROCS(0), "cells to play at a time")
	fl.IntVar(&f.routers, "routers", 1, "also play ours with the traffic spread over so many routers, and tell what that costs")
	fl.StringVar(&f.exchange, "exchange", "on", "with --routers: on, they tell each other what they send; off, they do not")
	fl.BoolVar(&f.ablate, "ablate", false, "instead of peers: ours once without each term of the price and each mechanism of the queue")
	c.RunE = func(c *cobra.Command, _ []string) error {
		if f.quick {
			if !c.Flags().Changed("cells") {
				f.cells = quickCells
			}
			if !c.Flags().Changed("requests") {
				f.requests = quickRequests
			}
		}
		if f.cells < 1 || f.cells > 99_999 {
			return usagef("", "--cells must be between 1 and 99999")
		}
		if f.requests < 0 || f.requests > 0 && f.requests < 100 || f.jobs < 1 {
			return usagef("", "--requests must be at least 100, --jobs at least 1")
		}
		if f.routers < 1 || f.routers > 64 || !onOff(f.exchange) {
			return usagef("", "--routers must be 1 to 64, --exchange on or off")
		}
		if f.ablate && (len(f.policies) > 0 || f.routers > 1) {
			return usagef("", "--ablate compares ours with itself: it goes with neither --policy nor --routers")
		}
		return f.run(e, *out)
	}
	return c
}

func (f *suiteFlags) contenders() ([]sim.Contender, error) {
	if f.ablate {
		return sim.Ablations(), nil
	}
	if len(f.policies) == 0 {
		return sim.Contenders(), nil
	}
	cs, err := sim.Select(append([]string{sim.Ours}, f.policies...))
	if err != nil {
		return nil, usagef("", "--policy: %v", err)
	}
	for _, c := range cs {
		if c.Peer {
			return cs, nil
		}
	}
	return nil, usagef("", "--policy: name at least one peer, such as lmetric, to measure regret against")
}

func (f *suiteFlags) run(e *Env, output string) error {
	contenders, err := f.contenders()
	if err != nil {
		return err
	}
	runs := make([]sim.CellRuns, f.cells)
	split := make([][]sim.Result, f.cells)
	var done atomic.Int64
	err = inParallel(e.Context, f.jobs, f.cells, func(i int) {
		seed := sim.CellSeed(f.seed, i)
		runs[i] = sim.RunCell(sim.NewCell(seed, f.requests), contenders)
		if f.routers > 1 {
			split[i] = sim.RunRouters(runs[i].Cell, contenders[0], f.routers, f.exchange == "on")
		}
		if i%15 == 0 && !f.ablate {
			flood := sim.RunFlood(seed, f.requests, contenders[0])
			runs[i].Flood = &flood
		}
		if n := done.Add(1); n%20 == 0 {
			fmt.Fprintf(e.Stderr, "penstock: %d of %d cells\n", n, f.cells)
		}
	})
	if err != nil {
		return err
	}
	if f.ablate {
		r := sim.Ablate(f.seed, runs, contenders)
		if output == "json" {
			return printJSON(e.Stdout, r)
		}
		printAblation(e.Stdout, &r)
		return nil
	}
	r := sim.Summarize(f.seed, runs, contenders)
	if f.routers > 1 {
		r.Routers = routersReport(f, runs, split)
	}
	if output == "json" {
		return printJSON(e.Stdout, r)
	}
	printSuite(e.Stdout, &r)
	return nil
}

// inParallel calls do for 0..n-1 from jobs goroutines until ctx ends.
func inParallel(ctx context.Context, jobs, n int, do func(i int)) error {
	var next atomic.Int64
	var wg sync.WaitGroup
	for range min(jobs, n) {
		wg.Go(func() {
			for ctx.Err() == nil {
				i := int(next.Add(1)) - 1
				if i >= n {
					return
				}
				do(i)
			}
		})
	}
	wg.Wait()
	if err := ctx.Err(); err != nil {
		return failf("", "stopped before the end")
	}
	return nil
}

type compareFlags struct {
	trace, member, format string
	journal               string
	kind                  string
	rate, share           float64
	replicas, kvTokens    int
	ranks                 int
	rankKind              string
	profile               string
	speedup               float64
	factor, requests      int
	signals               string
	policies              []string
	seed                  uint64
	open                  bool
	routers               int
	exchange              string
	jobs                  int
}

func simCompareCmd(e *Env) *cobra.Command {
	f := &compareFlags{}
	c := &cobra.Command{
		Use:   "compare",
		Short: "Compare policies on one trace, or on your own recorded traffic",
		Long: `Play one trace, one journal of recorded decisions or one synthetic workload over
a simulated fleet under our picker and those of the field.

--signals says what the router can know: own (its own index, corrected by usage),
events (exact KV events), lossy-events, text (half of the prompts recognised only in
part), and after a colon the seconds between scrapes, such as own:1.

--ranks gives each replica so many data-parallel ranks behind its address, each an
engine of its own. --rank-kind says what they do: pinned, a request is served at the
rank that it names; deaf, the replica takes the rank that has least to do; total, it
tells the sums of its ranks only, so nobody names one.`,
		Example: `  penstock sim compare --trace conversation_trace.jsonl --replicas 8 --speedup 2
  penstock sim compare --journal decisions.jsonl --policy penstock --policy random
  penstock sim compare --workload agent --rate 4 --replicas 4 -o json
  penstock sim compare --workload chat --rate 12 --replicas 3 --ranks 4 --rank-kind deaf`,
		Args: noArgs,
	}
	out := outputFlag(c, "table", "json")
	fl := c.Flags()
	fl.StringVar(&f.trace, "trace", "", "trace file, - for standard input; .gz and .tar.gz are unpacked")
	fl.StringVar(&f.journal, "journal", "", "journal of decisions that a penstock recorded")
	fl.StringVar(&f.format, "format", "auto", "format of the trace: auto, "+formatNames())
	fl.StringVar(&f.member, "member", "", "of an archive, read only members whose name contains this")
	fl.StringVar(&f.kind, "workload", "", "synthetic traffic instead: "+kindNames())
	fl.Float64Var(&f.rate, "rate", 0, "synthetic traffic: mean requests a second")
	fl.Float64Var(&f.share, "share", 0, "synthetic traffic: part of the prompt tokens that an earlier prompt begins with")
	fl.IntVar(&f.replicas, "replicas", 8, "replicas of the fleet")
	fl.IntVar(&f.ranks, "ranks", 1, "data-parallel ranks of a replica")
	fl.StringVar(&f.rankKind, "rank-kind", "pinned", "with --ranks: pinned, deaf or total")
	fl.IntVar(&f.kvTokens, "kv-tokens", 0, "KV memory of a replica, or of each rank, in tokens (default: the profile's)")
	fl.StringVar(&f.profile, "profile", "qwen3-32b-2xh100", "engine profile of the replicas: a built-in name or a file")
	fl.Float64Var(&f.speedup, "speedup", 1, "play the trace's clock so many times faster")
	fl.IntVar(&f.factor, "factor", 1, "lay so many shifted copies of the trace over each other")
	fl.BoolVar(&f.open, "open", false, "send the turns of a session at their own times instead of after the answer")
	fl.IntVar(&f.requests, "requests", 0, "stop after so many requests (default: all; 5000 for synthetic traffic)")
	fl.StringVar(&f.signals, "signals", "own:1", "what the router knows: own, events, lossy-events or text, and seconds between scrapes")
	fl.IntVar(&f.routers, "routers", 1, "routers that share the traffic")
	fl.StringVar(&f.exchange, "exchange", "on", "with --routers: on, they tell each other what they send; off, they do not")
	fl.StringSliceVar(&f.policies, "policy", nil, "policies to run (default: ours, the eleven peers and the other baselines)")
	fl.Uint64Var(&f.seed, "seed", 1, "seed of everything that is drawn")
	fl.IntVar(&f.jobs, "jobs", runtime.GOMAXPROCS(0), "policies to run at a time")
	c.RunE = func(*cobra.Command, []string) error { return f.run(e, *out) }
	return c
}

func (f *compareFlags) check() error {
	n := 0
	for _, s := range []string{f.trace, f.journal, f.kind} {
		if s != "" {
			n++
		}
	}
	if n != 1 {
		return usagef("for instance: penstock sim compare --trace FILE", "name one of --trace, --journal and --workload")
	}
	if f.kind != "" && f.rate <= 0 {
		return usagef("", "--workload needs --rate, the requests a second")
	}
	if f.replicas < 1 || f.replicas > 1000 || f.routers < 1 || f.routers > 64 || f.jobs < 1 || !onOff(f.exchange) {
		return usagef("", "--replicas must be 1 to 1000, --routers 1 to 64, --jobs at least 1, --exchange on or off")
	}
	if f.ranks < 1 || f.ranks > 64 || f.ranks*f.replicas > 4096 {
		return usagef("", "--ranks must be 1 to 64, and 4096 at most in the whole fleet")
	}
	if f.kvTokens < 0 || f.requests < 0 || f.factor < 1 || !(f.speedup > 0) {
		return usagef("", "--kv-tokens and --requests must not be negative, --factor must be at least 1, --speedup more than 0")
	}
	return nil
}

// config is the fleet that the flags ask for.
func (f *compareFlags) config(blockTokens int) (sim.Config, error) {
	p, ok := engine.Lookup(f.profile)
	if _, err := os.Stat(f.profile); !ok && err == nil {
		if p, err = loadProfile(f.profile); err != nil {
			return sim.Config{}, err
		}
	} else if !ok {
		return sim.Config{}, usagef("", "--profile %q is unknown; use one of: %s, or a file", f.profile, strings.Join(profileNames(), ", "))
	}
	if f.kvTokens > 0 {
		p.KVTokens = f.kvTokens
	}
	p.BlockTokens = blockTokens
	if p.KVTokens < 2*blockTokens {
		return sim.Config{}, usagef("", "--kv-tokens must hold at least two blocks of %d tokens", blockTokens)
	}
	c := sim.Config{Profile: p, Replicas: f.replicas, Ranks: f.ranks, Routers: f.routers, Exchange: f.exchange == "on", Seed: f.seed}
	kind, every, _ := strings.Cut(f.signals, ":")
	found := false
	for k := sim.IndexOwn; k <= sim.IndexText; k++ {
		if k.String() == kind {
			c.Index, found = k, true
		}
	}
	if !found {
		return sim.Config{}, usagef("", "--signals %q is unknown; use own, events, lossy-events or text, such as own:1", f.signals)
	}
	k, err := sim.ParseRankKind(f.rankKind)
	if err != nil {
		return sim.Config{}, usagef("", "--rank-kind: %v", err)
	}
	c.RankKind = k
	if every != "" {
		s, err := strconv.ParseFloat(every, 64)
		if err != nil || !(s >= 0.01 && s <= 3600) {
			return sim.Config{}, usagef("", "--signals %q: the seconds between scrapes must be a number from 0.01 to 3600", f.signals)
		}
		c.Signals.Interval = s
	}
	return c, nil
}

// source returns the traffic, its name and the length of its blocks in tokens.
func (f *compareFlags) source(e *Env) (src workload.Source, name string, block int, err error) {
	const block0 = 32
	if f.kind != "" {
		kind, err := workload.ParseKind(f.kind)
		if err != nil {
			return nil, "", 0, usagef("", "--workload: %v", err)
		}
		g, err := workload.NewGenerator(workload.Spec{Kind: kind, Seed: f.seed, Rate: f.rate, Share: f.share, Open: f.open})
		if err != nil {
			return nil, "", 0, usagef("", "--%v", err)
		}
		if f.requests == 0 {
			f.requests = 5000
		}
		return g, string(kind), block0, nil
	}
	format, err := workload.ParseFormat(f.format)
	if err != nil {
		return nil, "", 0, usagef("", "--format: %v", err)
	}
	name = f.trace
	if f.journal != "" {
		name, format = f.journal, workload.FormatJournal
	}
	t, err := load.ReadTraceFile(name, e.Stdin, f.member, workload.ReadOptions{Format: format, Seed: f.seed})
	if err != nil {
		return nil, "", 0, traceFault(err)
	}
	if t.BlockTokens > 0 {
		block = t.BlockTokens
	} else {
		block = block0
	}
	return t.Source(workload.Play{Speedup: f.speedup, Factor: f.factor, Open: f.open, Seed: f.seed}), name, block, nil
}

func (f *compareFlags) run(e *Env, output string) error {
	if err := f.check(); err != nil {
		return err
	}
	src, name, block, err := f.source(e)
	if err != nil {
		return err
	}
	cfg, err := f.config(block)
	if err != nil {
		return err
	}
	contenders := sim.Contenders()
	if len(f.policies) > 0 {
		if contenders, err = sim.Select(f.policies); err != nil {
			return usagef("", "--policy: %v", err)
		}
	}
	traffic := sim.NewTraffic(src, f.requests, block)
	n, _ := traffic.Requests()
	if n == 0 {
		return failf("", "%s holds no request", name)
	}
	results := make([]sim.Result, len(contenders))
	if err := inParallel(e.Context, f.jobs, len(contenders), func(i int) {
		results[i] = sim.RunContender(cfg, contenders[i], traffic)
	}); err != nil {
		return err
	}
	r := sim.Compare(cfg, n, contenders, results)
	r.Trace = name
	if output == "json" {
		return printJSON(e.Stdout, r)
	}
	printCompare(e.Stdout, &r)
	return nil
}
