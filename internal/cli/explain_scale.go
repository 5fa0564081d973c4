// SPDX-License-Identifier: Apache-2.0

package cli

import (
	"fmt"
	"io"
	"net/url"
	"strconv"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"github.com/penstock-project/penstock/internal/fleet"
	"github.com/penstock-project/penstock/internal/flow"
	"github.com/penstock-project/penstock/internal/scale"
)

func explainScaleCmd(e *Env) *cobra.Command {
	c := &cobra.Command{
		Use:   "scale [POOL]",
		Short: "Say why a pool has the replicas that it has",
		Long: `Say how many replicas the scaler wants and why: the signals with what each would
ask for, the rule that decides and the next cheaper one with what rules it out, every
constraint that changed the number, what is coming and when, what keeps the pool from
going down and until when.`,
		Example: `  penstock explain scale
  penstock explain scale chat -o json`,
		Args: atMost(1),
	}
	out := outputFlag(c, "table", "json")
	server := serverFlag(c)
	c.RunE = func(c *cobra.Command, args []string) error {
		cl, err := e.client(*server)
		if err != nil {
			return err
		}
		pool, err := theScaledPool(c, cl, first(args))
		if err != nil {
			return err
		}
		var r flow.ScaleRecord
		if err := cl.get(c.Context(), "/api/v1/scale/"+url.PathEscape(pool), &r); err != nil {
			return err
		}
		if *out == "json" {
			return printJSON(e.Stdout, &r)
		}
		e.printScale(e.Stdout, &r)
		return nil
	}
	return c
}

// printScale writes a recommendation for people.
func (e *Env) printScale(w io.Writer, r *flow.ScaleRecord) {
	fmt.Fprintf(w, "%s\n\n", r.Sentence)
	fmt.Fprintf(w, "pool %s, %s, hand %s; %d wanted so far, %d ready, %d on their way, %d draining\n", r.Pool, scaleModeText(r), orDash(r.Hand),
		r.Current, r.Ready, len(r.Pending), r.Draining)
	if r.Override != nil {
		fmt.Fprintf(w, "%s since %s, %s\n", scaleModeText(r), e.at(r.Override.Since), lasts(r))
	}
	fmt.Fprintf(w, "evaluated %s; known for %s; a start takes %s (90 %%: %s)\n\n", e.at(r.Time), span(time.Duration(r.KnownFor*1e9)),
		span(time.Duration(r.StartP50*1e9)), span(time.Duration(r.StartP90*1e9)))
	printScaleSignals(w, r)
	if r.Unit != "" {
		fmt.Fprintf(w, "units of work are %s; at the objective one replica carries %s\n", r.Unit, trimmed(r.PerReplica))
	}
	e.printScaleSteps(w, r)
	e.printScalePending(w, r)
	if b := r.DownBlocked; b != nil {
		until := ""
		if b.Until != 0 {
			until = ", until " + e.at(b.Until)
		}
		fmt.Fprintf(w, "\nscale-down is blocked: %s%s\n", b.Why, until)
	}
	if len(r.Victims) > 0 {
		fmt.Fprintf(w, "\nwould go, in this order: %s\n", strings.Join(r.Victims, ", "))
	}
	for _, c := range r.Conditions {
		fmt.Fprintf(w, "\n%s: %s\n", c.Code, c.Message)
	}
	if a := r.Applied; a != nil {
		if a.OK {
			fmt.Fprintf(w, "\napplied %s\n", e.at(a.At))
		} else {
			fmt.Fprintf(w, "\nnot applied: %s\n", a.Error)
		}
	}
	fmt.Fprintf(w, "\nnext evaluation %s\n", clockText(r.Next))
}

// wallTime is a moment of a record.
func wallTime(m scale.Moment) time.Time { return fleet.Time(m).Wall() }

// at writes a moment of a record.
func (e *Env) at(m scale.Moment) string {
	if m == 0 {
		return "never"
	}
	return e.moment(fleet.Time(m).Wall())
}

func clockText(m scale.Moment) string {
	if m == 0 {
		return "-"
	}
	return fleet.Time(m).Wall().UTC().Format("15:04:05Z")
}

func printScaleSignals(w io.Writer, r *flow.ScaleRecord) {
	t := newTable("SIGNAL", ">VALUE", "UNIT", ">TARGET", ">RATIO", ">DESIRED", ">AGE", "NOTE")
	for i := range r.Signals {
		s := &r.Signals[i]
		v, target, ratio, desired, age := "unknown", "", "", "", ""
		if s.Value != nil {
			v = trimmed(*s.Value)
		}
		if s.Target > 0 {
			target = trimmed(s.Target)
		}
		if s.Value != nil && s.Target > 0 {
			ratio = trimmed(s.Ratio)
		}
		if s.Desired > 0 {
			desired = strconv.Itoa(s.Desired)
		}
		if s.AgeMS > 0 {
			age = ageText(s.AgeMS)
		}
		t.add(s.Name, v, s.Unit, target, ratio, desired, age, s.Note)
	}
	t.write(w)
}

// trimmed writes a number with at most three digits behind the point.
func trimmed(v float64) string {
	return strconv.FormatFloat(float64(int64(v*1000+0.5))/1000, 'f', -1, 64)
}

func (e *Env) printScaleSteps(w io.Writer, r *flow.ScaleRecord) {
	if r.Desired == nil {
		return
	}
	fmt.Fprintf(w, "\nraw %d", r.Raw)
	if r.Rule != nil {
		kept := "what it keeps on average is not known yet"
		if r.Rule.Cost > 0 {
			kept = "keeps " + trimmed(r.Rule.Cost) + " replicas on average"
		}
		fmt.Fprintf(w, ": %s; %s, %s of the work is expected to miss", r.Rule.Name, kept, missText(r.Rule.Misses))
	}
	fmt.Fprintln(w)
	for _, c := range r.Constraints {
		until := ""
		if c.Until != 0 {
			until = ", until " + clockText(c.Until)
		}
		fmt.Fprintf(w, "  %s: %d -> %d (%s%s)\n", c.Name, c.Before, c.After, c.Detail, until)
	}
	fmt.Fprintf(w, "final %d, bound by %s\n", *r.Desired, r.Binding)
	if n := r.NextCheaper; n != nil {
		// Where a bound lowered what the rule wants, a cheaper rule changes nothing.
		if n.Replicas >= *r.Desired {
			fmt.Fprintf(w, "a cheaper rule would come to the same: it wants %d (%s)\n", n.Replicas, n.Name)
		} else {
			fmt.Fprintf(w, "why not %d: %s; %s\n", n.Replicas, n.Name, n.WhyNot)
		}
	}
}

// missText writes a small share in percent.
func missText(v float64) string { return strconv.FormatFloat(100*v, 'f', 2, 64) + " %" }

func (e *Env) printScalePending(w io.Writer, r *flow.ScaleRecord) {
	if len(r.Pending) == 0 {
		return
	}
	fmt.Fprintln(w)
	t := newTable("COMING", "PHASE", "SINCE", "READY AT", "REASON")
	for _, p := range r.Pending {
		ready := clockText(p.ReadyAt)
		if p.Overdue {
			ready = "overdue"
		} else if p.ReadyAt == 0 {
			ready = "not coming"
		}
		t.add(p.ID, p.Phase, e.at(p.Since), ready, p.Reason)
	}
	t.write(w)
}
