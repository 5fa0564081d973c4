// SPDX-License-Identifier: Apache-2.0

package kube

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	dynfake "k8s.io/client-go/dynamic/fake"
	"k8s.io/client-go/kubernetes/fake"
	ktesting "k8s.io/client-go/testing"

	"github.com/penstock-project/penstock/internal/fleet"
	"github.com/penstock-project/penstock/internal/observe"
)

// pod is a pod of the pool, ready unless changed.
func pod(name, ip string, change ...func(*corev1.Pod)) *corev1.Pod {
	p := &corev1.Pod{
		ObjectMeta: metav1.ObjectMeta{Name: name, Namespace: "ns", Labels: map[string]string{"app": "vllm"}},
		Status: corev1.PodStatus{Phase: corev1.PodRunning, PodIP: ip,
			Conditions: []corev1.PodCondition{{Type: corev1.PodReady, Status: corev1.ConditionTrue}}},
	}
	for _, c := range change {
		c(p)
	}
	return p
}

func unready(p *corev1.Pod) { p.Status.Conditions[0].Status = corev1.ConditionFalse }

func deleted(p *corev1.Pod) { now := metav1.Now(); p.DeletionTimestamp = &now }

func annotated(k, v string) func(*corev1.Pod) {
	return func(p *corev1.Pod) { p.Annotations = map[string]string{k: v} }
}

func TestTargets(t *testing.T) {
	one, two := Selection{Ports: []int{8000}}, Selection{Ports: []int{8000, 8001}, Scheme: "https"}
	for _, c := range []struct {
		name string
		sel  Selection
		pods []*corev1.Pod
		want []observe.Target
	}{
		{"by name", one, []*corev1.Pod{pod("b", "10.0.0.2"), pod("a", "10.0.0.1")}, []observe.Target{
			{ID: "ns/a", URL: "http://10.0.0.1:8000", Rank: -1}, {ID: "ns/b", URL: "http://10.0.0.2:8000", Rank: -1}}},
		{"not ready, no address, ended", one, []*corev1.Pod{
			pod("a", "10.0.0.1", unready), pod("b", ""), pod("c", "10.0.0.3", func(p *corev1.Pod) { p.Status.Phase = corev1.PodFailed }),
			pod("d", "10.0.0.4", func(p *corev1.Pod) { p.Status.Conditions = nil })}, nil},
		{"deletion drains, also a pod that is not ready any more", one, []*corev1.Pod{pod("a", "10.0.0.1", deleted), pod("b", "10.0.0.2", deleted, unready)}, []observe.Target{
			{ID: "ns/a", URL: "http://10.0.0.1:8000", Rank: -1, Draining: true, Reason: "the pod is being deleted"},
			{ID: "ns/b", URL: "http://10.0.0.2:8000", Rank: -1, Draining: true, Reason: "the pod is being deleted"}}},
		{"a rank a port", two, []*corev1.Pod{pod("a", "10.0.0.1")}, []observe.Target{
			{ID: "ns/a#0", URL: "https://10.0.0.1:8000", Rank: 0}, {ID: "ns/a#1", URL: "https://10.0.0.1:8001", Rank: 1}}},
		{"active ports", two, []*corev1.Pod{pod("a", "10.0.0.1", annotated(ActivePorts[0], " 8001 , x")), pod("b", "10.0.0.2", annotated(ActivePorts[1], "9"))}, []observe.Target{
			{ID: "ns/a#1", URL: "https://10.0.0.1:8001", Rank: 1}}},
		{"role and IPv6", one, []*corev1.Pod{pod("a", "fd00::1", func(p *corev1.Pod) { p.Labels[roleLabel] = "decode" })}, []observe.Target{
			{ID: "ns/a", URL: "http://[fd00::1]:8000", Rank: -1, Role: fleet.RoleDecode}}},
	} {
		got := Targets(c.pods, c.sel, nil)
		if len(got) != len(c.want) {
			t.Errorf("%s: %+v, want %+v", c.name, got, c.want)
			continue
		}
		for i := range got {
			if got[i] != c.want[i] {
				t.Errorf("%s: %+v, want %+v", c.name, got[i], c.want[i])
			}
		}
	}
}

// object is an InferencePool with a spec.
func object(name string, spec map[string]any) *unstructured.Unstructured {
	u := &unstructured.Unstructured{Object: map[string]any{"spec": spec}}
	u.SetAPIVersion("inference.networking.k8s.io/v1")
	u.SetKind("InferencePool")
	u.SetName(name)
	u.SetNamespace("ns")
	return u
}

func spec(app string, ports ...int64) map[string]any {
	list := []any{}
	for _, p := range ports {
		list = append(list, map[string]any{"number": p})
	}
	return map[string]any{"selector": map[string]any{"matchLabels": map[string]any{"app": app}}, "targetPorts": list}
}

func TestReadPool(t *testing.T) {
	s := spec("vllm", 8000, 8001)
	s["appProtocol"] = "kubernetes.io/h2c"
	s["endpointPickerRef"] = map[string]any{"name": "epp", "failureMode": "FailOpen", "port": map[string]any{"number": int64(9002)}}
	p, err := ReadPool(object("chat", s))
	if err != nil {
		t.Fatal(err)
	}
	if p.Selector.String() != "app=vllm" || len(p.Ports) != 2 || p.FailureMode != "FailOpen" || p.Picker != "epp" || p.PickerPort != 9002 || p.AppProtocol != "kubernetes.io/h2c" {
		t.Errorf("%+v", p)
	}
	if p, err = ReadPool(object("chat", spec("vllm", 8000))); err != nil || p.FailureMode != "" || p.Picker != "" || p.AppProtocol != "http" {
		t.Errorf("a failure mode that is not set must not look set: %+v, %v", p, err)
	}
	for name, bad := range map[string]map[string]any{
		"matchLabels":           {"selector": map[string]any{}, "targetPorts": []any{map[string]any{"number": int64(1)}}},
		"targetPorts":           spec("vllm"),
		"InferencePool ns/chat": {"selector": "app=vllm"},
	} {
		if _, err := ReadPool(object("chat", bad)); err == nil || !strings.Contains(err.Error(), name) {
			t.Errorf("%s: %v", name, err)
		}
	}
}

// cluster is a fake API server with the objects.
func cluster(pods []runtime.Object, pools ...runtime.Object) *Cluster {
	return &Cluster{
		Pods: fake.NewClientset(pods...), Log: slog.New(slog.DiscardHandler),
		Dynamic: dynfake.NewSimpleDynamicClientWithCustomListKinds(runtime.NewScheme(),
			kinds(), pools...),
	}
}

func kinds() map[schema.GroupVersionResource]string {
	out := map[schema.GroupVersionResource]string{PoolResource: "InferencePoolList"}
	for _, r := range CompatResources() {
		out[r] = map[string]string{"inferenceobjectives": "InferenceObjectiveList", "inferencemodelrewrites": "InferenceModelRewriteList"}[r.Resource]
	}
	return out
}

// lists runs a source and returns what it tells.
func lists(t *testing.T, s observe.Source) <-chan string {
	t.Helper()
	ctx, cancel := context.WithCancel(t.Context())
	out := make(chan string, 100)
	done := make(chan struct{})
	go func() {
		defer close(done)
		_ = s.Run(ctx, func(ts []observe.Target) {
			var ids []string
			for _, x := range ts {
				id := x.ID + "@" + strings.TrimPrefix(x.URL, "http://")
				if x.Draining {
					id += " draining"
				}
				ids = append(ids, id)
			}
			out <- strings.Join(ids, ", ")
		})
	}()
	t.Cleanup(func() { cancel(); <-done })
	return out
}

// comes waits until a source tells want.
func comes(t *testing.T, told <-chan string, want string) {
	t.Helper()
	last := "nothing"
	limit := time.After(time.Minute)
	for {
		select {
		case last = <-told:
			if last == want {
				return
			}
		case <-limit:
			t.Fatalf("told %q, want %q", last, want)
		}
	}
}

func TestPodsComeAndGo(t *testing.T) {
	c := cluster([]runtime.Object{pod("a", "10.0.0.1"), pod("other", "10.0.0.9", func(p *corev1.Pod) { p.Labels["app"] = "else" })})
	sel, err := labels.Parse("app=vllm")
	if err != nil {
		t.Fatal(err)
	}
	told := lists(t, &PodSource{Cluster: c, Select: Selection{Namespace: "ns", Selector: sel, Ports: []int{8000}}})
	comes(t, told, "ns/a@10.0.0.1:8000")
	pods := c.Pods.CoreV1().Pods("ns")
	must := func(_ any, err error) {
		t.Helper()
		if err != nil {
			t.Fatal(err)
		}
	}
	must(pods.Create(t.Context(), pod("b", "10.0.0.2", unready), metav1.CreateOptions{}))
	must(pods.Update(t.Context(), pod("b", "10.0.0.2"), metav1.UpdateOptions{}))
	comes(t, told, "ns/a@10.0.0.1:8000, ns/b@10.0.0.2:8000")
	must(pods.Update(t.Context(), pod("a", "10.0.0.1", deleted), metav1.UpdateOptions{}))
	comes(t, told, "ns/a@10.0.0.1:8000 draining, ns/b@10.0.0.2:8000")
	must(nil, pods.Delete(t.Context(), "a", metav1.DeleteOptions{}))
	comes(t, told, "ns/b@10.0.0.2:8000")
	if seen, fault := c.Reach(); seen.IsZero() || fault != "" {
		t.Errorf("reach %v %q", seen, fault)
	}
}

// TestManyPodsAreReplaced: a rollout of a hundred pods ends in the new hundred, told
// in few lists, and in none of them the pool is empty.
func TestManyPodsAreReplaced(t *testing.T) {
	var first []runtime.Object
	for i := range 100 {
		first = append(first, pod(fmt.Sprintf("old-%03d", i), fmt.Sprintf("10.0.1.%d", i)))
	}
	c := cluster(first)
	sel, _ := labels.Parse("app=vllm")
	told := lists(t, &PodSource{Cluster: c, Select: Selection{Namespace: "ns", Selector: sel, Ports: []int{8000}}})
	<-told
	began := time.Now()
	var want []string
	for i := range 100 {
		if _, err := c.Pods.CoreV1().Pods("ns").Create(t.Context(), pod(fmt.Sprintf("new-%03d", i), fmt.Sprintf("10.0.2.%d", i)), metav1.CreateOptions{}); err != nil {
			t.Fatal(err)
		}
		if err := c.Pods.CoreV1().Pods("ns").Delete(t.Context(), fmt.Sprintf("old-%03d", i), metav1.DeleteOptions{}); err != nil {
			t.Fatal(err)
		}
		want = append(want, fmt.Sprintf("ns/new-%03d@10.0.2.%d:8000", i, i))
	}
	all := strings.Join(want, ", ")
	n := 0
	for limit := time.After(time.Minute); ; {
		select {
		case l := <-told:
			if n++; l == "" {
				t.Fatal("the pool was empty for a moment")
			}
			if l == all {
				// One list a window at most, however long the machine takes for the rollout.
				if took := time.Since(began); n > 2+int(took/gather) {
					t.Errorf("%d lists for one rollout of %v: changes are not gathered", n, took)
				}
				return
			}
		case <-limit:
			t.Fatal("the rollout never ended")
		}
	}
}

func TestInferencePoolIsFollowed(t *testing.T) {
	c := cluster([]runtime.Object{pod("a", "10.0.0.1"), pod("z", "10.0.0.9", func(p *corev1.Pod) { p.Labels["app"] = "sglang" })})
	var modes []string
	told := lists(t, &PoolSource{Cluster: c, Namespace: "ns", Name: "chat", Changed: func(p Pool) { modes = append(modes, p.FailureMode) }})
	pools := c.Dynamic.Resource(PoolResource).Namespace("ns")
	must := func(_ any, err error) {
		t.Helper()
		if err != nil {
			t.Fatal(err)
		}
	}
	must(pools.Create(t.Context(), object("chat", spec("vllm", 8000)), metav1.CreateOptions{}))
	comes(t, told, "ns/a@10.0.0.1:8000")
	must(pools.Update(t.Context(), object("chat", spec("vllm", 8000, 8001)), metav1.UpdateOptions{}))
	comes(t, told, "ns/a#0@10.0.0.1:8000, ns/a#1@10.0.0.1:8001")
	must(pools.Update(t.Context(), object("chat", spec("vllm")), metav1.UpdateOptions{})) // at fault: the last version stays
	must(pools.Update(t.Context(), object("chat", spec("sglang", 8000)), metav1.UpdateOptions{}))
	comes(t, told, "ns/z@10.0.0.9:8000")
	must(nil, pools.Delete(t.Context(), "chat", metav1.DeleteOptions{}))
	comes(t, told, "")
	if len(modes) != 3 {
		t.Errorf("told of %d versions, want 3", len(modes))
	}
}

func TestOutageIsNoticed(t *testing.T) {
	c := cluster(nil)
	away := true
	c.Pods.(*fake.Clientset).PrependReactor("get", "version", func(ktesting.Action) (bool, runtime.Object, error) {
		if away {
			return true, nil, errors.New("connection refused")
		}
		return false, nil, nil
	})
	c.look(t.Context(), time.Second)
	if seen, fault := c.Reach(); !seen.IsZero() || !strings.Contains(fault, "refused") {
		t.Errorf("away: %v %q", seen, fault)
	}
	away = false
	c.look(t.Context(), time.Second)
	if seen, fault := c.Reach(); seen.IsZero() || fault != "" {
		t.Errorf("back: %v %q", seen, fault)
	}
}

func TestConnect(t *testing.T) {
	dir := t.TempDir()
	t.Setenv("HOME", dir)
	t.Setenv("KUBECONFIG", "")
	t.Setenv("KUBERNETES_SERVICE_HOST", "")
	if _, err := Connect("", nil); err == nil || !strings.Contains(err.Error(), "KUBECONFIG") {
		t.Errorf("nothing there: %v", err)
	}
	if _, err := Connect(filepath.Join(dir, "missing"), nil); err == nil || !strings.Contains(err.Error(), "missing") {
		t.Errorf("a file that is named must be there: %v", err)
	}
	file := filepath.Join(dir, "config")
	text := `{apiVersion: v1, kind: Config, clusters: [{name: c, cluster: {server: "https://127.0.0.1:1"}}], users: [{name: u, user: {token: t}}],
contexts: [{name: c, context: {cluster: c, user: u, namespace: models}}], current-context: c}`
	if err := os.WriteFile(file, []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
	for _, path := range []string{file, ""} {
		if path == "" {
			t.Setenv("KUBECONFIG", file)
		}
		c, err := Connect(path, nil)
		if err != nil || c.Namespace != "models" {
			t.Errorf("path %q: %+v, %v", path, c, err)
		}
	}
}

func TestCompatIsRead(t *testing.T) {
	o := thing("InferenceObjective", "batch", "chat", 0, map[string]any{"priority": int64(-1)})
	o.SetNamespace("ns")
	c := cluster(nil, &o)
	got := make(chan *Compat, 1)
	lists(t, &PoolSource{Cluster: c, Namespace: "ns", Name: "chat", Compat: func(c *Compat) { got <- c }})
	select {
	case rules := <-got:
		if rules.Class("batch") != 1 || rules.Class("") != 0 {
			t.Errorf("classes %d and %d", rules.Class("batch"), rules.Class(""))
		}
	case <-time.After(time.Minute):
		t.Fatal("nothing was read")
	}
}
