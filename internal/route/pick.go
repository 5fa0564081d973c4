// SPDX-License-Identifier: Apache-2.0

package route

import (
	"math"

	"github.com/penstock-project/penstock/internal/fleet"
)

// TieMS is the difference in cost, in milliseconds, below which two candidates
// count as equal. It is far under what a client can notice and far over rounding,
// so that two routers that know the same agree.
const TieMS = 0.05

// stamp resets d for a pick of the named policy.
func (d *Decision) stamp(in *Input, policy string) {
	d.Reset()
	d.Policy = policy
	d.At = in.Now
	d.SnapshotVersion, d.SnapshotAt = in.SnapshotVersion, in.SnapshotAt
	d.PromptTokens, d.BlockTokens = in.PromptTokens, in.BlockTokens
	d.Engine, d.Context = in.Engine, in.Context
	d.blind, d.slots = in.Blind, in.Slots
	d.part = -1
	if in.Parts > 1 {
		d.part = in.Part
	}
}

// begin resets d for a pick of the named policy and fills in one candidate a slot
// with its raw inputs.
func (d *Decision) begin(in *Input, policy string) {
	d.stamp(in, policy)
	d.TieKey, d.Deepest = tieKey(in)
	if n := len(in.Request.Blocks); in.Parts > 1 && (n > 0 || in.Request.Session != 0) {
		alike := in.KinWarm
		if Cold(d.Deepest, n) {
			alike = in.KinCold
		}
		if alike {
			const salt = 0x6b696e
			d.part = int32(Mix(d.TieKey, salt) % uint64(in.Parts))
		}
	}
	if n := len(in.Slots); cap(d.Candidates) < n {
		d.Candidates = make([]Candidate, n, n+n/4)
	} else {
		d.Candidates = d.Candidates[:n]
	}
	for i := range in.Slots {
		c := &d.Candidates[i]
		c.Slot, c.Drop, c.Endpoint = int32(i), in.Drops[i], in.Slots[i].ID
		if c.Drop != DropNone && in.Bare {
			c.CostMS = math.Inf(1)
			continue
		}
		c.observe(in, &in.Slots[i])
	}
}

// observe fills in what the router's own accounting says.
func (c *Candidate) observe(in *Input, s *Slot) {
	hit, pinned := in.Hits[c.Slot], in.Pinned[c.Slot]
	cached := float64(hit) * in.BlockTokens
	if most := in.PromptTokens - 1; cached > most {
		cached = most // the last token is always computed
	}
	c.Hit = hit
	c.Cached = float32(cached)
	c.Uncached = float32(in.PromptTokens - cached)
	c.InFlight, c.Unstarted, c.Queued = s.InFlight, s.Unstarted, s.Queued
	c.QueuedKV = float32(s.QueuedTokens)
	c.Streams = float32(float64(s.Streams) + s.ForeignStreams)
	c.Yielding = float32(s.Yielding)
	if s.QueuedLast > 0 && !in.Last {
		c.Queued -= s.QueuedLast
		c.QueuedKV -= float32(s.QueuedLastTokens)
	}
	c.CtxTokens = float32(s.CtxTokens)
	c.Credit = 0
	if in.Credits != nil {
		c.Credit = min(c.Uncached, in.Credits[c.Slot])
	}
	c.PendingMS = float32(s.Pending(in.Now) * 1e3)
	c.AheadMS, c.Behind, c.AdapterMS, c.CostMS, c.OwnMS = 0, 0, 0, 0, 0
	c.Speed = float32(s.Speed)
	c.Joins = in.Joins != nil && in.Joins[c.Slot]
	c.UsedKV = float32(float64(s.PinnedBlocks)*in.BlockTokens + s.TailTokens + s.Generated)
	c.NewKV = float32(max(0, in.PromptTokens-float64(pinned)*in.BlockTokens))
	c.LimitKV = float32(s.KVTokens * s.KVLimit)
	c.SeatsFree = float32(math.Inf(1))
	if s.MaxSeqs > 0 {
		c.SeatsFree = float32(s.MaxSeqs - float64(s.InFlight) - s.ForeignStreams - s.ForeignUnstarted)
	}
	fresh := float64(c.Uncached)
	if in.BlockTokens > 0 {
		fresh /= in.BlockTokens
	}
	c.Full = s.CacheCap > 0 && float64(s.CacheBlocks)+fresh > float64(s.CacheCap)
}

// scraped fills in what the last scrape said, for the record.
func (c *Candidate) scraped(now fleet.Time, e *fleet.EndpointState) {
	c.Running, c.Waiting, c.KVUsage, c.ScrapeAgeMS = -1, -1, -1, -1
	if e == nil || e.ScrapedAt == 0 {
		return
	}
	c.Running = float32(e.Running.Or(-1))
	c.Waiting = float32(e.Waiting.Or(-1))
	c.KVUsage = float32(e.KVUsage.Or(-1))
	c.ScrapeAgeMS = float32(now.Seconds(e.ScrapedAt) * 1e3)
}

// tieKey is what tells requests apart whose candidates cost the same. It is the
// session hint, or the first block that no replica is known to hold: that is where
// this conversation leaves what many share (a system prompt), and it is the same
// block in each later turn and in every router that knows the shared part.
// The other result is how many blocks are known at most.
func tieKey(in *Input) (key uint64, deepest int32) {
	r := in.Request
	for i, h := range in.Hits {
		if h > deepest && in.Drops[i] == DropNone {
			deepest = h
		}
	}
	switch n := len(r.Blocks); {
	case r.Session != 0:
		return r.Session, deepest
	case n == 0:
		return Mix(in.Arrival, 1), deepest
	default:
		return r.Blocks[min(int(deepest), n-1)], deepest
	}
}

// choose picks the candidate of least CostMS, ties by rendezvous hash, and fills
// in the margin and the predictions.
func (d *Decision) choose(slots []Slot) {
	best, second := math.Inf(1), math.Inf(1)
	n, warmest := 0, int32(0)
	for i := range d.Candidates {
		c := &d.Candidates[i]
		if c.Drop != DropNone {
			continue
		}
		n++
		warmest = max(warmest, c.Hit)
		if c.CostMS < best {
			best, second = c.CostMS, best
		} else if c.CostMS < second {
			second = c.CostMS
		}
	}
	if n == 0 {
		d.Why = WhyNoReplica
		return
	}
	limit, mine := d.limit(slots, best)
	var weight uint64
	for i := range d.Candidates {
		c := &d.Candidates[i]
		if c.Drop != DropNone || c.CostMS > limit || mine && slots[i].Part != d.part {
			continue
		}
		d.Tied++
		if w := Mix(d.TieKey, slots[i].Key); d.Index < 0 || w > weight {
			d.Index, weight = int32(i), w
		}
	}
	switch d.take(WhyCheapest); {
	case n == 1:
		d.Why = WhyOnly
		return
	case warmest > d.Candidates[d.Index].Hit:
		d.DemotedByLoad, d.Why = true, WhyDemoted
	case d.Tied > 1:
		d.Why = WhyTie
	}
	d.MarginMS = max(0, second-d.Candidates[d.Index].CostMS)
}

// limit is the cost up to which candidates count as equal, and whether only those
// count that this router takes first. What another router sends at the same moment
// costs about as much as this request itself: differences smaller than that, as
// often as it happens, are not known to be there.
func (d *Decision) limit(slots []Slot, best float64) (limit float64, mine bool) {
	if d.blind <= 0 || !d.Priced {
		return best + TieMS, false
	}
	margin, own := 0.0, math.Inf(1)
	for i := range d.Candidates {
		c := &d.Candidates[i]
		if c.Drop != DropNone {
			continue
		}
		if c.CostMS == best {
			margin = d.blind * float64(c.Terms[TermPrefill]+c.Terms[TermSteps])
		}
		if slots[i].Part == d.part {
			own = min(own, c.CostMS)
		}
	}
	if own <= best+margin {
		return own + TieMS, true
	}
	return best + TieMS, false
}

// take makes the candidate at d.Index the chosen one.
func (d *Decision) take(why string) {
	p := &d.Candidates[d.Index]
	d.Chosen, d.Why = p.Slot, why
	d.PredictedCached = int(math.Round(float64(p.Cached)))
	d.PredictedTTFTMS = p.OwnMS
}
