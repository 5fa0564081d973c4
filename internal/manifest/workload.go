// SPDX-License-Identifier: Apache-2.0

package manifest

import (
	"strconv"
	"strings"

	"go.yaml.in/yaml/v3"

	"github.com/penstock-project/penstock/internal/diagnose"
)

// workload reads everything that makes pods. Known kinds are read by their
// schema; for all others every mapping with a list of containers counts as a pod
// template, so that custom resources are read as well.
func (r *reader) workload(o diagnose.Object, n node) {
	fragment := o.Kind == ""
	w := diagnose.Workload{Object: o, Fragment: fragment}
	spec := n.get("spec")
	if fragment && !spec.ok() {
		spec = n
	}
	w.SpecAt = spec.mapAt()
	w.Replicas = spec.intField("replicas")
	w.Selector, _ = spec.get("selector").labels()
	w.Strategy = readStrategy(spec)
	w.ProgressDeadline = spec.intField("progressDeadlineSeconds")
	w.Scaler = readServiceScaler(o, spec)
	pods := podSpecs(n, 0)
	if len(pods) == 0 {
		if p, ok := readBareProbes(n); ok {
			w.Pod = p
			r.set.Workloads = append(r.set.Workloads, w)
			if fragment {
				r.set.Objects++
			}
			return
		}
		if w.Scaler.Class.Set || w.Scaler.Metric.Set {
			r.set.Workloads = append(r.set.Workloads, w)
		}
		return
	}
	for _, p := range pods {
		one := w
		one.Pod = readPod(p)
		r.set.Workloads = append(r.set.Workloads, one)
	}
	if fragment {
		r.set.Objects++
	}
}

// podAt is a pod spec and the template that holds it.
type podAt struct{ spec, template node }

// podSpecs finds the pod specs in a tree, outermost first. A KServe predictor is
// one: its model or its containers.
func podSpecs(n node, depth int) []podAt {
	if depth > 12 || !n.ok() {
		return nil
	}
	switch {
	case n.isMap():
		if n.get("containers").isSeq() && !n.get("containers").isScalar() {
			return []podAt{{spec: n}}
		}
		if isContainer(n) && depth == 0 {
			return []podAt{{spec: node{wrapContainers(n.y), n.d}}}
		}
		if n.get("model").isMap() && (n.get("model").has("modelFormat", "runtime", "storageUri")) {
			return []podAt{{spec: node{wrapModel(n), n.d}}}
		}
		var out []podAt
		n.each(func(k, v node) {
			if key := k.text(); key == "status" || key == "metadata" {
				return
			}
			for _, p := range podSpecs(v, depth+1) {
				if !p.template.ok() && k.text() == "spec" {
					p.template = n
				}
				out = append(out, p)
			}
		})
		return out
	case n.isSeq():
		var out []podAt
		for _, it := range n.items() {
			out = append(out, podSpecs(it, depth+1)...)
		}
		return out
	}
	return nil
}

func isContainer(n node) bool {
	return n.has("image", "command", "args") && n.has("image", "ports", "resources", "livenessProbe", "readinessProbe", "startupProbe", "lifecycle", "env") ||
		n.has("name") && n.has("startupProbe", "livenessProbe", "readinessProbe", "resources", "lifecycle")
}

// wrapContainers makes a pod spec of a container that stands alone.
func wrapContainers(c *yaml.Node) *yaml.Node {
	seq := &yaml.Node{Kind: yaml.SequenceNode, Tag: "!!seq", Content: []*yaml.Node{c}, Line: c.Line, Column: c.Column}
	key := &yaml.Node{Kind: yaml.ScalarNode, Tag: "!!str", Value: "containers", Line: c.Line, Column: c.Column}
	return &yaml.Node{Kind: yaml.MappingNode, Tag: "!!map", Content: []*yaml.Node{key, seq}, Line: c.Line, Column: c.Column}
}

// wrapModel makes a pod spec of a KServe predictor, whose model is a container in
// all but name.
func wrapModel(predictor node) *yaml.Node {
	return wrapContainers(predictor.get("model").y)
}

func readPod(at podAt) diagnose.Pod {
	n := at.spec
	p := diagnose.Pod{Grace: n.intField("terminationGracePeriodSeconds"), SpecAt: n.mapAt(), Line: n.line()}
	p.Labels = at.template.get("metadata", "labels").pairs()
	for _, c := range n.get("containers").items() {
		p.Containers = append(p.Containers, readContainer(c))
	}
	for _, c := range n.get("initContainers").items() {
		p.Init = append(p.Init, readContainer(c))
	}
	for _, v := range n.get("volumes").items() {
		_, empty := v.pair("emptyDir")
		p.Volumes = append(p.Volumes, diagnose.Volume{
			Name: v.str("name"), Empty: empty.ok(), Memory: empty.str("medium") == "Memory", SizeLimit: empty.floatField("sizeLimit"),
		})
	}
	return p
}

func readContainer(n node) diagnose.Container {
	c := diagnose.Container{
		Name: n.str("name"), Image: n.strField("image"), At: n.mapAt(), Line: n.line(),
		Requests: resources(n.get("resources", "requests")), Limits: resources(n.get("resources", "limits")),
	}
	for _, a := range n.get("command").items() {
		c.Command = append(c.Command, a.scalar())
	}
	for _, a := range n.get("args").items() {
		c.Args = append(c.Args, a.scalar())
	}
	c.CommandFlow, c.ArgsFlow = n.get("command").isFlow(), n.get("args").isFlow()
	for _, e := range n.get("env").items() {
		c.Env = append(c.Env, diagnose.Pair{Name: e.str("name"), Value: e.strField("value")})
	}
	for _, p := range n.get("ports").items() {
		c.Ports = append(c.Ports, diagnose.ContainerPort{Name: p.str("name"), Port: p.intField("containerPort").V})
	}
	c.Startup = readProbe(n, "startupProbe")
	c.Liveness = readProbe(n, "livenessProbe")
	c.Readiness = readProbe(n, "readinessProbe")
	c.PreStop = readHook(n)
	return c
}

func resources(n node) []diagnose.Resource {
	var out []diagnose.Resource
	n.each(func(k, v node) {
		if f := scalarField(k, v, diagnose.ParseQuantity); f.Set {
			out = append(out, diagnose.Resource{Name: k.text(), Q: f})
		}
	})
	return out
}

func readProbe(n node, key string) *diagnose.Probe {
	k, p := n.pair(key)
	if !p.isMap() {
		return nil
	}
	out := &diagnose.Probe{
		Delay: p.intField("initialDelaySeconds"), Period: p.intField("periodSeconds"),
		Timeout: p.intField("timeoutSeconds"), Failure: p.intField("failureThreshold"),
		At: p.mapAt(), Line: k.line(),
	}
	for _, kind := range [...]diagnose.ProbeKind{diagnose.ProbeHTTP, diagnose.ProbeTCP, diagnose.ProbeGRPC, diagnose.ProbeExec} {
		if _, h := p.pair(string(kind)); h.ok() {
			out.Kind, out.Path, out.Port, out.HandlerAt = kind, h.strField("path"), h.strField("port"), h.mapAt()
			if key, _ := p.pair(string(kind)); key.ok() {
				out.KindAt = key.span()
				if kind == diagnose.ProbeTCP {
					out.Line = key.line()
				}
			}
			break
		}
	}
	return out
}

// readHook reads a preStop hook. Only a sleep has a known length.
func readHook(n node) *diagnose.Hook {
	_, h := n.get("lifecycle").pair("preStop")
	if !h.isMap() {
		return nil
	}
	out := &diagnose.Hook{Line: h.line()}
	if s := h.get("sleep").floatField("seconds"); s.Set {
		out.Sleep = s
		return out
	}
	var words []string
	var last node
	for _, c := range h.get("exec", "command").items() {
		words = append(words, strings.Fields(c.text())...)
		last = c
	}
	for i, w := range words {
		if w = strings.Trim(w, ";&"); w != "sleep" && !strings.HasSuffix(w, "/sleep") || i+1 >= len(words) {
			continue
		}
		arg := strings.Trim(words[i+1], `;&"'`)
		if v, ok := diagnose.ParseSeconds(arg); ok {
			out.Sleep = diagnose.Field[float64]{V: v, Set: true, Text: arg, At: diagnose.Span{Line: last.line()}}
		}
	}
	return out
}

func readStrategy(spec node) diagnose.Strategy {
	k, st := spec.pair("strategy")
	if !st.isMap() {
		k, st = spec.pair("updateStrategy")
	}
	if !st.isMap() {
		return diagnose.Strategy{}
	}
	ru := st.get("rollingUpdate")
	s := diagnose.Strategy{
		Set: true, Type: st.strField("type"), Surge: ru.strField("maxSurge"), Unavail: ru.strField("maxUnavailable"), Line: k.line(),
	}
	if ru.isMap() {
		s.At = ru.mapAt()
	}
	return s
}

// readServiceScaler reads the autoscaling that KServe and Knative objects carry
// themselves, in fields or annotations.
func readServiceScaler(o diagnose.Object, spec node) diagnose.ServiceScaler {
	var s diagnose.ServiceScaler
	body := spec.get("predictor")
	if !body.isMap() {
		body = spec
	}
	s.Min, s.Max = body.intField("minReplicas"), body.intField("maxReplicas")
	s.Metric, s.Target = body.strField("scaleMetric"), body.floatField("scaleTarget")
	ann := o.Annotations
	s.Class = ann.Get("serving.kserve.io/autoscalerClass")
	for _, key := range [...]string{"serving.kserve.io/metric", "autoscaling.knative.dev/metric"} {
		if f := ann.Get(key); f.Set && !s.Metric.Set {
			s.Metric = f
		}
	}
	for _, key := range [...]string{"serving.kserve.io/targetUtilizationPercentage", "autoscaling.knative.dev/target"} {
		if f := ann.Get(key); f.Set && !s.Target.Set {
			if v, err := strconv.ParseFloat(f.V, 64); err == nil {
				s.Target = diagnose.Field[float64]{V: v, Set: true, Text: f.Text, At: f.At, Key: f.Key}
			}
		}
	}
	switch class := ann.Get("autoscaling.knative.dev/class").V; {
	case s.Class.Set:
	case strings.HasPrefix(class, "hpa."):
		s.Class = ann.Get("autoscaling.knative.dev/class")
		s.Class.V = "hpa"
	}
	s.Line = max(s.Metric.At.Line, s.Class.At.Line, s.Target.At.Line)
	return s
}

// readBareProbes reads probes that stand alone in a document, and a pod's grace
// without containers.
func readBareProbes(n node) (diagnose.Pod, bool) {
	if n.has("startupProbe", "livenessProbe", "readinessProbe") {
		return diagnose.Pod{Containers: []diagnose.Container{readContainer(n)}, Line: n.line()}, true
	}
	// One probe without its name: read it as the startup probe that it then is.
	if n.has("failureThreshold", "periodSeconds") && n.has("httpGet", "tcpSocket", "exec", "grpc") {
		key := &yaml.Node{Kind: yaml.ScalarNode, Tag: "!!str", Value: "startupProbe", Line: n.y.Line, Column: n.y.Column}
		m := &yaml.Node{Kind: yaml.MappingNode, Tag: "!!map", Content: []*yaml.Node{key, n.y}, Line: n.y.Line, Column: n.y.Column}
		return diagnose.Pod{Containers: []diagnose.Container{readContainer(node{m, n.d})}, Line: n.line()}, true
	}
	return diagnose.Pod{}, false
}
