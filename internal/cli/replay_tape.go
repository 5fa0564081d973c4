// SPDX-License-Identifier: Apache-2.0

package cli

import (
	"errors"
	"fmt"
	"io/fs"
	"math"
	"os"
	"path/filepath"
	"sort"
	"strings"
	"time"

	"github.com/penstock-project/penstock/internal/dispatch"
	"github.com/penstock-project/penstock/internal/journal"
	"github.com/penstock-project/penstock/internal/route"
)

// tapeReport is what a replay of tapes prints with -o json.
type tapeReport struct {
	Schema    string       `json:"schema"` // penstock/replay/v1
	Exact     bool         `json:"exact"`  // every decision was the same in every byte
	Tapes     []tapeResult `json:"tapes"`
	Policy    string       `json:"policy,omitempty"`
	Records   int          `json:"records,omitempty"` // picks compared with Policy
	Differ    float64      `json:"picks_that_differ,omitempty"`
	Share     float64      `json:"share_that_differs,omitempty"`
	ExtraMS   *float64     `json:"extra_cost_ms,omitempty"`
	Interval  *float64     `json:"extra_cost_95_ms,omitempty"`
	Estimated string       `json:"estimated,omitempty"`
}

// tapeResult is one tape.
type tapeResult struct {
	File      string          `json:"file"`
	Pool      string          `json:"pool"`
	Router    string          `json:"router"`
	Started   time.Time       `json:"started"`
	Events    int             `json:"events"`
	Decisions int             `json:"decisions"`
	Exact     bool            `json:"exact"`
	First     *tapeDifference `json:"first_difference,omitempty"`
	Ended     string          `json:"ended,omitempty"` // why it was stopped
	Cut       bool            `json:"cut,omitempty"`   // its last event is not whole
}

type tapeDifference struct {
	Event    int       `json:"event"`
	Time     time.Time `json:"time"`
	Kind     string    `json:"kind"`
	Request  string    `json:"request,omitempty"`
	Recorded string    `json:"recorded"`
	Replayed string    `json:"replayed"`
}

// tapesOf lists the tapes that a name means: the file itself or those of a directory,
// oldest first.
func tapesOf(name string) []string {
	st, err := os.Stat(name)
	if err != nil {
		return nil
	}
	if !st.IsDir() {
		if journal.IsTape(name) {
			return []string{name}
		}
		return nil
	}
	var out []string
	_ = filepath.WalkDir(name, func(path string, d fs.DirEntry, err error) error {
		if err == nil && strings.HasSuffix(path, journal.TapeSuffix) && journal.IsTape(path) {
			out = append(out, path)
		}
		return nil
	})
	sort.Strings(out)
	return out
}

// runTapes replays tapes and compares every decision; with a policy it decides beside.
func runTapes(e *Env, tapes []string, policy, output string) error {
	rep := tapeReport{Schema: "penstock/replay/v1", Exact: true, Policy: policy}
	var sum dispatch.ShadowStats
	for _, name := range tapes {
		r, s, err := replayTape(name, policy)
		if err != nil {
			return failf("", "%s: %v", name, err)
		}
		rep.Tapes = append(rep.Tapes, r)
		rep.Exact = rep.Exact && r.Exact
		sum.Picks, sum.Agreed, sum.Priced = sum.Picks+s.Picks, sum.Agreed+s.Agreed, sum.Priced+s.Priced
		sum.ExtraMS, sum.SquareMS = sum.ExtraMS+s.ExtraMS, sum.SquareMS+s.SquareMS
	}
	if policy != "" {
		rep.Records, rep.Differ = int(sum.Picks), float64(sum.Picks-sum.Agreed)
		if sum.Picks > 0 {
			rep.Share = sixDigits(rep.Differ / float64(sum.Picks))
		}
		if n := float64(sum.Priced); n > 1 {
			mean := sum.ExtraMS / n
			half := sixDigits(1.96 * math.Sqrt(max(0, sum.SquareMS/n-mean*mean)/(n-1)))
			mean = sixDigits(mean)
			rep.ExtraMS, rep.Interval = &mean, &half
		}
	}
	if output == "json" {
		if err := printJSON(e.Stdout, rep); err != nil {
			return err
		}
	} else {
		printTapes(e, &rep)
	}
	if !rep.Exact {
		return &Fault{Code: ExitFindings, Err: errors.New("a decision is another one than was recorded")}
	}
	return nil
}

func replayTape(name, policy string) (out tapeResult, s dispatch.ShadowStats, err error) {
	f, err := os.Open(name)
	if err != nil {
		return out, s, err
	}
	defer f.Close()
	t, err := journal.OpenTape(f)
	if err != nil {
		return out, s, err
	}
	o, err := t.Header.Options()
	if err != nil {
		return out, s, err
	}
	var shadow route.Policy
	if policy != "" {
		if shadow, err = route.New(policy, t.Header.Seed+1); err != nil {
			return out, s, err
		}
	}
	r, err := t.Replay(o, shadow)
	if err != nil {
		return out, s, err
	}
	out = tapeResult{
		File: name, Pool: t.Header.Pool, Router: t.Header.Router, Started: t.Header.Started.Wall().UTC(),
		Events: r.Events, Decisions: r.Decisions, Exact: r.First == nil, Ended: r.Ended, Cut: r.Cut,
	}
	if d := r.First; d != nil {
		out.First = &tapeDifference{
			Event: d.Number, Time: d.At.Wall().UTC(), Kind: d.Event, Request: d.Request, Recorded: d.Recorded, Replayed: d.Replayed,
		}
	}
	return out, r.Shadow, nil
}

func printTapes(e *Env, r *tapeReport) {
	w := e.Stdout
	for i := range r.Tapes {
		t := &r.Tapes[i]
		fmt.Fprintf(w, "%s: pool %s, %s events, %s decisions", t.File, t.Pool, withCommas(t.Events), withCommas(t.Decisions))
		if t.Exact {
			fmt.Fprintln(w, ", all the same in every byte")
		} else {
			d := t.First
			fmt.Fprintf(w, "\n  FIRST DIFFERENCE at event %s (%s, %s)\n  recorded  %s\n  replayed  %s\n",
				withCommas(d.Event), d.Kind, d.Time.Format(time.RFC3339Nano), d.Recorded, d.Replayed)
		}
		if t.Ended != "" {
			fmt.Fprintf(w, "  it was stopped: %s\n", t.Ended)
		}
		if t.Cut {
			fmt.Fprintln(w, "  its last event is not whole: the process was killed, or writes still")
		}
	}
	if r.Policy == "" {
		return
	}
	fmt.Fprintf(w, "\n%s picks compared with %s\npicks that differ    %.0f (%.1f %%)\n", withCommas(r.Records), r.Policy, r.Differ, 100*r.Share)
	if r.ExtraMS != nil {
		fmt.Fprintf(w, "predicted cost       %+.1f ms a request (95 %% interval %+.1f to %+.1f)\n", *r.ExtraMS, *r.ExtraMS-*r.Interval, *r.ExtraMS+*r.Interval)
	}
	fmt.Fprintln(w, "\nEach pick in the state that really was, by the price of the engine model; what other\npicks would have led to later is not followed: penstock sim compare --journal does.")
}
