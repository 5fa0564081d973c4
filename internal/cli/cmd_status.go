// SPDX-License-Identifier: Apache-2.0

package cli

import (
	"fmt"
	"io"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"github.com/penstock-project/penstock/internal/console"
)

func statusCmd(e *Env) *cobra.Command {
	c := grouped(groupSee, &cobra.Command{
		Use:   "status [POOL]",
		Short: "Show pools and replicas, with the age of every number",
		Long: `Show pools and replicas of a running Penstock. RUN, WAIT and KV are what the
replica's own metrics said, AGE ago; IN FLIGHT is what this router has there now.
A dash is unknown, which is not zero.`,
		Example: `  penstock status
  penstock status --adapters
  penstock status chat -o json`,
		Args: atMost(1),
	})
	out := outputFlag(c, "table", "json")
	adapters := c.Flags().Bool("adapters", false, "show where LoRA adapters are")
	server := serverFlag(c)
	c.RunE = func(c *cobra.Command, args []string) error {
		cl, err := e.client(*server)
		if err != nil {
			return err
		}
		var st console.Status
		if err := cl.get(c.Context(), "/api/v1/status", &st); err != nil {
			return err
		}
		if st.Schema != console.StatusSchema {
			return cl.stranger()
		}
		if len(args) > 0 {
			if err := onlyPool(&st, args[0]); err != nil {
				return err
			}
		}
		switch {
		case *out == "json":
			return printJSON(e.Stdout, &st)
		case *adapters:
			printAdapters(e.Stdout, &st)
		default:
			printStatus(e, e.Stdout, &st)
		}
		return nil
	}
	return c
}

func onlyPool(st *console.Status, name string) error {
	var names []string
	for _, p := range st.Pools {
		if p.Name == name {
			st.Pools = []console.PoolStatus{p}
			return nil
		}
		names = append(names, p.Name)
	}
	return usagef("pools: "+strings.Join(names, ", "), "there is no pool %q", name)
}

func printStatus(e *Env, w io.Writer, st *console.Status) {
	fmt.Fprintf(w, "penstock %s  up %s", st.Version, span(time.Duration(st.UptimeS*1e9)))
	if st.Listen.HTTP != "" {
		fmt.Fprintf(w, "  gateway %s", st.Listen.HTTP)
	}
	if st.Listen.EPP != "" {
		fmt.Fprintf(w, "  endpoint picker %s", st.Listen.EPP)
	}
	if !st.Ready {
		fmt.Fprintf(w, "  NOT READY: %s", st.Reason)
	}
	fmt.Fprintln(w)
	if !st.Config.ReloadOK && st.Config.Error != "" {
		fmt.Fprintf(w, "the last reload failed and changed nothing: %s\n", st.Config.Error)
	}
	for _, r := range st.Config.Restart {
		fmt.Fprintf(w, "waits for a restart: %s\n", r)
	}
	for i := range st.Pools {
		fmt.Fprintln(w)
		printPool(e, w, &st.Pools[i], st.Time)
	}
	printPeers(w, st.Peers)
	j := &st.Journal
	fmt.Fprintf(w, "\njournal    %s of %s records in memory", withCommas(j.InMemory), withCommas(j.Memory))
	if j.Dir != "" {
		fmt.Fprintf(w, ", %s written to %s", withCommas(int(j.Written)), j.Dir)
	}
	if j.Dropped > 0 {
		fmt.Fprintf(w, ", %s missed by the disk", withCommas(int(j.Dropped)))
	}
	if j.Error != "" {
		fmt.Fprintf(w, " (%s)", j.Error)
	}
	fmt.Fprintln(w)
}

func printPool(e *Env, w io.Writer, p *console.PoolStatus, now time.Time) {
	fmt.Fprintf(w, "pool %s  policy %s", p.Name, p.Policy)
	if len(p.Models) > 0 {
		fmt.Fprintf(w, "  models %s", strings.Join(p.Models, ", "))
	}
	if p.Verdict != nil {
		fmt.Fprintf(w, "\n%s  %s", strings.ToUpper(string(p.Verdict.State)), p.Verdict.Sentence)
	}
	fmt.Fprintf(w, "\n%d of %s ready  %d in flight  %d held", p.Ready, plural(p.Replicas, "replica"), p.InFlight, p.Held)
	if p.HitRatio != nil {
		fmt.Fprintf(w, "  hit %s", percent(*p.HitRatio))
	}
	if p.Snapshot != nil {
		fmt.Fprintf(w, "  snapshot #%d, %s old", p.Snapshot.Version, ageText(p.Snapshot.AgeMS))
	} else {
		fmt.Fprint(w, "  no snapshot yet")
	}
	fmt.Fprintln(w)
	printQueue(w, p.Queue)
	printShadow(w, p.Shadow)
	if p.Control != nil {
		printControl(w, p)
	}
	if len(p.Replica) == 0 {
		fmt.Fprintf(w, "no replicas (%s)\n", p.Source)
		return
	}
	t := newTable("REPLICA", "PHASE", "SINCE", ">IN FLIGHT", ">QUEUED", ">RUN", ">WAIT", ">KV", ">HIT", ">AGE", "ENGINE", "NOTE")
	for i := range p.Replica {
		r := &p.Replica[i]
		phase := r.Phase
		if r.Slow {
			phase += " (slow)"
		}
		since := "-"
		if r.PhaseS != nil {
			since = e.since(now.Add(-time.Duration(*r.PhaseS * 1e9)))
		}
		queued := ""
		if r.Queued > 0 {
			queued = withCommas(r.Queued)
		}
		t.add(r.ID, phase, since, withCommas(r.InFlight), queued, readingText(r.Running), readingText(r.Waiting),
			shareText(r.KVUsage), shareText(r.HitRatio), ageOrDash(r.SignalAgeMS), r.Engine, replicaNote(r))
	}
	t.write(w)
}

// printControl says what the control plane behind a pool told, and whether it still
// answers.
func printControl(w io.Writer, p *console.PoolStatus) {
	c := p.Control
	fmt.Fprint(w, p.Source)
	switch {
	case c.Fault != "" && c.AgeMS == nil:
		fmt.Fprintf(w, "  API server NOT REACHED yet: %s", c.Fault)
	case c.Fault != "":
		fmt.Fprintf(w, "  API server AWAY for %s, its last list stays in use: %s", ageText(*c.AgeMS), c.Fault)
	case c.AgeMS != nil:
		fmt.Fprintf(w, "  API server answered %s ago", ageText(*c.AgeMS))
	}
	if c.Picker != "" {
		fmt.Fprintf(w, "  picker %s, %s", c.Picker, c.FailureMode)
	}
	fmt.Fprintln(w)
}

func readingText(r *console.Reading) string {
	if r == nil {
		return "-"
	}
	return withCommas(int(r.Value + 0.5))
}

func shareText(r *console.Reading) string {
	if r == nil {
		return "-"
	}
	return percent(r.Value)
}

func ageOrDash(ms *float64) string {
	if ms == nil {
		return "-"
	}
	return ageText(*ms)
}

// replicaNote is what a reader of the row should know.
func replicaNote(r *console.ReplicaStatus) string {
	var out []string
	if r.Reason != "" {
		out = append(out, r.Reason)
	}
	if r.ScrapeError != "" {
		out = append(out, "metrics: "+r.ScrapeError)
	}
	if r.Own != nil && r.Own.Dropped == "ejected" {
		out = append(out, "ejected after failures")
	}
	if r.Own != nil && r.Own.IndexDisagreement {
		out = append(out, "cached tokens fall short of the index")
	}
	if r.Own != nil && r.Own.Parallel {
		out = append(out, "computes several prompts at a time: nothing is held for it")
	}
	out = append(out, kvNote(r)...)
	return strings.Join(append(out, r.Notes...), "; ")
}

func printAdapters(w io.Writer, st *console.Status) {
	for i := range st.Pools {
		p := &st.Pools[i]
		if i > 0 {
			fmt.Fprintln(w)
		}
		fmt.Fprintf(w, "pool %s\n", p.Name)
		if len(p.Adapters) == 0 {
			fmt.Fprintln(w, "no adapters: none is configured, and no replica showed one")
			continue
		}
		t := newTable("ADAPTER", ">LISTED", ">IN SLOTS", "WHERE")
		for _, a := range p.Adapters {
			var where []string
			for _, h := range a.At {
				text := fmt.Sprintf("%s %s (%s)", h.Replica, h.State, ageText(h.AgeMS))
				if h.Reason != "" {
					text += ": " + h.Reason
				}
				where = append(where, text)
			}
			t.add(a.Name, fmt.Sprintf("%d/%d", a.Listed, p.Replicas), fmt.Sprint(a.Holders), orDash(strings.Join(where, ", ")))
		}
		t.write(w)
	}
}
