// SPDX-License-Identifier: Apache-2.0

package scalesim

import (
	"math"

	"github.com/penstock-project/penstock/internal/fleet"
)

// Policy wants a number of replicas. It sees only what an autoscaler of its kind
// could see.
type Policy interface {
	// Name is how tables call it.
	Name() string
	// Initial is the number of warm replicas that the run begins with.
	Initial(sc *Scenario) int
	// Period is the time between two evaluations, in seconds.
	Period() float64
	// Want returns the wanted number of replicas that are not draining, or -1 for
	// no opinion.
	Want(o *Obs) int
}

// Replica is one replica as an observer sees it.
type Replica struct {
	ID       int // rises with every start
	Phase    fleet.Phase
	Since    float64 // when the phase began, s
	InFlight int
	Waiting  int     // whose prefill has not begun
	KV       float64 // share of its cache in use
	Refused  bool    // pending for want of an accelerator
}

// Obs is what can be seen of the fleet at one moment.
type Obs struct {
	sc   *Scenario
	Now  float64 // s
	Want int     // replicas wanted at present, draining ones excluded

	Ready, Draining, Pending int
	Replicas                 []Replica // all that exist, oldest first

	// Gateway accounting: exact and at once.
	Offered   []float64 // work units offered in each second so far
	Arrived   []int32   // requests in each second so far
	Conc      []float32 // requests in engines or held, at the end of each second
	HeldFresh int       // held, can still make their first token
	HeldLate  int
	OK, Ended int // requests that ended, and those inside the objectives

	// Scraped signals, with noise; NaN while the metrics are out.
	Running float64 // requests in the batches, sum
	Waiting float64 // requests that wait in engines or at the gateway, sum
	KV      float64 // mean share of KV cache in use over ready replicas
	KVMax   float64 // largest
	TTFT    float64 // s, mean of the first tokens of the last minute; NaN without any
	ITL     float64 // s, estimate of the step time
	Duty    float64 // share of the time since the last look in which a ready replica had work
	CPU     float64 // mean share of the hosts' CPUs in use
	Memory  float64 // mean share of the accelerators' memory in use
}

// What serving costs the host's CPU, of one core in a pod of four or more: a loop
// that waits and a loop that feeds an accelerator. Public incidents show 5 to 15 %
// at the limit. The engine takes its share of the accelerator's memory at start.
const (
	cpuIdle     = 0.04
	cpuServing  = 0.09
	memoryTaken = 0.9
)

// stages are the shares of a start-up at which its phases end: pending, pulling,
// loading, warming.
var stages = [...]float64{0.08, 0.25, 0.7, 1}

// observe fills the observation for moment now.
func (s *run) observe(now float64) {
	o := &s.obs
	o.Now = now
	o.Ready, o.Draining = 0, 0
	o.Pending, o.Replicas = 0, o.Replicas[:0]
	running, waiting, kv := 0, s.fresh.len()+s.late.len(), 0.0
	o.KVMax, o.ITL = 0, 0
	for _, r := range s.all {
		switch r.state {
		case starting:
			o.Pending++
			o.Replicas = append(o.Replicas, s.evidence(r, now))
			continue
		case draining:
			o.Draining++
			o.Replicas = append(o.Replicas, Replica{ID: r.id, Phase: fleet.PhaseDraining, Since: now, InFlight: r.inFlight()})
		case gone:
			continue
		case serving:
			o.Ready++
			k := float64(r.kv) / float64(s.m.KVTokens)
			kv += k
			o.KVMax = math.Max(o.KVMax, k)
			o.Replicas = append(o.Replicas, Replica{ID: r.id, Phase: fleet.PhaseReady, Since: r.ready, InFlight: r.inFlight(), Waiting: r.waiting(), KV: k})
		}
		running += len(r.run)
		waiting += len(r.pre) - r.head
	}
	o.HeldFresh, o.HeldLate = s.fresh.len(), s.late.len()
	o.OK, o.Ended = s.seenOK, s.seen
	noise := func(v float64) float64 {
		if n := s.sc.Noise; n > 0 && v > 0 {
			v *= math.Exp(s.rng.NormFloat64()*n - n*n/2)
		}
		return v
	}
	o.Running, o.Waiting = noise(float64(running)), noise(float64(waiting))
	o.KV = noise(kv / math.Max(1, float64(o.Ready)))
	o.KVMax = noise(o.KVMax)
	o.TTFT = noise(s.ttft.mean(now))
	s.hosts(now)
	s.lie(now)
	if s.sc.Faults.out(now) {
		nan := math.NaN()
		o.Running, o.Waiting, o.KV, o.KVMax, o.TTFT, o.ITL = nan, nan, nan, nan, nan, nan
		o.Duty, o.CPU, o.Memory = nan, nan, nan
	}
}

// hosts fills in what a node exporter sees.
func (s *run) hosts(now float64) {
	o := &s.obs
	o.Duty = s.duty / math.Max(1, s.dutyN)
	s.duty, s.dutyN = 0, 0
	o.CPU = cpuIdle + cpuServing*o.Duty
	for _, k := range s.sc.Tokenise {
		if now >= k.From && now < k.To {
			o.CPU = math.Min(1, o.CPU+k.CPU)
		}
	}
	o.Memory = memoryTaken
}

// lie lets the oldest ready replica report what is not so.
func (s *run) lie(now float64) {
	l, o := s.sc.Liar, &s.obs
	if l == nil || now < l.From || now >= l.To || o.Ready == 0 {
		return
	}
	for i := range o.Replicas {
		if r := &o.Replicas[i]; r.Phase == fleet.PhaseReady {
			o.KV += (l.KV - r.KV) / float64(o.Ready)
			o.Waiting += l.Waiting - float64(r.Waiting)
			r.KV, r.Waiting = l.KV, int(l.Waiting)
			return
		}
	}
}

// evidence is the phase that a starting replica shows.
func (s *run) evidence(r *replica, now float64) Replica {
	p := Replica{ID: r.id, Since: r.asked, Refused: r.refused}
	if r.refused {
		return p
	}
	total := r.ready - r.asked
	if r.ready == never {
		total = s.sc.Start.Median
	}
	for i, share := range stages {
		end := r.asked + share*total
		if i == len(stages)-1 || r.ready == never && share > r.stuck || end > now {
			break
		}
		p.Phase, p.Since = fleet.Phase(i+1), end
	}
	return p
}

// window is a mean over the last minute in 10 s buckets.
type window struct {
	sum, n [7]float64
	slot   int64
}

func (w *window) add(now, v float64) {
	w.roll(now)
	i := w.slot % 7
	w.sum[i] += v
	w.n[i]++
}

func (w *window) roll(now float64) {
	to := int64(now / 10)
	if to-w.slot > 7 {
		w.slot = to - 7
	}
	for w.slot < to {
		w.slot++
		w.sum[w.slot%7], w.n[w.slot%7] = 0, 0
	}
}

func (w *window) mean(now float64) float64 {
	w.roll(now)
	var s, n float64
	for i := range w.sum {
		s += w.sum[i]
		n += w.n[i]
	}
	return s / n
}
