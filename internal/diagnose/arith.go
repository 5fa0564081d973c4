// SPDX-License-Identifier: Apache-2.0

package diagnose

import "math"

// tolerance is the share by which a ratio may miss 1 before an HPA acts, the
// default of --horizontal-pod-autoscaler-tolerance.
const tolerance = 0.1

// desiredRatio is the rule of an HPA for utilisations, Pods metrics and type Value:
// ceil(n x ratio), or n within the tolerance.
func desiredRatio(n int, usage, target float64) int {
	if target <= 0 {
		return n
	}
	r := usage / target
	if math.Abs(r-1) <= tolerance {
		return n
	}
	return ceilInt(float64(n) * r)
}

// desiredAverage is the rule of an HPA for External and Object metrics of type
// AverageValue: the total over the target, whatever n is, or n within the
// tolerance.
func desiredAverage(n int, total, target float64) int {
	if target <= 0 {
		return n
	}
	if n > 0 && math.Abs(total/(target*float64(n))-1) <= tolerance {
		return n
	}
	return ceilInt(total / target)
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
