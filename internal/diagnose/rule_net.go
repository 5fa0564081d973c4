// SPDX-License-Identifier: Apache-2.0

package diagnose

import (
	"fmt"
	"slices"
	"strings"
)

// destinationHeader is the header by which an endpoint picker names its choice.
const destinationHeader = "x-gateway-destination-endpoint"

// checkMonitors finds monitors that scrape nothing: a port name that no container
// has, a label that is all but right.
func checkMonitors(s *Set, k *sink) {
	for i := range s.Monitors {
		m := &s.Monitors[i]
		if m.Exprs || len(m.Selector) == 0 {
			continue
		}
		var names []string
		near, found := "", false
		look := func(o *Object, labels Pairs, ports []string) {
			if !m.AnyNS && len(m.Namespaces) == 0 && !sameNamespace(o.Namespace, m.Namespace) ||
				len(m.Namespaces) > 0 && o.Namespace != "" && !slices.Contains(m.Namespaces, o.Namespace) {
				return
			}
			if matches(labels, m.Selector) {
				found = true
				names = append(names, ports...)
			} else if n := nearMiss(labels, m.Selector); n != "" && near == "" {
				near = n
			}
		}
		if m.Kind == "PodMonitor" {
			for j := range s.Workloads {
				w := &s.Workloads[j]
				look(&w.Object, w.Pod.Labels, podPorts(&w.Pod))
			}
		} else {
			for j := range s.Services {
				v := &s.Services[j]
				look(&v.Object, v.Labels, servicePorts(v))
			}
		}
		switch {
		case !found && near != "":
			f := at(&m.Object, m.Selector[0].Value.At.Line, "monitor-selects-nothing")
			f.Evidence = []Evidence{{Name: "selector", Value: labelText(m.Selector)}, {Name: "near_miss", Value: near}}
			f.Message = "the selector " + labelText(m.Selector) + " matches nothing beside it; the labels are " + near + ": no metric arrives, and what scales on it reads nothing"
			f.Remedy = near
			k.add(f)
		case found:
			monitorPorts(k, m, names)
		}
	}
}

func monitorPorts(k *sink, m *Monitor, names []string) {
	for _, e := range m.Endpoints {
		if !e.Port.Set || slices.Contains(names, e.Port.V) {
			continue
		}
		have := strings.Join(names, ", ")
		if have == "" {
			have = "no named port"
		}
		f := at(&m.Object, e.Port.At.Line, "monitor-port-unknown")
		f.Evidence = []Evidence{{Name: "port", Value: e.Port.V}, {Name: "declared", Value: have}}
		f.Message = fmt.Sprintf("the monitor scrapes a port named %s, and what it selects declares %s: no metric arrives, and what scales on it reads nothing", e.Port.V, have)
		f.Remedy = "Use a name that is declared."
		if len(names) == 1 {
			f.Remedy = "port: " + names[0]
			f.Edits = []Edit{replaceField(m.File, e.Port, names[0])}
		}
		k.add(f)
	}
}

func podPorts(p *Pod) []string {
	var out []string
	for i := range p.Containers {
		for _, cp := range p.Containers[i].Ports {
			if cp.Name != "" {
				out = append(out, cp.Name)
			}
		}
	}
	for i := range p.Init { // sidecars
		for _, cp := range p.Init[i].Ports {
			if cp.Name != "" {
				out = append(out, cp.Name)
			}
		}
	}
	return out
}

func servicePorts(v *Service) []string {
	var out []string
	for _, p := range v.Ports {
		if p.Name != "" {
			out = append(out, p.Name)
		}
	}
	return out
}

// checkEnvoy judges Envoy configurations that have an endpoint picker behind
// ext-proc. The behaviour is that of Envoy 1.40, measured.
func checkEnvoy(s *Set, k *sink) {
	for i := range s.Envoys {
		e := &s.Envoys[i]
		if len(e.ExtProcs) == 0 {
			continue
		}
		var picks []string
		header := false
		for _, c := range e.Clusters {
			if c.OverrideHost || c.OriginalDst && strings.EqualFold(c.HeaderName, destinationHeader) {
				picks = append(picks, c.Name)
			}
			header = header || c.OriginalDst && strings.EqualFold(c.HeaderName, destinationHeader)
		}
		if len(picks) == 0 {
			continue // ext-proc for something else
		}
		for j := range e.ExtProcs {
			envoyProcessor(k, e, &e.ExtProcs[j], header)
		}
		envoyLimits(s, k, e, picks, header)
	}
}

func envoyProcessor(k *sink, e *Envoy, x *ExtProc, header bool) {
	if x.RequestBody.V != "FULL_DUPLEX_STREAMED" {
		f := at(&e.Object, x.RequestBody.Line(x.Line), "envoy-body-mode")
		f.Evidence = []Evidence{{Name: "request_body_mode", Value: x.RequestBody.Or("NONE (default)")}}
		f.Message = "an endpoint picker answers the headers after it has read the body, which needs FULL_DUPLEX_STREAMED: in any other mode the request hangs, ends in a 5xx, or is picked without its prompt"
		f.Remedy = "processing_mode:\n  request_body_mode: FULL_DUPLEX_STREAMED\n  response_body_mode: FULL_DUPLEX_STREAMED"
		if x.RequestBody.Set {
			f.Edits = []Edit{replaceField(e.File, x.RequestBody, "FULL_DUPLEX_STREAMED")}
		}
		k.add(f)
	}
	if !x.FailOpen.Set || !x.FailOpen.V {
		return
	}
	for i := range e.Clusters {
		c := &e.Clusters[i]
		if c.Name != x.Cluster || c.HealthChecks > 0 && c.PanicThreshold.Set && c.PanicThreshold.V == 0 {
			continue
		}
		f := at(&e.Object, c.Line, "envoy-fail-open-void")
		panicValue := "50 (default)"
		if c.PanicThreshold.Set {
			panicValue = Num(c.PanicThreshold.V)
		}
		f.Evidence = []Evidence{Ev("health_checks", c.HealthChecks, ""), Evidence{Name: "healthy_panic_threshold", Value: panicValue, Unit: "%"}, {Name: "failure_mode_allow", Value: true}}
		f.Message = "failure_mode_allow has no effect on requests with a body: while the picker is down they end in 500, because Envoy still sends them to the dead picker"
		f.Remedy = "On cluster " + c.Name + ":\nhealth_checks:\n- {timeout: 1s, interval: 2s, unhealthy_threshold: 1, healthy_threshold: 1, grpc_health_check: {service_name: envoy.service.ext_proc.v3.ExternalProcessor}}\ncommon_lb_config: {healthy_panic_threshold: {value: 0}}"
		var lines []string
		if c.HealthChecks == 0 {
			lines = append(lines, "health_checks: [{timeout: 1s, interval: 2s, unhealthy_threshold: 1, healthy_threshold: 1, grpc_health_check: {service_name: envoy.service.ext_proc.v3.ExternalProcessor}}]")
		}
		if c.PanicLine == 0 {
			lines = append(lines, "common_lb_config: {healthy_panic_threshold: {value: 0}}")
		}
		if ed, ok := addKeys(e.File, c.At, lines...); ok && len(lines) > 0 {
			f.Edits = []Edit{ed}
		}
		k.add(f)
	}
	if header {
		f := at(&e.Object, x.FailOpen.At.Line, "envoy-client-picks-address")
		f.Evidence = []Evidence{{Name: "header", Value: destinationHeader}, {Name: "cluster_type", Value: "ORIGINAL_DST"}, {Name: "failure_mode_allow", Value: true}}
		f.Message = "while the picker is down a client that sends " + destinationHeader + " is connected to any address that it names, inside or outside the pool"
		f.Remedy = "Use a cluster with the override_host load balancing policy, whose members bound what a header can name, or set failure_mode_allow: false."
		f.Edits = []Edit{replaceField(e.File, x.FailOpen, "false")}
		k.add(f)
	}
}

// envoyRouteDefault is Envoy's time-out of a route that sets none, in seconds.
const envoyRouteDefault = 15

func envoyLimits(s *Set, k *sink, e *Envoy, picks []string, header bool) {
	longest, seen := s.Seen.LongestStream()
	for i := range e.Routes {
		r := &e.Routes[i]
		t := r.Timeout.Or(envoyRouteDefault)
		if !slices.Contains(picks, r.Cluster) || t == 0 || seen && t >= longest || !seen && t > 60 {
			continue
		}
		f := at(&e.Object, r.Timeout.Line(r.Line), "timeout-cuts-streams")
		from := "written"
		if !r.Timeout.Set {
			from = "default"
		}
		f.Evidence = []Evidence{Ev("timeout", t, "s").From(from)}
		f.Message = fmt.Sprintf("the route's timeout of %s (%s) ends generations that run longer, in the middle of the stream", Seconds(t), from)
		f.Remedy = "timeout: 0s   # none; stream_idle_timeout bounds a stream that stalls"
		if r.Timeout.Set {
			f.Edits = []Edit{replaceField(e.File, r.Timeout, "0s")}
		} else if ed, ok := addKeys(e.File, r.At, "timeout: 0s"); ok {
			f.Edits = []Edit{ed}
		}
		k.add(f)
	}
	for _, h := range e.HCMs {
		if h.HasExtProc && h.StreamIdle.Set && h.StreamIdle.V == 0 {
			f := at(&e.Object, h.StreamIdle.At.Line, "envoy-no-idle-timeout")
			f.Evidence = []Evidence{Ev("stream_idle_timeout", 0, "s")}
			f.Message = "nothing ends a request whose picker never answers: message_timeout and the route's timeout do not act in FULL_DUPLEX_STREAMED, and stream_idle_timeout is off"
			f.Remedy = "stream_idle_timeout: 300s"
			f.Edits = []Edit{replaceField(e.File, h.StreamIdle, "300s")}
			k.add(f)
		}
		for _, name := range h.RemoveHeaders {
			if header && strings.EqualFold(name.V, destinationHeader) {
				f := at(&e.Object, name.At.Line, "envoy-strips-the-pick")
				f.Evidence = []Evidence{{Name: "header", Value: name.V}, {Name: "cluster_type", Value: "ORIGINAL_DST"}}
				f.Message = "request_headers_to_remove runs after ext-proc: it removes the picker's own choice, and every request ends in 503"
				f.Remedy = "Strip the client's header before ext-proc (early header mutation), or use a cluster with the override_host policy."
				k.add(f)
			}
		}
	}
}
