// SPDX-License-Identifier: Apache-2.0

package scalesim

import (
	"math"
	"math/rand/v2"
)

// Break adds every kind of fault to a scenario: 12 % of the starts never become
// ready, a quarter of the replicas crashes each hour, metrics are out for ten
// minutes, signals have 25 % noise, and the capacity is believed 12 % too high or
// too low.
func (sc *Scenario) Break() {
	r := rand.New(rand.NewPCG(sc.Seed, 0xfa17))
	out := uniform(r, sc.ScoreFrom, math.Max(sc.ScoreFrom, sc.Duration-600))
	sc.Faults = Faults{DeadStarts: 0.12, CrashesPerHour: 0.25, Outages: [][2]float64{{out, out + 600}}, CapacityError: 0.88}
	if r.Float64() < 0.5 {
		sc.Faults.CapacityError = 1.12
	}
	sc.Noise = 0.25
	sc.Name += "-faults"
}
