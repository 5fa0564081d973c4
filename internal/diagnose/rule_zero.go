// SPDX-License-Identifier: Apache-2.0

package diagnose

import (
	"fmt"
	"strings"
)

// checkZero finds fleets that an HPA cannot bring to zero, or not back from it, and
// trigger settings that stand where nobody reads them.
func checkZero(s *Set, k *sink) {
	for i := range s.HPAs {
		h := &s.HPAs[i]
		if h.Min.Set && h.Min.V == 0 && strings.HasPrefix(h.APIVersion, "autoscaling/") {
			outside := false
			for _, m := range h.Metrics {
				outside = outside || m.Type == MetricExternal || m.Type == MetricObject
			}
			if !outside {
				f := at(&h.Object, h.Min.At.Line, "min-zero-needs-external")
				f.Evidence = []Evidence{Ev("minReplicas", 0, "replicas"), Ev("metrics", len(h.Metrics), "")}
				f.Message = "minReplicas 0 needs an Object or External metric: with no pod there is no Pods or Resource metric to wake by, and the object is refused"
				f.Remedy = "minReplicas: 1, or an External metric of a queue that exists without pods (the gateway's)."
				k.add(f)
			}
		}
		w := s.Target(h.Target, h.Namespace)
		if w == nil || !w.Replicas.Set || w.Replicas.V != 0 || h.Min.Or(1) == 0 {
			continue
		}
		f := at(&w.Object, w.Replicas.At.Line, "zero-disables-hpa")
		f.Evidence = []Evidence{Ev("replicas", 0, "replicas"), Ev("minReplicas", h.Min.Or(1), "replicas"), {Name: "hpa", Value: h.Ref()}}
		f.Message = fmt.Sprintf("replicas 0 switches %s off for good: an HPA does not touch a target that somebody set to zero, whatever its metrics say", h.Ref())
		f.Remedy = fmt.Sprintf("replicas: %d, or leave replicas out", max(1, h.Min.Or(1)))
		f.Edits = []Edit{replaceField(w.File, w.Replicas, fmt.Sprint(max(1, h.Min.Or(1))))}
		k.add(f)
	}
	for i := range s.Scaled {
		so := &s.Scaled[i]
		for j := range so.Triggers {
			t := &so.Triggers[j]
			m := t.Metadata.Get("metricType")
			if !m.Set || t.MetricType.Set || m.V == TargetAverage || t.Type.V == "cpu" || t.Type.V == "memory" {
				continue
			}
			f := at(&so.Object, m.At.Line, "metric-type-misplaced")
			f.Evidence = []Evidence{{Name: "metadata.metricType", Value: m.V}, {Name: "effective", Value: TargetAverage}}
			f.Message = fmt.Sprintf("metricType %s stands in metadata, where KEDA does not read it: the trigger is AverageValue", m.V)
			f.Remedy = "Move metricType beside type and metadata of the trigger."
			if e, ok := addKeys(so.File, t.At, "metricType: "+m.V); ok {
				f.Edits = []Edit{e}
			}
			k.add(f)
		}
	}
}

// checkModelNames finds scalers of a model whose name no engine among the files
// serves while one serves nearly that.
func checkModelNames(s *Set, k *sink) {
	for i := range s.Policies {
		p := &s.Policies[i]
		near, exact := "", false
		for j := range s.Workloads {
			w := &s.Workloads[j]
			c, serves := w.Pod.Serves()
			if serves != ServesYes || c == nil || !sameNamespace(w.Namespace, p.Namespace) {
				continue
			}
			for _, name := range c.servedModels() {
				exact = exact || name == p.Model.V
				if base(name) == base(p.Model.V) && near == "" {
					near = name
				}
			}
		}
		if exact || near == "" {
			continue
		}
		f := at(&p.Object, p.Model.At.Line, "inert-autoscaler")
		f.Evidence = []Evidence{{Name: "condition", Value: "NoMatchingReplicas"}, {Name: "policy_model", Value: p.Model.V}, {Name: "suggest", Value: near}}
		f.Message = fmt.Sprintf("the policy says %s and the engine serves %s: no series matches, the autoscaler has no input and repeats the current count", p.Model.V, near)
		f.Remedy = "modelID: " + near
		f.Edits = []Edit{replaceField(p.File, p.Model, near)}
		k.add(f)
	}
}

func base(model string) string {
	return strings.ToLower(model[strings.LastIndexByte(model, '/')+1:])
}

// servedModels lists the names under which an engine serves: those that it was
// told, or the model itself.
func (c *Container) servedModels() []string {
	if f := c.Flag("--served-model-name"); f.Set {
		return strings.Fields(f.V)
	}
	if f := c.Flag("--model", "--model-path", "--model-id"); f.Set {
		return []string{f.V}
	}
	words := make([]string, 0, 8)
	for _, list := range [...][]Field[string]{c.Command, c.Args} {
		for _, a := range list {
			words = append(words, strings.Fields(a.V)...)
		}
	}
	for i, w := range words {
		if w == "serve" && i+1 < len(words) && !strings.HasPrefix(words[i+1], "-") {
			return []string{words[i+1]}
		}
	}
	return nil
}

// deadlineDefault is progressDeadlineSeconds where it is not set.
const deadlineDefault = 600

// checkDeadline finds rollouts that are given up while their pods still load.
func checkDeadline(s *Set, k *sink) {
	for i := range s.Workloads {
		w := &s.Workloads[i]
		start, seen := s.Seen.SlowestStart(w.Name)
		_, serves := w.Pod.Serves()
		if w.Kind != "Deployment" || !seen || serves != ServesYes || start <= float64(w.ProgressDeadline.Or(deadlineDefault)) {
			continue
		}
		deadline := w.ProgressDeadline.Or(deadlineDefault)
		f := at(&w.Object, w.ProgressDeadline.Line(w.Line), "progress-deadline-below-start")
		f.Evidence = []Evidence{Ev("progressDeadlineSeconds", deadline, "s"), Ev("start", start, "s").From("observed")}
		if !w.ProgressDeadline.Set {
			f.Evidence[0] = f.Evidence[0].From("default")
		}
		f.Message = fmt.Sprintf("a rollout is reported as failed (ProgressDeadlineExceeded) after %s, and a start takes %s: tools that wait for it roll back a good version", Seconds(float64(deadline)), Seconds(start))
		f.Remedy = fmt.Sprintf("progressDeadlineSeconds: %d", int(2*start))
		if w.ProgressDeadline.Set {
			f.Edits = []Edit{replaceField(w.File, w.ProgressDeadline, fmt.Sprint(int(2*start)))}
		} else if e, ok := addKeys(w.File, w.SpecAt, fmt.Sprintf("progressDeadlineSeconds: %d", int(2*start))); ok {
			f.Edits = []Edit{e}
		}
		k.add(f)
	}
}
