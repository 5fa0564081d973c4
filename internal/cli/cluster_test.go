// SPDX-License-Identifier: Apache-2.0

package cli

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"log/slog"
	"net"
	"os"
	"strings"
	"sync"
	"testing"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"

	"github.com/penstock-project/penstock/internal/config"
	"github.com/penstock-project/penstock/internal/kube"
)

// These tests run the doors for autoscalers against a real API server, with the real
// HPA controller and, where PENSTOCK_E2E_KEDA is set, the real KEDA, and with kwok in
// place of kubelets: e2e/kube/scaling.sh starts them. What the scaler loop would decide
// is said by the test.

// clusterRig is one Deployment llm in a namespace of its own.
type clusterRig struct {
	t      *testing.T
	c      *kube.Cluster
	ns     string
	port   int
	pool   string
	log    lockedBuffer
	server *server
	stop   func()
}

type lockedBuffer struct {
	mu sync.Mutex
	b  bytes.Buffer
}

func (l *lockedBuffer) Write(p []byte) (int, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.b.Write(p)
}

func (l *lockedBuffer) String() string {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.b.String()
}

func newClusterRig(t *testing.T, replicas int, annotations string) *clusterRig {
	t.Helper()
	path := os.Getenv("PENSTOCK_E2E_KUBECONFIG")
	if path == "" {
		t.Skip("PENSTOCK_E2E_KUBECONFIG names no cluster")
	}
	c, err := kube.Connect(path, nil)
	if err != nil {
		t.Fatal(err)
	}
	r := &clusterRig{t: t, c: c, ns: fmt.Sprintf("s%d", time.Now().UnixNano()), port: portFor(t), pool: "chat"}
	r.create("v1", "nodes", "", `{"apiVersion": "v1", "kind": "Node", "metadata": {"name": "node-0"}}`)
	r.create("v1", "namespaces", "", `{"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": "`+r.ns+`"}}`)
	t.Cleanup(func() {
		ctx := context.Background()
		for _, a := range []string{"v1beta1.external.metrics.k8s.io", "v1beta1.custom.metrics.k8s.io", "v1beta2.custom.metrics.k8s.io"} {
			if o, err := c.APIServiceOwner(ctx, a); err == nil && o != nil && strings.HasPrefix(o.Service, r.ns+"/") {
				_ = c.Dynamic.Resource(resourceOf("apiregistration.k8s.io/v1", "apiservices")).Delete(ctx, a, metav1.DeleteOptions{})
			}
		}
		_ = c.Pods.CoreV1().Namespaces().Delete(ctx, r.ns, metav1.DeleteOptions{})
	})
	r.create("v1", "services", r.ns, fmt.Sprintf(`{"apiVersion": "v1", "kind": "Service", "metadata": {"name": "penstock-metrics"},
		"spec": {"type": "ExternalName", "externalName": "localhost", "ports": [{"port": %d}]}}`, r.port))
	r.create("apps/v1", "deployments", r.ns, fmt.Sprintf(`{"apiVersion": "apps/v1", "kind": "Deployment", "metadata": {"name": "llm"}, "spec": {"replicas": %d,
		"selector": {"matchLabels": {"app": "llm"}}, "template": {"metadata": {"labels": {"app": "llm"}, "annotations": {%s}},
		"spec": {"nodeName": "node-0", "containers": [{"name": "engine", "image": "none"}]}}}}`, replicas, annotations))
	return r
}

func portFor(t *testing.T) int {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	return l.Addr().(*net.TCPAddr).Port
}

func resourceOf(gv, resource string) schema.GroupVersionResource {
	v, _ := schema.ParseGroupVersion(gv)
	return v.WithResource(resource)
}

// create makes an object; one that is there already stays.
func (r *clusterRig) create(gv, resource, ns, text string) {
	r.t.Helper()
	o := &unstructured.Unstructured{}
	if err := json.Unmarshal([]byte(text), &o.Object); err != nil {
		r.t.Fatal(err, text)
	}
	_, err := r.c.Dynamic.Resource(resourceOf(gv, resource)).Namespace(ns).Create(r.t.Context(), o, metav1.CreateOptions{})
	if err != nil && !strings.Contains(err.Error(), "already exists") {
		r.t.Fatal(err)
	}
}

func (r *clusterRig) patch(gv, resource, name, text string) {
	r.t.Helper()
	if _, err := r.c.Dynamic.Resource(resourceOf(gv, resource)).Namespace(r.ns).Patch(r.t.Context(), name, types.MergePatchType, []byte(text), metav1.PatchOptions{}); err != nil {
		r.t.Fatal(err)
	}
}

// hpa makes an HPA on the wanted replicas, without limits of its own on the pace.
func (r *clusterRig) hpa(least, most int, target string) {
	r.t.Helper()
	r.create("autoscaling/v2", "horizontalpodautoscalers", r.ns, fmt.Sprintf(`{"apiVersion": "autoscaling/v2", "kind": "HorizontalPodAutoscaler", "metadata": {"name": "llm"},
		"spec": {"scaleTargetRef": {"apiVersion": "apps/v1", "kind": "Deployment", "name": "llm"}, "minReplicas": %d, "maxReplicas": %d,
		"metrics": [{"type": "External", "external": {"metric": {"name": "penstock_wanted_replicas", "selector": {"matchLabels": {"pool": "chat"}}}, "target": %s}}],
		"behavior": {"scaleUp": {"tolerance": "0", "policies": [{"type": "Pods", "value": 1000, "periodSeconds": 15}]}, "scaleDown": {"tolerance": "0", "stabilizationWindowSeconds": 0}}}}`, least, most, target))
}

const averageOne = `{"type": "AverageValue", "averageValue": "1"}`

// serve starts a server with a hand.
func (r *clusterRig) serve(hand string, change func(*config.Config)) {
	r.t.Helper()
	c := config.Default()
	c.Listen.HTTP, c.Listen.Admin = "127.0.0.1:0", "127.0.0.1:0"
	c.Kube = config.Kubernetes{Namespace: r.ns, Name: "penstock-scaler", Service: r.ns + "/penstock-metrics", Port: r.port}
	p := config.DefaultPool(r.pool)
	p.Replicas.Selector = config.Selector{Namespace: r.ns, Labels: []string{"app=llm"}, Port: 8000}
	p.Scale.Hand, p.Scale.Min, p.Scale.Max = hand, 0, 100
	p.Scale.Target = config.ScaleTarget{Kind: "Deployment", Namespace: r.ns, Name: "llm"}
	c.Pools = []config.Pool{p}
	if hand == "hpa" {
		c.Listen.Metrics = fmt.Sprintf("127.0.0.1:%d", r.port)
	}
	if change != nil {
		change(c)
	}
	s, err := buildServer(serverOptions{Config: c, Kubeconfig: os.Getenv("PENSTOCK_E2E_KUBECONFIG"), DrainTimeout: time.Second, Log: slog.New(slog.NewTextHandler(&r.log, nil))})
	if err != nil {
		r.t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(context.Background())
	done := make(chan struct{})
	go func() { defer close(done); _ = s.Run(ctx) }()
	var once sync.Once
	r.server, r.stop = s, func() { once.Do(func() { cancel(); <-done }) }
	r.t.Cleanup(r.stop)
	r.until("it leads", func() bool { _, ok := s.cluster.lead.Leads(); return ok })
	if hand == "hpa" {
		r.until("the metrics API is available", func() bool {
			o, err := r.c.APIServiceOwner(r.t.Context(), "v1beta1.external.metrics.k8s.io")
			return err == nil && o != nil && o.Available
		})
	}
}

// patience is when a wait gives up on a machine that does much else; what has to be
// quick is measured by its test.
const patience = 2 * time.Minute

// until waits for ok, and says how long that took.
func (r *clusterRig) until(what string, ok func() bool) time.Duration {
	r.t.Helper()
	start := time.Now()
	for time.Since(start) < patience {
		if ok() {
			return time.Since(start)
		}
		time.Sleep(20 * time.Millisecond)
	}
	r.t.Fatalf("after %v not yet: %s\n%s", patience, what, r.log.String())
	return 0
}

// shown says which scenario of the layer was seen, and what: the layer counts these
// lines.
func (r *clusterRig) shown(scenario, format string, a ...any) {
	r.t.Helper()
	if !r.t.Failed() {
		r.t.Logf("shown: %s; "+format, append([]any{scenario}, a...)...)
	}
}

func (r *clusterRig) apply(n int) error {
	return r.server.cluster.Hand(r.pool).Apply(r.t.Context(), n, nil)
}

func (r *clusterRig) must(n int) {
	r.t.Helper()
	if err := r.apply(n); err != nil {
		r.t.Fatal(err)
	}
}

func (r *clusterRig) replicas() int {
	n, err := r.c.Replicas(r.t.Context(), kube.Target{Kind: "Deployment", Namespace: r.ns, Name: "llm"})
	if err != nil {
		r.t.Fatal(err)
	}
	return n
}

// reaches waits until the Deployment wants n replicas, and says how long that took.
func (r *clusterRig) reaches(n int) time.Duration {
	r.t.Helper()
	took := r.until(fmt.Sprintf("%d replicas (now %d)", n, r.replicas()), func() bool { return r.replicas() == n })
	r.t.Logf("%d replicas after %s", n, took.Round(10*time.Millisecond))
	return took
}

// stays watches that the Deployment wants n replicas all the time.
func (r *clusterRig) stays(n int, d time.Duration) {
	r.t.Helper()
	for end := time.Now().Add(d); time.Now().Before(end); time.Sleep(100 * time.Millisecond) {
		if got := r.replicas(); got != n {
			r.t.Fatalf("%d replicas, want %d to stay", got, n)
		}
	}
}

const neverReady = `"e2e/never-ready": "1"`

// TestClusterHPA: the wanted number is reached and held while pods never become
// ready, and nothing moves while the metrics are away for a minute.
func TestClusterHPA(t *testing.T) {
	r := newClusterRig(t, 1, neverReady)
	r.serve("hpa", nil)
	r.hpa(1, 50, averageOne)
	r.stays(1, 3*time.Second) // nothing is known: nothing moves
	r.must(3)
	took := r.reaches(3)
	r.stays(3, 10*time.Second)
	r.shown("T1", "3 replicas after %.1f s, held while none becomes ready", took.Seconds())
	r.until("its pods are there", func() bool {
		st, err := r.server.cluster.Hand("chat").State(t.Context())
		return err == nil && len(st.Pending) == 3
	})
	st, err := r.server.cluster.Hand("chat").State(t.Context())
	if err != nil || st.Owner != "" || len(st.Pending) != 3 || st.Wanted != 3 {
		t.Errorf("%+v %v", st, err)
	}
	r.must(21)
	r.reaches(21)
	r.must(22) // less than a tenth more: the HPA's tolerance is 0
	r.reaches(22)
	r.stop()
	r.stays(22, 60*time.Second)
	r.shown("T2", "the metrics API away for 60 s: 22 replicas throughout")
	// Another one that does not know yet says nothing, not 0.
	r.serve("hpa", nil)
	r.stays(22, 5*time.Second)
	r.must(2)
	r.reaches(2)
}

// TestClusterHPAZero: an HPA of 1.37 with minReplicas 0 wakes what it put to sleep, to
// as many as are wanted at once.
func TestClusterHPAZero(t *testing.T) {
	r := newClusterRig(t, 1, "")
	r.serve("hpa", nil)
	if os.Getenv("KUBE_VERSION") != "" && !strings.HasPrefix(os.Getenv("KUBE_VERSION"), "v1.37") {
		t.Skip("an HPA before 1.37 refuses minReplicas 0, as e2e/kube/scaling.py shows")
	}
	r.hpa(0, 50, averageOne)
	r.must(0)
	r.reaches(0)
	r.must(4)
	r.shown("T3-hpa-1.37", "0 to 4 in %.1f s, the HPA looks every 2 s", r.reaches(4).Seconds())
}

// TestClusterHPAWake: with an HPA that never goes to zero, /scale goes through it.
func TestClusterHPAWake(t *testing.T) {
	r := newClusterRig(t, 1, "")
	r.serve("hpa", func(c *config.Config) { c.Pools[0].Scale.Wake = "scale" })
	r.hpa(1, 50, averageOne)
	r.must(0)
	r.reaches(0)
	r.stays(0, 4*time.Second)
	r.must(4)
	if took := r.reaches(4); took > 2*time.Second {
		t.Errorf("woken after %s", took)
	}
	r.stays(4, 4*time.Second) // and the HPA goes on from there
	r.must(6)
	r.reaches(6)
}

// TestClusterValueRunsAway: the mistake that this program's own objects do not make,
// and that it sees in others.
func TestClusterValueRunsAway(t *testing.T) {
	r := newClusterRig(t, 1, "")
	r.serve("hpa", nil)
	r.hpa(1, 12, `{"type": "Value", "value": "1"}`)
	r.must(2)
	r.reaches(12) // of 2 that are wanted
	h := r.server.cluster.published("chat")
	if _, err := h.State(t.Context()); err != nil || !strings.Contains(strings.Join(h.Notes(), " "), "runs away") {
		t.Errorf("%v %v", h.Notes(), err)
	}
}

// TestClusterOtherAdapter: a group that somebody else serves is left alone.
func TestClusterOtherAdapter(t *testing.T) {
	r := newClusterRig(t, 1, "")
	const name = "v1beta1.external.metrics.k8s.io"
	api := r.c.Dynamic.Resource(resourceOf("apiregistration.k8s.io/v1", "apiservices"))
	theirs, err := api.Get(t.Context(), name, metav1.GetOptions{})
	if err != nil {
		r.create("apiregistration.k8s.io/v1", "apiservices", "", `{"apiVersion": "apiregistration.k8s.io/v1", "kind": "APIService", "metadata": {"name": "`+name+`"}, "spec": {
			"group": "external.metrics.k8s.io", "version": "v1beta1", "groupPriorityMinimum": 100, "versionPriority": 100, "insecureSkipTLSVerify": true, "service": {"namespace": "other", "name": "adapter", "port": 443}}}`)
		t.Cleanup(func() { _ = api.Delete(context.Background(), name, metav1.DeleteOptions{}) })
		if theirs, err = api.Get(t.Context(), name, metav1.GetOptions{}); err != nil {
			t.Fatal(err)
		}
	}
	r.serve("scale", func(c *config.Config) { c.Listen.Metrics = fmt.Sprintf("127.0.0.1:%d", r.port) })
	r.until("it says so", func() bool { return strings.Contains(r.log.String(), "use scale.hand keda") })
	now, err := api.Get(t.Context(), name, metav1.GetOptions{})
	if err != nil || fmt.Sprint(now.Object["spec"]) != fmt.Sprint(theirs.Object["spec"]) {
		t.Errorf("the other adapter's object changed: %v %v", now.Object["spec"], err)
	}
	r.shown("T6", "%v keeps the metrics API; the log says: use scale.hand keda", now.Object["spec"].(map[string]any)["service"])
}

// TestClusterDrivenByHand: with /scale itself, 0 to N takes one request.
func TestClusterDrivenByHand(t *testing.T) {
	r := newClusterRig(t, 1, "")
	r.serve("scale", nil)
	r.must(0)
	r.reaches(0)
	r.must(5)
	if took := r.reaches(5); took > 2*time.Second {
		t.Errorf("woken after %s", took)
	}
	r.hpa(1, 50, averageOne)
	if err := r.apply(7); err == nil || !strings.Contains(err.Error(), "HorizontalPodAutoscaler llm") {
		t.Errorf("%v", err)
	}
	if st, err := r.server.cluster.Hand("chat").State(t.Context()); err != nil || st.Owner == "" {
		t.Errorf("%+v %v", st, err)
	}
	r.shown("T7-hpa", "an HPA that moves the object is named and left alone")
}

// scaledObject makes a ScaledObject that asks the external scaler.
func (r *clusterRig) scaledObject(addr, measure string) {
	r.t.Helper()
	r.create("keda.sh/v1alpha1", "scaledobjects", r.ns, fmt.Sprintf(`{"apiVersion": "keda.sh/v1alpha1", "kind": "ScaledObject", "metadata": {"name": "llm"}, "spec": {
		"scaleTargetRef": {"name": "llm"}, "pollingInterval": 2, "cooldownPeriod": 3, "minReplicaCount": 0, "maxReplicaCount": 50,
		"advanced": {"horizontalPodAutoscalerConfig": {"behavior": {"scaleUp": {"tolerance": "0", "policies": [{"type": "Pods", "value": 1000, "periodSeconds": 15}]},
		"scaleDown": {"tolerance": "0", "stabilizationWindowSeconds": 0}}}},
		"triggers": [{"type": "external-push", "metricType": "AverageValue", "metadata": {"scalerAddress": %q, "pool": "chat", "measure": %q}}]}}`, addr, measure))
}

// newKEDARig skips where no KEDA runs.
func newKEDARig(t *testing.T, wake, measure string) *clusterRig {
	t.Helper()
	if os.Getenv("PENSTOCK_E2E_KEDA") == "" {
		t.Skip("PENSTOCK_E2E_KEDA is not set")
	}
	r := newClusterRig(t, 1, "")
	r.serve("keda", func(c *config.Config) {
		c.Listen.KEDA = "127.0.0.1:0"
		c.Pools[0].Scale.Wake = wake
	})
	_, addr := r.server.cluster.Addrs()
	r.scaledObject(addr, measure)
	return r
}

// TestClusterKEDA: from zero to one at once and to N with the next sync of the HPA; to
// zero by KEDA's cooldown; held while nothing is known.
func TestClusterKEDA(t *testing.T) {
	r := newKEDARig(t, "owner", "replicas")
	r.must(0)
	r.reaches(0)
	r.until("KEDA holds its streams open", func() bool { n, _ := r.server.cluster.keda.Streams(); return n >= 1 })
	r.must(4)
	if took := r.until("it leaves zero", func() bool { return r.replicas() > 0 }); took > 2*time.Second {
		t.Errorf("left zero after %s", took)
	}
	r.reaches(4)
	st, err := r.server.cluster.Hand("chat").State(t.Context())
	if err != nil || st.Owner != "" || st.Wanted != 4 {
		t.Errorf("%+v %v", st, err)
	}
	r.stop()
	r.stays(4, 20*time.Second)
	r.patch("keda.sh/v1alpha1", "scaledobjects", "llm", `{"metadata": {"annotations": {"autoscaling.keda.sh/paused": "true"}}}`)
	r.serve("keda", func(c *config.Config) { c.Listen.KEDA = "127.0.0.1:0" })
	if st, err = r.server.cluster.Hand("chat").State(t.Context()); err != nil || !strings.Contains(st.Blocked, "paused by annotation") {
		t.Errorf("a pause is not seen: %+v %v", st, err)
	}
}

// TestClusterKEDAWake: /scale goes straight to N where the operator lets it.
func TestClusterKEDAWake(t *testing.T) {
	r := newKEDARig(t, "scale", "replicas")
	r.must(0)
	r.reaches(0)
	r.must(5)
	if took := r.reaches(5); took > 2*time.Second {
		t.Errorf("woken after %s", took)
	}
	r.stays(5, 8*time.Second)
}

// TestClusterKEDARetarget: what one replica carries is the target, and a new one
// reaches the HPA by itself; the number that is wanted stays.
func TestClusterKEDARetarget(t *testing.T) {
	r := newKEDARig(t, "owner", "work")
	r.server.cluster.signals.setPerReplica("chat", 4)
	r.must(3)
	r.reaches(3)
	target := func() string {
		o, err := r.c.Dynamic.Resource(resourceOf("autoscaling/v2", "horizontalpodautoscalers")).Namespace(r.ns).Get(t.Context(), "keda-hpa-llm", metav1.GetOptions{})
		if err != nil {
			return err.Error()
		}
		return fmt.Sprint(o.Object["spec"].(map[string]any)["metrics"])
	}
	r.until("the HPA has the target 4", func() bool { return strings.Contains(target(), "averageValue:4 ") })
	r.server.cluster.signals.setPerReplica("chat", 2.5)
	was := 3
	t.Cleanup(func() {
		if t.Failed() {
			t.Log(target())
		}
	})
	took := r.until("the HPA has the target 2.5", func() bool { // in steps that no reader can mistake
		if n := r.replicas(); n != was {
			t.Errorf("%d replicas, want %d throughout", n, was)
			was = n
		}
		return strings.Contains(target(), "averageValue:2.5")
	})
	r.stays(3, 6*time.Second)
	r.shown("T4", "target 4 to 2.5 in %.1f s, 3 replicas throughout", took.Seconds())
}
