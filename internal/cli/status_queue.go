// SPDX-License-Identifier: Apache-2.0

package cli

import (
	"fmt"
	"io"
	"time"

	"github.com/penstock-project/penstock/internal/console"
	"github.com/penstock-project/penstock/internal/dispatch"
)

// printQueue says what the router's own queue does and how long it may hold a request.
func printQueue(w io.Writer, q *console.QueueState) {
	if q == nil {
		return
	}
	off := printGuards(w, q)
	if !q.On {
		if !off {
			fmt.Fprintln(w, "queue off")
		}
		return
	}
	fmt.Fprintf(w, "queue on  holds a request for at most %g times first come first served + %gs", q.Bound.Times, q.Bound.PlusS)
	if q.Bound.MostS != nil {
		fmt.Fprintf(w, ", and at most %s longer than it or %g times as long", span(time.Duration(*q.Bound.MostS*1e9)), q.Bound.MostTimes)
	}
	fmt.Fprintln(w)
	if o := q.OverShare; o != nil {
		fmt.Fprintf(w, "tenant %s is over its share since %s: it keeps to %s, goes last there and gets %s of work and memory; %s of its requests wait\n",
			o.Tenant, o.Since.Local().Format(time.TimeOnly), plural(o.Replicas, "replica"), percent(o.FairShare), withCommas(o.Held))
	}
	if q.Held == 0 {
		return
	}
	fmt.Fprintf(w, "held %s so far, %s on average, longest %s; nearest to its bound %s",
		withCommas(int(q.Held)), milliOrDash(q.MeanMS), milliOrDash(q.LongestMS), percent(*q.NearestBound))
	for i := range q.Guards {
		if g := &q.Guards[i]; !g.Off && g.TTFTMS != nil && g.Requests >= 1 && g.Name != dispatch.GuardAdapter.String() {
			fmt.Fprintf(w, "  %s: first token after %s, without it %s", g.Name, milliOrDash(g.TTFTMS), milliOrDash(g.WithoutMS))
		}
	}
	fmt.Fprintln(w)
}

// printGuards says which mechanisms are off, and what the affinity of adapters is worth.
// It reports whether the queue, or what needs it, is off for that.
func printGuards(w io.Writer, q *console.QueueState) bool {
	off := false
	for i := range q.Guards {
		g := &q.Guards[i]
		adapter := g.Name == dispatch.GuardAdapter.String()
		switch {
		case g.Off:
			off = off || !adapter
			fmt.Fprintf(w, "%s OFF until %s: it cost %s to a first token where %s were predicted without it\n",
				guardName(g.Name), g.Until.Local().Format(time.TimeOnly), milliOrDash(g.TTFTMS), milliOrDash(g.WithoutMS))
		case adapter && g.TTFTMS != nil && g.Requests >= 1:
			fmt.Fprintf(w, "%s: first token after %s, without it %s\n", guardName(g.Name), milliOrDash(g.TTFTMS), milliOrDash(g.WithoutMS))
		}
	}
	return off
}

func guardName(name string) string {
	switch name {
	case dispatch.GuardMeet.String():
		return "meeting of requests with one new beginning"
	case dispatch.GuardAdapter.String():
		return "affinity of adapters"
	}
	return name
}

func milliOrDash(ms *float64) string {
	if ms == nil {
		return "-"
	}
	return milliText(*ms)
}
