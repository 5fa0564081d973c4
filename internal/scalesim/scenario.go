// SPDX-License-Identifier: Apache-2.0

// Package scalesim plays autoscalers against a fleet at request level in virtual
// time: drawn traffic or a trace, replicas that take their time to start, one
// router with one held queue for every policy, and the bounds that no policy can
// beat because they know the future.
package scalesim

import (
	"math"
	"math/rand/v2"
	"slices"

	"github.com/penstock-project/penstock/internal/engine"
)

// Shape is the mean of a request's lengths in tokens.
type Shape struct {
	Name        string
	Prompt, Out float64
}

// Start is how long a replica takes to become ready: log-normal.
type Start struct {
	Median, Sigma float64 // s; Sigma of the logarithm
	Prior         float64 // s, what the operator believes
}

// Draw returns one start-up time in seconds.
func (s Start) Draw(r *rand.Rand) float64 { return s.Median * math.Exp(s.Sigma*r.NormFloat64()) }

// SLO are the objectives of one request.
type SLO struct{ TTFT, ITL float64 } // s; ITL is the mean over an answer

// Faults are what goes wrong.
type Faults struct {
	DeadStarts     float64 // share of starts that never become ready
	CrashesPerHour float64 // per replica
	Outages        [][2]float64
	CapacityError  float64 // believed work of a request / real work; 0 means 1
}

func (f *Faults) any() bool {
	return f.DeadStarts > 0 || f.CrashesPerHour > 0 || len(f.Outages) > 0 || f.CapacityError != 0
}

func (f *Faults) out(now float64) bool {
	for _, o := range f.Outages {
		if now >= o[0] && now < o[1] {
			return true
		}
	}
	return false
}

// Spike is a share of the host's CPU that something else than serving uses, in
// seconds of the run.
type Spike struct {
	From, To float64
	CPU      float64 // 0 to 1
}

// Lie is a time in which the oldest replica reports wrong figures.
type Lie struct {
	From, To    float64 // s
	KV, Waiting float64 // what it says instead
}

// Scenario is one drawn situation: everything but the policy.
type Scenario struct {
	Name      string
	Class     string
	Seed      uint64
	Model     engine.Profile
	Shape     Shape
	SLO       SLO
	Start     Start
	Mean      float64 // units of work offered per second: replicas at their knee
	Duration  float64 // s
	ScoreFrom float64 // s
	Noise     float64 // log sigma of scraped signals
	Faults    Faults
	Cap       int       // in-flight cap of one replica that keeps the ITL objective
	Capacity  []float64 // units of work per second that n replicas carry, index n
	KneeConc  float64   // requests inside one replica at its knee

	Patience float64 // s until a held request is given up; 0: 60, negative: never
	Most     int     // bound on replicas that every policy is given; 0: twice the busiest minute
	Place    int     // replicas that can be placed; the rest stay pending for quota; 0: all
	Cold     float64 // s that a replica needs after its port answers until it serves
	Tokenise []Spike // work on the host's CPU that never reaches an accelerator
	Liar     *Lie    // a replica that reports what is not so
	InOrder  bool    // held requests are served in order of arrival, whether they can still make it or not
	Initial  int     // warm replicas at the beginning; 0: what the first minute needs, and one

	knee     knee
	st       *stream
	prefill  []float64
	deadline []float64
	offered  []float64
	arrived  []int32
	scored   int     // requests that arrive in the scored part
	hits     float64 // share of the prompt tokens that caches are credited with
	most     int     // the upper bound that every policy is given
}

// stream is the requests of a scenario in order of arrival.
type stream struct {
	at  []float64 // s
	in  []int32   // prompt tokens that must be prefilled
	ctx []int32   // prompt tokens
	out []int32
}

func (sc *Scenario) stream() *stream { return sc.st }

// Requests is the number of requests of the scenario.
func (sc *Scenario) Requests() int { return len(sc.st.at) }

// index derives what every run of the scenario shares.
func (sc *Scenario) index(workOf func(in, ctx int32) float64) {
	st := sc.st
	n := len(st.at)
	sc.prefill, sc.deadline = make([]float64, n), make([]float64, n)
	sc.scored = 0
	sc.offered = make([]float64, int(sc.Duration))
	sc.arrived = make([]int32, int(sc.Duration))
	m := &sc.Model
	for i := range st.at {
		sc.prefill[i] = m.PrefillSeconds(int(st.in[i]), int(st.ctx[i]))
		sc.deadline[i] = st.at[i] + sc.SLO.TTFT - sc.prefill[i] - m.Base
		if st.at[i] >= sc.ScoreFrom {
			sc.scored++
		}
		k := min(len(sc.offered)-1, int(st.at[i]))
		sc.offered[k] += workOf(st.in[i], st.ctx[i])
		sc.arrived[k]++
	}
	top, sum := 0.0, 0.0
	for i, u := range sc.offered {
		sum += u
		if i >= 60 {
			sum -= sc.offered[i-60]
		}
		top = math.Max(top, sum/60)
	}
	sc.most = 2*sc.need(top) + 2 // what an operator allows: twice the busiest minute
	if sc.Most > 0 {
		sc.most = sc.Most
	}
}

// tpotCap is the number of requests inside one replica at which the mean time of
// an output token, its share of the prefills included, reaches the objective:
// every one of n streams needs its prefill once in out steps.
func tpotCap(m *engine.Profile, sh Shape, slo SLO) int {
	p := sh.Prompt*m.PTok + m.PAttn*sh.Prompt*sh.Prompt/2
	n := (0.95*slo.ITL - m.Base) / (m.DSeq + m.DCtx*(sh.Prompt+sh.Out/2) + p/sh.Out)
	kv := float64(m.KVTokens) / (sh.Prompt + sh.Out)
	return max(2, int(math.Min(n, math.Min(kv, 256))))
}

// need is the least n whose capacity is at least x units of work per second.
func (sc *Scenario) need(x float64) int { return needOf(sc.Capacity, x) }

func needOf(capacity []float64, x float64) int {
	n, ok := slices.BinarySearch(capacity, x)
	if !ok && n == len(capacity) {
		k := len(capacity) - 1
		return k + int(math.Ceil((x-capacity[k])/(capacity[k]/float64(k))))
	}
	return n
}

// prepare derives the in-flight cap, the unit of work and the capacity table.
func (sc *Scenario) prepare() {
	sc.Cap = tpotCap(&sc.Model, sc.Shape, sc.SLO)
	for _, k := range knees() {
		if k.model == sc.Model.Name && k.shape == sc.Shape.Name {
			sc.knee = k
			sc.KneeConc = k.inside
			sc.Capacity = k.capacity()
		}
	}
}

// meanWork is the work of the mean request in units: seconds of one replica at its
// knee.
func (sc *Scenario) meanWork() float64 {
	if sc.knee.rate == 0 {
		return 1
	}
	return 1 / sc.knee.rate
}

// workOf returns what the router charges a request with: its prefill and the decode
// of the mean output, in units. The answer's real length is not known at arrival.
func (sc *Scenario) workOf() func(in, ctx int32) float64 {
	sum := 0.0
	for i := range sc.st.in {
		sum += sc.raw(float64(sc.st.in[i]), float64(sc.st.ctx[i]))
	}
	unit := sum / math.Max(1, float64(len(sc.st.in))) / sc.meanWork()
	return func(in, ctx int32) float64 { return sc.raw(float64(in), float64(ctx)) / unit }
}

// offeredAt is the mean of the offered work in the minute from t on.
func (sc *Scenario) offeredAt(t int) float64 {
	sum := 0.0
	for _, u := range sc.offered[t:min(len(sc.offered), t+60)] {
		sum += u
	}
	return sum / 60
}

// warmStart is the number of replicas that every policy begins with: what the
// first minute needs, and one.
func (sc *Scenario) warmStart() int {
	if sc.Initial > 0 {
		return sc.Initial
	}
	return sc.need(sc.offeredAt(0)) + 1
}
