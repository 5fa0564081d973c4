// SPDX-License-Identifier: Apache-2.0

package kedascaler

import (
	"math"
	"time"
)

// ladder moves the published target of a pool towards what one replica carries.
//
// An HPA reads the value and the target at different times, so for a moment it may
// divide a new value by an old target. With v = n * min(old, new) it finds n by either,
// as long as max/min < n/(n-1): so a target moves by less than that in one step, and
// the next step waits until everybody has seen this one.
type ladder struct {
	target, before float64
	moved          time.Time
}

// settle is how long a new target takes through KEDA into the HPA, with room.
const settle = 10 * time.Second

// step moves the target towards per, where that is known and it is time.
func (l *ladder) step(now time.Time, n int, per float64) {
	if per <= 0 || math.IsInf(per, 0) || math.IsNaN(per) {
		if l.target == 0 {
			l.target, l.before = 1, 1 // any unit does while nothing was measured
		}
		return
	}
	if l.target == 0 {
		l.target = milli(per)
		l.before = l.target
		return
	}
	// A target that wavers by less than a fiftieth is not worth a change of the HPA.
	if now.Sub(l.moved) < settle || math.Abs(per-l.target) <= 0.02*l.target {
		return
	}
	next := per
	if n > 1 {
		most := math.Sqrt(float64(n) / float64(n-1))
		next = math.Min(math.Max(per, l.target/most), l.target*most)
	}
	// Rounded towards the present target: away from it, a small one could leave the bound.
	if next < l.target {
		next = math.Ceil(next*1000-1e-9) / 1000
	} else {
		next = math.Floor(next*1000+1e-9) / 1000
	}
	if next = milli(next); next == l.target {
		return
	}
	l.before, l.target, l.moved = l.target, next, now
}

// value is the work that makes n replicas by the target, and by the one before it
// while that may still be in force.
func (l *ladder) value(now time.Time, n int) float64 {
	t := l.target
	if now.Sub(l.moved) < settle {
		t = math.Min(t, l.before)
	}
	return float64(n) * t
}

// milli rounds to thousandths, in which an HPA counts, and never to 0.
func milli(x float64) float64 { return math.Max(0.001, math.Round(x*1000)/1000) }
