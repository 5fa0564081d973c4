// SPDX-License-Identifier: Apache-2.0

package cli

import (
	"fmt"
	"io"
	"time"

	"github.com/penstock-project/penstock/internal/console"
)

// printQueue says what the router's own queue does and how long it may hold a request.
func printQueue(w io.Writer, q *console.QueueState) {
	if q == nil {
		return
	}
	off := false
	for i := range q.Guards {
		if g := &q.Guards[i]; g.Off {
			off = true
			fmt.Fprintf(w, "%s OFF until %s: it cost %s to a first token where %s were predicted without it\n",
				guardName(g.Name), g.Until.Local().Format(time.TimeOnly), milliOrDash(g.TTFTMS), milliOrDash(g.WithoutMS))
		}
	}
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
	if q.Held == 0 {
		return
	}
	fmt.Fprintf(w, "held %s so far, %s on average, longest %s; nearest to its bound %s",
		withCommas(int(q.Held)), milliOrDash(q.MeanMS), milliOrDash(q.LongestMS), percent(*q.NearestBound))
	for i := range q.Guards {
		if g := &q.Guards[i]; !g.Off && g.TTFTMS != nil && g.Requests >= 1 {
			fmt.Fprintf(w, "  %s: first token after %s, without it %s", g.Name, milliOrDash(g.TTFTMS), milliOrDash(g.WithoutMS))
		}
	}
	fmt.Fprintln(w)
}

func guardName(name string) string {
	if name == "meet" {
		return "meeting of requests with one new beginning"
	}
	return name
}

func milliOrDash(ms *float64) string {
	if ms == nil {
		return "-"
	}
	return milliText(*ms)
}
