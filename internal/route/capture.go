// SPDX-License-Identifier: Apache-2.0

package route

import (
	"math"
	"strconv"

	"github.com/penstock-project/penstock/internal/fleet"
)

// MaxCaptured is how many candidates a Capture keeps. A decision over more
// endpoints keeps the cheapest ones; the others are counted.
const MaxCaptured = 64

// Capture is a decision with its request and outcome in a compact form: strings
// are shared, slices are reused, nothing is formatted. It costs no allocation once
// grown; Record expands it when somebody reads it.
type Capture struct {
	ID, Pool, Tenant, Model, Adapter string
	Arm, Via                         string
	Surface                          fleet.Surface
	Class                            uint8
	Stream                           bool
	MaxTokens                        int
	Blocks                           int

	Arrived fleet.Time
	Sent    fleet.Time // last attempt; 0 not yet
	HeldFor fleet.Time // nanoseconds in the router's queue

	Decision Decision
	Attempts []Attempt
	// MaybeDuplicate says that a failed attempt may have been executed.
	MaybeDuplicate bool
	Finished       bool
	Outcome        fleet.Outcome
}

// Attempt is one failed attempt.
type Attempt struct {
	Endpoint string
	Kind     fleet.OutcomeKind
	At       fleet.Time
}

// Reset empties c for a new request and keeps its memory.
func (c *Capture) Reset(pool string, r *fleet.Request) {
	d, a := c.Decision, c.Attempts[:0]
	d.Reset()
	*c = Capture{
		ID: r.ID, Pool: pool, Tenant: r.Tenant, Model: r.Model, Adapter: r.Adapter, Arm: r.Arm, Via: r.Via,
		Surface: r.Surface, Class: r.Class, Stream: r.Stream, MaxTokens: r.MaxTokens,
		Blocks: len(r.Blocks), Arrived: r.Arrived, Decision: d, Attempts: a,
	}
}

// Record expands the capture.
func (c *Capture) Record() *Record {
	d := &c.Decision
	r := &Record{
		Schema: Schema, ID: c.ID, Time: d.At.Wall().UTC(), Pool: c.Pool,
		Request: Asked{
			Tenant: c.Tenant, Model: c.Model, Adapter: c.Adapter,
			PromptTokens: int(math.Round(d.PromptTokens)), MaxTokens: c.MaxTokens,
			Surface: c.Surface.String(), Class: int(c.Class), Stream: c.Stream, Blocks: c.Blocks, Arm: c.Arm, Via: c.Via,
		},
		Policy:            d.Policy,
		Snapshot:          SnapshotID{Version: d.SnapshotVersion},
		Why:               d.Why,
		DemotedByLoad:     d.DemotedByLoad,
		CandidatesOmitted: int(d.Omitted),
		WouldChangeIf:     WouldChangeIf(d),
	}
	if d.SnapshotAt != 0 {
		r.Snapshot.AgeMS = ms(d.At.Seconds(d.SnapshotAt) * 1e3)
	}
	if d.MarginMS >= 0 {
		r.MarginMS = ms(d.MarginMS)
	}
	if p := d.Pick(); p != nil {
		r.Chosen = p.Endpoint
		if d.Priced {
			r.PredictedTTFTMS = ms(d.PredictedTTFTMS)
			r.Pressure = number(d.Context.Pressure)
			r.Engine = engineModel(d)
			r.LeftOut = d.Context.Without.Names()
		}
	}
	if s := &d.Shadow; s.Policy != "" {
		r.Shadow = &Shadow{Policy: s.Policy, Chosen: s.Endpoint, Agrees: s.Slot == d.Chosen}
		if s.Priced {
			r.Shadow.ExtraMS = ms(s.ExtraMS)
		}
	}
	if d.Tied > 1 {
		r.Tie = &Tie{Candidates: int(d.Tied), Key: strconv.FormatUint(d.TieKey, 16)}
	}
	r.Candidates = make([]PricedEndpoint, len(d.Candidates))
	for i := range d.Candidates {
		r.Candidates[i] = pricedEndpoint(d, &d.Candidates[i])
	}
	if c.Finished {
		r.Outcome = c.result()
	}
	return r
}

func (c *Capture) result() *Result {
	o := &c.Outcome
	res := &Result{
		Status: o.Status, Kind: o.Kind.String(),
		QueueMS:      round3(float64(c.HeldFor) / 1e6),
		PromptTokens: count(o.PromptTokens), CachedTokens: count(o.CachedTokens), OutputTokens: count(o.OutputTokens),
		PredictedCachedTokens: c.Decision.PredictedCached,
		MaybeDuplicate:        c.MaybeDuplicate,
	}
	if o.FirstToken != 0 {
		res.TTFTMS = ms(o.FirstToken.Seconds(c.Arrived) * 1e3)
	}
	if o.End != 0 {
		res.E2EMS = ms(o.End.Seconds(c.Arrived) * 1e3)
	}
	for _, a := range c.Attempts {
		res.Attempts = append(res.Attempts, AttemptMade{
			Endpoint: a.Endpoint, Kind: a.Kind.String(), AfterMS: round3(a.At.Seconds(c.Arrived) * 1e3),
		})
	}
	return res
}

func engineModel(d *Decision) *EngineModel {
	e, x := &d.Engine, &d.Context
	return &EngineModel{
		BaseMS: round6(e.Base * 1e3), TokenUS: round6(e.PTok * 1e6), AttentionNS: round6(e.PAttn * 1e9),
		SequenceUS: round6(e.DSeq * 1e6), ContextNS: round6(e.DCtx * 1e9), ChunkTokens: e.Chunk,
		MeanOutput: round3(x.MeanOutput), Exchange: round6(x.Exchange), HitShare: round6(x.HitShare),
	}
}

func pricedEndpoint(d *Decision, c *Candidate) PricedEndpoint {
	p := PricedEndpoint{Endpoint: c.Endpoint, Dropped: c.Drop.String()}
	if c.Drop == DropNone {
		p.CostMS = ms(c.CostMS)
		if d.Priced {
			for t := range Term(NumTerms) {
				if v := c.Terms[t]; v != 0 {
					p.Terms = append(p.Terms, Part{Name: t.String(), MS: round3(float64(v))})
				}
			}
		}
	}
	p.Signals = signals(c)
	return p
}

// signals lists the inputs of a candidate: our own accounting first, then what
// the last scrape said.
func signals(c *Candidate) []Signal {
	own, scraped := number(0), (*float64)(nil)
	if c.ScrapeAgeMS >= 0 {
		scraped = ms(float64(c.ScrapeAgeMS))
	}
	out := make([]Signal, 0, 16)
	add := func(name string, v float64, unit string, age *float64) {
		s := Signal{Name: name, Unit: unit, AgeMS: age}
		if v >= 0 && !math.IsInf(v, 1) {
			s.Value = ms(v)
		} else {
			s.AgeMS = nil
		}
		out = append(out, s)
	}
	add("in_flight", float64(c.InFlight), "requests", own)
	add("unstarted", float64(c.Unstarted), "requests", own)
	add("pending", float64(c.PendingMS), "ms", own)
	add("streams", float64(c.Streams), "requests", own)
	add("context", float64(c.CtxTokens), "tokens", own)
	add("cached", float64(c.Cached), "tokens", own)
	add("uncached", float64(c.Uncached), "tokens", own)
	if c.Joins {
		add("joined", 1, "requests", own) // whose step it shares
	}
	if c.Queued > 0 {
		add("queued", float64(c.Queued), "requests", own)
	}
	add("kv_used", float64(c.UsedKV), "tokens", own)
	if c.LimitKV > 0 {
		add("kv_limit", float64(c.LimitKV), "tokens", own)
	}
	if c.Speed != 1 {
		add("slowness", float64(c.Speed), "ratio", own)
	}
	add("running", float64(c.Running), "requests", scraped)
	add("waiting", float64(c.Waiting), "requests", scraped)
	add("kv_usage", float64(c.KVUsage), "ratio", scraped)
	return out
}

func round3(v float64) float64 { return math.Round(v*1e3) / 1e3 }
func round6(v float64) float64 { return math.Round(v*1e6) / 1e6 }

// ms returns a pointer to v rounded to a thousandth.
func ms(v float64) *float64 { v = round3(v); return &v }

func number(v float64) *float64 { v = round6(v); return &v }

func count(n int) *int {
	if n < 0 {
		return nil
	}
	return &n
}
