// SPDX-License-Identifier: Apache-2.0

package sim

import (
	"fmt"

	"github.com/penstock-project/penstock/internal/dispatch"
	"github.com/penstock-project/penstock/internal/route"
)

// Ours is the name under which our own picker with its queue stands in results.
const Ours = route.PolicyPenstock

// OursDirect is our own picker without the router's queue.
const OursDirect = route.PolicyPenstock + "-direct"

// Contender is a policy as it takes part in a comparison.
type Contender struct {
	Name   string
	Policy string // name for route.New
	Queue  bool
	// Peer marks the eleven published pickers against whose best a cell's regret is
	// measured; the other baselines are shown beside.
	Peer bool
	// Without leaves parts of ours out.
	Without dispatch.Without
}

// Contenders returns all that take part: ours first, the eleven peers, the other
// baselines.
func Contenders() []Contender {
	out := []Contender{
		{Name: Ours, Policy: route.PolicyPenstock, Queue: true},
		{Name: OursDirect, Policy: route.PolicyPenstock},
	}
	for _, p := range []string{
		route.PolicyLMetric, route.PolicyLMetricNew, route.PolicyMinTTFT, route.PolicyDynamo4, route.PolicyDynamo,
		route.PolicySticky, route.PolicySGLang, route.PolicyLLMD, route.PolicyGAIE,
		route.PolicyLeastRequests, route.PolicyRandom,
	} {
		out = append(out, Contender{Name: p, Policy: p, Peer: true})
	}
	for _, p := range []string{
		route.PolicyCHWBL, route.PolicyLeastLoad, route.PolicyPowerOfTwo, route.PolicyRoundRobin, route.PolicyPrefixHash,
	} {
		out = append(out, Contender{Name: p, Policy: p})
	}
	return out
}

// Select returns the contenders of the given names, in the order of Contenders; a
// policy that is no contender takes part as another baseline.
func Select(names []string) ([]Contender, error) {
	want := map[string]bool{}
	for _, n := range names {
		want[n] = true
	}
	var out []Contender
	for _, c := range Contenders() {
		if want[c.Name] {
			out = append(out, c)
			delete(want, c.Name)
		}
	}
	for _, n := range names {
		if !want[n] {
			continue
		}
		delete(want, n)
		if _, err := route.New(n, 0); err != nil {
			return nil, fmt.Errorf("policy %q is unknown: %w", n, err)
		}
		out = append(out, Contender{Name: n, Policy: n})
	}
	return out, nil
}

// apply sets up a run for the contender.
func (p Contender) apply(c *Config) {
	c.Queue, c.Without = p.Queue, p.Without
	c.Policy = func(seed uint64) route.Policy {
		x, err := route.New(p.Policy, seed)
		if err != nil {
			return nil // Select has checked the name
		}
		return x
	}
}
