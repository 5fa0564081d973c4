// SPDX-License-Identifier: Apache-2.0

package scale

import "math"

// TargetType is how an HPA compares a metric with its target.
type TargetType uint8

// Target types of autoscaling/v2.
const (
	// AverageValue divides the metric by the target and is independent of how many
	// pods are ready: ceil(usage / target).
	AverageValue TargetType = iota
	// Value multiplies the ready pods by usage / target: a metric that does not
	// fall when one pod is added compounds.
	Value
	// Utilization is a share of what the pods request; Target is in percent.
	Utilization
)

// MetricSource is where an HPA metric comes from.
type MetricSource uint8

// Sources of autoscaling/v2. ContainerResource follows the rules of Resource.
const (
	ExternalMetric MetricSource = iota
	ObjectMetric
	PodsMetric
	ResourceMetric
)

// PodSample is one pod as an HPA sees it for a Pods or Resource metric.
type PodSample struct {
	Value   float64 // reading; in percent of the request for Utilization
	Missing bool    // no sample: unknown
	Unready bool    // pending, or (CPU only) not ready or too young to trust
	Gone    bool    // failed or being deleted: ignored
}

// HPAMetric is one entry of spec.metrics with its present reading.
type HPAMetric struct {
	Name   string
	Source MetricSource
	Type   TargetType
	Target float64
	// Usage is the reading of an External or Object metric: the sum of all items.
	Usage float64
	// Invalid says that the reading failed: an error or an empty list.
	Invalid bool
	Pods    []PodSample
}

// HPAPolicy is one scaling policy: at most Pods or Percent within Period seconds.
type HPAPolicy struct {
	Pods    int     // used where > 0
	Percent float64 // used where Pods is 0
	Period  float64 // s
}

// HPARules is behavior.scaleUp or behavior.scaleDown.
type HPARules struct {
	Window    float64 // s, stabilisation
	Policies  []HPAPolicy
	SelectMin bool // selectPolicy: Min; otherwise Max
	Disabled  bool // selectPolicy: Disabled
	Tolerance float64
}

// HPASpec is what matters of a HorizontalPodAutoscaler.
type HPASpec struct {
	Min, Max int
	Up, Down HPARules
}

// DefaultHPA returns the behaviour of an HPA that sets none, as published in the
// Kubernetes documentation and in the controller of v1.36: sync every 15 s,
// tolerance 0.1; up without a window by 4 pods or 100 % in 15 s, whichever is
// more; down by 100 % in 15 s after a window of 300 s.
func DefaultHPA(least, most int) HPASpec {
	return HPASpec{
		Min: least, Max: most,
		Up:   HPARules{Tolerance: 0.1, Policies: []HPAPolicy{{Pods: 4, Period: 15}, {Percent: 100, Period: 15}}},
		Down: HPARules{Tolerance: 0.1, Window: 300, Policies: []HPAPolicy{{Percent: 100, Period: 15}}},
	}
}

// HPASync is the default period of the HPA controller, in seconds.
const HPASync = 15.0

// HPAInput is the state of the target at one sync.
type HPAInput struct {
	Now     float64 // s, any origin
	Spec    int     // scale.spec.replicas
	Status  int     // scale.status.replicas
	Ready   int     // pods that are Running and Ready, terminating ones included
	Metrics []HPAMetric
}

// HPAResult is what the controller decides at one sync.
type HPAResult struct {
	Desired  int
	Raw      int   // by the metrics, before stabilisation and rates
	ByMetric []int // -1 where the metric is invalid
	// Reason names what bounded or stopped the decision: ValidMetricFound,
	// FailedGetMetric, ScalingDisabled, TooManyReplicas, TooFewReplicas,
	// ScaleUpStabilized, ScaleDownStabilized, ScaleUpLimit, ScaleDownLimit.
	Reason string
}

type timedCount struct {
	at float64
	n  int
}

// HPA is the memory of one HorizontalPodAutoscaler: what it recommended and what
// it changed. The controller keeps it in memory only. The zero value is ready.
type HPA struct {
	recommended []timedCount
	ups, downs  []timedCount
}

// Sync is one pass of the horizontal controller, in its own arithmetic
// (pkg/controller/podautoscaler, v1.36): proposals by metric, their maximum,
// stabilisation, then rate policies and bounds. It records the decision as taken.
func (h *HPA) Sync(s *HPASpec, in HPAInput) HPAResult {
	res := HPAResult{Desired: in.Spec, Raw: in.Spec, Reason: "ValidMetricFound"}
	switch {
	case in.Spec == 0 && s.Min != 0:
		res.Reason = "ScalingDisabled"
		return res
	case in.Spec > s.Max:
		res.Desired, res.Raw, res.Reason = s.Max, s.Max, "TooManyReplicas"
		h.scaled(in.Now, in.Spec, res.Desired)
		return res
	case in.Spec < s.Min:
		res.Desired, res.Raw, res.Reason = s.Min, s.Min, "TooFewReplicas"
		h.scaled(in.Now, in.Spec, res.Desired)
		return res
	}
	best, invalid := -1, 0
	for i := range in.Metrics {
		n := -1
		if m := &in.Metrics[i]; !m.Invalid {
			n = m.propose(s, &in)
		}
		res.ByMetric = append(res.ByMetric, n)
		if n < 0 {
			invalid++
		}
		best = max(best, n)
	}
	// Without any valid metric, or with a broken one and a proposal to go down,
	// the controller holds.
	if best < 0 || invalid > 0 && best < in.Spec {
		res.Reason = "FailedGetMetric"
		return res
	}
	res.Raw = best
	stable := h.stabilize(s, in.Now, in.Spec, best)
	if stable > best {
		res.Reason = "ScaleDownStabilized"
	} else if stable < best {
		res.Reason = "ScaleUpStabilized"
	}
	res.Desired = h.limit(s, in.Now, in.Spec, stable, &res.Reason)
	h.scaled(in.Now, in.Spec, res.Desired)
	return res
}

func (h *HPA) scaled(now float64, from, to int) {
	if to > from {
		h.ups = append(trim(h.ups, now-3600), timedCount{now, to - from})
	} else if to < from {
		h.downs = append(trim(h.downs, now-3600), timedCount{now, from - to})
	}
}

func trim(ev []timedCount, before float64) []timedCount {
	i := 0
	for i < len(ev) && ev[i].at < before {
		i++
	}
	return ev[i:]
}

// stabilize keeps the desired count between the smallest recommendation of the
// up window and the largest of the down window.
func (h *HPA) stabilize(s *HPASpec, now float64, current, desired int) int {
	up, down := desired, desired
	h.recommended = trim(h.recommended, now-math.Max(s.Up.Window, s.Down.Window)-1)
	for _, r := range h.recommended {
		if r.at > now-s.Up.Window {
			up = min(up, r.n)
		}
		if r.at > now-s.Down.Window {
			down = max(down, r.n)
		}
	}
	h.recommended = append(h.recommended, timedCount{now, desired})
	return min(max(current, up), down)
}

func (h *HPA) limit(s *HPASpec, now float64, current, desired int, reason *string) int {
	switch {
	case desired > current:
		most := min(s.Max, max(current, h.rate(&s.Up, now, current, 1)))
		if desired > most {
			*reason = "ScaleUpLimit"
			if most == s.Max {
				*reason = "TooManyReplicas"
			}
			return most
		}
	case desired < current:
		least := max(s.Min, min(current, h.rate(&s.Down, now, current, -1)))
		if desired < least {
			*reason = "ScaleDownLimit"
			if least == s.Min {
				*reason = "TooFewReplicas"
			}
			return least
		}
	}
	return desired
}

// rate is the count that the policies of one direction allow now.
func (h *HPA) rate(r *HPARules, now float64, current, sign int) int {
	if r.Disabled || len(r.Policies) == 0 {
		return current
	}
	result := 0
	for i, p := range r.Policies {
		start := current - within(h.ups, now-p.Period) + within(h.downs, now-p.Period)
		n := start + sign*p.Pods
		if p.Pods == 0 && sign > 0 {
			n = int(math.Ceil(float64(start) * (1 + p.Percent/100)))
		} else if p.Pods == 0 {
			n = int(float64(start) * (1 - p.Percent/100))
		}
		// Max selects the policy that allows the larger change.
		larger := n > result == (sign > 0)
		if i == 0 || larger != r.SelectMin {
			result = n
		}
	}
	return result
}

func within(ev []timedCount, after float64) int {
	n := 0
	for _, e := range ev {
		if e.at > after {
			n += e.n
		}
	}
	return n
}

// propose is the count that one metric asks for.
func (m *HPAMetric) propose(s *HPASpec, in *HPAInput) int {
	if m.Source == PodsMetric || m.Source == ResourceMetric {
		return m.byPods(s, in.Spec)
	}
	if m.Type == AverageValue {
		if outside(s, m.Usage/(m.Target*float64(in.Status))) {
			return ceil(m.Usage / m.Target)
		}
		return in.Status
	}
	ratio := m.Usage / m.Target
	if in.Spec == 0 {
		return ceil(ratio)
	}
	if !outside(s, ratio) {
		return in.Spec
	}
	return ceil(ratio * float64(in.Ready))
}

// outside reports whether a ratio of usage to target leaves the tolerance.
func outside(s *HPASpec, ratio float64) bool {
	return ratio > 1+s.Up.Tolerance || ratio < 1-s.Down.Tolerance || math.IsNaN(ratio)
}

// byPods is the plain per-pod calculation: the mean over pods with a sample, then,
// where some are missing or unready, the same with the least harmful assumption
// about them: on the way up they use nothing, on the way down a missing one uses
// its whole target.
func (m *HPAMetric) byPods(s *HPASpec, current int) int {
	sum, ready, unready, missing := 0.0, 0, 0, 0
	for _, p := range m.Pods {
		switch {
		case p.Gone:
		case p.Missing:
			missing++
		case p.Unready:
			unready++
		default:
			sum += p.Value
			ready++
		}
	}
	if ready == 0 {
		return -1
	}
	ratio := sum / float64(ready) / m.Target
	rebalanceUnready := unready > 0 && ratio > 1
	if missing == 0 && !rebalanceUnready {
		if !outside(s, ratio) {
			return current
		}
		return ceil(ratio * float64(ready))
	}
	count := ready
	if missing > 0 {
		if ratio < 1 {
			assumed := m.Target
			if m.Type == Utilization {
				assumed = math.Max(100, m.Target)
			}
			sum += assumed * float64(missing)
		}
		count += missing
	}
	if rebalanceUnready {
		count += unready
	}
	again := sum / float64(count) / m.Target
	if !outside(s, again) || ratio < 1 && again > 1 || ratio > 1 && again < 1 {
		return current
	}
	n := ceil(again * float64(count))
	if again < 1 && n > current || again > 1 && n < current {
		return current
	}
	return n
}

// ceil rounds up after taking off the noise of binary fractions, as a Quantity in
// milli-units would.
func ceil(x float64) int {
	if math.IsNaN(x) {
		return -1
	}
	return int(math.Ceil(x - 1e-9))
}
