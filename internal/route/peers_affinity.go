// SPDX-License-Identifier: Apache-2.0

package route

import "math"

// Constants of llm-d's prefix-cache-affinity-filter.
const (
	stickyMatch   = 0.80    // share of the prompt that makes an endpoint sticky
	stickyPenalty = 18.0    // seconds of TTFT that stickiness may cost
	stickyRate    = 15928.0 // tokens/s of prefill
)

// Reasons of the policies that prefer affinity.
const (
	WhySticky    = "warm enough and not saturated"
	WhySaturated = "warm replicas are saturated: least load of all"
	WhyNobody    = "no replica is warm: least load of all"
	WhyImbalance = "load is out of balance: fewest requests"
)

// Sticky returns llm-d's sticky-until-saturated: among the endpoints that have at
// least 80 % of the prompt the one with least prefill pending, as long as the
// tokens pending there cost no more than 18 s of TTFT over the least loaded of all.
//
// Source: llm-d-router prefix-cache-affinity-filter (affinityThreshold 0.80,
// maxTTFTPenaltyMs 18000, peakPrefillThroughput 15928) and the llm-d blog of
// 2026-08-17, in which the product of the last two is the saturation limit tau.
func Sticky(seed uint64) Policy {
	pending := func(_ *Input, _ *Candidate, s *Slot) float64 { return s.UncachedTokens }
	return &simple{PolicySticky, func(g *state, in *Input, d *Decision, _ int) (int32, string) {
		warm := func(c *Candidate) bool { return float64(c.Cached) >= stickyMatch*in.PromptTokens }
		all := leastOf(g, in, d, pending, nil)
		sticky := leastOf(g, in, d, pending, warm)
		switch {
		case sticky < 0:
			return all, WhyNobody
		case in.Slots[sticky].UncachedTokens-in.Slots[all].UncachedTokens > stickyPenalty*stickyRate:
			return all, WhySaturated
		}
		return sticky, WhySticky
	}, state{seed: seed}}
}

// Constants of SGLang's cache_aware.
const (
	sglangMatch = 0.3
	sglangAbs   = 64.0
	sglangRel   = 1.5
)

// SGLang returns cache_aware of the SGLang router and of smg: fewest requests while
// load is out of balance; else the one replica that the prefix tree names, if it
// matches more than 30 % of the prompt, else fewest requests.
//
// The tree names one replica a prefix, never the lighter of two. Here that is the
// home of the matched prefix, by rendezvous hash, among those that have it.
//
// Source: sgl-project/sglang sgl-model-gateway policies/cache_aware.rs; defaults
// of its command line: cache_threshold 0.3, balance_abs_threshold 64,
// balance_rel_threshold 1.5.
func SGLang(seed uint64) Policy {
	return &simple{PolicySGLang, func(g *state, in *Input, d *Decision, _ int) (int32, string) {
		low, high := math.Inf(1), 0.0
		hit := int32(0)
		for i := range d.Candidates {
			c := &d.Candidates[i]
			if c.Drop != DropNone {
				continue
			}
			l := requests(in, c, &in.Slots[i])
			low, high = min(low, l), max(high, l)
			hit = max(hit, c.Hit)
		}
		if high-low > sglangAbs && high > sglangRel*low {
			return leastOf(g, in, d, requests, nil), WhyImbalance
		}
		if float64(hit)*in.BlockTokens <= sglangMatch*in.PromptTokens || hit == 0 {
			return leastOf(g, in, d, requests, nil), WhyNobody
		}
		return home(in, d, in.Request.Blocks[hit-1], func(c *Candidate) bool { return c.Hit == hit }), WhyAffinity
	}, state{seed: seed}}
}

// home returns the candidate that key belongs to by rendezvous hash, among those
// that keep allows; -1 where there is none.
func home(in *Input, d *Decision, key uint64, keep func(*Candidate) bool) int32 {
	best, weight := int32(-1), uint64(0)
	for i := range d.Candidates {
		c := &d.Candidates[i]
		if c.Drop != DropNone || !keep(c) {
			continue
		}
		if w := Mix(key, in.Slots[i].Key); best < 0 || w > weight {
			best, weight = int32(i), w
		}
	}
	return best
}

// Scored returns the weighted sum of three scores of the Gateway API Inference
// Extension's picker, highest first, ties at random: the matched share of the
// prompt, the scraped waiting queue scaled between the shortest and the longest
// (all equal: 1), and the free share of the scraped KV memory.
//
// Source: llm-d-router scorers prefix-cache-scorer, queue-scorer and
// kv-cache-utilization-scorer, max-score-picker; weights 3:2:2 as llm-d's default
// profile, 1:1:1 as the extension's own.
func Scored(name string, seed uint64, prefix, queue, kv float64) Policy {
	return &simple{name, func(g *state, in *Input, d *Decision, _ int) (int32, string) {
		low, high := math.Inf(1), math.Inf(-1)
		for i := range d.Candidates {
			if d.Candidates[i].Drop == DropNone {
				w := waiting(&in.Slots[i])
				low, high = min(low, w), max(high, w)
			}
		}
		score := func(in *Input, c *Candidate, s *Slot) float64 {
			q := 1.0
			if high > low {
				q = (high - waiting(s)) / (high - low)
			}
			hit := min(1, float64(c.Hit)*in.BlockTokens/max(1, in.PromptTokens))
			return -(prefix*hit + queue*q + kv*(1-kvUse(s)))
		}
		return leastOf(g, in, d, score, nil), WhyScore
	}, state{seed: seed}}
}
