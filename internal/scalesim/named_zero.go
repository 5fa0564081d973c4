// SPDX-License-Identifier: Apache-2.0

package scalesim

import (
	"fmt"
	"slices"

	"github.com/penstock-project/penstock/internal/scale"
)

// missPrice is what a request that meets a start is worth in X7, in seconds of a
// replica.
const missPrice = 60.0

// zeroGoals compares ways to keep thirty variants: one cooldown for all, as KEDA has
// it, the least recently used out of a fixed fleet, as ModelMesh has it, and the
// cheapest time for each. Parts are not played: this is about pauses of days, not
// about seconds of queues.
func zeroGoals([]Played) []Goal {
	_, arrivals, span := DefaultPortfolio().Draw()
	var out []Goal
	for _, start := range []float64{3, 20, 120, 540} {
		var keda, ours sums
		for _, a := range arrivals {
			keda.add(scale.KeepFor(a, start, 300, span), len(a))
			ours.add(scale.BestKeep(a, start, missPrice, span), len(a))
		}
		n := len(arrivals)
		slots := max(1, int(ours.hours*3600/span+0.5))
		lru := leastRecent(arrivals, slots, start)
		goal, met := "cheaper than one cooldown of 300 s", ours.price() <= keda.price()
		if start > 300 { // shorter than a start: cheap, and for nobody
			goal, met = "fewer cold than with one cooldown of 300 s", ours.cold < 0.7*keda.cold
		}
		out = append(out,
			check(met, n, fmt.Sprintf("start %.0f s: %s", start, goal), "%s against %s", ours.say(span, n), keda.say(span, n)),
			check(ours.cold/ours.requests <= lru, n, fmt.Sprintf("start %.0f s: fewer cold than LRU in %d replicas", start, slots), "%.1f %% against %.1f %%", 100*ours.cold/ours.requests, 100*lru))
	}
	return out
}

type sums struct{ hours, cold, requests float64 }

func (s *sums) add(k scale.Kept, requests int) {
	s.hours += k.GPUHours
	s.cold += k.Cold * float64(requests)
	s.requests += float64(requests)
}

func (s *sums) price() float64 { return s.hours*3600 + missPrice*s.cold }

func (s *sums) say(span float64, n int) string {
	return fmt.Sprintf("%.0f %% of hours, %.1f %% cold", 100*s.hours*3600/span/float64(n), 100*s.cold/s.requests)
}

// leastRecent is the share of requests that meet a start where so many variants fit
// at a time and the one that was used longest ago makes room.
func leastRecent(arrivals [][]float64, slots int, start float64) float64 {
	type request struct {
		at      float64
		variant int
	}
	var all []request
	for v, a := range arrivals {
		for _, t := range a {
			all = append(all, request{t, v})
		}
	}
	slices.SortFunc(all, func(a, b request) int {
		switch {
		case a.at < b.at:
			return -1
		case a.at > b.at:
			return 1
		}
		return a.variant - b.variant
	})
	var order []int // least recently used first
	ready := make([]float64, len(arrivals))
	cold := 0
	for _, r := range all {
		if i := slices.Index(order, r.variant); i >= 0 {
			order = append(slices.Delete(order, i, i+1), r.variant)
		} else {
			if len(order) == slots {
				order = slices.Delete(order, 0, 1)
			}
			order = append(order, r.variant)
			ready[r.variant] = r.at + start
		}
		if r.at < ready[r.variant] {
			cold++
		}
	}
	return float64(cold) / max(1, float64(len(all)))
}
