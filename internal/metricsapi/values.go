// SPDX-License-Identifier: Apache-2.0

package metricsapi

import (
	"fmt"
	"math"
	"net/http"
	"slices"
	"strconv"
	"strings"
	"time"

	"k8s.io/apimachinery/pkg/labels"
)

// externalValue is an item of an ExternalMetricValueList.
type externalValue struct {
	MetricName   string            `json:"metricName"`
	MetricLabels map[string]string `json:"metricLabels"`
	Timestamp    string            `json:"timestamp"`
	Value        string            `json:"value"`
}

// object names what a custom metric is of.
type object struct{ namespace, resource, name string }

// known reports whether a reading can be given out.
func (s *Server) known(r Reading) bool {
	return !r.At.IsZero() && s.o.Now().Sub(r.At) <= s.o.MaxAge && !math.IsNaN(r.Value) && !math.IsInf(r.Value, 0)
}

// external answers a metric of the pools of a namespace. Its items are added up by
// an HPA, so numbers that must not be are given for one pool only.
func (s *Server) external(w http.ResponseWriter, r *http.Request, who Subject, ns, name string) {
	if !s.authorize(w, r, who, Question{"list", GroupExternal, name, ns}) {
		return
	}
	m, ok := lookup(name)
	if !ok {
		refuse(w, http.StatusNotFound, "NotFound", fmt.Sprintf("there is no metric %q; there are %s", name, names()))
		return
	}
	sel, err := labels.Parse(r.URL.Query().Get("labelSelector"))
	if err != nil {
		refuse(w, http.StatusBadRequest, "BadRequest", "labelSelector: "+err.Error())
		return
	}
	items, matched := []externalValue{}, []string{}
	for _, p := range s.o.Pools() {
		if p.Namespace != ns || !sel.Matches(labels.Set(p.Labels)) {
			continue
		}
		matched = append(matched, p.Name)
		if v := p.Metrics[name]; s.known(v) {
			items = append(items, externalValue{name, p.Labels, stamp(v.At), quantity(v.Value)})
		}
	}
	switch {
	case len(matched) == 0:
		refuse(w, http.StatusNotFound, "NotFound", fmt.Sprintf("no pool in namespace %q matches %q; pools: %s", ns, sel, s.poolList(ns)))
		return
	case len(matched) > 1 && !m.Sum:
		refuse(w, http.StatusBadRequest, "BadRequest", fmt.Sprintf("%s is of one pool, and an HPA would add up those of %s: select one with matchLabels {pool: %s}", name, strings.Join(matched, ", "), matched[0]))
		return
	}
	answer(w, http.StatusOK, map[string]any{"kind": "ExternalMetricValueList", "apiVersion": GroupExternal + "/v1beta1", "metadata": map[string]any{}, "items": items})
}

// poolList names the pools of a namespace: who may read one is not told of others.
func (s *Server) poolList(ns string) string {
	var out []string
	for _, p := range s.o.Pools() {
		if p.Namespace == ns {
			out = append(out, ns+"/"+p.Name)
		}
	}
	if len(out) == 0 {
		return "none"
	}
	return strings.Join(out, ", ")
}

// custom answers a metric of pods, or of the object that runs a pool.
func (s *Server) custom(w http.ResponseWriter, r *http.Request, who Subject, version string, o object, name string) {
	if !s.authorize(w, r, who, Question{"get", GroupCustom, o.resource + "/" + name, o.namespace}) {
		return
	}
	m, ok := lookup(name)
	if !ok || o.resource == "pods" && !m.Pods {
		refuse(w, http.StatusNotFound, "NotFound", fmt.Sprintf("there is no metric %q of %s; there are %s", name, o.resource, names()))
		return
	}
	only := []string{o.name}
	if o.resource == "pods" && o.name == "*" {
		var err error
		if only, err = s.o.Pods(r.Context(), o.namespace, r.URL.Query().Get("labelSelector")); err != nil {
			refuse(w, http.StatusInternalServerError, "InternalError", err.Error())
			return
		}
	}
	items, found := []any{}, false
	for _, p := range s.o.Pools() {
		if p.Namespace != o.namespace {
			continue
		}
		if o.resource != "pods" {
			if p.Object == o.resource+"/"+o.name {
				found = true
				items = s.item(items, version, o, p.Metrics[name], name)
			}
			continue
		}
		for _, pod := range p.Pods {
			if slices.Contains(only, pod.Name) {
				found = true
				items = s.item(items, version, object{o.namespace, "pods", pod.Name}, pod.Metrics[name], name)
			}
		}
	}
	if !found {
		refuse(w, http.StatusNotFound, "NotFound", fmt.Sprintf("no pool knows %s %s in namespace %q", o.resource, o.name, o.namespace))
		return
	}
	answer(w, http.StatusOK, map[string]any{"kind": "MetricValueList", "apiVersion": GroupCustom + "/" + version, "metadata": map[string]any{}, "items": items})
}

// kinds are the kinds and versions behind the resources of object metrics.
var kinds = map[string][2]string{
	"pods":             {"Pod", "/v1"},
	"deployments.apps": {"Deployment", "apps/v1"}, "statefulsets.apps": {"StatefulSet", "apps/v1"},
	"leaderworkersets.leaderworkerset.x-k8s.io": {"LeaderWorkerSet", "leaderworkerset.x-k8s.io/v1"},
}

func (s *Server) item(items []any, version string, o object, v Reading, name string) []any {
	if !s.known(v) {
		return items
	}
	kind := kinds[o.resource]
	it := map[string]any{
		"describedObject": map[string]string{"kind": kind[0], "namespace": o.namespace, "name": o.name, "apiVersion": kind[1]},
		"timestamp":       stamp(v.At), "value": quantity(v.Value),
	}
	if version == "v1beta1" {
		it["metricName"] = name
	} else {
		it["metric"] = map[string]any{"name": name}
	}
	return append(items, it)
}

func stamp(t time.Time) string { return t.UTC().Format(time.RFC3339) }

// quantity prints a number as a Kubernetes quantity, to the thousandth, upwards, so
// that a small demand does not become none.
func quantity(v float64) string {
	milli := math.Ceil(v*1000 - 1e-6)
	if math.Abs(milli) >= 1e15 {
		return strconv.FormatFloat(math.Round(v), 'f', 0, 64)
	}
	if n := int64(milli); n%1000 != 0 {
		return strconv.FormatInt(n, 10) + "m"
	}
	return strconv.FormatInt(int64(milli)/1000, 10)
}

// PoolLabels returns the labels that selectors match: the name of the pool and,
// where it has exactly one, its model.
func PoolLabels(pool string, models []string) map[string]string {
	out := map[string]string{"pool": pool}
	if len(models) == 1 {
		out["model"] = labelValue(models[0])
	}
	return out
}

// labelValue makes a model's name fit for a label: what it may not hold becomes "_".
func labelValue(s string) string {
	s = strings.Map(func(r rune) rune {
		if r >= 'a' && r <= 'z' || r >= 'A' && r <= 'Z' || r >= '0' && r <= '9' || r == '-' || r == '_' || r == '.' {
			return r
		}
		return '_'
	}, s)
	if len(s) > 63 {
		s = s[:63]
	}
	return strings.Trim(s, "-_.")
}
