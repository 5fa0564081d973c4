// SPDX-License-Identifier: Apache-2.0

package rollout

import "math"

// The tests below are valid at every moment: they may be read after each request and
// acted on at once, and the chance that they ever speak against a canary that is as
// good as its baseline stays below alpha. A test with a fixed sample that is read
// again and again does not have this property.

// Interval is a confidence sequence at one moment. Low and High are infinite while
// there is too little to say anything.
type Interval struct{ Low, Mean, High float64 }

func everything() Interval { return Interval{math.Inf(-1), math.NaN(), math.Inf(1)} }

// blocks compares the logarithms of two positive quantities. Observations are
// gathered in blocks of time: a block closes once both versions have blockSize
// observations, and gives one difference of means. What hits both alike, such as a
// burst of load, cancels in it; observations of one burst are not independent, and
// counting each for itself would find differences that are none.
type blocks struct {
	sum   [2]float64
	count [2]int
	n     int // closed blocks
	mean  float64
	m2    float64 // sum of squared deviations from the mean
	seen  [2]int
	total [2]float64 // of all logarithms
}

// blockSize is how many observations of each version a block needs, leastBlocks how
// many blocks the variance: below it the normal approximation is not to be trusted.
const (
	blockSize   = 5
	leastBlocks = 20
)

// add takes one observation; values that are not positive numbers are left out.
func (b *blocks) add(arm Arm, v float64) {
	if !(v > 0) || math.IsInf(v, 0) {
		return
	}
	x := math.Log(v)
	b.sum[arm] += x
	b.count[arm]++
	b.seen[arm]++
	b.total[arm] += x
	if b.count[Baseline] < blockSize || b.count[Canary] < blockSize {
		return
	}
	d := b.sum[Canary]/float64(b.count[Canary]) - b.sum[Baseline]/float64(b.count[Baseline])
	b.sum, b.count = [2]float64{}, [2]int{}
	b.n++ // Welford's update
	delta := d - b.mean
	b.mean += delta / float64(b.n)
	b.m2 += delta * (d - b.mean)
}

// typical returns the geometric mean of a version; NaN where there is none.
func (b *blocks) typical(arm Arm) float64 {
	return math.Exp(b.total[arm] / float64(b.seen[arm]))
}

// interval returns a confidence sequence for the mean difference: the asymptotic one
// of Waudby-Smith, Arbour, Sinha, Kennedy and Ramdas, "Time-uniform central limit
// theory and asymptotic confidence sequences" (Annals of Statistics 52, 2024),
// theorem 2.2:
//
//	mean ± sd · sqrt( 2 (tρ²+1) / (t²ρ²) · log( sqrt(tρ²+1) / α ) )
//
// with ρ such that it is tightest at about t = tightest blocks (their equation 10).
func (b *blocks) interval(alpha float64) Interval {
	if b.n < leastBlocks {
		return everything()
	}
	const tightest = 100
	t := float64(b.n)
	l := -2 * math.Log(alpha)
	rho2 := (l + math.Log(l+1)) / tightest
	sd := math.Sqrt(b.m2 / (t - 1))
	r := sd * math.Sqrt(2*(t*rho2+1)/(t*t*rho2)*math.Log(math.Sqrt(t*rho2+1)/alpha))
	return Interval{b.mean - r, b.mean, b.mean + r}
}

// rate counts events among trials.
type rate struct{ n, k int }

func (r *rate) add(event bool) {
	r.n++
	if event {
		r.k++
	}
}

// interval returns the confidence sequence of a probability that inverts the mixture
// martingale of Robbins, "Statistical methods related to the law of the iterated
// logarithm" (Annals of Mathematical Statistics 41, 1970): under p the likelihood
// ratio of a uniform mixture over all probabilities,
//
//	B(k+½, n−k+½) / B(½, ½) / ( p^k (1−p)^(n−k) ),
//
// ever exceeds 1/α with a chance of at most α. The mixture is Beta(½, ½), which is
// tighter near 0 than a uniform one. Exact for any n.
func (r *rate) interval(alpha float64) Interval {
	if r.n == 0 {
		return Interval{0, math.NaN(), 1}
	}
	n, k := float64(r.n), float64(r.k)
	mean := k / n
	limit := lbeta(k+.5, n-k+.5) - lbeta(.5, .5) + math.Log(alpha)
	inside := func(p float64) bool { return xlog(k, p)+xlog(n-k, 1-p) > limit }
	return Interval{cross(0, mean, inside), mean, cross(1, mean, inside)}
}

// xlog is k·log(p) with 0·log(0) = 0.
func xlog(k, p float64) float64 {
	if k == 0 {
		return 0
	}
	return k * math.Log(p)
}

// cross finds the end of the interval around mean towards edge by bisection.
func cross(edge, mean float64, inside func(float64) bool) float64 {
	if inside(edge) {
		return edge
	}
	out, in := edge, mean
	for range 60 {
		if mid := (out + in) / 2; inside(mid) {
			in = mid
		} else {
			out = mid
		}
	}
	return out
}

func lbeta(a, b float64) float64 {
	x, _ := math.Lgamma(a)
	y, _ := math.Lgamma(b)
	z, _ := math.Lgamma(a + b)
	return x + y - z
}

// Verdict is what a test says of the canary.
type Verdict uint8

// Verdicts. Fine and Worse are judged against the margin; Suspect is worse than the
// baseline, by how much is open.
const (
	Open Verdict = iota
	Fine
	Suspect
	Worse
)

var verdictNames = [...]string{"open", "fine", "suspect", "worse"}

func (v Verdict) String() string { return verdictNames[v] }

// Evidence is one quantity of both versions and what a test says.
type Evidence struct {
	Name string // ttft, itl, errors
	// Baseline and Canary are geometric means in seconds, or shares of failed
	// requests; NaN where nothing was seen.
	Baseline, Canary float64
	N                [2]int // observations, by Arm
	Blocks           int    // closed blocks of a comparison in time; 0 for errors
	// Low and High bound the canary over the baseline: a ratio of times, a difference
	// of shares. Infinite, or 0 for a ratio, where nothing can be said yet.
	Low, High float64
	Margin    float64 // the largest ratio or difference that is accepted
	Verdict   Verdict
}

// ratio judges a comparison of times against a margin above 1.
func (b *blocks) judge(name string, alpha, margin float64) Evidence {
	i := b.interval(alpha)
	e := Evidence{
		Name: name, Baseline: b.typical(Baseline), Canary: b.typical(Canary), N: b.seen, Blocks: b.n,
		Low: math.Exp(i.Low), High: math.Exp(i.High), Margin: margin,
	}
	e.Verdict = verdict(e.Low, e.High, 1, margin)
	return e
}

// judgeErrors compares two rates: half of alpha each.
func judgeErrors(rates *[2]rate, alpha, margin float64) Evidence {
	b, c := rates[Baseline].interval(alpha/2), rates[Canary].interval(alpha/2)
	e := Evidence{
		Name: "errors", Baseline: b.Mean, Canary: c.Mean, N: [2]int{rates[Baseline].n, rates[Canary].n},
		Low: c.Low - b.High, High: c.High - b.Low, Margin: margin,
	}
	e.Verdict = verdict(e.Low, e.High, 0, margin)
	return e
}

func verdict(low, high, equal, margin float64) Verdict {
	switch {
	case low > margin:
		return Worse
	case high <= margin:
		return Fine
	case low > equal:
		return Suspect
	}
	return Open
}
