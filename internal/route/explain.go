// SPDX-License-Identifier: Apache-2.0

package route

import (
	"fmt"
	"math"
	"sort"
)

// maxFlips is how many entries WouldChangeIf returns at most.
const maxFlips = 5

// flip is the smallest change of one signal that changes the choice.
type flip struct {
	text   string
	effort float64 // relative size of the change
}

// WouldChangeIf lists the smallest changes of a single signal that would have
// made another endpoint the choice, the relatively smallest first: "r-1 in flight
// >= 24". It is empty where no change of one signal does it, and for policies that
// look at none. It is a search over the decision's own raw inputs.
func WouldChangeIf(d *Decision) []string {
	var flips []flip
	if p := d.Pick(); p != nil {
		switch d.Policy {
		case PolicyPenstock:
			flips = costFlips(d, p)
		case PolicyLeastRequests:
			flips = countFlips(d, p)
		case PolicyAffinity:
			flips = hitFlips(d, p)
		}
	}
	sort.SliceStable(flips, func(i, j int) bool { return flips[i].effort < flips[j].effort })
	out := make([]string, 0, maxFlips)
	for _, f := range flips[:min(len(flips), maxFlips)] {
		out = append(out, f.text)
	}
	return out
}

// costFlips searches the signals of the penstock price: what makes the chosen
// candidate dearer, and what makes one of its rivals cheaper.
func costFlips(d *Decision, p *Candidate) []flip {
	rivals := rivals(d)
	if len(rivals) == 0 {
		return nil
	}
	price := func(c Candidate, change func(*Candidate, float64), v float64) float64 {
		change(&c, v)
		c.Price(&d.Engine, &d.Context, d.PromptTokens)
		return c.CostMS
	}
	var out []flip
	bar := rivals[0].CostMS + TieMS
	worse := func(change func(*Candidate, float64), most float64) (float64, bool) {
		return search(func(v float64) bool { return price(*p, change, v) > bar }, most)
	}
	if k, ok := worse(addStreams(d), 4096); ok {
		k = math.Ceil(k)
		out = append(out, flip{fmt.Sprintf("%s in flight >= %d", p.Endpoint, int(p.InFlight)+int(k)), k / (float64(p.InFlight) + 4)})
	}
	if v, ok := worse(addPending, 1e6); ok {
		out = append(out, flip{fmt.Sprintf("%s pending >= %.0f ms", p.Endpoint, math.Ceil(float64(p.PendingMS)+v)), v / (float64(p.PendingMS) + 50)})
	}
	if p.Cached > 0 {
		if v, ok := worse(loseCache, float64(p.Cached)); ok {
			out = append(out, flip{fmt.Sprintf("%s cached <= %.0f tokens", p.Endpoint, math.Floor(float64(p.Cached)-v)), v / float64(p.Cached)})
		}
	}
	for _, r := range rivals[:min(len(rivals), 3)] {
		better := func(change func(*Candidate, float64), most float64) (float64, bool) {
			return search(func(v float64) bool { return price(*r, change, v) < p.CostMS-TieMS }, most)
		}
		if v, ok := better(gainCache, float64(r.Uncached)-1); ok {
			out = append(out, flip{fmt.Sprintf("%s cached >= %.0f tokens", r.Endpoint, math.Ceil(float64(r.Cached)+v)), v / (float64(r.Cached) + 256)})
		}
		if v, ok := better(losePending, float64(r.PendingMS)); ok {
			out = append(out, flip{fmt.Sprintf("%s pending <= %.0f ms", r.Endpoint, math.Floor(float64(r.PendingMS)-v)), v / float64(r.PendingMS)})
		}
		if v, ok := better(loseStreams, float64(r.Streams)); ok {
			v = math.Ceil(v)
			out = append(out, flip{fmt.Sprintf("%s in flight <= %d", r.Endpoint, max(0, int(r.InFlight)-int(v))), v / (float64(r.InFlight) + 1)})
		}
	}
	return out
}

// rivals returns the candidates that were not chosen, cheapest first.
func rivals(d *Decision) []*Candidate {
	var out []*Candidate
	for i := range d.Candidates {
		if c := &d.Candidates[i]; c.Drop == DropNone && int32(i) != d.Index {
			out = append(out, c)
		}
	}
	sort.SliceStable(out, func(i, j int) bool { return out[i].CostMS < out[j].CostMS })
	return out
}

// search returns the least v in (0; most] for which flips(v) holds, to a thousandth
// of it, where flips is monotone.
func search(flips func(v float64) bool, most float64) (float64, bool) {
	if most <= 0 || !flips(most) {
		return 0, false
	}
	lo, hi := 0.0, most
	for hi-lo > 1e-3*hi && hi > 1e-3 {
		if mid := (lo + hi) / 2; flips(mid) {
			hi = mid
		} else {
			lo = mid
		}
	}
	return hi, true
}

// addStreams adds running streams of the size that is usual there.
func addStreams(d *Decision) func(*Candidate, float64) {
	usual := d.PromptTokens + d.Context.MeanOutput/2
	return func(c *Candidate, n float64) {
		each := usual
		if c.Streams > 0 {
			each = float64(c.CtxTokens) / float64(c.Streams)
		}
		n = math.Ceil(n)
		c.Streams += float32(n)
		c.CtxTokens += float32(n * each)
		c.UsedKV += float32(n * each)
		c.SeatsFree -= float32(n)
	}
}

func addPending(c *Candidate, ms float64)  { c.PendingMS += float32(ms) }
func losePending(c *Candidate, ms float64) { c.PendingMS = max(0, c.PendingMS-float32(ms)) }
func loseCache(c *Candidate, tokens float64) {
	c.Cached -= float32(tokens)
	c.Uncached += float32(tokens)
}
func gainCache(c *Candidate, tokens float64) { loseCache(c, -tokens) }

func loseStreams(c *Candidate, n float64) {
	if c.Streams <= 0 {
		return
	}
	n = math.Min(math.Ceil(n), float64(c.Streams))
	left := 1 - float32(n)/c.Streams
	c.UsedKV = max(0, c.UsedKV-c.CtxTokens*(1-left))
	c.CtxTokens *= left
	c.Streams -= float32(n)
	c.SeatsFree += float32(n)
}

func countFlips(d *Decision, p *Candidate) []flip {
	least := math.Inf(1)
	var out []flip
	for i := range d.Candidates {
		c := &d.Candidates[i]
		if c.Drop != DropNone || int32(i) == d.Index {
			continue
		}
		least = math.Min(least, float64(c.InFlight))
		if p.InFlight > 0 {
			out = append(out, flip{fmt.Sprintf("%s in flight <= %d", c.Endpoint, p.InFlight-1), float64(c.InFlight-p.InFlight+1) / float64(c.InFlight+1)})
		}
	}
	if !math.IsInf(least, 1) {
		out = append(out, flip{fmt.Sprintf("%s in flight >= %.0f", p.Endpoint, least+1), (least + 1 - float64(p.InFlight)) / float64(p.InFlight+4)})
	}
	return out
}

func hitFlips(d *Decision, p *Candidate) []flip {
	var out []flip
	for i := range d.Candidates {
		c := &d.Candidates[i]
		need := float64(p.Hit+1) * d.BlockTokens
		if c.Drop == DropNone && int32(i) != d.Index && need < d.PromptTokens {
			out = append(out, flip{fmt.Sprintf("%s cached >= %.0f tokens", c.Endpoint, math.Ceil(need)), (need - float64(c.Cached)) / need})
		}
	}
	return out
}
