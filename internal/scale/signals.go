// SPDX-License-Identifier: Apache-2.0

package scale

import (
	"fmt"
	"math"

	"github.com/penstock-project/penstock/internal/fleet"
)

// RefuseSignal says why a signal is no basis for scaling model servers; "" where it
// is one.
func RefuseSignal(name string) string {
	switch name {
	case "cpu":
		return "the CPU of a model server idles while requests wait for the accelerator: a full server shows 5 to 15 %"
	case "gpu", "gpu-utilization", "gpu-utilisation", "DCGM_FI_DEV_GPU_UTIL":
		return "GPU utilisation is a duty cycle: one running request already makes it 100 %"
	case "memory", "gpu-memory", "DCGM_FI_DEV_FB_USED":
		return "the engine allocates its KV cache at start, so used memory never falls; used KV blocks are another thing"
	case "rps", "requests-per-second":
		return "a request of ten thousand tokens is not one of ten: count the work they bring"
	}
	return ""
}

// early is a sign that the objective is in danger, before throughput shows it.
type early struct {
	name  string
	value fleet.Value
	limit float64
	unit  string
}

// warnings lists the signs with their limits: waiting and first tokens at the
// objective, token times at it, a full KV cache, preemptions.
func (s *Scaler) warnings() [5]early {
	g := &s.obs.Gateway
	return [5]early{
		{"queue time", g.QueueTime, 0.5 * s.policy.TTFT, "s"},
		{"TTFT", g.TTFT, s.policy.TTFT, "s"},
		{"ITL", g.ITL, s.policy.ITL, "s"},
		{"KV cache", g.KV, 0.95, "share"},
		{"preemptions", g.Preempted, 0.1, "1/s"},
	}
}

// staleAfter is the age in seconds from which a reading warns of nothing.
const staleAfter = 30.0

// earlyWarning: a sign above its limit adds a tenth of the fleet, at least one
// replica, once per start-up and only while nothing is coming, so that it does not
// compound.
func (s *Scaler) earlyWarning(v *view, n int) (int, string, fleet.Time) {
	if v.ready == 0 || n > v.current || v.coming > 0 {
		return n, "", 0
	}
	for _, w := range s.warnings() {
		if !w.value.OK() || w.limit <= 0 || w.value.V <= w.limit || v.now.Seconds(w.value.At) > staleAfter {
			continue
		}
		h := &s.history
		if h.warnedAt != 0 && v.now.Seconds(h.warnedAt) < s.lead0() {
			return max(n, v.current), w.name + " is above its limit", h.warnedAt.AddSeconds(s.lead0())
		}
		h.warnedAt = v.now
		return max(n, warned(v.current)), fmt.Sprintf("%s is %.3g %s, its limit %.3g", w.name, w.value.V, w.unit, w.limit), 0
	}
	return n, "", 0
}

// warned is the number that a sign above its limit asks for.
func warned(current int) int { return current + max(1, int(math.Round(0.1*float64(current)))) }

func (s *Scaler) lead0() float64 { return s.start.p90 + 60 }
