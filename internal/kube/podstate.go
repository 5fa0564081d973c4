// SPDX-License-Identifier: Apache-2.0

package kube

import (
	"context"
	"fmt"
	"sort"
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/labels"

	"github.com/penstock-project/penstock/internal/fleet"
	"github.com/penstock-project/penstock/internal/flow"
)

// pendingOf lists the pods that are on their way, oldest first, with the phase that
// the kubelet and the scheduler tell of.
func pendingOf(pods []corev1.Pod) []flow.Pending {
	var out []flow.Pending
	for i := range pods {
		p := &pods[i]
		if p.DeletionTimestamp != nil || finished(p) || podReady(p) {
			continue
		}
		phase, since, reason := startPhase(p)
		out = append(out, flow.Pending{ID: p.Namespace + "/" + p.Name, Phase: phase, Since: fleet.At(since), Reason: reason})
	}
	sort.SliceStable(out, func(i, j int) bool { return out[i].Since < out[j].Since })
	return out
}

func finished(p *corev1.Pod) bool {
	return p.Status.Phase == corev1.PodFailed || p.Status.Phase == corev1.PodSucceeded
}

// startPhase says how far a pod that is not ready has come: pending until it has a
// node, pulling until its containers run, loading from then on.
func startPhase(p *corev1.Pod) (phase string, since time.Time, reason string) {
	since = p.CreationTimestamp.Time
	scheduled := p.Spec.NodeName != ""
	for _, c := range p.Status.Conditions {
		if c.Type != corev1.PodScheduled {
			continue
		}
		scheduled = scheduled || c.Status == corev1.ConditionTrue
		if c.Status == corev1.ConditionFalse {
			return fleet.PhasePending.String(), since, strings.TrimSpace(c.Reason + ": " + c.Message)
		}
		if !c.LastTransitionTime.IsZero() {
			since = c.LastTransitionTime.Time
		}
	}
	if !scheduled {
		return fleet.PhasePending.String(), p.CreationTimestamp.Time, ""
	}
	for i := range p.Status.InitContainerStatuses {
		if w := p.Status.InitContainerStatuses[i].State.Waiting; w != nil && w.Reason != "PodInitializing" {
			return fleet.PhasePulling.String(), since, reasonOf(w)
		}
	}
	for i := range p.Status.ContainerStatuses {
		if w := p.Status.ContainerStatuses[i].State.Waiting; w != nil {
			return fleet.PhasePulling.String(), since, reasonOf(w)
		}
	}
	for i := range p.Status.ContainerStatuses {
		if r := p.Status.ContainerStatuses[i].State.Running; r != nil && r.StartedAt.After(since) {
			since = r.StartedAt.Time
		}
	}
	return fleet.PhaseLoading.String(), since, ""
}

// reasonOf is why a container waits; what every start passes through is no reason.
func reasonOf(w *corev1.ContainerStateWaiting) string {
	if w.Reason == "ContainerCreating" || w.Reason == "PodInitializing" || w.Reason == "" {
		return ""
	}
	return strings.TrimSuffix(w.Reason+": "+w.Message, ": ")
}

// list reads the pods of a selector from the watch cache of the API server.
func (c *Cluster) list(ctx context.Context, ns string, sel labels.Selector) ([]corev1.Pod, error) {
	l, err := c.Pods.CoreV1().Pods(ns).List(ctx, metav1.ListOptions{LabelSelector: sel.String(), ResourceVersion: "0"})
	if err != nil {
		return nil, fmt.Errorf("pods %s in %s: %w", sel, ns, err)
	}
	return l.Items, nil
}

// blockedBy says why pods that are wanted are not even made, by the newest warning of
// the last minutes about the target or what stands between it and its pods (a
// ReplicaSet carries the name of its Deployment and a hash).
func (c *Cluster) blockedBy(ctx context.Context, t Target, now time.Time) string {
	l, err := c.Pods.CoreV1().Events(t.Namespace).List(ctx, metav1.ListOptions{FieldSelector: "reason=FailedCreate,type=Warning", Limit: 200})
	if err != nil {
		return "" // events are a courtesy
	}
	var newest time.Time
	text := ""
	for i := range l.Items {
		e := &l.Items[i]
		at := e.LastTimestamp.Time
		if at.IsZero() {
			at = e.EventTime.Time
		}
		name := e.InvolvedObject.Name
		if name != t.Name && !strings.HasPrefix(name, t.Name+"-") || now.Sub(at) > 5*time.Minute || at.Before(newest) {
			continue
		}
		newest, text = at, e.Message
	}
	return text
}

// PodNames lists the names of the pods that a label selector matches.
func (c *Cluster) PodNames(ctx context.Context, ns, selector string) ([]string, error) {
	sel, err := labels.Parse(selector)
	if err != nil {
		return nil, err
	}
	pods, err := c.list(ctx, ns, sel)
	if err != nil {
		return nil, err
	}
	out := make([]string, len(pods))
	for i := range pods {
		out[i] = pods[i].Name
	}
	return out, nil
}
