// SPDX-License-Identifier: Apache-2.0

package scalesim

import (
	"fmt"
	"math"
	"math/rand/v2"
	"strings"

	"github.com/penstock-project/penstock/internal/engine"
	"github.com/penstock-project/penstock/internal/scale"
)

// SignalVerdict is what one signal is worth as the base of a scaler: how long
// before the objective is missed it asks for more, how often it does so for
// nothing, and what an autoscaler on it makes of four hours of traffic.
type SignalVerdict struct {
	Signal string `json:"signal"`
	Target string `json:"target"`
	// LeadS is the time in seconds from its first demand for more replicas to the
	// first minute under the objective, the fleet left as it is: the least over the
	// ways into overload. Negative: it came after. Null: never, in one of them.
	LeadS     *float64           `json:"lead_s"`
	Leads     map[string]float64 `json:"leads_s"`      // by way into overload; absent: it never asked
	Missed    []string           `json:"unseen"`       // ways into overload that it never showed
	AtRest    bool               `json:"asks_at_rest"` // it asks for more of a fleet with half as much again as it needs
	False     int                `json:"false_up"`     // scale-ups while the fleet was large enough for half an hour
	Spike     bool               `json:"false_up_on_tokenisation"`
	Reversals float64            `json:"reversals_per_hour"`
	SLO       float64            `json:"slo"`
	Cost      float64            `json:"cost_vs_clairvoyant"`
	Loss      float64            `json:"loss"`
	Why       string             `json:"why"`
}

// SignalReport is the answer to "which signal should I scale on?".
type SignalReport struct {
	Schema  string          `json:"schema"` // penstock/scale-signals/v1
	Seed    uint64          `json:"seed"`
	Model   string          `json:"model"`
	StartS  float64         `json:"start_s"`
	Hours   float64         `json:"hours"`
	Signals []SignalVerdict `json:"signals"` // in the order of the question, ours last
	Verdict string          `json:"verdict"`
}

const overloadAt = 3600.0 // s

// overloads are the ways in which a fleet becomes too small, with what the rate of
// requests and the length of prompts do. All begin at overloadAt, when every scaler has seen the traffic.
func overloads() []struct {
	name          string
	rate, prompts func(t float64) float64
} {
	one := func(float64) float64 { return 1 }
	grow := func(by, over float64) func(float64) float64 {
		return func(t float64) float64 { return 1 + by*clamp((t-overloadAt)/over, 0, 1) }
	}
	return []struct {
		name          string
		rate, prompts func(t float64) float64
	}{
		{"more requests", grow(1.2, 1200), one},
		{"longer prompts", one, grow(3, 1200)},
		{"a sudden crowd", grow(1.2, 20), one},
	}
}

// Signals runs an HPA on each signal that people try, and ours, over the same
// traffic. start is the start-up time of a replica in seconds.
func Signals(seed uint64, start float64) (SignalReport, error) {
	m, ok := engine.Lookup("qwen3-32b-2xrtxpro6000")
	if !ok {
		return SignalReport{}, fmt.Errorf("the engine profile that the signals are judged on is missing")
	}
	day := signalDay(seed, m, start)
	out := SignalReport{Schema: "penstock/scale-signals/v1", Seed: seed, Model: m.Name, StartS: start, Hours: day.Duration / 3600}
	best := Clairvoyant(day)
	for _, p := range signalPolicies() {
		v := SignalVerdict{Signal: p.name, Target: p.target, Why: p.why, Leads: map[string]float64{}}
		v.lead(seed, m, start, p)
		v.closed(day, p, best.ReplicaHours)
		out.Signals = append(out.Signals, v)
	}
	out.Verdict = verdict(out.Signals)
	return out, nil
}

// signalScenario draws Poisson traffic of 1,100 tokens in and 255 out whose rate
// and prompts follow functions of time; mean is the offered work at 1 and 1, in
// replicas at their knee.
func signalScenario(seed uint64, m engine.Profile, start, hours, from, mean float64, rate, prompts func(float64) float64) *Scenario {
	sc := &Scenario{Class: "signals", Seed: seed, Model: m, Shape: Shape{"chat", 1100, 255}, SLO: SLO{TTFT: 2, ITL: 0.2},
		Start: Start{Median: start, Sigma: 0.15, Prior: start}, Noise: 0.1,
		Duration: 3600 * hours, ScoreFrom: from, Mean: mean}
	sc.prepare()
	sc.arrivals(rand.New(rand.NewPCG(seed, 0x519)), int(sc.Duration), rate, prompts)
	// The unit of work is the request before prompts grow.
	unit := sc.raw(sc.Shape.Prompt, sc.Shape.Prompt) / sc.meanWork()
	sc.index(func(in, ctx int32) float64 { return sc.raw(float64(in), float64(ctx)) / unit })
	return sc
}

// tokeniseAt is when the host's CPUs tokenise for somebody else, and for how long.
const (
	tokeniseAt  = 11400.0
	tokeniseFor = 420.0
)

// signalDay is four hours that hold every trap: noise about a steady level, a slow
// rise, longer prompts at the same rate, a sudden crowd, a quiet time in which a
// batch job tokenises on the hosts, and the way down.
func signalDay(seed uint64, m engine.Profile, start float64) *Scenario {
	r := rand.New(rand.NewPCG(seed, 0xda1))
	noise := wobble(r, 10, 0.2)
	rate := &path{}
	for _, p := range [][2]float64{{0, 1}, {2400, 1}, {3600, 2}, {5400, 2}, {6300, 1}, {9000, 1}, {9010, 2}, {9600, 2}, {10200, 0.1}, {12600, 0.1}, {12900, 1}, {14400, 1}} {
		rate.add(p[0], p[1])
	}
	prompts := &path{}
	for _, p := range [][2]float64{{0, 1}, {6600, 1}, {7500, 3}, {8400, 3}, {8700, 1}} {
		prompts.add(p[0], p[1])
	}
	level := func(t float64) float64 { return noise(t) * rate.at(t) }
	sc := signalScenario(seed, m, start, 4, 1800, 4.2, level, prompts.at)
	sc.Name = "four hours with every trap"
	sc.Tokenise = []Spike{{tokeniseAt, tokeniseAt + tokeniseFor, 0.9}}
	return sc
}

// firstMiss is the end of the first minute, from moment from on, in which fewer than
// 95 % of the requests that arrived met their time to the first token on a fleet
// that does not change.
func firstMiss(sc *Scenario, n int, from float64) float64 {
	s := newRun(sc)
	playInto(s, Static(n))
	st := sc.stream()
	ok, all, minute := 0, 0, int(from/60)
	for i, t := range st.at {
		if t < from {
			continue
		}
		if k := int(t / 60); k != minute {
			if all >= 10 && float64(ok) < 0.95*float64(all) {
				return float64(minute+1) * 60
			}
			ok, all, minute = 0, 0, k
		}
		all++
		if f := s.first[i]; f > 0 && float64(f) <= sc.SLO.TTFT {
			ok++
		}
	}
	return math.Inf(1)
}

// watch lets a policy look on while the fleet stays, and notes when it first asks
// for more.
type watch struct {
	Policy
	n    int
	from float64
	at   float64
	rest bool // it asked in the five minutes before
}

func (w *watch) Initial(sc *Scenario) int { w.Policy.Initial(sc); return w.n }
func (w *watch) Want(o *Obs) int {
	if n := w.Policy.Want(o); n > w.n {
		if o.Now >= w.from && w.at == 0 {
			w.at = o.Now
		}
		w.rest = w.rest || o.Now >= w.from-300 && o.Now < w.from
	}
	return w.n
}

func (v *SignalVerdict) lead(seed uint64, m engine.Profile, start float64, p signalPolicy) {
	least, never := math.Inf(1), false
	v.Missed = []string{}
	for i, o := range overloads() {
		sc := signalScenario(seed+uint64(i)+1, m, start, 1.75, 0, 4.2, o.rate, o.prompts)
		n := sc.need(4.2 * 1.5)
		w := &watch{Policy: p.make(), n: n, from: overloadAt}
		Run(sc, w)
		if w.rest { // who always asks has seen nothing
			v.AtRest = true
			never = true
			continue
		}
		if w.at == 0 {
			never = true
			v.Missed = append(v.Missed, o.name)
			continue
		}
		v.Leads[o.name] = firstMiss(sc, n, overloadAt) - w.at
		least = math.Min(least, v.Leads[o.name])
	}
	if !never {
		v.LeadS = &least
	}
}

// tally counts the scale-ups of a policy that were for nothing.
type tally struct {
	Policy
	sc    *Scenario
	false int
	spike bool
}

func (t *tally) Want(o *Obs) int {
	n := t.Policy.Want(o)
	if n > o.Want && o.Now > t.sc.ScoreFrom {
		if t.sc.enough(o.Want, int(o.Now)) {
			t.false++
		}
		if o.Now >= tokeniseAt && o.Now < tokeniseAt+tokeniseFor+60 {
			t.spike = true // if it is not there without the spike
		}
	}
	return n
}

// enough reports whether n replicas carry, with a fifth to spare, the busiest
// minute from one before moment t to half an hour after it.
func (sc *Scenario) enough(n, t int) bool {
	for k := max(0, t-60); k < min(len(sc.offered)-60, t+1800); k += 30 {
		if sc.need(1.2*sc.offeredAt(k)) > n {
			return false
		}
	}
	return true
}

func (v *SignalVerdict) closed(day *Scenario, p signalPolicy, bestHours float64) {
	t := &tally{Policy: p.make(), sc: day}
	r := Run(day, t)
	r.against(bestHours)
	v.False = t.false
	if t.spike { // only what the spike itself did
		calm := *day
		calm.Tokenise = nil
		u := &tally{Policy: p.make(), sc: &calm}
		Run(&calm, u)
		v.Spike = !u.spike
	}
	v.Reversals, v.SLO, v.Cost, v.Loss = r.Reversals, r.Attainment, r.Cost, r.Loss
}

// signalPolicy is a scaler on one signal.
type signalPolicy struct {
	name, target, why string
	make              func() Policy
}

// signalPolicies are HPAs with their defaults on the signals of the question, with
// the targets that guides give, and ours.
func signalPolicies() []signalPolicy {
	hpa := func(name, target, why string, typ scale.TargetType, value float64, read func(*Obs) float64) signalPolicy {
		return signalPolicy{name, target, why, func() Policy {
			return &baseline{name: "hpa on " + name, period: scale.HPASync, want: hpaReading(typ, value, nil, read)}
		}}
	}
	return []signalPolicy{
		hpa("queue depth", "5 waiting a replica", "zero until the fleet is full, then without bound: late, then too much", scale.AverageValue, 5, func(o *Obs) float64 { return o.Waiting }),
		hpa("KV cache", "80 % in use", "follows long answers; prompts that are prefilled and gone hardly show", scale.Value, 0.8, func(o *Obs) float64 { return o.KV }),
		hpa("TTFT", "1 s mean", "the harm itself: it rises when the objective is already lost, and cold replicas spoil it", scale.Value, 1, func(o *Obs) float64 { return o.TTFT }),
		hpa("CPU", "70 %", scale.RefuseSignal("cpu"), scale.Value, 0.7, func(o *Obs) float64 { return o.CPU }),
		hpa("GPU utilisation", "80 %", scale.RefuseSignal("gpu"), scale.Value, 0.8, func(o *Obs) float64 { return o.Duty }),
		hpa("GPU memory", "80 %", scale.RefuseSignal("memory"), scale.Value, 0.8, func(o *Obs) float64 { return o.Memory }),
		{"requests/s", "70 % of the measured knee", scale.RefuseSignal("rps"), func() Policy {
			return &baseline{name: "hpa on requests/s", period: scale.HPASync, want: hpaRequests}
		}},
		{"work offered", "none: computed", "counts what requests bring before it is queued, and what is already starting", func() Policy { return &Penstock{} }},
	}
}

// hpaRequests is an HPA on the requests of the last minute, at 70 % of what a
// replica carried when it was measured.
func hpaRequests(sc *Scenario) func(o *Obs) int {
	return hpaReading(scale.AverageValue, 0.7/sc.meanWork(), nil, func(o *Obs) float64 {
		k, n := min(60, len(o.Arrived)), 0.0
		for _, a := range o.Arrived[len(o.Arrived)-k:] {
			n += float64(a)
		}
		return n / math.Max(1, float64(k))
	})(sc)
}

// verdict says in a sentence what the table shows.
func verdict(all []SignalVerdict) string {
	best, ours := -1, len(all)-1
	var pinned, spoilt []string
	for i := range all[:ours] {
		v := &all[i]
		if v.Spike {
			spoilt = append(spoilt, v.Signal)
		}
		if v.AtRest {
			pinned = append(pinned, v.Signal)
		} else if best < 0 || v.Loss < all[best].Loss {
			best = i
		}
	}
	o := &all[ours]
	s := fmt.Sprintf("Scale on the work that is offered: it %s and gives %.1f %% in time at %.2f times the least cost", o.leads(), 100*o.SLO, o.Cost)
	if best >= 0 {
		b := &all[best]
		s += fmt.Sprintf(". The best signal that an HPA can read is %s: it %s and gives %.1f %% at %.2f times", b.Signal, b.leads(), 100*b.SLO, b.Cost)
	}
	if len(pinned) > 0 {
		s += fmt.Sprintf(". %s only ever %s the fleet at its maximum", strings.Join(pinned, " and "), plural(len(pinned), "holds", "hold"))
	}
	if len(spoilt) > 0 {
		s += ". Tokenisation beside idle accelerators adds replicas on " + strings.Join(spoilt, " and ")
	}
	return s + "."
}

// leads says when a signal asks.
func (v *SignalVerdict) leads() string {
	switch {
	case v.AtRest:
		return "asks for more whatever is offered"
	case v.LeadS == nil:
		return "never shows " + strings.Join(v.Missed, " or ")
	case *v.LeadS < 0:
		return fmt.Sprintf("asks up to %.0f s after the objective is missed", -*v.LeadS)
	}
	return fmt.Sprintf("asks at least %.0f s before the objective is missed", *v.LeadS)
}

func plural(n int, one, many string) string {
	if n == 1 {
		return one
	}
	return many
}
