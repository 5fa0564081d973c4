// SPDX-License-Identifier: Apache-2.0

package cli

import (
	"fmt"
	"math"
	"path/filepath"
	"strings"
	"time"

	"github.com/spf13/pflag"

	"github.com/penstock-project/penstock/internal/engine"
	"github.com/penstock-project/penstock/internal/load"
	"github.com/penstock-project/penstock/internal/scalesim"
	"github.com/penstock-project/penstock/internal/workload"
)

// traceFlags choose recorded traffic and the replicas that it is played on.
type traceFlags struct {
	file, format, member string
	factor, mean         float64
	shift, from, span    time.Duration
	unscored             time.Duration
	start                time.Duration
	profile              string
	ttft, itl            time.Duration
	caches               string
	seed                 uint64
}

func (f *traceFlags) add(fl *pflag.FlagSet) {
	fl.StringVar(&f.file, "trace", "", "play this recorded traffic instead of drawn scenarios; - is standard input")
	fl.StringVar(&f.format, "format", "auto", "format of the trace: auto, azure, servegen, mooncake, csv, weka, journal")
	fl.StringVar(&f.member, "member", "", "of an archive, read the files whose name contains this")
	fl.Float64Var(&f.factor, "factor", 1, "lay so many copies of the trace over each other; under 1: keep that share of its requests")
	fl.Float64Var(&f.mean, "mean", 0, "choose the factor so that this many replicas are offered (0: use --factor)")
	fl.DurationVar(&f.shift, "shift", 0, "how far copies are apart (0: evenly over the trace)")
	fl.DurationVar(&f.from, "from", 0, "leave out the beginning of the trace")
	fl.DurationVar(&f.span, "for", 0, "play only so much of it (0: all, of rate traces a day)")
	fl.DurationVar(&f.unscored, "unscored", -1, "how much of the beginning is not scored (default: 10m, of more than 8 hours 2h, at most a quarter)")
	fl.Lookup("unscored").DefValue = "0s" // the text says what happens without it
	fl.DurationVar(&f.start, "start", 120*time.Second, "how long a replica takes to start")
	fl.StringVar(&f.profile, "profile", "qwen3-32b-2xrtxpro6000", "engine profile of the replicas")
	fl.DurationVar(&f.ttft, "ttft", 2*time.Second, "objective: time to the first token")
	fl.DurationVar(&f.itl, "itl", 0, "objective: mean time between tokens (0: 200ms)")
	fl.StringVar(&f.caches, "caches", string(scalesim.CachesAware), "how prompts that share a beginning are routed: aware, random, none")
}

// scenario reads the trace and makes a scenario of it.
func (f *traceFlags) scenario(e *Env) (*scalesim.Scenario, scalesim.Info, error) {
	var none scalesim.Info
	format, err := workload.ParseFormat(f.format)
	if err != nil {
		return nil, none, usagef("", "--format: %v", err)
	}
	p, err := f.replicas()
	if err != nil {
		return nil, none, err
	}
	t, err := load.ReadTraceFile(f.file, e.Stdin, f.member, workload.ReadOptions{Format: format, Seed: f.seed})
	if err != nil {
		return nil, none, traceFault(err)
	}
	o := f.options(p)
	if len(t.Clients) > 0 && o.For == 0 {
		o.For = 24 * 3600
		if o.Mean == 0 && f.factor == 1 && t.Requests > scalesim.MaxTraceRequests/4 {
			o.Mean = 4
			fmt.Fprintf(e.Stderr, "penstock: the trace holds about %d requests: a day of it is thinned to 4 replicas; --mean, --factor, --from and --for choose otherwise\n", t.Requests)
		}
	}
	sc, info, err := scalesim.FromTrace(t, o)
	if err != nil {
		return nil, info, usagef("", "--trace: %s: %v", f.file, err)
	}
	return sc, info, nil
}

// replicas checks the flags about replicas and objectives.
func (f *traceFlags) replicas() (engine.Profile, error) {
	p, ok := engine.Lookup(f.profile)
	if !ok {
		return p, usagef("the profiles are: "+strings.Join(profileNames(), ", "), "--profile %q is unknown", f.profile)
	}
	if f.start < time.Second || f.start > 2*time.Hour {
		return p, usagef("", "--start must be 1s to 2h, not %s", f.start)
	}
	if f.ttft < 0 || f.itl < 0 || f.from < 0 || f.span < 0 || f.shift < 0 {
		return p, usagef("", "--ttft, --itl, --from, --for and --shift must not be negative")
	}
	if !(f.factor > 0 && f.factor <= 10_000) || !(f.mean >= 0 && f.mean <= 1000) {
		return p, usagef("", "--factor must be over 0 and at most 10000, --mean 0 to 1000")
	}
	switch scalesim.Caches(f.caches) {
	case scalesim.CachesAware, scalesim.CachesRandom, scalesim.CachesNone:
		return p, nil
	}
	return p, usagef("", "--caches must be aware, random or none, not %q", f.caches)
}

func (f *traceFlags) options(p engine.Profile) scalesim.TraceOptions {
	slo := scalesim.SLO{TTFT: f.ttft.Seconds(), ITL: f.itl.Seconds()}
	if f.ttft == 0 {
		slo.TTFT = 2
	}
	if f.itl == 0 {
		slo.ITL = math.Max(0.2, 4*p.Base)
	}
	return scalesim.TraceOptions{
		Name: filepath.Base(f.file), Profile: p, SLO: slo, Seed: f.seed,
		Start:  scalesim.Start{Median: f.start.Seconds(), Sigma: 0.15, Prior: f.start.Seconds()},
		Factor: f.factor, Mean: f.mean, Shift: f.shift.Seconds(), From: f.from.Seconds(), For: f.span.Seconds(),
		Unscored: f.unscored.Seconds(), Caches: scalesim.Caches(f.caches),
	}
}
