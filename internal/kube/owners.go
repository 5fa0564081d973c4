// SPDX-License-Identifier: Apache-2.0

package kube

import (
	"context"
	"fmt"
	"strings"
	"time"

	autoscalingv2 "k8s.io/api/autoscaling/v2"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime/schema"
)

// ScaledObjects are KEDA's.
var ScaledObjects = schema.GroupVersionResource{Group: "keda.sh", Version: "v1alpha1", Resource: "scaledobjects"}

// mover is a field manager that owns spec.replicas.
type mover struct {
	name  string
	apply bool // by server-side apply: it will say the same again
	at    time.Time
}

// Owner is an autoscaler that moves a target.
type Owner struct {
	Kind, Name string
	// Reads says that it scales by the number that this program gives for the pool.
	Reads    bool
	Min, Max int
	// Idle says why it does not act at present: paused, disabled, no metric.
	Idle string
	// Notes are what else is wrong or worth seeing: a fallback in force, a target
	// of type Value, a CPU metric.
	Notes []string
}

func (o Owner) String() string { return o.Kind + " " + o.Name }

// Reader tells which metrics are this program's.
type Reader struct {
	Metric string // of the external metrics API; wanted replicas
	Pool   string
}

// Owners lists the autoscalers of a target: HPAs and ScaledObjects. The HPA that a
// ScaledObject makes counts with the ScaledObject.
func (c *Cluster) Owners(ctx context.Context, t Target, r Reader) ([]Owner, error) {
	var out []Owner
	list, err := c.Pods.AutoscalingV2().HorizontalPodAutoscalers(t.Namespace).List(ctx, metav1.ListOptions{})
	if err != nil {
		return nil, fmt.Errorf("who scales %s is not known: %w", t, err)
	}
	hpas := map[string]*autoscalingv2.HorizontalPodAutoscaler{}
	for i := range list.Items {
		h := &list.Items[i]
		hpas[h.Name] = h
		if ref := h.Spec.ScaleTargetRef; !t.is(ref.APIVersion, ref.Kind, ref.Name) || ofScaledObject(h) {
			continue
		}
		out = append(out, readHPA(h, r))
	}
	so, err := c.Dynamic.Resource(ScaledObjects).Namespace(t.Namespace).List(ctx, metav1.ListOptions{})
	if apierrors.IsNotFound(err) {
		return out, nil
	}
	if err != nil {
		return nil, fmt.Errorf("who scales %s is not known: %w", t, err)
	}
	for i := range so.Items {
		o := &so.Items[i]
		ref, _, _ := unstructured.NestedStringMap(o.Object, "spec", "scaleTargetRef")
		kind := ref["kind"]
		if kind == "" {
			kind = "Deployment"
		}
		if t.is(ref["apiVersion"], kind, ref["name"]) {
			out = append(out, readScaledObject(o, r))
		}
	}
	return out, nil
}

// is compares a reference by group and kind; a version may differ.
func (t Target) is(apiVersion, kind, name string) bool {
	group := func(v string) string {
		g, _, ok := strings.Cut(v, "/")
		if !ok {
			return ""
		}
		return g
	}
	if t.Name != name || !strings.EqualFold(t.Kind, kind) {
		return false
	}
	return t.APIVersion == "" || apiVersion == "" || group(t.APIVersion) == group(apiVersion)
}

func ofScaledObject(h *autoscalingv2.HorizontalPodAutoscaler) bool {
	for _, o := range h.OwnerReferences {
		if o.Kind == "ScaledObject" {
			return true
		}
	}
	return false
}

func readHPA(h *autoscalingv2.HorizontalPodAutoscaler, r Reader) Owner {
	o := Owner{Kind: "HorizontalPodAutoscaler", Name: h.Name, Min: 1, Max: int(h.Spec.MaxReplicas)}
	if h.Spec.MinReplicas != nil {
		o.Min = int(*h.Spec.MinReplicas)
	}
	for i := range h.Spec.Metrics {
		m := &h.Spec.Metrics[i]
		switch {
		case m.External != nil && r.Metric != "" && m.External.Metric.Name == r.Metric && selects(m.External.Metric.Selector, r.Pool),
			m.Object != nil && r.Metric != "" && m.Object.Metric.Name == r.Metric:
			o.Reads = true
			target := autoscalingv2.MetricTarget{}
			if m.External != nil {
				target = m.External.Target
			} else {
				target = m.Object.Target
			}
			if target.Type != autoscalingv2.AverageValueMetricType {
				o.Notes = append(o.Notes, fmt.Sprintf("%s with target type %s multiplies with the ready pods and runs away: use AverageValue 1", r.Metric, target.Type))
			} else if target.AverageValue == nil || target.AverageValue.MilliValue() != 1000 {
				o.Notes = append(o.Notes, fmt.Sprintf("%s is a number of replicas: its averageValue must be 1", r.Metric))
			}
		case m.Resource != nil && m.Resource.Name == corev1.ResourceCPU, m.ContainerResource != nil && m.ContainerResource.Name == corev1.ResourceCPU:
			o.Notes = append(o.Notes, "it scales by CPU, which a busy model server hardly uses")
		}
	}
	if o.Reads && !exact(h.Spec.Behavior) {
		o.Notes = append(o.Notes, "its tolerance of 10 % swallows small changes of a replica count: set behavior.scaleUp.tolerance and scaleDown.tolerance to 0")
	}
	for _, c := range h.Status.Conditions {
		if c.Status == corev1.ConditionFalse && (c.Type == autoscalingv2.ScalingActive || c.Type == autoscalingv2.AbleToScale) {
			o.Idle = fmt.Sprintf("%s: %s", c.Reason, c.Message)
		}
	}
	return o
}

// exact reports whether an HPA acts on a difference of one replica in any number.
func exact(b *autoscalingv2.HorizontalPodAutoscalerBehavior) bool {
	zero := func(r *autoscalingv2.HPAScalingRules) bool {
		return r != nil && r.Tolerance != nil && r.Tolerance.IsZero()
	}
	return b != nil && zero(b.ScaleUp) && zero(b.ScaleDown)
}

// selects reports whether a metric selector picks the pool.
func selects(s *metav1.LabelSelector, pool string) bool {
	if s == nil || s.MatchLabels["pool"] == "" {
		return true
	}
	return s.MatchLabels["pool"] == pool
}

func readScaledObject(so *unstructured.Unstructured, r Reader) Owner {
	o := Owner{Kind: "ScaledObject", Name: so.GetName(), Max: 100}
	if n, ok, _ := unstructured.NestedInt64(so.Object, "spec", "minReplicaCount"); ok {
		o.Min = int(n)
	}
	if n, ok, _ := unstructured.NestedInt64(so.Object, "spec", "maxReplicaCount"); ok {
		o.Max = int(n)
	}
	triggers, _, _ := unstructured.NestedSlice(so.Object, "spec", "triggers")
	for _, x := range triggers {
		t, ok := x.(map[string]any)
		if !ok {
			continue
		}
		kind, _ := t["type"].(string)
		meta, _, _ := unstructured.NestedStringMap(t, "metadata")
		switch kind {
		case "external", "external-push":
			if r.Pool != "" && meta["pool"] == r.Pool {
				o.Reads = true
				if kind == "external" {
					o.Notes = append(o.Notes, "type external is asked every pollingInterval: with external-push a pool wakes at once")
				}
				if m, _ := t["metricType"].(string); m != "" && m != "AverageValue" {
					o.Notes = append(o.Notes, "metricType "+m+" multiplies with the ready pods: use AverageValue")
				}
			}
		case "cpu":
			o.Notes = append(o.Notes, "it scales by CPU, which a busy model server hardly uses")
		}
	}
	a := so.GetAnnotations()
	switch {
	case a["autoscaling.keda.sh/paused-replicas"] != "":
		o.Idle = "paused at " + a["autoscaling.keda.sh/paused-replicas"] + " replicas by annotation"
	case a["autoscaling.keda.sh/paused"] == "true":
		o.Idle = "paused by annotation"
	}
	for _, side := range []string{"in", "out"} {
		if a["autoscaling.keda.sh/paused-scale-"+side] == "true" {
			o.Notes = append(o.Notes, "scaling "+side+" is paused by annotation")
		}
	}
	conditions, _, _ := unstructured.NestedSlice(so.Object, "status", "conditions")
	for _, x := range conditions {
		c, ok := x.(map[string]any)
		if !ok {
			continue
		}
		switch {
		case c["type"] == "Fallback" && c["status"] == "True":
			o.Notes = append(o.Notes, fmt.Sprintf("its fallback is in force: %v", c["message"]))
		case c["type"] == "Ready" && c["status"] == "False":
			o.Notes = append(o.Notes, fmt.Sprintf("it is not ready: %v", c["message"]))
		}
	}
	return o
}
