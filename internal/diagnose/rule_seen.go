// SPDX-License-Identifier: Apache-2.0

package diagnose

import (
	"fmt"
	"slices"
	"strings"
)

// checkSeenHPA judges the state of autoscalers as somebody copied it: from a
// status, from kubectl describe, or from the status of an HPA in the files.
func checkSeenHPA(s *Set, k *sink) {
	for i := range s.Seen.HPA {
		h := &s.Seen.HPA[i]
		if f, bad := UnreadyValue(h); bad {
			k.add(f)
		}
		o := Object{File: h.File, Line: h.Line, Kind: "HorizontalPodAutoscaler", Name: h.Object}
		for _, f := range metricUnavailable(&o, h.Line, h.Conditions, h.Rows, nil) {
			k.add(f)
		}
	}
	for i := range s.HPAs {
		h := &s.HPAs[i]
		if h.Status == nil {
			continue
		}
		for _, f := range metricUnavailable(&h.Object, h.Status.Line, h.Status.Conditions, nil, h.Metrics) {
			k.add(f)
		}
	}
}

// UnreadyValue finds an HPA that multiplies its ratio by zero ready pods.
func UnreadyValue(h *SeenHPA) (Finding, bool) {
	if h.TargetType != TargetValue || !h.Ready.Set || h.Ready.V != 0 || !h.Value.Set || !h.Target.Set || h.Target.V <= 0 || h.Spec.Or(0) == 0 {
		return Finding{}, false
	}
	ratio := h.Value.V / h.Target.V
	if ratio <= 1+tolerance {
		return Finding{}, false
	}
	own := ceilInt(float64(h.Spec.V) * ratio)
	o := Object{File: h.File, Line: h.Line, Kind: "HorizontalPodAutoscaler", Name: h.Object}
	f := at(&o, h.Line, "value-times-ready")
	f.Evidence = []Evidence{
		{Name: "metric", Value: h.Metric}, Ev("value", h.Value.V, ""), Ev("target", h.Target.V, ""), Ev("ready", 0, "replicas"),
		Ev("spec_replicas", h.Spec.V, "replicas"), Ev("hpa_recommendation", h.Recommendation.Or(0), "replicas"),
		Ev("own_controller_desired", own, "replicas"), {Name: "clamp_to_max", Value: true},
	}
	f.Message = fmt.Sprintf("type Value multiplies the ratio by the ready pods: ceil(0 x %s/%s) = 0 although %s is %s times its target, because all %d replicas fail their readiness probe under the overload; the scale-up never comes",
		Num(h.Value.V), Num(h.Target.V), h.Metric, Num(Round(ratio, 1)), h.Spec.V)
	f.Remedy = fmt.Sprintf("Use AverageValue on the summed metric, which divides by no pod: %s/%s asks for %d (%d x %s by the replicas that exist), clamped to maxReplicas. Give the readiness probe a timeout that a busy engine meets.",
		Num(h.Value.V), Num(h.Target.V), ceilInt(ratio), h.Spec.V, Num(Round(ratio, 1)))
	return f, true
}

// metricUnavailable names the metric that keeps an HPA from acting, and where the
// controller asks for it.
func metricUnavailable(o *Object, line int, conds []Condition, rows []HPARow, metrics []Metric) []Finding {
	var active *Condition
	for i := range conds {
		if conds[i].Type == "ScalingActive" && conds[i].Status == "False" {
			active = &conds[i]
		}
	}
	if active == nil || active.Reason == "ScalingDisabled" {
		return nil
	}
	name := metricInMessage(active.Message)
	kind := ""
	for _, r := range rows {
		if normMetric(r.Name) == normMetric(name) {
			kind = r.Kind
			line = r.Line
		}
	}
	for i := range metrics {
		if normMetric(metrics[i].Name.V) == normMetric(name) {
			kind = strings.ToLower(string(metrics[i].Type))
			line = metrics[i].Line
		}
	}
	if kind == "" {
		kind = kindOfReason(active.Reason)
	}
	f := at(o, line, "metric-unavailable")
	f.Evidence = []Evidence{{Name: "condition", Value: "ScalingActive=False"}, {Name: "reason", Value: active.Reason}}
	unknown := 0
	for i := range rows {
		if rows[i].Unknown() {
			unknown++
		}
	}
	path := apiPath(kind, name, o.Namespace)
	f.Evidence = append(f.Evidence, Evidence{Name: "failing_metric", Value: nilIfEmpty(name)}, Evidence{Name: "api_path", Value: nilIfEmpty(path)})
	if len(rows) > 0 {
		f.Evidence = append(f.Evidence, Ev("shown_unknown", unknown, "of "+fmt.Sprint(len(rows))+" metrics"))
	}
	if name == "" {
		f.Message = "the HPA does not act: " + active.Message
	} else {
		f.Message = fmt.Sprintf("the HPA does not act because of one metric: %s has no value", name)
		if unknown > 1 {
			f.Message += fmt.Sprintf("; the other %d that are shown as <unknown> were not asked for any more", unknown-1)
		}
	}
	f.Remedy = "Ask where the controller asks:\nkubectl get --raw '" + path + "'\nIf it is empty, the adapter has no rule for it or Prometheus has no series; a metric that is not needed can be removed from the HPA."
	if strings.Contains(active.Message, "missing request for") {
		f.Remedy = "Give every container of the pod a request for that resource; an HPA on utilisation divides by it."
	}
	return []Finding{f}
}

func nilIfEmpty(s string) any {
	if s == "" {
		return nil
	}
	return s
}

// metricInMessage finds the metric's name in what the controller says, for example
// "unable to get metric NAME: no metrics returned from custom metrics API" or
// "unable to get external metric NS/NAME/...".
func metricInMessage(msg string) string {
	for _, mark := range [...]string{"unable to get external metric ", "unable to get pod metric ", "unable to get object metric ", "unable to get resource metric ", "unable to get metric ", "failed to get ", "unable to fetch metrics from "} {
		_, rest, ok := strings.Cut(msg, mark)
		if !ok {
			continue
		}
		word, _, _ := strings.Cut(rest, " ")
		word = strings.TrimRight(word, ":,;")
		if parts := strings.Split(word, "/"); len(parts) >= 2 { // namespace/name/selector
			word = parts[1]
		}
		switch word {
		case "cpu", "memory", "":
			return word
		case "resource", "custom", "external", "object", "pods":
			continue
		}
		return word
	}
	return ""
}

func kindOfReason(reason string) string {
	switch reason {
	case "FailedGetPodsMetric":
		return "pods"
	case "FailedGetExternalMetric":
		return "external"
	case "FailedGetObjectMetric":
		return "object"
	case "FailedGetResourceMetric":
		return "resource"
	}
	return ""
}

func apiPath(kind, name, ns string) string {
	if ns == "" {
		ns = "NAMESPACE"
	}
	switch kind {
	case "pods":
		return "/apis/custom.metrics.k8s.io/v1beta2/namespaces/" + ns + "/pods/*/" + name
	case "object":
		return "/apis/custom.metrics.k8s.io/v1beta2/namespaces/" + ns + "/KIND/NAME/" + name
	case "external":
		return "/apis/external.metrics.k8s.io/v1beta1/namespaces/" + ns + "/" + name
	case "resource", "containerresource":
		return "/apis/metrics.k8s.io/v1beta1/namespaces/" + ns + "/pods"
	}
	return ""
}

// Causes why a replica that somebody asked for does not run.
const (
	CauseNoGPU      = "no-free-gpu"
	CauseQuota      = "resource-quota"
	CauseNodeGroup  = "node-group-max"
	CauseCloudQuota = "cloud-quota"
	CauseCloudStock = "cloud-out-of-stock"
	CauseNoNode     = "no-matching-node"
	CauseStorage    = "volume"
)

// BlockedCauses tells apart why pods could not be placed, in the order in which
// the events say so. Lines quotes one event for each cause.
func BlockedCauses(events []Event) (causes []string, lines []string) {
	add := func(c string, e *Event) {
		if !slices.Contains(causes, c) {
			causes = append(causes, c)
			lines = append(lines, e.Reason+" "+e.Object+": "+e.Message)
		}
	}
	for i := range events {
		e := &events[i]
		m := strings.ToLower(e.Message)
		switch e.Reason {
		case "FailedScheduling":
			switch {
			case strings.Contains(m, "insufficient") && gpuInMessage(m):
				add(CauseNoGPU, e)
			case strings.Contains(m, "volume"):
				add(CauseStorage, e)
			case strings.Contains(m, "affinity") || strings.Contains(m, "taint") || strings.Contains(m, "selector"):
				add(CauseNoNode, e)
			}
		case "FailedCreate", "QuotaExceeded", "ExceededQuota":
			if strings.Contains(m, "exceeded quota") || strings.Contains(m, "quota") {
				add(CauseQuota, e)
			}
		case "NotTriggerScaleUp":
			if strings.Contains(m, "max node group size reached") || strings.Contains(m, "max cluster") || strings.Contains(m, "max limit reached") {
				add(CauseNodeGroup, e)
			}
		case "FailedScaleUp", "ScaleUpFailed", "FailedToScaleUpGroup", "ScaledUpGroupFailed", "FailedToCreateNode", "LaunchFailed", "InsufficientCapacityError", "NodeClaimNotFound":
			switch {
			case strings.Contains(m, "quota") || strings.Contains(m, "limit exceeded") || strings.Contains(m, "vcpulimitexceeded"):
				add(CauseCloudQuota, e)
			case strings.Contains(m, "out of resources") || strings.Contains(m, "exhausted") || strings.Contains(m, "stockout") || strings.Contains(m, "capacity"):
				add(CauseCloudStock, e)
			}
		}
	}
	return causes, lines
}

func gpuInMessage(m string) bool {
	return strings.Contains(m, "gpu") || strings.Contains(m, "tpu") || strings.Contains(m, "nvidia.com/mig") || strings.Contains(m, "neuron")
}

// checkEvents reports pods that cannot be placed, unless a rule on the manifest
// already explains them.
func checkEvents(s *Set, k *sink) {
	for i := range s.Workloads {
		if stuckEvent(s, s.Workloads[i].Name) {
			return
		}
	}
	if f, bad := Blocked(s); bad {
		k.add(f)
	}
}

// Blocked reports replicas that are wanted and cannot be placed, with the causes
// told apart and the count that can be had.
func Blocked(s *Set) (Finding, bool) {
	causes, lines := BlockedCauses(s.Seen.Events)
	if len(causes) == 0 || placed(s.Seen.Events) {
		return Finding{}, false
	}
	o := Object{File: s.Seen.File, Name: "events"}
	f := at(&o, 0, "replicas-blocked")
	f.Evidence = []Evidence{{Name: "causes", Value: causes}}
	p := &s.Seen
	if p.GPUQuota.Set && p.GPUsPer.Set && p.GPUsPer.V > 0 {
		can := p.GPUQuota.V / p.GPUsPer.V
		if p.Max.Set {
			can = min(can, p.Max.V)
		}
		f.Evidence = append(f.Evidence, Ev("effective_max", can, "replicas"))
	}
	if p.Ready.Set {
		f.Evidence = append(f.Evidence, Ev("usable_replicas", p.Ready.V, "replicas"))
	}
	if p.Spec.Set && p.Ready.Set {
		f.Evidence = append(f.Evidence, Ev("wanted", p.Spec.V, "replicas"))
	}
	for i := range causes {
		f.Evidence = append(f.Evidence, Evidence{Name: causes[i], Value: lines[i]})
	}
	f.Message = "replicas that the scaler asked for cannot be placed: " + strings.Join(describeCauses(causes), "; ")
	if p.Spec.Set && p.Ready.Set && p.Spec.V > p.Ready.V {
		f.Message += fmt.Sprintf(". %d of %d run; the other %d are no capacity however long one waits", p.Ready.V, p.Spec.V, p.Spec.V-p.Ready.V)
	}
	f.Remedy = strings.Join(remediesFor(causes), "\n")
	return f, true
}

// placed reports whether later events show that the pod found its place.
func placed(events []Event) bool {
	blocked, ok := false, false
	for i := range events {
		switch events[i].Reason {
		case "FailedScheduling", "FailedCreate":
			blocked, ok = true, false
		case "Scheduled":
			ok = blocked || ok
		}
	}
	return ok
}

func describeCauses(causes []string) []string {
	out := make([]string, len(causes))
	for i, c := range causes {
		switch c {
		case CauseNoGPU:
			out[i] = "no node has a free GPU"
		case CauseQuota:
			out[i] = "the namespace's ResourceQuota is used up"
		case CauseNodeGroup:
			out[i] = "the node autoscaler is at the maximum of its node group"
		case CauseCloudQuota:
			out[i] = "the cloud account's quota is used up"
		case CauseCloudStock:
			out[i] = "the cloud has no such machine left in that zone"
		case CauseNoNode:
			out[i] = "no node matches selector, affinity or tolerations"
		case CauseStorage:
			out[i] = "its volume cannot be bound"
		}
	}
	return out
}

func remediesFor(causes []string) []string {
	out := make([]string, len(causes))
	for i, c := range causes {
		switch c {
		case CauseNoGPU:
			out[i] = "no-free-gpu: lower maxReplicas to what the nodes hold, or add nodes."
		case CauseQuota:
			out[i] = "resource-quota: raise requests.nvidia.com/gpu of the ResourceQuota, or lower maxReplicas."
		case CauseNodeGroup:
			out[i] = "node-group-max: raise the maximum size of the GPU node group."
		case CauseCloudQuota:
			out[i] = "cloud-quota: ask the provider for a higher quota of that GPU."
		case CauseCloudStock:
			out[i] = "cloud-out-of-stock: add a second zone or machine type, or reserve capacity."
		case CauseNoNode:
			out[i] = "no-matching-node: compare nodeSelector, affinity and tolerations with the labels and taints of the GPU nodes."
		case CauseStorage:
			out[i] = "volume: a ReadWriteOnce volume holds one replica; use ReadOnlyMany or one volume per replica."
		}
	}
	return out
}
