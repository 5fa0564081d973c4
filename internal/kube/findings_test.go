// SPDX-License-Identifier: Apache-2.0

package kube

import (
	"fmt"
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/client-go/kubernetes/fake"
	ktesting "k8s.io/client-go/testing"

	"github.com/penstock-project/penstock/internal/diagnose"
)

// writes counts what was asked of the API server about Events.
func writes(c *Cluster) (creates, patches int) {
	for _, a := range c.Pods.(*fake.Clientset).Actions() {
		switch {
		case a.GetResource().Resource != "events":
		case a.GetVerb() == "create":
			creates++
		case a.GetVerb() == "patch":
			patches++
		}
	}
	return creates, patches
}

func reporter(c *Cluster) *Reporter {
	return &Reporter{Cluster: c, Instance: "p-1", Object: func(f *diagnose.Finding) corev1.ObjectReference {
		if f.Object == "nowhere" {
			return corev1.ObjectReference{}
		}
		return corev1.ObjectReference{Kind: "Pod", APIVersion: "v1", Namespace: "ns", Name: f.Object}
	}}
}

func finding(object, code string) diagnose.Finding {
	f := diagnose.New(code, object, "", 0)
	f.Message, f.Remedy = "it is broken", "Mend it."
	return f
}

func TestFindingsBecomeEvents(t *testing.T) {
	c := cluster(nil)
	r := reporter(c)
	now := time.Unix(1_700_000_000, 0)
	found := []diagnose.Finding{finding("vllm-0", "replica-failed"), finding("nowhere", "config-rejected")}
	r.Report(t.Context(), now, found)
	list, err := c.Pods.CoreV1().Events("ns").List(t.Context(), metav1.ListOptions{})
	if err != nil || len(list.Items) != 1 {
		t.Fatalf("%d events, %v", len(list.Items), err)
	}
	e := list.Items[0]
	if e.Reason != "ReplicaFailed" || e.Type != "Warning" || e.InvolvedObject.Name != "vllm-0" || e.Count != 1 || e.Source.Component != "penstock" ||
		!strings.HasPrefix(e.Message, "it is broken. Mend it.") {
		t.Errorf("%+v", e)
	}
	// It stays: nothing is written for ten minutes, then the same Event again.
	for range 40 {
		now = now.Add(15 * time.Second)
		r.Report(t.Context(), now, found)
	}
	if creates, patches := writes(c); creates != 2 || patches != 1 {
		t.Errorf("after ten minutes: %d created, %d patched", creates, patches)
	}
	if e, err := c.Pods.CoreV1().Events("ns").Get(t.Context(), e.Name, metav1.GetOptions{}); err != nil || e.Count != 2 || !e.LastTimestamp.Time.Equal(now) {
		t.Errorf("%+v, %v", e, err)
	}
	// It flaps: at most once a minute.
	for i := range 40 {
		now = now.Add(15 * time.Second)
		if i%2 == 0 {
			r.Report(t.Context(), now, nil)
		} else {
			r.Report(t.Context(), now, found)
		}
	}
	if _, patches := writes(c); patches < 5 || patches > 11 {
		t.Errorf("%d patches while it flapped for ten minutes", patches)
	}
	// Another process writes the same one.
	reporter(c).Report(t.Context(), now, found)
	if list, _ := c.Pods.CoreV1().Events("ns").List(t.Context(), metav1.ListOptions{}); len(list.Items) != 1 {
		t.Errorf("%d events by two processes", len(list.Items))
	}
}

// A fleet that breaks at once must not flood the API server.
func TestEventsAreLimited(t *testing.T) {
	c := cluster(nil)
	r := reporter(c)
	var found []diagnose.Finding
	for i := range 500 {
		found = append(found, finding(fmt.Sprint("pod-", i), "replica-failed"))
	}
	now := time.Unix(1_700_000_000, 0)
	r.Report(t.Context(), now, found)
	if creates, _ := writes(c); creates != burstEvents {
		t.Errorf("%d at once", creates)
	}
	for range 4 {
		now = now.Add(15 * time.Second)
		r.Report(t.Context(), now, found)
	}
	if creates, _ := writes(c); creates != burstEvents+10 {
		t.Errorf("%d within a minute", creates)
	}
	if r.Dropped() == 0 {
		t.Error("what was kept back is not counted")
	}
}

// What is forbidden is said once and not tried at each report.
func TestEventsForbidden(t *testing.T) {
	c := cluster(nil)
	c.Pods.(*fake.Clientset).PrependReactor("create", "events", func(ktesting.Action) (bool, runtime.Object, error) {
		return true, nil, fmt.Errorf("events is forbidden")
	})
	r := reporter(c)
	now := time.Unix(1_700_000_000, 0)
	for range 8 {
		r.Report(t.Context(), now, []diagnose.Finding{finding("vllm-0", "replica-failed")})
		now = now.Add(15 * time.Second)
	}
	if creates, _ := writes(c); creates != 1 {
		t.Errorf("tried %d times", creates)
	}
}

func TestEventMessage(t *testing.T) {
	f := finding("x", "replica-failed")
	f.Message = strings.Repeat("ä", 2000)
	if m := messageOf(&f); len(m) > maxEventMessage || !strings.HasSuffix(m, "...") {
		t.Errorf("%d bytes", len(m))
	}
	if got := eventReason("kv-aware-silently-off"); got != "KvAwareSilentlyOff" {
		t.Error(got)
	}
}
