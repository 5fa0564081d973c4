// SPDX-License-Identifier: Apache-2.0

package scale

import "math"

// trendStep is the distance of the points that a trend is fitted to, in seconds,
// and trendSpans how many of them a fit spans: 10 minutes and 30 minutes.
const trendStep = 20

var trendSpans = [...]int{30, 90}

// trend is a least-squares line through the minute's level, signed: it falls as
// readily as it rises.
type trend struct {
	n    int
	ring [90]float64
}

func (l *trend) push(v float64) {
	l.ring[l.n%len(l.ring)] = v
	l.n++
}

// fit returns the value of the line at its last point and its slope per second,
// the slope shrunk by what could be noise: with t = slope / its error the factor is
// max(0, 1 - 4/t^2). Neighbouring points share two thirds of their minute, which
// triples the error's variance.
func (l *trend) fit(span int) (now, slope float64) {
	m := min(l.n, span)
	if m == 0 {
		return 0, 0
	}
	var sy, sxy, syy float64
	for k := range m { // x = -(m-1) .. 0
		y := l.ring[(l.n-m+k)%len(l.ring)]
		sy += y
		sxy += float64(k-m+1) * y
		syy += y * y
	}
	mean := sy / float64(m)
	if m < 6 {
		return mean, 0
	}
	xm := -float64(m-1) / 2
	sxx := float64(m) * (float64(m)*float64(m) - 1) / 12
	b := (sxy - xm*sy) / sxx
	sse := math.Max(0, syy-mean*sy-b*b*sxx)
	se2 := 3 * sse / float64(m-2) / sxx
	if b*b > 0 {
		b *= math.Max(0, 1-4*se2/(b*b))
	}
	return math.Max(0, mean-b*xm), b / trendStep
}
