// SPDX-License-Identifier: Apache-2.0

package kube

import (
	"context"
	"errors"
	"fmt"
	"os"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	appsv1 "k8s.io/api/apps/v1"
	autoscalingv2 "k8s.io/api/autoscaling/v2"
	corev1 "k8s.io/api/core/v1"
	policyv1 "k8s.io/api/policy/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/util/intstr"
)

// These tests run against a real API server with a controller manager, and kwok in
// place of kubelets: e2e/kube/run.py names its kubeconfig.
func realCluster(t *testing.T) *Cluster {
	t.Helper()
	path := os.Getenv("PENSTOCK_E2E_KUBECONFIG")
	if path == "" {
		t.Skip("PENSTOCK_E2E_KUBECONFIG names no cluster")
	}
	c, err := Connect(path, nil)
	if err != nil {
		t.Fatal(err)
	}
	return c
}

// drains is a Drainer that remembers.
type drains struct {
	mu   sync.Mutex
	busy map[string]int
	seen []string
}

func (d *drains) note(s string) {
	d.mu.Lock()
	defer d.mu.Unlock()
	d.seen = append(d.seen, s)
}
func (d *drains) Drain(p string)   { d.note("drain " + p) }
func (d *drains) Undrain(p string) { d.note("undrain " + p) }
func (d *drains) Busy(p string) int {
	d.mu.Lock()
	defer d.mu.Unlock()
	return d.busy[p]
}
func (d *drains) set(p string, n int) {
	d.mu.Lock()
	defer d.mu.Unlock()
	d.busy[p] = n
}
func (d *drains) has(s string) bool {
	d.mu.Lock()
	defer d.mu.Unlock()
	return slices.Contains(d.seen, s)
}

// bench is one Deployment in a namespace of its own, with a leading hand.
type bench struct {
	t    *testing.T
	c    *Cluster
	ns   string
	lead *Leader
	d    *drains
	hand *ScaleHand
}

func newBench(t *testing.T, replicas int32) *bench {
	t.Helper()
	b := &bench{t: t, c: realCluster(t), d: &drains{busy: map[string]int{}}}
	ctx := t.Context()
	ns, err := b.c.Pods.CoreV1().Namespaces().Create(ctx, &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{GenerateName: "scaling-"}}, metav1.CreateOptions{})
	if err != nil {
		t.Fatal(err)
	}
	b.ns = ns.Name
	t.Cleanup(func() {
		_ = b.c.Pods.CoreV1().Namespaces().Delete(context.Background(), b.ns, metav1.DeleteOptions{})
	})
	_, _ = b.c.Pods.CoreV1().Nodes().Create(ctx, &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: "node-0"}}, metav1.CreateOptions{})
	app := map[string]string{"app": "llm"}
	_, err = b.c.Pods.AppsV1().Deployments(b.ns).Create(ctx, &appsv1.Deployment{ObjectMeta: metav1.ObjectMeta{Name: "llm"}, Spec: appsv1.DeploymentSpec{
		Replicas: &replicas, Selector: &metav1.LabelSelector{MatchLabels: app},
		Template: corev1.PodTemplateSpec{ObjectMeta: metav1.ObjectMeta{Labels: app}, Spec: corev1.PodSpec{NodeName: "node-0", Containers: []corev1.Container{{Name: "engine", Image: "none"}}}},
	}}, metav1.CreateOptions{FieldManager: "kubectl-create"})
	if err != nil {
		t.Fatal(err)
	}
	b.lead = b.leader("one")
	b.hand = b.newHand(b.lead)
	return b
}

func (b *bench) newHand(l *Leader) *ScaleHand {
	return NewScaleHand(HandOptions{Cluster: b.c, Pool: "chat", Target: Target{Kind: "Deployment", Namespace: b.ns, Name: "llm"}, Lead: l, Drain: b.d, Metric: "penstock_wanted_replicas"})
}

// leader starts a candidate; it ends with the test.
func (b *bench) leader(id string) *Leader {
	l := NewLeader(LeaderOptions{Cluster: b.c, Namespace: b.ns, Name: "scaler", Identity: id, Term: 3 * time.Second})
	ctx, cancel := context.WithCancel(context.Background())
	done := make(chan struct{})
	go func() { defer close(done); l.Run(ctx) }()
	b.t.Cleanup(func() { cancel(); <-done })
	if id == "one" {
		b.until("one leads", func() bool { _, ok := l.Leads(); return ok })
	}
	return l
}

func (b *bench) until(what string, ok func() bool) {
	b.t.Helper()
	for end := time.Now().Add(2 * time.Minute); time.Now().Before(end); time.Sleep(50 * time.Millisecond) {
		if ok() {
			return
		}
	}
	b.t.Fatalf("after two minutes not yet: %s", what)
}

func (b *bench) apply(want int, victims ...string) error {
	return b.hand.Apply(b.t.Context(), want, victims)
}

func (b *bench) must(want int, victims ...string) {
	b.t.Helper()
	if err := b.apply(want, victims...); err != nil {
		b.t.Fatal(err)
	}
}

func (b *bench) spec() int {
	b.t.Helper()
	d, err := b.c.Pods.AppsV1().Deployments(b.ns).Get(b.t.Context(), "llm", metav1.GetOptions{})
	if err != nil {
		b.t.Fatal(err)
	}
	return int(*d.Spec.Replicas)
}

func (b *bench) pods() (ready []string) {
	l, err := b.c.Pods.CoreV1().Pods(b.ns).List(b.t.Context(), metav1.ListOptions{LabelSelector: "app=llm"})
	if err != nil {
		b.t.Fatal(err)
	}
	for i := range l.Items {
		if p := &l.Items[i]; podReady(p) && p.DeletionTimestamp == nil {
			ready = append(ready, podID(p))
		}
	}
	return ready
}

// kubectlScale is what a person does.
func (b *bench) kubectlScale(n int32) {
	b.t.Helper()
	b.until("scaled by a person", func() bool {
		s, err := b.c.Pods.AppsV1().Deployments(b.ns).GetScale(b.t.Context(), "llm", metav1.GetOptions{})
		if err == nil {
			s.Spec.Replicas = n
			_, err = b.c.Pods.AppsV1().Deployments(b.ns).UpdateScale(b.t.Context(), "llm", s, metav1.UpdateOptions{FieldManager: "kubectl"})
		}
		return err == nil
	})
}

func TestClusterUpAndDown(t *testing.T) {
	b := newBench(t, 1)
	b.must(4)
	if n := b.spec(); n != 4 {
		t.Fatalf("%d replicas, want 4", n)
	}
	b.until("4 ready", func() bool { return len(b.pods()) == 4 })
	st, err := b.hand.State(t.Context())
	if err != nil || st.Wanted != 4 || st.Owner != "" || len(st.Pending) != 0 {
		t.Fatalf("%+v %v", st, err)
	}
	victims := b.pods()[1:3]
	b.d.set(victims[0], 2)
	b.d.set(victims[1], 1)
	b.must(2, victims...)
	b.must(2, victims...) // the same again changes nothing
	if !b.d.has("drain "+victims[0]) || !b.d.has("drain "+victims[1]) || b.spec() != 4 {
		t.Fatalf("drained %v, %d replicas; want both victims and still 4", b.d.seen, b.spec())
	}
	if st, _ := b.hand.State(t.Context()); st.Wanted != 2 {
		t.Errorf("wanted %d while it drains, want 2", st.Wanted)
	}
	b.d.set(victims[1], 0) // the second is done: it goes, with the first before it in line
	b.d.set(victims[0], 0)
	b.until("2 replicas", func() bool { return b.spec() == 2 })
	b.until("the victims are gone", func() bool {
		p := b.pods()
		return len(p) == 2 && !slices.Contains(p, victims[0]) && !slices.Contains(p, victims[1])
	})
	// A drain that is not wanted any more ends, and the pod takes requests again.
	left := b.pods()
	b.d.set(left[0], 1)
	b.must(1, left[0])
	b.must(3)
	if !b.d.has("undrain "+left[0]) || b.spec() != 3 {
		t.Errorf("%v, %d replicas", b.d.seen, b.spec())
	}
	b.until("3 ready", func() bool { return len(b.pods()) == 3 })
	b.d.set(left[0], 0)
	b.must(0)
	b.until("0 replicas", func() bool { return b.spec() == 0 })
	b.must(3)
	if b.spec() != 3 {
		t.Error("not woken at once")
	}
}

func TestClusterOwners(t *testing.T) {
	b := newBench(t, 1)
	b.must(2)
	b.kubectlScale(5)
	err := b.apply(3)
	var owned *OwnedByError
	if !errors.As(err, &owned) || !strings.Contains(owned.Who, "kubectl") || b.spec() != 5 {
		t.Fatalf("%v, %d replicas; want to stop and name kubectl", err, b.spec())
	}
	b.kubectlScale(2)
	if err = b.apply(3); !errors.As(err, &owned) {
		t.Fatalf("%v: it waits until it is told", err)
	}
	if st, err := b.hand.State(t.Context()); err != nil || !strings.Contains(st.Owner, "kubectl, which set 5 replicas") {
		t.Errorf("%+v %v", st, err)
	}
	if err := b.hand.Claim(t.Context()); err != nil {
		t.Fatal(err)
	}
	b.must(3)
	_, err = b.c.Pods.AutoscalingV2().HorizontalPodAutoscalers(b.ns).Create(t.Context(), &autoscalingv2.HorizontalPodAutoscaler{ObjectMeta: metav1.ObjectMeta{Name: "theirs"},
		Spec: autoscalingv2.HorizontalPodAutoscalerSpec{ScaleTargetRef: autoscalingv2.CrossVersionObjectReference{APIVersion: "apps/v1", Kind: "Deployment", Name: "llm"}, MaxReplicas: 9}}, metav1.CreateOptions{})
	if err != nil {
		t.Fatal(err)
	}
	if err := b.apply(4); !errors.As(err, &owned) || owned.Who != "HorizontalPodAutoscaler theirs" || b.spec() != 3 {
		t.Errorf("%v, %d replicas; want the HPA to be left alone", err, b.spec())
	}
}

func TestClusterConflict(t *testing.T) {
	b := newBench(t, 1)
	ctx := t.Context()
	st, err := b.hand.scale.read(ctx)
	if err != nil {
		t.Fatal(err)
	}
	b.kubectlScale(4)
	if err := b.hand.scale.write(ctx, st, 2); !apierrors.IsConflict(err) || b.spec() != 4 {
		t.Errorf("%v, %d replicas; a stale version must not win", err, b.spec())
	}
}

func TestClusterFence(t *testing.T) {
	b := newBench(t, 1)
	two := b.leader("two")
	other := b.newHand(two)
	b.must(2)
	b.until("two knows who leads", func() bool { return two.Who() == "one" })
	var not *NotLeaderError
	if err := other.Apply(t.Context(), 7, nil); !errors.As(err, &not) || b.spec() != 2 {
		t.Fatalf("%v, %d replicas; only one may act", err, b.spec())
	}
	if st, err := other.State(t.Context()); err != nil || !strings.Contains(st.Owner, "one") {
		t.Errorf("%+v %v", st, err)
	}
	// The first one stands still: its lease is taken, and it still believes in it. It renews
	// the lease meanwhile, so that a version may be gone by the time it is written.
	b.until("the lease is taken", func() bool {
		lease, err := b.c.Pods.CoordinationV1().Leases(b.ns).Get(t.Context(), "scaler", metav1.GetOptions{})
		if err != nil {
			t.Fatal(err)
		}
		who, n := "two", *lease.Spec.LeaseTransitions+1
		now := metav1.NewMicroTime(time.Now())
		lease.Spec.HolderIdentity, lease.Spec.LeaseTransitions, lease.Spec.RenewTime, lease.Spec.AcquireTime = &who, &n, &now, &now
		_, err = b.c.Pods.CoordinationV1().Leases(b.ns).Update(t.Context(), lease, metav1.UpdateOptions{})
		return err == nil
	})
	b.until("two leads", func() bool { _, ok := two.Leads(); return ok })
	if err := other.Apply(t.Context(), 5, nil); err != nil {
		t.Fatal(err)
	}
	b.lead.mu.Lock()
	b.lead.until = time.Now().Add(time.Minute)
	b.lead.mu.Unlock()
	if err := b.apply(9); !errors.As(err, &not) || b.spec() != 5 {
		t.Fatalf("%v, %d replicas; the fence must stop a leader that was replaced", err, b.spec())
	}
}

func TestClusterBudget(t *testing.T) {
	b := newBench(t, 4)
	b.until("4 ready", func() bool { return len(b.pods()) == 4 })
	least := intstr.FromInt32(3)
	_, err := b.c.Pods.PolicyV1().PodDisruptionBudgets(b.ns).Create(t.Context(), &policyv1.PodDisruptionBudget{ObjectMeta: metav1.ObjectMeta{Name: "llm"},
		Spec: policyv1.PodDisruptionBudgetSpec{MinAvailable: &least, Selector: &metav1.LabelSelector{MatchLabels: map[string]string{"app": "llm"}}}}, metav1.CreateOptions{})
	if err != nil {
		t.Fatal(err)
	}
	b.until("the budget is known", func() bool {
		p, err := b.c.Pods.PolicyV1().PodDisruptionBudgets(b.ns).Get(t.Context(), "llm", metav1.GetOptions{})
		return err == nil && p.Status.DisruptionsAllowed == 1
	})
	b.must(1)
	b.until("3 replicas", func() bool { return b.spec() == 3 })
	b.until("nothing more may go", func() bool { return b.apply(1) != nil })
	if b.spec() != 3 {
		t.Errorf("%d replicas, want 3", b.spec())
	}
}

func TestClusterOtherKinds(t *testing.T) {
	b := newBench(t, 0)
	ctx := t.Context()
	one := int32(1)
	app := map[string]string{"app": "sts"}
	_, err := b.c.Pods.AppsV1().StatefulSets(b.ns).Create(ctx, &appsv1.StatefulSet{ObjectMeta: metav1.ObjectMeta{Name: "sts"}, Spec: appsv1.StatefulSetSpec{
		Replicas: &one, Selector: &metav1.LabelSelector{MatchLabels: app}, PodManagementPolicy: appsv1.ParallelPodManagement,
		Template: corev1.PodTemplateSpec{ObjectMeta: metav1.ObjectMeta{Labels: app}, Spec: corev1.PodSpec{NodeName: "node-0", Containers: []corev1.Container{{Name: "engine", Image: "none"}}}},
	}}, metav1.CreateOptions{})
	if err != nil {
		t.Fatal(err)
	}
	h := NewScaleHand(HandOptions{Cluster: b.c, Pool: "sts", Target: Target{Kind: "StatefulSet", Namespace: b.ns, Name: "sts"}, Lead: b.lead, Drain: b.d})
	if err := h.Apply(ctx, 3, nil); err != nil {
		t.Fatal(err)
	}
	b.until("3 pods", func() bool { st, err := h.State(ctx); return err == nil && st.Replicas == 3 && len(st.Pending) == 0 })
	if err := h.Apply(ctx, 2, []string{b.ns + "/sts-0"}); err != nil {
		t.Fatal(err)
	}
	// Whatever was asked for, a StatefulSet takes its highest ordinal.
	if !b.d.has(fmt.Sprintf("drain %s/sts-2", b.ns)) {
		t.Errorf("%v", b.d.seen)
	}
	// A kind that is found by discovery, and one that is not there.
	if gvr, err := b.c.Resource(Target{Kind: "ReplicationController"}); err != nil || gvr.Resource != "replicationcontrollers" {
		t.Errorf("%v %v", gvr, err)
	}
	if _, err := b.c.Resource(Target{Kind: "ConfigMap"}); err == nil {
		t.Error("a kind without /scale is taken")
	}
}

// TestClusterLeaderWorkerSet: a custom resource with the subresource, as its project
// describes it; nobody carries it out here.
func TestClusterLeaderWorkerSet(t *testing.T) {
	b := newBench(t, 0)
	ctx := t.Context()
	crds := b.c.Dynamic.Resource(schema.GroupVersionResource{Group: "apiextensions.k8s.io", Version: "v1", Resource: "customresourcedefinitions"})
	_, err := crds.Create(ctx, &unstructured.Unstructured{Object: *decode[map[string]any](t, `
apiVersion: apiextensions.k8s.io/v1
kind: CustomResourceDefinition
metadata: {name: leaderworkersets.leaderworkerset.x-k8s.io, annotations: {api-approved.kubernetes.io: unapproved}}
spec:
  group: leaderworkerset.x-k8s.io
  scope: Namespaced
  names: {kind: LeaderWorkerSet, plural: leaderworkersets, singular: leaderworkerset}
  versions:
  - name: v1
    served: true
    storage: true
    schema: {openAPIV3Schema: {type: object, x-kubernetes-preserve-unknown-fields: true}}
    subresources:
      status: {}
      scale: {specReplicasPath: .spec.replicas, statusReplicasPath: .status.replicas, labelSelectorPath: .status.hpaPodSelector}
`)}, metav1.CreateOptions{})
	if err != nil && !apierrors.IsAlreadyExists(err) {
		t.Fatal(err)
	}
	sets := b.c.Dynamic.Resource(wellKnown["leaderworkerset"]).Namespace(b.ns)
	b.until("the set is made", func() bool {
		_, err := sets.Create(ctx, &unstructured.Unstructured{Object: *decode[map[string]any](t, `
{apiVersion: leaderworkerset.x-k8s.io/v1, kind: LeaderWorkerSet, metadata: {name: big}, spec: {replicas: 1, startupPolicy: LeaderCreated,
  rolloutStrategy: {type: RollingUpdate}, leaderWorkerTemplate: {size: 2, workerTemplate: {spec: {containers: [{name: engine, image: none}]}}}}}`)}, metav1.CreateOptions{})
		return err == nil
	})
	h := NewScaleHand(HandOptions{Cluster: b.c, Pool: "big", Target: Target{Kind: "LeaderWorkerSet", Namespace: b.ns, Name: "big"}, Lead: b.lead, Drain: b.d})
	for _, n := range []int{3, 0, 2} {
		if err := h.Apply(ctx, n, nil); err != nil {
			t.Fatal(err)
		}
		if st, err := h.State(ctx); err != nil || st.Wanted != n {
			t.Errorf("%+v %v, want %d", st, err, n)
		}
	}
}
