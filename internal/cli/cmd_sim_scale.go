// SPDX-License-Identifier: Apache-2.0

package cli

import (
	"fmt"
	"io"
	"runtime"
	"slices"
	"strings"
	"sync"

	"github.com/spf13/cobra"

	"github.com/penstock-project/penstock/internal/scalesim"
)

// scaleSuite is what `penstock sim scale -o json` prints.
type scaleSuite struct {
	Schema    string            `json:"schema"` // penstock/scale-suite/v1
	Seed      uint64            `json:"seed"`
	Trace     *scalesim.Info    `json:"trace,omitempty"` // how the trace was read, where one was played
	Policies  []scalesim.Mean   `json:"policies"`        // means over the scenarios, least loss first
	Goals     []scalesim.Goal   `json:"goals"`
	Scenarios []scalesim.Played `json:"scenarios"`
	Faulted   []scalesim.Played `json:"faulted,omitempty"` // copies with faults, for the goal about them; ours only
}

type simScaleOptions struct {
	seed    uint64
	n       int
	only    []string
	classes []string
	faults  bool
	copies  bool
	bounds  bool
	check   bool
	jobs    int
	signals bool

	scenario string
	trace    traceFlags
}

func simScaleCmd(e *Env) *cobra.Command {
	var o simScaleOptions
	c := &cobra.Command{
		Use:   "scale",
		Short: "Run scalers over drawn or recorded traffic in virtual time",
		Long: `Draw scenarios (days, ramps, steps, bursts, flash crowds, on-off, batch jobs, mixed;
replicas that take 30 to 900 s to start) and run Penstock's scaler, the scalers of
the field at their published defaults, and bounds that know the future.

Loss is replica-hours over the clairvoyant's plus 50 times every share of requests
under 99 % that misses its objectives. Scored time begins once a scaler can have
seen the traffic. 32 scenarios cover every pair of class and start-up time once.

With --trace recorded traffic takes the place of the drawn one; what a fleet carries
is then measured on the trace's own lengths.

Named situations for --scenario, each with what it has to show:
` + namedScenarios(),
		Example: `  penstock sim scale --scenarios 8
  penstock sim scale --scenarios 32 --seed 40001 -o json
  penstock sim scale --trace code.csv --format azure --factor 8 --start 120s
  penstock sim scale --scenario flap-3-6
  penstock sim scale --signals --start 120s
  penstock sim scale --class flash --policy penstock --policy keda`,
		Args: noArgs,
	}
	f := c.Flags()
	f.Uint64Var(&o.seed, "seed", 40001, "seed of the scenarios")
	f.IntVar(&o.n, "scenarios", 8, "how many to draw, 1 to 512")
	f.StringArrayVar(&o.only, "policy", nil, "run only policies whose name contains this (repeatable; the clairvoyant always runs)")
	f.StringArrayVar(&o.classes, "class", nil, "keep only scenarios of this class (repeatable): "+strings.Join(scalesim.Classes(), ", "))
	f.BoolVar(&o.faults, "faults", false, "let starts die, replicas crash, metrics go out and the believed capacity be wrong")
	f.BoolVar(&o.copies, "fault-goal", true, "play copies with faults of the scenarios that start within 120 s, ours only, for the goal about faults")
	f.BoolVar(&o.bounds, "bounds", true, "run the static and fixed-rule bounds too")
	f.BoolVar(&o.check, "check", false, "exit with 3 where a goal is not met")
	f.IntVar(&o.jobs, "jobs", runtime.NumCPU(), "scenarios at a time")
	f.StringVar(&o.scenario, "scenario", "", "play a named situation, such as X6 or flap-3-6")
	f.BoolVar(&o.signals, "signals", false, "compare the signals that people scale on: lead, false alarms, reversals, cost")
	o.trace.add(f)
	out := outputFlag(c, "table", "json")
	c.RunE = func(c *cobra.Command, _ []string) error {
		if o.scenario != "" {
			return runNamed(e, c, &o, *out)
		}
		if o.signals {
			return runSignals(e, &o, *out)
		}
		run := runScaleSuite
		if o.trace.file != "" {
			run = runScaleTrace
		}
		s, err := run(e, c, &o)
		if err != nil {
			return err
		}
		if *out == "json" {
			err = printJSON(e.Stdout, s)
		} else {
			printScaleSuite(e.Stdout, s)
		}
		if err != nil {
			return err
		}
		return goalsMet(o.check, s.Goals)
	}
	return c
}

func runScaleSuite(e *Env, c *cobra.Command, o *simScaleOptions) (*scaleSuite, error) {
	if o.n < 1 || o.n > 512 {
		return nil, usagef("", "--scenarios must be 1 to 512, not %d", o.n)
	}
	for _, k := range o.classes {
		if !anyEqual(scalesim.Classes(), k) {
			return nil, usagef("one of: "+strings.Join(scalesim.Classes(), ", "), "--class %q is unknown", k)
		}
	}
	var draw []int
	for i := range o.n {
		if len(o.classes) == 0 || anyEqual(o.classes, scalesim.Classes()[i%len(scalesim.Classes())]) {
			draw = append(draw, i)
		}
	}
	s := &scaleSuite{Schema: "penstock/scale-suite/v1", Seed: o.seed, Scenarios: make([]scalesim.Played, len(draw))}
	opt := o.options()
	if o.copies && !o.faults && (len(o.only) == 0 || named(scalesim.Ours, o.only)) {
		s.Faulted = make([]scalesim.Played, len(draw))
	}
	var mu sync.Mutex
	done := 0
	err := inParallel(c.Context(), max(1, o.jobs), len(draw), func(k int) {
		sc := scalesim.Draw(o.seed, draw[k])
		if o.faults {
			sc.Break()
		}
		s.Scenarios[k] = scalesim.Play(sc, opt)
		if s.Faulted != nil && sc.Start.Median <= 120 {
			sc.Break()
			best, _ := s.Scenarios[k].Result(scalesim.BoundClairvoyant)
			s.Faulted[k] = scalesim.Play(sc, scalesim.Options{Clairvoyant: &best, Policies: func(name string) bool { return name == scalesim.Ours }})
		}
		mu.Lock()
		defer mu.Unlock()
		done++
		if tty, _ := e.Terminal(); tty {
			fmt.Fprintf(e.Stderr, "\rpenstock: %d of %d scenarios", done, len(draw))
		}
	})
	if err != nil {
		return nil, err
	}
	s.Faulted = slices.DeleteFunc(s.Faulted, func(p scalesim.Played) bool { return p.Name == "" })
	s.Policies = scalesim.Means(s.Scenarios)
	s.Goals = scalesim.Goals(append(slices.Clone(s.Scenarios), s.Faulted...))
	return s, nil
}

func (o *simScaleOptions) options() scalesim.Options {
	opt := scalesim.Options{Bounds: o.bounds}
	if len(o.only) > 0 {
		opt.Policies = func(name string) bool { return named(name, o.only) }
	}
	return opt
}

// runScaleTrace plays one trace.
func runScaleTrace(e *Env, c *cobra.Command, o *simScaleOptions) (*scaleSuite, error) {
	for _, k := range []string{"scenarios", "class"} {
		if c.Flags().Changed(k) {
			return nil, usagef("", "--%s is about drawn scenarios and does not go with --trace", k)
		}
	}
	o.trace.seed = o.seed
	sc, info, err := o.trace.scenario(e)
	if err != nil {
		return nil, err
	}
	if o.faults {
		sc.Break()
	}
	s := &scaleSuite{Schema: "penstock/scale-suite/v1", Seed: o.seed, Trace: &info}
	s.Scenarios = []scalesim.Played{scalesim.Play(sc, o.options())}
	s.Policies = scalesim.Means(s.Scenarios)
	s.Goals = slices.DeleteFunc(scalesim.Goals(s.Scenarios), func(g scalesim.Goal) bool { return g.Scenarios == 0 })
	return s, c.Context().Err()
}

func named(name string, only []string) bool {
	for _, o := range only {
		if strings.Contains(name, o) {
			return true
		}
	}
	return len(only) == 0
}

func anyEqual(list []string, s string) bool {
	for _, v := range list {
		if v == s {
			return true
		}
	}
	return false
}

func printScaleSuite(w io.Writer, s *scaleSuite) {
	if t := s.Trace; t != nil {
		fmt.Fprintf(w, "%s: %d requests in %.1f h, %.1f replicas offered, start %.0f s; cache hits %.0f %%, %d requests too long for any fleet left out; least loss first\n\n",
			s.Scenarios[0].Name, t.Requests, t.Hours, t.Mean, s.Scenarios[0].StartS, 100*t.HitRatio, t.TooLong)
	} else {
		fmt.Fprintf(w, "%d scenarios, seed %d: means, least loss first\n\n", len(s.Scenarios), s.Seed)
	}
	fmt.Fprintf(w, "%-40s %6s %8s %8s %9s %10s %8s %8s %9s\n", "POLICY", "LOSS", "IN SLO", "WORST", "X CLAIRV.", "REPLICA H", "REV/H", "STARTS/H", "TTFT P99")
	for _, p := range s.Policies {
		fmt.Fprintf(w, "%-40s %6.2f %7.2f%% %7.1f%% %9.2f %10.1f %8.1f %8.1f %9s\n",
			p.Policy, p.Loss, 100*p.SLO, 100*p.Least, p.Cost, p.ReplicaHours, p.Reversals, p.Starts, ttftCell(p.TTFTp99))
	}
	fmt.Fprintln(w, "\nLOSS = X CLAIRV., the replica-hours over those of one who knows the future, + 50 x what IN SLO lacks of 99 %, per scenario;\nWORST is the lowest IN SLO of a scenario; REV are changes of direction; a TTFT P99 of none: more than 1 % were never answered")
	printGoals(w, s.Goals)
}

// ttftCell shows a time to the first token; one that never came is "none".
func ttftCell(ms float64) string {
	if ms >= 900_000 {
		return "none"
	}
	return fmt.Sprintf("%.2f s", ms/1000)
}
