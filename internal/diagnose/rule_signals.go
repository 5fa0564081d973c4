// SPDX-License-Identifier: Apache-2.0

package diagnose

import (
	"fmt"
	"math"
)

// assumedCores is what one busy replica of a model server uses of the host's CPU
// where nobody measured it: the engine's scheduler and tokenizer threads keep
// somewhat more than half a core busy, whatever the queue. Reports of GPU servers
// at their limit say 5 to 15 % of the host.
const assumedCores = 0.6

// checkMisleading finds scalers that follow nothing that binds a model server:
// CPU, memory, utilisation of the accelerator, requests per second.
func checkMisleading(s *Set, k *sink) {
	for _, group := range groupByObject(s.signals()) {
		useful := false
		for i := range group {
			useful = useful || group[i].fact.Engine()
		}
		if useful {
			continue // an HPA takes the largest of its metrics
		}
		w, serves, how := s.targetServes(group[0].target, group[0].obj.Namespace)
		for i := range group {
			g := &group[i]
			if !misleads(s, g, serves) {
				continue
			}
			switch g.fact.Signal {
			case SignalCPU:
				k.add(cpuFinding(s, g, w, serves, how))
			case SignalMemory:
				k.add(memoryFinding(s, g, how))
			case SignalGPU:
				k.add(gpuFinding(s, g))
			case SignalRequests:
				k.add(rateFinding(s, g))
			}
		}
	}
	for i := range s.Workloads {
		checkServiceScaler(s, &s.Workloads[i], k)
	}
}

// misleads decides whether a signal may be called misleading: the target must
// serve a model. Where only the scaler was given, CPU is enough to ask.
func misleads(s *Set, g *signal, serves Serves) bool {
	switch g.fact.Signal {
	case SignalCPU:
		return serves == ServesYes || serves == ServesUnknown && len(s.Workloads) == 0
	case SignalGPU:
		return serves != ServesNo
	case SignalMemory:
		return serves == ServesYes
	case SignalRequests:
		return serves == ServesYes
	}
	return false
}

// cpuUse is what is known or assumed of a replica's use of CPU.
type cpuUse struct {
	util    float64 // percent of the request; NaN unknown
	cores   float64 // NaN where only the utilisation is known
	request float64 // NaN unknown
	source  string
}

func cpuUsage(s *Set, w *Workload) cpuUse {
	u := cpuUse{util: math.NaN(), cores: math.NaN(), request: math.NaN()}
	if w != nil {
		sum, all := 0.0, len(w.Pod.Containers) > 0
		for i := range w.Pod.Containers {
			q, ok := w.Pod.Containers[i].Request("cpu")
			sum, all = sum+q, all && ok
		}
		if all {
			u.request = sum
		}
	}
	for _, name := range [...]string{"cpu_pct_avg", "cpu_pct", "cpu_percent", "cpu_utilization", "cpu_utilisation", "cpu_util_pct", "cpu_util", "cpu"} {
		if m, ok := s.Seen.Metric(name); ok && m.Max.Set {
			u.util, u.source = m.Max.V, "observed maximum"
			if u.util <= 1 {
				u.util *= 100
			}
			return u
		}
	}
	u.cores, u.source = assumedCores, "assumed: busy GPU servers report 5 to 15 % of the host"
	if s.Seen.CPUCores.Set {
		u.cores, u.source = s.Seen.CPUCores.V, "observed"
	}
	if u.request > 0 {
		u.util = u.cores / u.request * 100
	}
	return u
}

func cpuFinding(s *Set, g *signal, w *Workload, serves Serves, how string) Finding {
	u := cpuUsage(s, w)
	f := at(g.obj, g.line, "cpu-signal")
	target := g.want.V
	if g.kind != TargetUtilization { // a number of cores
		f.Evidence = append(f.Evidence, Ev("cpu_target", target, "cores"))
		if !math.IsNaN(u.cores) {
			u.util = u.cores / math.Max(target, 1e-9) * 100
		}
		target = 100
	} else {
		f.Evidence = append(f.Evidence, Ev("cpu_target", target, "%"))
	}
	if !math.IsNaN(u.request) {
		f.Evidence = append(f.Evidence, Ev("cpu_request", u.request, "cores"))
	}
	if !math.IsNaN(u.cores) {
		f.Evidence = append(f.Evidence, Ev("cpu_used", u.cores, "cores").From(u.source))
	}
	if u.request > 0 {
		u.source = "cpu_used / cpu_request"
	}
	n := max(g.min, 1)
	switch {
	case math.IsNaN(u.util):
		f.Evidence = append(f.Evidence, Ev("cpu_utilisation", "5..15", "%").From(u.source))
		f.Message = fmt.Sprintf("CPU says nothing about the load of a model server: at its limit it uses 5 to 15 %% of the host, so a target of %s %% is not reached while requests wait, and the count stays at the minimum (%d)", Num(target), g.min)
	case u.util < target*(1-tolerance):
		want := desiredRatio(n, u.util, target)
		f.Evidence = append(f.Evidence, Ev("cpu_utilisation", u.util, "%").From(u.source), Ev("desired_by_cpu", want, "replicas"), Ev("clamped", max(want, g.min), "replicas"), Ev("equilibrium", g.min, "replicas"))
		f.Message = fmt.Sprintf("CPU never reaches %s %%: a model server at its limit reads %s %%, so the HPA computes ceil(%d x %s/%s) = %d and stays at its minimum of %d however long the queue is",
			Num(target), Num(Round(u.util, 1)), n, Num(Round(u.util, 1)), Num(target), want, g.min)
	case u.util > target*(1+tolerance):
		f.Evidence = append(f.Evidence, Ev("cpu_utilisation", u.util, "%").From(u.source), Ev("equilibrium", g.max, "replicas"))
		f.Message = fmt.Sprintf("CPU reads %s %% of the request at any load, above the target of %s %%: every replica that is added reads the same, so the HPA climbs to its maximum of %d and stays there, idle or not",
			Num(Round(u.util, 1)), Num(target), g.max)
	default:
		f.Evidence = append(f.Evidence, Ev("cpu_utilisation", u.util, "%").From(u.source))
		f.Message = fmt.Sprintf("CPU reads %s %% at any load, within the tolerance of the target of %s %%: the HPA never changes the count", Num(Round(u.util, 1)), Num(target))
	}
	if serves == ServesUnknown {
		f.Severity = Warning
		f.Message += " (whether " + g.target.Name + " serves a model cannot be seen here)"
	}
	f.Evidence = append(f.Evidence, Evidence{Name: "serves_a_model", Value: how})
	f.Remedy = "Scale on what binds: requests waiting per replica, with the KV cache as second signal.\n" + engineMetrics(s, g)
	f.Edits = replaceSignals(s, g)
	return f
}

func memoryFinding(s *Set, g *signal, how string) Finding {
	f := at(g.obj, g.line, "memory-signal")
	f.Evidence = []Evidence{Ev("memory_target", g.want.V, targetUnit(g)), {Name: "serves_a_model", Value: how}}
	f.Message = "memory does not follow load: a model server reserves its memory when it starts and never gives it back, so the HPA adds replicas until the reserved share is under the target and never removes one"
	f.Remedy = "Scale on requests waiting per replica, with the KV cache as second signal.\n" + engineMetrics(s, g)
	f.Edits = replaceSignals(s, g)
	return f
}

func gpuFinding(s *Set, g *signal) Finding {
	f := at(g.obj, g.line, "gpu-utilisation-signal")
	f.Evidence = []Evidence{{Name: "metric", Value: g.name}}
	if g.want.Set {
		f.Evidence = append(f.Evidence, Ev("target", g.want.V, targetUnit(g)))
	}
	if m, ok := s.Seen.Metric(g.name); ok && m.Min.Set {
		f.Evidence = append(f.Evidence, Ev("observed_min", m.Min.V, "").From("observed"), Ev("observed_max", m.Max.V, "").From("observed"))
	}
	f.Message = fmt.Sprintf("%s is the share of time in which any kernel runs: it reads near 100 %% from the first request on, so the HPA climbs to its maximum of %d before anybody waits and cannot tell a full replica from one with room", g.name, g.max)
	f.Remedy = "Scale on requests waiting per replica, with the KV cache as second signal.\n" + engineMetrics(s, g)
	f.Edits = replaceSignals(s, g)
	return f
}

func rateFinding(s *Set, g *signal) Finding {
	f := at(g.obj, g.line, "request-rate-signal")
	f.Evidence = []Evidence{{Name: "metric", Value: g.name}}
	if g.want.Set {
		f.Evidence = append(f.Evidence, Ev("target", g.want.V, "requests/s"))
	}
	f.Message = "requests per second do not measure work: one request can be fifty tokens or fifty thousand, so the same rate can idle the fleet or drown it, and the rate of finished requests even falls under overload"
	f.Remedy = "Scale on requests waiting per replica, with the KV cache as second signal, or on tokens per second.\n" + engineMetrics(s, g)
	f.Edits = replaceSignals(s, g)
	return f
}

func targetUnit(g *signal) string {
	if g.kind == TargetUtilization {
		return "%"
	}
	return ""
}

// checkServiceScaler judges the autoscaling that a KServe or Knative object
// carries in its own fields.
func checkServiceScaler(s *Set, w *Workload, k *sink) {
	sc := &w.Scaler
	if _, serves := w.Pod.Serves(); serves == ServesNo && len(w.Pod.Containers) > 0 {
		return
	}
	metric := sc.Metric.V
	if sc.Class.V == "hpa" && !sc.Metric.Set {
		metric = "cpu" // the default of the class
	}
	if sc.Class.V == "none" || sc.Class.V == "external" {
		return
	}
	code, msg := "", ""
	switch metric {
	case "cpu":
		code = "cpu-signal"
		msg = "CPU says nothing about the load of a model server: at its limit it uses 5 to 15 % of the host, so the target is not reached while requests wait"
	case "memory":
		code = "memory-signal"
		msg = "memory does not follow load: a model server reserves its memory when it starts and never gives it back"
	case "rps":
		code = "request-rate-signal"
		msg = "requests per second do not measure work: one request can be fifty tokens or fifty thousand"
	default:
		return
	}
	f := at(&w.Object, sc.Line, code)
	f.Evidence = []Evidence{{Name: "metric", Value: metric}, {Name: "class", Value: sc.Class.Or("default")}}
	if sc.Target.Set {
		f.Evidence = append(f.Evidence, Ev("target", sc.Target.V, ""))
	}
	f.Message = msg
	f.Remedy = "Set the metric to concurrency, or set serving.kserve.io/autoscalerClass to external and scale the Deployment on requests waiting per replica (KEDA or an HPA on an external metric)."
	switch {
	case sc.Class.V == "hpa": // it follows cpu and memory only
		f.Remedy = `serving.kserve.io/autoscalerClass: keda     # in place of hpa, which follows cpu and memory only
autoScaling:                                # beside minReplicas, in place of scaleMetric and scaleTarget
  metrics:
    - type: External
      external:
        metric: {backend: prometheus, serverAddress: "http://prometheus:9090", query: 'sum(vllm:num_requests_waiting{model_name="` + w.Name + `"})'}
        target: {type: AverageValue, averageValue: "5"}`
	case sc.Metric.Set:
		f.Edits = []Edit{replaceField(w.File, sc.Metric, "concurrency")}
	}
	k.add(f)
}
