// SPDX-License-Identifier: Apache-2.0

package sim

import (
	"math"

	"github.com/penstock-project/penstock/internal/engine"
	"github.com/penstock-project/penstock/internal/route"
	"github.com/penstock-project/penstock/internal/workload"
)

// WhatIf is the answer to "how much does a router save that knows prefixes",
// schema penstock/whatif/v1. Shares are of prompt tokens.
type WhatIf struct {
	Schema   string        `json:"schema"`
	Replicas int           `json:"replicas"`
	Ranks    int           `json:"ranks,omitempty"` // data-parallel ranks of each; 0: one
	Shared   float64       `json:"shared"`
	Ceiling  float64       `json:"ceiling"` // what one endless cache finds in the requests played
	Workload string        `json:"workload"`
	Requests int           `json:"requests"`
	Formula  WhatIfFormula `json:"formula"`
	Measured WhatIfRun     `json:"measured"`
	// TTFT holds the mean times to first token of the two runs in ms.
	TTFT WhatIfRun `json:"ttft_mean_ms"`
	// Deaf and DeafTTFT are the same where replicas of several ranks do not serve a
	// request at the rank that it names; nil without ranks. Measured and TTFT are with
	// ranks that do.
	Deaf     *WhatIfRun `json:"deaf,omitempty"`
	DeafTTFT *WhatIfRun `json:"deaf_ttft_mean_ms,omitempty"`
	// Isolation is the price of parting the caches of tenants; nil: it was not asked for.
	Isolation *Isolation `json:"isolation,omitempty"`
	// Notes say where the formula is off for these numbers.
	Notes []string `json:"notes"`
}

// WhatIfFormula is the rule of thumb: random s/R, aware 0.8 s, compute saved half
// of the aware hit ratio.
type WhatIfFormula struct {
	Random       float64 `json:"random"`
	Aware        float64 `json:"aware"`
	ComputeSaved float64 `json:"compute_saved"`
}

// WhatIfRun holds one figure for each of the two routers.
type WhatIfRun struct {
	Random float64 `json:"random"`
	Aware  float64 `json:"aware"`
}

// WhatIfSchema names the schema of WhatIf.
const WhatIfSchema = "penstock/whatif/v1"

// RuleOfThumb returns the formula for a share s of prompt tokens that earlier
// prompts begin with and R replicas.
func RuleOfThumb(s float64, replicas int) WhatIfFormula {
	aware := 0.8 * s
	return WhatIfFormula{Random: s / float64(max(1, replicas)), Aware: aware, ComputeSaved: 0.5 * aware}
}

// WhatIfAsk is the question. Requests 0 picks enough for the fleet; with Tenants or
// Users the price of isolation is measured too, see Isolation.
type WhatIfAsk struct {
	Replicas int
	Ranks    int     // data-parallel ranks of each; 0: one
	Shared   float64 // share of prompt tokens that can be reused
	Requests int
	Seed     uint64
	Tenants  int
	Users    int // of each tenant
}

// whatIfLoad is the load at which AskWhatIf measures, of what the fleet can do.
const whatIfLoad = 0.5

// AskWhatIf measures conversations of which the share q.Shared can be reused, on a
// fleet at half of its capacity, under random balancing and under the penstock
// policy.
func AskWhatIf(p engine.Profile, q WhatIfAsk) (WhatIf, error) {
	engines := q.Replicas * max(1, q.Ranks)
	if q.Requests <= 0 {
		q.Requests = min(max(3000, 250*engines), 40000)
	}
	t, p, _, err := conversations(p, engines, q.Shared, whatIfLoad, q.Requests, q.Seed)
	if err != nil {
		return WhatIf{}, err
	}
	c := Config{Profile: p, Replicas: q.Replicas, Ranks: q.Ranks, Seed: q.Seed}
	random := RunContender(c, Contender{Name: "random", Policy: route.PolicyRandom}, t)
	aware := RunContender(c, Contender{Name: Ours, Policy: route.PolicyPenstock}, t)
	w := WhatIf{
		Schema: WhatIfSchema, Replicas: q.Replicas, Shared: q.Shared, Workload: string(workload.KindChat), Requests: t.requests,
		Ceiling: t.Ceiling(), Formula: RuleOfThumb(q.Shared, engines),
		Measured: WhatIfRun{Random: random.HitRatio, Aware: aware.HitRatio},
		TTFT:     WhatIfRun{Random: random.TTFTMean, Aware: aware.TTFTMean},
	}
	if q.Ranks > 1 {
		w.Ranks, c.RankKind = q.Ranks, RanksDeaf
		random = RunContender(c, Contender{Name: "random", Policy: route.PolicyRandom}, t)
		aware = RunContender(c, Contender{Name: Ours, Policy: route.PolicyPenstock}, t)
		w.Deaf = &WhatIfRun{Random: random.HitRatio, Aware: aware.HitRatio}
		w.DeafTTFT = &WhatIfRun{Random: random.TTFTMean, Aware: aware.TTFTMean}
		c.RankKind = RanksPinned
	}
	if q.Tenants > 0 || q.Users > 0 {
		if w.Isolation, err = isolate(c, q.Shared, whatIfLoad, q.Requests, q.Tenants, q.Users); err != nil {
			return WhatIf{}, err
		}
	}
	w.Notes = w.notes()
	return w, nil
}

// conversations draws requests of chats of which the share shared can be reused, at
// the rate that loads a fleet of replicas without a cache to load. It returns them
// with the profile that plays them and the rate in requests a second.
func conversations(p engine.Profile, replicas int, shared, load float64, requests int, seed uint64) (*Traffic, engine.Profile, float64, error) {
	p.BlockTokens = blockTokens
	spec := workload.Spec{Kind: workload.KindChat, Seed: seed, MaxContext: p.MaxModelLen}
	t, err := sharing(&spec, shared)
	if err != nil {
		return nil, p, 0, err
	}
	spec.Rate = load * float64(replicas) / t.coldSeconds(&p)
	g, err := workload.NewGenerator(spec)
	if err != nil {
		return nil, p, 0, err
	}
	return NewTraffic(g, requests, blockTokens), p, spec.Rate, nil
}

// sharing sets the spec's share so that an endless cache, which also keeps answers,
// finds shared of the prompt tokens, and returns a sample of the traffic.
func sharing(spec *workload.Spec, shared float64) (*Traffic, error) {
	var t *Traffic
	lo, hi := 0.005, min(0.99, shared+0.02)
	for range 8 {
		spec.Share = (lo + hi) / 2
		g, err := workload.NewGenerator(*spec)
		if err != nil {
			return nil, err
		}
		t = NewTraffic(g, 1500, blockTokens)
		if t.Ceiling() < shared {
			lo = spec.Share
		} else {
			hi = spec.Share
		}
	}
	return t, nil
}

func (w *WhatIf) notes() []string {
	var n []string
	if w.Replicas == 1 {
		n = append(n, "with one replica there is nothing to route: every router finds what its cache holds, near s, and 0.8 s is too low")
	}
	if w.Replicas > 1 && w.Measured.Random > 1.1*w.Formula.Random {
		n = append(n, "random balancing finds more than s/R: every miss leaves a copy behind, so prefixes that many share end up on all replicas")
	}
	if w.Measured.Aware > 1.05*w.Formula.Aware {
		n = append(n, "a router that knows prefixes finds more than 0.8 s while the caches hold what is shared")
	}
	if w.Measured.Aware < 0.95*w.Formula.Aware {
		n = append(n, "less than 0.8 s is found: the caches are cold at the start, and blocks that are not whole cannot be shared")
	}
	if math.Abs(w.Measured.Aware-w.Measured.Random) < 0.02 {
		n = append(n, "the two routers hardly differ here")
	}
	return n
}
