// SPDX-License-Identifier: Apache-2.0

package scalesim

import (
	"math"
	"math/rand/v2"
)

// Attainments at which a capacity table is measured: the unit of work by what one
// of sixteen replicas carries at kneeShare, the table at tableShare, which leaves
// the rest of a percent to what changes.
const (
	kneeShare  = 0.995
	tableShare = 0.985
	kneeSize   = 16
)

// calibrationRequests is how many requests one point of a table is measured with,
// at least, and calibrationEach how many for each replica.
const (
	calibrationRequests = 6000
	calibrationEach     = 500
)

// calibrate measures what fleets carry of requests with the lengths of a trace, up
// to most replicas; larger fleets carry in proportion. 0: up to 48.
func (sc *Scenario) calibrate(recs []record, most int) {
	if most == 0 {
		most = 48
	}
	sc.Cap = tpotCap(&sc.Model, sc.Shape, sc.SLO)
	m := &meter{sc: *sc, recs: recs}
	rate, inside := m.find(kneeSize, kneeShare)
	k := knee{model: sc.Model.Name, shape: sc.Shape.Name, rate: rate / kneeSize, inside: inside}
	last := 0.0
	for _, n := range kneeSizes() {
		if n > most {
			k.share = append(k.share, last)
			continue
		}
		v, _ := m.find(n, tableShare)
		last = math.Max(0.02, v/float64(n)/math.Max(1e-9, k.rate))
		k.share = append(k.share, last)
	}
	sc.knee, sc.KneeConc, sc.Capacity = k, k.inside, k.capacity()
}

// meter measures static fleets under Poisson arrivals.
type meter struct {
	sc   Scenario
	recs []record
	per  float64 // requests per second and replica that were found last; 0: none yet
}

// find is the rate in requests per second that n replicas carry with the given
// share inside the objectives, and the requests inside one replica there.
func (m *meter) find(n int, share float64) (rate, inside float64) {
	shape := m.sc.Shape
	hi := 1.1 * float64(n) / math.Max(1e-9, m.meanSeconds())
	lo := 0.0
	ok := func(x float64) bool {
		a, c := m.attained(n, x, shape)
		if a >= share {
			inside = c
			return true
		}
		return false
	}
	if m.per > 0 { // close to the last size: begin around it
		a := 0.8 * m.per * float64(n)
		if ok(a) {
			lo, hi = a, math.Min(hi, 1.5*a)
		} else {
			hi = a
		}
	}
	for hi-lo > 0.015*hi && hi > 1e-6 {
		if mid := (lo + hi) / 2; ok(mid) {
			lo = mid
		} else {
			hi = mid
		}
	}
	m.per = lo / float64(n)
	return lo, inside
}

// meanSeconds is the mean work of a request in seconds of one replica.
func (m *meter) meanSeconds() float64 {
	sum := 0.0
	for _, r := range m.recs {
		sum += m.sc.raw(float64(max(1, r.ctx-r.hit)), float64(r.ctx))
	}
	return sum / math.Max(1, float64(len(m.recs)))
}

func (m *meter) attained(n int, rate float64, shape Shape) (share, inside float64) {
	const warm = 60.0
	sc := m.sc
	sc.Shape = shape
	sc.ScoreFrom = warm
	sc.Duration = math.Ceil(warm + math.Min(math.Max(calibrationRequests, calibrationEach*float64(n))/rate, 20000))
	r := rand.New(rand.NewPCG(sc.Seed, uint64(n)))
	st := &stream{}
	for t := r.ExpFloat64() / rate; t < sc.Duration; t += r.ExpFloat64() / rate {
		x := m.recs[r.IntN(len(m.recs))]
		st.at = append(st.at, t)
		st.in = append(st.in, max(1, x.ctx-x.hit))
		st.ctx = append(st.ctx, x.ctx)
		st.out = append(st.out, max(1, x.out))
	}
	sc.st = st
	sc.Capacity = []float64{0, 1}
	sc.knee = knee{rate: 1}
	sc.index(func(int32, int32) float64 { return 1 })
	res := Run(&sc, Static(n))
	return res.Attainment, res.meanConc / float64(n)
}
