// SPDX-License-Identifier: Apache-2.0

// Package manifest reads what a person has at hand of a cluster (Kubernetes, KEDA,
// KServe, Gateway API and Envoy YAML or JSON, single or in streams, complete or a
// fragment, and notes of what was observed) into the plain values with positions
// that the rules of package diagnose judge.
package manifest

import (
	"fmt"
	"path/filepath"
	"regexp"
	"strconv"
	"strings"

	"go.yaml.in/yaml/v3"

	"github.com/penstock-project/penstock/internal/diagnose"
)

// Input is one file. Data is its whole content.
type Input struct {
	Name string // as messages should name it
	Data []byte
	// Observed says that the caller gave this file as an observation, so that a
	// document that could be either is read as one.
	Observed bool
}

// Problem is a file or a document that could not be read.
type Problem struct {
	File     string
	Line     int
	Err      error
	Template bool // it looks like an unrendered Helm template
}

func (p *Problem) Error() string {
	if p.Line > 0 {
		return fmt.Sprintf("%s:%d: %v", p.File, p.Line, p.Err)
	}
	return fmt.Sprintf("%s: %v", p.File, p.Err)
}

// Read reads all inputs into one set. A document that cannot be read becomes a
// Problem and does not keep the others from being read.
func Read(inputs []Input) (*diagnose.Set, []*Problem) {
	r := &reader{set: &diagnose.Set{}}
	for i := range inputs {
		r.file(&inputs[i])
	}
	return r.set, r.problems
}

type reader struct {
	set       *diagnose.Set
	problems  []*Problem
	podStatus bool // read the status of pods as events
}

// maxFile bounds one file: what is larger is no manifest.
const maxFile = 64 << 20

func (r *reader) file(in *Input) {
	if len(in.Data) > maxFile {
		r.problems = append(r.problems, &Problem{File: in.Name, Err: fmt.Errorf("%d bytes is too large for a manifest", len(in.Data))})
		return
	}
	text := strings.TrimPrefix(string(in.Data), "\ufeff")
	switch ext := strings.ToLower(filepath.Ext(in.Name)); ext {
	case ".csv", ".tsv":
		r.csv(text)
		return
	case ".txt", ".log":
		r.text(in.Name, text)
		return
	case ".md", ".go", ".py", ".sh", ".tpl":
		return
	case ".jsonl", ".ndjson":
		return
	}
	before := len(r.problems)
	if r.yaml(in, text); len(r.problems) > before && filepath.Ext(in.Name) == "" {
		// Standard input can hold text as well.
		if n := r.text(in.Name, text); n > 0 {
			r.problems = r.problems[:before]
		}
	}
}

// yaml reads a stream of documents.
func (r *reader) yaml(in *Input, text string) {
	lines := strings.Split(text, "\n")
	for i := range lines {
		lines[i] = strings.TrimSuffix(lines[i], "\r")
	}
	start := 1
	for i := 0; i <= len(lines); i++ {
		if i < len(lines) && !isDocMark(lines[i]) {
			continue
		}
		r.document(in, lines, start, i)
		start = i + 2
		if i < len(lines) && len(lines[i]) > 4 && strings.HasPrefix(lines[i], "--- ") && !strings.HasPrefix(strings.TrimSpace(lines[i][4:]), "#") {
			start = i + 1 // the document begins on the line of its mark
		}
	}
}

func isDocMark(l string) bool {
	return l == "---" || strings.HasPrefix(l, "--- ") || l == "..." || strings.HasPrefix(l, "---\t")
}

var yamlLine = regexp.MustCompile(`line (\d+)`)

func (r *reader) document(in *Input, lines []string, start, end int) {
	blank := true
	for i := start - 1; i < end && blank; i++ {
		t := strings.TrimSpace(lines[i])
		blank = t == "" || t[0] == '#'
	}
	if blank {
		return
	}
	d, err := parseDoc(in.Name, lines, start, end)
	if err != nil {
		p := &Problem{File: in.Name, Line: start, Err: err}
		if m := yamlLine.FindStringSubmatch(err.Error()); m != nil {
			n, _ := strconv.Atoi(m[1])
			p.Line = n + start - 1
			p.Err = fmt.Errorf("%s", strings.TrimPrefix(yamlLine.ReplaceAllString(strings.TrimPrefix(err.Error(), "yaml: "), ""), ": "))
		}
		for i := start - 1; i < end; i++ {
			if strings.Contains(lines[i], "{{") {
				p.Template = true
			}
		}
		r.problems = append(r.problems, p)
		return
	}
	r.root(in, d.root)
}

// root decides what a document is: a list of objects, one object, a fragment of
// one, an Envoy configuration, or a note of what was observed.
func (r *reader) root(in *Input, n node) {
	switch {
	case !n.ok():
	case n.isSeq():
		r.sequence(in, n)
	case !n.isMap():
	case n.str("kind") != "" && (strings.HasSuffix(n.str("kind"), "List") || n.str("kind") == "List") && n.get("items").isSeq():
		for _, it := range n.get("items").items() {
			r.object(in, it, false, n.str("kind"))
		}
	case n.str("kind") != "" && n.str("apiVersion") != "":
		r.object(in, n, true, "")
	case isEnvoy(n):
		r.envoy(n)
	case r.observation(in, n):
	case n.str("kind") != "" && n.get("spec").isMap():
		r.object(in, n, true, "")
	default:
		r.fragment(n)
	}
}

// sequence reads a document that is a list: of objects, of containers, of pods or
// streams that were observed.
func (r *reader) sequence(in *Input, n node) {
	for _, it := range n.items() {
		switch {
		case it.str("kind") != "" && it.str("apiVersion") != "":
			r.object(in, it, false, "")
		case r.observedItem(in, it):
		default:
			r.fragment(it)
		}
	}
}

func (r *reader) head(n node, alone bool) diagnose.Object {
	o := diagnose.Object{
		File: n.d.file, Line: n.line(), Start: n.d.start, End: n.d.end, Alone: alone,
		APIVersion: n.str("apiVersion"), APIAt: n.strField("apiVersion"), Kind: n.str("kind"),
		Namespace: n.str("metadata", "namespace"), Name: n.str("metadata", "name"),
		Annotations: n.get("metadata", "annotations").pairs(), Labels: n.get("metadata", "labels").pairs(),
	}
	if k, _ := n.pair("kind"); k.ok() {
		o.Line = k.line()
	}
	return o
}

// object reads one Kubernetes object. Kinds that no rule knows are counted, and
// searched for pod templates.
func (r *reader) object(in *Input, n node, alone bool, list string) {
	if !n.isMap() {
		return
	}
	o := r.head(n, alone)
	if o.Kind == "" && list != "" {
		o.Kind = strings.TrimSuffix(list, "List")
	}
	r.set.Objects++
	group, _, _ := strings.Cut(o.APIVersion, "/")
	switch o.Kind {
	case "HorizontalPodAutoscaler":
		r.set.HPAs = append(r.set.HPAs, readHPA(o, n))
	case "PodAutoscaler": // AIBrix; Knative's own is internal and has no metricsSources
		if n.get("spec", "metricsSources").isSeq() {
			r.set.HPAs = append(r.set.HPAs, readPodAutoscaler(o, n))
		}
	case "VariantAutoscaling":
		if f := n.get("spec").strField("modelID"); f.Set {
			r.set.Policies = append(r.set.Policies, diagnose.ModelPolicy{Object: o, Model: f})
		}
	case "ScaledObject":
		r.set.Scaled = append(r.set.Scaled, readScaledObject(o, n))
	case "InferencePool":
		r.set.Pools = append(r.set.Pools, readPool(o, n, group))
	case "HTTPRoute", "GRPCRoute", "AIGatewayRoute":
		r.set.Routes = append(r.set.Routes, readRoute(o, n))
	case "Service":
		if group == "v1" {
			r.set.Services = append(r.set.Services, readService(o, n))
			return
		}
		r.workload(o, n)
	case "PodMonitor", "ServiceMonitor":
		r.set.Monitors = append(r.set.Monitors, readMonitor(o, n))
	case "PodDisruptionBudget":
		r.set.PDBs = append(r.set.PDBs, readPDB(o, n))
	case "ResourceQuota":
		r.set.Quotas = append(r.set.Quotas, diagnose.Quota{Object: o, Hard: resources(n.get("spec", "hard"))})
	case "ConfigMap":
		r.configMap(in, n)
	case "Event":
		r.event(n)
	case "Node":
		readNodes(&r.set.Seen, node{wrapNode(n), n.d})
	case "CustomResourceDefinition", "Secret", "Role", "ClusterRole", "Namespace", "ServiceAccount":
	case "Pod":
		r.pod(o, n)
	default:
		r.workload(o, n)
	}
}

// pod reads a pod. One that runs is an observation as well: its labels are what
// selectors meet.
func (r *reader) pod(o diagnose.Object, n node) {
	if n.get("status").has("phase", "conditions") {
		r.set.Seen.Pods = append(r.set.Seen.Pods, diagnose.SeenPod{Name: o.Name, Labels: n.get("metadata", "labels").pairs()})
		if r.podStatus {
			r.statusEvents(n)
		}
	}
	r.workload(o, n)
}

// configMap looks into the values of a ConfigMap for Envoy configurations and
// adapter rules, which are shipped that way.
func (r *reader) configMap(in *Input, n node) {
	n.get("data").each(func(k, v node) {
		text := v.text()
		if !strings.Contains(text, "static_resources") && !strings.Contains(text, "metricsQuery") {
			return
		}
		// Positions inside a block scalar follow its first line.
		lines := make([]string, v.line(), v.line()+64)
		lines = append(lines, strings.Split(text, "\n")...)
		d, err := parseDoc(n.d.file, lines, v.line()+1, len(lines))
		if err != nil {
			return
		}
		d.root = node{d.root.y, d}
		switch {
		case !d.root.ok():
		case isEnvoy(d.root):
			r.envoy(d.root)
		case d.root.has("rules", "externalRules", "seriesQuery"):
			r.adapterRules(d.root)
		}
	})
}

// fragment reads a piece of a manifest: a pod spec, a container, probes alone.
func (r *reader) fragment(n node) {
	switch {
	case n.has("seriesQuery", "metricsQuery") || anyHas(n.get("rules"), "seriesQuery") || anyHas(n.get("externalRules"), "seriesQuery") ||
		anyHas(n.get("rules", "custom"), "seriesQuery") || anyHas(n.get("rules", "external"), "seriesQuery"):
		r.adapterRules(n)
	case n.has("scaleTargetRef") && n.has("triggers"):
		r.set.Objects++
		r.set.Scaled = append(r.set.Scaled, readScaledObject(r.head(n, false), node{wrapSpec(n.y), n.d}))
	case n.has("scaleTargetRef") && n.has("metrics", "maxReplicas"):
		r.set.Objects++
		r.set.HPAs = append(r.set.HPAs, readHPA(r.head(n, false), node{wrapSpec(n.y), n.d}))
	default:
		r.workload(r.head(n, false), n)
	}
}

// wrapNode makes the list of nodes that readNodes expects of one Node object.
func wrapNode(n node) *yaml.Node {
	name := n.get("metadata", "name")
	alloc := n.get("status", "allocatable")
	if !name.ok() || !alloc.ok() {
		return nil
	}
	key := func(s string) *yaml.Node { return &yaml.Node{Kind: yaml.ScalarNode, Tag: "!!str", Value: s} }
	m := &yaml.Node{Kind: yaml.MappingNode, Tag: "!!map", Content: []*yaml.Node{key("name"), name.y, key("allocatable"), alloc.y}}
	return &yaml.Node{Kind: yaml.SequenceNode, Tag: "!!seq", Content: []*yaml.Node{m}}
}

// wrapSpec puts a spec that stands alone where readers look for it.
func wrapSpec(spec *yaml.Node) *yaml.Node {
	key := &yaml.Node{Kind: yaml.ScalarNode, Tag: "!!str", Value: "spec", Line: spec.Line, Column: spec.Column}
	return &yaml.Node{Kind: yaml.MappingNode, Tag: "!!map", Content: []*yaml.Node{key, spec}, Line: spec.Line, Column: spec.Column}
}

func anyHas(seq node, keys ...string) bool {
	for _, it := range seq.items() {
		if it.has(keys...) {
			return true
		}
	}
	return false
}
