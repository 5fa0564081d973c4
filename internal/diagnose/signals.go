// SPDX-License-Identifier: Apache-2.0

package diagnose

import "strconv"

// signal is one metric that one scaler follows, whether an HPA or a ScaledObject
// names it.
type signal struct {
	obj      *Object
	target   TargetRef
	line     int
	name     string
	fact     MetricFact
	kind     string         // Value, AverageValue, Utilization
	want     Field[float64] // the target
	perPod   bool           // a Pods metric: the HPA averages it itself
	min, max int
	behavior *Behavior
	hpa      *HPA
	metric   *Metric
	so       *ScaledObject
	trigger  *Trigger
	query    *Query // prometheus triggers only
}

// signals lists what all scalers follow, in the order of the files.
func (s *Set) signals() []signal {
	var out []signal
	for i := range s.HPAs {
		h := &s.HPAs[i]
		for j := range h.Metrics {
			out = append(out, hpaSignal(h, &h.Metrics[j]))
		}
	}
	for i := range s.Scaled {
		so := &s.Scaled[i]
		for j := range so.Triggers {
			out = append(out, kedaSignal(so, &so.Triggers[j]))
		}
	}
	return out
}

func hpaSignal(h *HPA, m *Metric) signal {
	g := signal{
		obj: &h.Object, target: h.Target, line: m.Line, name: m.Name.V, fact: Fact(m.Name.V), kind: m.Kind, want: m.Target,
		perPod: m.Type == MetricPods, min: h.Min.Or(1), max: h.Max.V, behavior: &h.Behavior, hpa: h, metric: m,
	}
	if m.Type == MetricResource || m.Type == MetricContainer {
		g.fact = resourceFact(m.Name.V)
	}
	return g
}

func resourceFact(name string) MetricFact {
	f := MetricFact{Known: true}
	switch {
	case name == "cpu":
		f.Signal = SignalCPU
	case name == "memory":
		f.Signal = SignalMemory
	case isGPUResource(name):
		f.Signal = SignalGPU
	}
	return f
}

// kedaMax is the default of maxReplicaCount.
const kedaMax = 100

func kedaSignal(so *ScaledObject, t *Trigger) signal {
	g := signal{
		obj: &so.Object, target: so.Target, line: t.Line, kind: t.MetricType.Or(TargetAverage),
		min: max(1, so.Min.Or(0)), max: so.Max.Or(kedaMax), behavior: &so.Behavior, so: so, trigger: t,
	}
	switch t.Type.V {
	case "cpu", "memory":
		g.name, g.fact = t.Type.V, resourceFact(t.Type.V)
		g.want = number(t.Metadata.Get("value"))
		if old := t.Metadata.Get("type"); old.Set && !t.MetricType.Set {
			g.kind = old.V
		} else if !t.MetricType.Set {
			g.kind = TargetUtilization
		}
	case "prometheus":
		q := ParseQuery(t.Metadata.Get("query").V)
		g.query = &q
		g.want = number(t.Metadata.Get("threshold"))
		g.name, g.fact = queryFact(&q)
		if f := t.Metadata.Get("query"); f.Set {
			g.line = f.At.Line
		}
	}
	return g
}

// number reads a threshold the way KEDA does, which knows no Kubernetes suffixes.
func number(f Field[string]) Field[float64] {
	v, err := strconv.ParseFloat(f.V, 64)
	if !f.Set || err != nil {
		return Field[float64]{}
	}
	return Field[float64]{V: v, Set: true, Text: f.Text, At: f.At, Key: f.Key}
}

// queryFact says what the value of a query is: what its metric is, changed by
// what the query does with it.
func queryFact(q *Query) (string, MetricFact) {
	if len(q.Metrics) == 0 {
		return "", MetricFact{}
	}
	name, f := q.Metrics[0], Fact(q.Metrics[0])
	for _, m := range q.Metrics[1:] {
		if g := Fact(m); g.Engine() && !f.Engine() {
			name, f = m, g
		}
	}
	f.Averaged = q.Quantile || q.Divided
	switch q.Outer {
	case "avg", "max", "min", "quantile", "stddev":
		f.Averaged = true
	case "count":
		f.Kind, f.Signal = KindCount, SignalOther
	}
	if q.Rate && f.Kind == KindTotal {
		f.Kind = KindRate
	}
	if q.Rate && f.Signal == SignalCPU {
		f.Kind = KindUnknown
	}
	return name, f
}

// scaler groups the signals of one object.
func groupByObject(sigs []signal) [][]signal {
	var out [][]signal
	for i := range sigs {
		if n := len(out); n > 0 && out[n-1][0].obj == sigs[i].obj {
			out[n-1] = append(out[n-1], sigs[i])
			continue
		}
		out = append(out, []signal{sigs[i]})
	}
	return out
}
