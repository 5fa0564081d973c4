// SPDX-License-Identifier: Apache-2.0

package scale

import "math"

// choosePeriod is how often another shadow may take over, in seconds.
const choosePeriod = 60

// leastRate bounds shares of a pool that is nearly idle, in units.
const leastRate = 0.5

// outlook is what the choice knows of the whole pool.
type outlook struct {
	rate       float64 // remembered mean of the offered work
	prior      float64 // work that the prior is worth
	priorMiss  float64
	priorRange float64
	budget     float64
	stress     float64 // how much higher the next excursion may be
}

func (s *Scaler) outlook() outlook {
	t := &s.tuning
	k := s.start.p50 / 120
	o := outlook{rate: s.rate()}
	w := math.Pow(t.PriorSeconds/(t.PriorSeconds+s.hist), t.PriorPower)
	o.prior = s.work * w / math.Max(1e-6, 1-w)
	o.priorMiss = t.PriorMiss * math.Pow(k, t.PriorMissPower)
	o.priorRange = t.PriorMargin * math.Pow(k, t.PriorMarginPower)
	o.budget = t.Budget * (1 - s.policy.attainment()) / 0.01
	o.stress = s.peaks.stress(t)
	return o
}

// missed is the share of the work that a shadow is expected to miss: what is
// remembered, with the prior for what has not been seen.
func (s *Scaler) missed(i int, o *outlook) float64 {
	t := &s.tuning
	x := &s.shadows[i]
	head := math.Max(x.margin, x.floor/math.Max(leastRate, o.rate)-1)
	if w := s.bases[x.basis].window; w >= 0 {
		head += t.WindowBias[w]
	} else {
		head += t.ForecastBias
	}
	miss := x.miss
	if o.stress > 1 && x.floor > 0 {
		miss = (1-t.StressShare)*miss + t.StressShare*s.stressed(i, o.stress)
	}
	return (miss + o.prior*o.priorMiss*math.Exp(-head/o.priorRange)) / math.Max(1e-9, s.work+o.prior)
}

// stressed is the missed work of shadow i had the excursions been higher by a
// factor: what its neighbour with a floor that is lower by it remembers.
func (s *Scaler) stressed(i int, factor float64) float64 {
	x := &s.shadows[i]
	f := x.floor / factor
	j := i
	for j > 0 && s.shadows[j-1].basis == x.basis && s.shadows[j].floor > f && s.shadows[j].lower >= 0 {
		j = s.shadows[j].lower
	}
	y := &s.shadows[j]
	if y.floor >= f || j == i {
		return y.miss
	}
	z := &s.shadows[y.higher] // interpolate between the floors around f
	k := (f - y.floor) / math.Max(1e-9, z.floor-y.floor)
	return y.miss + k*(z.miss-y.miss)
}

// score is the price of a shadow: its replicas over the work, and what it misses
// above the budget.
func (s *Scaler) score(i int, o *outlook) float64 {
	x := &s.shadows[i]
	cost := x.cost / math.Max(1, s.hist) / math.Max(leastRate, o.rate)
	return cost + s.tuning.MissPrice*math.Max(0, s.missed(i, o)-o.budget)
}

// warming reports whether too little of the traffic has been seen to trust what
// is remembered.
func (s *Scaler) warming() bool {
	t := &s.tuning
	return float64(s.levels.n) < math.Max(t.WarmSeconds, math.Min(6*s.start.p50, 2*t.WarmSeconds))
}

// eligible reports whether shadow i may rule at present.
func (s *Scaler) eligible(i int, warming bool) bool {
	x := &s.shadows[i]
	if warming && !x.warm {
		return false
	}
	p := s.bases[x.basis].period
	return p == 0 || s.levels.n >= p+int(s.lead)+600
}

// choose lets the cheapest shadow take over where it is cheaper by enough.
func (s *Scaler) choose() {
	if s.policy.Fixed > 0 {
		s.chosen = s.policy.Fixed - 1
		return
	}
	if s.chosen >= 0 && s.levels.n < s.nextChoice {
		return
	}
	s.nextChoice = s.levels.n + choosePeriod
	o := s.outlook()
	warming := s.warming()
	best, least := -1, math.Inf(1)
	for i := range s.shadows {
		if !s.eligible(i, warming) {
			continue
		}
		if j := s.score(i, &o); j < least {
			best, least = i, j
		}
	}
	if best >= 0 && (s.chosen < 0 || warming || !s.eligible(s.chosen, false) || s.score(s.chosen, &o) > least*(1+s.tuning.SwitchGain)) {
		s.chosen = best
	}
}
