// SPDX-License-Identifier: Apache-2.0

package diagnose

import (
	"fmt"
	"strings"
)

// podMetrics are how names begin of metrics that engines publish themselves: where no
// pod runs there are none. Names of gateways, pickers and queues begin otherwise.
var podMetrics = [...]string{"vllm", "sglang", "tgi", "llamacpp", "trtllm", "nv_inference", "nv_trt_llm", "dcgm"}

// fromPods reports whether a metric is published by the pods that are scaled.
func fromPods(metric string) bool {
	n := normMetric(metric)
	for _, p := range podMetrics {
		if n == p || strings.HasPrefix(n, p+"_") {
			return true
		}
	}
	return false
}

// checkWake finds fleets that KEDA brings to zero and that nothing brings back: all
// that it looks at comes from the pods.
func checkWake(s *Set, k *sink) {
	for _, sigs := range groupByObject(s.signals()) {
		so := sigs[0].so
		if so == nil || so.Paused || so.PausedReplicas {
			continue
		}
		zero, line := so.Min.Or(0) == 0, so.Min.Line(so.Line)
		if so.Idle.Set && so.Idle.V == 0 && !zero {
			zero, line = true, so.Idle.At.Line
		}
		if !zero {
			continue
		}
		blind := ""
		for i := range sigs {
			name := wakesNot(&sigs[i])
			if name == "" {
				blind = ""
				break
			}
			if blind == "" || blind == "cpu" || blind == "memory" {
				blind = name
			}
		}
		if blind == "" || blind == "cpu" || blind == "memory" {
			continue // cpu and memory alone are refused by KEDA with a minimum of 0
		}
		f := at(&so.Object, line, "zero-cannot-wake")
		f.Evidence = []Evidence{Ev("minReplicaCount", so.Min.Or(0), "replicas"), {Name: "metric", Value: blind}, Ev("triggers", len(sigs), "")}
		if !so.Min.Set {
			f.Evidence[0] = f.Evidence[0].From("default")
		}
		f.Message = fmt.Sprintf("the fleet goes to zero and never comes back: %s is published by the pods themselves, and where none runs the answer is empty, which reads as 0", blind)
		f.Remedy = "minReplicaCount: 1\nOr add a trigger on what exists without pods: the queue of the gateway or picker, or a message queue."
		if so.Min.Set && so.Min.V == 0 {
			f.Edits = []Edit{replaceField(so.File, so.Min, "1")}
		} else if e, ok := addKeys(so.File, so.SpecAt, "minReplicaCount: 1"); ok && !so.Min.Set {
			f.Edits = []Edit{e}
		}
		k.add(f)
	}
}

// wakesNot returns the metric of a trigger that shows nothing while no pod runs; ""
// for one that may.
func wakesNot(g *signal) string {
	switch t := g.trigger.Type.V; t {
	case "cpu", "memory":
		return t
	case "prometheus":
		if g.query == nil || len(g.query.Metrics) == 0 {
			return ""
		}
		for _, m := range g.query.Metrics {
			if !fromPods(m) {
				return ""
			}
		}
		return g.name
	case "datadog":
		// avg:vllm.num_requests.waiting{service:llama}
		q := g.trigger.Metadata.Get("query").V
		if _, rest, ok := strings.Cut(q, ":"); ok {
			q, _, _ = strings.Cut(rest, "{")
		}
		if fromPods(strings.TrimSpace(q)) {
			return strings.TrimSpace(q)
		}
	}
	return ""
}
