// SPDX-License-Identifier: Apache-2.0

package scale

import (
	"math"
	"slices"
)

// noticeS is how long it takes to notice an excursion, in seconds: one short level.
const noticeS = 10

// Excursions are the times in which twice or more the base was offered for a minute,
// and what their figures say about scalers that cannot foresee them.
type Excursions struct {
	Count  int     `json:"count"`
	Base   float64 `json:"base"`         // level of the minute that is exceeded two thirds of the time, units
	Height float64 `json:"height_bases"` // mean height over the base, in bases
	Length float64 `json:"length_s"`     // mean
	Gap    float64 `json:"gap_s"`        // mean quiet time between them
	// Missed is the share of the work that is missed without a standing reserve, and
	// Reserve the reserve in bases that keeps the target, by the fluid bound
	// H min(D, L) / (G + D + H D) with L the start-up time and 10 s to notice.
	Missed  float64 `json:"missed_without_reserve"`
	Reserve float64 `json:"reserve_bases"`
}

// FindExcursions describes the excursions of offered work, one entry a second.
func FindExcursions(offered []float64, start, attainment float64) Excursions {
	minute := means(offered, 60)
	if len(minute) == 0 {
		return Excursions{}
	}
	sorted := slices.Clone(minute)
	slices.Sort(sorted)
	e := Excursions{Base: sorted[len(sorted)*35/100]}
	var height, length float64
	first, end, inside, calm := -1, -1, false, 0
	top, from := 0.0, 0
	for t, v := range minute {
		switch {
		case v > 2*e.Base && !inside:
			inside, top, from, calm = true, v, t, 0
			if first < 0 {
				first = t
			}
		case inside && v > 1.5*e.Base:
			top, calm = math.Max(top, v), 0
		case inside:
			if calm++; calm >= 60 {
				inside = false
				e.Count++
				length += float64(t - calm - from + 1)
				height += top/math.Max(1e-9, e.Base) - 1
				end = t - calm
			}
		}
	}
	if e.Count == 0 {
		return e
	}
	n := float64(e.Count)
	e.Height, e.Length = height/n, math.Max(1, length/n)
	e.Gap = math.Max(0, float64(len(offered))/n-e.Length)
	if e.Count > 1 {
		e.Gap = math.Max(0, float64(end-first)/(n-1)-e.Length)
	}
	late := math.Min(e.Length, start+noticeS)
	all := e.Gap + e.Length + e.Height*e.Length
	e.Missed = e.Height * late / all
	e.Reserve = math.Max(0, e.Height-(1-attainment)*all/late)
	return e
}

// means is the mean of the last w entries at each second.
func means(v []float64, w int) []float64 {
	out := make([]float64, len(v))
	sum := 0.0
	for i, u := range v {
		sum += u
		if i >= w {
			sum -= v[i-w]
		}
		out[i] = math.Max(0, sum) / float64(min(i+1, w))
	}
	return out
}

// Reserve is what a fleet that follows the work, one start-up late, misses without
// and with replicas that always stand ready.
type Reserve struct {
	StartS   float64 `json:"start_s"`
	Missed   float64 `json:"missed_without_reserve"` // share of the work
	Replicas float64 `json:"replicas_without_reserve"`
	Standing int     `json:"reserve_replicas"` // that keep the target
	With     float64 `json:"replicas_with_reserve"`
	Reached  bool    `json:"reached"` // false: no reserve does, within four times the largest fleet
}

// StandingReserve finds how many replicas beyond those that follow the work have to
// stand ready so that the share attainment of offered work (units, one entry a
// second) is served in time. A fleet follows when at every second it has what the
// busier of the last two minutes needed, one start-up and ten seconds late: that is
// what is left of any scaler that cannot foresee once it keeps nothing in reserve.
func StandingReserve(offered, carried []float64, start, attainment float64, from int) Reserve {
	var table capacity
	table.set(carried)
	t := DefaultTuning()
	speed := t.Speed * table.knee()
	late := int(math.Ceil(start)) + noticeS
	minute := means(offered, levelWindows[minuteWindow])
	follow := make([]float64, len(offered))
	var held extreme
	top := 1.0
	for i := range offered {
		level := minute[0]
		if i >= late {
			level = held.push(i, minute[i-late], levelWindows[minuteWindow])
		}
		follow[i] = table.size(level)
		top = math.Max(top, follow[i])
	}
	play := func(reserve float64) float64 {
		queue, missed, work := 0.0, 0.0, 0.0
		for i, u := range offered {
			var m float64
			queue, m = fluid(queue, u, speed*(follow[i]+reserve), t.Slack)
			if i >= from {
				missed += m
				work += u
			}
		}
		return missed / math.Max(1e-9, work)
	}
	r := Reserve{StartS: start, Missed: play(0)}
	n := 0.0
	for _, c := range follow[min(from, len(follow)):] {
		r.Replicas += c
		n++
	}
	r.Replicas /= math.Max(1, n)
	lo, hi := 0, int(4*top)
	if r.Missed > 1-attainment {
		if play(float64(hi)) > 1-attainment {
			lo = hi
		}
		for hi-lo > 1 {
			if mid := (lo + hi) / 2; play(float64(mid)) <= 1-attainment {
				hi = mid
			} else {
				lo = mid
			}
		}
		r.Standing = hi
	}
	r.Reached = play(float64(r.Standing)) <= 1-attainment
	r.With = r.Replicas + float64(r.Standing)
	return r
}
