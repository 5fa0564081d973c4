// SPDX-License-Identifier: Apache-2.0

package scale

import (
	"math"
	"testing"
)

// burstsOf is a base with excursions of height h bases and length d once in gap
// seconds.
func burstsOf(base, h, d, gap float64, n int) []float64 {
	var out []float64
	for range n {
		for range int(gap) {
			out = append(out, base)
		}
		for range int(d) {
			out = append(out, base*(1+h))
		}
	}
	return append(out, make([]float64, 300)...)
}

func linear(per float64) []float64 {
	c := make([]float64, 200)
	for n := range c {
		c[n] = per * float64(n)
	}
	return c
}

// The excursions of made traffic, and the two numbers that the fluid bound gives for
// them (published for these very figures).
func TestExcursions(t *testing.T) {
	for _, c := range []struct{ h, d, gap, start, missed, reserve float64 }{
		{2, 60, 900, 10, 0.037, 1.46}, {2, 60, 900, 30, 0.074, 1.73}, {2, 60, 900, 120, 0.111, 1.82},
		{3, 600, 4800, 120, 0.054, 2.45}, {2, 900, 900, 120, 0.072, 1.72},
	} {
		e := FindExcursions(burstsOf(4, c.h, c.d, c.gap, 12), c.start, 0.99)
		if e.Count != 12 || math.Abs(e.Height-c.h) > 0.1 || math.Abs(e.Length-c.d) > 35 || math.Abs(e.Gap-c.gap) > 35+c.gap/20 {
			t.Errorf("%+v found as %+v", c, e)
		}
		if math.Abs(e.Missed-c.missed) > 0.035 || math.Abs(e.Reserve-c.reserve) > 0.2 {
			t.Errorf("%+v: missed %.3f and reserve %.2f", c, e.Missed, e.Reserve)
		}
	}
	if e := FindExcursions(burstsOf(4, 0, 60, 900, 12), 120, 0.99); e.Count != 0 || e.Missed != 0 || e.Reserve != 0 {
		t.Errorf("steady work has %+v", e)
	}
	if e := FindExcursions(nil, 120, 0.99); e.Count != 0 {
		t.Errorf("no work has %+v", e)
	}
}

// A reserve is needed where nobody can foresee, none where nothing happens; more for
// more attainment, and no more for a faster start.
func TestStandingReserve(t *testing.T) {
	steady := StandingReserve(burstsOf(4, 0, 60, 900, 8), linear(1), 120, 0.99, 0)
	if steady.Standing != 0 || steady.Missed > 0.001 || !steady.Reached {
		t.Errorf("steady work: %+v", steady)
	}
	work := burstsOf(4, 2, 60, 900, 8)
	last := 0
	for _, a := range []float64{0.90, 0.95, 0.98, 0.99, 0.995} {
		r := StandingReserve(work, linear(1), 120, a, 0)
		if r.Standing < last || !r.Reached {
			t.Errorf("attainment %g: %+v after %d", a, r, last)
		}
		last = r.Standing
	}
	slow, fast := StandingReserve(work, linear(1), 120, 0.99, 0), StandingReserve(work, linear(1), 5, 0.99, 0)
	if fast.Missed > slow.Missed || fast.Standing > slow.Standing {
		t.Errorf("start of 5 s: %+v, of 120 s: %+v", fast, slow)
	}
	if math.Abs(slow.Missed-0.105) > 0.02 || slow.Standing < 6 || slow.Standing > 8 {
		t.Errorf("bursts of two bases: %+v, want about 10 %% missed and 7 replicas", slow)
	}
}
