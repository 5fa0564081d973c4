// SPDX-License-Identifier: Apache-2.0

package scalesim

import (
	"fmt"
	"math"

	"github.com/penstock-project/penstock/internal/fleet"
	"github.com/penstock-project/penstock/internal/scale"
)

// baseline drives the arithmetic of another autoscaler with the signals that it
// would see. Targets in requests are shares of the concurrency of one replica at
// its knee, which a real operator does not know.
type baseline struct {
	name   string
	period float64
	want   func(sc *Scenario) func(o *Obs) int
	step   func(o *Obs) int
}

func (b *baseline) Name() string    { return b.name }
func (b *baseline) Period() float64 { return b.period }
func (b *baseline) Initial(sc *Scenario) int {
	b.step = b.want(sc)
	return sc.warmStart()
}
func (b *baseline) Want(o *Obs) int { return min(o.sc.most, b.step(o)) }

// Baselines returns the 22 configurations that ours is compared with, fresh ones at
// every call: published defaults, several targets where the default cannot be known.
func Baselines() []Policy {
	var out []Policy
	add := func(name string, period float64, want func(sc *Scenario) func(o *Obs) int) {
		out = append(out, &baseline{name: name, period: period, want: want})
	}
	for _, k := range []float64{0.30, 0.45, 0.60, 0.75, 0.90} {
		add(fmt.Sprintf("hpa concurrency average %.2f", k), scale.HPASync, hpaOn(scale.AverageValue, k, (*Obs).concurrency))
	}
	add("hpa concurrency value 0.60", scale.HPASync, hpaOn(scale.Value, 0.60, (*Obs).concurrency))
	for _, k := range []float64{1, 5, 20} {
		add(fmt.Sprintf("hpa waiting average %.0f", k), scale.HPASync, hpaWaiting(k))
	}
	add("keda concurrency 0.60", scale.HPASync, kedaOn(0.60))
	for _, k := range []float64{0.45, 0.70} {
		add(fmt.Sprintf("kpa %.2f", k), 2, kpaOn(k))
	}
	add("wva v1", scale.WVAPeriod, wvaV1)
	add("wva v2", scale.WVAPeriod, wvaV2)
	for _, k := range []float64{0.50, 0.70} {
		add(fmt.Sprintf("aibrix apa %.2f", k), 10, aibrixOn(k))
	}
	for _, k := range []float64{0.45, 0.60} {
		add(fmt.Sprintf("ray %.2f", k), 10, rayOn(k))
	}
	for _, k := range []float64{0.45, 0.60} {
		add(fmt.Sprintf("kubeai %.2f", k), 10, kubeaiOn(k))
	}
	for _, k := range []float64{0.60, 0.80} {
		add(fmt.Sprintf("dynamo-like %.2f", k), scale.DynamoLoadLoop, dynamoOn(k))
	}
	return out
}

// hpaOn is an HPA on a sum (AverageValue) or on its mean over ready pods (Value).
func hpaOn(typ scale.TargetType, share float64, signal func(*Obs) float64) func(sc *Scenario) func(o *Obs) int {
	read := signal
	if typ == scale.Value {
		read = func(o *Obs) float64 { return signal(o) / math.Max(1, float64(o.Ready)) }
	}
	return func(sc *Scenario) func(o *Obs) int { return hpaReading(typ, share*sc.KneeConc, nil, read)(sc) }
}

// hpaReading is an HPA on one reading: a sum with AverageValue, a mean over the
// replicas with Value. change, where it is not nil, gives it a behaviour of its own.
func hpaReading(typ scale.TargetType, target float64, change func(*scale.HPASpec), read func(*Obs) float64) func(sc *Scenario) func(o *Obs) int {
	return func(sc *Scenario) func(o *Obs) int {
		h, spec := &scale.HPA{}, scale.DefaultHPA(1, sc.most)
		if change != nil {
			change(&spec)
		}
		m := scale.HPAMetric{Source: scale.ExternalMetric, Type: typ, Target: target}
		return func(o *Obs) int {
			m.Usage = read(o)
			m.Invalid = math.IsNaN(m.Usage)
			return h.Sync(&spec, scale.HPAInput{
				Now: o.Now, Spec: o.Want, Status: o.Want, Ready: o.Ready + o.Draining, Metrics: []scale.HPAMetric{m},
			}).Desired
		}
	}
}

func hpaWaiting(target float64) func(sc *Scenario) func(o *Obs) int {
	return hpaReading(scale.AverageValue, target, nil, func(o *Obs) float64 { return o.Waiting })
}

func kedaOn(share float64) func(sc *Scenario) func(o *Obs) int {
	return func(sc *Scenario) func(o *Obs) int {
		k := scale.DefaultKEDA(share * sc.KneeConc)
		k.Most = sc.most
		return func(o *Obs) int {
			v := o.concurrency()
			return k.Want(o.Now, o.Want, v, !math.IsNaN(v))
		}
	}
}

func kpaOn(share float64) func(sc *Scenario) func(o *Obs) int {
	return func(sc *Scenario) func(o *Obs) int {
		k := scale.DefaultKPA(sc.KneeConc)
		k.Target = share * sc.KneeConc
		return func(o *Obs) int {
			if math.IsNaN(o.Running) {
				return -1
			}
			return max(1, k.Want(o.Now, o.Ready, o.meanConc(60), o.meanConc(6)))
		}
	}
}

func wvaV1(*Scenario) func(o *Obs) int {
	w := scale.DefaultWVA()
	return func(o *Obs) int {
		if math.IsNaN(o.Running) {
			return -1
		}
		return max(1, w.Want(o.Want, o.Pending, o.loads()))
	}
}

func wvaV2(sc *Scenario) func(o *Obs) int {
	w := scale.DefaultWVATokens()
	w.KVTokens, w.MaxBatched, w.MaxSeqs = float64(sc.Model.KVTokens), float64(sc.Model.ChunkTokens), float64(sc.Model.MaxSeqs)
	w.MeanIn, w.MeanOut = sc.Shape.Prompt, sc.Shape.Out
	return func(o *Obs) int {
		if math.IsNaN(o.Running) {
			return -1
		}
		tokens := 0.0
		for _, l := range o.loads() {
			tokens += l.KV * w.KVTokens
			if l.Queue >= 5 {
				w.Saturated(l.KV * w.KVTokens)
			}
		}
		return w.Want(o.Want, tokens, o.Waiting)
	}
}

func aibrixOn(share float64) func(sc *Scenario) func(o *Obs) int {
	return func(sc *Scenario) func(o *Obs) int {
		a := scale.DefaultAIBrixAPA(share)
		return func(o *Obs) int {
			v := o.concurrency() / sc.KneeConc / math.Max(1, float64(o.Ready))
			if math.IsNaN(v) {
				return -1
			}
			return max(1, a.Want(o.Now, o.Want, v))
		}
	}
}

func rayOn(share float64) func(sc *Scenario) func(o *Obs) int {
	return func(sc *Scenario) func(o *Obs) int {
		r := scale.DefaultRay(share * sc.KneeConc)
		return func(o *Obs) int {
			if math.IsNaN(o.Running) {
				return -1
			}
			return max(1, r.Want(o.Now, o.Want, o.meanConc(30)))
		}
	}
}

func kubeaiOn(share float64) func(sc *Scenario) func(o *Obs) int {
	return func(sc *Scenario) func(o *Obs) int {
		k := scale.DefaultKubeAI(share * sc.KneeConc)
		return func(o *Obs) int {
			v := o.concurrency()
			if math.IsNaN(v) {
				return -1
			}
			return max(1, k.Want(o.Now, o.Want, v))
		}
	}
}

func dynamoOn(utilisation float64) func(sc *Scenario) func(o *Obs) int {
	return func(*Scenario) func(o *Obs) int {
		d := scale.DefaultDynamo(1, utilisation)
		return func(o *Obs) int {
			sum, k := 0.0, min(len(o.Offered), int(d.Interval))
			for _, u := range o.Offered[len(o.Offered)-k:] {
				sum += u
			}
			violate := o.HeldFresh+o.HeldLate > o.Ready
			return d.Want(o.Now, o.Want, o.Pending, sum/math.Max(1, float64(k)), violate)
		}
	}
}

// concurrency is the scraped number of requests in engines and held.
func (o *Obs) concurrency() float64 { return o.Running + o.Waiting }

// meanConc is the exact mean concurrency of the last seconds.
func (o *Obs) meanConc(seconds int) float64 {
	k := min(len(o.Conc), seconds)
	sum := 0.0
	for _, c := range o.Conc[len(o.Conc)-k:] {
		sum += float64(c)
	}
	return sum / math.Max(1, float64(k))
}

// loads is the KV cache in use and the queue of each ready replica; what is held is
// shared out evenly, for whoever holds the queue publishes it.
func (o *Obs) loads() []scale.ReplicaLoad {
	var out []scale.ReplicaLoad
	held := float64(o.HeldFresh+o.HeldLate) / math.Max(1, float64(o.Ready))
	for i := range o.Replicas {
		if r := &o.Replicas[i]; r.Phase == fleet.PhaseReady {
			out = append(out, scale.ReplicaLoad{KV: r.KV, Queue: float64(r.Waiting) + held})
		}
	}
	return out
}
