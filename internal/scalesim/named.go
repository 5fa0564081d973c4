// SPDX-License-Identifier: Apache-2.0

package scalesim

import (
	"fmt"
	"math"
	"math/rand/v2"

	"github.com/penstock-project/penstock/internal/engine"
	"github.com/penstock-project/penstock/internal/scale"
)

// Named is a situation with a question, the scalers that people use in it, and what
// has to come out.
type Named struct {
	Name, Title, Question string
	// parts returns what is played. given is recorded traffic in the place of what
	// would be drawn; nil: draw.
	parts func(seed uint64, given *Scenario) []part
	judge func([]Played) []Goal
	// bounds runs the bounds that know the future too.
	bounds bool
}

// part is one scenario of a named situation with the policies that are compared.
type part struct {
	sc       *Scenario
	policies []Policy
}

// NamedReport is a named situation, played.
type NamedReport struct {
	Schema   string   `json:"schema"` // penstock/scale-scenario/v1
	Name     string   `json:"name"`
	Title    string   `json:"title"`
	Question string   `json:"question"`
	Seed     uint64   `json:"seed"`
	Parts    []Played `json:"parts"`
	Goals    []Goal   `json:"goals"`
}

// Play plays the situation and judges it. given replaces the drawn traffic where
// the situation is about a kind of trace; nil: draw it.
func (n *Named) Play(seed uint64, given *Scenario) NamedReport {
	return n.play(seed, given, clairvoyantWindows[:])
}

// play is Play with a clairvoyant that reads the future in some of its windows.
func (n *Named) play(seed uint64, given *Scenario, windows []float64) NamedReport {
	r := NamedReport{Schema: "penstock/scale-scenario/v1", Name: n.Name, Title: n.Title, Question: n.Question, Seed: seed}
	for _, p := range n.parts(seed, given) {
		r.Parts = append(r.Parts, playPart(p, n.bounds, windows))
	}
	r.Goals = n.judge(r.Parts)
	return r
}

func playPart(p part, bounds bool, windows []float64) Played {
	sc := p.sc
	out := sc.played()
	best := clairvoyant(sc, windows)
	out.Results = append(out.Results, best)
	if bounds {
		hindsight, previous := BestStatic(sc)
		out.Results = append(out.Results, hindsight, previous)
	}
	for _, pol := range p.policies {
		t := &trail{Policy: pol}
		var q Policy = t
		if _, ok := pol.(naive); ok {
			q = naive{t}
		}
		r := Run(sc, q)
		r.path = t.path
		out.Results = append(out.Results, r)
	}
	for i := range out.Results {
		out.Results[i].against(best.ReplicaHours)
	}
	return out
}

// trail remembers what a policy wanted.
type trail struct {
	Policy
	path []wanted
}

// wanted is a moment and the fleet that was wanted before and from it on.
type wanted struct {
	at           float64
	before, want int
}

func (t *trail) Want(o *Obs) int {
	n := t.Policy.Want(o)
	t.path = append(t.path, wanted{o.Now, o.Want, n})
	return n
}

// naive is a policy with what often stands in front of a fleet: a router that
// counts requests, holds none, and takes an open port for a server that serves.
type naive struct{ Policy }

// spec draws traffic for a named situation.
type spec struct {
	name     string
	model    engine.Profile
	shape    Shape
	slo      SLO
	start    float64 // s
	seed     uint64
	duration float64 // s
	from     float64 // s that are not scored
	rate     func(t float64) float64
	fixed    bool    // all requests have the mean lengths
	noise    float64 // of scraped signals
	sizes    int     // fleets up to this size are measured; 0: all
}

func model32B() engine.Profile {
	p, _ := engine.Lookup("qwen3-32b-2xrtxpro6000")
	return p
}

// draw makes the scenario: Poisson arrivals at rate(t), in requests a second.
func (d spec) draw() *Scenario {
	if d.slo == (SLO{}) {
		d.slo = SLO{TTFT: 2, ITL: 0.2}
	}
	sc := &Scenario{Name: d.name, Class: "named", Seed: d.seed, Model: d.model, Shape: d.shape, SLO: d.slo,
		Start: Start{Median: d.start, Sigma: 0.1, Prior: d.start}, Noise: d.noise}
	r := rand.New(rand.NewPCG(d.seed, 0x4a3e))
	longest := sc.longestPrompt()
	var recs []record
	for t := 0.0; t < d.duration; t++ {
		n := poisson(r, d.rate(t))
		at := make([]float64, n)
		for i := range at {
			at[i] = t + r.Float64()
		}
		insertionSort(at)
		for _, a := range at {
			in, out := d.shape.Prompt, d.shape.Out
			if !d.fixed {
				in, out = lognormal(r, in, promptCV), lognormal(r, out, outCV)
			}
			recs = append(recs, record{at: a, ctx: int32(math.Min(longest, math.Max(16, in))), out: int32(math.Max(4, out))})
		}
	}
	sc.calibrate(recs, d.sizes)
	sc.load(recs, d.duration, d.from)
	return sc
}

// unit is the rate in requests a second that one of sixteen replicas carries of a
// shape, with lengths spread as drawn ones are.
func (d spec) unit() float64 {
	d.rate, d.duration, d.seed, d.sizes = func(float64) float64 { return 20 }, 200, 99, 1
	return d.draw().knee.rate
}

// slowed is a profile whose every step takes k times as long.
func slowed(p engine.Profile, k float64) engine.Profile {
	p.Base, p.PTok, p.PAttn, p.DSeq, p.DCtx = p.Base*k, p.PTok*k, p.PAttn*k, p.DSeq*k, p.DCtx*k
	return p
}

// steps is a level that changes at once: pairs of time in seconds and level.
func steps(pairs ...[2]float64) func(float64) float64 {
	return func(t float64) float64 {
		v := pairs[0][1]
		for _, p := range pairs {
			if t >= p[0] {
				v = p[1]
			}
		}
		return v
	}
}

// baselineNamed returns fresh baselines by name, in the order asked for.
func baselineNamed(names ...string) []Policy {
	var out []Policy
	for _, n := range names {
		for _, b := range Baselines() {
			if b.Name() == n {
				out = append(out, b)
			}
		}
	}
	return out
}

// hpaSpec is an HPA with its own behaviour on one sum.
func hpaSpec(name string, target float64, change func(*scale.HPASpec), read func(*Obs) float64) Policy {
	return &baseline{name: name, period: scale.HPASync, want: hpaReading(scale.AverageValue, target, change, read)}
}

// hpaCPU is the HPA that most people begin with.
func hpaCPU() Policy {
	return &baseline{name: "hpa cpu 70 %", period: scale.HPASync, want: hpaReading(scale.Value, 0.7, nil, func(o *Obs) float64 { return o.CPU })}
}

// thresholds is a scaler by shares of what replicas carry, as BlitzScale has it: up
// above 40 % of the prefill, down under 15 % after a second and a half.
func thresholds() Policy {
	return &baseline{name: "thresholds .15-.4", period: 1, want: func(*Scenario) func(o *Obs) int {
		low := 0.0
		return func(o *Obs) int {
			u := 0.0
			for _, v := range o.Offered[max(0, len(o.Offered)-2):] {
				u += v / 2
			}
			share := u / math.Max(1, float64(o.Want))
			if share >= 0.15 {
				low = o.Now
			}
			switch {
			case share > 0.4:
				return int(math.Ceil(u / 0.4))
			case o.Now-low > 1.5 && o.Want > 1:
				return max(1, int(math.Ceil(u/0.4)))
			}
			return o.Want
		}
	}}
}

// check is one line of a verdict.
func check(met bool, n int, goal, format string, a ...any) Goal {
	return Goal{Goal: goal, Got: fmt.Sprintf(format, a...), Met: met, Scenarios: n}
}

// replicas is the mean fleet of a result.
func replicas(p *Played, policy string) float64 {
	r, _ := p.Result(policy)
	return r.ReplicaHours / p.Hours
}
