// SPDX-License-Identifier: Apache-2.0

package manifest

import (
	"regexp"
	"strings"

	"github.com/penstock-project/penstock/internal/diagnose"
)

// observation reads a document that is no manifest but a note of what was seen:
// start-up times, nodes with their accelerators, distributions of metrics, an
// answer of Prometheus, a list of models, the state of an autoscaler. It reports
// whether the document was one.
func (r *reader) observation(in *Input, n node) bool {
	seen := &r.set.Seen
	hit := false
	switch {
	case n.str("status") != "" && n.get("data").has("resultType", "result"):
		seen.Vectors = append(seen.Vectors, readVector(n))
		return true
	case n.str("status") == "error" && n.has("error", "errorType"):
		seen.Vectors = append(seen.Vectors, diagnose.Vector{File: n.d.file, Error: n.str("error")})
		return true
	case n.str("object") == "list" && n.get("data").isSeq():
		for _, m := range n.get("data").items() {
			if id := m.str("id"); id != "" {
				seen.Models = append(seen.Models, id)
			}
		}
		return true
	case n.get("metric").isMap() && n.get("metric").has("target", "value"):
		seen.HPA = append(seen.HPA, readSeenHPA(n))
		return true
	}
	n.each(func(k, v node) {
		if r.observedKey(in, normKey(k.text()), k, v) {
			hit = true
		}
	})
	if ann := n.get("metadata", "annotations"); ann.ok() && !n.has("spec") {
		for _, p := range ann.pairs() {
			if key := normKey(p.Name); strings.HasSuffix(key, "model_id") || strings.HasSuffix(key, "model") || strings.HasSuffix(key, "model_name") {
				seen.PolicyModel, hit = p.Value, true
			}
		}
	}
	if hit {
		if seen.File == "" {
			seen.File = n.d.file
		}
		set := func(f *diagnose.Field[int], keys ...string) {
			if v := firstInt(n, keys...); v.Set {
				*f = v
			}
		}
		set(&seen.Min, "min", "min_replicas", "minReplicas")
		set(&seen.Max, "max", "max_replicas", "maxReplicas")
		set(&seen.Ready, "ready", "ready_replicas", "readyReplicas")
		set(&seen.Spec, "spec", "spec_replicas", "specReplicas", "replicas")
		n.each(func(k, v node) {
			if f := scalarField(k, v, number); f.Set {
				seen.Settings = append(seen.Settings, diagnose.Setting{Name: normKey(k.text()), V: f})
			}
		})
	}
	return hit
}

// startKey matches names of start-up times: start_seconds, cold_start_s,
// model_70b_start_seconds, startup, load_time.
var startKey = regexp.MustCompile(`^(?:(.*)_)?(?:cold_start|start_up|startup|start|load)(?:_times?|_durations?)?(?:_(s|sec|secs|seconds|ms|min|minutes))?$`)

func (r *reader) observedKey(in *Input, key string, k, v node) bool {
	seen := &r.set.Seen
	switch key {
	case "nodes":
		return readNodes(seen, v)
	case "pods":
		ok := false
		for _, it := range v.items() {
			ok = r.observedItem(in, it) || ok
		}
		return ok
	case "streams", "running":
		ok := false
		for _, it := range v.items() {
			ok = r.observedItem(in, it) || ok
		}
		return ok
	case "metrics", "observed", "signals":
		ok := false
		v.each(func(k, v node) { ok = readSeenMetric(seen, k, v) || ok })
		return ok
	case "starts":
		ok := false
		for _, it := range v.items() {
			if f := firstSeconds(it, "seconds", "start_seconds", "startup_seconds", "s"); f.Set {
				seen.Starts, ok = append(seen.Starts, diagnose.Start{Name: it.str("name"), Seconds: f.V}), true
			}
		}
		return ok
	case "failure_mode":
		return r.drill(k, v)
	case "gpus_per_replica", "gpu_per_replica":
		seen.GPUsPer = scalarField(k, v, parseInt)
		return seen.GPUsPer.Set
	case "namespace_gpu_quota", "gpu_quota", "quota_gpus":
		seen.GPUQuota = scalarField(k, v, parseInt)
		return seen.GPUQuota.Set
	case "cpu_cores", "cpu_used_cores", "cpu_usage", "cpu_used", "cpu", "cpu_cores_used":
		if f := scalarField(k, v, diagnose.ParseQuantity); f.Set {
			seen.CPUCores = f
			return true
		}
		return false
	case "longest_stream_s", "longest_stream_seconds", "longest_stream", "max_stream_seconds", "longest_request_s", "longest_generation_s":
		if f := scalarField(k, v, diagnose.ParseSeconds); f.Set {
			seen.Streams = append(seen.Streams, diagnose.SeenStream{Total: f})
			return true
		}
		return false
	}
	if m := startKey.FindStringSubmatch(key); m != nil && readStarts(seen, m[1], m[2], v) {
		return true
	}
	if strings.HasSuffix(key, "_window_s") || strings.HasSuffix(key, "_window") || strings.HasPrefix(key, "target_") || strings.HasPrefix(key, "hold_") ||
		strings.HasSuffix(key, "block_tokens") || key == "scrape_interval_s" {
		return scalarField(k, v, number).Set // a scaler's policy
	}
	return readSeenMetric(seen, k, v)
}

// drill reads the failure modes of a drill's plan. One that is not set is a pool
// whose mode is the default.
func (r *reader) drill(k, v node) bool {
	unset := v.isScalar() && isUnset(v.text())
	for _, it := range v.items() {
		unset = unset || isUnset(it.text())
	}
	if unset {
		o := diagnose.Object{File: v.d.file, Line: k.line(), Kind: "pool", Name: v.d.root.str("pool")}
		r.set.Pools = append(r.set.Pools, diagnose.Pool{Object: o, Picker: &diagnose.PickerRef{Line: k.line()}})
		r.set.Objects++
	}
	return v.isScalar() || v.isSeq()
}

func isUnset(s string) bool { return s == "" || s == "unset" || s == "default" || s == "none" }

// number reads a plain number or a duration in seconds.
func number(s string) (float64, bool) {
	if v, ok := diagnose.ParseQuantity(s); ok {
		return v, true
	}
	return diagnose.ParseSeconds(s)
}

func readStarts(seen *diagnose.Observed, name, unit string, v node) bool {
	name = strings.Trim(strings.TrimPrefix(name, "model_"), "_")
	if name == "slowest" || name == "observed" || name == "measured" || name == "max" || name == "pod" || name == "replica" {
		name = ""
	}
	scale := 1.0
	switch unit {
	case "ms":
		scale = 1e-3
	case "min", "minutes":
		scale = 60
	}
	ok := false
	add := func(it node) {
		if s, good := diagnose.ParseSeconds(it.text()); good && s > 0 {
			seen.Starts, ok = append(seen.Starts, diagnose.Start{Name: strings.ReplaceAll(name, "_", "-"), Seconds: s * scale}), true
		}
	}
	if v.isScalar() {
		add(v)
	}
	for _, it := range v.items() {
		add(it)
	}
	return ok
}

// readNodes reads nodes with their accelerators in the spelling of a note or of
// the Kubernetes API.
func readNodes(seen *diagnose.Observed, v node) bool {
	ok := false
	for _, it := range v.items() {
		g := diagnose.NodeGPUs{Name: it.str("name")}
		total := firstInt(it, "gpus", "gpu", "allocatable_gpus", "nvidia.com/gpu", "capacity")
		if !total.Set {
			total = it.get("allocatable").intField("nvidia.com/gpu")
		}
		if !total.Set {
			continue
		}
		g.GPUs = total.V
		used := firstInt(it, "used", "gpus_used", "allocated")
		g.Used = used.V
		it.get("used_by").each(func(_, u node) {
			if n, good := parseInt(u.text()); good {
				g.Used += n
			}
		})
		if free := firstInt(it, "free", "gpus_free"); free.Set {
			g.Used = g.GPUs - free.V
		}
		seen.Nodes, ok = append(seen.Nodes, g), true
	}
	return ok
}

func firstInt(n node, keys ...string) diagnose.Field[int] {
	for _, k := range keys {
		if f := n.intField(k); f.Set {
			return f
		}
	}
	return diagnose.Field[int]{}
}

func firstSeconds(n node, keys ...string) diagnose.Field[float64] {
	for _, k := range keys {
		if f := n.secondsField(k); f.Set {
			return f
		}
	}
	return diagnose.Field[float64]{}
}

func firstStr(n node, keys ...string) string {
	for _, k := range keys {
		if s := n.str(k); s != "" {
			return s
		}
	}
	return ""
}

// readSeenMetric reads "name: {min: 0, p50: 0.5, max: 0.97}".
func readSeenMetric(seen *diagnose.Observed, k, v node) bool {
	if !v.isMap() || !v.has("min", "max", "p50", "median", "p95", "p99", "mean", "avg") {
		return false
	}
	m := diagnose.SeenMetric{Name: k.text(), Min: v.floatField("min"), Max: v.floatField("max"), P50: v.floatField("p50")}
	for _, key := range [...]string{"median", "mean", "avg"} {
		if f := v.floatField(key); f.Set && !m.P50.Set {
			m.P50 = f
		}
	}
	for _, key := range [...]string{"p99", "p95"} {
		if f := v.floatField(key); f.Set && !m.Max.Set {
			m.Max = f
		}
	}
	if !m.Min.Set && !m.Max.Set && !m.P50.Set {
		return false
	}
	seen.Metrics = append(seen.Metrics, m)
	return true
}

// observedItem reads one element of a list: a pod with its labels or a stream.
func (r *reader) observedItem(in *Input, it node) bool {
	seen := &r.set.Seen
	switch {
	case it.has("stream_age_s", "expected_total_s", "streams", "age_s", "total_s"):
		seen.Streams = append(seen.Streams, diagnose.SeenStream{
			Pod: firstStr(it, "pod", "name", "replica"), Age: firstSeconds(it, "stream_age_s", "age_s"),
			Total: firstSeconds(it, "expected_total_s", "total_s"), Streams: it.intField("streams"),
		})
		return true
	case it.get("labels").isMap() && it.has("name") && !it.has("image", "command"):
		seen.Pods = append(seen.Pods, diagnose.SeenPod{Name: it.str("name"), Labels: it.get("labels").pairs()})
		return true
	}
	return false
}

func readVector(n node) diagnose.Vector {
	v := diagnose.Vector{File: n.d.file}
	for _, it := range n.get("data", "result").items() {
		s := diagnose.Series{Labels: it.get("metric").pairs()}
		if vals := it.get("value").items(); len(vals) == 2 {
			s.Value = scalarField(node{}, vals[1], diagnose.ParseQuantity)
		}
		v.Series = append(v.Series, s)
	}
	return v
}

func readSeenHPA(n node) diagnose.SeenHPA {
	m := n.get("metric")
	return diagnose.SeenHPA{
		File: n.d.file, Line: n.line(), Object: firstStr(n, "name", "hpa", "object"),
		Spec:  firstInt(n, "spec_replicas", "replicas", "specReplicas", "current_replicas", "currentReplicas", "spec"),
		Ready: firstInt(n, "ready", "ready_replicas", "readyReplicas"), Max: firstInt(n, "max", "max_replicas", "maxReplicas"),
		Recommendation: firstInt(n, "hpa_recommendation", "recommendation", "desired", "desiredReplicas", "desired_replicas"),
		Metric:         m.str("name"), TargetType: m.str("type"), Value: m.floatField("value"), Target: m.floatField("target"),
	}
}

// normKey writes a key in lower case with underscores: startSeconds is
// start_seconds.
func normKey(k string) string {
	var b strings.Builder
	for i := 0; i < len(k); i++ {
		c := k[i]
		switch {
		case c >= 'A' && c <= 'Z':
			if i > 0 && k[i-1] >= 'a' && k[i-1] <= 'z' {
				b.WriteByte('_')
			}
			b.WriteByte(c + 'a' - 'A')
		case c == '-' || c == ' ' || c == '.' || c == '/':
			b.WriteByte('_')
		default:
			b.WriteByte(c)
		}
	}
	return b.String()
}
