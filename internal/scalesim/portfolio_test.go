// SPDX-License-Identifier: Apache-2.0

package scalesim

import (
	"math"
	"testing"

	"github.com/penstock-project/penstock/internal/scale"
)

// The portfolio of thirty variants, against published figures: the share of the
// replica-hours of thirty replicas that never stop, and of the requests that meet a
// start, by start-up time and by how long a variant is kept. In percent.
func TestPortfolioFigures(t *testing.T) {
	_, arrivals, span := DefaultPortfolio().Draw()
	sum := func(play func(a []float64) scale.Kept) (hours, cold float64) {
		n := 0.0
		for _, a := range arrivals {
			k := play(a)
			hours += 100 * k.Share / float64(len(arrivals))
			cold += 100 * k.Cold * float64(len(a))
			n += float64(len(a))
		}
		return hours, cold / n
	}
	for _, c := range []struct{ start, keep, hours, cold float64 }{
		{3, 300, 22, 6.8}, {3, 60, 11, 12}, {3, 3600, 69, 1.1},
		{20, 300, 22, 11}, {20, 60, 12, 20}, {20, 3600, 69, 1.8},
		{120, 300, 24, 29}, {120, 120, 17, 39}, {120, 3600, 69, 4.4},
		{540, 300, 31, 48}, {540, 540, 37, 36}, {540, 3600, 70, 6.9},
	} {
		h, cold := sum(func(a []float64) scale.Kept { return scale.KeepFor(a, c.start, c.keep, span) })
		if math.Abs(math.Round(h)-c.hours) > 2 || math.Abs(cold-c.cold) > 2 {
			t.Errorf("start %g, keep %g: %.1f %% of the hours, %.1f %% cold; published %g and %g", c.start, c.keep, h, cold, c.hours, c.cold)
		}
	}
	// A learned time depends on how it is learned; it comes close where starts are
	// short against a session.
	for _, c := range []struct{ start, price, hours, cold, within float64 }{
		{3, 60, 11, 13, 2}, {3, 600, 20, 6.6, 2}, {3, 3600, 64, 1.6, 2},
		{120, 60, 16, 39, 2.5}, {120, 600, 23, 25, 2}, {120, 3600, 66, 6.4, 2},
		{540, 60, 30, 43, 2}, {540, 600, 36, 31, 5}, {540, 3600, 71, 11, 3},
	} {
		h, cold := sum(func(a []float64) scale.Kept { return scale.LearnedKeep(a, c.start, c.price, span) })
		if math.Abs(h-c.hours) > c.within || math.Abs(cold-c.cold) > c.within {
			t.Errorf("learned, start %g, price %g: %.1f %% of the hours, %.1f %% cold; published %g and %g", c.start, c.price, h, cold, c.hours, c.cold)
		}
	}
}
