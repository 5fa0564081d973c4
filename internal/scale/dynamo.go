// SPDX-License-Identifier: Apache-2.0

package scale

import "math"

// Dynamo is a planner like that of NVIDIA Dynamo (main, 2026): a throughput loop
// that divides forecast demand by the profiled rate of one engine, and a load loop
// that adds one engine when all violate their objective. Published defaults:
// throughput loop 180 s, load loop 5 s, one engine at least; while a change is in
// progress it only observes. The forecast here is linear, and the profile exact:
// both better than a user has them.
type Dynamo struct {
	Rate        float64 // demand that one engine carries at the objective, any unit
	Utilisation float64 // share of Rate that is aimed at
	Interval    float64 // s, throughput loop

	seen    []float64 // mean demand of past intervals
	next    float64
	planned int
}

// DynamoLoadLoop is the period of the load loop, in seconds.
const DynamoLoadLoop = 5.0

// DefaultDynamo returns a planner with the published intervals.
func DefaultDynamo(rate, utilisation float64) *Dynamo {
	return &Dynamo{Rate: rate, Utilisation: utilisation, Interval: 180}
}

// Want is the count at now (s) for current engines of which pending are loading,
// given the mean demand of the last interval and whether every ready engine
// violates its objective.
func (d *Dynamo) Want(now float64, current, pending int, demand float64, allViolate bool) int {
	if now >= d.next {
		d.next = now + d.Interval
		d.seen = append(d.seen, demand)
		if len(d.seen) > 2 {
			d.seen = d.seen[1:]
		}
		f := demand
		if len(d.seen) == 2 {
			f = math.Max(0, 2*d.seen[1]-d.seen[0])
		}
		d.planned = max(1, ceil(f/(d.Rate*d.Utilisation)))
		return d.planned
	}
	if pending == 0 && allViolate {
		return current + 1
	}
	return max(current, d.planned)
}
