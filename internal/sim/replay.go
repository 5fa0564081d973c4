// SPDX-License-Identifier: Apache-2.0

package sim

import (
	"fmt"
	"math"
	"slices"
	"strings"

	"github.com/zeebo/xxh3"

	"github.com/penstock-project/penstock/internal/fleet"
	"github.com/penstock-project/penstock/internal/route"
)

// replayDraws is how often a policy that breaks ties at random is asked about one
// record; shares and costs are means over the draws.
const replayDraws = 8

// Replayable returns the policies whose pick follows from what a record holds, and
// what is estimated for each; "" where nothing is. All others need a state, hashes of
// the prompt, or numbers that records do not hold.
func Replayable() map[string]string {
	tokens := "uncached tokens that wait are estimated from the pending milliseconds"
	return map[string]string{
		route.PolicyPenstock: "", route.PolicyLeastRequests: "", route.PolicyMinTTFT: "", route.PolicyLMetricNew: "",
		route.PolicyGAIE: "", route.PolicyLLMD: "", route.PolicyLMetric: tokens,
	}
}

// Replay compares the picks of records with those of another policy in the same
// states. Each record is a question of its own: what the other picks would have done
// to later states is not followed.
type Replay struct {
	policy   string
	policies []route.Policy

	Records int            // compared
	Skipped map[string]int // reason to count
	Differ  float64        // records whose pick differs; a fraction where ties were drawn
	Omitted int            // compared records that lack some candidates of a large fleet

	ExtraMS float64 // cost of the other picks less that of the recorded ones, summed over all records, ms
	square  float64
	misses  int
	missMS  float64
}

// NewReplay returns a Replay of one of the Replayable policies.
func NewReplay(policy string) (*Replay, error) {
	if _, ok := Replayable()[policy]; !ok {
		if _, err := route.New(policy, 0); err != nil {
			return nil, err
		}
		return nil, fmt.Errorf("policy %q cannot be replayed: its pick depends on a state or on hashes that records do not hold; those that can are %s",
			policy, strings.Join(replayNames(), ", "))
	}
	r := &Replay{policy: policy, Skipped: map[string]int{}}
	for seed := range uint64(replayDraws) {
		p, err := route.New(policy, seed+1)
		if err != nil {
			return nil, err
		}
		r.policies = append(r.policies, p)
	}
	return r, nil
}

func replayNames() []string {
	var out []string
	for n := range Replayable() {
		out = append(out, n)
	}
	slices.Sort(out)
	return out
}

// Add compares one record.
func (r *Replay) Add(rec *route.Record) {
	chosen := slices.IndexFunc(rec.Candidates, func(c route.PricedEndpoint) bool { return c.Endpoint == rec.Chosen })
	switch {
	case chosen < 0:
		r.Skipped["nothing was chosen"]++
		return
	case rec.Engine == nil || rec.Candidates[chosen].CostMS == nil:
		r.Skipped["without prices"]++
		return
	}
	in, costs := question(rec)
	actual, differ, extra := costs[chosen], 0.0, 0.0
	var d route.Decision
	for _, p := range r.policies {
		p.Pick(in, &d)
		i := int(d.Chosen)
		if r.policy == route.PolicyPenstock {
			i = cheapestOf(costs, chosen)
		}
		if i < 0 || i == chosen {
			continue
		}
		differ += 1.0 / replayDraws
		extra += (costs[i] - actual) / replayDraws
	}
	r.Records++
	r.Differ += differ
	r.ExtraMS += extra
	r.square += extra * extra
	if rec.CandidatesOmitted > 0 {
		r.Omitted++
	}
	if o := rec.Outcome; o != nil && o.TTFTMS != nil && rec.PredictedTTFTMS != nil && rec.Request.Stream {
		r.misses++
		r.missMS += math.Abs(*o.TTFTMS - o.QueueMS - *rec.PredictedTTFTMS)
	}
}

// MeanMS returns the mean extra cost of a record in ms and the half width of its 95 %
// interval over records.
func (r *Replay) MeanMS() (mean, half float64) {
	n := float64(r.Records)
	if n == 0 {
		return 0, 0
	}
	mean = r.ExtraMS / n
	return mean, 1.96 * math.Sqrt(max(0, r.square/n-mean*mean)/n)
}

// PredictionMS returns how far the predicted time to first token of the recorded picks
// was from the observed one, in the mean over count answers, ms.
func (r *Replay) PredictionMS() (mean float64, count int) {
	return r.missMS / float64(max(1, r.misses)), r.misses
}

// cheapestOf returns the index of the least recorded cost; kept where that is no dearer
// than a tie.
func cheapestOf(costs []float64, kept int) int {
	best := kept
	for i, c := range costs {
		if c < costs[best] {
			best = i
		}
	}
	if costs[best] >= costs[kept]-route.TieMS {
		return kept
	}
	return best
}

// question rebuilds what a policy was asked, as far as the record tells, and returns
// the recorded costs by candidate; +Inf where it was dropped.
func question(rec *route.Record) (*route.Input, []float64) {
	e := rec.Engine
	in := &route.Input{
		Now: testNow, Request: &fleet.Request{Model: rec.Request.Model, Adapter: rec.Request.Adapter, PromptTokens: rec.Request.PromptTokens},
		// A block of one token keeps the recorded cached tokens exact.
		PromptTokens: float64(rec.Request.PromptTokens), BlockTokens: 1, Bare: true, Arrival: 1,
		Engine: route.Coef{
			Base: e.BaseMS / 1e3, PTok: e.TokenUS / 1e6, PAttn: e.AttentionNS / 1e9,
			DSeq: e.SequenceUS / 1e6, DCtx: e.ContextNS / 1e9, Chunk: max(1, e.ChunkTokens),
		},
		Context: route.Context{MeanOutput: max(1, e.MeanOutput), OwnOutput: max(1, e.MeanOutput), Exchange: e.Exchange, HitShare: e.HitShare},
	}
	costs := make([]float64, len(rec.Candidates))
	for i := range rec.Candidates {
		c := &rec.Candidates[i]
		drop := route.DropNone
		costs[i] = math.Inf(1)
		if c.Dropped != "" || c.CostMS == nil {
			if drop = dropNamed(c.Dropped); drop == route.DropNone {
				drop = route.DropGone // a reason of another version
			}
		} else {
			costs[i] = *c.CostMS
		}
		s, cached := recordedSlot(c, &in.Engine)
		s.Drop = drop
		in.Slots, in.Drops = append(in.Slots, s), append(in.Drops, drop)
		in.Hits, in.Pinned = append(in.Hits, cached), append(in.Pinned, 0)
	}
	return in, costs
}

// recordedSlot rebuilds a slot from the signals of a candidate. Streams of others are
// those beyond the own requests that have a first token.
func recordedSlot(c *route.PricedEndpoint, e *route.Coef) (s route.Slot, cached int32) {
	get := func(name string) (float64, bool) {
		for i := range c.Signals {
			if x := &c.Signals[i]; x.Name == name && x.Value != nil {
				return *x.Value, true
			}
		}
		return 0, false
	}
	value := func(name string) float64 { v, _ := get(name); return v }
	known := func(name string) fleet.Value {
		if v, ok := get(name); ok {
			return fleet.Known(v, testNow)
		}
		return fleet.Value{}
	}
	own := value("in_flight") - value("unstarted")
	s = route.Slot{
		ID: c.Endpoint, Key: xxh3.HashString(c.Endpoint), Speed: 1, KVLimit: 1, HeadSince: testNow,
		InFlight: int32(value("in_flight")), Unstarted: int32(value("unstarted")), Streams: int32(own),
		ForeignStreams: max(0, value("streams")-own), CtxTokens: value("context"),
		Queued: int32(value("queued")), TailTokens: value("kv_used"), KVTokens: value("kv_limit"),
	}
	if v, ok := get("slowness"); ok && v > 0 {
		s.Speed = v
	}
	pending := value("pending") / 1e3
	if s.Unstarted > 0 {
		s.PendingSum = pending
	} else {
		s.ForeignPending = pending
	}
	if e.PTok > 0 {
		s.UncachedTokens = pending / (e.PTok * s.Speed)
	}
	s.State = &fleet.EndpointState{Endpoint: fleet.Endpoint{ID: c.Endpoint}}
	s.State.Running, s.State.Waiting, s.State.KVUsage = known("running"), known("waiting"), known("kv_usage")
	return s, int32(math.Round(value("cached")))
}
