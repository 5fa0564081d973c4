// SPDX-License-Identifier: Apache-2.0

package metricsapi

import (
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"net/http"
	"strings"
)

// group is one API group with its versions, preferred first.
type group struct {
	name     string
	versions []string
	kind     string // of the answers
	list     func() []resource
}

// resource is one entry of a discovery answer.
type resource struct {
	Name       string   `json:"name"`
	Singular   string   `json:"singularName"`
	Namespaced bool     `json:"namespaced"`
	Kind       string   `json:"kind"`
	Verbs      []string `json:"verbs"`
}

func groups() []group {
	return []group{
		{GroupCustom, []string{"v1beta2", "v1beta1"}, "MetricValueList", customResources},
		{GroupExternal, []string{"v1beta1"}, "ExternalMetricValueList", externalResources},
	}
}

func externalResources() []resource {
	var out []resource
	for _, m := range Catalogue {
		out = append(out, resource{m.Name, "", true, "ExternalMetricValueList", []string{"get"}})
	}
	return out
}

func customResources() []resource {
	var out []resource
	for _, m := range Catalogue {
		if m.Pods {
			out = append(out, resource{"pods/" + m.Name, "", true, "MetricValueList", []string{"get"}})
		}
		for _, kind := range []string{"deployments.apps", "leaderworkersets.leaderworkerset.x-k8s.io", "statefulsets.apps"} {
			out = append(out, resource{kind + "/" + m.Name, "", true, "MetricValueList", []string{"get"}})
		}
	}
	return out
}

// discover answers /apis, /apis/GROUP and /apis/GROUP/VERSION; rest is what follows
// /apis. /apis is also asked for in the form that lists everything at once.
func discover(w http.ResponseWriter, r *http.Request, rest []string) {
	if len(rest) == 0 {
		for _, v := range []string{"v2", "v2beta1"} {
			if accept := r.Header.Get("Accept"); strings.Contains(accept, "g=apidiscovery.k8s.io") && strings.Contains(accept, "v="+v+";") {
				kind := "application/json;g=apidiscovery.k8s.io;v=" + v + ";as=APIGroupDiscoveryList"
				w.Header().Set("Vary", "Accept")
				answerAs(w, http.StatusOK, kind, aggregated(v))
				return
			}
		}
		var list []any
		for _, g := range groups() {
			list = append(list, g.describe())
		}
		answer(w, http.StatusOK, map[string]any{"kind": "APIGroupList", "apiVersion": "v1", "groups": list})
		return
	}
	for _, g := range groups() {
		if g.name != rest[0] {
			continue
		}
		if len(rest) == 1 {
			d := g.describe()
			d["kind"], d["apiVersion"] = "APIGroup", "v1"
			answer(w, http.StatusOK, d)
			return
		}
		for _, v := range g.versions {
			if v == rest[1] {
				answer(w, http.StatusOK, map[string]any{"kind": "APIResourceList", "apiVersion": "v1", "groupVersion": g.name + "/" + v, "resources": g.list()})
				return
			}
		}
	}
	refuse(w, http.StatusNotFound, "NotFound", "there is nothing at "+r.URL.Path)
}

func (g *group) describe() map[string]any {
	version := func(v string) map[string]string {
		return map[string]string{"groupVersion": g.name + "/" + v, "version": v}
	}
	var all []any
	for _, v := range g.versions {
		all = append(all, version(v))
	}
	return map[string]any{"name": g.name, "versions": all, "preferredVersion": version(g.versions[0])}
}

// aggregated is the whole of discovery in one answer, as API servers since 1.27 ask.
func aggregated(version string) any {
	var items []any
	for _, g := range groups() {
		var versions []any
		for _, v := range g.versions {
			var list []any
			for _, r := range g.list() {
				list = append(list, map[string]any{"resource": r.Name, "scope": "Namespaced", "singularResource": "", "verbs": r.Verbs,
					"responseKind": map[string]string{"group": g.name, "version": v, "kind": r.Kind}})
			}
			versions = append(versions, map[string]any{"version": v, "freshness": "Current", "resources": list})
		}
		items = append(items, map[string]any{"metadata": map[string]string{"name": g.name}, "versions": versions})
	}
	return map[string]any{"kind": "APIGroupDiscoveryList", "apiVersion": "apidiscovery.k8s.io/" + version, "metadata": map[string]any{}, "items": items}
}

// openAPI answers with what a client can do with the groups: GET.
func (s *Server) openAPI(w http.ResponseWriter, r *http.Request) {
	switch p := strings.Trim(r.URL.Path, "/"); {
	case p == "openapi/v2":
		answer(w, http.StatusOK, map[string]any{"swagger": "2.0", "info": info(), "paths": paths(""), "definitions": map[string]any{}})
	case p == "openapi/v3":
		list := map[string]any{}
		for _, g := range groups() {
			for _, v := range g.versions {
				at := "apis/" + g.name + "/" + v
				list[at] = map[string]string{"serverRelativeURL": "/openapi/v3/" + at + "?hash=" + hash(document(at))}
			}
		}
		answer(w, http.StatusOK, map[string]any{"paths": list})
	default:
		at := strings.TrimPrefix(p, "openapi/v3/")
		if doc := document(at); doc != nil {
			answer(w, http.StatusOK, doc)
			return
		}
		refuse(w, http.StatusNotFound, "NotFound", "there is nothing at "+r.URL.Path)
	}
}

func info() map[string]string {
	return map[string]string{"title": "Penstock metrics", "version": "v1"}
}

// document is the OpenAPI 3 document of one version of a group; nil where there is
// none.
func document(at string) any {
	p := paths(at)
	if len(p) == 0 {
		return nil
	}
	return map[string]any{"openapi": "3.0.0", "info": info(), "paths": p, "components": map[string]any{}}
}

// paths are the operations under a prefix; "" is all, with parameters as OpenAPI 2
// has them.
func paths(prefix string) map[string]any {
	out := map[string]any{}
	for _, g := range groups() {
		for _, v := range g.versions {
			at := "apis/" + g.name + "/" + v
			if prefix != "" && prefix != at {
				continue
			}
			tail, params := "/namespaces/{namespace}/{metric}", []string{"namespace", "metric"}
			if g.name == GroupCustom {
				tail, params = "/namespaces/{namespace}/{resource}/{name}/{metric}", []string{"namespace", "resource", "name", "metric"}
			}
			var list []any
			for _, name := range params {
				p := map[string]any{"name": name, "in": "path", "required": true}
				if prefix == "" {
					p["type"] = "string"
				} else {
					p["schema"] = map[string]string{"type": "string"}
				}
				list = append(list, p)
			}
			gvk := map[string]string{"group": g.name, "version": v, "kind": g.kind}
			out["/"+at+tail] = map[string]any{"parameters": list, "get": map[string]any{
				"description": "read a metric", "operationId": "read" + strings.ReplaceAll(strings.ReplaceAll(at, "/", ""), ".", ""),
				"responses": map[string]any{"200": map[string]any{"description": "OK"}}, "x-kubernetes-action": "get", "x-kubernetes-group-version-kind": gvk}}
		}
	}
	return out
}

func hash(v any) string {
	b, _ := json.Marshal(v) // maps come out in the order of their keys
	sum := sha256.Sum256(b)
	return hex.EncodeToString(sum[:16])
}
