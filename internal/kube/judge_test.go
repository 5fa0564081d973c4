// SPDX-License-Identifier: Apache-2.0

package kube

import (
	"slices"
	"strings"
	"testing"
	"time"

	autoscalingv2 "k8s.io/api/autoscaling/v2"
	corev1 "k8s.io/api/core/v1"
	policyv1 "k8s.io/api/policy/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"sigs.k8s.io/yaml"
)

func decode[T any](t *testing.T, text string) *T {
	t.Helper()
	v := new(T)
	if err := yaml.UnmarshalStrict([]byte(text), v); err != nil {
		t.Fatal(err)
	}
	return v
}

func TestReadHPA(t *testing.T) {
	r := Reader{Metric: "penstock_wanted_replicas", Pool: "chat"}
	for _, c := range []struct {
		name, text string
		reads      bool
		notes      string // a word of each, in order
	}{
		{"ours", `
spec: {scaleTargetRef: {kind: Deployment, name: llm}, maxReplicas: 8,
  metrics: [{type: External, external: {metric: {name: penstock_wanted_replicas, selector: {matchLabels: {pool: chat}}}, target: {type: AverageValue, averageValue: "1"}}}],
  behavior: {scaleUp: {tolerance: "0"}, scaleDown: {tolerance: "0"}}}`, true, ""},
		{"another pool's", `
spec: {scaleTargetRef: {kind: Deployment, name: llm}, maxReplicas: 8,
  metrics: [{type: External, external: {metric: {name: penstock_wanted_replicas, selector: {matchLabels: {pool: code}}}, target: {type: AverageValue, averageValue: "1"}}}]}`, false, ""},
		{"type Value, and the tolerance of 10 %", `
spec: {scaleTargetRef: {kind: Deployment, name: llm}, maxReplicas: 8,
  metrics: [{type: External, external: {metric: {name: penstock_wanted_replicas}, target: {type: Value, value: "1"}}}]}`, true, "runs away|tolerance"},
		{"divided by two", `
spec: {scaleTargetRef: {kind: Deployment, name: llm}, maxReplicas: 8,
  metrics: [{type: External, external: {metric: {name: penstock_wanted_replicas}, target: {type: AverageValue, averageValue: "2"}}}]}`, true, "must be 1|tolerance"},
		{"CPU", `
spec: {scaleTargetRef: {kind: Deployment, name: llm}, maxReplicas: 8, metrics: [{type: Resource, resource: {name: cpu, target: {type: Utilization, averageUtilization: 70}}}]}`, false, "CPU"},
	} {
		o := readHPA(decode[autoscalingv2.HorizontalPodAutoscaler](t, c.text), r)
		want := strings.FieldsFunc(c.notes, func(r rune) bool { return r == '|' })
		ok := o.Reads == c.reads && len(o.Notes) == len(want)
		for i := range want {
			ok = ok && strings.Contains(o.Notes[i], want[i])
		}
		if !ok {
			t.Errorf("%s: reads %v, notes %q", c.name, o.Reads, o.Notes)
		}
	}
	h := decode[autoscalingv2.HorizontalPodAutoscaler](t, `
spec: {scaleTargetRef: {kind: Deployment, name: llm}, maxReplicas: 8}
status: {conditions: [{type: ScalingActive, status: "False", reason: ScalingDisabled, message: replicas is zero}]}`)
	if o := readHPA(h, r); o.Idle != "ScalingDisabled: replicas is zero" || o.Min != 1 {
		t.Errorf("%+v", o)
	}
}

func TestReadScaledObject(t *testing.T) {
	for _, c := range []struct {
		name, text  string
		reads       bool
		idle, notes string
	}{
		{"ours", `{spec: {scaleTargetRef: {name: llm}, triggers: [{type: external-push, metadata: {pool: chat}}]}}`, true, "", ""},
		{"polled", `{spec: {scaleTargetRef: {name: llm}, triggers: [{type: external, metricType: Value, metadata: {pool: chat}}]}}`, true, "", "external-push|multiplies"},
		{"another's", `{spec: {scaleTargetRef: {name: llm}, triggers: [{type: prometheus, metadata: {query: x}}]}}`, false, "", ""},
		{"paused", `{metadata: {annotations: {autoscaling.keda.sh/paused-replicas: "2"}}, spec: {scaleTargetRef: {name: llm}, triggers: []}}`, false, "paused at 2", ""},
		{"fallback", `{metadata: {annotations: {autoscaling.keda.sh/paused-scale-in: "true"}}, spec: {scaleTargetRef: {name: llm}, triggers: []},
  status: {conditions: [{type: Fallback, status: "True", message: at least one}, {type: Ready, status: "False", message: no scaler}]}}`, false, "", "scaling in|fallback|not ready"},
	} {
		m := decode[map[string]any](t, c.text)
		o := readScaledObject(&unstructured.Unstructured{Object: *m}, Reader{Pool: "chat"})
		ok := o.Reads == c.reads && strings.HasPrefix(o.Idle, c.idle) && (c.idle != "" || o.Idle == "")
		want := strings.FieldsFunc(c.notes, func(r rune) bool { return r == '|' })
		ok = ok && len(want) == len(o.Notes)
		for i := range want {
			ok = ok && strings.Contains(o.Notes[i], want[i])
		}
		if !ok {
			t.Errorf("%s: %+v", c.name, o)
		}
	}
}

func TestStartPhase(t *testing.T) {
	for _, c := range []struct{ name, text, phase, reason string }{
		{"new", `{}`, "pending", ""},
		{"nowhere to go", `{status: {conditions: [{type: PodScheduled, status: "False", reason: Unschedulable, message: "0/3 nodes: Insufficient nvidia.com/gpu"}]}}`, "pending", "Unschedulable: 0/3 nodes: Insufficient nvidia.com/gpu"},
		{"pulling", `{spec: {nodeName: n, containers: []}, status: {containerStatuses: [{name: e, image: i, imageID: "", ready: false, restartCount: 0, state: {waiting: {reason: ContainerCreating}}}]}}`, "pulling", ""},
		{"no image", `{spec: {nodeName: n, containers: []}, status: {containerStatuses: [{name: e, image: i, imageID: "", ready: false, restartCount: 0, state: {waiting: {reason: ImagePullBackOff, message: not found}}}]}}`, "pulling", "ImagePullBackOff: not found"},
		{"fetching weights", `{spec: {nodeName: n, containers: []}, status: {initContainerStatuses: [{name: w, image: i, imageID: "", ready: false, restartCount: 0, state: {waiting: {reason: CrashLoopBackOff}}}]}}`, "pulling", "CrashLoopBackOff"},
		{"loading", `{spec: {nodeName: n, containers: []}, status: {containerStatuses: [{name: e, image: i, imageID: "", ready: false, restartCount: 0, state: {running: {}}}]}}`, "loading", ""},
	} {
		phase, _, reason := startPhase(decode[corev1.Pod](t, c.text))
		if phase != c.phase || reason != c.reason {
			t.Errorf("%s: %s %q, want %s %q", c.name, phase, reason, c.phase, c.reason)
		}
	}
}

// agedPod is a pod that may be ready, made s seconds after the others.
func agedPod(name string, ready bool, s int) corev1.Pod {
	p := corev1.Pod{ObjectMeta: metav1.ObjectMeta{Namespace: "m", Name: name, Labels: map[string]string{"app": "llm"}, CreationTimestamp: metav1.NewTime(time.Unix(int64(1000+s), 0))}}
	if ready {
		p.Status.Conditions = []corev1.PodCondition{{Type: corev1.PodReady, Status: corev1.ConditionTrue}}
	}
	return p
}

func TestSortPods(t *testing.T) {
	gone := agedPod("x", true, 9)
	gone.DeletionTimestamp = &metav1.Time{}
	pods := []corev1.Pod{agedPod("a-1", true, 1), agedPod("a-10", true, 3), agedPod("a-2", true, 2), agedPod("a-3", false, 0), gone}
	names := func(list []*corev1.Pod) (out []string) {
		for _, p := range list {
			out = append(out, p.Name)
		}
		return out
	}
	loose, ready := sortPods(pods, []string{"m/a-2#1", "m/gone"}, false)
	if got := names(ready); loose != 1 || !slices.Equal(got, []string{"a-2", "a-10", "a-1"}) {
		t.Errorf("%d loose, %v: the victim first, then the youngest", loose, got)
	}
	loose, ready = sortPods(pods, []string{"m/a-1"}, true)
	if got := names(ready); loose != 0 || !slices.Equal(got, []string{"a-10", "a-3", "a-2", "a-1"}) {
		t.Errorf("%d loose, %v: by ordinal, ready or not", loose, got)
	}
	b := &policyv1.PodDisruptionBudget{Spec: policyv1.PodDisruptionBudgetSpec{Selector: &metav1.LabelSelector{MatchLabels: map[string]string{"app": "llm"}}}}
	if n := selectedBy(b, ready); n != 4 {
		t.Errorf("%d selected", n)
	}
}

func TestYield(t *testing.T) {
	entry := func(who string, op metav1.ManagedFieldsOperationType, at int64, fields string) metav1.ManagedFieldsEntry {
		e := metav1.ManagedFieldsEntry{Manager: who, Operation: op, FieldsV1: metav1.NewFieldsV1(fields)}
		if at != 0 {
			e.Time = &metav1.Time{Time: time.Unix(at, 0)}
		}
		return e
	}
	const replicas, other = `{"f:spec":{"f:replicas":{}}}`, `{"f:status":{"f:replicas":{}}}`
	m := moversOf([]metav1.ManagedFieldsEntry{entry("argocd", metav1.ManagedFieldsOperationApply, 50, replicas), entry("kcm", metav1.ManagedFieldsOperationUpdate, 99, other),
		entry("kubectl", metav1.ManagedFieldsOperationUpdate, 0, replicas)})
	if len(m) != 2 || m[0].name != "kubectl" {
		t.Fatalf("%+v", m)
	}
	if y := yieldTo(m, 3, 6); y == nil || y.To != "kubectl" || y.From != 3 || y.Now != 6 || y.At.IsZero() {
		t.Errorf("%+v", y)
	}
	if y := yieldTo(m[1:], 3, 6); y.To != "argocd (server-side apply)" || y.At.Unix() != 50 {
		t.Errorf("%+v", y)
	}
	if y := yieldTo(append(m, mover{name: manager}), 3, 6); y != nil {
		t.Errorf("a write of our own: %+v", y)
	}
	if y := yieldTo(nil, 3, 6); y.To != "somebody" {
		t.Errorf("%+v", y)
	}
}

func TestTargetIs(t *testing.T) {
	d := Target{Kind: "Deployment", Namespace: "m", Name: "llm"}
	for _, c := range []struct {
		t          Target
		v, k, name string
		want       bool
	}{
		{d, "apps/v1", "Deployment", "llm", true}, {d, "", "Deployment", "llm", true}, {d, "apps/v1", "StatefulSet", "llm", false}, {d, "apps/v1", "Deployment", "other", false},
		{Target{APIVersion: "a.io/v1", Kind: "X", Name: "n"}, "a.io/v2", "X", "n", true}, {Target{APIVersion: "a.io/v1", Kind: "X", Name: "n"}, "b.io/v1", "X", "n", false},
	} {
		if got := c.t.is(c.v, c.k, c.name); got != c.want {
			t.Errorf("%v is %s %s %s: %v", c.t, c.v, c.k, c.name, got)
		}
	}
}

func TestKServe(t *testing.T) {
	s := &stack{services: []unstructured.Unstructured{{Object: *decode[map[string]any](t, `{metadata: {name: a, namespace: m, annotations: {serving.kserve.io/autoscalerClass: external}}}`)},
		{Object: *decode[map[string]any](t, `{metadata: {name: b, namespace: m}}`)},
		{Object: *decode[map[string]any](t, `{metadata: {name: c, namespace: m, annotations: {serving.kserve.io/autoscalerClass: none}}}`)}},
		llm: []unstructured.Unstructured{{Object: map[string]any{"metadata": map[string]any{"name": "l", "namespace": "m"}, "spec": map[string]any{"replicas": int64(3)}}}}}
	for name, want := range map[string]string{"a": "replicas: KServe leaves them alone", "b": "nothing: KServe writes the replicas", "c": "nothing: KServe writes the replicas"} {
		w := Workload{}
		if w.service(s, "m", name); !strings.HasPrefix(w.Scaling, want) {
			t.Errorf("%s: %q", name, w.Scaling)
		}
	}
	for prefill, want := range map[bool]string{false: "nothing while spec.replicas is set", true: "replicas: KServe leaves them alone (spec.prefill sets neither"} {
		w := Workload{}
		if w.llmService(s, "m", "l", prefill); !strings.HasPrefix(w.Scaling, want) {
			t.Errorf("prefill %v: %q", prefill, w.Scaling)
		}
	}
	if e := engineOf(&corev1.PodSpec{Containers: []corev1.Container{{Image: "registry/x", Command: []string{"python3", "-m", "sglang.launch_server"}}}}); e != "SGLang" {
		t.Errorf("engine %q", e)
	}
}
