// SPDX-License-Identifier: Apache-2.0

package cli

import (
	"bufio"
	"bytes"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"github.com/penstock-project/penstock/internal/load"
	"github.com/penstock-project/penstock/internal/scale"
	"github.com/penstock-project/penstock/internal/scalesim"
	"github.com/penstock-project/penstock/internal/workload"
)

// zeroReport is what `penstock whatif zero -o json` prints.
type zeroReport struct {
	Schema  string     `json:"schema"` // penstock/portfolio/v1
	From    string     `json:"from"`   // the file, or how the arrivals were drawn
	SpanS   float64    `json:"span_s"`
	StartS  float64    `json:"start_s"`
	WakeS   float64    `json:"wake_s"`
	MaxWait float64    `json:"max_wait_s"`
	Verdict string     `json:"verdict"`
	Keeps   []keepCell `json:"keeps"` // all variants at one keep time
	scale.Portfolio
}

// keepCell is all variants with the same time after the last request.
type keepCell struct {
	KeepS float64 `json:"keep_s"` // -1: learned per variant
	Share float64 `json:"share_of_warm"`
	Cold  float64 `json:"cold_share"`
}

type zeroOptions struct {
	file, format, member   string
	draw                   scalesim.PortfolioSpec
	start, wake, load, max time.Duration
	price                  time.Duration
	slots                  int
	rps                    float64
}

func whatifZeroCmd(e *Env) *cobra.Command {
	o := zeroOptions{draw: scalesim.DefaultPortfolio()}
	c := &cobra.Command{
		Use:   "zero",
		Short: "Which of many variants should go to zero, sleep, be an adapter, or stay warm",
		Long: `Find for each of many variants of a model the cheapest way to keep it: a replica
that never stops, a LoRA adapter on shared base replicas, an engine that sleeps, or
no replica while nobody asks; with the replica-hours of each and how long the first
request after a pause waits.

--arrivals is a CSV file with a time (seconds, or a time of day with its date) and
the name of a variant on each line, with or without a header, or a trace in one of
the formats of ` + "`penstock load --trace`" + ` that names adapters, tenants or clients.
Without a file the arrivals are drawn: Zipf popularity, sessions, day and night.`,
		Example: `  penstock whatif zero --arrivals requests.csv --start 2m
  penstock whatif zero --variants 30 --zipf 1.1 --start 9m --adapter-slots 0
  penstock whatif zero --arrivals requests.csv -o config > pools.yaml`,
		Args: noArgs,
	}
	out := outputFlag(c, "table", "json", "config")
	f := c.Flags()
	f.StringVar(&o.file, "arrivals", "", "file of arrivals; - is standard input (default: draw them)")
	f.StringVar(&o.format, "format", "auto", "format of the file: auto, or one of "+formatNames())
	f.StringVar(&o.member, "member", "", "of an archive, read the files whose name contains this")
	f.IntVar(&o.draw.Variants, "variants", o.draw.Variants, "how many variants to draw")
	f.Float64Var(&o.draw.Zipf, "zipf", o.draw.Zipf, "exponent of their popularity")
	f.Float64Var(&o.draw.Top, "top", o.draw.Top, "requests a second of the most popular one")
	f.Float64Var(&o.draw.Days, "days", o.draw.Days, "days to draw")
	f.Uint64Var(&o.draw.Seed, "seed", o.draw.Seed, "seed of what is drawn")
	f.DurationVar(&o.start, "start", 120*time.Second, "how long a cold replica takes to start")
	f.DurationVar(&o.wake, "wake", 3*time.Second, "how long a sleeping one takes to wake (0: the engine cannot sleep)")
	f.IntVar(&o.slots, "adapter-slots", 8, "adapters that a base replica serves at a time (0: the variants are no adapters)")
	f.DurationVar(&o.load, "adapter-load", 300*time.Millisecond, "how long an adapter takes to load that is in no slot")
	f.Float64Var(&o.rps, "replica-rps", 2, "requests a second that one base replica carries")
	f.DurationVar(&o.max, "max-wait", 10*time.Second, "longest wait for the first answer after a pause, for 99 % of them (0: any)")
	f.DurationVar(&o.price, "miss-price", 60*time.Second, "replica time that one request that meets a start is worth")
	c.RunE = func(*cobra.Command, []string) error {
		r, err := o.run(e)
		if err != nil {
			return err
		}
		switch *out {
		case "json":
			return printJSON(e.Stdout, r)
		case "config":
			printZeroConfig(e.Stdout, r)
		default:
			printZero(e.Stdout, r)
		}
		return nil
	}
	return c
}

func (o *zeroOptions) run(e *Env) (*zeroReport, error) {
	if o.start < time.Second || o.start > 4*time.Hour || o.wake < 0 || o.load < 0 || o.max < 0 || o.price < 0 || o.slots < 0 {
		return nil, usagef("", "--start must be 1s to 4h; --wake, --adapter-load, --max-wait, --miss-price and --adapter-slots must not be negative")
	}
	if !(o.rps > 0) {
		return nil, usagef("", "--replica-rps must be over 0")
	}
	a, from, err := o.arrivals(e)
	if err != nil {
		return nil, err
	}
	r := &zeroReport{Schema: "penstock/portfolio/v1", From: from, SpanS: a.Span, StartS: o.start.Seconds(), WakeS: o.wake.Seconds(), MaxWait: o.max.Seconds()}
	r.Portfolio = scale.ChoosePortfolio(a.Names, a.At, scale.PortfolioOptions{
		Span: a.Span, Start: r.StartS, Wake: r.WakeS, Slots: o.slots, AdapterLoad: o.load.Seconds(), ReplicaRPS: o.rps,
		MaxWait: r.MaxWait, MissPrice: o.price.Seconds(),
	})
	for _, keep := range []float64{max(60, r.StartS), 300, 3600, -1} {
		cell := keepCell{KeepS: keep}
		n := 0
		for _, at := range a.At {
			var k scale.Kept
			if keep < 0 {
				k = scale.LearnedKeep(at, r.StartS, o.price.Seconds(), a.Span)
			} else {
				k = scale.KeepFor(at, r.StartS, keep, a.Span)
			}
			cell.Share += k.Share / float64(len(a.At))
			cell.Cold += k.Cold * float64(len(at))
			n += len(at)
		}
		cell.Cold /= float64(max(1, n))
		r.Keeps = append(r.Keeps, cell)
	}
	r.Verdict = zeroVerdict(r)
	return r, nil
}

// arrivals reads the file or draws.
func (o *zeroOptions) arrivals(e *Env) (*workload.Arrivals, string, error) {
	if o.file == "" {
		d := o.draw
		if d.Variants < 1 || d.Variants > 5000 || !(d.Zipf >= 0 && d.Zipf <= 5) || !(d.Top > 0 && d.Top <= 10) || !(d.Days > 0 && d.Days <= 400) {
			return nil, "", usagef("", "--variants must be 1 to 5000, --zipf 0 to 5, --top over 0 and at most 10, --days over 0 and at most 400")
		}
		names, at, span := d.Draw()
		return &workload.Arrivals{Names: names, At: at, Span: span}, fmt.Sprintf("drawn: %d variants, Zipf %.3g, %.3g requests a second of the most popular, seed %d", d.Variants, d.Zipf, d.Top, d.Seed), nil
	}
	format, err := workload.ParseFormat(o.format)
	if err != nil {
		return nil, "", usagef("", "--format: %v", err)
	}
	a, err := o.read(e, format)
	if err != nil {
		return nil, "", zeroFault(err)
	}
	return a, o.file, nil
}

// zeroFault names the flag that the file came by.
func zeroFault(err error) error {
	return usagef("each line is a time and the name of a variant, as in 2026-03-01T09:00:00Z,support-de; docs/how-to/thirty-variants.md", "--arrivals: %v", err)
}

// read takes a list of arrivals, or a trace that names variants.
func (o *zeroOptions) read(e *Env, format workload.Format) (*workload.Arrivals, error) {
	in := e.Stdin
	name := "stdin"
	if o.file != "-" {
		f, err := os.Open(o.file)
		if err != nil {
			return nil, err
		}
		defer f.Close()
		in, name = f, filepath.Base(o.file)
	}
	r := bufio.NewReaderSize(in, 64<<10)
	head, err := r.Peek(4 << 10)
	if err != nil && err != io.EOF {
		return nil, err
	}
	if format == workload.FormatAuto && !bytes.HasPrefix(head, []byte{0x1f, 0x8b}) && workload.HasVariants(workload.FirstLine(head)) {
		return workload.ReadArrivals(r, name)
	}
	t, err := load.ReadTraceFile(o.file, r, o.member, workload.ReadOptions{Format: format, Seed: o.draw.Seed})
	if err != nil {
		return nil, err
	}
	return t.VariantArrivals(o.draw.Seed, 2_000_000)
}

// zeroVerdict answers the question in a sentence or two.
func zeroVerdict(r *zeroReport) string {
	count := func(pick func(*scale.VariantChoice) scale.Way) string {
		n := map[scale.Way]int{}
		for i := range r.Variants {
			n[pick(&r.Variants[i])]++
		}
		var parts []string
		for _, w := range []scale.Way{scale.WayWarm, scale.WayAdapter, scale.WaySleep, scale.WayCold} {
			if n[w] > 0 {
				parts = append(parts, fmt.Sprintf("%d %s", n[w], wayWord(w)))
			}
		}
		return strings.Join(parts, ", ")
	}
	full := func(v *scale.VariantChoice) scale.Way { return v.BestFull }
	best := func(v *scale.VariantChoice) scale.Way { return v.Best }
	s := ""
	if r.Bases > 0 {
		s = fmt.Sprintf("As adapters: %s, %.0f %% of the replica-hours of %d warm replicas, on %.0f base %s. If they are models of their own: ",
			count(best), 100*r.Mixed.Share, len(r.Variants), r.Bases, pluralWord(int(r.Bases), "replica", "replicas"))
	}
	s += fmt.Sprintf("%s, %.0f %% of the replica-hours, %.1f %% of the requests meet a start or a wake.", count(full), 100*r.Full.Share, 100*r.Full.Cold)
	if r.MaxWait > 0 && r.StartS > r.MaxWait {
		s += fmt.Sprintf(" Cold is ruled out where more than 1 %% of first requests meet its start of %.0f s: the longest wait allowed is %.0f s.", r.StartS, r.MaxWait)
	}
	return s
}

func pluralWord(n int, one, many string) string {
	if n == 1 {
		return one
	}
	return many
}

func wayWord(w scale.Way) string {
	switch w {
	case scale.WayWarm:
		return "kept warm"
	case scale.WayAdapter:
		return "on shared base replicas"
	case scale.WaySleep:
		return "asleep between requests"
	}
	return "cold between requests"
}
