// SPDX-License-Identifier: Apache-2.0

package scalesim

import (
	"fmt"
	"math"
	"math/rand/v2"
)

// Classes are the kinds of drawn traffic, in the order in which scenarios cycle
// through them.
func Classes() []string {
	return []string{"diurnal", "ramp", "step", "bursts", "flash", "onoff", "batch", "mixed"}
}

// Starts are the start-up medians, in seconds, that scenarios cycle through.
func Starts() []float64 { return []float64{30, 120, 600, 900} }

// maxRequests bounds one run, and with it the size of fast models' fleets.
const maxRequests = 150_000

// Draw returns scenario i of a suite: its class and start-up time follow from i,
// so that 32 scenarios cover every pair once; everything else from the seed.
func Draw(seed uint64, i int) *Scenario {
	classes, starts := Classes(), Starts()
	return DrawClass(seed+uint64(i), classes[i%len(classes)], starts[(i+i/len(classes))%len(starts)])
}

// DrawClass returns the scenario of one class, start-up median (s) and seed.
func DrawClass(seed uint64, class string, start float64) *Scenario {
	r := rand.New(rand.NewPCG(seed, 0x5ca1e))
	sc := &Scenario{Class: class, Seed: seed}
	sc.Noise = uniform(r, 0.05, 0.15)
	sc.Start = Start{Median: start, Sigma: uniform(r, 0.05, 0.35)}
	sc.Start.Prior = start * uniform(r, 0.75, 1.25)
	g := generators()[class]
	sc.Duration, sc.ScoreFrom = g.span(r)
	sc.Mean = logUniform(r, 2, 60)
	sc.drawPair(r)
	level := g.level(r, sc.Duration)
	rate := make([]float64, int(sc.Duration)) // relative to the mean
	sum := 0.0
	k := wobble(r, 10, uniform(r, 0, 0.25))
	for t := range rate {
		rate[t] = k(float64(t)) * level(float64(t))
		sum += level(float64(t))
	}
	for t := range rate {
		rate[t] *= sc.Duration / sum
	}
	sc.fill(r, rate)
	sc.Name = fmt.Sprintf("%s-%d-S%.0f-%s-%s-m%.1f-%.1fh", class, seed, start, sc.Model.Name, sc.Shape.Name, sc.Mean, sc.Duration/3600)
	return sc
}

// drawPair draws a model and a kind of traffic. Of eight draws the one is kept whose
// fleet comes closest to the drawn size without exceeding maxRequests.
func (sc *Scenario) drawPair(r *rand.Rand) {
	models, shapes := pairs(), shapes()
	var best Scenario
	for range 8 {
		c := *sc
		p := models[r.IntN(len(models))]
		c.Model, c.SLO, c.Shape = p.model, p.slo, shapes[r.IntN(len(shapes))]
		c.prepare()
		most := maxRequests * c.meanWork() / c.Duration
		c.Mean = math.Max(1.8, math.Min(c.Mean, most))
		if c.Mean > best.Mean {
			best = c
		}
		if c.Mean == sc.Mean {
			break
		}
	}
	*sc = best
}

// fill draws the requests: Poisson arrivals at rate[t] times the mean.
func (sc *Scenario) fill(r *rand.Rand, rate []float64) {
	sc.arrivals(r, len(rate), func(t float64) float64 { return rate[int(t)] }, func(float64) float64 { return 1 })
	sc.index(sc.workOf())
}

// arrivals draws the requests of so many seconds: rate(t) times the mean, with prompts
// that are prompts(t) times as long as usual.
func (sc *Scenario) arrivals(r *rand.Rand, seconds int, rate, prompts func(t float64) float64) {
	st := &stream{}
	perSecond := sc.Mean / sc.meanWork()
	longest := sc.longestPrompt()
	for t := range seconds {
		now := float64(t)
		n := poisson(r, rate(now)*perSecond)
		from := len(st.at)
		for range n {
			st.at = append(st.at, now+r.Float64())
		}
		insertionSort(st.at[from:])
		for range n {
			in := int32(math.Min(longest, math.Max(16, lognormal(r, sc.Shape.Prompt*prompts(now), promptCV))))
			st.in = append(st.in, in)
			st.ctx = append(st.ctx, in)
			st.out = append(st.out, int32(math.Max(4, lognormal(r, sc.Shape.Out, outCV))))
		}
	}
	sc.st = st
}

// wobble is a level about 1 that is drawn anew every so many seconds, for calls with
// rising whole seconds.
func wobble(r *rand.Rand, every int, cv float64) func(t float64) float64 {
	k := 1.0
	return func(t float64) float64 {
		if int(t)%every == 0 {
			k = lognormal(r, 1, cv)
		}
		return k
	}
}

// Spread of the lengths: standard deviation over mean.
const (
	promptCV = 0.5
	outCV    = 0.6
)

type generator struct {
	span  func(r *rand.Rand) (duration, scoreFrom float64)
	level func(r *rand.Rand, duration float64) func(t float64) float64
}

func generators() map[string]generator {
	short := func(r *rand.Rand) (float64, float64) { return math.Round(3600 * uniform(r, 3.5, 5)), 3600 }
	long := func(r *rand.Rand) (float64, float64) {
		d := math.Round(3600 * uniform(r, 9, 12))
		return d, math.Round(0.4 * d)
	}
	return map[string]generator{
		"diurnal": {func(r *rand.Rand) (float64, float64) {
			if r.Float64() < 0.7 {
				return 10 * 3600, 2 * 3600
			}
			return 26 * 3600, 2 * 3600
		}, diurnal},
		"ramp":   {short, ramp},
		"step":   {short, step},
		"bursts": {long, bursts},
		"flash":  {long, flash},
		"onoff":  {long, onoff},
		"batch":  {long, batch},
		"mixed":  {long, mixed},
	}
}

func diurnal(r *rand.Rand, d float64) func(float64) float64 {
	p := d - 2*3600
	a, b := uniform(r, 0.4, 0.75), uniform(r, 0, 0.2)
	f, g := uniform(r, 0, 2*math.Pi), uniform(r, 0, 2*math.Pi)
	return func(t float64) float64 {
		x := 2 * math.Pi * t / p
		return math.Max(0.05, 1+a*math.Sin(x+f)+b*math.Sin(2*x+g))
	}
}

// path is a piecewise linear level.
type path struct{ t, v []float64 }

func (p *path) add(t, v float64) { p.t, p.v = append(p.t, t), append(p.v, v) }
func (p *path) at(t float64) float64 {
	for i := len(p.t) - 1; i >= 0; i-- {
		if t >= p.t[i] {
			if i == len(p.t)-1 {
				return p.v[i]
			}
			return p.v[i] + (p.v[i+1]-p.v[i])*(t-p.t[i])/math.Max(1e-9, p.t[i+1]-p.t[i])
		}
	}
	return p.v[0]
}

// wander makes a path that moves by at most a factor of 2.5 at a time, each move
// taking move() seconds and each plateau plateau() seconds.
func wander(r *rand.Rand, d float64, move, plateau func() float64) func(float64) float64 {
	p := &path{}
	v := uniform(r, 0.5, 1.2)
	for t := 0.0; t < d; {
		p.add(t, v)
		t += plateau()
		p.add(t, v)
		f := math.Exp(uniform(r, 0.25, 0.9))
		if v*f > 2.2 || (v/f > 0.35 && r.Float64() < 0.5) {
			f = 1 / f
		}
		v *= f
		t += move()
	}
	return p.at
}

func ramp(r *rand.Rand, d float64) func(float64) float64 {
	return wander(r, d, func() float64 { return uniform(r, 600, 3600) }, func() float64 { return uniform(r, 600, 2400) })
}

func step(r *rand.Rand, d float64) func(float64) float64 {
	return wander(r, d, func() float64 { return uniform(r, 1, 20) }, func() float64 { return uniform(r, 1800, 5400) })
}

// event is an excursion above the base level.
type event struct{ at, rise, hold, decay, height float64 }

func (e event) level(t float64) float64 {
	x := t - e.at
	switch {
	case x < 0:
		return 0
	case x < e.rise:
		return e.height * x / e.rise
	case x < e.rise+e.hold:
		return e.height
	case e.decay > 0:
		return e.height * math.Exp(-(x-e.rise-e.hold)/e.decay)
	}
	return 0
}

func withEvents(base func(float64) float64, ev []event) func(float64) float64 {
	i := 0
	return func(t float64) float64 { // called with rising t
		v := base(t)
		for i < len(ev) && ev[i].at+ev[i].rise+ev[i].hold+8*ev[i].decay < t {
			i++
		}
		for j := i; j < len(ev) && ev[j].at <= t; j++ {
			v += ev[j].level(t)
		}
		return v
	}
}

func flat(float64) float64 { return 1 }

// burstEvents are memoryless excursions of seconds to two minutes.
func burstEvents(r *rand.Rand, d float64) []event {
	gap := uniform(r, 300, 1800)
	length := logUniform(r, 8, 90)
	height := uniform(r, 0.9, 2.5)
	var ev []event
	for t := r.ExpFloat64() * gap; t < d; t += r.ExpFloat64() * gap {
		hold := clamp(length*uniform(r, 0.5, 1.5), 5, 120)
		ev = append(ev, event{at: t, rise: 1, hold: hold, height: clamp(height*uniform(r, 0.7, 1.3), 0.7, 3)})
		t += hold
	}
	return ev
}

func bursts(r *rand.Rand, d float64) func(float64) float64 {
	return withEvents(flat, burstEvents(r, d))
}

// crowds are rare, high excursions that rise at once and decay over minutes.
func crowds(r *rand.Rand, d float64) []event {
	gap := uniform(r, 4800, 9000)
	var ev []event
	for t := uniform(r, 0.3, 1) * gap; t < d; t += gap * uniform(r, 0.6, 1.5) {
		ev = append(ev, event{at: t, rise: uniform(r, 5, 90), hold: uniform(r, 30, 240), decay: uniform(r, 180, 1200), height: uniform(r, 2, 5)})
	}
	return ev
}

func flash(r *rand.Rand, d float64) func(float64) float64 { return withEvents(flat, crowds(r, d)) }

func onoff(r *rand.Rand, d float64) func(float64) float64 {
	on, off := uniform(r, 300, 1800), uniform(r, 300, 1800)
	low := uniform(r, 0.02, 0.3)
	p := &path{}
	for t := 0.0; t < d; {
		p.add(t, 1)
		t += on * uniform(r, 0.6, 1.4)
		p.add(t, 1)
		t += 2
		p.add(t, low)
		t += off * uniform(r, 0.6, 1.4)
		p.add(t, low)
		t += 2
	}
	return p.at
}

// jobs are excursions that a clock starts.
func jobs(r *rand.Rand, d float64) []event {
	period := []float64{1800, 3600}[r.IntN(2)]
	length, height := uniform(r, 60, 300), uniform(r, 1, 3)
	var ev []event
	for t := uniform(r, 0, period); t < d; t += period {
		ev = append(ev, event{at: t + 5*r.NormFloat64(), rise: 1, hold: length * uniform(r, 0.9, 1.1), height: height})
	}
	return ev
}

func batch(r *rand.Rand, d float64) func(float64) float64 { return withEvents(flat, jobs(r, d)) }

// mixed is a slow wave with steps and ramps, under one kind of excursion.
func mixed(r *rand.Rand, d float64) func(float64) float64 {
	wave := diurnal(r, 10*3600)
	calm := func(t float64) float64 { return 0.5 + 0.5*wave(t) }
	if r.Float64() < 0.5 {
		w := wander(r, d, func() float64 { return uniform(r, 5, 1200) }, func() float64 { return uniform(r, 1800, 5400) })
		base := calm
		calm = func(t float64) float64 { return base(t) * (0.5 + 0.5*w(t)) }
	}
	kinds := []func(*rand.Rand, float64) []event{burstEvents, crowds, jobs}
	return withEvents(calm, kinds[r.IntN(len(kinds))](r, d))
}

func clamp(v, lo, hi float64) float64 { return math.Max(lo, math.Min(hi, v)) }

func uniform(r *rand.Rand, lo, hi float64) float64 { return lo + (hi-lo)*r.Float64() }

func logUniform(r *rand.Rand, lo, hi float64) float64 {
	return lo * math.Exp(r.Float64()*math.Log(hi/lo))
}

// lognormal draws with the given mean and coefficient of variation.
func lognormal(r *rand.Rand, mean, cv float64) float64 {
	v := math.Log(1 + cv*cv)
	return mean * math.Exp(r.NormFloat64()*math.Sqrt(v)-v/2)
}

func poisson(r *rand.Rand, mean float64) int {
	if mean <= 0 {
		return 0
	}
	if mean > 200 {
		return max(0, int(math.Round(mean+math.Sqrt(mean)*r.NormFloat64())))
	}
	n, p, l := 0, r.Float64(), math.Exp(-mean)
	for p > l {
		n++
		p *= r.Float64()
	}
	return n
}

func insertionSort(a []float64) {
	for i := 1; i < len(a); i++ {
		for j := i; j > 0 && a[j] < a[j-1]; j-- {
			a[j], a[j-1] = a[j-1], a[j]
		}
	}
}
