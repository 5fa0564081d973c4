// SPDX-License-Identifier: Apache-2.0

package route

import "math"

// The pickers of the field, each from its published description with its published
// constants, so that they can be compared on the same traffic and the same signals,
// and so that a user can keep one for a migration. None of them sees the router's
// own queue.

// Names of the field's policies.
const (
	PolicyLMetric    = "lmetric"     // (pending + own uncached tokens) x (in flight + 1)
	PolicyLMetricNew = "lmetric-new" // own uncached tokens x (in flight + 1)
	PolicyMinTTFT    = "min-ttft"
	PolicyDynamo     = "dynamo"   // prefill load scale 1
	PolicyDynamo4    = "dynamo-4" // prefill load scale 4
	PolicySticky     = "sticky"
	PolicySGLang     = "sglang"
	PolicyLLMD       = "llm-d-322"
	PolicyGAIE       = "gaie-111"
	PolicyLeastLoad  = "least-load"
	PolicyCHWBL      = "chwbl"
	PolicyPrefixHash = "prefix-hash"
)

// peers are the field's policies that have no other name here.
func peers(seed uint64) []Policy {
	return []Policy{
		LMetric(seed, true), LMetric(seed, false), MinTTFT(seed), Dynamo(seed, 1), Dynamo(seed, 4),
		Sticky(seed), SGLang(seed), Scored(PolicyLLMD, seed, 3, 2, 2), Scored(PolicyGAIE, seed, 1, 1, 1),
		LeastLoad(seed), CHWBL(seed), PrefixHash(seed),
	}
}

// WhyScore is the reason of policies that take the least of one number.
const WhyScore = "lowest score of this policy"

// least returns the rule that takes the candidate of the lowest score, ties at
// random.
func least(score func(in *Input, c *Candidate, s *Slot) float64) rule {
	return func(g *state, in *Input, d *Decision, _ int) (int32, string) {
		return leastOf(g, in, d, score, nil), WhyScore
	}
}

// leastOf returns the candidate of the lowest score among those that keep allows
// (nil: all that are open), ties at random; -1 where there is none.
func leastOf(g *state, in *Input, d *Decision, score func(*Input, *Candidate, *Slot) float64, keep func(*Candidate) bool) int32 {
	best, low, ties := int32(-1), math.Inf(1), 0
	for i := range d.Candidates {
		c := &d.Candidates[i]
		if c.Drop != DropNone || keep != nil && !keep(c) {
			continue
		}
		switch v := score(in, c, &in.Slots[i]); {
		case best < 0 || v < low:
			best, low, ties = int32(i), v, 1
		case v == low:
			ties++
			if g.below(ties) == 0 {
				best = int32(i)
			}
		}
	}
	return best
}

// requests is the number of requests that an endpoint has, own and foreign.
func requests(_ *Input, _ *Candidate, s *Slot) float64 {
	return float64(s.InFlight+s.Queued) + s.ForeignStreams + s.ForeignUnstarted
}

// LMetric returns the product of new prefill tokens and batch size, which has no
// weights to tune. full counts the prefill tokens that are pending at the endpoint
// together with the request's own; without it only the request's own count.
//
// Source: LMetric, arXiv 2603.15202 (score = new prefill tokens x batch size);
// llm-d-router PR 2351 and Dynamo's policy "lmetric" use the pending tokens too.
func LMetric(seed uint64, full bool) Policy {
	name := PolicyLMetricNew
	if full {
		name = PolicyLMetric
	}
	return &simple{name, least(func(in *Input, c *Candidate, s *Slot) float64 {
		tokens := float64(c.Uncached)
		if full {
			tokens += s.UncachedTokens
		}
		return tokens * (requests(in, c, s) + 1)
	}), state{seed: seed}}
}

// MinTTFT returns the policy of least expected time to first token: the prefill
// work that waits there and the request's own, by a prefill model; harm to running
// streams and caches is not counted.
//
// Source: Mooncake Conductor (FAST 25, section 5): argmin of transfer + queue +
// prefill time; nothing is transferred here.
func MinTTFT(seed uint64) Policy {
	return &simple{PolicyMinTTFT, least(func(in *Input, c *Candidate, s *Slot) float64 {
		return s.Pending(in.Now) + in.Engine.Prefill(float64(c.Uncached), in.PromptTokens)*s.Speed
	}), state{seed: seed}}
}

// Dynamo returns NVIDIA Dynamo's KV router: scale x prefill blocks after overlap +
// decode blocks, of what is active there and of the request. It counts in blocks,
// here in tokens, which is the same order.
//
// Source: ai-dynamo/dynamo docs/components/router/router-concepts.md; device
// overlap credit 1, temperature 0, prefill load scale 1 by default. In its own
// replay tool the scale 4 does better, so both are here.
func Dynamo(seed uint64, scale float64) Policy {
	name := PolicyDynamo
	if scale != 1 {
		name = PolicyDynamo4
	}
	return &simple{name, least(func(_ *Input, c *Candidate, s *Slot) float64 {
		return scale*(s.UncachedTokens+float64(c.Uncached)) + float64(c.UsedKV) + float64(c.NewKV)
	}), state{seed: seed}}
}

// Constants of smg least_load: the throughput it assumes where none was measured
// and the weight of its barrier of KV use.
const (
	leastLoadRate    = 2000.0 // tokens/s
	leastLoadBarrier = 0.15   // seconds
)

// LeastLoad returns smg's least_load: uncached tokens that wait over throughput,
// plus a barrier that rises as KV use nears 1. Between polls it adds what was sent;
// the router's own accounting does that here. No look at the prefix.
//
// Source: lightseekorg/smg model_gateway/src/policies least_load, defaults
// default_throughput 2000 tokens/s and barrier 0.15 x k/(1-k) seconds.
func LeastLoad(seed uint64) Policy {
	return &simple{PolicyLeastLoad, least(func(_ *Input, _ *Candidate, s *Slot) float64 {
		k := min(kvUse(s), 0.99)
		return s.UncachedTokens/leastLoadRate + leastLoadBarrier*k/(1-k)
	}), state{seed: seed}}
}

// kvUse is the scraped share of KV memory in use, 0 where unknown.
func kvUse(s *Slot) float64 {
	if s.State == nil {
		return 0
	}
	return s.State.KVUsage.Or(0)
}

// waiting is the scraped number of waiting requests, 0 where unknown.
func waiting(s *Slot) float64 {
	if s.State == nil {
		return 0
	}
	return s.State.Waiting.Or(0)
}
