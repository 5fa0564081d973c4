// SPDX-License-Identifier: Apache-2.0

package diagnose

import (
	"fmt"
	"math"
	"strings"
)

// checkQueries finds queries of ScaledObjects whose answer KEDA refuses or reads
// otherwise than their author.
func checkQueries(s *Set, k *sink) {
	for _, g := range s.signals() {
		if g.query != nil && g.query.OK && g.query.Card == CardMany {
			k.add(multipleElements(s, &g))
			if g.kind == TargetAverage && g.want.Set {
				k.add(averageSemantics(s, &g))
			}
			continue
		}
		if averagedTwice(&g) {
			k.add(averagedFinding(&g))
		}
	}
}

func multipleElements(s *Set, g *signal) Finding {
	q := g.trigger.Metadata.Get("query")
	f := at(g.obj, q.At.Line, "multiple-elements")
	f.Evidence = []Evidence{{Name: "query", Value: strings.TrimSpace(q.V)}, {Name: "series", Value: "one per pod, rank or model"}}
	for i := range s.Seen.Vectors {
		v := &s.Seen.Vectors[i]
		if v.Error != "" {
			continue
		}
		sum := 0.0
		for j := range v.Series {
			sum += v.Series[j].Value.V
		}
		f.Evidence = append(f.Evidence,
			Ev("sum", sum, "requests").From(fmt.Sprintf("%s, %d series", v.File, len(v.Series))))
	}
	fixed := aggregated(g, q.V)
	f.Message = "the query returns one series per pod (and per rank and model); KEDA refuses more than one element, so the scaler fails as soon as there is a second pod and the HPA neither grows nor shrinks"
	f.Remedy = "query: " + fixed
	if q.At.Len > 0 {
		f.Edits = []Edit{replaceField(g.obj.File, q, yamlPlain(fixed))}
	}
	return f
}

// aggregated wraps a query so that one number comes back: the sum of counts, the
// maximum of what must not be added.
func aggregated(g *signal, q string) string {
	q = strings.TrimSpace(q)
	agg := "sum"
	if g.kind == TargetValue && (g.fact.Kind == KindRatio || g.fact.Kind == KindPercent || g.fact.Signal == SignalLatency) {
		agg = "max"
	}
	if g.query.Quantile {
		agg = "max"
	}
	if len(g.query.Metrics) == 1 && q == g.query.Metrics[0] && g.obj.Namespace != "" {
		q += fmt.Sprintf("{namespace=%q}", g.obj.Namespace) // the sum must not take in other namespaces
	}
	if rest, ok := strings.CutSuffix(q, "or vector(0)"); ok {
		return agg + "(" + strings.TrimSpace(rest) + ") or vector(0)"
	}
	return agg + "(" + q + ")"
}

// yamlPlain quotes a text where YAML would read it as something else.
func yamlPlain(s string) string {
	if strings.Contains(s, ": ") || strings.Contains(s, " #") || strings.ContainsAny(s[:1], "{[\"'&*!|>%@`-?") || strings.ContainsAny(s, "{},[]") {
		return "'" + strings.ReplaceAll(s, "'", "''") + "'"
	}
	return s
}

func averageSemantics(s *Set, g *signal) Finding {
	f := at(g.obj, g.want.Line(g.line), "average-value-semantics")
	f.Severity = Warning
	f.Evidence = []Evidence{Ev("threshold", g.want.V, "per replica")}
	for i := range s.Seen.Vectors {
		v := &s.Seen.Vectors[i]
		sum := 0.0
		for j := range v.Series {
			sum += v.Series[j].Value.V
		}
		if v.Error == "" && len(v.Series) > 0 {
			f.Evidence = append(f.Evidence, Ev("desired", ceilInt(sum/g.want.V), "replicas").From(fmt.Sprintf("ceil(%s/%s)", Num(sum), Num(g.want.V))))
		}
	}
	f.Message = fmt.Sprintf("with one summed series the threshold of %s is an average per replica (AverageValue): desired = ceil(sum/%s), not a limit for each pod alone", Num(g.want.V), Num(g.want.V))
	f.Remedy = fmt.Sprintf("Keep threshold: %q and read it as requests waiting per replica.", g.want.Text)
	return f
}

// averagedTwice finds averages that are divided by the replicas once more: the
// value does not grow with the pool, so the count is capped or falls.
func averagedTwice(g *signal) bool {
	if g.kind != TargetAverage || g.perPod || !g.want.Set || g.want.V <= 0 || !g.fact.Averaged || g.fact.Signal == SignalReplicas {
		return false
	}
	if g.query == nil {
		return g.metric != nil && g.fact.Engine() && (g.metric.Type == MetricExternal || g.metric.Type == MetricObject)
	}
	if !g.query.OK {
		return false
	}
	switch g.query.Outer {
	case "avg":
		return true
	case "max", "min", "quantile":
		return g.fact.Kind == KindRatio || g.fact.Kind == KindPercent || g.fact.Signal == SignalLatency || g.fact.Signal == SignalQueue || g.fact.Signal == SignalRunning
	}
	return g.query.Divided && g.fact.Signal == SignalLatency
}

func averagedFinding(g *signal) Finding {
	f := at(g.obj, g.line, "averaged-twice")
	f.Evidence = []Evidence{{Name: "metric", Value: g.name}, Ev("target", g.want.V, kindUnit(g.fact.Kind)), {Name: "type", Value: TargetAverage}}
	if bound, ok := g.fact.Bounded(); ok {
		most := ceilInt(bound / g.want.V)
		f.Evidence = append(f.Evidence, Ev("largest_desired", most, "replicas"))
		f.Message = fmt.Sprintf("AverageValue divides the value by the target and ignores the count: an average of at most %s over %s never asks for more than %d, whatever the load", Num(bound), Num(g.want.V), most)
	} else {
		f.Evidence = append(f.Evidence, Ev("desired_at_twice_the_target", 2, "replicas"))
		f.Message = "AverageValue divides the value by the target and ignores the count: an average of twice the target asks for 2 replicas even where 8 are running"
	}
	f.Remedy = "Use type Value for an average (the count is multiplied by value/target), or sum the metric and keep AverageValue."
	switch {
	case g.trigger != nil && g.trigger.MetricType.Set:
		f.Remedy = "metricType: Value\n" + f.Remedy
		f.Edits = []Edit{replaceField(g.obj.File, g.trigger.MetricType, TargetValue)}
	case g.trigger != nil && g.trigger.Type.Set:
		f.Remedy = "metricType: Value\n" + f.Remedy
		if e, ok := addKeys(g.obj.File, g.trigger.At, "metricType: Value"); ok {
			f.Edits = []Edit{e}
		}
	case g.metric != nil && g.metric.TargetType.Set:
		f.Edits = []Edit{replaceField(g.obj.File, g.metric.TargetType, TargetValue), renameKey(g.obj.File, g.want, "value")}
	}
	return f
}

// checkFallback finds ScaledObjects that scale down when Prometheus has lost its
// targets, and fallbacks that do not act.
func checkFallback(s *Set, k *sink) {
	for i := range s.Scaled {
		so := &s.Scaled[i]
		if f, bad := fallbackOff(so); bad {
			k.add(f)
		}
		if f, bad := emptyIsZero(s, so); bad {
			k.add(f)
		}
	}
}

func fallbackOff(so *ScaledObject) (Finding, bool) {
	if so.Fallback == nil {
		return Finding{}, false
	}
	f := at(&so.Object, so.Fallback.Line, "fallback-off")
	if m := so.Modifiers; m != nil && m.Target.Set {
		if _, ok := parseIntText(m.Target.V); !ok {
			if v, good := ParseQuantity(m.Target.V); good && v != math.Trunc(v) {
				f.Evidence = []Evidence{{Name: "scalingModifiers.target", Value: m.Target.V}, Ev("fallback.replicas", so.Fallback.Replicas.V, "replicas")}
				f.Message = fmt.Sprintf("the fallback never acts: with scalingModifiers KEDA reads the target %q as an integer, fails, and still reports Ready", m.Target.V)
				f.Remedy = fmt.Sprintf("Scale formula and target by the same factor so that the target is an integer: target: \"%s\" and formula: \"(%s) * %s\".", Num(v*10), m.Formula.V, "10")
				return f, true
			}
		}
	}
	for i := range so.Triggers {
		if t := so.Triggers[i].Type.V; t != "cpu" && t != "memory" {
			return Finding{}, false
		}
	}
	if len(so.Triggers) == 0 {
		return Finding{}, false
	}
	f.Evidence = []Evidence{{Name: "triggers", Value: so.Triggers[0].Type.V}}
	f.Message = "the fallback never acts: KEDA does not apply it to cpu and memory triggers"
	f.Remedy = "Remove the fallback, or scale on a metric of the engine."
	return f, true
}

func parseIntText(s string) (int, bool) {
	v, ok := ParseQuantity(s)
	return int(v), ok && v == math.Trunc(v) && !strings.Contains(s, ".")
}

// emptyIsZero finds ScaledObjects whose every trigger reads an empty answer as 0.
func emptyIsZero(s *Set, so *ScaledObject) (Finding, bool) {
	var first *Trigger
	engine, many := false, false
	for i := range so.Triggers {
		t := &so.Triggers[i]
		switch t.Type.V {
		case "prometheus":
			q := ParseQuery(t.Metadata.Get("query").V)
			_, fact := queryFact(&q)
			engine = engine || fact.Engine()
			many = many || q.OK && q.Card == CardMany
			if strings.EqualFold(t.Metadata.Get("ignoreNullValues").V, "false") && !q.OrZero {
				return Finding{}, false
			}
			if first == nil {
				first = t
			}
		case "cron", "cpu", "memory":
		default:
			return Finding{}, false // its behaviour on loss is its own
		}
	}
	_, serves, _ := s.targetServes(so.Target, so.Namespace)
	if first == nil || !engine && serves != ServesYes || serves == ServesNo {
		return Finding{}, false
	}
	low, high := so.Min.Or(0), so.Max.Or(kedaMax)
	if m, ok := s.Seen.Metric("replicas"); ok && m.Max.Set {
		high = int(m.Max.V)
	}
	if low >= high {
		return Finding{}, false
	}
	return emptyFinding(so, first, low, high, many), true
}

func emptyFinding(so *ScaledObject, t *Trigger, low, high int, many bool) Finding {
	window, falls := untilMinimum(low, high, &so.Behavior)
	if !falls {
		window = 3600
	}
	f := at(&so.Object, t.Line, "no-fallback")
	if high <= 2*max(low, 1) {
		f.Severity = Note // it loses half of the fleet at most
	}
	null, orZero := t.Metadata.Get("ignoreNullValues"), ParseQuery(t.Metadata.Get("query").V).OrZero
	state := "true (default)"
	if null.Set {
		state = null.V
	}
	fallback := "none"
	if so.Fallback != nil {
		fallback = fmt.Sprintf("%d replicas", so.Fallback.Replicas.V)
	}
	f.Evidence = []Evidence{
		{Name: "ignoreNullValues", Value: state}, {Name: "fallback", Value: fallback}, Ev("replicas_before", high, "replicas"),
		Ev("replicas_after", low, "replicas"), Ev("within", window, "s"),
	}
	why := "ignoreNullValues is not set and defaults to true"
	if null.Set {
		why = "ignoreNullValues is " + null.V
	}
	if orZero {
		why = "the query ends in \"or vector(0)\""
		f.Evidence = append(f.Evidence, Evidence{Name: "or_vector_0", Value: true})
	}
	tail := " and there is no fallback"
	if so.Fallback != nil {
		tail = ", so the fallback does not see a failure"
	}
	f.Message = fmt.Sprintf("when Prometheus loses its targets the empty answer reads as 0 load: %s%s; the fleet goes from %d to %d within %s, the scale-down window and policies, at whatever load", why, tail, high, low, Seconds(window))
	if low == 0 {
		f.Message = fmt.Sprintf("when Prometheus loses its targets the empty answer reads as 0 load: %s%s; the fleet goes from %d to 1 within %s and to 0 after the cooldown of %s, at whatever load", why, tail, high, Seconds(window), Seconds(float64(so.Cooldown.Or(300))))
	}
	if !falls {
		f.Message = fmt.Sprintf("when Prometheus loses its targets the empty answer reads as 0 load: %s%s; the fleet shrinks towards %d as fast as the scale-down policies allow, at whatever load", why, tail, low)
	}
	keep := max(low, (low+high+1)/2)
	f.Remedy = fmt.Sprintf("metadata: ignoreNullValues: \"false\"   # an empty answer is an error, the HPA holds\nfallback:\n  failureThreshold: 3\n  replicas: %d\n  behavior: currentReplicasIfHigher", keep)
	f.Edits = emptyEdits(so, keep)
	return f
}

func emptyEdits(so *ScaledObject, keep int) []Edit {
	var out []Edit
	for i := range so.Triggers {
		t := &so.Triggers[i]
		if t.Type.V != "prometheus" {
			continue
		}
		if null := t.Metadata.Get("ignoreNullValues"); null.Set {
			out = append(out, replaceField(so.File, null, `"false"`))
		} else if e, ok := addKeys(so.File, t.MetaAt, `ignoreNullValues: "false"`); ok {
			out = append(out, e)
		}
		q := t.Metadata.Get("query")
		if rest, ok := strings.CutSuffix(strings.TrimSpace(q.V), "or vector(0)"); ok && q.At.Len > 0 {
			out = append(out, replaceField(so.File, q, yamlPlain(strings.TrimSpace(rest))))
		}
	}
	if so.Fallback == nil {
		line := fmt.Sprintf("fallback: {failureThreshold: 3, replicas: %d, behavior: currentReplicasIfHigher}", keep)
		if e, ok := addKeys(so.File, so.SpecAt, line); ok {
			out = append(out, e)
		}
	}
	return out
}
