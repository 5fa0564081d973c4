// SPDX-License-Identifier: Apache-2.0

package scalesim

import (
	"math"
	"math/rand/v2"

	"github.com/penstock-project/penstock/internal/engine"
	"github.com/penstock-project/penstock/internal/workload"
)

func cacheParts(seed uint64, _ *Scenario) []part {
	var out []part
	for _, mode := range []Caches{CachesAware, CachesRandom} {
		// No session waits for its answers, so that both routers get the same requests.
		g, err := workload.NewGenerator(workload.Spec{Kind: workload.KindChat, Seed: seed, Rate: 1.2, Open: true})
		if err != nil {
			return nil
		}
		t := &workload.Trace{Format: workload.FormatMooncake, BlockTokens: 64}
		for s := g.Next(); s != nil && s.Start.Hours() < 2; s = g.Next() {
			t.Sessions = append(t.Sessions, s)
		}
		o := TraceOptions{Name: "chat, caches " + string(mode), Profile: model32B(), SLO: SLO{TTFT: 2, ITL: 0.2}, Seed: seed,
			Start: Start{Median: 120, Sigma: 0.1, Prior: 120}, For: 7200, Factor: 15, Unscored: 1800, Caches: mode}
		sc, info, err := FromTrace(t, o)
		if err != nil {
			return nil
		}
		sc.hits = info.HitRatio
		out = append(out, part{sc, policies("hpa concurrency average 0.60")})
	}
	return out
}

func cacheJudge(p []Played) []Goal {
	if len(p) < 2 {
		return nil
	}
	a, _ := p[0].Result(Ours)
	b, _ := p[1].Result(Ours)
	return []Goal{
		check(a.Attainment >= 0.98 && b.Attainment >= 0.98, 2, "98 % in time behind both routers", "%.2f %% and %.2f %%", 100*a.Attainment, 100*b.Attainment),
		check(a.ReplicaHours < 0.95*b.ReplicaHours, 2, "replica-hours fall with the hit ratio", "%.1f h at %.0f %% hits against %.1f h at %.0f %%", a.ReplicaHours, 100*p[0].Hits, b.ReplicaHours, 100*p[1].Hits),
	}
}

func dayParts(seed uint64, _ *Scenario) []part {
	d := spec{name: "24 hours", model: model32B(), shape: Shape{"rag", 4500, 200}, start: 120, seed: seed, duration: 26 * 3600, from: 7200, noise: 0.1, sizes: 24}
	u := d.unit()
	g := workload.NewRand(seed, "day", 0)
	d.rate = func(t float64) float64 {
		// Gaps from a gamma distribution of shape 1/2, as in public chat logs, double
		// the variance of counts: so does a rate drawn anew each second.
		mean := u * (4 + 2.6*math.Sin(2*math.Pi*t/86400-2))
		return mean * g.Gamma(mean)
	}
	return []part{{d.draw(), policies("hpa concurrency average 0.30", "hpa concurrency average 0.45", "hpa concurrency average 0.60", "hpa concurrency average 0.75", "hpa waiting average 5", "dynamo-like 0.60", "dynamo-like 0.80")}}
}

func dayJudge(p []Played) []Goal {
	ours, _ := p[0].Result(Ours)
	best, name := math.Inf(1), ""
	for _, r := range p[0].Results {
		if len(r.Policy) > 3 && r.Policy[:3] == "hpa" && r.Attainment >= math.Min(0.99, ours.Attainment) && r.ReplicaHours < best {
			best, name = r.ReplicaHours, r.Policy
		}
	}
	if name == "" {
		return []Goal{check(ours.Attainment >= 0.99, 1, "20 % under the cheapest HPA that serves as well", "none of the HPAs reaches %.2f %%; ours at x%.2f", 100*math.Min(0.99, ours.Attainment), ours.Cost)}
	}
	return []Goal{check(ours.Attainment >= 0.99 && ours.ReplicaHours <= 0.8*best, 1, "20 % under the cheapest HPA that serves as well",
		"%.2f %% with %.0f replica-hours against %.0f (%s), %.1f reversals a day", 100*ours.Attainment, ours.ReplicaHours, best, name, 24*ours.Reversals)}
}

func noiseParts(seed uint64, _ *Scenario) []part {
	d := spec{name: "4.5 replicas with noise", model: model32B(), shape: Shape{"code", 2300, 40}, start: 540, seed: seed, duration: 28800, from: 7200, noise: 0.15, sizes: 16}
	u := d.unit()
	k := wobble(rand.New(rand.NewPCG(seed, 0x0015e)), 20, 0.2)
	d.rate = func(t float64) float64 { return 4.5 * u * k(t) }
	return []part{{d.draw(), policies("hpa waiting average 5", "wva v1", "wva v2")}}
}

func noiseJudge(p []Played) []Goal {
	ours, _ := p[0].Result(Ours)
	hpa, _ := p[0].Result("hpa waiting average 5")
	wva, _ := p[0].Result("wva v1")
	return []Goal{
		check(hpa.Reversals > 3 || wva.Reversals > 3, 1, "harm: others turn round and round", "HPA on waiting %.1f, WVA %.1f reversals an hour", hpa.Reversals, wva.Reversals),
		check(ours.Reversals <= 1, 1, "at most one reversal an hour", "%.1f, with %.2f %% in time at x%.2f", ours.Reversals, 100*ours.Attainment, ours.Cost),
	}
}

// faultAt is when the faults of X8 begin, in seconds.
const faultAt = 5400.0

func faultParts(seed uint64, _ *Scenario) []part {
	base := spec{model: model32B(), shape: Shape{"chat", 1100, 255}, start: 120, seed: seed, duration: 9000, from: 3600, noise: 0.1, sizes: 16}
	u := base.unit()
	make1 := func(name string, rate func(float64) float64, change func(*Scenario)) part {
		d := base
		d.name, d.rate = name, func(t float64) float64 { return u * rate(t) }
		sc := d.draw()
		change(sc)
		return part{sc, policies("keda concurrency 0.60", "hpa concurrency value 0.60")}
	}
	busy := func(float64) float64 { return 5 }
	return []part{
		make1("metrics lost for ten minutes", busy, func(sc *Scenario) { sc.Faults.Outages = [][2]float64{{faultAt, faultAt + 600}} }),
		make1("a replica that lies", busy, func(sc *Scenario) { sc.Liar = &Lie{faultAt, faultAt + 1200, 1, 400} }),
		make1("a quota of six", steps([2]float64{0, 4}, [2]float64{faultAt, 9}, [2]float64{7200, 4}), func(sc *Scenario) { sc.Place = 6 }),
		make1("starts that never end", steps([2]float64{0, 3}, [2]float64{faultAt, 6}), func(sc *Scenario) { sc.Faults.DeadStarts = 0.4 }),
	}
}

func faultJudge(p []Played) []Goal {
	ours := make([]Result, len(p))
	keda := make([]Result, len(p))
	for i := range p {
		ours[i], _ = p[i].Result(Ours)
		keda[i], _ = p[i].Result("keda concurrency 0.60")
	}
	most := 0
	for _, s := range ours[2].path {
		if s.at > faultAt+900 && s.at < 7200 {
			most = max(most, s.want)
		}
	}
	return []Goal{
		check(downsWithin(&keda[0], faultAt, faultAt+660) > 0, 1, "harm: KEDA goes down on lost metrics", "%d scale-downs while busy, %.1f %% in time", downsWithin(&keda[0], faultAt, faultAt+660), 100*keda[0].Attainment),
		check(downsWithin(&ours[0], faultAt, faultAt+660) == 0 && ours[0].Attainment >= 0.99, 1, "lost metrics: ours never goes down", "%d scale-downs, %.2f %% in time", downsWithin(&ours[0], faultAt, faultAt+660), 100*ours[0].Attainment),
		check(ours[1].Attainment >= 0.99 && ours[1].Cost < 1.6, 1, "a replica that lies: ours stays", "%.2f %% at x%.2f; KEDA x%.2f", 100*ours[1].Attainment, ours[1].Cost, keda[1].Cost),
		check(most <= 8, 1, "quota: ours stops asking for what cannot be placed", "at most %d wanted of 6 after 15 minutes; KEDA's largest fleet %d", most, keda[2].MaxReplicas),
		check(ours[3].Attainment >= 0.93, 1, "two starts in five hang: ours replaces them", "%.2f %% in time, KEDA %.2f %%", 100*ours[3].Attainment, 100*keda[3].Attainment),
	}
}

func fastParts(seed uint64, _ *Scenario) []part {
	var out []part
	for i, c := range []struct {
		name         string
		prefill, one float64 // tokens a second, seconds to start
	}{{"llama2-7b", 13000, 0.5}, {"llama3-8b", 12000, 0.7}, {"mistral-24b TP2", 6000, 1}, {"qwen-72b TP8", 7500, 2}} {
		m, ok := engine.Lookup("llama-3.1-8b-rtxpro6000")
		if !ok {
			return nil
		}
		m = slowed(m, 1/(m.PTok*c.prefill))
		m.Name = c.name
		d := spec{name: c.name, model: m, shape: Shape{"code", 2050, 28}, start: c.one, seed: seed + uint64(i), duration: 3480, from: 600, noise: 0.05, sizes: 24}
		u := d.unit()
		level := codeLike(seed + uint64(i))
		d.rate = func(t float64) float64 { return math.Min(3, 30/u) * u * level(t) }
		out = append(out, part{d.draw(), []Policy{thresholds(), &Penstock{}, &Penstock{Label: free, Reversals: -1}}})
	}
	return out
}

// free is our scaler without a bound on reversals, which fast starts make cheap.
const free = "penstock, reversals not limited"

func fastJudge(p []Played) []Goal {
	var out []Goal
	for i := range p {
		ours, _ := p[i].Result(free)
		th, _ := p[i].Result("thresholds .15-.4")
		out = append(out, check(ours.Attainment >= th.Attainment-0.005 && ours.ReplicaHours <= 1.1*th.ReplicaHours, 1, p[i].Name+": as good as thresholds, at no more",
			"%.2f %% at x%.2f against %.2f %% at x%.2f", 100*ours.Attainment, ours.Cost, 100*th.Attainment, th.Cost))
	}
	return out
}
