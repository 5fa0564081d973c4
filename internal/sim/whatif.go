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
	Shared   float64       `json:"shared"`
	Ceiling  float64       `json:"ceiling"` // what one endless cache finds in the requests played
	Workload string        `json:"workload"`
	Requests int           `json:"requests"`
	Formula  WhatIfFormula `json:"formula"`
	Measured WhatIfRun     `json:"measured"`
	// TTFT holds the mean times to first token of the two runs in ms.
	TTFT WhatIfRun `json:"ttft_mean_ms"`
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

// AskWhatIf measures conversations of which the share shared can be reused, on a
// fleet of replicas at half of its capacity, under random balancing and under the
// penstock policy. requests 0 picks enough for the fleet.
func AskWhatIf(p engine.Profile, replicas int, shared float64, requests int, seed uint64) (WhatIf, error) {
	if requests <= 0 {
		requests = min(max(3000, 250*replicas), 40000)
	}
	p.BlockTokens = blockTokens
	spec := workload.Spec{Kind: workload.KindChat, Seed: seed, MaxContext: p.MaxModelLen}
	t, err := sharing(&spec, shared)
	if err != nil {
		return WhatIf{}, err
	}
	output, _ := t.means()
	mean := int(t.tokens / int64(max(1, t.requests)))
	// What a request costs a replica that has none of its prompt: its prefill and
	// its share of decode steps with 16 streams.
	cost := p.PrefillSeconds(mean, mean) + output*p.DecodeStepSeconds(16, 16*float64(mean))/16
	spec.Rate = 0.5 * float64(replicas) / cost
	g, err := workload.NewGenerator(spec)
	if err != nil {
		return WhatIf{}, err
	}
	t = NewTraffic(g, requests, blockTokens)
	c := Config{Profile: p, Replicas: replicas, Seed: seed}
	random := RunContender(c, Contender{Name: "random", Policy: route.PolicyRandom}, t)
	aware := RunContender(c, Contender{Name: Ours, Policy: route.PolicyPenstock}, t)
	w := WhatIf{
		Schema: WhatIfSchema, Replicas: replicas, Shared: shared, Workload: string(spec.Kind), Requests: t.requests,
		Ceiling: t.Ceiling(), Formula: RuleOfThumb(shared, replicas),
		Measured: WhatIfRun{Random: random.HitRatio, Aware: aware.HitRatio},
		TTFT:     WhatIfRun{Random: random.TTFTMean, Aware: aware.TTFTMean},
	}
	w.Notes = w.notes()
	return w, nil
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
