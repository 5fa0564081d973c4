// SPDX-License-Identifier: Apache-2.0

package scalesim

import (
	"math"
	"math/rand/v2"

	"github.com/penstock-project/penstock/internal/engine"
)

// pair is a model with a kind of traffic.
type pair struct {
	model engine.Profile
	slo   SLO
}

// models are the profiles that scenarios draw from, those that are fitted to
// runs of a real engine, with the objectives they are held to.
func pairs() []pair {
	var out []pair
	for _, m := range []struct {
		name string
		itl  float64
	}{
		{"llama-3.1-8b-rtx4090", 0.15}, {"llama-3.1-8b-rtxpro6000", 0.1},
		{"qwen3-30b-a3b-2xrtxpro6000", 0.1}, {"qwen3-32b-2xrtxpro6000", 0.2},
	} {
		if p, ok := engine.Lookup(m.name); ok {
			out = append(out, pair{p, SLO{TTFT: 2, ITL: m.itl}})
		}
	}
	return out
}

// shapes are the kinds of requests that scenarios draw from.
func shapes() []Shape {
	return []Shape{{"rag", 4500, 200}, {"code", 2300, 40}, {"chat", 1100, 255}, {"long", 500, 600}}
}

// longestPrompt bounds prompts to a second of prefill: a longer one cannot meet
// two seconds at any load, whoever scales.
func (sc *Scenario) longestPrompt() float64 {
	m := &sc.Model
	n := 1 / m.PTok
	if m.PAttn > 0 {
		n = (-m.PTok + math.Sqrt(m.PTok*m.PTok+2*m.PAttn)) / m.PAttn
	}
	return math.Min(n, 0.25*float64(m.KVTokens))
}

// raw is the work of one request in seconds of a replica: its prefill and the
// decode time that its mean output adds to a running batch.
func (sc *Scenario) raw(in, ctx float64) float64 {
	return sc.Model.WorkSeconds(engine.Shape{Prompt: ctx, Cached: ctx - in, Output: sc.Shape.Out})
}

// knee is what one replica of a fleet of 16 carries, and what fleets of other
// sizes carry in proportion.
type knee struct {
	model, shape string
	rate         float64   // requests per second and replica at 99.5 % in a fleet of 16
	inside       float64   // requests inside one replica there
	share        []float64 // of rate, per replica, at 98.5 % in fleets of kneeSizes
}

// kneeSizes are the fleet sizes that the table was measured at.
func kneeSizes() []int { return []int{1, 2, 3, 4, 6, 8, 12, 16, 24, 32, 48, 64, 96} }

// capacity is the work that n replicas carry, index n, in units of a replica at its
// knee.
func (k knee) capacity() []float64 {
	sizes := kneeSizes()
	out := make([]float64, 129)
	for n := 1; n < len(out); n++ {
		i := 0
		for i < len(sizes)-1 && sizes[i+1] <= n {
			i++
		}
		s := k.share[i]
		if i < len(sizes)-1 {
			f := math.Log(float64(n)/float64(sizes[i])) / math.Log(float64(sizes[i+1])/float64(sizes[i]))
			s += f * (k.share[i+1] - s)
		}
		out[n] = math.Max(out[n-1]+1e-6, s*float64(n))
	}
	return out
}

// Measure finds by bisection the requests per second that n replicas carry with
// the given share inside the objectives, under Poisson arrivals, and the requests
// inside one replica there.
func Measure(m engine.Profile, sh Shape, slo SLO, n int, share float64, seed uint64) (rate, inside float64) {
	sc := &Scenario{Model: m, Shape: sh, SLO: slo, Start: Start{Median: 60, Sigma: 0.1}}
	sc.prepare()
	attained := func(rate float64) float64 {
		const warm = 60.0
		total := math.Max(9000, 900*float64(n))
		sc.Duration = math.Ceil(warm + math.Min(total/rate, 20000))
		sc.ScoreFrom = warm
		r := rand.New(rand.NewPCG(seed, uint64(n)))
		levels := make([]float64, int(sc.Duration))
		for i := range levels {
			levels[i] = 1
		}
		sc.Mean = rate * sc.meanWork()
		sc.Seed = seed
		sc.fill(r, levels)
		res := Run(sc, Static(n))
		inside = res.meanConc / float64(n)
		return res.Attainment
	}
	lo, hi := 0.0, 1.2*float64(n)/sc.raw(sh.Prompt, sh.Prompt)
	for hi-lo > 0.01*hi {
		mid := (lo + hi) / 2
		if attained(mid) >= share {
			lo = mid
		} else {
			hi = mid
		}
	}
	attained(lo)
	return lo, inside
}
