// SPDX-License-Identifier: Apache-2.0

package workload

import (
	"math"
	"sort"
)

// Rand is a small deterministic source of random numbers (SplitMix64). Its output
// is part of the contract "same seed, same bytes", so it depends on no library. The
// zero value is a valid source; it is not safe for concurrent use.
type Rand struct{ state uint64 }

// NewRand returns the stream of seed that belongs to name and n. Streams with
// different names or numbers are independent, so that drawing more in one place
// does not move another.
func NewRand(seed uint64, name string, n uint64) *Rand {
	r := randAt(seed, hashString(name), n)
	return &r
}

func randAt(seed, name, n uint64) Rand {
	return Rand{state: mix(mix(seed^name) + n*0x9e3779b97f4a7c15)}
}

// mix is the finaliser of SplitMix64 (Steele, Lea, Flood 2014): a bijection that
// spreads every input bit.
func mix(z uint64) uint64 {
	z = (z ^ z>>30) * 0xbf58476d1ce4e5b9
	z = (z ^ z>>27) * 0x94d049bb133111eb
	return z ^ z>>31
}

// hashString is FNV-1a, finalised.
func hashString(s string) uint64 {
	h := uint64(14695981039346656037)
	for i := 0; i < len(s); i++ {
		h = (h ^ uint64(s[i])) * 1099511628211
	}
	return mix(h)
}

// Uint64 returns 64 random bits.
func (r *Rand) Uint64() uint64 {
	r.state += 0x9e3779b97f4a7c15
	return mix(r.state)
}

// Float64 returns a number in [0, 1).
func (r *Rand) Float64() float64 { return float64(r.Uint64()>>11) / (1 << 53) }

// IntN returns a number in [0, n), and 0 for n <= 1.
func (r *Rand) IntN(n int) int {
	if n <= 1 {
		return 0
	}
	return int(r.Float64() * float64(n))
}

// Between returns a number in [lo, hi], both included.
func (r *Rand) Between(lo, hi int) int { return lo + r.IntN(hi-lo+1) }

// Exp returns an exponential number with mean 1.
func (r *Rand) Exp() float64 { return -math.Log(1 - r.Float64()) }

// Norm returns a standard normal number (Box and Muller, one of the pair).
func (r *Rand) Norm() float64 {
	return math.Sqrt(2*r.Exp()) * math.Cos(2*math.Pi*r.Float64())
}

// LogNormal returns a number whose logarithm is normal, by its median and sigma.
func (r *Rand) LogNormal(median, sigma float64) float64 {
	return median * math.Exp(sigma*r.Norm())
}

// Gamma returns a gamma number with the given shape > 0 and mean 1 (Marsaglia and
// Tsang 2000; below shape 1 with their power correction).
func (r *Rand) Gamma(shape float64) float64 {
	if shape <= 0 {
		return 0
	}
	boost, k := 1.0, shape
	if k < 1 {
		boost = math.Pow(1-r.Float64(), 1/k)
		k++
	}
	d := k - 1.0/3
	c := 1 / math.Sqrt(9*d)
	for {
		x := r.Norm()
		v := 1 + c*x
		if v <= 0 {
			continue
		}
		v = v * v * v
		if u := 1 - r.Float64(); math.Log(u) < 0.5*x*x+d-d*v+d*math.Log(v) {
			return boost * d * v / shape
		}
	}
}

// Weibull returns a Weibull number by its shape and scale, both > 0.
func (r *Rand) Weibull(shape, scale float64) float64 {
	return scale * math.Pow(r.Exp(), 1/shape)
}

// Geometric returns a number >= 1 with the given mean >= 1.
func (r *Rand) Geometric(mean float64) int {
	if mean <= 1 {
		return 1
	}
	return 1 + int(math.Log(1-r.Float64())/math.Log(1-1/mean))
}

// tokens draws a log-normal number of tokens within [lo, hi].
func (r *Rand) tokens(median, sigma float64, lo, hi int) int {
	return max(lo, min(hi, int(r.LogNormal(median, sigma))))
}

// Zipf draws ranks 0..n-1 with probability proportional to 1/(rank+1)^s.
type Zipf struct{ cum []float64 }

// NewZipf returns a Zipf distribution over n >= 1 ranks with exponent s >= 0.
func NewZipf(n int, s float64) *Zipf {
	z := &Zipf{cum: make([]float64, max(n, 1))}
	sum := 0.0
	for i := range z.cum {
		sum += math.Pow(float64(i+1), -s)
		z.cum[i] = sum
	}
	for i := range z.cum {
		z.cum[i] /= sum
	}
	return z
}

// Draw returns a rank.
func (z *Zipf) Draw(r *Rand) int {
	u := r.Float64()
	return min(sort.SearchFloat64s(z.cum, u), len(z.cum)-1)
}
