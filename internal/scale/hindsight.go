// SPDX-License-Identifier: Apache-2.0

package scale

import "math"

// Outcome is what one fixed rule would have made of a stretch of traffic, by its
// fluid queue.
type Outcome struct {
	Fixed    int     // for Policy.Fixed
	Replicas float64 // mean, starting ones included
	Missed   float64 // share of the work
	Plain    bool    // it looks at levels only: no season, no forecast
}

// Hindsight plays every rule of the grid over offered work (units, one entry a
// second) and judges it from second from on. The answer is in the order of the
// grid.
func Hindsight(p Policy, offered []float64, from int) []Outcome {
	s := New(p)
	work := 0.0
	out := make([]Outcome, len(s.shadows))
	for i, u := range offered {
		s.levels.push(u)
		s.play(u)
		if i >= from {
			work += u
		}
		for k := range s.shadows {
			x := &s.shadows[k]
			if i >= from {
				out[k].Replicas += x.blockCost
				out[k].Missed += x.blockMiss
			}
			x.blockCost, x.blockMiss = 0, 0
		}
	}
	for k := range out {
		o := &out[k]
		o.Fixed = k + 1
		o.Replicas /= math.Max(1, float64(len(offered)-from))
		o.Missed /= math.Max(1e-9, work)
		b := &s.bases[s.shadows[k].basis]
		o.Plain = b.window >= 0 && b.period == 0
	}
	return out
}
