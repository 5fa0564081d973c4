// SPDX-License-Identifier: Apache-2.0

package diagnose

import (
	"fmt"
	"strings"

	"github.com/penstock-project/penstock/internal/scale"
)

// checkUnits finds targets that can never be reached or that are always exceeded:
// a percentage where the metric is a ratio, microseconds where milliseconds were
// meant.
func checkUnits(s *Set, k *sink) {
	for _, g := range s.signals() {
		if g.trigger != nil && g.trigger.Type.V == "prometheus" {
			if f, bad := thresholdText(&g); bad {
				k.add(f)
				continue
			}
		}
		if !g.want.Set || g.kind == TargetUtilization || g.fact.Kind == KindReplicas {
			continue
		}
		seen, has := s.Seen.Metric(g.name)
		if f, bad := unreachable(&g, seen, has); bad {
			k.add(f)
		} else if f, bad := alwaysExceeded(&g, seen, has); bad {
			k.add(f)
		}
	}
}

// thresholdText finds a threshold that KEDA cannot read: it takes plain numbers,
// not Kubernetes quantities.
func thresholdText(g *signal) (Finding, bool) {
	t := g.trigger.Metadata.Get("threshold")
	if !t.Set || g.want.Set || strings.ContainsAny(t.V, "<>{}$") {
		return Finding{}, false
	}
	f := at(g.obj, t.At.Line, "threshold-not-a-number")
	f.Evidence = []Evidence{Ev("threshold", t.V, "")}
	f.Message = fmt.Sprintf("KEDA reads the threshold as a plain number and refuses %q", t.V)
	f.Remedy = "Write the threshold without a suffix."
	if v, ok := ParseQuantity(t.V); ok {
		f.Remedy = fmt.Sprintf("threshold: \"%s\"", Num(v))
		f.Edits = []Edit{replaceField(g.obj.File, t, fmt.Sprintf("%q", Num(v)))}
	}
	return f, true
}

func unreachable(g *signal, seen SeenMetric, has bool) (Finding, bool) {
	bound, bounded := g.fact.Bounded()
	limit, source := bound, "unit of the metric"
	tol := tolerance
	if g.behavior != nil && g.behavior.Up.Tolerance.Set {
		tol = g.behavior.Up.Tolerance.V
	}
	switch {
	case bounded && has && seen.Max.Set && seen.Max.V <= bound && seen.Max.V*10 < g.want.V:
		limit, source = seen.Max.V, "observed maximum"
	case bounded && g.want.V*(1+tol) > bound:
		if has && seen.Max.Set {
			if seen.Max.V > bound { // this publisher uses another unit than the name says
				return Finding{}, false
			}
			limit, source = seen.Max.V, "observed maximum"
		}
	case !bounded && has && seen.Max.Set && seen.Max.V > 0 && g.want.V > 10*seen.Max.V:
		limit, source = seen.Max.V, "observed maximum"
	case g.fact.Kind == KindSeconds && g.fact.Signal == SignalLatency && g.want.V >= secondsLimit(g.name):
		limit, source = secondsLimit(g.name), "no user waits that long"
	default:
		return Finding{}, false
	}
	f := at(g.obj, g.want.Line(g.line), "target-unreachable")
	f.Evidence = []Evidence{
		{Name: "metric", Value: g.name}, Ev("target", g.want.V, kindUnit(g.fact.Kind)).From("written " + g.want.Text),
		Ev("largest_value", limit, kindUnit(g.fact.Kind)).From(source), {Name: "verdict", Value: "unreachable"},
	}
	f.Message = fmt.Sprintf("%s is %s and never exceeds %s, so the target of %s is never reached and the scaler never adds a replica",
		g.name, kindPhrase(g.fact.Kind), Num(limit), Num(g.want.V))
	if bounded && g.want.V <= bound {
		f.Message = fmt.Sprintf("%s is %s; at %s it exceeds the target of %s by less than the tolerance of %s %%, so the scaler never adds a replica",
			g.name, kindPhrase(g.fact.Kind), Num(bound), Num(g.want.V), Num(tol*100))
	}
	value := suggestTarget(g)
	f.Remedy = targetLine(g, value)
	f.Edits = []Edit{replaceField(g.obj.File, g.want, targetText(g, value))}
	return f, true
}

// secondsLimit is the time in seconds above which a latency of that name is no
// target but a mistake in the unit.
func secondsLimit(name string) float64 {
	n := normMetric(name)
	switch {
	case strings.Contains(n, "inter_token") || strings.Contains(n, "per_output_token") || strings.Contains(n, "itl") || strings.Contains(n, "tpot"):
		return 5
	case strings.Contains(n, "e2e") || strings.Contains(n, "request_duration"):
		return 1000
	}
	return 100
}

func alwaysExceeded(g *signal, seen SeenMetric, has bool) (Finding, bool) {
	low, source := 0.0, ""
	switch {
	case has && seen.Min.Set && seen.Min.V > g.want.V*(1+tolerance) && (g.perPod || g.fact.Averaged || g.fact.Kind != KindCount):
		low, source = seen.Min.V, "observed minimum"
	case g.fact.Kind == KindPercent && g.want.V <= 1:
		low, source = 1, "unit of the metric: 0..100"
	case g.fact.Kind == KindMicros && g.want.V < 1000:
		low, source = 1000, "a queue of a model server is counted in milliseconds at least"
	case g.fact.Kind == KindMillis && g.want.V < 1:
		low, source = 1, "a queue of a model server is counted in milliseconds at least"
	case g.fact.Kind == KindSeconds && g.fact.Signal == SignalLatency && g.want.V < 0.001:
		low, source = 0.001, "a step of a model server takes milliseconds at least"
	case g.fact.Kind == KindCount && g.want.V < 0.1:
		low, source = 1, "one request"
	default:
		return Finding{}, false
	}
	f := at(g.obj, g.want.Line(g.line), "target-always-exceeded")
	unit := kindUnit(g.fact.Kind)
	f.Evidence = []Evidence{
		{Name: "metric", Value: g.name}, Ev("target", g.want.V, unit).From("written " + g.want.Text),
		Ev("smallest_value", low, unit).From(source), {Name: "verdict", Value: "always-exceeded"},
	}
	if has && seen.P50.Set {
		f.Evidence = append(f.Evidence, Ev("observed_median", seen.P50.V, unit).From("observed"))
	}
	f.Message = fmt.Sprintf("a target of %s %s is below any value that %s takes under load (%s: %s), so one request is enough and the scaler runs at its maximum of %d",
		Num(g.want.V), unit, g.name, source, Num(low), g.max)
	value := suggestTarget(g)
	f.Remedy = targetLine(g, value)
	f.Edits = []Edit{replaceField(g.obj.File, g.want, targetText(g, value))}
	return f, true
}

// suggestTarget is a value in the unit of the metric that is neither out of reach
// nor always exceeded: 80 % of a share, half a second of queueing, five requests.
func suggestTarget(g *signal) float64 {
	switch g.fact.Kind {
	case KindRatio:
		return kvShare
	case KindPercent:
		return kvShare * 100
	case KindMicros:
		return 500_000
	case KindMillis:
		return 500
	case KindSeconds:
		if secondsLimit(g.name) == 5 {
			return 0.1
		}
		return 0.5
	}
	return waitingPerReplica
}

func targetText(g *signal, v float64) string {
	if g.so != nil {
		return fmt.Sprintf("%q", Num(v))
	}
	if v < 1 {
		return Num(v*1000) + "m"
	}
	return fmt.Sprintf("%q", Num(v))
}

func targetLine(g *signal, v float64) string {
	key := "averageValue"
	switch {
	case g.so != nil:
		key = "threshold"
	case g.kind == TargetValue:
		key = "value"
	}
	return fmt.Sprintf("%s: %s   # was %s", key, targetText(g, v), g.want.Text)
}

func kindUnit(k MetricKind) string {
	switch k {
	case KindPercent:
		return "%"
	case KindSeconds:
		return "s"
	case KindMillis:
		return "ms"
	case KindMicros:
		return "us"
	case KindCount:
		return "requests"
	}
	return ""
}

func kindPhrase(k MetricKind) string {
	switch k {
	case KindRatio:
		return "a ratio from 0 to 1"
	case KindPercent:
		return "a percentage"
	case KindSeconds:
		return "in seconds"
	case KindMillis:
		return "in milliseconds"
	case KindMicros:
		return "in microseconds"
	case KindCount:
		return "a number of requests"
	}
	return "measured"
}

// checkValueType finds targets of type Value on something that does not shrink
// when replicas are added: the ratio is multiplied by the ready replicas, so the
// result compounds.
func checkValueType(s *Set, k *sink) {
	for _, g := range s.signals() {
		if g.kind != TargetValue || g.perPod || !g.want.Set || g.want.V <= 0 || !compounds(s, &g) {
			continue
		}
		f := at(g.obj, g.line, "value-multiplies")
		if g.metric != nil && g.metric.TargetType.Set {
			f.Line = g.metric.TargetType.Line(g.line)
		}
		if g.trigger != nil && g.trigger.MetricType.Set {
			f.Line = g.trigger.MetricType.Line(g.line)
		}
		steps := runaway(&g)
		f.Evidence = []Evidence{
			{Name: "metric", Value: g.name}, Ev("target", g.want.V, ""), {Name: "type", Value: "Value"},
			{Name: "replicas_at_constant_load", Value: steps}, {Name: "what_if", Value: whatIf(g.want.V, max(g.min, 1), g.max)},
		}
		f.Message = fmt.Sprintf("type Value multiplies the ready replicas by metric/target, and %s does not fall when a replica is added: at a constant %s the count goes %s until maxReplicas (%d)",
			g.name, Num(2*g.want.V), joinInts(steps, " -> "), g.max)
		if g.fact.Kind == KindReplicas {
			f.Message = fmt.Sprintf("%s already is a number of replicas; type Value multiplies it by the ready replicas again: a constant recommendation of %s gives %s until maxReplicas (%d)",
				g.name, Num(2*g.want.V), joinInts(steps, " -> "), g.max)
		}
		f.Remedy = "target: {type: AverageValue, averageValue: " + fmt.Sprintf("%q", g.want.Text) + "}   # total / target, whatever the count is"
		f.Edits = averageEdits(&g)
		if g.so != nil {
			f.Remedy = "metricType: AverageValue   # total / threshold, whatever the count is"
		}
		k.add(f)
		if g.behavior != nil && !g.behavior.Up.Set && g.want.V <= 2 && g.fact.Kind != KindReplicas {
			k.add(unboundedUp(&g))
		}
	}
}

func compounds(s *Set, g *signal) bool {
	if g.fact.Kind == KindReplicas {
		return true
	}
	if g.fact.Averaged {
		return false
	}
	for i := range s.AdapterRules {
		r := &s.AdapterRules[i]
		q := ParseQuery(r.MetricsQuery.V)
		if (normMetric(r.As) == normMetric(g.name) || q.Selects(normMetric(g.name))) && (q.Outer == "avg" || q.Outer == "max") {
			return false
		}
	}
	if g.query != nil {
		return g.query.OK && g.query.Outer == "sum" && g.fact.Kind != KindUnknown && g.fact.Kind != KindRate
	}
	return g.fact.Kind == KindCount
}

// runaway plays the controller, behavior included, with a metric that stays at
// twice the target, from the smallest count on, and lists the counts.
func runaway(g *signal) []int {
	n := max(g.min, 1)
	out := []int{n}
	spec := ControllerSpec(g.min, g.max, g.behavior)
	var h scale.HPA
	for i := 0; i < 240 && len(out) < 8 && n < g.max; i++ {
		to := h.Sync(&spec, scale.HPAInput{Now: float64(i) * scale.HPASync, Spec: n, Status: n, Ready: n, Metrics: []scale.HPAMetric{
			{Source: scale.ExternalMetric, Type: scale.Value, Target: g.want.V, Usage: 2 * g.want.V},
		}}).Desired
		if to != n {
			n = to
			out = append(out, n)
		}
	}
	return out
}

// whatIfRow is one line of the table that shows what a target does.
type whatIfRow struct {
	Replicas     int `json:"replicas"`
	Waiting      int `json:"waiting"`
	ValueType    int `json:"value_type"`
	AverageValue int `json:"average_value_type"`
}

// whatIf tabulates both target types for up to ten waiting requests and up to four
// replicas, as wide as the maximum allows.
func whatIf(target float64, low, high int) []whatIfRow {
	if high <= 0 {
		high = kedaMax
	}
	var out []whatIfRow
	for n := 1; n <= 4; n++ {
		for w := 0; w <= 10; w++ {
			v, a := float64(w), float64(w)
			out = append(out, whatIfRow{n, w, clampInt(desiredRatio(n, v, target), low, high), clampInt(desiredAverage(n, a, target), low, high)})
		}
	}
	return out
}

func averageEdits(g *signal) []Edit {
	if g.trigger != nil {
		return []Edit{replaceField(g.obj.File, g.trigger.MetricType, TargetAverage)}
	}
	var out []Edit
	if g.metric.TargetType.Set {
		out = append(out, replaceField(g.obj.File, g.metric.TargetType, TargetAverage))
	}
	switch {
	case g.metric.TargetAt.Line > 0 && g.want.Key.Len > 0:
		out = append(out, renameKey(g.obj.File, g.want, "averageValue"))
	case g.want.Key.Len > 0: // v2beta1
		out = append(out, renameKey(g.obj.File, g.want, "targetAverageValue"))
	}
	return out
}

func unboundedUp(g *signal) Finding {
	f := at(g.obj, g.obj.Line, "scale-up-unbounded")
	f.Severity = Note
	n := max(g.min, 1)
	next := clampInt(desiredRatio(n, 2*g.want.V, g.want.V), n, max(g.max, n))
	f.Evidence = []Evidence{Ev("value", 2*g.want.V, ""), Ev("replicas_before", n, "replicas"), Ev("replicas_after", next, "replicas"), Ev("scale_up_window", 0, "s")}
	f.Message = fmt.Sprintf("a value of %s where the target is %s doubles the fleet at the next sync: behavior.scaleUp has no window and no policy", Num(2*g.want.V), Num(g.want.V))
	f.Remedy = "behavior:\n  scaleUp:\n    stabilizationWindowSeconds: 60\n    policies: [{type: Pods, value: 2, periodSeconds: 60}]"
	if g.hpa != nil && !g.hpa.Behavior.Set {
		lines := []string{"behavior: {scaleUp: {stabilizationWindowSeconds: 60, policies: [{type: Pods, value: 2, periodSeconds: 60}]}}"}
		if e, ok := addKeys(g.obj.File, g.hpa.SpecAt, lines...); ok {
			f.Edits = []Edit{e}
		}
	}
	return f
}

func joinInts(list []int, sep string) string {
	var b strings.Builder
	for i, v := range list {
		if i > 0 {
			b.WriteString(sep)
		}
		fmt.Fprint(&b, v)
	}
	return b.String()
}
