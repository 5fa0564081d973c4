// SPDX-License-Identifier: Apache-2.0

package scale

import "math"

// refitFactors are the corrections of the believed capacity that are weighed
// against each other.
var refitFactors = [...]float64{0.70, 0.76, 0.82, 0.88, 0.94, 1, 1.06, 1.13, 1.20, 1.28}

const (
	refitWindow = 300  // s over which predicted and observed misses are compared
	refitForget = 7200 // s, time constant of the evidence
	refitSpread = 0.10 // what the belief may be off by: standard deviation of the logarithm
	refitTrust  = 30.0 // most independent requests that a window counts as
	refitGain   = 0.5  // evidence, in units of log-likelihood, before the factor moves
)

// refit corrects the believed capacity by what became of the requests. For every
// factor a fluid queue is played on the replicas that are really there, and its
// misses are compared with those that were observed: a fleet of known size is
// judged, not a rule, so that a reserve that works does not look superfluous.
type refit struct {
	factor   float64
	queue    [len(refitFactors)]float64
	missed   [len(refitFactors)]float64
	evidence [len(refitFactors)]float64 // log-likelihood
	work     float64
	ends     int // second at which the window ends
	ok, miss uint64
	known    bool
}

func newRefit() refit { return refit{factor: 1} }

// play moves the fluid queues one second on.
func (f *refit) play(u float64, ready int, c *capacity, t *Tuning) {
	f.work += u
	one := t.Speed * c.knee() / c.factor * float64(ready) // as told, uncorrected
	for i, k := range refitFactors {
		var miss float64
		f.queue[i], miss = fluid(f.queue[i], u, one*k, t.Slack)
		f.missed[i] += miss
	}
}

// observe compares at the end of a window, and reports whether the factor moved.
func (f *refit) observe(second int, g *Gateway) bool {
	if !g.Known {
		f.known = false
		return false
	}
	if !f.known || g.OK < f.ok || g.Missed < f.miss { // the first count, or counters that began again
		f.known, f.ok, f.miss = true, g.OK, g.Missed
		f.begin(second)
		return false
	}
	if second < f.ends {
		return false
	}
	ok, miss := float64(g.OK-f.ok), float64(g.Missed-f.miss)
	f.ok, f.miss = g.OK, g.Missed
	moved := false
	if n := ok + miss; n >= 20 && f.work > 0 {
		f.weigh(miss/n, math.Min(n, refitTrust))
		moved = f.pick()
	}
	f.begin(second)
	return moved
}

func (f *refit) begin(second int) {
	f.ends = second + refitWindow
	f.work = 0
	f.missed = [len(refitFactors)]float64{}
}

// weigh adds what one window says: share missed of n independent requests.
func (f *refit) weigh(share, n float64) {
	fade := math.Exp(-refitWindow / float64(refitForget))
	for i := range f.evidence {
		p := math.Min(0.9, math.Max(0.004, f.missed[i]/f.work))
		f.evidence[i] = fade*f.evidence[i] + n*(share*math.Log(p)+(1-share)*math.Log(1-p))
	}
}

func (f *refit) pick() bool {
	score := func(i int) float64 {
		x := math.Log(refitFactors[i]) / refitSpread
		return f.evidence[i] - x*x/2
	}
	best, now := 0, 0
	for i, k := range refitFactors {
		if score(i) > score(best) {
			best = i
		}
		if k == f.factor {
			now = i
		}
	}
	if best == now || score(best)-score(now) < refitGain {
		return false
	}
	f.factor = refitFactors[best]
	return true
}
