// SPDX-License-Identifier: Apache-2.0

package scalesim

import (
	"errors"
	"fmt"
	"math"
	"math/rand/v2"
	"slices"
	"time"

	"github.com/penstock-project/penstock/internal/engine"
	"github.com/penstock-project/penstock/internal/workload"
)

// TraceOptions say how recorded traffic becomes a scenario.
type TraceOptions struct {
	Name    string // of the scenario
	Profile engine.Profile
	SLO     SLO
	Start   Start
	Seed    uint64

	// Factor lays so many copies of the trace over each other, or keeps that share of
	// its requests where it is under 1; 0: 1. Ignored where Mean is given.
	Factor float64
	// Mean picks the factor so that so many replicas are offered at their knee; 0: no.
	Mean float64
	// Shift is how far copies are apart, in seconds; 0: evenly over the trace.
	Shift float64
	// From and For cut a part out of the trace, in seconds; For 0: until its end.
	From, For float64
	// Unscored is how much of the beginning is not scored, in seconds; negative: a
	// default by the length, see unscored.
	Unscored float64
	// Caches says what becomes of shared prompts; "" is CachesAware.
	Caches Caches
	// Most bounds the number of requests; 0: MaxTraceRequests.
	Most int

	sizes int // fleets up to this size are measured; 0: see calibrate
}

// MaxTraceRequests bounds the requests of one trace scenario.
const MaxTraceRequests = 2_000_000

// Info is what a user should know about how a trace was read.
type Info struct {
	Requests int     `json:"requests"`
	TooLong  int     `json:"too_long"`      // left out: their own prefill takes over a second
	Factor   float64 `json:"factor"`        // that was played
	Hours    float64 `json:"hours"`         //
	HitRatio float64 `json:"cache_hit"`     // share of the prompt tokens that caches are credited with
	Mean     float64 `json:"mean_replicas"` // offered, in replicas at their knee
	Knee     float64 `json:"knee_rps"`      // requests per second of one of 16 replicas
}

// record is one request of a trace.
type record struct {
	at       float64
	ctx, out int32
	hit      int32
}

// FromTrace makes a scenario of recorded traffic. The capacity of a fleet is
// measured on the trace's own lengths under Poisson arrivals.
func FromTrace(t *workload.Trace, o TraceOptions) (*Scenario, Info, error) {
	if o.Most == 0 {
		o.Most = MaxTraceRequests
	}
	recs, err := records(t, &o)
	if err != nil {
		return nil, Info{}, err
	}
	sc := &Scenario{
		Name: o.Name, Class: "trace", Seed: o.Seed, Model: o.Profile, SLO: o.SLO, Start: o.Start, Noise: 0.1,
	}
	info := Info{}
	recs, info.TooLong = sc.fitting(recs)
	if len(recs) < 5 {
		return nil, info, fmt.Errorf("only %d requests are left (%d are too long for a time to first token of %.3g s): too few to judge a scaler by", len(recs), info.TooLong, o.SLO.TTFT)
	}
	sc.Shape = meanShape(recs)
	sc.calibrate(recs, o.sizes)
	span := recs[len(recs)-1].at + recs[len(recs)-1].at/float64(len(recs))
	if o.For > 0 {
		span = math.Min(o.For, math.Max(span, 1))
	}
	if info.Factor, err = o.factor(sc, recs, span); err != nil {
		return nil, info, err
	}
	recs = copies(recs, info.Factor, o.Shift, span, o.Seed)
	sc.load(recs, span, o.Unscored)
	info.Requests, info.Hours, info.Mean, info.Knee = len(recs), span/3600, sc.Mean, sc.knee.rate
	info.HitRatio = hitRatio(recs)
	return sc, info, nil
}

// records flattens the sessions into requests in order of arrival, with what
// caches are credited with.
func records(t *workload.Trace, o *TraceOptions) ([]record, error) {
	if len(t.Clients) > 0 {
		o.cutClients(t)
	}
	c := newCaches(t, o)
	src := t.Source(workload.Play{Open: true, Seed: o.Seed})
	feed := workload.NewFeed(src, workload.FeedOptions{})
	limit := math.Inf(1)
	if o.For > 0 {
		limit = o.For
	}
	from := o.From
	if len(t.Clients) > 0 {
		from = 0
	}
	var out []record
	for it, ok := feed.PopAny(); ok; it, ok = feed.PopAny() {
		at := it.At.Seconds() - from
		turn := it.Request()
		feed.Done(it, it.At)
		if at < 0 {
			continue
		}
		if at >= limit {
			break
		}
		if len(out) >= o.Most {
			return nil, fmt.Errorf("has more than %d requests: take a part of it with --from and --for, or thin it with --factor", o.Most)
		}
		out = append(out, record{at, int32(min(turn.PromptTokens, 1<<30)), int32(min(turn.OutputTokens, 1<<20)), c.hit(&it, turn)})
	}
	if len(out) == 0 {
		return nil, errors.New("holds no request in that part")
	}
	return out, nil
}

// cutClients keeps the windows of rate traces that are asked for, and thins their
// rates at once where millions would be drawn only to be thrown away.
func (o *TraceOptions) cutClients(t *workload.Trace) {
	from, to := seconds(o.From), time.Duration(math.MaxInt64)
	if o.For > 0 {
		to = from + seconds(o.For)
	}
	expect := 0.0
	kept := make([]workload.RateClient, 0, len(t.Clients))
	for _, c := range t.Clients {
		k := workload.RateClient{Name: c.Name}
		for i, w := range c.Windows {
			end := w.Start + 10*time.Minute
			if i+1 < len(c.Windows) {
				end = c.Windows[i+1].Start
			}
			if end <= from || w.Start >= to {
				continue
			}
			expect += w.Rate * (min(end, to) - max(w.Start, from)).Seconds()
			w.Start = max(0, w.Start-from)
			k.Windows = append(k.Windows, w)
		}
		if len(k.Windows) > 0 {
			kept = append(kept, k)
		}
	}
	thin := 1.0
	switch {
	case o.Mean > 0 && expect > drawnRequests:
		thin = drawnRequests / expect
	case o.Factor > 0 && o.Factor < 1 && o.Mean == 0:
		thin, o.Factor = o.Factor, 1
	}
	if thin < 1 {
		for i := range kept {
			for j := range kept[i].Windows {
				kept[i].Windows[j].Rate *= thin
			}
		}
	}
	t.Clients = kept
}

// drawnRequests is about how many requests of a rate trace are drawn where the
// user names a fleet and not a factor.
const drawnRequests = 600_000

func seconds(s float64) time.Duration { return time.Duration(s * 1e9) }

// fitting leaves out what no fleet can serve in time: prompts whose own prefill
// takes more than half of the objective.
func (sc *Scenario) fitting(recs []record) ([]record, int) {
	m := &sc.Model
	out, long := recs[:0], 0
	for _, r := range recs {
		if m.PrefillSeconds(int(max(1, r.ctx-r.hit)), int(r.ctx)) > sc.SLO.TTFT/2 || int(r.ctx+r.out) > m.KVTokens/2 {
			long++
			continue
		}
		out = append(out, r)
	}
	return out, long
}

func meanShape(recs []record) Shape {
	s := Shape{Name: "trace"}
	for _, r := range recs {
		s.Prompt += float64(r.ctx) / float64(len(recs))
		s.Out += float64(r.out) / float64(len(recs))
	}
	s.Out = math.Max(1, s.Out)
	return s
}

func hitRatio(recs []record) float64 {
	var hit, all float64
	for _, r := range recs {
		hit += float64(r.hit)
		all += float64(r.ctx)
	}
	return hit / math.Max(1, all)
}

// factor is how many copies are played.
func (o *TraceOptions) factor(sc *Scenario, recs []record, span float64) (float64, error) {
	f := o.Factor
	if f == 0 {
		f = 1
	}
	if o.Mean > 0 {
		f = o.Mean * span * sc.knee.rate / float64(len(recs))
	}
	if n := f * float64(len(recs)); n > float64(o.Most) {
		return 0, fmt.Errorf("%.3g times %d requests are more than %d: use a smaller --factor, --mean, or a part with --from and --for", f, len(recs), o.Most)
	}
	return f, nil
}

// copies lays whole copies of a trace over each other, shifted, and keeps a drawn
// share of the last one.
func copies(recs []record, factor, shift, span float64, seed uint64) []record {
	if factor == 1 {
		return recs
	}
	whole := int(math.Ceil(factor - 1e-9))
	if shift <= 0 {
		shift = span / float64(whole)
	}
	r := rand.New(rand.NewPCG(seed, 0xc0b1e5))
	out := make([]record, 0, int(factor*float64(len(recs)))+len(recs)/8)
	for k := range whole {
		share := math.Min(1, factor-float64(k))
		for _, x := range recs {
			if share < 1 && r.Float64() >= share {
				continue
			}
			x.at = math.Mod(x.at+float64(k)*shift, span)
			out = append(out, x)
		}
	}
	slices.SortStableFunc(out, func(a, b record) int {
		if a.at < b.at {
			return -1
		} else if a.at > b.at {
			return 1
		}
		return 0
	})
	return out
}

// load makes the requests the scenario's.
func (sc *Scenario) load(recs []record, span, skip float64) {
	st := &stream{}
	for _, r := range recs {
		st.at = append(st.at, r.at)
		st.in = append(st.in, max(1, r.ctx-r.hit))
		st.ctx = append(st.ctx, r.ctx)
		st.out = append(st.out, max(1, r.out))
	}
	sc.st = st
	sc.Duration = math.Ceil(math.Max(span, recs[len(recs)-1].at)) + 1
	sc.ScoreFrom = unscored(sc.Duration, skip)
	sc.Mean = float64(len(recs)) * sc.meanWork() / sc.Duration
	sc.index(sc.workOf())
}

// unscored is how long nothing is scored, since no rule knows traffic that it has
// not seen: what is asked for, or ten minutes, or two hours of more than eight, and
// never more than a quarter.
func unscored(duration, asked float64) float64 {
	v := 600.0
	if duration > 8*3600 {
		v = 2 * 3600
	}
	if asked >= 0 {
		v = asked
	}
	return math.Floor(math.Min(v, duration/4))
}
