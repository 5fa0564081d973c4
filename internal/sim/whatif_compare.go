// SPDX-License-Identifier: Apache-2.0

package sim

import (
	"fmt"

	"github.com/penstock-project/penstock/internal/engine"
	"github.com/penstock-project/penstock/internal/route"
)

// WhatIfCompareSchema names the schema of WhatIfCompare.
const WhatIfCompareSchema = "penstock/whatif-compare/v1"

// WhatIfCompare is the answer to "how would these policies do side by side on such
// traffic": the rule of thumb beside full results.
type WhatIfCompare struct {
	Schema   string        `json:"schema"`
	Replicas int           `json:"replicas"`
	Shared   float64       `json:"shared"`
	Load     float64       `json:"load"`    // offered work over what the fleet carries without a cache
	Ceiling  float64       `json:"ceiling"` // what one endless cache finds in the requests played
	Requests int           `json:"requests"`
	Rate     float64       `json:"requests_per_s"`
	Formula  WhatIfFormula `json:"formula"`
	Results  []Result      `json:"results"`
	// Isolation is the price of parting the caches of tenants; nil: it was not asked for.
	Isolation *Isolation `json:"isolation,omitempty"`
}

// WhatIfQuestion is what is asked; replicas 1 to 64, shared 0.01 to 0.99, load 0.05
// to 2, requests 100 to 20,000. With tenants or users, each 0 to 10,000, the price of
// isolation is measured too, see Isolation.
type WhatIfQuestion struct {
	Replicas int      `json:"replicas"`
	Shared   float64  `json:"shared"`
	Load     float64  `json:"load"`
	Requests int      `json:"requests"`
	Seed     uint64   `json:"seed"`
	Policies []string `json:"policies"`
	Tenants  int      `json:"tenants"`
	Users    int      `json:"users"` // of each tenant
}

// check returns what is wrong with the question.
func (q *WhatIfQuestion) check() error {
	switch {
	case q.Replicas < 1 || q.Replicas > 64:
		return fmt.Errorf("replicas must be 1 to 64")
	case !(q.Shared >= 0.01 && q.Shared <= 0.99):
		return fmt.Errorf("shared must be 0.01 to 0.99")
	case !(q.Load >= 0.05 && q.Load <= 2):
		return fmt.Errorf("load must be 0.05 to 2")
	case q.Requests < 100 || q.Requests > 20_000:
		return fmt.Errorf("requests must be 100 to 20000")
	case len(q.Policies) == 0 || len(q.Policies) > 6:
		return fmt.Errorf("name 1 to 6 policies")
	case q.Tenants < 0 || q.Tenants > MostIsolated || q.Users < 0 || q.Users > MostIsolated:
		return fmt.Errorf("tenants and users must be 0 to %d", MostIsolated)
	}
	for _, name := range q.Policies {
		if _, err := route.New(name, 0); err != nil {
			return err
		}
	}
	return nil
}

// AnswerWhatIf plays conversations of which the share q.Shared can be reused under
// each of the policies, the same requests for all.
func AnswerWhatIf(p engine.Profile, q WhatIfQuestion) (WhatIfCompare, error) {
	if err := q.check(); err != nil {
		return WhatIfCompare{}, err
	}
	t, p, rate, err := conversations(p, q.Replicas, q.Shared, q.Load, q.Requests, q.Seed)
	if err != nil {
		return WhatIfCompare{}, err
	}
	out := WhatIfCompare{
		Schema: WhatIfCompareSchema, Replicas: q.Replicas, Shared: q.Shared, Load: q.Load, Requests: t.requests, Rate: rate,
		Ceiling: t.Ceiling(), Formula: RuleOfThumb(q.Shared, q.Replicas),
	}
	c := Config{Profile: p, Replicas: q.Replicas, Seed: q.Seed}
	for _, name := range q.Policies {
		r := RunContender(c, Contender{Name: name, Policy: name}, t)
		r.Policy, r.Tenants = name, nil
		out.Results = append(out.Results, r)
	}
	if q.Tenants > 0 || q.Users > 0 {
		out.Isolation, err = isolate(c, q.Shared, q.Load, q.Requests, q.Tenants, q.Users)
	}
	return out, err
}

// Repick asks another policy about one recorded decision, in the state that the
// record holds. It returns the endpoint that the policy picks most often over the
// draws, the share of the draws that pick it, and how much dearer than the recorded
// pick it was predicted to be, in ms.
func Repick(rec *route.Record, policy string) (endpoint string, share, extraMS float64, err error) {
	r, err := NewReplay(policy)
	if err != nil {
		return "", 0, 0, err
	}
	r.Add(rec)
	if r.Records == 0 {
		for why := range r.Skipped {
			return "", 0, 0, fmt.Errorf("the record cannot be asked again: %s", why)
		}
	}
	in, costs := question(rec)
	picks := make([]int, len(costs))
	chosen := 0
	for i := range rec.Candidates {
		if rec.Candidates[i].Endpoint == rec.Chosen {
			chosen = i
		}
	}
	var d route.Decision
	for _, p := range r.policies {
		p.Pick(in, &d)
		i := int(d.Chosen)
		if policy == route.PolicyPenstock {
			i = cheapestOf(costs, chosen)
		}
		if i >= 0 && i < len(picks) {
			picks[i]++
		}
	}
	best := 0
	for i, n := range picks {
		if n > picks[best] {
			best = i
		}
	}
	if picks[best] == 0 {
		return "", 0, 0, nil
	}
	return rec.Candidates[best].Endpoint, float64(picks[best]) / replayDraws, costs[best] - costs[chosen], nil
}
