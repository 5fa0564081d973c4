// SPDX-License-Identifier: Apache-2.0

package scalesim

import (
	"fmt"
	"math"
	"math/rand/v2"

	"github.com/penstock-project/penstock/internal/scale"
)

// NamedScenarios returns every named situation, in the order in which help lists
// them.
func NamedScenarios() []Named {
	return []Named{
		{Name: "cpu-never-scales", Title: "An HPA on CPU while the load doubles",
			Question: "The CPU target is 70 %. Why does it never add a replica?", parts: cpuParts, judge: cpuJudge},
		{Name: "flap-3-6", Title: "A queue target and a window that is shorter than a start",
			Question: "Why does the fleet go between 3 and 6 all day?", parts: flapParts, judge: flapJudge},
		{Name: "cold-replica", Title: "A port that answers half a minute before the model does",
			Question: "Why do new replicas answer after 30 s, and how is it prevented?", parts: coldParts, judge: coldJudge},
		{Name: "X1", Title: "20 requests a second at once onto one replica, at most 10",
			Question: "A fixed load that needs the whole fleet: how long is it overloaded?", parts: fixedParts, judge: fixedJudge},
		{Name: "X2", Title: "15, 2, 10, 15, 5, 2 requests a second, 150 s each",
			Question: "Bursts that are hardly longer than a start: are requests lost?", parts: burstyParts, judge: burstyJudge},
		{Name: "X3", Title: "Code completion and chat, replicas that take 30, 120 and 600 s",
			Question: "How close to the clairvoyant and to the best static fleet is each scaler?", parts: codeParts, judge: codeJudge, bounds: true},
		{Name: "X4", Title: "The same chat behind a router that knows prefixes and one that does not",
			Question: "Does the scaler keep fewer replicas where caches hit?", parts: cacheParts, judge: cacheJudge},
		{Name: "X5", Title: "A day of 24 hours with uneven gaps between requests",
			Question: "What does it save over an HPA that serves as well?", parts: dayParts, judge: dayJudge},
		{Name: "X6", Title: "Steady load at 4.5 replicas with noise, replicas that take 540 s",
			Question: "How often does the fleet change its direction?", parts: noiseParts, judge: noiseJudge},
		{Name: "X7", Title: "Thirty variants that are seldom asked for, over two weeks",
			Question: "Which of them should go to zero? (more: penstock whatif zero)", parts: func(uint64, *Scenario) []part { return nil }, judge: zeroGoals},
		{Name: "X8", Title: "Metrics lost, a replica that lies, a quota that is used up",
			Question: "Does a fault ever take replicas away from a busy pool?", parts: faultParts, judge: faultJudge},
		{Name: "X9", Title: "Replicas that start in half a second to two seconds",
			Question: "Is prediction needed where starting is fast?", parts: fastParts, judge: fastJudge},
	}
}

func policies(names ...string) []Policy { return append(baselineNamed(names...), &Penstock{}) }

func cpuParts(seed uint64, _ *Scenario) []part {
	d := spec{name: "doubling", model: model32B(), shape: Shape{"chat", 1100, 255}, start: 240, seed: seed, duration: 9000, from: 1800, noise: 0.1, sizes: 16}
	u := d.unit()
	d.rate = func(t float64) float64 { return u * (2.2 + 3*clamp((t-2700)/1800, 0, 1)) }
	sc := d.draw()
	sc.Initial = 3
	return []part{{sc, []Policy{hpaCPU(), &Penstock{}}}}
}

func cpuJudge(p []Played) []Goal {
	cpu, _ := p[0].Result("hpa cpu 70 %")
	ours, _ := p[0].Result(Ours)
	return []Goal{
		check(ups(&cpu) == 0 && cpu.Attainment < 0.7, 1, "harm: an HPA on CPU adds nothing and misses the objective", "%d scale-ups, %.1f %% in time", ups(&cpu), 100*cpu.Attainment),
		check(ours.Attainment >= 0.99, 1, "ours: 99 % in time", "%.2f %% in time, largest fleet %d", 100*ours.Attainment, ours.MaxReplicas),
	}
}

// ups counts the scale-ups of a recorded run.
func ups(r *Result) int {
	n := 0
	for _, s := range r.path {
		if s.want > s.before && s.before > 0 {
			n++
		}
	}
	return n
}

// downsWithin counts the scale-downs of a recorded run in a span of seconds.
func downsWithin(r *Result, from, to float64) int {
	n := 0
	for _, s := range r.path {
		if s.at >= from && s.at < to && s.want >= 0 && s.want < s.before {
			n++
		}
	}
	return n
}

func flapParts(seed uint64, _ *Scenario) []part {
	d := spec{name: "4.5 replicas", model: model32B(), shape: Shape{"code", 2300, 40}, start: 180, seed: seed, duration: 18000, from: 3600, noise: 0.15, sizes: 16}
	u := d.unit()
	k := wobble(rand.New(rand.NewPCG(seed, 0xf1a9)), 30, 0.15)
	d.rate = func(t float64) float64 { return 3.9 * u * k(t) }
	sc := d.draw()
	sc.Most = 6
	sc.most = 6
	hpa := hpaSpec(shortHPA, 3, func(s *scale.HPASpec) { s.Down.Window, s.Min = 15, 3 }, func(o *Obs) float64 { return o.Waiting })
	return []part{{sc, []Policy{hpa, &Penstock{}}}}
}

// shortHPA is the HPA of the incident: its window is a twelfth of a start.
const shortHPA = "hpa waiting 3, down window 15 s"

// flapReversals is how many changes of direction an hour make a fleet flap.
const flapReversals = 6.0

func flapJudge(p []Played) []Goal {
	hpa, _ := p[0].Result(shortHPA)
	ours, _ := p[0].Result(Ours)
	return []Goal{
		check(hpa.Reversals > flapReversals && between(&hpa, 3, 6), 1, "harm: the HPA goes between 3 or fewer and 6", "%.1f reversals an hour, %.1f starts an hour, %.1f %% in time", hpa.Reversals, hpa.StartsPerHour, 100*hpa.Attainment),
		check(ours.Reversals <= 2, 1, "ours: at most two reversals an hour", "%.1f reversals an hour", ours.Reversals),
		check(ours.Attainment >= 0.99, 1, "ours: 99 % in time", "%.2f %% in time at %.1f replicas", 100*ours.Attainment, replicas(&p[0], Ours)),
	}
}

// between reports whether a recorded run wanted at most lo and at least hi.
func between(r *Result, lo, hi int) bool {
	least, most := math.MaxInt, 0
	for _, s := range r.path {
		if s.want >= 0 {
			least, most = min(least, s.want), max(most, s.want)
		}
	}
	return least <= lo && most >= hi
}

func coldParts(seed uint64, _ *Scenario) []part {
	d := spec{name: "a busy afternoon", model: model32B(), shape: Shape{"chat", 1100, 255}, start: 150, seed: seed, duration: 9000, from: 2700, noise: 0.1, sizes: 16}
	u := d.unit()
	d.rate = func(t float64) float64 { return u * (3 + 3.5*clamp((t-3600)/2400, 0, 1)) }
	sc := d.draw()
	sc.Cold = 35
	p := baselineNamed("hpa concurrency average 0.60")[0]
	return []part{{sc, []Policy{naive{p}, &Penstock{}}}}
}

func coldJudge(p []Played) []Goal {
	hpa, _ := p[0].Result("hpa concurrency average 0.60")
	ours, _ := p[0].Result(Ours)
	return []Goal{
		check(hpa.TTFTp99 >= 25_000, 1, "harm: requests on a replica that is not warm wait 25 s and more", "p99 %s, %.2f %% in time", seconds1(hpa.TTFTp99), 100*hpa.Attainment),
		check(ours.TTFTp99 <= 2_000 && ours.Attainment >= 0.99, 1, "ours: nothing is sent before the model serves", "p99 %s, %.2f %% in time", seconds1(ours.TTFTp99), 100*ours.Attainment),
	}
}

func fixedParts(seed uint64, _ *Scenario) []part {
	var out []part
	for i, sh := range []Shape{{"4000/1000", 4000, 1000}, {"1000/1000", 1000, 1000}, {"2000/500", 2000, 500}} {
		d := spec{name: sh.Name, model: model32B(), shape: sh, slo: SLO{TTFT: 4, ITL: 0.2}, start: 110, seed: seed + uint64(i), duration: 600, noise: 0.1, fixed: true, sizes: 12}
		d.model = slowed(d.model, d.unit()/2) // a knee of 2 requests a second
		d.rate = func(float64) float64 { return 20 }
		sc := d.draw()
		sc.Initial, sc.Most, sc.most, sc.Patience, sc.InOrder = 1, 10, 10, -1, true
		keda := hpaSpec("keda queue 5", 5, nil, func(o *Obs) float64 { return o.Waiting })
		out = append(out, part{sc, append([]Policy{Static(2), keda}, policies("wva v1")...)})
	}
	return out
}

func fixedJudge(p []Played) []Goal {
	var out []Goal
	for i := range p {
		ours, _ := p[i].Result(Ours)
		keda, _ := p[i].Result("keda queue 5")
		wva, _ := p[i].Result("wva v1")
		out = append(out, check(ours.TTFTp99 < 254_000 && ours.TTFTp99 <= 1.02*keda.TTFTp99 && ours.TTFTp99 < wva.TTFTp99, 1, p[i].Name+": p99 TTFT under 254 s and under KEDA's and WVA's",
			"%s against %s and %s", seconds1(ours.TTFTp99), seconds1(keda.TTFTp99), seconds1(wva.TTFTp99)))
		out = append(out, check(replicas(&p[i], Ours) <= 1.05*replicas(&p[i], "keda queue 5"), 1, p[i].Name+": no more replicas than KEDA", "%.1f against %.1f", replicas(&p[i], Ours), replicas(&p[i], "keda queue 5")))
	}
	return out
}

func seconds1(ms float64) string {
	if ms >= 900_000 {
		return "never"
	}
	return fmt.Sprintf("%.1f s", ms/1000)
}

func burstyParts(seed uint64, _ *Scenario) []part {
	d := spec{name: "six levels", model: model32B(), shape: Shape{"1000/1000", 1000, 1000}, slo: SLO{TTFT: 4, ITL: 0.2}, start: 103, seed: seed, duration: 900, noise: 0.1, fixed: true, sizes: 12}
	d.model = slowed(d.model, d.unit()/2)
	d.rate = steps([2]float64{0, 15}, [2]float64{150, 2}, [2]float64{300, 10}, [2]float64{450, 15}, [2]float64{600, 5}, [2]float64{750, 2})
	sc := d.draw()
	sc.Initial, sc.Most, sc.most, sc.Patience, sc.InOrder = 1, 10, 10, -1, true
	return []part{{sc, policies("wva v1", "hpa waiting average 5")}}
}

func burstyJudge(p []Played) []Goal {
	ours, _ := p[0].Result(Ours)
	wva, _ := p[0].Result("wva v1")
	return []Goal{
		check(ours.Unanswered == 0, 1, "no request is lost", "%d of %d", ours.Unanswered, p[0].Requests),
		check(ours.TTFTp99 < wva.TTFTp99, 1, "p99 TTFT under WVA's", "%s against %s, with %.1f replicas against %.1f", seconds1(ours.TTFTp99), seconds1(wva.TTFTp99), replicas(&p[0], Ours), replicas(&p[0], "wva v1")),
	}
}

// codeLike is traffic like code completion: seconds of many requests, then little,
// without any rhythm. 1 on average.
func codeLike(seed uint64) func(float64) float64 {
	r := rand.New(rand.NewPCG(seed, 0xc0de))
	until, level := 0.0, 1.0
	return func(t float64) float64 {
		for t >= until {
			if level > 1 {
				until, level = until+5+r.ExpFloat64()*25, uniform(r, 0.05, 0.5)
			} else {
				until, level = until+2+r.ExpFloat64()*8, uniform(r, 1.5, 5)
			}
		}
		return level
	}
}

func codeParts(seed uint64, given *Scenario) []part {
	names := []string{"hpa waiting average 5", "hpa concurrency average 0.30", "hpa concurrency average 0.60", "kpa 0.70", "ray 0.60", "wva v1", "wva v2", "aibrix apa 0.50", "dynamo-like 0.80"}
	var out []part
	for i, start := range []float64{30, 120, 600} {
		if given != nil {
			sc := *given
			sc.Start = Start{Median: start, Sigma: 0.1, Prior: start}
			sc.Name = fmt.Sprintf("%s, start %.0f s", given.Name, start)
			out = append(out, part{&sc, policies(names...)})
			continue
		}
		d := spec{name: fmt.Sprintf("code, start %.0f s", start), model: model32B(), shape: Shape{"code", 2050, 28}, start: start, seed: seed, duration: 3480, from: 600, noise: 0.1, sizes: 24}
		u := d.unit()
		level := codeLike(seed)
		d.rate = func(t float64) float64 { return 4 * u * level(t) }
		out = append(out, part{d.draw(), policies(names...)})
		c := DrawClass(seed+100+uint64(i), "diurnal", start)
		c.Name = fmt.Sprintf("chat day, start %.0f s", start)
		out = append(out, part{c, policies(names...)})
	}
	return out
}

func codeJudge(p []Played) []Goal {
	var out []Goal
	for i := range p {
		ours, _ := p[i].Result(Ours)
		static, _ := p[i].Result(BoundStatic)
		if p[i].Class == "diurnal" {
			out = append(out, check(ours.Attainment >= 0.99 && ours.ReplicaHours <= 0.8*static.ReplicaHours, 1, p[i].Name+": 99 % at 0.8 of the best static fleet",
				"%.2f %% at x%.2f", 100*ours.Attainment, ours.ReplicaHours/static.ReplicaHours))
			continue
		}
		out = append(out, check(ours.Cost <= 1.5, 1, p[i].Name+": within 1.5 of the clairvoyant", "%.2f %% at x%.2f; best static x%.2f", 100*ours.Attainment, ours.Cost, static.Cost))
	}
	return out
}
