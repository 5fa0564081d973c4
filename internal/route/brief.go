// SPDX-License-Identifier: Apache-2.0

package route

import (
	"math"

	"github.com/penstock-project/penstock/internal/fleet"
)

// Brief is a decision and its outcome in the few numbers that a view over many of
// them needs. It costs no search and no formatting. A negative number is unknown.
type Brief struct {
	ID, Pool, Tenant, Model, Adapter string
	Endpoint, Why, Kind              string
	At                               fleet.Time // of the decision
	Status                           int        // HTTP status; 0 none

	TTFTMS, E2EMS, QueueMS, PredictedTTFTMS float64
	Prompt, Cached, Output, PredictedCached int // tokens
	// MeanCached and BestCached are the prompt tokens that the candidates were
	// believed to hold: in the mean, which is what a random pick finds, and the
	// warmest one. Candidates that a record of a large fleet leaves out count as
	// cold, so that the mean is then a lower bound.
	MeanCached, BestCached float64
}

// Brief condenses the capture.
func (c *Capture) Brief() Brief {
	d := &c.Decision
	b := Brief{
		ID: c.ID, Pool: c.Pool, Tenant: c.Tenant, Model: c.Model, Adapter: c.Adapter, Why: d.Why, At: d.At,
		TTFTMS: -1, E2EMS: -1, QueueMS: float64(c.HeldFor) / 1e6, PredictedTTFTMS: -1,
		Prompt: int(math.Round(d.PromptTokens)), Cached: -1, Output: -1, PredictedCached: d.PredictedCached,
	}
	if p := d.Pick(); p != nil {
		b.Endpoint = p.Endpoint
		if d.Priced {
			b.PredictedTTFTMS = d.PredictedTTFTMS
		}
	}
	n, sum, best := 0, 0.0, 0.0
	for i := range d.Candidates {
		if k := &d.Candidates[i]; k.Drop == DropNone && k.Cached >= 0 {
			n++
			sum += float64(k.Cached)
			best = max(best, float64(k.Cached))
		}
	}
	b.spread(n+int(d.Omitted), sum, best)
	if c.Finished {
		o := &c.Outcome
		b.Kind, b.Status, b.Cached, b.Output = o.Kind.String(), o.Status, o.CachedTokens, o.OutputTokens
		if o.PromptTokens >= 0 {
			b.Prompt = o.PromptTokens
		}
		if o.FirstToken != 0 {
			b.TTFTMS = o.FirstToken.Seconds(c.Arrived) * 1e3
		}
		if o.End != 0 {
			b.E2EMS = o.End.Seconds(c.Arrived) * 1e3
		}
	}
	return b
}

func (b *Brief) spread(n int, sum, best float64) {
	b.MeanCached, b.BestCached = -1, -1
	if n > 0 {
		b.MeanCached, b.BestCached = sum/float64(n), best
	}
}

// Brief condenses the record.
func (r *Record) Brief() Brief {
	b := Brief{
		ID: r.ID, Pool: r.Pool, Tenant: r.Request.Tenant, Model: r.Request.Model, Adapter: r.Request.Adapter,
		Endpoint: r.Chosen, Why: r.Why, At: fleet.At(r.Time),
		TTFTMS: -1, E2EMS: -1, PredictedTTFTMS: orUnknown(r.PredictedTTFTMS),
		Prompt: r.Request.PromptTokens, Cached: -1, Output: -1, PredictedCached: -1,
	}
	n, sum, best := 0, 0.0, 0.0
	for i := range r.Candidates {
		c := &r.Candidates[i]
		if c.Dropped != "" {
			continue
		}
		for k := range c.Signals {
			if s := &c.Signals[k]; s.Name == "cached" && s.Value != nil {
				n++
				sum += *s.Value
				best = max(best, *s.Value)
			}
		}
	}
	b.spread(n+r.CandidatesOmitted, sum, best)
	if o := r.Outcome; o != nil {
		b.Kind, b.Status, b.QueueMS, b.PredictedCached = o.Kind, o.Status, o.QueueMS, o.PredictedCachedTokens
		b.TTFTMS, b.E2EMS = orUnknown(o.TTFTMS), orUnknown(o.E2EMS)
		for _, v := range []struct {
			from *int
			to   *int
		}{{o.PromptTokens, &b.Prompt}, {o.CachedTokens, &b.Cached}, {o.OutputTokens, &b.Output}} {
			if v.from != nil {
				*v.to = *v.from
			}
		}
	}
	return b
}

func orUnknown(v *float64) float64 {
	if v == nil {
		return -1
	}
	return *v
}
