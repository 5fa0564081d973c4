// SPDX-License-Identifier: Apache-2.0

package diagnose

import (
	"fmt"
	"strings"
)

// Targets that replace a misleading signal. Five waiting requests per replica is
// the value of the field's own tutorials; 0.8 of the KV cache is where engines
// begin to hold requests back.
const (
	waitingPerReplica = 5
	kvShare           = 0.8
)

// loadMetrics are the names of what an engine publishes of its load: requests that
// wait, and the share of the KV cache in use; "" where it publishes none.
type loadMetrics struct{ waiting, kv string }

// loadOf returns the names for the engine that a signal's target runs: by its
// container where that was read, else by its name, else those of vLLM.
func loadOf(s *Set, g *signal) loadMetrics {
	engine := EngineUnknown
	if w := s.Target(g.target, g.obj.Namespace); w != nil {
		if c, serves := w.Pod.Serves(); serves == ServesYes {
			engine, _ = c.EngineOf()
		}
	}
	if engine == EngineUnknown {
		name := strings.ToLower(g.target.Name)
		for _, m := range engineMarks {
			if strings.Contains(name, m.mark) {
				engine = m.engine
				break
			}
		}
		if engine == EngineUnknown && (strings.HasPrefix(name, "tgi") || strings.Contains(name, "-tgi")) {
			engine = EngineTGI
		}
	}
	switch engine {
	case EngineSGLang:
		return loadMetrics{"sglang:num_queue_reqs", "sglang:token_usage"}
	case EngineTGI:
		return loadMetrics{"tgi_queue_size", ""}
	case EngineLlamaCpp:
		return loadMetrics{"llamacpp:requests_deferred", ""}
	case EngineTRT:
		return loadMetrics{"trtllm_num_requests_waiting", "trtllm_kv_cache_utilization"}
	}
	return loadMetrics{"vllm:num_requests_waiting", "vllm:kv_cache_usage_perc"}
}

// engineMetrics writes the metrics that a scaler of a model server should follow,
// in the words of the object that the signal belongs to.
func engineMetrics(s *Set, g *signal) string {
	if g.so != nil {
		return strings.Join(kedaTriggers(s, g, ""), "\n")
	}
	return strings.Join(hpaMetrics(loadOf(s, g), ""), "\n")
}

// hpaMetrics writes Pods metrics; adapters of Prometheus publish names with
// underscores for colons.
func hpaMetrics(m loadMetrics, pad string) []string {
	under := func(name string) string { return strings.ReplaceAll(name, ":", "_") }
	lines := []string{
		"metrics:",
		"- type: Pods",
		"  pods:",
		"    metric: {name: " + under(m.waiting) + "}",
		fmt.Sprintf("    target: {type: AverageValue, averageValue: \"%d\"}", waitingPerReplica),
	}
	if m.kv != "" {
		lines = append(lines,
			"- type: Pods",
			"  pods:",
			"    metric: {name: "+under(m.kv)+"}",
			fmt.Sprintf("    target: {type: AverageValue, averageValue: %dm}", int(kvShare*1000)))
	}
	return indent(pad, lines...)
}

// kedaTriggers writes triggers on engine metrics. A server address is kept from
// the object where it has one.
func kedaTriggers(s *Set, g *signal, pad string) []string {
	addr := "http://prometheus.monitoring.svc:9090"
	if g.so != nil {
		for i := range g.so.Triggers {
			if f := g.so.Triggers[i].Metadata.Get("serverAddress"); f.Set {
				addr = f.V
				break
			}
		}
	}
	sel := ""
	if g.obj.Namespace != "" {
		sel = fmt.Sprintf("{namespace=%q}", g.obj.Namespace)
	}
	m := loadOf(s, g)
	lines := []string{"triggers:"}
	trigger := func(metric, threshold string) {
		lines = append(lines,
			"- type: prometheus",
			"  metricType: AverageValue",
			"  metadata:",
			"    serverAddress: "+addr,
			"    query: sum("+metric+sel+")",
			"    threshold: \""+threshold+"\"",
			"    ignoreNullValues: \"false\"")
	}
	trigger(m.waiting, fmt.Sprint(waitingPerReplica))
	if m.kv != "" {
		trigger(m.kv, Num(kvShare))
	}
	return indent(pad, lines...)
}

func indent(pad string, lines ...string) []string {
	for i := range lines {
		lines[i] = pad + lines[i]
	}
	return lines
}

// replaceSignals is the edit that puts engine metrics in place of all signals of
// the object: its metrics or triggers where they are written in block style, the
// whole document otherwise.
func replaceSignals(s *Set, g *signal) []Edit {
	list := MapAt{}
	if g.hpa != nil {
		list = g.hpa.ListAt
	} else if g.so != nil {
		list = g.so.ListAt
	}
	pad := strings.Repeat(" ", list.Indent)
	switch {
	case list.Line > 0 && list.After >= list.Line && g.hpa != nil:
		return []Edit{{File: g.obj.File, Whole: true, Line: list.Line - 1, Until: list.After, Text: strings.Join(hpaMetrics(loadOf(s, g), pad), "\n")}}
	case list.Line > 0 && list.After >= list.Line && g.so != nil:
		return []Edit{{File: g.obj.File, Whole: true, Line: list.Line - 1, Until: list.After, Text: strings.Join(kedaTriggers(s, g, pad), "\n")}}
	case g.hpa != nil && g.hpa.SpecAt.Line > 0 && !g.hpa.Behavior.Set && g.obj.Alone && g.obj.Start > 0 && strings.HasPrefix(g.obj.APIVersion, "autoscaling/"):
		return []Edit{{File: g.obj.File, Whole: true, Line: g.obj.Start - 1, Until: g.obj.End, Text: strings.Join(wholeHPA(g.hpa, loadOf(s, g)), "\n")}}
	}
	return nil
}

// wholeHPA writes an HPA anew, with the names and bounds of the old one.
func wholeHPA(h *HPA, m loadMetrics) []string {
	out := []string{"apiVersion: autoscaling/v2", "kind: HorizontalPodAutoscaler", "metadata:", "  name: " + h.Name}
	if h.Namespace != "" {
		out = append(out, "  namespace: "+h.Namespace)
	}
	if len(h.Annotations) > 0 {
		out = append(out, "  annotations:")
		for _, a := range h.Annotations {
			out = append(out, fmt.Sprintf("    %s: %q", a.Name, a.Value.V))
		}
	}
	api := h.Target.APIVersion
	if api == "" {
		api = "apps/v1"
	}
	out = append(out, "spec:", "  scaleTargetRef:", "    apiVersion: "+api, "    kind: "+h.Target.Kind, "    name: "+h.Target.Name)
	if h.Min.Set {
		out = append(out, fmt.Sprintf("  minReplicas: %d", h.Min.V))
	}
	out = append(out, fmt.Sprintf("  maxReplicas: %d", h.Max.V))
	return append(out, hpaMetrics(m, "  ")...)
}
