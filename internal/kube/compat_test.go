// SPDX-License-Identifier: Apache-2.0

package kube

import (
	"testing"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
)

func thing(kind, name, pool string, age time.Duration, spec map[string]any) unstructured.Unstructured {
	spec["poolRef"] = map[string]any{"name": pool}
	u := unstructured.Unstructured{Object: map[string]any{"apiVersion": "llm-d.ai/v1alpha2", "kind": kind, "spec": spec}}
	u.SetName(name)
	u.SetCreationTimestamp(metav1.NewTime(time.Unix(1e9, 0).Add(-age)))
	return u
}

func rule(models []string, targets ...any) map[string]any {
	r := map[string]any{"targets": targets}
	var ms []any
	for _, m := range models {
		ms = append(ms, map[string]any{"model": map[string]any{"type": "Exact", "value": m}})
	}
	if ms != nil {
		r["matches"] = ms
	}
	return r
}

func to(model string, weight int64) map[string]any {
	t := map[string]any{"modelRewrite": model}
	if weight > 0 {
		t["weight"] = weight
	}
	return t
}

func TestObjectivesBecomeClasses(t *testing.T) {
	c := ReadCompat("chat", []unstructured.Unstructured{
		thing("InferenceObjective", "batch", "chat", 0, map[string]any{"priority": int64(-10)}),
		thing("InferenceObjective", "urgent", "chat", 0, map[string]any{"priority": int64(100)}),
		thing("InferenceObjective", "plain", "chat", 0, map[string]any{}),
		thing("InferenceObjective", "elsewhere", "other", 0, map[string]any{"priority": int64(1000)}),
	})
	for name, want := range map[string]uint8{"urgent": 0, "plain": 1, "": 1, "nobody": 1, "elsewhere": 1, "batch": 2} {
		if got := c.Class(name); got != want {
			t.Errorf("%q: class %d, want %d", name, got, want)
		}
	}
	var none Compat
	if none.Class("x") != 0 {
		t.Error("without objectives there is one class")
	}
}

func TestRewritesHaveAPrecedence(t *testing.T) {
	c := ReadCompat("chat", []unstructured.Unstructured{
		thing("InferenceModelRewrite", "any", "chat", time.Hour, map[string]any{"rules": []any{rule(nil, to("fallback", 0))}}),
		thing("InferenceModelRewrite", "new", "chat", 0, map[string]any{"rules": []any{rule([]string{"a"}, to("new-a", 0))}}),
		thing("InferenceModelRewrite", "old", "chat", time.Minute, map[string]any{"rules": []any{
			rule([]string{"a", "b"}, to("old-a", 0)), rule([]string{"c"}, to("x", 1), to("y", 3)),
			map[string]any{"matches": []any{map[string]any{}}, "targets": []any{to("nothing", 0)}}, rule([]string{"d"}),
		}}),
		thing("InferenceModelRewrite", "foreign", "other", time.Hour, map[string]any{"rules": []any{rule([]string{"a"}, to("no", 0))}}),
	})
	for model, want := range map[string]string{"a": "old-a", "b": "old-a", "d": "fallback", "z": "fallback"} {
		if got, exact, ok := c.Rewrite(model, 7); got != want || !ok || exact != (want != "fallback") {
			t.Errorf("%s: %q (exact %v, %v), want %q", model, got, exact, ok, want)
		}
	}
	seen := map[string]int{}
	for key := range uint64(400) {
		m, _, _ := c.Rewrite("c", key)
		seen[m]++
	}
	if seen["x"] != 100 || seen["y"] != 300 {
		t.Errorf("shares %v, want 1 to 3", seen)
	}
	if _, _, ok := (&Compat{}).Rewrite("a", 1); ok {
		t.Error("no rule, and yet a rewrite")
	}
}
