// SPDX-License-Identifier: Apache-2.0

package diagnose

import (
	"math"

	"github.com/penstock-project/penstock/internal/scale"
)

// The arithmetic of the HPA controller and of KEDA lives in package scale, which
// the simulators use as well. Here it is asked for one sync, or for a few.

// tolerance is the share by which a ratio may miss 1 before an HPA acts, the
// default of --horizontal-pod-autoscaler-tolerance.
const tolerance = 0.1

// many is more replicas than any bound, so that a sync shows what the metric alone
// asks for.
const many = 1 << 24

// once returns what one metric asks for at n replicas, all of them ready, before
// bounds, windows and policies.
func once(n int, m scale.HPAMetric) int {
	if m.Target <= 0 || n < 1 {
		return n
	}
	spec := scale.DefaultHPA(0, many)
	var h scale.HPA
	return h.Sync(&spec, scale.HPAInput{Spec: n, Status: n, Ready: n, Metrics: []scale.HPAMetric{m}}).Raw
}

// desiredRatio is the rule of an HPA for utilisations, Pods metrics and type Value:
// ceil(n x usage/target), or n within the tolerance.
func desiredRatio(n int, usage, target float64) int {
	return once(n, scale.HPAMetric{Source: scale.ExternalMetric, Type: scale.Value, Target: target, Usage: usage})
}

// desiredAverage is the rule of an HPA for External and Object metrics of type
// AverageValue: the total over the target, whatever n is, or n within the
// tolerance.
func desiredAverage(n int, total, target float64) int {
	return once(n, scale.HPAMetric{Source: scale.ExternalMetric, Type: scale.AverageValue, Target: target, Usage: total})
}

// ControllerSpec is what the controller makes of bounds and behavior.
func ControllerSpec(low, high int, b *Behavior) scale.HPASpec {
	s := scale.DefaultHPA(max(low, 0), max(high, 1))
	if b == nil || !b.Set {
		return s
	}
	fill := func(r *scale.HPARules, w *ScalingRules) {
		if w.Window.Set {
			r.Window = float64(w.Window.V)
		}
		if w.Tolerance.Set {
			r.Tolerance = w.Tolerance.V
		}
		r.Disabled = w.Select.V == "Disabled"
		r.SelectMin = w.Select.V == "Min"
		if len(w.Policies) == 0 {
			return
		}
		r.Policies = nil
		for _, p := range w.Policies {
			hp := scale.HPAPolicy{Period: float64(p.Period)}
			if p.Type == "Pods" {
				hp.Pods = p.Value
			} else {
				hp.Percent = float64(p.Value)
			}
			r.Policies = append(r.Policies, hp)
		}
	}
	fill(&s.Up, &b.Up)
	fill(&s.Down, &b.Down)
	return s
}

// untilMinimum plays the loss of a signal that reads as zero: the fleet stands at
// high, and from then on the metric is 0. It returns after how many seconds the
// count is low, false where it does not get there within an hour.
func untilMinimum(low, high int, b *Behavior) (float64, bool) {
	spec := ControllerSpec(max(low, 1), high, b)
	var h scale.HPA
	n := high
	sync := func(t, usage float64) {
		n = h.Sync(&spec, scale.HPAInput{Now: t, Spec: n, Status: n, Ready: n, Metrics: []scale.HPAMetric{
			{Source: scale.ExternalMetric, Type: scale.AverageValue, Target: 1, Usage: usage},
		}}).Desired
	}
	for t := -600.0; t < 0; t += scale.HPASync {
		sync(t, float64(high))
	}
	for t := 0.0; t <= 3600; t += scale.HPASync {
		if sync(t, 0); n <= max(low, 1) {
			return t, true
		}
	}
	return 0, false
}

// ceilInt is ceil with room for the rounding error of a division.
func ceilInt(v float64) int {
	if math.IsNaN(v) || v > math.MaxInt32 {
		return math.MaxInt32
	}
	return int(math.Ceil(v - 1e-9))
}

func clampInt(v, low, high int) int { return max(low, min(v, high)) }

// percentOf resolves maxSurge and maxUnavailable as the Deployment controller
// does: surge rounds up, unavailable rounds down.
func percentOf(pct float64, n int, up bool) int {
	v := pct / 100 * float64(n)
	if up {
		return ceilInt(v)
	}
	return int(math.Floor(v + 1e-9))
}
