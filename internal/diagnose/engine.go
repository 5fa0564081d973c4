// SPDX-License-Identifier: Apache-2.0

package diagnose

import (
	"strconv"
	"strings"
)

// Serves is whether something serves a model.
type Serves uint8

// Answers to "does this serve a model?".
const (
	ServesUnknown Serves = iota
	ServesNo
	ServesYes
)

// Engine is a model server by name.
type Engine string

// Engines that manifests and logs can be told apart by.
const (
	EngineUnknown  Engine = ""
	EngineVLLM     Engine = "vllm"
	EngineSGLang   Engine = "sglang"
	EngineTGI      Engine = "tgi"
	EngineLlamaCpp Engine = "llama.cpp"
	EngineTRT      Engine = "tensorrt-llm"
	EngineTriton   Engine = "triton"
	EngineOllama   Engine = "ollama"
)

type engineMark struct {
	mark   string
	engine Engine
}

// engineMarks are parts of images and commands, most specific first.
var engineMarks = [...]engineMark{
	{"text-generation-inference", EngineTGI}, {"text-generation-launcher", EngineTGI},
	{"sglang", EngineSGLang}, {"trtllm-serve", EngineTRT}, {"tensorrt-llm", EngineTRT}, {"tensorrt_llm", EngineTRT}, {"trtllm", EngineTRT},
	{"tritonserver", EngineTriton}, {"llama-server", EngineLlamaCpp}, {"llama.cpp", EngineLlamaCpp}, {"llamacpp", EngineLlamaCpp}, {"llama-cpp", EngineLlamaCpp},
	{"ollama", EngineOllama}, {"vllm", EngineVLLM}, {"lmdeploy", EngineUnknown}, {"aphrodite", EngineUnknown},
}

// notEngines are parts of images and names of what stands around a model server.
var notEngines = [...]string{
	"router", "gateway", "endpoint-picker", "inference-scheduler", "scheduler", "routing-sidecar", "sidecar", "/epp", "-epp", "exporter",
	"operator", "controller", "autoscaler", "proxy", "lora-syncer", "inference-sim", "cache-server", "open-webui", "benchmark", "guidellm", "genai-perf", "tokenizer",
}

// EngineOf tells which model server a container runs, and whether it is one at all.
func (c *Container) EngineOf() (Engine, Serves) {
	image := imagePath(c.Image.V)
	cmd := strings.ToLower(joinFields(c.Command) + " " + joinFields(c.Args))
	for _, m := range notEngines {
		if strings.Contains(image, m) || strings.Contains("-"+strings.ToLower(c.Name), m) {
			return EngineUnknown, ServesNo
		}
	}
	for _, m := range engineMarks {
		if strings.Contains(cmd, m.mark) || strings.Contains(image, m.mark) {
			return m.engine, ServesYes
		}
	}
	if c.GPUs() > 0 {
		return EngineUnknown, ServesYes
	}
	for _, flag := range [...]string{"--tensor-parallel-size", "--max-model-len", "--served-model-name", "--shutdown-timeout", "--model-path", "--model-id", "--tp-size", "--kv-cache-dtype"} {
		if strings.Contains(cmd, flag) {
			return EngineUnknown, ServesYes
		}
	}
	if c.Image.V == "" && len(c.Command)+len(c.Args) == 0 {
		return EngineUnknown, ServesUnknown
	}
	return EngineUnknown, ServesNo
}

// imagePath returns the last two parts of an image's path in lower case, without
// registry, tag and digest: a registry may be called anything.
func imagePath(image string) string {
	image, _, _ = strings.Cut(strings.ToLower(image), "@")
	if i := strings.LastIndexByte(image, ':'); i > strings.LastIndexByte(image, '/') {
		image = image[:i]
	}
	parts := strings.Split(image, "/")
	if len(parts) > 1 && (strings.ContainsAny(parts[0], ".:") || parts[0] == "localhost") {
		parts = parts[1:]
	}
	return "/" + strings.Join(parts[max(0, len(parts)-2):], "/")
}

func joinFields(fs []Field[string]) string {
	var b strings.Builder
	for i := range fs {
		if i > 0 {
			b.WriteByte(' ')
		}
		b.WriteString(fs[i].V)
	}
	return b.String()
}

// GPUs returns how many accelerators the container takes.
func (c *Container) GPUs() int {
	n := 0.0
	for _, list := range [...][]Resource{c.Limits, c.Requests} {
		for i := range list {
			if isGPUResource(list[i].Name) {
				n = max(n, list[i].Q.V)
			}
		}
	}
	return int(n)
}

func isGPUResource(name string) bool {
	switch {
	case strings.HasPrefix(name, "requests."):
		return isGPUResource(strings.TrimPrefix(name, "requests."))
	case strings.HasPrefix(name, "limits."):
		return isGPUResource(strings.TrimPrefix(name, "limits."))
	}
	return strings.HasSuffix(name, "/gpu") || strings.Contains(name, "nvidia.com/mig") || name == "google.com/tpu" ||
		strings.HasPrefix(name, "gpu.intel.com/") || name == "aws.amazon.com/neuron" || name == "aws.amazon.com/neuroncore" || name == "habana.ai/gaudi"
}

// Request returns the request of a resource, or its limit where there is no
// request: that is what the API server defaults to.
func (c *Container) Request(name string) (float64, bool) {
	for _, list := range [...][]Resource{c.Requests, c.Limits} {
		for i := range list {
			if list[i].Name == name {
				return list[i].Q.V, true
			}
		}
	}
	return 0, false
}

// Flag returns the value of a command line flag in the forms --flag value and
// --flag=value; dashes and underscores are the same.
func (c *Container) Flag(names ...string) Field[string] {
	for _, list := range [...][]Field[string]{c.Command, c.Args} {
		for i := range list {
			if f := flagIn(list, i, names); f.Set {
				return f
			}
		}
	}
	return Field[string]{}
}

func flagIn(list []Field[string], i int, names []string) Field[string] {
	// One element may hold a whole script.
	fields := strings.Fields(list[i].V)
	for j, w := range fields {
		if !strings.HasPrefix(w, "-") {
			continue
		}
		key, val, inline := strings.Cut(w, "=")
		key = strings.ReplaceAll(key, "_", "-")
		for _, name := range names {
			if key != name {
				continue
			}
			switch {
			case inline:
				return Field[string]{V: strings.Trim(val, `"'`), Set: true, Text: val, At: list[i].At}
			case j+1 < len(fields):
				return Field[string]{V: strings.Trim(fields[j+1], `"'`), Set: true, Text: fields[j+1], At: list[i].At}
			case j+1 == len(fields) && i+1 < len(list):
				return list[i+1]
			}
		}
	}
	return Field[string]{}
}

// flagInt returns an integer flag, and false where it is absent or no number.
func (c *Container) flagInt(names ...string) (int, Field[string], bool) {
	f := c.Flag(names...)
	if !f.Set {
		return 0, f, false
	}
	n, err := strconv.Atoi(f.V)
	return n, f, err == nil
}

// Serves tells whether a pod serves a model, and by which container.
func (p *Pod) Serves() (*Container, Serves) {
	best := ServesNo
	for i := range p.Containers {
		switch _, s := p.Containers[i].EngineOf(); s {
		case ServesYes:
			return &p.Containers[i], ServesYes
		case ServesUnknown:
			best = ServesUnknown
		}
	}
	if best == ServesUnknown && len(p.Containers) > 0 {
		return &p.Containers[0], best
	}
	return nil, best
}

// GPUs returns how many accelerators one pod takes.
func (p *Pod) GPUs() int {
	n := 0
	for i := range p.Containers {
		n += p.Containers[i].GPUs()
	}
	return n
}

// aroundModels are words of names of things that are not model servers, and whose
// scaling on CPU is right.
var aroundModels = [...]string{
	"router", "gateway", "epp", "picker", "proxy", "frontend", "backend", "web", "webui", "www", "ui", "dashboard", "grafana", "prometheus", "ingress",
	"nginx", "redis", "postgres", "db", "database", "exporter", "operator", "controller", "autoscaler", "webhook", "auth", "tokenizer", "scheduler",
	"sidecar", "cache", "store", "api", "apiserver", "server-api", "ratelimit", "collector",
}

// modelWords are words of names that models and model servers carry.
var modelWords = [...]string{
	"vllm", "sglang", "tgi", "llm", "llms", "llama", "qwen", "mistral", "mixtral", "deepseek", "gemma", "phi", "gpt", "falcon", "granite", "codellama",
	"starcoder", "glm", "kimi", "nemotron", "decode", "prefill", "predictor", "inference", "model", "triton", "instruct", "embedding", "embeddings", "chat",
}

// servesByName judges from the name alone. Names of what stands around model
// servers win: "llama-router" is a router.
func servesByName(name string) Serves {
	s := ServesUnknown
	for w := range strings.FieldsFuncSeq(strings.ToLower(name), func(r rune) bool { return r == '-' || r == '_' || r == '.' || r == '/' }) {
		for _, a := range aroundModels {
			if w == a {
				return ServesNo
			}
		}
		for _, m := range modelWords {
			if strings.HasPrefix(w, m) {
				s = ServesYes
			}
		}
		if n := len(w); n > 1 && w[n-1] == 'b' && w[n-2] >= '0' && w[n-2] <= '9' && w[0] >= '0' && w[0] <= '9' {
			s = ServesYes // 8b, 70b
		}
	}
	return s
}

// Target returns the workload that a scaler points at, nil where it was not read.
func (s *Set) Target(ref TargetRef, ns string) *Workload {
	for i := range s.Workloads {
		w := &s.Workloads[i]
		if w.Name == ref.Name && !w.Fragment && (ref.Kind == "" || w.Kind == ref.Kind) && sameNamespace(w.Namespace, ns) {
			return w
		}
	}
	return nil
}

func sameNamespace(a, b string) bool {
	return a == b || a == "" || b == ""
}

// targetServes tells whether the target of a scaler serves a model. how says what
// the answer rests on.
func (s *Set) targetServes(ref TargetRef, ns string) (w *Workload, serves Serves, how string) {
	if w = s.Target(ref, ns); w != nil {
		if c, sv := w.Pod.Serves(); sv != ServesUnknown {
			if c != nil && c.Name != "" {
				return w, sv, "container " + c.Name
			}
			return w, sv, w.Ref()
		}
	}
	sv := servesByName(ref.Name)
	return w, sv, "the name " + ref.Name
}
