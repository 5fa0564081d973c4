// SPDX-License-Identifier: Apache-2.0

package admit

import "math"

// Lengths follows how long answers are, to reserve for the next one. It keeps one
// number: the 95th percentile, moved a little by each answer (stochastic
// approximation in the logarithm, so that scale does not matter). The zero Lengths
// is ready.
type Lengths struct {
	n   int
	log float64
}

const (
	lengthQuantile = 0.95
	lengthLeast    = 50  // answers before it has an opinion
	lengthMargin   = 2.0 // reserved is this many times the percentile
)

// Add notes a complete answer of n tokens.
func (l *Lengths) Add(n int) {
	x := math.Log(float64(max(n, 1)))
	if l.n++; l.n == 1 {
		l.log = x
		return
	}
	step := max(0.02, 1/float64(l.n))
	if x > l.log {
		l.log += step * lengthQuantile
	} else if x < l.log {
		l.log -= step * (1 - lengthQuantile)
	}
}

// Expect returns how many tokens to reserve; 0 where too little is known.
func (l *Lengths) Expect() int {
	if l.n < lengthLeast {
		return 0
	}
	return int(math.Ceil(lengthMargin * math.Exp(min(l.log, 20))))
}
