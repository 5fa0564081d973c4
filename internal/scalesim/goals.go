// SPDX-License-Identifier: Apache-2.0

package scalesim

import (
	"fmt"
	"math"
)

// Goal is one thing that the scaler is held to, with what a suite says of it.
type Goal struct {
	Goal      string `json:"goal"`
	Got       string `json:"got"`
	Met       bool   `json:"met"`
	Scenarios int    `json:"scenarios"` // that it was judged on; 0: none were drawn
}

// Goals judges our scaler over a suite. A goal about a class whose scenarios were not
// drawn has Scenarios 0 and is not met.
func Goals(played []Played) []Goal {
	g := &judge{played: played}
	calm := func(p *Played) bool { return !p.Faults }
	g.mean("loss <= 1.7", calm, func(m means) (string, bool) { return fmt.Sprintf("%.2f", m.loss), m.loss <= 1.7 })
	g.both("diurnal, 4 replicas and more", "diurnal", 0.99, 1.15, func(p *Played) bool { return p.Mean >= 4 })
	g.both("ramp, start <= 120 s", "ramp", 0.99, 1.3, func(p *Played) bool { return p.StartS <= 120 })
	g.both("step, start <= 120 s", "step", 0.99, 1.3, func(p *Played) bool { return p.StartS <= 120 })
	g.against("bursts: loss within 1.1 of the best fixed rule in hindsight", "bursts")
	g.against("flash crowds: loss within 1.1 of the best fixed rule in hindsight", "flash")
	g.both("batch", "batch", 0.99, 1.5, nil)
	g.both("on-off", "onoff", 0.995, 1.7, nil)
	g.faults()
	g.hindsight()
	g.single()
	g.mean("reversals <= 6 an hour", func(*Played) bool { return true }, func(m means) (string, bool) { return fmt.Sprintf("%.1f", m.reversals), m.reversals <= 6 })
	return g.out
}

type judge struct {
	played []Played
	out    []Goal
}

type means struct {
	n                          int
	loss, slo, cost, reversals float64
}

func (j *judge) over(policy string, in func(*Played) bool) means {
	var m means
	for i := range j.played {
		p := &j.played[i]
		r, ok := p.Result(policy)
		if !ok || !in(p) {
			continue
		}
		m.n++
		m.loss += r.Loss
		m.slo += r.Attainment
		m.cost += r.Cost
		m.reversals = math.Max(m.reversals, 0) + r.Reversals
	}
	k := math.Max(1, float64(m.n))
	m.loss, m.slo, m.cost, m.reversals = m.loss/k, m.slo/k, m.cost/k, m.reversals/k
	return m
}

func (j *judge) mean(goal string, in func(*Played) bool, say func(means) (string, bool)) {
	m := j.over(Ours, in)
	if m.n == 0 {
		j.out = append(j.out, Goal{Goal: goal, Got: "none drawn"})
		return
	}
	got, met := say(m)
	j.out = append(j.out, Goal{goal, got, met, m.n})
}

// both judges the attainment and the cost of one class.
func (j *judge) both(name, class string, slo, cost float64, in func(*Played) bool) {
	goal := fmt.Sprintf("%s: %.1f %% at <= %.2f x clairvoyant", name, 100*slo, cost)
	j.mean(goal, func(p *Played) bool { return p.Class == class && !p.Faults && (in == nil || in(p)) },
		func(m means) (string, bool) {
			return fmt.Sprintf("%.2f %% at x%.2f", 100*m.slo, m.cost), m.slo >= slo && m.cost <= cost
		})
}

func (j *judge) against(goal, class string) {
	in := func(p *Played) bool {
		_, ok := p.Result(BoundFixed)
		return ok && p.Class == class && !p.Faults
	}
	fixed := j.over(BoundFixed, in)
	j.mean(goal, in, func(m means) (string, bool) {
		return fmt.Sprintf("%.2f against %.2f", m.loss, fixed.loss), m.loss <= 1.1*fixed.loss
	})
}

func (j *judge) faults() {
	j.mean("faults, start <= 120 s: 98 %", func(p *Played) bool { return p.Faults && p.StartS <= 120 },
		func(m means) (string, bool) { return fmt.Sprintf("%.2f %%", 100*m.slo), m.slo >= 0.98 })
}

// hindsight counts the scenarios in which ours is no worse than the best baseline
// of that scenario, within 2 %.
func (j *judge) hindsight() {
	n, good := 0, 0
	for i := range j.played {
		p := &j.played[i]
		best, ok := p.Result(BoundBaseline)
		ours, ok2 := p.Result(Ours)
		if !ok || !ok2 || p.Faults {
			continue
		}
		n++
		if ours.Loss <= 1.02*best.Loss {
			good++
		}
	}
	if n > 0 {
		share := float64(good) / float64(n)
		j.out = append(j.out, Goal{"no worse than the best baseline per scenario in 65 %", fmt.Sprintf("%d of %d, %.0f %%", good, n, 100*share), share >= 0.65, n})
	}
}

// single compares with the best single configuration.
func (j *judge) single() {
	calm := func(p *Played) bool { return !p.Faults }
	best, name := math.Inf(1), ""
	for _, b := range Baselines() {
		if m := j.over(b.Name(), calm); m.n > 0 && m.loss < best {
			best, name = m.loss, b.Name()
		}
	}
	if name == "" {
		return
	}
	j.mean("loss at most half of the best single baseline", calm, func(m means) (string, bool) {
		return fmt.Sprintf("%.2f against %.2f (%s)", m.loss, best, name), m.loss <= best/2
	})
}
