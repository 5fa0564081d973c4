// SPDX-License-Identifier: Apache-2.0

package cli

import (
	"fmt"
	"io"
	"strconv"
	"time"

	"github.com/spf13/cobra"

	"github.com/penstock-project/penstock/internal/config"
	"github.com/penstock-project/penstock/internal/flow"
)

// targetFlags registers the targets that recorded evaluations can be asked about. What it
// returns reads them: nil where none was given.
func targetFlags(c *cobra.Command) func() (*flow.ScaleTargets, error) {
	fl := c.Flags()
	share := fl.String("attainment", "", "share of requests in time that is aimed at, such as 95%")
	least := fl.Int("min", 0, "least replicas")
	most := fl.Int("max", 0, "most replicas")
	idle := fl.Duration("idle-after", 0, "how long without a request until zero replicas")
	up := fl.Int("step-up", 0, "most replicas of one change upwards; 0: no bound")
	down := fl.Int("step-down", 0, "most replicas of one change downwards; 0: no bound")
	return func() (*flow.ScaleTargets, error) {
		var t flow.ScaleTargets
		given := false
		for _, f := range []struct {
			name string
			set  func()
		}{
			{"min", func() { t.Min = least }}, {"max", func() { t.Max = most }}, {"step-up", func() { t.StepUp = up }}, {"step-down", func() { t.StepDown = down }},
			{"idle-after", func() { s := idle.Seconds(); t.IdleAfter = &s }},
		} {
			if fl.Changed(f.name) {
				f.set()
				given = true
			}
		}
		if fl.Changed("attainment") {
			r, err := config.ParseRatio(*share)
			if err != nil {
				return nil, usagef("for instance: --attainment 95%", "--attainment: %v", err)
			}
			p := float64(r)
			t.Attainment, given = &p, true
		}
		if !given {
			return nil, nil
		}
		if err := t.Check(); err != nil {
			return nil, usagef("penstock scale replay --help", "%v", err)
		}
		return &t, nil
	}
}

// askScaleJournal prints what other targets would have kept.
func (e *Env) askScaleJournal(name string, in io.Reader, t *flow.ScaleTargets, json bool) error {
	res, err := flow.AskScale(in, t.Apply)
	if err != nil {
		return failf("", "%s: %v", name, err)
	}
	if json {
		return printJSON(e.Stdout, map[string]any{"schema": flow.ScaleAskSchema, "targets": t, "pools": res})
	}
	tb := newTable("POOL", ">OVER", "", ">REPLICA-HOURS", ">PEAK", ">REVERSALS", ">SHORT OF WORK")
	for i := range res {
		r := &res[i]
		over := time.Duration(r.Seconds * float64(time.Second)).Round(time.Second).String()
		for _, row := range []struct {
			pool, over, what string
			f                *flow.ScaleFleet
		}{{r.Pool, over, "as it was", &r.Then}, {"", "", "as asked", &r.Now}} {
			tb.add(row.pool, row.over, row.what, fmt.Sprintf("%.2f", row.f.ReplicaHours), strconv.Itoa(row.f.Peak), strconv.Itoa(row.f.Reversals),
				time.Duration(row.f.ShortSeconds*float64(time.Second)).Round(time.Second).String())
		}
	}
	tb.write(e.Stdout)
	fmt.Fprintln(e.Stdout, "\nThe work is as recorded, the fleet is played. Short of work: more was offered in a minute than the ready replicas carry.")
	return nil
}
