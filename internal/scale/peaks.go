// SPDX-License-Identifier: Apache-2.0

package scale

import "math"

// peaks remembers how high the excursions above the mean were, so that the next
// one is expected to differ from them as they differ from each other.
type peaks struct {
	ring   [16]float64
	n      int
	inside bool
	top    float64
	below  int // seconds since it fell under the end
}

// An excursion begins above peakBegin and ends peakCalm seconds after it fell under
// peakEnd, in remembered means.
const (
	peakBegin = 1.5
	peakEnd   = 1.2
	peakCalm  = 120
)

func (p *peaks) push(l *levels, rate float64) {
	v := l.now[minuteWindow]
	switch {
	case !p.inside && v > peakBegin*rate && l.n > 600:
		p.inside, p.top, p.below = true, v, 0
	case p.inside && v > peakEnd*rate:
		p.top, p.below = math.Max(p.top, v), 0
	case p.inside:
		if p.below++; p.below >= peakCalm {
			p.inside = false
			p.ring[p.n%len(p.ring)] = p.top
			p.n++
		}
	}
}

// stress is the factor by which the next excursion may exceed those seen: their
// spread in logarithms, with a prior that is worth two of them, wider while they
// are few. 1 where none was seen.
func (p *peaks) stress(t *Tuning) float64 {
	k := min(p.n, len(p.ring))
	if k == 0 || t.StressShare == 0 {
		return 1
	}
	var sum, sq float64
	for _, v := range p.ring[:k] {
		x := math.Log(math.Max(v, 1e-9))
		sum += x
		sq += x * x
	}
	mean := sum / float64(k)
	v := (math.Max(0, sq-mean*sum) + 2*t.PeakSpread*t.PeakSpread) / float64(k+1)
	return math.Exp(math.Sqrt(v * (1 + 1/float64(k))))
}
