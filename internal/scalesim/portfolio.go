// SPDX-License-Identifier: Apache-2.0

package scalesim

import (
	"fmt"
	"math"
	"math/rand/v2"
	"slices"
)

// PortfolioSpec draws the arrivals of many variants of a model, of which few are
// popular: Zipf popularity, sessions of some requests, day and night.
type PortfolioSpec struct {
	Variants int
	Zipf     float64 // exponent of the popularity
	Top      float64 // requests a second of the most popular one
	Days     float64
	Seed     uint64
}

// DefaultPortfolio is the portfolio of a public question: thirty variants, the most
// popular one with a request every twenty seconds.
func DefaultPortfolio() PortfolioSpec {
	return PortfolioSpec{Variants: 30, Zipf: 1.1, Top: 0.05, Days: 14, Seed: 2}
}

// A session has six requests on average, 5 s and more apart, 20 s on average; by day
// there are nine times as many as by night.
const (
	sessionRequests = 6.0
	sessionLeast    = 5.0
	sessionGap      = 15.0
	daySwing        = 0.8
)

// Draw returns the names and the arrivals of the variants in seconds, rising.
func (p PortfolioSpec) Draw() (names []string, arrivals [][]float64, span float64) {
	r := rand.New(rand.NewPCG(p.Seed, 2))
	span = p.Days * 86400
	for k := 1; k <= p.Variants; k++ {
		rate := p.Top / math.Pow(float64(k), p.Zipf) / sessionRequests * (1 + daySwing)
		var a []float64
		for t := r.ExpFloat64() / rate; t < span; t += r.ExpFloat64() / rate {
			if r.Float64()*(1+daySwing) > 1+daySwing*math.Sin(2*math.Pi*t/86400) {
				continue
			}
			for x := t; x < span; x += sessionLeast + sessionGap*r.ExpFloat64() {
				a = append(a, x)
				if r.Float64() >= 1-1/sessionRequests {
					break
				}
			}
		}
		slices.Sort(a)
		names, arrivals = append(names, fmt.Sprintf("variant-%02d", k)), append(arrivals, a)
	}
	return names, arrivals, span
}
