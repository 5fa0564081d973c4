// SPDX-License-Identifier: Apache-2.0

package scale

import "math"

// sizeSteps is how finely the inverse of the capacity table is tabulated, per unit
// of work.
const sizeSteps = 20

// capacity is what n replicas carry and its inverse N(x).
type capacity struct {
	believed []float64 // as told
	factor   float64   // what outcomes make of it
	sizes    []float64 // N at (i+1)/sizeSteps, of believed*factor
}

func (c *capacity) set(believed []float64) {
	c.believed = believed
	c.scale(1)
}

// scale applies a factor to the believed capacity.
func (c *capacity) scale(factor float64) {
	if factor == 0 {
		factor = 1
	}
	c.factor = factor
	c.sizes = c.sizes[:0]
	last := len(c.believed) - 1
	if last < 1 {
		return
	}
	n := 1
	for i := 0; i < 1<<16; i++ {
		x := float64(i+1) / sizeSteps
		for n <= last && c.believed[n]*factor < x {
			n++
		}
		if n > last {
			return
		}
		c.sizes = append(c.sizes, float64(n))
	}
}

// size is N(x): the least number of replicas, at least 1, that carries x units.
func (c *capacity) size(x float64) float64 {
	if i := int(x * sizeSteps); i < len(c.sizes) {
		return c.sizes[max(0, i)]
	}
	last := len(c.believed) - 1
	if last < 1 {
		return 1
	}
	most := c.believed[last] * c.factor
	return math.Max(1, float64(last)+math.Ceil((x-most)/(most/float64(last))))
}

// carries is the work that n replicas carry, in units per second.
func (c *capacity) carries(n int) float64 {
	last := len(c.believed) - 1
	if n <= 0 || last < 1 {
		return 0
	}
	if n <= last {
		return c.believed[n] * c.factor
	}
	return c.believed[last] * c.factor * float64(n) / float64(last)
}

// knee is the work that one replica of a large fleet carries, in units per second.
func (c *capacity) knee() float64 {
	n := min(kneeFleet, len(c.believed)-1)
	if n < 1 {
		return c.factor
	}
	return c.believed[n] * c.factor / float64(n)
}

// kneeFleet is a fleet in which the bad luck of one replica is the good luck of
// another.
const kneeFleet = 16
