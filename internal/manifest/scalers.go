// SPDX-License-Identifier: Apache-2.0

package manifest

import (
	"strings"

	"github.com/penstock-project/penstock/internal/diagnose"
)

func readTarget(n node) diagnose.TargetRef {
	t := diagnose.TargetRef{APIVersion: n.str("apiVersion"), Kind: n.str("kind"), Name: n.str("name"), Line: n.line()}
	if t.Kind == "" && n.ok() {
		t.Kind = "Deployment" // the default of KEDA; an HPA without a kind is refused
	}
	return t
}

// keysAt lists the keys of mappings under spec, by their paths.
func keysAt(spec node, paths ...string) []diagnose.Key {
	var out []diagnose.Key
	for _, p := range paths {
		out = appendKeys(out, p, spec.get(strings.Split(p, ".")[1:]...))
	}
	return out
}

func appendKeys(out []diagnose.Key, path string, n node) []diagnose.Key {
	n.each(func(k, _ node) {
		out = append(out, diagnose.Key{Path: path, Name: k.scalar()})
	})
	return out
}

func readHPA(o diagnose.Object, n node) diagnose.HPA {
	spec := n.get("spec")
	o.Keys = keysAt(spec, "spec", "spec.behavior", "spec.behavior.scaleUp", "spec.behavior.scaleDown")
	h := diagnose.HPA{
		Object: o, Target: readTarget(spec.get("scaleTargetRef")),
		Min: spec.intField("minReplicas"), Max: spec.intField("maxReplicas"),
		Behavior: readBehavior(spec.get("behavior")), SpecAt: spec.mapAt(), ListAt: spec.listAt("metrics"),
	}
	for _, m := range spec.get("metrics").items() {
		h.Metrics = append(h.Metrics, readMetric(m))
	}
	if cpu := spec.floatField("targetCPUUtilizationPercentage"); cpu.Set { // autoscaling/v1
		h.Metrics = append(h.Metrics, diagnose.Metric{
			Type: diagnose.MetricResource, Kind: diagnose.TargetUtilization, Target: cpu, Line: cpu.At.Line,
			Name: diagnose.Field[string]{V: "cpu", Set: true, Text: "cpu"},
		})
	}
	h.FromScaler = n.get("metadata", "labels").has("scaledobject.keda.sh/name")
	if st := n.get("status"); st.isMap() {
		h.Status = &diagnose.HPAStatus{
			Current: st.intField("currentReplicas"), Desired: st.intField("desiredReplicas"),
			Conditions: readConditions(st.get("conditions")), Line: st.line(),
		}
	}
	return h
}

// readPodAutoscaler reads an AIBrix PodAutoscaler as the HPA that it resembles: its
// targets are averages per pod.
func readPodAutoscaler(o diagnose.Object, n node) diagnose.HPA {
	spec := n.get("spec")
	h := diagnose.HPA{
		Object: o, Target: readTarget(spec.get("scaleTargetRef")), Min: spec.intField("minReplicas"), Max: spec.intField("maxReplicas"), SpecAt: spec.mapAt(),
	}
	for _, m := range spec.get("metricsSources").items() {
		x := diagnose.Metric{Type: diagnose.MetricPods, Name: m.strField("targetMetric"), Target: m.floatField("targetValue"), Kind: diagnose.TargetAverage, Line: m.line()}
		if m.str("metricSourceType") == "resource" {
			x.Type, x.Kind = diagnose.MetricResource, diagnose.TargetUtilization
		}
		h.Metrics = append(h.Metrics, x)
	}
	return h
}

func readConditions(n node) []diagnose.Condition {
	var out []diagnose.Condition
	for _, c := range n.items() {
		out = append(out, diagnose.Condition{
			Type: c.str("type"), Status: c.str("status"), Reason: c.str("reason"), Message: c.str("message"), Line: c.line(),
		})
	}
	return out
}

// readMetric reads one entry of spec.metrics in the spelling of v2, v2beta2 or
// v2beta1.
func readMetric(n node) diagnose.Metric {
	m := diagnose.Metric{Type: diagnose.MetricType(n.str("type")), Line: n.line()}
	var body node
	for _, s := range [...]struct {
		t   diagnose.MetricType
		key string
	}{
		{diagnose.MetricResource, "resource"}, {diagnose.MetricContainer, "containerResource"},
		{diagnose.MetricPods, "pods"}, {diagnose.MetricObject, "object"}, {diagnose.MetricExternal, "external"},
	} {
		if b := n.get(s.key); b.ok() && (m.Type == s.t || m.Type == "") {
			m.Type, body = s.t, b
		}
	}
	switch {
	case body.get("metric").isMap():
		m.Name = body.get("metric").strField("name")
		m.Selector, _ = body.get("metric", "selector").labels()
	case body.has("metricName"):
		m.Name = body.strField("metricName")
		sel := body.get("metricSelector")
		if !sel.ok() {
			sel = body.get("selector")
		}
		m.Selector, _ = sel.labels()
	default:
		m.Name = body.strField("name")
	}
	m.Described = readTarget(body.get("describedObject"))
	target := body.get("target")
	if target.has("type", "value", "averageValue", "averageUtilization") {
		m.TargetType = target.strField("type")
		m.TargetAt = target.mapAt()
		for _, k := range [...][2]string{
			{"averageUtilization", diagnose.TargetUtilization}, {"averageValue", diagnose.TargetAverage}, {"value", diagnose.TargetValue},
		} {
			if f := target.floatField(k[0]); f.Set && (m.TargetType.V == k[1] || !m.TargetType.Set || !m.Target.Set) {
				m.Target, m.Kind = f, k[1]
			}
		}
		if m.TargetType.Set && m.Kind == "" {
			m.Kind = m.TargetType.V
		}
		return m
	}
	for _, k := range [...][2]string{
		{"targetAverageUtilization", diagnose.TargetUtilization}, {"targetAverageValue", diagnose.TargetAverage}, {"targetValue", diagnose.TargetValue},
		{"averageValue", diagnose.TargetAverage},
	} {
		if f := body.floatField(k[0]); f.Set {
			m.Target, m.Kind = f, k[1]
		}
	}
	return m
}

func readBehavior(n node) diagnose.Behavior {
	if !n.isMap() {
		return diagnose.Behavior{}
	}
	return diagnose.Behavior{Set: true, Up: readScaling(n.get("scaleUp")), Down: readScaling(n.get("scaleDown"))}
}

func readScaling(n node) diagnose.ScalingRules {
	if !n.isMap() {
		return diagnose.ScalingRules{}
	}
	s := diagnose.ScalingRules{
		Set: true, Window: n.intField("stabilizationWindowSeconds"),
		Select: n.strField("selectPolicy"), Tolerance: n.floatField("tolerance"),
	}
	for _, p := range n.get("policies").items() {
		s.Policies = append(s.Policies, diagnose.ScalePolicy{
			Type: p.str("type"), Value: p.intField("value").V, Period: p.intField("periodSeconds").V, Line: p.line(),
		})
	}
	return s
}

func readScaledObject(o diagnose.Object, n node) diagnose.ScaledObject {
	spec := n.get("spec")
	const hpa = "spec.advanced.horizontalPodAutoscalerConfig"
	o.Keys = keysAt(spec, "spec", "spec.advanced", hpa, hpa+".behavior", "spec.fallback")
	for _, t := range spec.get("triggers").items() {
		o.Keys = appendKeys(o.Keys, "spec.triggers[]", t)
	}
	s := diagnose.ScaledObject{
		Object: o, Target: readTarget(spec.get("scaleTargetRef")),
		Min: spec.intField("minReplicaCount"), Max: spec.intField("maxReplicaCount"), Idle: spec.intField("idleReplicaCount"),
		Polling: spec.intField("pollingInterval"), Cooldown: spec.intField("cooldownPeriod"),
		InitialCooldown: spec.intField("initialCooldownPeriod"),
		Behavior:        readBehavior(spec.get("advanced", "horizontalPodAutoscalerConfig", "behavior")),
		SpecAt:          spec.mapAt(), ListAt: spec.listAt("triggers"),
	}
	if f := spec.get("fallback"); f.isMap() {
		s.Fallback = &diagnose.Fallback{
			Threshold: f.intField("failureThreshold"), Replicas: f.intField("replicas"), Behavior: f.strField("behavior"), Line: f.line(),
		}
		if k, _ := spec.pair("fallback"); k.ok() {
			s.Fallback.Line = k.line()
		}
	}
	if m := spec.get("advanced", "scalingModifiers"); m.isMap() {
		s.Modifiers = &diagnose.Modifiers{
			Formula: m.strField("formula"), Target: m.strField("target"),
			ActivationTarget: m.strField("activationTarget"), MetricType: m.strField("metricType"), Line: m.line(),
		}
	}
	for _, t := range spec.get("triggers").items() {
		s.Triggers = append(s.Triggers, diagnose.Trigger{
			Type: t.strField("type"), Name: t.str("name"), MetricType: t.strField("metricType"),
			Metadata: t.get("metadata").pairs(), MetaAt: t.get("metadata").mapAt(), Line: t.line(), At: t.mapAt(),
		})
	}
	s.Paused = strings.EqualFold(o.Annotations.Get("autoscaling.keda.sh/paused").V, "true")
	s.PausedReplicas = o.Annotations.Get("autoscaling.keda.sh/paused-replicas").Set
	return s
}
