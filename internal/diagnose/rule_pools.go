// SPDX-License-Identifier: Apache-2.0

package diagnose

import (
	"fmt"
	"strings"
)

// API groups of InferencePool.
const (
	groupV1    = "inference.networking.k8s.io"
	groupAlpha = "inference.networking.x-k8s.io"
)

// pickerPort is the port on which endpoint pickers serve ext-proc by default.
const pickerPort = 9002

// checkPools judges each InferencePool by the schema of its own group.
func checkPools(s *Set, k *sink) {
	for i := range s.Pools {
		p := &s.Pools[i]
		switch p.Group {
		case groupV1:
			poolFieldsV1(k, p)
		case groupAlpha:
			poolFieldsAlpha(k, p)
		}
		checkSelector(s, k, p)
		ref := p.Picker
		if ref == nil {
			ref = p.Extension
		}
		if ref == nil {
			continue
		}
		if !ref.FailureMode.Set {
			f := at(&p.Object, ref.Line, "failure-mode-default")
			f.Evidence = []Evidence{{Name: "failureMode", Value: "not set -> FailClose"}}
			f.Message = "failureMode is not set, so it is FailClose: while no picker answers, every request fails with a 5xx"
			f.Remedy = "failureMode: FailOpen   # or FailClose, said on purpose"
			if e, ok := addKeys(p.File, ref.At, "failureMode: FailClose"); ok {
				f.Edits = []Edit{e}
			}
			k.add(f)
		}
		checkPickerPort(s, k, p, ref)
	}
}

func renamed(k *sink, p *Pool, line int, from, to, api, remedy string, edits []Edit) {
	f := at(&p.Object, line, "pool-field-renamed")
	f.Evidence = []Evidence{{Name: "field", Value: from}, {Name: "renamed_to", Value: to}, {Name: "apiVersion", Value: p.APIVersion}}
	f.Message = fmt.Sprintf("%s->%s: %s is spelled %s in %s; the API server drops or refuses the other spelling", from, to, from, to, api)
	f.Remedy = remedy
	f.Edits = edits
	k.add(f)
}

func poolFieldsV1(k *sink, p *Pool) {
	if p.FlatSelector {
		f := at(&p.Object, p.SelectorLine, "selector-form")
		f.Evidence = []Evidence{{Name: "selector", Value: "flat map"}, {Name: "apiVersion", Value: p.APIVersion}}
		f.Message = "the selector is a flat map, the form of v1alpha2; v1 wants selector.matchLabels and selects nothing without it"
		f.Remedy = "selector:\n  matchLabels: {" + labelText(p.MatchLabels) + "}"
		f.Edits = selectorEdits(p, "selector: {matchLabels: {"+labelText(p.MatchLabels)+"}}")
		k.add(f)
	}
	if n := p.TargetPortNumber; n.Set {
		edits := []Edit{renameKey(p.File, n, "targetPorts"), replaceField(p.File, n, fmt.Sprintf("[{number: %d}]", n.V))}
		renamed(k, p, n.At.Line, "targetPortNumber", "targetPorts", p.APIVersion, fmt.Sprintf("targetPorts: [{number: %d}]", n.V), edits)
	}
	if x := p.Extension; x != nil {
		port := pickerPort
		if x.Port.Set {
			port = x.Port.V
		}
		edits := []Edit{renameKey(p.File, p.ExtensionKey, "endpointPickerRef")}
		switch {
		case x.Port.Set && x.Port.Key.Len > 0 && x.Port.Key.Line > 0:
			edits = append(edits, renameKey(p.File, x.Port, "port"), replaceField(p.File, x.Port, fmt.Sprintf("{number: %d}", port)))
		default:
			if e, ok := addKeys(p.File, x.At, fmt.Sprintf("port: {number: %d}", port)); ok {
				edits = append(edits, e)
			}
		}
		renamed(k, p, x.Line, "extensionRef", "endpointPickerRef", p.APIVersion, fmt.Sprintf("endpointPickerRef: {name: %s, port: {number: %d}}", x.Name, port), edits)
	}
}

func poolFieldsAlpha(k *sink, p *Pool) {
	if len(p.MatchLabels) > 0 && !p.FlatSelector {
		f := at(&p.Object, p.SelectorLine, "selector-form")
		f.Evidence = []Evidence{{Name: "selector", Value: "matchLabels"}, {Name: "apiVersion", Value: p.APIVersion}}
		f.Message = "selector.matchLabels is the form of v1; v1alpha2 wants a flat map of labels"
		f.Remedy = "selector: {" + labelText(p.MatchLabels) + "}\nor move the pool to apiVersion: " + groupV1 + "/v1"
		f.Edits = selectorEdits(p, "selector: {"+labelText(p.MatchLabels)+"}")
		k.add(f)
	}
	if len(p.TargetPorts) > 0 && !p.TargetPortNumber.Set {
		renamed(k, p, p.TargetPorts[0].At.Line, "targetPorts", "targetPortNumber", p.APIVersion,
			fmt.Sprintf("targetPortNumber: %d\nor move the pool to apiVersion: %s/v1", p.TargetPorts[0].V, groupV1), nil)
	}
	if x := p.Picker; x != nil {
		renamed(k, p, x.Line, "endpointPickerRef", "extensionRef", p.APIVersion,
			fmt.Sprintf("extensionRef: {name: %s}\nor move the pool to apiVersion: %s/v1", x.Name, groupV1), nil)
	}
}

func selectorEdits(p *Pool, line string) []Edit {
	at := p.SelectorKey
	if at.Key.Line == 0 || at.Key.Line != at.At.Line || at.At.Len == 0 {
		return nil // over several lines: the remedy says what to write
	}
	return []Edit{{File: p.File, Line: at.Key.Line, Col: at.Key.Col, Del: at.At.Col + at.At.Len - at.Key.Col, Text: line}}
}

func labelText(ps Pairs) string {
	parts := make([]string, len(ps))
	for i, p := range ps {
		parts[i] = p.Name + ": " + p.Value.V
	}
	return strings.Join(parts, ", ")
}

// checkSelector finds pools that select nothing: against the pods that were
// observed, or against the workloads beside them where a label is all but equal.
func checkSelector(s *Set, k *sink, p *Pool) {
	if len(p.MatchLabels) == 0 {
		return
	}
	near, found := "", false
	consider := func(labels Pairs) {
		found = found || matches(labels, p.MatchLabels)
		if n := nearMiss(labels, p.MatchLabels); n != "" && near == "" {
			near = n
		}
	}
	for i := range s.Seen.Pods {
		consider(s.Seen.Pods[i].Labels)
	}
	seen := len(s.Seen.Pods)
	for i := range s.Workloads {
		w := &s.Workloads[i]
		if _, serves := w.Pod.Serves(); serves != ServesNo && sameNamespace(w.Namespace, p.Namespace) {
			consider(w.Pod.Labels)
		}
	}
	if found || seen == 0 && near == "" {
		return
	}
	f := at(&p.Object, p.SelectorLine, "selector-matches-0-pods")
	f.Evidence = []Evidence{{Name: "selector", Value: labelText(p.MatchLabels)}, Ev("pods_matched", 0, "pods"), Ev("pods_seen", seen, "pods")}
	f.Message = "the selector " + labelText(p.MatchLabels) + " matches no pod: the picker has no endpoint and every request ends in 503"
	f.Remedy = "Use the labels that the pods carry."
	if near != "" {
		f.Evidence = append(f.Evidence, Evidence{Name: "near_miss", Value: near})
		f.Message += "; the pods carry " + near
		f.Remedy = near
		f.Edits = nearEdits(p, near)
	}
	k.add(f)
}

func nearEdits(p *Pool, near string) []Edit {
	key, val, _ := strings.Cut(near, ": ")
	for _, l := range p.MatchLabels {
		if l.Name == key && l.Value.At.Len > 0 {
			return []Edit{replaceField(p.File, l.Value, val)}
		}
	}
	return nil
}

// nearMiss returns the label of a pod that differs from the selector in no more
// than two letters, "" where there is none.
func nearMiss(labels, sel Pairs) string {
	for _, want := range sel {
		for _, have := range labels {
			if have.Name == want.Name && have.Value.V != want.Value.V && distance(have.Value.V, want.Value.V) <= 2 {
				return have.Name + ": " + have.Value.V
			}
		}
	}
	return ""
}

// distance is the number of letters to insert, delete or replace, at most 100.
func distance(a, b string) int {
	if len(a) > 100 || len(b) > 100 {
		return 100
	}
	row := make([]int, len(b)+1)
	for j := range row {
		row[j] = j
	}
	for i := range len(a) {
		prev := row[0]
		row[0] = i + 1
		for j := range len(b) {
			cost := 1
			if a[i] == b[j] {
				cost = 0
			}
			prev, row[j+1] = row[j+1], min(prev+cost, row[j]+1, row[j+1]+1)
		}
	}
	return row[len(b)]
}

func (s *Set) service(name, ns string) *Service {
	for i := range s.Services {
		if s.Services[i].Name == name && sameNamespace(s.Services[i].Namespace, ns) {
			return &s.Services[i]
		}
	}
	return nil
}

// checkPickerPort compares the port of the picker with what its Service exposes.
func checkPickerPort(s *Set, k *sink, p *Pool, ref *PickerRef) {
	if ref.Kind != "" && ref.Kind != "Service" {
		return
	}
	port, written := ref.Port.Or(pickerPort), ref.Port.Set
	svc := s.service(ref.Name, p.Namespace)
	f := at(&p.Object, ref.Port.Line(ref.Line), "picker-port")
	f.Evidence = []Evidence{Ev("port", port, "")}
	if !written {
		f.Evidence[0] = f.Evidence[0].From("default")
	}
	want := pickerPort
	switch {
	case svc != nil:
		var have []string
		for _, sp := range svc.Ports {
			if sp.Port == port {
				return
			}
			have = append(have, fmt.Sprint(sp.Port))
		}
		if len(have) == 0 {
			return
		}
		want = svc.Ports[0].Port
		for _, sp := range svc.Ports {
			if strings.Contains(sp.Name, "grpc") && !strings.Contains(sp.Name, "health") || sp.Port == pickerPort {
				want = sp.Port
				break
			}
		}
		f.Evidence = append(f.Evidence, Evidence{Name: "service_exposes", Value: strings.Join(have, ", ")})
		f.Message = fmt.Sprintf("the pool asks %s for its picker at port %d, and the Service exposes %s", ref.Name, port, strings.Join(have, ", "))
	case written && isTargetPort(p, port) && port != pickerPort:
		f.Message = fmt.Sprintf("the pool asks %s for its picker at port %d, which is the port of the model servers", ref.Name, port)
	default:
		return
	}
	if isTargetPort(p, port) {
		f.Evidence = append(f.Evidence, Evidence{Name: "model_port", Value: port})
		f.Message += " (" + fmt.Sprint(port) + " is the port of the model servers)"
	}
	f.Message += ": the proxy speaks gRPC to something else and answers 5xx with a gRPC error"
	f.Remedy = fmt.Sprintf("port: {number: %d}", want)
	if written {
		f.Edits = []Edit{replaceField(p.File, ref.Port, fmt.Sprint(want))}
	}
	k.add(f)
}

func isTargetPort(p *Pool, port int) bool {
	for _, t := range p.TargetPorts {
		if t.V == port {
			return true
		}
	}
	return p.TargetPortNumber.Set && p.TargetPortNumber.V == port
}

// poolGroups returns the groups in which a pool of that name was read.
func (s *Set) poolGroups(name, ns string) []string {
	var out []string
	for i := range s.Pools {
		if p := &s.Pools[i]; p.Name == name && sameNamespace(p.Namespace, ns) {
			out = append(out, p.Group)
		}
	}
	return out
}

func otherGroup(groups []string, want string) bool {
	for _, g := range groups {
		if g == want {
			return false
		}
	}
	return len(groups) > 0
}

// checkPickers finds pickers that watch a pool of the other API group.
func checkPickers(s *Set, k *sink) {
	for i := range s.Workloads {
		w := &s.Workloads[i]
		for j := range w.Pod.Containers {
			c := &w.Pod.Containers[j]
			name, group := c.Flag("--pool-name", "-pool-name"), c.Flag("--pool-group", "-pool-group")
			groups := s.poolGroups(name.V, w.Namespace)
			if !name.Set || !group.Set || !otherGroup(groups, group.V) {
				continue
			}
			f := probeFinding(w, c, group.At.Line, "picker-watches-other-group")
			f.Evidence = []Evidence{{Name: "pool_group", Value: group.V}, {Name: "pool_is_in", Value: groups[0]}, {Name: "pool", Value: name.V}}
			f.Message = fmt.Sprintf("the picker watches %s in group %s, and the pool is in group %s: it sees no endpoint and never becomes ready", name.V, group.V, groups[0])
			f.Remedy = "--pool-group=" + groups[0]
			f.Edits = flagEdits(w.File, c, group, groups[0])
			k.add(f)
		}
	}
}

// flagEdits replaces the value of a flag inside the element that holds it.
func flagEdits(file string, c *Container, flag Field[string], value string) []Edit {
	for _, list := range [...][]Field[string]{c.Command, c.Args} {
		for _, a := range list {
			if a.At != flag.At || a.At.Len == 0 {
				continue
			}
			text := strings.Replace(a.V, flag.Text, value, 1)
			return []Edit{{File: file, Line: a.At.Line, Col: a.At.Col, Del: a.At.Len, Text: fmt.Sprintf("%q", text)}}
		}
	}
	return nil
}

// checkRoutes finds routes to a pool of the other group, and time-outs that cut
// generations.
func checkRoutes(s *Set, k *sink) {
	longest, seen := s.Seen.LongestStream()
	for i := range s.Routes {
		r := &s.Routes[i]
		pool := false
		for _, b := range r.Backends {
			if b.Kind.V != "InferencePool" {
				continue
			}
			pool = true
			groups := s.poolGroups(b.Name.V, b.Namespace.Or(r.Namespace))
			if !otherGroup(groups, b.Group.V) {
				continue
			}
			f := at(&r.Object, b.Group.Line(b.Line), "group-mismatch-route")
			f.Evidence = []Evidence{{Name: "backend_group", Value: b.Group.Or("not set")}, {Name: "pool_is_in", Value: groups[0]}, {Name: "pool", Value: b.Name.V}}
			f.Message = fmt.Sprintf("the route points at %s in group %s, and the pool is in group %s: the backend is not found and requests end in a 5xx", b.Name.V, b.Group.Or("\"\""), groups[0])
			f.Remedy = "group: " + groups[0]
			if b.Group.Set {
				f.Edits = []Edit{replaceField(r.File, b.Group, groups[0])}
			}
			k.add(f)
		}
		for _, t := range r.Timeouts {
			if !pool || t.V.V <= 0 || seen && t.V.V >= longest || !seen && t.V.V > 30 {
				continue
			}
			f := at(&r.Object, t.V.At.Line, "timeout-cuts-streams")
			f.Evidence = []Evidence{Ev("timeout", t.V.V, "s")}
			if seen {
				f.Evidence = append(f.Evidence, Ev("longest_stream", longest, "s").From("observed"))
			}
			f.Message = fmt.Sprintf("timeouts.%s of %s ends generations that run longer, in the middle of the stream", t.Name, Seconds(t.V.V))
			f.Remedy = t.Name + ": 0s   # none; the engine's own limits bound a request"
			f.Edits = []Edit{replaceField(r.File, t.V, "0s")}
			k.add(f)
		}
	}
}
