// SPDX-License-Identifier: Apache-2.0

package cli

import (
	"fmt"
	"io"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"github.com/penstock-project/penstock/internal/diagnose"
	"github.com/penstock-project/penstock/internal/diagnose/scaling"
)

// scalingFlags are the flags of `penstock diagnose scaling`.
type scalingFlags struct {
	history, manifests    []string
	prometheus, cold      string
	namespace, deployment string
	since, step           time.Duration
	target                float64
}

func diagnoseScalingCmd(e *Env) *cobra.Command {
	f := &scalingFlags{}
	c := &cobra.Command{
		Use:   "scaling [FILE|DIR|-]...",
		Short: "Say why a fleet did not scale, flapped or cannot be placed",
		Long: `Say why a fleet did not scale, scaled late, flapped, cascaded or cannot be placed, from
whatever is at hand: a history of replicas and signals (CSV, JSON or Prometheus), the
scaler's object, its status or what kubectl describe prints, events, the controller's
log, quotas and measured start-up times. The answer names the setting to change and
replays the history with it.

A history has a header: t_s (or time), replicas, and signals such as waiting_total,
kv_usage, ttft_p95_ms, cpu_pct, gpu_util, rps. Empty cells are unknown.`,
		Example: `  penstock diagnose scaling --history timeline.csv hpa.yaml --cold-start 240s
  penstock diagnose scaling --prometheus http://prometheus:9090 --namespace prod --deployment chat
  kubectl describe hpa chat | penstock diagnose scaling -`,
	}
	out := outputFlag(c, "table", "json")
	fl := c.Flags()
	fl.StringArrayVar(&f.history, "history", nil, "a `file` with the history (CSV, JSON); repeat")
	fl.StringArrayVar(&f.manifests, "manifest", nil, "a `file` with the scaler's object, policy or status; repeat")
	fl.StringVar(&f.prometheus, "prometheus", "", "`URL` of a Prometheus to read the history from")
	fl.StringVar(&f.namespace, "namespace", "", "with --prometheus: the `namespace`")
	fl.StringVar(&f.deployment, "deployment", "", "with --prometheus: the `name` of the Deployment")
	fl.DurationVar(&f.since, "since", time.Hour, "with --prometheus: how far back")
	fl.DurationVar(&f.step, "step", 15*time.Second, "with --prometheus: distance of the samples")
	fl.StringVar(&f.cold, "cold-start", "", "start-up `time` of a replica, such as 240s")
	fl.Float64Var(&f.target, "target", 0, "waiting requests per replica in the proposal (default 5)")
	c.RunE = func(c *cobra.Command, args []string) error {
		in, err := e.scalingInput(c, f, args)
		if err != nil {
			return err
		}
		rep := scaling.Analyse(in)
		if *out == "json" {
			if err := printJSON(e.Stdout, rep); err != nil {
				return err
			}
			return foundCode(rep.Findings)
		}
		printFindings(e.Stdout, rep.Findings)
		printReplays(e.Stdout, rep.Replays)
		fmt.Fprintln(e.Stdout, summary(rep.Checked, "row", rep.Findings))
		return foundCode(rep.Findings)
	}
	return c
}

func (e *Env) scalingInput(c *cobra.Command, f *scalingFlags, args []string) (scaling.Input, error) {
	in := scaling.Input{Target: f.target}
	g, err := e.gather(append(append([]string{}, args...), f.manifests...))
	if err != nil {
		return in, err
	}
	for _, t := range g.texts {
		in.Log += t.text + "\n"
		in.LogFile = t.name
	}
	for _, t := range g.tables {
		in.Histories = append(in.Histories, scaling.History{File: t.name, Table: t.table})
	}
	for _, h := range f.history {
		t, err := e.oneTable(h)
		if err != nil {
			return in, err
		}
		in.Histories = append(in.Histories, scaling.History{File: h, Table: t})
	}
	if f.cold != "" {
		v, ok := diagnose.ParseSeconds(f.cold)
		if !ok || v <= 0 {
			return in, usagef("write --cold-start 240s", "--cold-start %q is no time", f.cold)
		}
		in.ColdStart = v
	}
	if f.prometheus != "" {
		t, err := e.promHistory(c.Context(), f)
		if err != nil {
			return in, err
		}
		in.Histories = append(in.Histories, scaling.History{File: f.prometheus, Table: t})
	}
	in.Set = g.set(func(s string) { fmt.Fprint(e.Stderr, s) })
	if len(in.Histories) == 0 && in.Log == "" && in.Set.Empty() {
		return in, usagef("example: penstock diagnose scaling --history timeline.csv hpa.yaml", "%w", errNothing)
	}
	return in, nil
}

// printReplays shows what rules would have done with the recorded signals.
func printReplays(w io.Writer, list []scaling.Replay) {
	for _, r := range list {
		var steps []string
		for i, s := range r.Steps {
			if i == 12 {
				steps = append(steps, "...")
				break
			}
			steps = append(steps, fmt.Sprintf("%d at t=%s", s.Replicas, diagnose.Num(s.T)))
		}
		fmt.Fprintf(w, "replay: %s\n    %s; %s, at most %d\n", r.Rule, strings.Join(steps, ", "), diagnose.Plural(r.Changes, "change"), r.MaxReplicas)
		if r.HelpsFrom != nil {
			fmt.Fprintf(w, "    first asks for more at t=%s, helps from t=%s\n", diagnose.Num(*r.FirstUp), diagnose.Num(*r.HelpsFrom))
		}
	}
	if len(list) > 0 {
		fmt.Fprintln(w)
	}
}
