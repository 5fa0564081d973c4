// SPDX-License-Identifier: Apache-2.0

package scale

import "math"

// Windows and holds of the levels, in seconds. A level is the mean of the offered
// work over a window; a held level is the largest level of the last hold.
var (
	levelWindows = [...]int{10, 60, 300}
	holdSpans    = [...]int{300, 900, 2700, 7200}
)

const (
	shortWindow  = 0 // index of the 10 s window
	minuteWindow = 1
	longWindow   = 2
	// seasonDepth is how many seconds of the levels are kept for the seasonal
	// look-up: a day and half an hour.
	seasonDepth = 86400 + 1800
)

// extreme is a sliding maximum (or, with negated values, minimum) over a span that
// may change from call to call. Amortised O(1).
type extreme struct {
	at   []int32
	v    []float64
	head int
}

// push adds v at second t and returns the largest value of (t-span, t].
func (m *extreme) push(t int, v float64, span int) float64 {
	for len(m.v) > m.head && m.v[len(m.v)-1] <= v {
		m.v, m.at = m.v[:len(m.v)-1], m.at[:len(m.at)-1]
	}
	m.v, m.at = append(m.v, v), append(m.at, int32(t))
	for int(m.at[m.head]) <= t-span {
		m.head++
	}
	if m.head > 1024 {
		n := copy(m.v, m.v[m.head:])
		copy(m.at, m.at[m.head:])
		m.v, m.at, m.head = m.v[:n], m.at[:n], 0
	}
	return m.v[m.head]
}

// levels folds the offered work, second by second, into levels, held levels, their
// past for the seasonal look-up, and a trend.
type levels struct {
	n    int          // seconds folded
	ring [300]float64 // work of the last 300 s, for the window sums
	sum  [len(levelWindows)]float64
	now  [len(levelWindows)]float64
	max  [len(levelWindows)][len(holdSpans)]extreme
	held [len(levelWindows)][len(holdSpans)]float64
	past [len(levelWindows)][]float32 // level of every second, a ring once full
	line trend
}

// push folds one second of offered work, in units of replica time.
func (l *levels) push(u float64) {
	i := l.n
	l.n++
	for w, win := range levelWindows {
		l.sum[w] += u
		if i >= win {
			l.sum[w] -= l.ring[(i-win)%len(l.ring)]
		}
	}
	l.ring[i%len(l.ring)] = u
	for w, win := range levelWindows {
		if l.n%4096 == 0 { // rounding does not pile up
			l.resum(w)
		}
		l.now[w] = math.Max(0, l.sum[w]) / float64(min(l.n, win))
		for h, span := range holdSpans {
			l.held[w][h] = l.max[w][h].push(i, l.now[w], span)
		}
		l.remember(w, float32(l.now[w]))
	}
	if l.n%trendStep == 0 {
		l.line.push(l.now[minuteWindow])
	}
}

func (l *levels) resum(w int) {
	l.sum[w] = 0
	for k := range min(l.n, levelWindows[w]) {
		l.sum[w] += l.ring[(l.n-1-k)%len(l.ring)]
	}
}

func (l *levels) remember(w int, v float32) {
	if len(l.past[w]) < seasonDepth {
		l.past[w] = append(l.past[w], v)
		return
	}
	l.past[w][(l.n-1)%seasonDepth] = v
}

// at is the level of window w at second i, and 0 where it is not remembered.
func (l *levels) at(w, i int) float64 {
	if i < 0 || i >= l.n || i < l.n-len(l.past[w]) {
		return 0
	}
	return float64(l.past[w][i%seasonDepth])
}
