// SPDX-License-Identifier: Apache-2.0

package kube

import (
	"cmp"
	"context"
	"slices"
	"strings"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime/schema"
)

// compatGroups are the API groups in which objectives and rewrites stand: that of
// llm-d, and the one they had in the extension.
var compatGroups = []string{"llm-d.ai", "inference.networking.x-k8s.io"}

const compatVersion = "v1alpha2"

// CompatResources are all resources that Compat is read from.
func CompatResources() []schema.GroupVersionResource {
	var out []schema.GroupVersionResource
	for _, g := range compatGroups {
		for _, r := range []string{"inferenceobjectives", "inferencemodelrewrites"} {
			out = append(out, schema.GroupVersionResource{Group: g, Version: compatVersion, Resource: r})
		}
	}
	return out
}

// Compat is what the InferenceObjectives and InferenceModelRewrites of a pool say.
// They are read and never written. The zero value says nothing.
type Compat struct {
	priorities map[string]int // by the name of the objective
	levels     []int          // distinct priorities, the highest first; 0 is one of them
	rewrites   []rewrite      // in their precedence
}

// rewrite is one rule; without models it is for any.
type rewrite struct {
	models  []string
	targets []target
	created time.Time
}

type target struct {
	model  string
	weight int
}

// Class returns the priority class of requests that name an objective, 0 the most
// urgent. An objective that nobody knows, and none, has priority 0.
func (c *Compat) Class(objective string) uint8 {
	i := slices.Index(c.levels, c.priorities[objective])
	return uint8(min(max(i, 0), 255))
}

// Rewrite returns the model that a rule puts in place of one that a client asked
// for. exact says that the rule names it. Among weighted targets key decides; a key
// that spreads evenly gives each its share.
func (c *Compat) Rewrite(model string, key uint64) (to string, exact, ok bool) {
	for i := range c.rewrites {
		r := &c.rewrites[i]
		if exact = len(r.models) > 0; exact && !slices.Contains(r.models, model) {
			continue
		}
		sum := 0
		for _, t := range r.targets {
			sum += t.weight
		}
		at := int(key % uint64(sum))
		for _, t := range r.targets {
			if at -= t.weight; at < 0 {
				return t.model, exact, true
			}
		}
	}
	return "", false, false
}

// ReadCompat turns the objects that refer to a pool into rules. Objects of other
// pools, and rules that say nothing, are left out.
func ReadCompat(pool string, objects []unstructured.Unstructured) *Compat {
	c := &Compat{priorities: map[string]int{}, levels: []int{0}}
	for i := range objects {
		o := &objects[i]
		if ref, _, _ := unstructured.NestedString(o.Object, "spec", "poolRef", "name"); ref != pool {
			continue
		}
		switch o.GetKind() {
		case "InferenceObjective":
			p, _, _ := unstructured.NestedInt64(o.Object, "spec", "priority")
			c.priorities[o.GetName()] = int(p)
			if !slices.Contains(c.levels, int(p)) {
				c.levels = append(c.levels, int(p))
			}
		case "InferenceModelRewrite":
			rules, _, _ := unstructured.NestedSlice(o.Object, "spec", "rules")
			for _, r := range rules {
				if w, ok := readRewrite(r, o.GetCreationTimestamp().Time); ok {
					c.rewrites = append(c.rewrites, w)
				}
			}
		}
	}
	slices.SortFunc(c.levels, func(a, b int) int { return cmp.Compare(b, a) })
	// Rules that name a model come before those for any, older ones before newer, and
	// the order of the list decides among the rest.
	slices.SortStableFunc(c.rewrites, func(a, b rewrite) int {
		if (len(a.models) > 0) != (len(b.models) > 0) {
			return cmp.Compare(len(b.models), len(a.models))
		}
		return a.created.Compare(b.created)
	})
	return c
}

func readRewrite(rule any, created time.Time) (rewrite, bool) {
	m, ok := rule.(map[string]any)
	if !ok {
		return rewrite{}, false
	}
	out := rewrite{created: created}
	matches, _, _ := unstructured.NestedSlice(m, "matches")
	for _, x := range matches {
		mm, _ := x.(map[string]any)
		if v, ok, _ := unstructured.NestedString(mm, "model", "value"); ok {
			out.models = append(out.models, v)
		}
	}
	targets, _, _ := unstructured.NestedSlice(m, "targets")
	for _, x := range targets {
		mm, _ := x.(map[string]any)
		t := target{weight: 1}
		t.model, _, _ = unstructured.NestedString(mm, "modelRewrite")
		if w, ok, _ := unstructured.NestedInt64(mm, "weight"); ok {
			t.weight = int(w)
		}
		if t.model != "" && t.weight > 0 {
			out.targets = append(out.targets, t)
		}
	}
	// A match that is no model would make the rule one for any.
	return out, len(out.targets) > 0 && len(out.models) == len(matches)
}

// compatEvery is the time between two looks: these objects are few and change by
// hand.
const compatEvery = 10 * time.Second

// followCompat reads the objects of the pool again and again until ctx ends, and
// tells of each change. Clusters without these resources, and accounts that may not
// read them, are the normal case.
func (s *PoolSource) followCompat(ctx context.Context) {
	t := time.NewTicker(compatEvery)
	defer t.Stop()
	last, told := "", map[string]bool{}
	for {
		objects, ok := s.compatObjects(ctx, told)
		if id := fingerprint(objects); ok && id != last {
			last = id
			s.Compat(ReadCompat(s.Name, objects))
		}
		select {
		case <-ctx.Done():
			return
		case <-t.C:
		}
	}
}

// compatObjects lists the objects; ok is false while the API server does not answer,
// when what was known stays.
func (s *PoolSource) compatObjects(ctx context.Context, told map[string]bool) (all []unstructured.Unstructured, ok bool) {
	for _, r := range CompatResources() {
		list, err := s.Cluster.Dynamic.Resource(r).Namespace(s.Namespace).List(ctx, metav1.ListOptions{})
		switch {
		case err == nil:
			all = append(all, list.Items...)
		case apierrors.IsNotFound(err):
		case apierrors.IsForbidden(err):
			if !told[r.String()] {
				told[r.String()] = true
				s.Cluster.Log.Info("may not be read and is left out", "resource", r.GroupResource().String(), "namespace", s.Namespace)
			}
		default:
			return nil, false
		}
	}
	return all, true
}

// fingerprint changes whenever an object does.
func fingerprint(objects []unstructured.Unstructured) string {
	var ids []string
	for i := range objects {
		o := &objects[i]
		ids = append(ids, o.GetAPIVersion()+" "+o.GetKind()+" "+o.GetName()+" "+string(o.GetUID())+" "+o.GetResourceVersion())
	}
	slices.Sort(ids)
	return strings.Join(ids, "\n")
}
