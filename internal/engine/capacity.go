// SPDX-License-Identifier: Apache-2.0

package engine

import "math"

// SLO is the objective that a request has to meet, in seconds.
type SLO struct {
	TTFT float64 // until the first token
	ITL  float64 // mean time between later tokens of one request
}

// Shape is the mean request of a workload, in tokens. Cached is the part of the
// prompt that the prefix cache holds.
type Shape struct {
	Prompt, Cached, Output float64
}

// Attainment is the share of requests that has to meet the objective for a load to
// count as carried by Capacity.
const Attainment = 0.985

const (
	// spread is the coefficient of variation assumed of prompt lengths, of which a
	// Shape tells only the mean. Chat, code and retrieval traces have 0.3 to 0.8.
	spread = 0.5
	// maxRate bounds the search, requests/s and replica.
	maxRate = 1e5
)

// WorkSeconds is the work of one request in seconds of replica time: its prefill
// and what each of its output tokens adds to the steps. Linear in the request, so
// that work adds up; the share of Base is not in it.
func (p *Profile) WorkSeconds(s Shape) float64 {
	return p.prefill(s.Prompt-s.Cached, s.Prompt) + s.Output*(p.DSeq+p.DCtx*(s.Prompt+s.Output/2))
}

func (p *Profile) prefill(uncached, total float64) float64 {
	return uncached*p.PTok + p.PAttn*uncached*(total-uncached/2)
}

// Capacity is the load in requests/s that n replicas carry together at the
// objective, for Attainment of the requests, with Poisson arrivals and a router that
// sends each to the replica that is free first. It is 0 where a lone request misses
// the objective already.
//
// A large fleet is bound by throughput; a small one by luck, since requests that
// come together wait for the same replica. Where one prefill is a third of the TTFT
// budget a single replica carries a third of what it carries among sixteen. The
// estimate is M/G/n: Erlang's probability of waiting, the exact decay of the M/G/1
// tail, and a normal tail for the memory. Against the table in the tests it is off by
// 0.05 in the mean and by at most 0.21, in units of a replica's load among sixteen.
func (p *Profile) Capacity(n int, shape Shape, slo SLO) float64 {
	if n <= 0 || shape.Prompt <= 0 {
		return 0
	}
	lo, hi := 0.0, 1.0
	for p.missed(n, hi, shape, slo) <= 1-Attainment {
		if hi *= 2; hi > maxRate {
			return float64(n) * maxRate
		}
	}
	for range 40 {
		if m := (lo + hi) / 2; p.missed(n, m, shape, slo) <= 1-Attainment {
			lo = m
		} else {
			hi = m
		}
	}
	if lo < 1e-9 {
		return 0
	}
	return lo * float64(n)
}

// missed is the share of requests that miss the objective when each of n replicas
// gets rate requests/s.
func (p *Profile) missed(n int, rate float64, s Shape, slo SLO) float64 {
	s.Output = max(1, s.Output)
	ctx := s.Prompt + s.Output/2
	token := p.DSeq + p.DCtx*ctx // what a decoding sequence adds to a step
	// Steady state: prompts take rate*prefill of each second, steps the rest, and a
	// sequence decodes for Output steps.
	busy := rate * p.WorkSeconds(s)
	if busy >= 1 {
		return 1
	}
	step := p.Base / (1 - busy)
	if step > slo.ITL {
		return 1
	}
	streams := rate * s.Output * step
	decode := p.Base + streams*token

	// Service of a prompt: its own time, the decode halves of its steps, and half a
	// step until one begins.
	var serve [5]float64
	mean := 0.0
	for i, f := range p.sizes(s, slo) {
		chunks := f * (s.Prompt - s.Cached) / float64(p.ChunkTokens)
		serve[i] = p.prefill(f*(s.Prompt-s.Cached), f*s.Prompt) + (chunks+0.5)*decode
		mean += serve[i] / 5
	}
	offered := float64(n) * rate * mean
	if offered >= float64(n) {
		return 1
	}
	theta, factor := tail(serve[:], float64(n), float64(n)*rate)
	factor *= erlangC(n, offered) / (offered / float64(n))
	miss := 0.0
	for _, own := range serve {
		if left := slo.TTFT - own - step/2; left < 0 {
			miss += 0.2
		} else {
			miss += 0.2 * min(1, factor*math.Exp(-theta*left))
		}
	}
	// Memory and batch: the streams of the whole fleet are Poisson around their mean.
	room := float64(n) * min(float64(p.MaxSeqs), float64(p.KVTokens)/ctx)
	all := float64(n) * streams
	z := (room - all) / math.Sqrt(all*(1+spread*spread))
	return miss + 0.5*math.Erfc(z/math.Sqrt2)
}

// sizes are five equally likely prompt lengths relative to the mean: quantiles of a
// lognormal of the assumed spread, cut where a prompt's own prefill takes half of
// the TTFT budget, since no fleet can help those.
func (p *Profile) sizes(s Shape, slo SLO) [5]float64 {
	sigma := math.Sqrt(math.Log(1 + spread*spread))
	z := [5]float64{-1.2816, -0.5244, 0, 0.5244, 1.2816}
	var f [5]float64
	sum := 0.0
	for i := range f {
		f[i] = math.Exp(sigma * z[i])
		sum += f[i]
	}
	most := 1.0
	if own := p.prefill(s.Prompt-s.Cached, s.Prompt); own > 0 {
		most = max(1, slo.TTFT/2/own)
	}
	scale := 5 / sum
	for range 8 { // lengthen the others until the mean is 1 again
		sum = 0
		for _, v := range f {
			sum += min(v*scale, most)
		}
		scale *= 5 / sum
	}
	for i := range f {
		f[i] = min(f[i]*scale, most)
	}
	return f
}

// tail returns decay and prefactor of the waiting time P(W > y) ~ factor*exp(-decay*y)
// of a queue whose server works n times as fast as one replica (Cramer-Lundberg).
func tail(serve []float64, n, rate float64) (decay, factor float64) {
	mean := 0.0
	for _, s := range serve {
		mean += s / n / float64(len(serve))
	}
	excess := func(th float64) float64 {
		e := 0.0
		for _, s := range serve {
			e += math.Exp(th*s/n) / float64(len(serve))
		}
		return rate*(e-1) - th
	}
	lo, hi := 0.0, 1/mean
	for excess(hi) < 0 {
		lo, hi = hi, 2*hi
	}
	for range 50 {
		if m := (lo + hi) / 2; excess(m) < 0 {
			lo = m
		} else {
			hi = m
		}
	}
	slope := 0.0
	for _, s := range serve {
		slope += s / n * math.Exp(lo*s/n) / float64(len(serve))
	}
	return lo, (1 - rate*mean) / max(rate*slope-1, 1e-9)
}

// erlangC is the probability that an arrival finds all n servers busy, when load
// servers' worth of work is offered.
func erlangC(n int, load float64) float64 {
	b := 1.0
	for k := 1; k <= n; k++ {
		b = load * b / (float64(k) + load*b)
	}
	return b / (1 - load/float64(n)*(1-b))
}
