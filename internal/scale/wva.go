// SPDX-License-Identifier: Apache-2.0

package scale

import "math"

// WVA is the workload-variant autoscaler of llm-d (February 2026) for one variant,
// saturation mode V1. Published defaults: a replica is saturated at 80 % of its KV
// cache or 5 waiting requests; one replica is added where the mean spare of the
// others falls under 10 % or 3; the loop runs every 60 s.
type WVA struct {
	KV, Queue           float64
	SpareKV, SpareQueue float64
}

// WVAPeriod is the period of the WVA loop, in seconds.
const WVAPeriod = 60.0

// DefaultWVA returns the published thresholds.
func DefaultWVA() WVA { return WVA{KV: 0.8, Queue: 5, SpareKV: 0.1, SpareQueue: 3} }

// ReplicaLoad is what WVA reads of one ready replica.
type ReplicaLoad struct{ KV, Queue float64 }

// Want adds or takes one replica, and does nothing while any is in transition.
func (w WVA) Want(current, pending int, load []ReplicaLoad) int {
	if pending > 0 || len(load) == 0 {
		return current
	}
	var kv, queue, sumKV, sumQueue float64
	calm := 0
	for _, l := range load {
		sumKV += l.KV
		sumQueue += l.Queue
		if l.KV >= w.KV || l.Queue >= w.Queue {
			continue
		}
		calm++
		kv += w.KV - l.KV
		queue += w.Queue - l.Queue
	}
	if calm == 0 || kv/float64(calm) < w.SpareKV || queue/float64(calm) < w.SpareQueue {
		return current + 1
	}
	if calm >= 2 {
		n := float64(len(load) - 1)
		if w.KV-sumKV/n >= w.SpareKV && w.Queue-sumQueue/n >= w.SpareQueue {
			return current - 1
		}
	}
	return current
}

// WVATokens is WVA V2: capacity and demand in tokens of KV cache, scale up at 85 %
// and down at 70 %. Pending replicas are credited in full (issue #1454).
type WVATokens struct {
	KVTokens      float64 // of one replica
	MaxBatched    float64 // tokens a step
	MaxSeqs       float64
	Up, Down      float64 // shares of the supply
	MeanIn        float64 // tokens
	MeanOut       float64 // tokens
	atSaturation  [10]float64
	nAtSaturation int
}

// DefaultWVATokens returns the published thresholds.
func DefaultWVATokens() *WVATokens {
	return &WVATokens{MaxBatched: 2048, MaxSeqs: 256, Up: 0.85, Down: 0.70}
}

// Saturated notes the tokens in use at a replica whose queue has reached the
// saturation threshold; the last ten make up the observed capacity.
func (w *WVATokens) Saturated(tokens float64) {
	w.atSaturation[w.nAtSaturation%len(w.atSaturation)] = tokens
	w.nAtSaturation++
}

func (w *WVATokens) perReplica() float64 {
	k1 := 0.8 * w.KVTokens
	if n := min(w.nAtSaturation, len(w.atSaturation)); n > 0 {
		sum := 0.0
		for _, v := range w.atSaturation[:n] {
			sum += v
		}
		return math.Min(k1, sum/float64(n))
	}
	if w.MeanIn+w.MeanOut > 0 {
		n := math.Min(w.MaxBatched*w.MeanOut/(w.MeanIn+w.MeanOut), w.MaxSeqs)
		return math.Min(k1, n*(w.MeanIn+w.MeanOut/2))
	}
	return k1
}

// Want is the count for current replicas, pending ones included, with tokens in
// use and waiting requests in sum.
func (w *WVATokens) Want(current int, tokens, waiting float64) int {
	per := w.perReplica()
	if per <= 0 {
		return current
	}
	demand := tokens + waiting*w.MeanIn
	supply := per * float64(current)
	if need := ceil((demand/w.Up - supply) / per); need > 0 {
		return current + need
	}
	if spare := int(math.Floor((supply - demand/w.Down) / per)); spare > 0 {
		return max(1, current-spare)
	}
	return current
}
