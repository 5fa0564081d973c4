// SPDX-License-Identifier: Apache-2.0

package scale

import "math"

// KEDA is a ScaledObject with one trigger: its operator decides between zero and
// one, an HPA on an external metric with AverageValue decides the rest. Defaults
// as published for v2.21: pollingInterval 30 s, cooldownPeriod 300 s,
// minReplicaCount 0, maxReplicaCount 100. The zero value with Default is ready.
type KEDA struct {
	Threshold float64 // target per replica
	Least     int     // minReplicaCount
	Most      int     // maxReplicaCount
	Polling   float64 // s
	Cooldown  float64 // s, for the step to zero only
	// NullsAreZero is ignoreNullValues of the prometheus trigger: an empty answer
	// counts as 0. It is true by default, which turns a lost metric into a
	// scale-down.
	NullsAreZero bool

	hpa      HPA
	lastPoll float64
	polled   bool
	active   float64 // when the trigger was last above zero
}

// DefaultKEDA returns a ScaledObject that sets only its threshold.
func DefaultKEDA(threshold float64) *KEDA {
	return &KEDA{Threshold: threshold, Most: 100, Polling: 30, Cooldown: 300, NullsAreZero: true}
}

// Want is the count after the operator's loop and the HPA have run at now (s) with
// spec replicas and usage as the trigger's value. known is false where the query
// came back empty.
func (k *KEDA) Want(now float64, spec int, usage float64, known bool) int {
	if !known && k.NullsAreZero {
		usage, known = 0, true
	}
	if !k.polled || now-k.lastPoll >= k.Polling {
		k.polled, k.lastPoll = true, now
		if known && usage > 0 {
			k.active = now
		}
		switch {
		case spec == 0 && known && usage > 0:
			return max(1, k.Least)
		case spec > 0 && k.Least == 0 && known && usage == 0 && now-k.active >= k.Cooldown:
			return 0
		}
	}
	if spec == 0 {
		return 0
	}
	s := DefaultHPA(max(1, k.Least), k.Most)
	return k.hpa.Sync(&s, HPAInput{Now: now, Spec: spec, Status: spec, Ready: spec, Metrics: []HPAMetric{
		{Source: ExternalMetric, Type: AverageValue, Target: k.Threshold, Usage: usage, Invalid: !known},
	}}).Desired
}

// KPA is the Knative pod autoscaler. Defaults as published: tick 2 s, target 70 %
// of the container concurrency, stable window 60 s, panic window 10 % of it, panic
// threshold 200 %, max scale-up rate 1000, max scale-down rate 2.
type KPA struct {
	Target       float64 // concurrency per replica aimed at
	StableWindow float64 // s
	PanicWindow  float64 // s
	PanicRatio   float64
	UpRate       float64
	DownRate     float64

	panicked  bool
	panicAt   float64
	panicMost int
}

// DefaultKPA returns the published defaults for a replica that holds full requests
// at once.
func DefaultKPA(full float64) *KPA {
	return &KPA{Target: 0.7 * full, StableWindow: 60, PanicWindow: 6, PanicRatio: 2, UpRate: 1000, DownRate: 2}
}

// Want is the desired scale at now (s) with ready replicas and the mean concurrency
// of the stable and of the panic window. While it panics the scale never falls.
func (k *KPA) Want(now float64, ready int, stable, panicking float64) int {
	r := math.Max(1, float64(ready))
	up, down := math.Ceil(k.UpRate*r), math.Floor(r/k.DownRate)
	dStable := math.Min(math.Max(math.Ceil(stable/k.Target-1e-9), down), up)
	dPanic := math.Min(math.Max(math.Ceil(panicking/k.Target-1e-9), down), up)
	over := math.Ceil(panicking/k.Target-1e-9)/r >= k.PanicRatio
	switch {
	case over && !k.panicked:
		k.panicked, k.panicAt, k.panicMost = true, now, 0
	case over:
		k.panicAt = now
	case k.panicked && now-k.panicAt >= k.StableWindow:
		k.panicked = false
	}
	if k.panicked {
		k.panicMost = max(k.panicMost, int(dPanic))
		return max(k.panicMost, int(dStable))
	}
	return int(dStable)
}

// AIBrixAPA is the APA algorithm of AIBrix: the HPA formula with fluctuation
// tolerances of 0.1, on the replicas of the spec, so that it compounds while
// replicas load (RFC #2670). Its defaults: up rate 2, down rate 2, cooldown 0 s up
// and 300 s down.
type AIBrixAPA struct {
	Target   float64
	Cooldown float64 // s, down
	recent   []timedCount
}

// DefaultAIBrixAPA returns the published defaults.
func DefaultAIBrixAPA(target float64) *AIBrixAPA { return &AIBrixAPA{Target: target, Cooldown: 300} }

// Want is the desired count at now (s) with current replicas of the spec and the
// metric's mean over them.
func (a *AIBrixAPA) Want(now float64, current int, mean float64) int {
	if current == 0 {
		return 0 // replicas 0 with a minimum above it: disabled
	}
	ratio := mean / a.Target
	n := current
	if ratio > 1.1 || ratio < 0.9 {
		n = ceil(float64(current) * ratio)
	}
	n = min(max(n, current/2), 2*current)
	a.recent = append(trim(a.recent, now-a.Cooldown), timedCount{now, n})
	for _, r := range a.recent {
		if n < current {
			n = min(current, max(n, r.n))
		}
	}
	return n
}

// Ray is the replica autoscaler of Ray Serve. Defaults as published:
// target_ongoing_requests 2, look_back 30 s, upscale_delay 30 s, downscale_delay
// 600 s.
type Ray struct {
	Target             float64
	UpDelay, DownDelay float64 // s
	upSince, downSince float64
	up, down           bool
}

// DefaultRay returns the published defaults with another target.
func DefaultRay(target float64) *Ray { return &Ray{Target: target, UpDelay: 30, DownDelay: 600} }

// Want is the target count at now (s) with current target replicas and the ongoing
// requests' mean over the look-back.
func (r *Ray) Want(now float64, current int, ongoing float64) int {
	n := ceil(ongoing / r.Target)
	if current == 0 {
		return n
	}
	switch {
	case n > current:
		r.down = false
		if !r.up {
			r.up, r.upSince = true, now
		}
		if now-r.upSince >= r.UpDelay {
			r.up = false
			return n
		}
	case n < current:
		r.up = false
		if !r.down {
			r.down, r.downSince = true, now
		}
		if now-r.downSince >= r.DownDelay {
			r.down = false
			return n
		}
	default:
		r.up, r.down = false, false
	}
	return current
}

// KubeAI scales to the mean of active requests over ten minutes over a target.
// Defaults as published: interval 10 s, window 600 s (filled with zeros at first),
// targetRequests 100, scaleDownDelay 30 s.
type KubeAI struct {
	Target    float64
	DownDelay float64 // s
	ring      [60]float64
	n         int
	below     float64
	isBelow   bool
}

// DefaultKubeAI returns the published defaults with another target.
func DefaultKubeAI(target float64) *KubeAI { return &KubeAI{Target: target, DownDelay: 30} }

// Want is called every 10 s with the active requests; it returns the desired count.
func (k *KubeAI) Want(now float64, current int, active float64) int {
	k.ring[k.n%len(k.ring)] = active
	k.n++
	sum := 0.0
	for _, v := range k.ring {
		sum += v
	}
	n := ceil(sum / float64(len(k.ring)) / k.Target)
	if current == 0 && active > 0 {
		return max(1, n)
	}
	if n >= current {
		k.isBelow = false
		return n
	}
	if !k.isBelow {
		k.isBelow, k.below = true, now
	}
	if now-k.below >= k.DownDelay {
		return n
	}
	return current
}
