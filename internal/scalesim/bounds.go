// SPDX-License-Identifier: Apache-2.0

package scalesim

import (
	"fmt"
	"math"
	"sort"
)

// attainGoal is the share that a bound must reach to count.
const attainGoal = 0.99

// planned is a policy whose fleet is known beforehand, second by second.
type planned struct {
	name string
	want []int16
}

func (p *planned) Name() string          { return p.name }
func (p *planned) Initial(*Scenario) int { return int(p.want[0]) }
func (p *planned) Period() float64       { return 1 }
func (p *planned) KeepsPending() bool    { return true }
func (p *planned) Want(o *Obs) int {
	return int(p.want[min(len(p.want)-1, int(o.Now))])
}

// ClairvoyantWindows and ClairvoyantFactors span the 24 plans that the
// clairvoyant bound chooses from: the width of the mean, in seconds, over which it
// reads the future, and the head-room over it.
var (
	clairvoyantWindows = [...]float64{10, 30, 60, 120}
	clairvoyantFactors = [...]float64{0.7, 0.8, 0.9, 1.0, 1.15, 1.35}
)

// Clairvoyant is the cheapest of 24 plans that reach 99 %: it knows every arrival,
// starts replicas exactly one start-up ahead, and keeps one through a gap that is
// shorter than a start-up. Where no plan reaches 99 % it is the best of them.
func Clairvoyant(sc *Scenario) Result { return clairvoyant(sc, clairvoyantWindows[:]) }

func clairvoyant(sc *Scenario, windows []float64) Result {
	exact := *sc
	exact.Start.Sigma = 0
	exact.Faults = Faults{}
	var best Result
	var fallback Result
	for _, w := range windows {
		lo, hi := 0, len(clairvoyantFactors)
		for lo < hi {
			mid := (lo + hi) / 2
			p := plan(&exact, w, clairvoyantFactors[mid])
			if best.ReplicaHours > 0 && p.hours(&exact) > best.ReplicaHours {
				hi = mid // dearer than what is known to do
				continue
			}
			r := Run(&exact, p)
			if r.Attainment > fallback.Attainment {
				fallback = r
			}
			if r.Attainment >= attainGoal {
				hi = mid
				if best.ReplicaHours == 0 || r.ReplicaHours < best.ReplicaHours {
					best = r
				}
			} else {
				lo = mid + 1
			}
		}
	}
	if best.ReplicaHours == 0 {
		best = fallback
	}
	best.Policy = BoundClairvoyant
	return best
}

// plan lays out the fleet: one row a replica, on where the need reaches it, with
// gaps shorter than a start-up bridged and one start-up added in front.
func plan(sc *Scenario, window, factor float64) *planned {
	n := len(sc.offered)
	cum := make([]float64, n+1)
	for i, u := range sc.offered {
		cum[i+1] = cum[i] + u
	}
	need := make([]int16, n)
	half, top := int(window/2), int16(1)
	for i := range need {
		a, b := max(0, i-half), min(n, i+half+1)
		need[i] = int16(max(1, sc.need(factor*(cum[b]-cum[a])/float64(b-a))))
		top = max(top, need[i])
	}
	lead := int(math.Ceil(sc.Start.Median)) + 1
	p := &planned{name: fmt.Sprintf("clairvoyant w%.0f x%.2f", window, factor), want: make([]int16, n)}
	for k := int16(1); k <= top; k++ {
		end := -1 << 30 // of the last time this row was needed
		for i := range need {
			if need[i] < k {
				continue
			}
			from := max(end+1, i-lead)
			for j := max(0, from); j <= i; j++ {
				p.want[j]++
			}
			end = i
		}
	}
	return p
}

// hours is the replica time of the scored part, without drains.
func (p *planned) hours(sc *Scenario) float64 {
	sum := 0.0
	for i := int(sc.ScoreFrom); i < len(p.want); i++ {
		sum += float64(p.want[i])
	}
	return sum / 3600
}

// BestStatic is the smallest fleet of constant size that reaches 99 % of the
// scored part, and the smallest that reaches it in the part before.
func BestStatic(sc *Scenario) (hindsight, previous Result) {
	seen := map[int]Result{}
	at := func(n int) Result {
		r, ok := seen[n]
		if !ok {
			r = Run(sc, Static(n))
			seen[n] = r
		}
		return r
	}
	find := func(ok func(Result) bool) Result {
		lo, hi := 0, 1
		for !ok(at(hi)) && hi < 512 {
			lo, hi = hi, hi*2
		}
		n := lo + 1 + sort.Search(hi-lo-1, func(i int) bool { return ok(at(lo + 1 + i)) })
		return at(n)
	}
	hindsight = find(func(r Result) bool { return r.Attainment >= attainGoal })
	previous = find(func(r Result) bool { return r.Before >= attainGoal })
	hindsight.Policy, previous.Policy = BoundStatic, BoundPrevious
	return hindsight, previous
}
