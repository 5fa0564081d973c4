// SPDX-License-Identifier: Apache-2.0

package cli

import (
	"errors"
	"fmt"
	"io/fs"
	"iter"

	"github.com/spf13/cobra"

	"github.com/penstock-project/penstock/internal/journal"
	"github.com/penstock-project/penstock/internal/route"
	"github.com/penstock-project/penstock/internal/sim"
)

// replayReport is what `penstock replay -o json` prints.
type replayReport struct {
	Schema  string         `json:"schema"` // penstock/replay/v1
	Policy  string         `json:"policy"`
	Records int            `json:"records"` // compared
	Skipped map[string]int `json:"skipped"`
	Differ  float64        `json:"picks_that_differ"` // a fraction where ties were drawn
	Share   float64        `json:"share_that_differs"`
	// ExtraMS is the predicted cost of the other picks less that of the recorded
	// ones, a request, with the half width of its 95 % interval over records.
	ExtraMS  float64 `json:"extra_cost_ms"`
	Interval float64 `json:"extra_cost_95_ms"`
	// PredictionMS is how far predicted times to first token were from observed ones;
	// null where no outcome tells.
	PredictionMS *float64 `json:"ttft_prediction_error_ms"`
	Omitted      int      `json:"records_with_omitted_candidates"`
	Estimated    string   `json:"estimated,omitempty"`
}

func replayCmd(e *Env) *cobra.Command {
	var policy string
	c := grouped(groupAsk, &cobra.Command{
		Use:   "replay JOURNAL [--policy NAME]",
		Short: "Let recorded events happen again, or ask another policy about them",
		Long: `Let the events of a tape (journal.events) happen again, to the code that routes, and
compare every decision in every byte. The first one that differs is named and ends
the replay; the exit code is then 3.

With --policy ask another policy as well, at each pick in the state that really was,
and say how often it differs and what its picks were predicted to cost.

Without a tape --policy works on the records of decisions. Each record is then a
question of its own; policies that keep a state or hash the prompt cannot be asked,
and are refused. What other picks would have done to caches and queues later is not
followed: play the journal with "penstock sim compare --journal" for that. The costs
are predictions of our own price, so the penstock policy comes out best by
construction.`,
		Example: `  penstock replay journal/
  penstock replay journal/ --policy least-requests
  penstock replay journal.jsonl --policy lmetric -o json`,
		Args: func(_ *cobra.Command, args []string) error {
			if len(args) != 1 {
				return usagef("for instance: penstock replay journal/ --policy least-requests", "name one journal: a file, a directory or -")
			}
			return nil
		},
	})
	out := outputFlag(c, "table", "json")
	c.Flags().StringVar(&policy, "policy", "", "the other policy")
	c.RunE = func(_ *cobra.Command, args []string) error {
		if tapes := tapesOf(args[0]); len(tapes) > 0 {
			if _, err := route.New(policy, 0); policy != "" && err != nil {
				return usagef("", "--policy: %v", err)
			}
			return runTapes(e, tapes, policy, *out)
		}
		if policy == "" {
			return usagef("record one with journal.events: true, or name a policy, for instance: --policy least-requests",
				"%s holds no tape of events, which a replay in every byte needs", args[0])
		}
		r, err := sim.NewReplay(policy)
		if err != nil {
			return usagef("to compare it on this traffic: penstock sim compare --journal "+args[0], "--policy: %v", err)
		}
		return runReplay(e, r, policy, args[0], *out)
	}
	return c
}

func runReplay(e *Env, r *sim.Replay, policy, name, output string) error {
	var records iter.Seq2[*route.Record, error]
	if name == "-" {
		records = journal.Read("stdin", e.Stdin)
	} else {
		records = journal.Open(name)
	}
	for rec, err := range records {
		if errors.Is(err, fs.ErrNotExist) {
			return usagef("", "%v", err)
		}
		if err != nil {
			return failf("", "%v", err)
		}
		r.Add(rec)
	}
	if r.Records == 0 {
		return failf(skippedText(r.Skipped), "%s holds no decision that can be compared", name)
	}
	mean, half := r.MeanMS()
	rep := replayReport{
		Schema: "penstock/replay/v1", Policy: policy, Records: r.Records, Skipped: r.Skipped,
		Differ: round3(r.Differ), Share: sixDigits(r.Differ / float64(r.Records)), ExtraMS: sixDigits(mean), Interval: sixDigits(half),
		Omitted: r.Omitted, Estimated: sim.Replayable()[policy],
	}
	if miss, n := r.PredictionMS(); n > 0 {
		miss = sixDigits(miss)
		rep.PredictionMS = &miss
	}
	if output == "json" {
		return printJSON(e.Stdout, rep)
	}
	printReplay(e, &rep)
	return nil
}

func printReplay(e *Env, r *replayReport) {
	w := e.Stdout
	fmt.Fprintf(w, "%s decisions compared with %s\n", withCommas(r.Records), r.Policy)
	if len(r.Skipped) > 0 {
		fmt.Fprintf(w, "left out: %s\n", skippedText(r.Skipped))
	}
	fmt.Fprintf(w, "picks that differ    %.1f (%.1f %%)\n", r.Differ, 100*r.Share)
	fmt.Fprintf(w, "predicted cost       %+.1f ms a request (95 %% interval %+.1f to %+.1f)\n", r.ExtraMS, r.ExtraMS-r.Interval, r.ExtraMS+r.Interval)
	if r.PredictionMS != nil {
		fmt.Fprintf(w, "for scale            predicted times to first token were off by %.1f ms in the mean\n", *r.PredictionMS)
	}
	if r.Estimated != "" {
		fmt.Fprintf(w, "estimated            %s\n", r.Estimated)
	}
	if r.Omitted > 0 {
		fmt.Fprintf(w, "incomplete           %s records hold only the cheapest candidates of their fleet\n", withCommas(r.Omitted))
	}
	fmt.Fprintln(w, "\nEach decision by itself, by the price of the penstock policy; later effects are not followed.")
}
