// SPDX-License-Identifier: Apache-2.0

package console

import (
	"math"

	"github.com/penstock-project/penstock/internal/dispatch"
)

// ShadowState compares the policy that decides without effect with the one that acts.
type ShadowState struct {
	Policy string   `json:"policy"`
	Picks  uint64   `json:"picks"`
	Agrees *float64 `json:"share_that_agrees"` // null: no pick yet
	// ExtraMS is the predicted cost of the shadow's picks beyond that of those made, a
	// request, with the half width of its 95 % interval: below 0 it would gain.
	ExtraMS  *float64 `json:"extra_cost_ms"`
	Interval *float64 `json:"extra_cost_95_ms"`
}

func shadowState(s *dispatch.ShadowStats) *ShadowState {
	if s.Policy == "" {
		return nil
	}
	out := &ShadowState{Policy: s.Policy, Picks: s.Picks}
	if s.Picks > 0 {
		v := round3(float64(s.Agreed) / float64(s.Picks))
		out.Agrees = &v
	}
	if n := float64(s.Priced); n > 1 {
		mean := s.ExtraMS / n
		half := round3(1.96 * math.Sqrt(max(0, s.SquareMS/n-mean*mean)/(n-1)))
		mean = round3(mean)
		out.ExtraMS, out.Interval = &mean, &half
	}
	return out
}
