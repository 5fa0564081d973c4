// SPDX-License-Identifier: Apache-2.0

package kube

import (
	"bufio"
	"bytes"
	"context"
	"errors"
	"io"
	"strings"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/yaml"
)

// Trial is what the API server said of one object in a dry run.
type Trial struct {
	Object string // Kind namespace/name
	// Refused is why the API server would not take it; "" where it would, or where it
	// cannot say.
	Refused string
	// Unknown is why it cannot say: the kind or the namespace is not there, or the
	// right to try is missing.
	Unknown string
}

// Try applies the objects of a YAML stream on the server side without persisting
// anything, strictly: a field that the API does not know is refused. Documents that
// are no objects are passed over. An error means that the API server is not there.
func (c *Cluster) Try(ctx context.Context, text []byte) ([]Trial, error) {
	r := yaml.NewYAMLReader(bufio.NewReader(bytes.NewReader(text)))
	kinds := map[schema.GroupVersion]*metav1.APIResourceList{}
	var out []Trial
	for {
		doc, err := r.Read()
		if errors.Is(err, io.EOF) {
			return out, nil
		}
		if err != nil {
			return out, nil // what cannot be read was said before
		}
		raw, err := yaml.ToJSON(doc)
		if err != nil {
			continue
		}
		u := &unstructured.Unstructured{}
		if u.UnmarshalJSON(raw) != nil || u.GetName() == "" || u.IsList() {
			continue
		}
		t, err := c.try(ctx, u, raw, kinds)
		if err != nil {
			return out, err
		}
		out = append(out, t)
	}
}

// fieldManager is whose fields a dry run sets; nothing of it is kept.
const fieldManager = "penstock-lint"

func (c *Cluster) try(ctx context.Context, u *unstructured.Unstructured, raw []byte, kinds map[schema.GroupVersion]*metav1.APIResourceList) (Trial, error) {
	gvk := u.GroupVersionKind()
	ns := u.GetNamespace()
	if ns == "" {
		ns = c.Namespace
	}
	t := Trial{Object: gvk.Kind + " " + u.GetName()}
	list, ok := kinds[gvk.GroupVersion()]
	if !ok {
		var err error
		list, err = c.Pods.Discovery().ServerResourcesForGroupVersion(gvk.GroupVersion().String())
		switch {
		case apierrors.IsNotFound(err):
			list = &metav1.APIResourceList{}
		case err != nil:
			return t, err
		}
		kinds[gvk.GroupVersion()] = list
	}
	var res *metav1.APIResource
	for i := range list.APIResources {
		if r := &list.APIResources[i]; r.Kind == gvk.Kind && !strings.Contains(r.Name, "/") {
			res = r
		}
	}
	if res == nil {
		t.Unknown = "the API server knows no " + gvk.Kind + " of " + gvk.GroupVersion().String()
		return t, nil
	}
	in := c.Dynamic.Resource(gvk.GroupVersion().WithResource(res.Name))
	force := true
	o := metav1.PatchOptions{DryRun: []string{metav1.DryRunAll}, FieldManager: fieldManager, Force: &force, FieldValidation: metav1.FieldValidationStrict}
	var err error
	if res.Namespaced {
		t.Object = gvk.Kind + " " + ns + "/" + u.GetName()
		_, err = in.Namespace(ns).Patch(ctx, u.GetName(), types.ApplyPatchType, raw, o)
	} else {
		_, err = in.Patch(ctx, u.GetName(), types.ApplyPatchType, raw, o)
	}
	switch {
	case err == nil:
	case apierrors.IsForbidden(err), apierrors.IsUnauthorized(err), apierrors.IsNotFound(err), apierrors.IsMethodNotSupported(err):
		t.Unknown = err.Error()
	default:
		var answer apierrors.APIStatus
		if !errors.As(err, &answer) {
			return t, err // nobody answered
		}
		t.Refused = err.Error()
	}
	return t, nil
}
