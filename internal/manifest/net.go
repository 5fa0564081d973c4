// SPDX-License-Identifier: Apache-2.0

package manifest

import (
	"strings"

	"github.com/penstock-project/penstock/internal/diagnose"
)

func readPool(o diagnose.Object, n node, group string) diagnose.Pool {
	spec := n.get("spec")
	p := diagnose.Pool{Object: o, Group: group, TargetPortNumber: spec.intField("targetPortNumber"), SpecAt: spec.mapAt()}
	k, sel := spec.pair("selector")
	if sel.isMap() {
		p.MatchLabels, _ = sel.labels()
		p.FlatSelector = !sel.has("matchLabels", "matchExpressions")
		p.SelectorLine = k.line()
		p.SelectorKey = diagnose.Field[string]{V: "selector", Set: true, At: sel.span(), Key: k.span()}
	}
	for _, t := range spec.get("targetPorts").items() {
		if f := t.intField("number"); f.Set {
			p.TargetPorts = append(p.TargetPorts, f)
		}
	}
	p.Picker = readPicker(spec, "endpointPickerRef")
	p.Extension = readPicker(spec, "extensionRef")
	if k, v := spec.pair("extensionRef"); v.ok() {
		p.ExtensionKey = diagnose.Field[string]{V: "extensionRef", Set: true, At: v.span(), Key: k.span()}
	}
	return p
}

func readPicker(spec node, key string) *diagnose.PickerRef {
	k, v := spec.pair(key)
	if !v.isMap() {
		return nil
	}
	ref := &diagnose.PickerRef{
		Group: v.str("group"), Kind: v.str("kind"), Name: v.str("name"),
		Port: v.get("port").intField("number"), FailureMode: v.strField("failureMode"), At: v.mapAt(), Line: k.line(),
	}
	if !ref.Port.Set {
		ref.Port = v.intField("portNumber")
	}
	return ref
}

func readRoute(o diagnose.Object, n node) diagnose.Route {
	r := diagnose.Route{Object: o}
	for _, rule := range n.get("spec", "rules").items() {
		for _, b := range rule.get("backendRefs").items() {
			r.Backends = append(r.Backends, diagnose.BackendRef{
				Group: b.strField("group"), Kind: b.strField("kind"), Namespace: b.strField("namespace"), Name: b.strField("name"),
				Port: b.intField("port"), Line: b.line(),
			})
		}
		for _, key := range [...]string{"request", "backendRequest"} {
			if f := rule.get("timeouts").secondsField(key); f.Set {
				r.Timeouts = append(r.Timeouts, diagnose.RouteTimeout{Name: key, V: f})
			}
		}
	}
	return r
}

func readService(o diagnose.Object, n node) diagnose.Service {
	s := diagnose.Service{Object: o, Selector: n.get("spec", "selector").pairs()}
	for _, p := range n.get("spec", "ports").items() {
		s.Ports = append(s.Ports, diagnose.ServicePort{
			Name: p.str("name"), Port: p.intField("port").V, Target: p.str("targetPort"), Line: p.line(),
		})
	}
	return s
}

func readMonitor(o diagnose.Object, n node) diagnose.Monitor {
	spec := n.get("spec")
	m := diagnose.Monitor{Object: o, AnyNS: spec.str("namespaceSelector", "any") == "true"}
	m.Selector, m.Exprs = spec.get("selector").labels()
	for _, ns := range spec.get("namespaceSelector", "matchNames").items() {
		m.Namespaces = append(m.Namespaces, ns.text())
	}
	for _, key := range [...]string{"podMetricsEndpoints", "endpoints"} {
		for _, e := range spec.get(key).items() {
			m.Endpoints = append(m.Endpoints, diagnose.MonitorEndpoint{Port: e.strField("port"), Line: e.line()})
		}
	}
	return m
}

func readPDB(o diagnose.Object, n node) diagnose.PDB {
	spec := n.get("spec")
	p := diagnose.PDB{Object: o, MinAvail: spec.strField("minAvailable"), MaxUnv: spec.strField("maxUnavailable")}
	p.Selector, p.Exprs = spec.get("selector").labels()
	return p
}

func (r *reader) adapterRules(n node) {
	add := func(it node) {
		if !it.has("seriesQuery", "metricsQuery") {
			return
		}
		r.set.Objects++
		as := it.str("name", "as")
		if as == "" {
			as = it.str("as")
		}
		r.set.AdapterRules = append(r.set.AdapterRules, diagnose.AdapterRule{
			File: n.d.file, Line: it.line(), As: as,
			SeriesQuery: it.strField("seriesQuery"), MetricsQuery: it.strField("metricsQuery"),
		})
	}
	add(n)
	for _, key := range [...]string{"rules", "externalRules", "custom", "external"} {
		for _, it := range n.get(key).items() {
			add(it)
		}
		for _, sub := range [...]string{"custom", "external"} {
			for _, it := range n.get(key, sub).items() {
				add(it)
			}
		}
	}
}

// isEnvoy reports whether a document is an Envoy bootstrap or a piece of one.
func isEnvoy(n node) bool {
	if n.has("static_resources", "dynamic_resources", "node") && n.has("admin", "static_resources", "node") && !n.has("apiVersion") {
		return true
	}
	t := n.str("@type")
	if strings.HasPrefix(t, "type.googleapis.com/envoy.") {
		return true
	}
	return n.get("resources").isSeq() && anyHas(n.get("resources"), "@type")
}

// envoy walks an Envoy configuration for what the rules look at, wherever it
// stands in the tree.
func (r *reader) envoy(n node) {
	r.set.Objects++
	e := diagnose.Envoy{Object: r.head(n, true)}
	e.Kind = "Envoy"
	e.Name = n.str("node", "id")
	walkEnvoy(&e, n, 0)
	r.set.Envoys = append(r.set.Envoys, e)
}

func walkEnvoy(e *diagnose.Envoy, n node, depth int) {
	if depth > 40 || !n.ok() {
		return
	}
	for _, it := range n.items() {
		walkEnvoy(e, it, depth+1)
	}
	if !n.isMap() {
		return
	}
	switch t := n.str("@type"); {
	case strings.HasSuffix(t, "ext_proc.v3.ExternalProcessor"):
		mode := n.get("processing_mode")
		e.ExtProcs = append(e.ExtProcs, diagnose.ExtProc{
			Cluster: n.str("grpc_service", "envoy_grpc", "cluster_name"), FailOpen: n.boolField("failure_mode_allow"),
			RequestBody: mode.strField("request_body_mode"), ResponseBody: mode.strField("response_body_mode"), Line: n.line(),
		})
	case strings.HasSuffix(t, "HttpConnectionManager"):
		e.HCMs = append(e.HCMs, readHCM(n))
	}
	if n.has("name") && n.has("connect_timeout", "load_assignment", "lb_policy", "type", "cluster_type") && !n.has("typed_config", "filter_chains", "address") {
		e.Clusters = append(e.Clusters, readCluster(n))
	}
	if n.has("match") && n.get("route").isMap() {
		rt := n.get("route")
		e.Routes = append(e.Routes, diagnose.EnvoyRoute{
			Cluster: rt.str("cluster"), Timeout: rt.secondsField("timeout"), Retries: rt.get("retry_policy").isMap(), Line: rt.line(), At: rt.mapAt(),
		})
	}
	n.each(func(_, v node) { walkEnvoy(e, v, depth+1) })
}

func readHCM(n node) diagnose.EnvoyHCM {
	h := diagnose.EnvoyHCM{StreamIdle: n.secondsField("stream_idle_timeout"), Line: n.line()}
	for _, f := range n.get("http_filters").items() {
		if strings.HasSuffix(f.str("typed_config", "@type"), "ext_proc.v3.ExternalProcessor") {
			h.HasExtProc = true
		}
	}
	remove := func(m node) {
		for _, x := range m.get("request_headers_to_remove").items() {
			h.RemoveHeaders = append(h.RemoveHeaders, x.scalar())
		}
	}
	rc := n.get("route_config")
	remove(rc)
	for _, vh := range rc.get("virtual_hosts").items() {
		remove(vh)
		for _, rt := range vh.get("routes").items() {
			remove(rt)
		}
	}
	return h
}

func readCluster(n node) diagnose.EnvoyCluster {
	c := diagnose.EnvoyCluster{
		Name: n.str("name"), OriginalDst: n.str("type") == "ORIGINAL_DST", HeaderName: n.str("original_dst_lb_config", "http_header_name"),
		HealthChecks: len(n.get("health_checks").items()), Line: n.line(), At: n.mapAt(),
	}
	if c.OriginalDst && c.HeaderName == "" && n.str("original_dst_lb_config", "use_http_header") == "true" {
		c.HeaderName = "x-envoy-original-dst-host"
	}
	c.PanicThreshold = n.get("common_lb_config", "healthy_panic_threshold").floatField("value")
	if v := n.get("common_lb_config", "healthy_panic_threshold"); v.ok() {
		c.PanicLine = v.line()
		if v.isMap() && !c.PanicThreshold.Set {
			c.PanicThreshold = diagnose.Field[float64]{Set: true} // {} is zero
		}
	}
	for _, p := range n.get("load_balancing_policy", "policies").items() {
		if strings.Contains(p.str("typed_extension_config", "typed_config", "@type"), "override_host") {
			c.OverrideHost = true
		}
	}
	return c
}
