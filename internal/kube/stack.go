// SPDX-License-Identifier: Apache-2.0

package kube

import (
	"cmp"
	"context"
	"fmt"
	"slices"
	"strings"

	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
)

// Workload is one set of model servers, with who picks among them and who sets how
// many there are.
type Workload struct {
	Target  string // "Deployment models/llm"
	Engine  string // as its image or command names it; "" unknown
	RunBy   string // what wrote the object: itself, a KServe service
	Picks   []string
	Scales  []string
	Picking string // what Penstock may own of picking, and how
	Scaling string // of scaling
	// Labels find its pods, for replicas.selector.
	Labels string
}

// Kinds of the projects that own workloads, as their CRDs name them. A cluster has
// one version of each.
var (
	inferenceServices = []schema.GroupVersionResource{{Group: "serving.kserve.io", Version: "v1beta1", Resource: "inferenceservices"}}
	llmServices       = []schema.GroupVersionResource{{Group: "serving.kserve.io", Version: "v1alpha2", Resource: "llminferenceservices"}, {Group: "serving.kserve.io", Version: "v1alpha1", Resource: "llminferenceservices"}}
	variants          = []schema.GroupVersionResource{{Group: "llmd.ai", Version: "v1alpha1", Resource: "variantautoscalings"}}
)

// first lists the objects of the first version that is served; none where none is.
func (c *Cluster) first(ctx context.Context, ns string, of []schema.GroupVersionResource) ([]unstructured.Unstructured, error) {
	for _, gvr := range of {
		l, err := c.Dynamic.Resource(gvr).Namespace(ns).List(ctx, metav1.ListOptions{})
		if apierrors.IsNotFound(err) {
			continue
		}
		if err != nil {
			return nil, fmt.Errorf("%s: %w", gvr.Resource, err)
		}
		return l.Items, nil
	}
	return nil, nil
}

// engineWords find a model server in an image or a command line.
var engineWords = []struct{ word, engine string }{
	{"vllm", "vLLM"}, {"sglang", "SGLang"}, {"tensorrt", "TensorRT-LLM"}, {"trtllm", "TensorRT-LLM"}, {"tritonserver", "Triton"},
	{"text-generation-inference", "TGI"}, {"text-generation-launcher", "TGI"}, {"llama-server", "llama.cpp"}, {"llama.cpp", "llama.cpp"}, {"ollama", "Ollama"},
}

func engineOf(p *corev1.PodSpec) string {
	for i := range p.Containers {
		c := &p.Containers[i]
		text := strings.ToLower(strings.Join(append(append([]string{c.Image}, c.Command...), c.Args...), " "))
		for _, w := range engineWords {
			if strings.Contains(text, w.word) {
				return w.engine
			}
		}
	}
	return ""
}

// stack is what was found in a namespace, to judge its workloads by.
type stack struct {
	pools, services, llm, variants []unstructured.Unstructured
}

// Stack finds the workloads of a namespace ("" is all) that run a model server or
// belong to an inference pool or a KServe service, ordered by name.
func (c *Cluster) Stack(ctx context.Context, ns string) ([]Workload, error) {
	var s stack
	for _, x := range []struct {
		to *[]unstructured.Unstructured
		of []schema.GroupVersionResource
	}{{&s.pools, []schema.GroupVersionResource{PoolResource}}, {&s.services, inferenceServices}, {&s.llm, llmServices}, {&s.variants, variants}} {
		var err error
		if *x.to, err = c.first(ctx, ns, x.of); err != nil {
			return nil, err
		}
	}
	var out []Workload
	deployments, err := c.Pods.AppsV1().Deployments(ns).List(ctx, metav1.ListOptions{})
	if err != nil {
		return nil, err
	}
	for i := range deployments.Items {
		d := &deployments.Items[i]
		if out, err = c.judge(ctx, out, &s, "Deployment", &d.ObjectMeta, d.Spec.Selector, &d.Spec.Template); err != nil {
			return nil, err
		}
	}
	sets, err := c.Pods.AppsV1().StatefulSets(ns).List(ctx, metav1.ListOptions{})
	if err != nil {
		return nil, err
	}
	for i := range sets.Items {
		d := &sets.Items[i]
		if byGroup(d) {
			continue
		}
		if out, err = c.judge(ctx, out, &s, "StatefulSet", &d.ObjectMeta, d.Spec.Selector, &d.Spec.Template); err != nil {
			return nil, err
		}
	}
	if out, err = c.groups(ctx, ns, out, &s); err != nil {
		return nil, err
	}
	slices.SortFunc(out, func(a, b Workload) int { return cmp.Compare(a.Target, b.Target) })
	return out, nil
}

// groups adds the LeaderWorkerSets: each of their groups of pods is one replica, and the
// leader of a group answers for it.
func (c *Cluster) groups(ctx context.Context, ns string, out []Workload, s *stack) ([]Workload, error) {
	sets, err := c.first(ctx, ns, []schema.GroupVersionResource{wellKnown["leaderworkerset"]})
	if err != nil {
		return nil, err
	}
	for i := range sets {
		o := &sets[i]
		var spec struct {
			LeaderWorkerTemplate struct {
				LeaderTemplate *corev1.PodTemplateSpec `json:"leaderTemplate"`
				WorkerTemplate corev1.PodTemplateSpec  `json:"workerTemplate"`
			} `json:"leaderWorkerTemplate"`
		}
		raw, _, _ := unstructured.NestedMap(o.Object, "spec")
		if err := runtime.DefaultUnstructuredConverter.FromUnstructured(raw, &spec); err != nil {
			return nil, fmt.Errorf("LeaderWorkerSet %s/%s: %w", o.GetNamespace(), o.GetName(), err)
		}
		pods := &spec.LeaderWorkerTemplate.WorkerTemplate
		if l := spec.LeaderWorkerTemplate.LeaderTemplate; l != nil {
			pods = l
		}
		m := metav1.ObjectMeta{Namespace: o.GetNamespace(), Name: o.GetName(), Labels: o.GetLabels(), OwnerReferences: o.GetOwnerReferences()}
		sel := &metav1.LabelSelector{MatchLabels: map[string]string{groupName: o.GetName(), "leaderworkerset.sigs.k8s.io/worker-index": "0"}}
		if out, err = c.judge(ctx, out, s, "LeaderWorkerSet", &m, sel, pods); err != nil {
			return nil, err
		}
	}
	return out, nil
}

// groupName is the label by which all that a LeaderWorkerSet makes names it.
const groupName = "leaderworkerset.sigs.k8s.io/name"

// byGroup reports whether a LeaderWorkerSet made the set: that one is to be scaled.
func byGroup(s *appsv1.StatefulSet) bool {
	return s.Labels[groupName] != ""
}

// judge adds a workload where it is one of models.
func (c *Cluster) judge(ctx context.Context, out []Workload, s *stack, kind string, m *metav1.ObjectMeta, sel *metav1.LabelSelector, pods *corev1.PodTemplateSpec) ([]Workload, error) {
	w := Workload{Target: kind + " " + m.Namespace + "/" + m.Name, Engine: engineOf(&pods.Spec), RunBy: "itself", Labels: metav1.FormatLabelSelector(sel)}
	pool := s.poolOf(m.Namespace, pods.Labels)
	service, llm := kserveOf(m, pods)
	if w.Engine == "" && pool == nil && service == "" && llm == "" {
		return out, nil
	}
	owners, err := c.Owners(ctx, Target{Kind: kind, Namespace: m.Namespace, Name: m.Name}, Reader{})
	if err != nil {
		return nil, err
	}
	for _, o := range owners {
		w.Scales = append(w.Scales, o.String())
	}
	for i := range s.variants {
		ref, _, _ := unstructured.NestedStringMap(s.variants[i].Object, "spec", "scaleTargetRef")
		if s.variants[i].GetNamespace() == m.Namespace && (ref["name"] == m.Name || s.variants[i].GetName() == m.Name) {
			w.Scales = append(w.Scales, "VariantAutoscaling "+s.variants[i].GetName()+" (llm-d; says how many, through an HPA or KEDA)")
		}
	}
	w.Picking, w.Scaling = "all: replicas.selector with labels "+w.Labels, "all: scale.target "+w.Target
	if pool != nil {
		w.pool(pool)
	} else {
		w.Picks = []string{"a Service (spreads connections, not requests)"}
	}
	switch {
	case llm != "":
		w.llmService(s, m.Namespace, llm, pods.Labels["llm-d.ai/role"] == "prefill")
	case service != "":
		w.service(s, m.Namespace, service)
	}
	if len(owners) > 0 {
		w.Scaling = "nothing while " + owners[0].String() + " does: delete it, or let it read Penstock's number"
	}
	return append(out, w), nil
}

func (s *stack) poolOf(ns string, podLabels map[string]string) *unstructured.Unstructured {
	for i := range s.pools {
		p := &s.pools[i]
		match, ok, _ := unstructured.NestedStringMap(p.Object, "spec", "selector", "matchLabels")
		if ok && p.GetNamespace() == ns && len(match) > 0 && labels.SelectorFromSet(match).Matches(labels.Set(podLabels)) {
			return p
		}
	}
	return nil
}

// pool says who picks in an InferencePool.
func (w *Workload) pool(p *unstructured.Unstructured) {
	picker, _, _ := unstructured.NestedString(p.Object, "spec", "endpointPickerRef", "name")
	w.Picks = []string{fmt.Sprintf("endpoint picker %s of InferencePool %s", cmp.Or(picker, "(none)"), p.GetName())}
	w.Picking = fmt.Sprintf("as the picker: replicas.inferencePool %s/%s, and its endpointPickerRef at Penstock's Service", p.GetNamespace(), p.GetName())
	if strings.Contains(picker, "penstock") {
		w.Picking = "it is Penstock's"
	}
}

// kserveOf finds which service of KServe wrote an object.
func kserveOf(m *metav1.ObjectMeta, pods *corev1.PodTemplateSpec) (service, llm string) {
	for _, o := range m.OwnerReferences {
		switch o.Kind {
		case "InferenceService":
			service = o.Name
		case "LLMInferenceService":
			llm = o.Name
		}
	}
	if service == "" && llm == "" {
		service = pods.Labels["serving.kserve.io/inferenceservice"]
	}
	return service, llm
}

// service says what an InferenceService leaves to others: replicas only where its
// autoscaler class does.
func (w *Workload) service(s *stack, ns, name string) {
	w.RunBy = "KServe InferenceService " + name
	class := "hpa"
	for i := range s.services {
		if s.services[i].GetName() == name && s.services[i].GetNamespace() == ns {
			class = cmp.Or(s.services[i].GetAnnotations()["serving.kserve.io/autoscalerClass"], "hpa")
		}
	}
	if class == "external" {
		w.Scaling = "replicas: KServe leaves them alone (autoscalerClass external); pods and their template stay KServe's"
		return
	}
	if class == "none" {
		class = "none: it writes minReplicas back"
	}
	w.Scales = append(w.Scales, "KServe (autoscalerClass "+class+")")
	w.Scaling = "nothing: KServe writes the replicas; annotate the InferenceService with serving.kserve.io/autoscalerClass: external"
}

// llmService says what an LLMInferenceService leaves to others.
func (w *Workload) llmService(s *stack, ns, name string, prefill bool) {
	w.RunBy = "KServe LLMInferenceService " + name
	for i := range s.llm {
		o := &s.llm[i]
		if o.GetName() != name || o.GetNamespace() != ns {
			continue
		}
		path := []string{"spec"}
		if prefill { // its replicas are counted for themselves
			path = append(path, "prefill")
		}
		field := strings.Join(path, ".")
		if _, ok, _ := unstructured.NestedMap(o.Object, append(path, "scaling")...); ok {
			w.Scales = append(w.Scales, "KServe ("+field+".scaling of the LLMInferenceService)")
			w.Scaling = "nothing while " + field + ".scaling is set"
			return
		}
		if n, ok, _ := unstructured.NestedInt64(o.Object, append(path, "replicas")...); ok {
			w.Scales = append(w.Scales, fmt.Sprintf("KServe (%s.replicas %d of the LLMInferenceService)", field, n))
			w.Scaling = "nothing while " + field + ".replicas is set: KServe writes it back"
			return
		}
		w.Scaling = "replicas: KServe leaves them alone (" + field + " sets neither replicas nor scaling); pods and their template stay KServe's"
	}
}
