// SPDX-License-Identifier: Apache-2.0

package scaling

import (
	"fmt"
	"math"
	"strings"

	"github.com/penstock-project/penstock/internal/diagnose"
)

// defaultTarget is how many waiting requests a replica may have in a proposal.
const defaultTarget = 5

func (a *analysis) target() float64 {
	if a.in.Target > 0 {
		return a.in.Target
	}
	if v, ok := a.setting("target_waiting_per_replica", "target_waiting", "threshold"); ok && v > 0 {
		return v
	}
	return defaultTarget
}

// overload returns the first row from which users suffer: the queue exceeds the
// target of every replica, or the time to the first token is three times what it
// was at the start.
func (h *history) overload(target float64) (int, bool) {
	first := unknown
	for i := range h.rows {
		r := &h.rows[i]
		if known(r.ttft) && !known(first) {
			first = r.ttft
		}
		if r.lost {
			continue // the scaler cannot know
		}
		n := r.replicas
		if !known(n) {
			n = 1
		}
		if known(r.waiting) && r.waiting > target*math.Max(n, 1) {
			return i, true
		}
		if known(r.ttft) && known(first) && first > 0 && r.ttft > 5*first && !h.has["waiting"] {
			return i, true
		}
	}
	return 0, false
}

// neverScaled finds an overload during which the count did not change.
func (a *analysis) neverScaled() bool {
	h := a.h
	counts := h.series(replicasOf)
	start, over := h.overload(a.target())
	if !over || len(counts) < 2 || minOf(counts) != maxOf(counts) {
		return false
	}
	n := counts[0]
	low, high := a.bounds()
	if known(high) && n >= high {
		a.atMaximum(start, n, high)
		return true
	}
	f := a.new("never-scaled", h.rows[start].line)
	f.Evidence = append(f.Evidence, a.cause(n, low)...)
	f.Evidence = append(f.Evidence, diagnose.Ev("replicas", n, "replicas"))
	for _, s := range [...]struct {
		name, unit string
		of         func(*row) float64
	}{{"waiting", "requests", waitingOf}, {"kv_usage", "", kvOf}, {"ttft", "ms", ttftOf}} {
		if v := h.series(s.of); len(v) > 0 {
			first, _ := ends(v)
			f.Evidence = append(f.Evidence, diagnose.Ev(s.name+"_first", first, s.unit), diagnose.Ev(s.name+"_max", maxOf(v), s.unit))
		}
	}
	rejected, why := a.reject()
	if len(rejected) > 0 {
		f.Evidence = append(f.Evidence, diagnose.Evidence{Name: "reject_signals", Value: rejected})
		for i, s := range rejected {
			f.Evidence = append(f.Evidence, diagnose.Evidence{Name: "reject_" + s, Value: why[i]})
		}
	}
	up := a.proposal(n, high)
	f.Evidence = append(f.Evidence, a.coldEvidence())
	f.Message = a.neverText(n, low)
	f.Remedy = a.neverRemedy(up)
	if up.FirstUp != nil {
		f.Evidence = append(f.Evidence, diagnose.Ev("first_scale_up_request", *up.FirstUp, "s").From("replay of the proposal"))
	}
	if up.HelpsFrom != nil {
		f.Evidence = append(f.Evidence, diagnose.Ev("helps_from", *up.HelpsFrom, "s").From("first request + cold start"))
	}
	a.rep = append(a.rep, up)
	a.add(f)
	return true
}

// cause says which signal kept the scaler from acting, as far as the files tell.
func (a *analysis) cause(n, low float64) []diagnose.Evidence {
	cpu := maxOf(a.h.series(cpuOf))
	for i := range a.set.HPAs {
		for _, m := range a.set.HPAs[i].Metrics {
			if m.Type == diagnose.MetricResource && m.Name.V == "cpu" && m.Kind == diagnose.TargetUtilization {
				ev := []diagnose.Evidence{{Name: "cause", Value: "cpu-signal"}, diagnose.Ev("cpu_target", m.Target.V, "%")}
				if known(cpu) && m.Target.V > 0 {
					d := math.Ceil(n*cpu/m.Target.V - 1e-9)
					ev = append(ev, diagnose.Ev("cpu_max", cpu, "%"), diagnose.Ev("hpa_desired_by_cpu", int(d), "replicas"), diagnose.Ev("hpa_clamped", int(math.Max(d, low)), "replicas"))
				}
				return ev
			}
		}
	}
	for i := range a.set.Scaled {
		for _, t := range a.set.Scaled[i].Triggers {
			if t.Type.V == "cpu" {
				return []diagnose.Evidence{{Name: "cause", Value: "cpu-signal"}, diagnose.Ev("cpu_max", cpu, "%")}
			}
		}
	}
	for _, f := range diagnose.Lint(a.set) {
		if r, ok := diagnose.RuleOf(f.Code); ok && r.Area == "scaling" && f.Severity == diagnose.Error {
			return []diagnose.Evidence{{Name: "cause", Value: f.Code}}
		}
	}
	ev := []diagnose.Evidence{{Name: "cause", Value: nil, Age: "the scaler's object was not given"}}
	if known(cpu) {
		ev = append(ev, diagnose.Ev("cpu_max", cpu, "%"))
	}
	return ev
}

func (a *analysis) neverText(n, low float64) string {
	h := a.h
	w := h.series(waitingOf)
	first, _ := ends(w)
	s := fmt.Sprintf("the count stayed at %s", diagnose.Num(n))
	if len(w) > 0 {
		s += fmt.Sprintf(" while waiting rose %s -> %s", diagnose.Num(first), diagnose.Num(maxOf(w)))
	}
	if kv := h.series(kvOf); len(kv) > 0 {
		s += fmt.Sprintf(" and the KV cache reached %s", diagnose.Num(maxOf(kv)))
	}
	if t := h.series(ttftOf); len(t) > 0 {
		f, _ := ends(t)
		s += fmt.Sprintf("; time to first token %s -> %s", diagnose.Seconds(f/1000), diagnose.Seconds(maxOf(t)/1000))
	}
	cause := a.cause(n, low)
	if len(cause) >= 5 {
		s += fmt.Sprintf(". The HPA looks at CPU, which never exceeded %s %% of its target of %s %%: ceil(%s x %s/%s) = %v, clamped to %v",
			diagnose.Num(cause[2].Value.(float64)), diagnose.Num(cause[1].Value.(float64)), diagnose.Num(n), diagnose.Num(cause[2].Value.(float64)),
			diagnose.Num(cause[1].Value.(float64)), cause[3].Value, cause[4].Value)
	} else if c, ok := cause[0].Value.(string); ok {
		s += ". Cause: " + c
	} else if len(cause) > 1 {
		s += fmt.Sprintf(". Why cannot be told without the scaler's object; CPU never exceeded %v %%, so a CPU target cannot have acted", cause[1].Value)
	}
	return s
}

// reject tests the signals that people would try next on the same history.
func (a *analysis) reject() (names, why []string) {
	h := a.h
	calm := func(of func(*row) float64) (float64, bool) { // the value before anybody waited
		for i := range h.rows {
			r := &h.rows[i]
			if v := of(r); known(v) && (!known(r.waiting) || r.waiting <= 0) {
				return v, true
			}
		}
		return 0, false
	}
	if v, ok := calm(gpuOf); ok && v >= 85 && h.has["gpu"] {
		names = append(names, "gpu_util")
		why = append(why, fmt.Sprintf("%s %% before anybody waited, %s %% at the worst: it does not tell load", diagnose.Num(v), diagnose.Num(maxOf(h.series(gpuOf)))))
	}
	if v := h.series(rpsOf); len(v) > 1 && minOf(v) > 0 && maxOf(v)/minOf(v) < 1.2 {
		s := fmt.Sprintf("flat at %s..%s a second while the queue grew", diagnose.Num(minOf(v)), diagnose.Num(maxOf(v)))
		if p := h.series(promptOf); len(p) > 1 && minOf(p) > 0 {
			s += fmt.Sprintf(": prompts became %s times longer", diagnose.Num(diagnose.Round(maxOf(p)/p[0], 1)))
		}
		names = append(names, "rps")
		why = append(why, s)
	}
	if v, ok := calm(cpuOf); ok && maxOf(h.series(cpuOf))-v < 15 {
		names = append(names, "cpu")
		why = append(why, fmt.Sprintf("%s..%s %% from idle to overload", diagnose.Num(minOf(h.series(cpuOf))), diagnose.Num(maxOf(h.series(cpuOf)))))
	}
	if len(a.set.HPAs) > 0 || len(a.set.Scaled) > 0 { // cpu is then the cause, not a temptation
		for i, n := range names {
			if n == "cpu" {
				return append(names[:i:i], names[i+1:]...), append(why[:i:i], why[i+1:]...)
			}
		}
	}
	return names, why
}

func (a *analysis) neverRemedy(up Replay) string {
	name, ns := "NAME", ""
	low, high := a.bounds()
	if len(a.set.HPAs) > 0 {
		name, ns = a.set.HPAs[0].Target.Name, a.set.HPAs[0].Namespace
	} else if len(a.set.Scaled) > 0 {
		name, ns = a.set.Scaled[0].Target.Name, a.set.Scaled[0].Namespace
	}
	if !known(low) {
		low = a.h.series(replicasOf)[0]
	}
	if !known(high) {
		high = 2 * low
	}
	sel := ""
	if ns != "" {
		sel = fmt.Sprintf("{namespace=%q}", ns)
	}
	lines := []string{
		"Scale on requests waiting per replica, with the KV cache as second signal:",
		"apiVersion: keda.sh/v1alpha1", "kind: ScaledObject", "metadata: {name: " + name + nsText(ns) + "}", "spec:",
		"  scaleTargetRef: {name: " + name + "}",
		fmt.Sprintf("  minReplicaCount: %s", diagnose.Num(low)), fmt.Sprintf("  maxReplicaCount: %s", diagnose.Num(high)),
		"  fallback: {failureThreshold: 3, replicas: " + diagnose.Num(low) + ", behavior: currentReplicasIfHigher}",
		"  triggers:",
		"  - type: prometheus",
		"    metadata: {serverAddress: http://prometheus.monitoring.svc:9090, ignoreNullValues: \"false\",",
		fmt.Sprintf("      query: 'sum(vllm:num_requests_waiting%s)', threshold: \"%s\"}", sel, diagnose.Num(a.target())),
		"  - type: prometheus",
		"    metadata: {serverAddress: http://prometheus.monitoring.svc:9090, ignoreNullValues: \"false\",",
		fmt.Sprintf("      query: 'sum(vllm:kv_cache_usage_perc%s)', threshold: \"0.8\"}", sel),
	}
	if up.FirstUp != nil {
		lines = append(lines, fmt.Sprintf("On the recorded signals it asks for more at t=%s s.", diagnose.Num(*up.FirstUp)))
	}
	if up.HelpsFrom != nil {
		lines = append(lines, fmt.Sprintf("What scaling cannot fix: with a cold start of %s the replicas help only after t=%s s; for the gap shed load, or keep a warm spare.", diagnose.Seconds(a.cold), diagnose.Num(*up.HelpsFrom)))
	} else {
		lines = append(lines, "What scaling cannot fix: the replicas help only after a cold start, whose length is not known here (--cold-start); for that gap shed load, or keep a warm spare.")
	}
	return strings.Join(lines, "\n")
}

func nsText(ns string) string {
	if ns == "" {
		return ""
	}
	return ", namespace: " + ns
}

// atMaximum finds an overload at the upper bound.
func (a *analysis) atMaximum(start int, n, high float64) {
	f := a.new("capped-at-max", a.h.rows[start].line)
	f.Evidence = []diagnose.Evidence{diagnose.Ev("replicas", n, "replicas"), diagnose.Ev("max", high, "replicas"), diagnose.Ev("waiting_max", maxOf(a.h.series(waitingOf)), "requests")}
	f.Message = fmt.Sprintf("the fleet is at its maximum of %s while the queue grows to %s", diagnose.Num(high), diagnose.Num(maxOf(a.h.series(waitingOf))))
	f.Remedy = "Raise the maximum if the GPUs are there; otherwise shed load by priority at the gateway."
	a.add(f)
}

// late finds a scale-up that came long after the overload began.
func (a *analysis) late() {
	start, over := a.h.overload(a.target())
	if !over {
		return
	}
	t0 := a.h.rows[start].t
	for _, c := range a.h.changes(replicasOf) {
		if c.to <= c.from || c.at < t0 {
			continue
		}
		wait := c.at - t0
		if wait < 120 {
			return
		}
		f := a.new("scaled-late", c.line)
		f.Evidence = []diagnose.Evidence{diagnose.Ev("overload_from", t0, "s"), diagnose.Ev("first_step", c.at, "s"), diagnose.Ev("late_by", wait, "s"), a.coldEvidence()}
		f.Message = fmt.Sprintf("the queue exceeded its target at t=%s s and the first replica was asked for at t=%s s, %s later", diagnose.Num(t0), diagnose.Num(c.at), diagnose.Seconds(wait))
		f.Remedy = "Scale up without a window (behavior.scaleUp.stabilizationWindowSeconds: 0), poll at 15 s or push, and use a signal that leads: requests waiting, not latencies of finished ones."
		a.add(f)
		return
	}
}

// lostSignal finds replicas that were removed while the signal was gone.
func (a *analysis) lostSignal() {
	h := a.h
	for i := 1; i < len(h.rows); i++ {
		r, p := &h.rows[i], &h.rows[i-1]
		if !r.lost && !p.lost || !known(r.replicas) || !known(p.replicas) || r.replicas >= p.replicas {
			continue
		}
		since := r.t
		for j := i; j >= 0 && h.rows[j].lost; j-- {
			since = h.rows[j].t
		}
		f := a.new("lost-signal-scale-down", r.line)
		f.Evidence = []diagnose.Evidence{diagnose.Ev("signal_lost_since", since, "s"), diagnose.Ev("replicas_before", p.replicas, "replicas"), diagnose.Ev("replicas_after", r.replicas, "replicas")}
		if known(r.waiting) {
			f.Evidence = append(f.Evidence, diagnose.Ev("waiting", r.waiting, "requests"))
		}
		f.Message = fmt.Sprintf("the count went from %s to %s while the signal had been gone since t=%s s: no data was read as no load", diagnose.Num(p.replicas), diagnose.Num(r.replicas), diagnose.Num(since))
		f.Remedy = "ignoreNullValues: \"false\" on the trigger and a fallback with currentReplicasIfHigher; nothing may scale down on a signal that is unknown."
		a.add(f)
		return
	}
}
