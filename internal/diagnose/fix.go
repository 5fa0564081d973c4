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

// engineMetrics writes the metrics that a scaler of a model server should follow,
// in the words of the object that the signal belongs to.
func engineMetrics(g *signal) string {
	if g.so != nil {
		return strings.Join(kedaTriggers(g, ""), "\n")
	}
	return strings.Join(hpaMetrics(""), "\n")
}

func hpaMetrics(pad string) []string {
	return indent(pad,
		"metrics:",
		"- type: Pods",
		"  pods:",
		"    metric: {name: vllm_num_requests_waiting}",
		fmt.Sprintf("    target: {type: AverageValue, averageValue: \"%d\"}", waitingPerReplica),
		"- type: Pods",
		"  pods:",
		"    metric: {name: vllm_kv_cache_usage_perc}",
		fmt.Sprintf("    target: {type: AverageValue, averageValue: %dm}", int(kvShare*1000)),
	)
}

// kedaTriggers writes triggers on engine metrics. A server address is kept from
// the object where it has one.
func kedaTriggers(g *signal, pad string) []string {
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
	return indent(pad,
		"triggers:",
		"- type: prometheus",
		"  metricType: AverageValue",
		"  metadata:",
		"    serverAddress: "+addr,
		"    query: sum(vllm:num_requests_waiting"+sel+")",
		fmt.Sprintf("    threshold: \"%d\"", waitingPerReplica),
		"    ignoreNullValues: \"false\"",
		"- type: prometheus",
		"  metricType: AverageValue",
		"  metadata:",
		"    serverAddress: "+addr,
		"    query: sum(vllm:kv_cache_usage_perc"+sel+")",
		fmt.Sprintf("    threshold: \"%s\"", Num(kvShare)),
		"    ignoreNullValues: \"false\"",
	)
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
func replaceSignals(g *signal) []Edit {
	list := MapAt{}
	if g.hpa != nil {
		list = g.hpa.ListAt
	} else if g.so != nil {
		list = g.so.ListAt
	}
	pad := strings.Repeat(" ", list.Indent)
	switch {
	case list.Line > 0 && list.After >= list.Line && g.hpa != nil:
		return []Edit{{File: g.obj.File, Whole: true, Line: list.Line - 1, Until: list.After, Text: strings.Join(hpaMetrics(pad), "\n")}}
	case list.Line > 0 && list.After >= list.Line && g.so != nil:
		return []Edit{{File: g.obj.File, Whole: true, Line: list.Line - 1, Until: list.After, Text: strings.Join(kedaTriggers(g, pad), "\n")}}
	case g.hpa != nil && g.hpa.SpecAt.Line > 0 && !g.hpa.Behavior.Set && g.obj.Alone && g.obj.Start > 0 && strings.HasPrefix(g.obj.APIVersion, "autoscaling/"):
		return []Edit{{File: g.obj.File, Whole: true, Line: g.obj.Start - 1, Until: g.obj.End, Text: strings.Join(wholeHPA(g.hpa), "\n")}}
	}
	return nil
}

// wholeHPA writes an HPA anew, with the names and bounds of the old one.
func wholeHPA(h *HPA) []string {
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
	return append(out, hpaMetrics("  ")...)
}
