// SPDX-License-Identifier: Apache-2.0

package cli

import (
	"cmp"
	"fmt"
	"io"
	"slices"
	"strings"

	"github.com/penstock-project/penstock/internal/route"
)

// printRecord writes a decision for people: the request, the choice and its
// reason, the outcome, the candidates with their terms, and what would have
// changed the choice.
func printRecord(e *Env, w io.Writer, r *route.Record) {
	fmt.Fprintf(w, "%s  model %s", cmp.Or(r.ID, "preview"), cmp.Or(r.Request.Model, "-"))
	if r.Request.Adapter != "" {
		fmt.Fprintf(w, "  adapter %s", r.Request.Adapter)
	}
	if r.Request.Tenant != "" {
		fmt.Fprintf(w, "  tenant %s", r.Request.Tenant)
	}
	fmt.Fprintf(w, "  prompt %s tokens  %s\n", withCommas(r.Request.PromptTokens), e.moment(r.Time))
	fmt.Fprintf(w, "policy %s", r.Policy)
	if r.Pool != "" {
		fmt.Fprintf(w, "  pool %s", r.Pool)
	}
	fmt.Fprintf(w, "  snapshot #%d", r.Snapshot.Version)
	if r.Snapshot.AgeMS != nil {
		fmt.Fprintf(w, " (%s old)", ageText(*r.Snapshot.AgeMS))
	}
	fmt.Fprint(w, "\n\n")
	printChoice(w, r)
	printOutcome(w, r)
	fmt.Fprintln(w)
	printCandidates(w, r)
	printDropped(w, r)
	for i, c := range r.WouldChangeIf {
		lead := "would change if  "
		if i > 0 {
			lead = "             or  "
		}
		fmt.Fprintf(w, "%s%s\n", lead, c)
	}
}

func printChoice(w io.Writer, r *route.Record) {
	if r.Chosen == "" {
		fmt.Fprintf(w, "-> no replica  %s\n", r.Why)
		return
	}
	fmt.Fprintf(w, "-> %s  %s", r.Chosen, r.Why)
	if tied := r.Tie != nil && r.Tie.Candidates > 1; r.MarginMS != nil && !tied {
		if next := runnerUp(r); next != "" {
			fmt.Fprintf(w, "; %s before %s", milliText(*r.MarginMS), next)
		}
	}
	fmt.Fprintln(w)
	if len(r.LeftOut) > 0 {
		fmt.Fprintf(w, "   left out of the price: %s\n", strings.Join(r.LeftOut, ", "))
	}
	if r.Tie != nil && r.Tie.Candidates > 1 {
		fmt.Fprintf(w, "   tie of %d candidates, decided by hash %s\n", r.Tie.Candidates, r.Tie.Key)
	}
}

// runnerUp is the cheapest candidate beside the chosen one.
func runnerUp(r *route.Record) string {
	best := ""
	least := 0.0
	for i := range r.Candidates {
		c := &r.Candidates[i]
		if c.Endpoint == r.Chosen || c.CostMS == nil || c.Dropped != "" {
			continue
		}
		if best == "" || *c.CostMS < least {
			best, least = c.Endpoint, *c.CostMS
		}
	}
	return best
}

func printOutcome(w io.Writer, r *route.Record) {
	o := r.Outcome
	if o == nil {
		if r.PredictedTTFTMS != nil {
			fmt.Fprintf(w, "   predicted: first token after %s\n", milliText(*r.PredictedTTFTMS))
		}
		return
	}
	fmt.Fprintf(w, "   outcome: %s", strings.ReplaceAll(o.Kind, "_", " "))
	if o.Status != 0 {
		fmt.Fprintf(w, " (%d)", o.Status)
	}
	if o.QueueMS > 0 {
		fmt.Fprintf(w, ", held %s", milliText(o.QueueMS))
	}
	if o.TTFTMS != nil {
		fmt.Fprintf(w, ", first token after %s", milliText(*o.TTFTMS))
		if r.PredictedTTFTMS != nil {
			fmt.Fprintf(w, " (predicted %s)", milliText(*r.PredictedTTFTMS))
		}
	}
	if o.E2EMS != nil {
		fmt.Fprintf(w, ", all after %s", milliText(*o.E2EMS))
	}
	fmt.Fprintln(w)
	fmt.Fprintf(w, "   tokens: %s of %s prompt tokens cached (predicted %s), %s output\n",
		countText(o.CachedTokens), countText(o.PromptTokens), withCommas(o.PredictedCachedTokens), countText(o.OutputTokens))
	for _, a := range o.Attempts {
		fmt.Fprintf(w, "   attempt at %s failed after %s: %s\n", a.Endpoint, milliText(a.AfterMS), strings.ReplaceAll(a.Kind, "_", " "))
	}
	if o.MaybeDuplicate {
		fmt.Fprintln(w, "   a failed attempt may have been executed as well")
	}
}

// costText writes a cost in milliseconds; nothing where it is 0.
func costText(v float64) string {
	switch {
	case v == 0:
		return ""
	case v < 0.05 && v > -0.05:
		return "0.0"
	case v < 100 && v > -100:
		return fmt.Sprintf("%.1f", v)
	}
	return withCommas(int(v + 0.5))
}

// printCandidates writes one row a candidate, the cheapest first: its terms, their
// sum, and the signals behind them.
func printCandidates(w io.Writer, r *route.Record) {
	var rows []*route.PricedEndpoint
	used := map[string]bool{}
	for i := range r.Candidates {
		c := &r.Candidates[i]
		if c.Dropped != "" {
			continue
		}
		rows = append(rows, c)
		for _, t := range c.Terms {
			used[t.Name] = true
		}
	}
	if len(rows) == 0 {
		return
	}
	slices.SortStableFunc(rows, func(a, b *route.PricedEndpoint) int {
		return cmp.Or(cmp.Compare(costOf(a), costOf(b)), chosenFirst(r, a, b))
	})
	var terms []string
	for t := range route.Term(route.NumTerms) {
		if used[t.String()] {
			terms = append(terms, t.String())
		}
	}
	head := []string{"", "REPLICA"}
	for _, t := range terms {
		head = append(head, ">"+strings.ReplaceAll(t, "_", " "))
	}
	head = append(head, ">COST ms", ">cached", ">in flight", ">waiting", ">KV", ">signal age")
	t := newTable(head...)
	for _, c := range rows {
		mark := ""
		if c.Endpoint == r.Chosen {
			mark = "*"
		}
		cells := []string{mark, c.Endpoint}
		for _, name := range terms {
			cells = append(cells, costText(termOf(c, name)))
		}
		cost := "-"
		if c.CostMS != nil {
			cost = cmp.Or(costText(*c.CostMS), "0")
		}
		cells = append(cells, cost, signalText(c, "cached"), signalText(c, "in_flight"), signalText(c, "waiting"), kvText(c), signalAge(c))
		t.add(cells...)
	}
	t.write(w)
	if r.CandidatesOmitted > 0 {
		fmt.Fprintf(w, "   and %s more, dearer than these\n", withCommas(r.CandidatesOmitted))
	}
}

func chosenFirst(r *route.Record, a, b *route.PricedEndpoint) int {
	switch r.Chosen {
	case a.Endpoint:
		return -1
	case b.Endpoint:
		return 1
	}
	return 0
}

func costOf(c *route.PricedEndpoint) float64 {
	if c.CostMS == nil {
		return 1e300
	}
	return *c.CostMS
}

func termOf(c *route.PricedEndpoint, name string) float64 {
	for _, t := range c.Terms {
		if t.Name == name {
			return t.MS
		}
	}
	return 0
}

func signalOf(c *route.PricedEndpoint, name string) *route.Signal {
	for i := range c.Signals {
		if c.Signals[i].Name == name {
			return &c.Signals[i]
		}
	}
	return nil
}

func signalText(c *route.PricedEndpoint, name string) string {
	s := signalOf(c, name)
	if s == nil || s.Value == nil {
		return "-"
	}
	return withCommas(int(*s.Value + 0.5))
}

func kvText(c *route.PricedEndpoint) string {
	s := signalOf(c, "kv_usage")
	if s == nil || s.Value == nil {
		return "-"
	}
	return percent(*s.Value)
}

// signalAge is the age of the scrape behind a candidate's signals.
func signalAge(c *route.PricedEndpoint) string {
	for _, name := range []string{"running", "waiting", "kv_usage"} {
		if s := signalOf(c, name); s != nil && s.AgeMS != nil {
			return ageText(*s.AgeMS)
		}
	}
	return "-"
}

func printDropped(w io.Writer, r *route.Record) {
	for i := range r.Candidates {
		if c := &r.Candidates[i]; c.Dropped != "" {
			fmt.Fprintf(w, "  %s  dropped: %s\n", c.Endpoint, strings.ReplaceAll(c.Dropped, "_", " "))
		}
	}
}
