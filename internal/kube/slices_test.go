// SPDX-License-Identifier: Apache-2.0

package kube

import (
	"testing"

	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/kubernetes/fake"
	ktesting "k8s.io/client-go/testing"
)

// endpoint is one of a slice: ready and terminating are "yes", "no" or "" for unset.
func endpoint(pod, ip, ready, terminating string) discoveryv1.Endpoint {
	flag := func(s string) *bool {
		if s == "" {
			return nil
		}
		b := s == "yes"
		return &b
	}
	e := discoveryv1.Endpoint{Addresses: []string{ip}, Conditions: discoveryv1.EndpointConditions{Ready: flag(ready), Terminating: flag(terminating)}}
	if pod != "" {
		e.TargetRef = &corev1.ObjectReference{Kind: "Pod", Namespace: "ns", Name: pod}
	}
	return e
}

func slice(name, service string, es ...discoveryv1.Endpoint) *discoveryv1.EndpointSlice {
	return &discoveryv1.EndpointSlice{ObjectMeta: metav1.ObjectMeta{Name: name, Namespace: "ns", Labels: map[string]string{ServiceLabel: service}},
		AddressType: discoveryv1.AddressTypeIPv4, Endpoints: es}
}

// What slices say takes readiness away and never gives it.
func TestSlicesOfPods(t *testing.T) {
	pods := []*corev1.Pod{pod("a", "10.0.0.1"), pod("b", "10.0.0.2"), pod("c", "10.0.0.3", unready), pod("d", "10.0.0.4"), pod("e", "10.0.0.5"),
		pod("f-0", "10.0.0.6", func(p *corev1.Pod) { p.UID = "new" })}
	gone := endpoint("f-0", "10.0.0.6", "no", "yes")
	gone.TargetRef.UID = types.UID("old")
	said := readSlices([]*discoveryv1.EndpointSlice{
		slice("1", "svc", endpoint("a", "10.0.0.1", "no", ""), endpoint("b", "10.0.0.2", "no", "yes"), gone),
		slice("2", "headless", endpoint("c", "10.0.0.3", "yes", ""), endpoint("d", "10.0.0.4", "no", "")),
		slice("3", "svc", endpoint("d", "10.0.0.4", "", ""), endpoint("", "10.0.0.5", "no", "")),
	})
	got := map[string]bool{}
	for _, x := range Targets(pods, Selection{Ports: []int{8000}}, said) {
		got[x.ID] = x.Draining
	}
	want := map[string]bool{"ns/b": true, "ns/d": false, "ns/e": false, "ns/f-0": false}
	if len(got) != len(want) {
		t.Errorf("%v, want %v", got, want)
	}
	for id, draining := range want {
		if d, ok := got[id]; !ok || d != draining {
			t.Errorf("%s: there %v, draining %v", id, ok, d)
		}
	}
}

func TestSlicesComeAndGo(t *testing.T) {
	c := cluster([]runtime.Object{pod("a", "10.0.0.1"), pod("b", "10.0.0.2"), slice("svc-1", "svc", endpoint("a", "10.0.0.1", "no", ""), endpoint("b", "10.0.0.2", "yes", ""))})
	sel, _ := labels.Parse("app=vllm")
	told := lists(t, &PodSource{Cluster: c, Slices: true, Select: Selection{Namespace: "ns", Selector: sel, Ports: []int{8000}}})
	comes(t, told, "ns/b@10.0.0.2:8000")
	update := func(s *discoveryv1.EndpointSlice) {
		t.Helper()
		if _, err := c.Pods.DiscoveryV1().EndpointSlices("ns").Update(t.Context(), s, metav1.UpdateOptions{}); err != nil {
			t.Fatal(err)
		}
	}
	update(slice("svc-1", "svc", endpoint("a", "10.0.0.1", "yes", ""), endpoint("b", "10.0.0.2", "no", "yes")))
	comes(t, told, "ns/a@10.0.0.1:8000, ns/b@10.0.0.2:8000 draining")
	if err := c.Pods.DiscoveryV1().EndpointSlices("ns").Delete(t.Context(), "svc-1", metav1.DeleteOptions{}); err != nil {
		t.Fatal(err)
	}
	comes(t, told, "ns/a@10.0.0.1:8000, ns/b@10.0.0.2:8000")
}

// Without the right to see slices pods alone decide.
func TestSlicesForbidden(t *testing.T) {
	c := cluster([]runtime.Object{pod("a", "10.0.0.1"), slice("svc-1", "svc", endpoint("a", "10.0.0.1", "no", ""))})
	c.Pods.(*fake.Clientset).PrependReactor("list", "endpointslices", func(ktesting.Action) (bool, runtime.Object, error) {
		return true, nil, apierrors.NewForbidden(discoveryv1.Resource("endpointslices"), "", nil)
	})
	sel, _ := labels.Parse("app=vllm")
	told := lists(t, &PodSource{Cluster: c, Slices: true, Select: Selection{Namespace: "ns", Selector: sel, Ports: []int{8000}}})
	comes(t, told, "ns/a@10.0.0.1:8000")
}

// The endpoints of a Service, without the right to see a pod.
func TestEndpointsOfAService(t *testing.T) {
	c := cluster([]runtime.Object{
		slice("svc-1", "svc", endpoint("a", "10.0.0.1", "yes", ""), endpoint("b", "10.0.0.2", "no", "")),
		slice("svc-2", "svc", endpoint("a", "10.0.0.1", "yes", ""), endpoint("", "10.0.0.9", "", "")),
		slice("other-1", "other", endpoint("x", "10.0.1.1", "yes", "")),
	})
	sel, _ := labels.Parse(ServiceLabel + "=svc")
	s := &SliceSource{Cluster: c, Select: Selection{Namespace: "ns", Selector: sel, Ports: []int{8000}}}
	told := lists(t, s)
	comes(t, told, "ns/10.0.0.9@10.0.0.9:8000, ns/a@10.0.0.1:8000")
	if _, err := c.Pods.DiscoveryV1().EndpointSlices("ns").Update(t.Context(),
		slice("svc-1", "svc", endpoint("a", "10.0.0.1", "no", "yes"), endpoint("b", "10.0.0.2", "yes", "")), metav1.UpdateOptions{}); err != nil {
		t.Fatal(err)
	}
	comes(t, told, "ns/10.0.0.9@10.0.0.9:8000, ns/a@10.0.0.1:8000 draining, ns/b@10.0.0.2:8000")
	for _, a := range c.Pods.(*fake.Clientset).Actions() {
		if a.GetResource().Resource == "pods" {
			t.Errorf("asked for pods: %v", a)
		}
	}
}
