// SPDX-License-Identifier: Apache-2.0

package kube

import (
	"context"
	"encoding/json"
	"fmt"
	"slices"
	"strings"
	"sync"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/runtime/schema"
)

// Target names an object with the subresource /scale.
type Target struct {
	APIVersion string // "" is found out from Kind
	Kind       string
	Namespace  string
	Name       string
}

func (t Target) String() string { return t.Kind + " " + t.Namespace + "/" + t.Name }

// wellKnown are the kinds whose resource needs no discovery.
var wellKnown = map[string]schema.GroupVersionResource{
	"deployment":      {Group: "apps", Version: "v1", Resource: "deployments"},
	"statefulset":     {Group: "apps", Version: "v1", Resource: "statefulsets"},
	"replicaset":      {Group: "apps", Version: "v1", Resource: "replicasets"},
	"leaderworkerset": {Group: "leaderworkerset.x-k8s.io", Version: "v1", Resource: "leaderworkersets"},
}

// Resource finds the resource of a target, with /scale.
func (c *Cluster) Resource(t Target) (schema.GroupVersionResource, error) {
	if gvr, ok := wellKnown[strings.ToLower(t.Kind)]; ok && (t.APIVersion == "" || t.APIVersion == gvr.GroupVersion().String()) {
		return gvr, nil
	}
	_, lists, err := c.Pods.Discovery().ServerGroupsAndResources()
	if len(lists) == 0 && err != nil {
		return schema.GroupVersionResource{}, err
	}
	var found []schema.GroupVersionResource
	for _, list := range lists {
		gv, err := schema.ParseGroupVersion(list.GroupVersion)
		if err != nil || t.APIVersion != "" && t.APIVersion != list.GroupVersion {
			continue
		}
		scale := map[string]bool{}
		for i := range list.APIResources {
			if name, ok := strings.CutSuffix(list.APIResources[i].Name, "/scale"); ok {
				scale[name] = true
			}
		}
		for i := range list.APIResources {
			if r := &list.APIResources[i]; strings.EqualFold(r.Kind, t.Kind) && scale[r.Name] {
				found = append(found, gv.WithResource(r.Name))
			}
		}
	}
	switch {
	case len(found) == 0:
		return schema.GroupVersionResource{}, fmt.Errorf("this cluster has no kind %s %s with the subresource scale", t.APIVersion, t.Kind)
	case t.APIVersion == "" && different(found):
		return schema.GroupVersionResource{}, fmt.Errorf("several groups have a kind %s: say scale.target.apiVersion", t.Kind)
	}
	return found[0], nil
}

func different(all []schema.GroupVersionResource) bool {
	for _, r := range all {
		if r.Group != all[0].Group {
			return true
		}
	}
	return false
}

// scaleState is one reading of a /scale.
type scaleState struct {
	spec, status int
	selector     labels.Selector
	uid          string
	object       *unstructured.Unstructured // to be written back in this version
}

// scaler reads and writes the /scale of one target.
type scaler struct {
	c *Cluster
	t Target

	mu  sync.Mutex
	gvr schema.GroupVersionResource
}

func (s *scaler) resource() (schema.GroupVersionResource, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.gvr.Resource != "" {
		return s.gvr, nil
	}
	gvr, err := s.c.Resource(s.t)
	if err == nil {
		s.gvr = gvr
	}
	return gvr, err
}

func (s *scaler) read(ctx context.Context) (*scaleState, error) {
	gvr, err := s.resource()
	if err != nil {
		return nil, err
	}
	o, err := s.c.Dynamic.Resource(gvr).Namespace(s.t.Namespace).Get(ctx, s.t.Name, metav1.GetOptions{}, "scale")
	if err != nil {
		return nil, fmt.Errorf("%s: %w", s.t, err)
	}
	s.c.touch()
	st := &scaleState{uid: string(o.GetUID()), object: o}
	spec, _, _ := unstructured.NestedInt64(o.Object, "spec", "replicas")
	status, _, _ := unstructured.NestedInt64(o.Object, "status", "replicas")
	st.spec, st.status = int(spec), int(status)
	text, _, _ := unstructured.NestedString(o.Object, "status", "selector")
	if st.selector, err = labels.Parse(text); err != nil || text == "" {
		st.selector = labels.Nothing()
	}
	return st, nil
}

// write sets the replicas in the version that was read: where anybody changed the
// object since, it fails with a conflict.
func (s *scaler) write(ctx context.Context, st *scaleState, n int) error {
	gvr, err := s.resource()
	if err != nil {
		return err
	}
	o := st.object.DeepCopy()
	if err := unstructured.SetNestedField(o.Object, int64(n), "spec", "replicas"); err != nil {
		return err
	}
	_, err = s.c.Dynamic.Resource(gvr).Namespace(s.t.Namespace).Update(ctx, o, metav1.UpdateOptions{FieldManager: manager}, "scale")
	if err != nil {
		return fmt.Errorf("%s: %w", s.t, err)
	}
	return nil
}

// movers are the field managers that own spec.replicas, latest first. /scale does not
// tell them, the object itself does.
func (s *scaler) movers(ctx context.Context) ([]mover, error) {
	gvr, err := s.resource()
	if err != nil {
		return nil, err
	}
	o, err := s.c.Dynamic.Resource(gvr).Namespace(s.t.Namespace).Get(ctx, s.t.Name, metav1.GetOptions{})
	if err != nil {
		return nil, fmt.Errorf("%s: %w", s.t, err)
	}
	return moversOf(o.GetManagedFields()), nil
}

func moversOf(fields []metav1.ManagedFieldsEntry) []mover {
	var out []mover
	for _, m := range fields {
		var owned struct {
			Spec map[string]json.RawMessage `json:"f:spec"`
		}
		if m.FieldsV1 == nil || json.Unmarshal(m.FieldsV1.GetRawBytes(), &owned) != nil {
			continue
		}
		if _, ok := owned.Spec["f:replicas"]; !ok {
			continue
		}
		v := mover{name: m.Manager, apply: m.Operation == metav1.ManagedFieldsOperationApply}
		if m.Time != nil {
			v.at = m.Time.Time
		}
		out = append(out, v)
	}
	// A write of /scale carries no time; it is the latest that is known.
	slices.SortStableFunc(out, func(a, b mover) int {
		if a.at.IsZero() != b.at.IsZero() {
			if a.at.IsZero() {
				return -1
			}
			return 1
		}
		return b.at.Compare(a.at)
	})
	return out
}

// Replicas reads how many replicas are asked for of a target.
func (c *Cluster) Replicas(ctx context.Context, t Target) (int, error) {
	st, err := (&scaler{c: c, t: t}).read(ctx)
	if err != nil {
		return 0, err
	}
	return st.spec, nil
}

// Serves reports whether the API server has a resource.
func (c *Cluster) Serves(groupVersion, resource string) (bool, error) {
	l, err := c.Pods.Discovery().ServerResourcesForGroupVersion(groupVersion)
	if apierrors.IsNotFound(err) {
		return false, nil
	}
	if err != nil {
		return false, err
	}
	return slices.ContainsFunc(l.APIResources, func(r metav1.APIResource) bool { return r.Name == resource }), nil
}

// FailureMode is what an InferencePool says about a picker that is down; "" nothing.
func (c *Cluster) FailureMode(ctx context.Context, ns, name string) (string, error) {
	o, err := c.Dynamic.Resource(PoolResource).Namespace(ns).Get(ctx, name, metav1.GetOptions{})
	if err != nil {
		return "", err
	}
	mode, _, err := unstructured.NestedString(o.Object, "spec", "endpointPickerRef", "failureMode")
	return mode, err
}

// WeakReadiness says what is wrong with the readiness probes of the pods of a target;
// "" where a container asks its engine by HTTP.
func (c *Cluster) WeakReadiness(ctx context.Context, t Target) (string, error) {
	gvr, err := c.Resource(t)
	if err != nil {
		return "", err
	}
	o, err := c.Dynamic.Resource(gvr).Namespace(t.Namespace).Get(ctx, t.Name, metav1.GetOptions{})
	if err != nil {
		return "", err
	}
	list, ok, _ := unstructured.NestedSlice(o.Object, "spec", "template", "spec", "containers")
	if !ok {
		return "", nil // a kind whose pods are described elsewhere
	}
	tcp := false
	for _, x := range list {
		m, ok := x.(map[string]any)
		if !ok {
			continue
		}
		p, ok := m["readinessProbe"].(map[string]any)
		if !ok {
			continue
		}
		if p["httpGet"] != nil || p["exec"] != nil {
			return "", nil
		}
		tcp = tcp || p["tcpSocket"] != nil
	}
	if tcp {
		return "the readiness probe only opens the port, which is open before the model is loaded", nil
	}
	return "no container has a readiness probe: a pod is Ready as soon as it runs", nil
}
