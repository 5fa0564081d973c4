// SPDX-License-Identifier: Apache-2.0

package migrate

import (
	"cmp"
	"fmt"
	"slices"
	"strings"
)

// kubeAI converts Model objects of KubeAI. Its pods keep running as they are; Penstock
// finds them by the label that KubeAI gives them.
func (j *job) kubeAI() error {
	docs, err := j.objects()
	if err != nil {
		return err
	}
	models := 0
	for _, d := range docs {
		if d.get("kind").take() == "Model" && strings.HasPrefix(d.get("apiVersion").take(), "kubeai.org/") {
			models++
			j.kubeAIModel(d)
		} else {
			j.leaveObject(d, "only Model objects of KubeAI are converted")
		}
	}
	if models == 0 {
		return fmt.Errorf("%s holds no Model of kubeai.org", j.in.Name)
	}
	return nil
}

// objects reads documents and takes lists apart.
func (j *job) objects() ([]*node, error) {
	docs, err := documents(j.in.Name, j.in.Data)
	if err != nil {
		return nil, err
	}
	var out []*node
	for _, d := range docs {
		if items := d.get("items"); items != nil && strings.HasSuffix(d.get("kind").take(), "List") {
			for _, d := range items.list() {
				d.rebase(len(d.path) + 1)
				out = append(out, d)
			}
		} else {
			out = append(out, d)
		}
	}
	return out, nil
}

// rebase takes the first n bytes off the paths of all that is below.
func (n *node) rebase(cut int) {
	n.path = n.path[min(cut, len(n.path)):]
	for _, k := range n.kids {
		k.rebase(cut)
	}
}

// leaveObject notes a whole object by its kind and name.
func (j *job) leaveObject(d *node, why string) {
	kind, name := d.get("kind").take(), d.at("metadata", "name").take()
	if kind == "" {
		kind = "a document"
	}
	j.note(Left, strings.TrimSpace(kind+" "+name), d.line, why)
	d.mark()
}

func (j *job) kubeAIModel(d *node) {
	name := plain(d.at("metadata", "name").take())
	spec := d.get("spec")
	features := []string{}
	for _, f := range spec.get("features").list() {
		features = append(features, f.take())
	}
	switch {
	case !label(name):
		j.leaveObject(d, "it has no name that is a value of a label")
		return
	case len(features) > 0 && !slices.Contains(features, "TextGeneration"):
		j.leaveObject(d, "it generates no text: Penstock serves chat, completions, messages and responses")
		return
	}
	j.where = "Model " + name + " "
	defer func() { j.where = "" }()
	p := j.out.pool(name)
	p.remark = "Pods that KubeAI runs for " + name + "; it goes on moving them until its autoscaling is turned off."
	p.selector, p.port = []string{"model=" + name}, 8000
	if ns := d.at("metadata", "namespace").take(); label(ns) {
		p.namespace = ns
	}
	m := &model{name: name}
	if !j.out.serve(p, name) {
		j.note(Changed, "metadata.name", d.line, "a model of this name was there already: this pool serves what its replicas list")
	} else {
		p.models = []*model{m}
		j.kubeAIAdapters(p, m, spec.get("adapters"))
	}
	j.kubeAIScale(p, spec)
	p.policy = "penstock"
	if lb := spec.at("loadBalancing", "strategy"); lb != nil {
		p.was = plain(lb.take())
	} else {
		p.was = "LeastLoad, which is the default"
	}
	j.leave(spec.at("loadBalancing", "prefixHash"), "nothing to set: each candidate has a price in ms")
	if e := spec.get("engine"); e.take() != "" && e.val != "VLLM" && e.val != "OLlama" {
		j.note(Left, spec.path+".engine", e.line, "it is spoken to as OpenAI's API; what it does not know it will refuse")
	}
	d.get("metadata").mark()
	j.rest(d, kubeAIReason)
}

// label reports whether a text is a value that a label of Kubernetes may have.
func label(s string) bool {
	if s == "" || len(s) > 63 {
		return false
	}
	for _, r := range s {
		if !(r == '-' || r == '.' || r == '_' || '0' <= r && r <= '9' || 'a' <= r && r <= 'z' || 'A' <= r && r <= 'Z') {
			return false
		}
	}
	return true
}

func (j *job) kubeAIAdapters(p *pool, m *model, list *node) {
	for _, a := range list.list() {
		name := a.get("name").take()
		if !label(name) || strings.Contains(name, "..") || strings.ContainsAny(name[:1], "-._") || !j.out.serve(p, name) {
			a.unmark()
			j.leave(a, "its name is none that an adapter can have here, or it is taken")
			continue
		}
		m.adapters = append(m.adapters, name)
		j.leave(a.get("url"), "KubeAI goes on loading it; Penstock asks the replicas what they have")
		j.note(Changed, a.path, a.line, "clients ask for the adapter by its own name, not by model_adapter")
	}
}

func (j *job) kubeAIScale(p *pool, spec *node) {
	lo, hi := spec.get("minReplicas"), spec.get("maxReplicas")
	if lo == nil && hi == nil {
		return
	}
	n, okLo := lo.number()
	m, okHi := hi.number()
	if hi == nil {
		m, okHi = max(n, 8), okLo
	}
	if (lo != nil && !okLo) || !okHi || n > m || m < 1 || m > 10000 || n != float64(int(n)) || m != float64(int(m)) {
		for _, x := range []*node{lo, hi} {
			x.unmark()
			j.leave(x, "it is no number of replicas between 0 and 10,000, or they contradict each other")
		}
		return
	}
	p.min, p.max = int(n), int(m)
	at := cmp.Or(hi, lo)
	j.note(Changed, at.path, at.line, "scale says how many replicas there should be and sets nothing: to let it, turn KubeAI's autoscaling off and name scale.target")
}

var kubeAIReasons = map[string]string{
	"spec.url": "KubeAI goes on starting the engine", "spec.args": "KubeAI goes on starting the engine", "spec.env": "KubeAI goes on starting the engine",
	"spec.envFrom": "KubeAI goes on starting the engine", "spec.image": "KubeAI goes on starting the engine", "spec.files": "KubeAI goes on starting the engine",
	"spec.resourceProfile": "KubeAI goes on starting the engine", "spec.cacheProfile": "KubeAI goes on starting the engine", "spec.priorityClassName": "KubeAI goes on starting the engine",
	"spec.owner":                 "who owns a model is not told",
	"spec.targetRequests":        "what a replica carries follows from its engine profile and slo",
	"spec.scaleDownDelaySeconds": "nothing to set: a replica goes when its return would cost less than it does; scale.idleAfter is for the way to zero",
	"spec.replicas":              "a number of replicas at one time is nobody's wish",
	"spec.autoscalingDisabled":   "scale.mode is recommend until you write act",
	"spec.features":              "the models' own lists tell what they can do",
	"status":                     "what is, not what is wished",
}

func kubeAIReason(path string) string {
	return reasonOf(kubeAIReasons, path)
}

// reasonOf finds the reason of a path or of one above it.
func reasonOf(reasons map[string]string, path string) string {
	for path != "" {
		if why := reasons[path]; why != "" {
			return why
		}
		path = path[:max(strings.LastIndexByte(path, '.'), 0)]
	}
	return ""
}

// llmd converts InferencePools, with the picker's configuration beside them.
func (j *job) llmd() error {
	docs, err := j.objects()
	if err != nil {
		return err
	}
	pools := map[string]*pool{} // by namespace/name
	for _, d := range docs {
		if d.get("kind").take() == "InferencePool" {
			j.inferencePool(d, pools)
		}
	}
	for _, d := range docs {
		switch kind := d.get("kind").take(); kind {
		case "InferencePool":
		case "InferenceModel":
			j.inferenceModel(d, pools)
		case "InferenceObjective":
			j.leaveObject(d, "priorities are shares here: give tenants a weight")
		case "EndpointPickerConfig":
			j.pickerConfig(d, pools)
		case "VariantAutoscaling", "HorizontalPodAutoscaler", "ScaledObject":
			j.leaveObject(d, "write scale for the pool, with scale.target; `penstock lint` says what this object will do")
		case "HTTPRoute", "Gateway":
			j.leaveObject(d, "it stays as it is: the pool is the same, only its picker is another")
		case "ConfigMap":
			if !j.embedded(d, pools) {
				j.leaveObject(d, "it holds no configuration of a picker")
			}
		default:
			j.leaveObject(d, "there is nothing in it for a router")
		}
	}
	if len(pools) == 0 {
		return fmt.Errorf("%s holds no InferencePool", j.in.Name)
	}
	return nil
}

// embedded converts the picker configurations in a ConfigMap, and notes what stands
// beside them; false where there are none.
func (j *job) embedded(d *node, pools map[string]*pool) bool {
	data := d.get("data")
	if data == nil {
		return false
	}
	j.where = "ConfigMap " + d.at("metadata", "name").take() + " "
	defer func() { j.where = "" }()
	var others []*node
	for _, n := range data.kids {
		docs, err := documents(n.path, []byte(n.val))
		if err != nil || len(docs) == 0 {
			others = append(others, n)
		}
		for _, c := range docs {
			if c.get("kind").take() != "EndpointPickerConfig" {
				others = append(others, n)
				continue
			}
			c.shift(n.line)
			j.pickerConfig(c, pools)
			n.used = true
		}
	}
	if !slices.ContainsFunc(data.kids, func(n *node) bool { return n.used }) {
		return false
	}
	for _, n := range others {
		j.note(Left, n.path, n.line, "it is no configuration of a picker")
	}
	return true
}

// shift adds to the lines of a text that stands inside of a source.
func (n *node) shift(lines int) {
	n.line += lines
	for _, k := range n.kids {
		k.shift(lines)
	}
}

func (j *job) inferencePool(d *node, pools map[string]*pool) {
	name, ns := d.at("metadata", "name").take(), d.at("metadata", "namespace").take()
	if !label(name) || ns != "" && !label(ns) {
		j.leaveObject(d, "it has no name of an object")
		return
	}
	if ns == "" {
		ns = "default"
		j.note(Changed, "InferencePool "+name, d.line, "it names no namespace: default is written")
	}
	full := ns + "/" + name
	if pools[full] != nil {
		j.leaveObject(d, "it was there already")
		return
	}
	p := j.out.pool(name)
	p.inferencePool, p.policy = full, "penstock"
	p.remark = "Selector and port are read from the InferencePool in the cluster."
	pools[full] = p
	for _, ref := range []string{"endpointPickerRef", "extensionRef"} {
		if r := d.at("spec", ref); r != nil {
			j.note(Todo, "InferencePool "+name+" "+ref, r.line, "point it to the Service of `penstock epp`, see docs/how-to/behind-envoy.md; `penstock serve` needs none")
		}
	}
	d.mark() // the object is read as it is
}

func (j *job) inferenceModel(d *node, pools map[string]*pool) {
	spec := d.get("spec")
	ref, ns := spec.at("poolRef", "name").take(), d.at("metadata", "namespace").take()
	if ns == "" {
		ns = "default"
	}
	p := pools[ns+"/"+ref]
	public := plain(spec.get("modelName").take())
	if p == nil || public == "" {
		j.leaveObject(d, "it names no model, or a pool that is not in this file")
		return
	}
	targets := spec.get("targetModels").list()
	if len(targets) > 1 {
		j.leaveObject(d, "one name for several models: write rollouts, see docs/how-to/canary.md")
		return
	}
	real := public
	if len(targets) == 1 {
		real = plain(targets[0].get("name").take())
	}
	if real == "" || !j.out.serve(p, real) {
		j.leaveObject(d, "the name is taken by another model here, or it has none")
		return
	}
	m := &model{name: real}
	p.models = append(p.models, m)
	j.where = "InferenceModel " + d.at("metadata", "name").take() + " "
	defer func() { j.where = "" }()
	if public != real {
		if j.out.serve(p, public) {
			m.aliases = []string{public}
		} else {
			name := spec.get("modelName")
			j.note(Changed, name.path, name.line, "the name is taken by another model here: ask for this one as its engines call it")
		}
	}
	j.leave(spec.get("criticality"), "priorities are shares here: give tenants a weight")
	for _, n := range []*node{d.get("apiVersion"), d.get("metadata"), d.get("status"), spec.get("poolRef"), spec.get("targetModels")} {
		n.mark()
	}
	j.rest(d, func(string) string { return "" })
}

// pluginReasons say what becomes of a picker's plugin, by its type.
var pluginReasons = map[string]string{
	"prefix-cache-scorer":         "where a prompt was cached is part of each price",
	"precise-prefix-cache-scorer": "engine.kvEvents is auto: events of the KV caches are heard where replicas tell of them",
	"kv-cache-indexer":            "engine.kvEvents is auto: events of the KV caches are heard where replicas tell of them",
	"session-affinity-scorer":     "sessions are bound to nothing; route.sessionHeaders names headers that guess where a prompt was cached",
	"lora-affinity-scorer":        "loading an adapter is part of each price",
	"pd-profile-handler":          whyPD, "prefill-filter": whyPD, "decode-filter": whyPD, "prefill-header-handler": whyPD, "disagg-profile-handler": whyPD,
	"by-label": "give each set of pods a pool of its own", "by-label-selector": "give each set of pods a pool of its own", "label-selector-filter": "give each set of pods a pool of its own",
}

func (j *job) pickerConfig(d *node, pools map[string]*pool) {
	for _, p := range pools {
		p.was = "scorers with weights"
	}
	d.get("apiVersion").mark()
	d.get("metadata").mark()
	for _, pl := range d.get("plugins").list() {
		why := pluginReasons[pl.get("type").take()]
		if why == "" {
			why = "one price in ms takes the place of filters, scorers, weights and pickers"
		}
		pl.unmark()
		j.leave(pl, why)
	}
	j.rest(d, func(path string) string {
		return reasonOf(map[string]string{
			"schedulingProfiles": "one price in ms takes the place of filters, scorers, weights and pickers",
			"featureGates":       "nothing to turn on",
			"saturationDetector": "a pool takes a request as long as a replica is predicted to serve it; route.holdFor lets it wait where none does",
			"flowControl":        "route.holdFor lets requests wait, tenants[].weight shares what is short",
			"dataLayer":          "metrics of the engines are read under their own names",
			"data":               "metrics of the engines are read under their own names",
			"parser":             "the APIs of OpenAI and Anthropic are parsed",
			"requestHandler":     "the APIs of OpenAI and Anthropic are parsed",
		}, path)
	})
}
