// SPDX-License-Identifier: Apache-2.0

package cli

import (
	"fmt"
	"math"
	"net/url"
	"strconv"
	"time"

	"github.com/spf13/cobra"

	"github.com/penstock-project/penstock/internal/console"
)

func rolloutCmd(e *Env) *cobra.Command {
	c := grouped(groupAct, &cobra.Command{
		Use:   "rollout",
		Short: "See and steer the canary of a model",
		Long: `See and steer the rollouts of a running Penstock: two versions of a model behind one
name. The guard holds and goes back by itself; these commands are for people.`,
		Example: `  penstock rollout status
  penstock rollout promote food-review
  penstock rollout abort food-review`,
		Args: noArgs,
		RunE: func(c *cobra.Command, _ []string) error { return c.Help() },
	})
	c.AddCommand(rolloutStatusCmd(e))
	for _, v := range []struct{ verb, short, long string }{
		{"promote", "Give the canary the next step of its weight", "Give the canary the weight of its next step, whatever the guard says. With --full it gets\nall traffic."},
		{"hold", "Keep the weight of the canary as it is", "Keep the weight of the canary as it is until it is promoted. The guard still goes back\nwhere it must."},
		{"abort", "Send everything to the baseline", "Send everything to the baseline, sessions of the canary included."},
	} {
		c.AddCommand(rolloutActCmd(e, v.verb, v.short, v.long))
	}
	return c
}

func rolloutStatusCmd(e *Env) *cobra.Command {
	c := &cobra.Command{
		Use: "status [NAME]", Short: "Show the rollouts with the evidence of their guards",
		Example: "  penstock rollout status food-review",
		Args:    cobra.MaximumNArgs(1),
	}
	out := outputFlag(c, "table", "json")
	server := serverFlag(c)
	c.RunE = func(c *cobra.Command, args []string) error {
		cl, err := e.client(*server)
		if err != nil {
			return err
		}
		path := "/api/v1/rollout"
		if len(args) == 1 {
			path += "/" + url.PathEscape(args[0])
		}
		var list console.RolloutList
		if err := cl.get(c.Context(), path, &list); err != nil {
			return err
		}
		return e.showRollouts(*out, &list)
	}
	return c
}

func rolloutActCmd(e *Env, verb, short, long string) *cobra.Command {
	c := &cobra.Command{
		Use: verb + " NAME", Short: short, Long: long, Example: "  penstock rollout " + verb + " food-review",
		Args: func(_ *cobra.Command, args []string) error {
			if len(args) != 1 {
				return usagef("`penstock rollout status` lists them", "name one rollout")
			}
			return nil
		},
	}
	full := false
	if verb == "promote" {
		c.Flags().BoolVar(&full, "full", false, "to all traffic at once")
	}
	out := outputFlag(c, "table", "json")
	server := serverFlag(c)
	c.RunE = func(c *cobra.Command, args []string) error {
		cl, err := e.client(*server)
		if err != nil {
			return err
		}
		body := "{}"
		if full {
			body = `{"full": true}`
		}
		var list console.RolloutList
		if err := cl.post(c.Context(), "/api/v1/rollout/"+url.PathEscape(args[0])+"/"+verb, []byte(body), &list); err != nil {
			return err
		}
		return e.showRollouts(*out, &list)
	}
	return c
}

func (e *Env) showRollouts(format string, list *console.RolloutList) error {
	if format == "json" {
		return printJSON(e.Stdout, list)
	}
	if len(list.Rollouts) == 0 {
		fmt.Fprintln(e.Stdout, "there are no rollouts; `rollouts` in the configuration makes one")
		return nil
	}
	for i := range list.Rollouts {
		if i > 0 {
			fmt.Fprintln(e.Stdout)
		}
		e.showRollout(&list.Rollouts[i], list.Time)
	}
	return nil
}

func (e *Env) showRollout(r *console.Rollout, now time.Time) {
	w := e.Stdout
	fmt.Fprintf(w, "%s: %s, the canary gets %s since %s (sticky by %s)\n", r.Name, r.State, sharePercent(r.Weight), now.Sub(r.Since).Round(time.Second), r.Sticky)
	t := newTable("version", "model", "pool", ">requests", ">failed", ">output tokens")
	for _, a := range []struct {
		name string
		arm  *console.RolloutArm
	}{{"baseline", &r.Baseline}, {"canary", &r.Canary}} {
		t.add(a.name, a.arm.Model, a.arm.Pool, strconv.Itoa(a.arm.Requests), strconv.Itoa(a.arm.Failed), strconv.FormatInt(a.arm.Output, 10))
	}
	t.indent = "  "
	t.write(w)
	t = newTable("guard", ">baseline", ">canary", ">n", "canary / baseline", ">accepted", "verdict")
	t.indent = "  "
	for _, c := range []*console.RolloutComparison{r.Evidence.TTFT, r.Evidence.ITL, r.Evidence.Errors} {
		if c != nil {
			t.add(comparisonRow(c)...)
		}
	}
	t.write(w)
	if r.Shadow != nil {
		fmt.Fprintf(w, "  shadow: %d copies sent, %d left out, %d tokens used, %d left of %d an hour\n", r.Shadow.Sent, r.Shadow.Skipped, r.Shadow.Tokens, r.Shadow.Left, r.Shadow.TokensPerHour)
	}
	for _, s := range r.Steps[max(0, len(r.Steps)-5):] {
		by := ""
		if s.By != "" {
			by = " by " + s.By
		}
		fmt.Fprintf(w, "  %s  %s -> %s  %s%s: %s\n", s.Time.Format(time.RFC3339), sharePercent(s.From), sharePercent(s.To), s.State, by, s.Why)
	}
}

func comparisonRow(c *console.RolloutComparison) []string {
	value := func(v *float64) string {
		switch {
		case v == nil:
			return "-"
		case c.Unit == "share":
			return sharePercent(*v)
		}
		return strconv.FormatFloat(*v*1e3, 'f', 1, 64) + " ms"
	}
	bounds, accepted := "open", fmt.Sprintf("%.3g", c.Margin)
	bound := func(v *float64) string {
		switch {
		case v == nil:
			return "?"
		case c.Unit == "share":
			return sharePercent(*v)
		}
		return strconv.FormatFloat(*v, 'f', 2, 64)
	}
	if c.Unit == "share" {
		accepted = sharePercent(c.Margin) + " more"
	}
	if c.Low != nil || c.High != nil {
		bounds = bound(c.Low) + " to " + bound(c.High)
	}
	return []string{c.Name, value(c.Baseline), value(c.Canary), strconv.Itoa(c.N), bounds, accepted, c.Verdict}
}

func sharePercent(v float64) string {
	return strconv.FormatFloat(math.Round(v*1e4)/1e2, 'f', -1, 64) + " %"
}
