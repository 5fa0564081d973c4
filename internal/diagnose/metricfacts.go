// SPDX-License-Identifier: Apache-2.0

package diagnose

import "strings"

// MetricKind is what the number of a metric is, as far as its name tells.
type MetricKind uint8

// Metric kinds.
const (
	KindUnknown  MetricKind = iota
	KindRatio               // 0..1
	KindPercent             // 0..100
	KindCount               // requests or items at a moment; grows with load without bound
	KindReplicas            // already a number of replicas
	KindSeconds             //
	KindMillis              //
	KindMicros              //
	KindRate                // events per second
	KindBytes               //
	KindTotal               // a counter since the start of the process
)

// SignalKind is what a metric says of the system.
type SignalKind uint8

// Signal kinds. The last four mislead an autoscaler of model servers.
const (
	SignalOther    SignalKind = iota
	SignalQueue               // requests that wait
	SignalRunning             // requests in the batch
	SignalKV                  // share of the KV cache
	SignalLatency             // TTFT, ITL, queue time
	SignalTokens              // tokens or tokens per second
	SignalReplicas            // somebody else's recommendation
	SignalRequests            // requests per second, or a counter of requests
	SignalCPU                 //
	SignalGPU                 // utilisation of the accelerator
	SignalMemory              // memory of the host or of the accelerator
)

// MetricFact is what is known of a metric from its name.
type MetricFact struct {
	Kind     MetricKind
	Signal   SignalKind
	Averaged bool // it is a mean, a maximum or a quantile: it does not grow with replicas
	Known    bool // the exact name is in the table
}

// Bounded returns the largest value that a metric of this kind can take, and
// whether there is one.
func (f MetricFact) Bounded() (float64, bool) {
	switch f.Kind {
	case KindRatio:
		return 1, true
	case KindPercent:
		return 100, true
	}
	return 0, false
}

// Engine reports whether the metric describes what binds a model server.
func (f MetricFact) Engine() bool {
	switch f.Signal {
	case SignalQueue, SignalRunning, SignalKV, SignalLatency, SignalTokens, SignalReplicas:
		return true
	}
	return false
}

type factRow struct {
	names string // normalised, space separated
	fact  MetricFact
}

// factTable lists exact names as the engines and the field's controllers publish
// them, normalised: lower case, separators as underscores. The units are those of
// the publishers' own documentation.
var factTable = [...]factRow{
	{"vllm_kv_cache_usage_perc vllm_gpu_cache_usage_perc gpu_cache_usage_perc kv_cache_usage_perc cpu_cache_usage_perc vllm_cpu_cache_usage_perc sglang_token_usage token_usage trtllm_kv_cache_utilization llamacpp_kv_cache_usage_ratio kv_cache_usage kv_cache_utilization gpu_kv_cache_usage",
		MetricFact{Kind: KindRatio, Signal: SignalKV}},
	{"inference_pool_average_kv_cache_utilization llm_d_epp_average_kv_cache_utilization",
		MetricFact{Kind: KindRatio, Signal: SignalKV, Averaged: true}},
	{"vllm_num_requests_waiting num_requests_waiting vllm_num_requests_waiting_by_reason sglang_num_queue_reqs num_queue_reqs tgi_queue_size llamacpp_requests_deferred trtllm_num_requests_waiting inference_extension_flow_control_queue_size llm_d_epp_flow_control_queue_size inference_pool_per_pod_queue_size llm_d_epp_per_endpoint_queue_size epp_queue_size num_requests_swapped vllm_num_requests_swapped",
		MetricFact{Kind: KindCount, Signal: SignalQueue}},
	{"inference_pool_average_queue_size llm_d_epp_average_queue_size",
		MetricFact{Kind: KindCount, Signal: SignalQueue, Averaged: true}},
	{"vllm_num_requests_running num_requests_running sglang_num_running_reqs num_running_reqs tgi_batch_current_size llamacpp_requests_processing trtllm_num_requests_running inference_objective_running_requests llm_d_epp_request_running llm_d_epp_inflight_requests",
		MetricFact{Kind: KindCount, Signal: SignalRunning}},
	{"wva_desired_replicas vllm_deployment_replicas inferno_desired_replicas penstock_desired_replicas",
		MetricFact{Kind: KindReplicas, Signal: SignalReplicas}},
	{"vllm_time_to_first_token_seconds vllm_request_queue_time_seconds vllm_e2e_request_latency_seconds vllm_inter_token_latency_seconds vllm_time_per_output_token_seconds sglang_time_to_first_token_seconds sglang_queue_time_seconds sglang_inter_token_latency_seconds sglang_e2e_request_latency_seconds tgi_request_queue_duration tgi_request_duration tgi_request_mean_time_per_token_duration",
		MetricFact{Kind: KindSeconds, Signal: SignalLatency, Averaged: true}},
	{"avg_time_queue_us", MetricFact{Kind: KindMicros, Signal: SignalLatency, Averaged: true}},
	{"nv_inference_queue_duration_us nv_inference_request_duration_us nv_inference_compute_infer_duration_us",
		MetricFact{Kind: KindTotal, Signal: SignalLatency}},
	{"vllm_generation_tokens_total vllm_prompt_tokens_total sglang_prompt_tokens_total sglang_generation_tokens_total llamacpp_prompt_tokens_total llamacpp_tokens_predicted_total",
		MetricFact{Kind: KindTotal, Signal: SignalTokens}},
	{"sglang_gen_throughput llamacpp_predicted_tokens_seconds", MetricFact{Kind: KindRate, Signal: SignalTokens}},
	{"vllm_request_success_total tgi_request_count tgi_request_success nv_inference_request_success http_requests_total istio_requests_total inference_objective_request_total llm_d_epp_request_total nginx_ingress_controller_requests envoy_cluster_upstream_rq_total http_server_requests_total",
		MetricFact{Kind: KindTotal, Signal: SignalRequests}},
	{"dcgm_fi_dev_gpu_util nvidia_gpu_duty_cycle duty_cycle nv_gpu_utilization_percent nvidia_smi_utilization_gpu gpu_utilization_percent gpu_util_percent",
		MetricFact{Kind: KindPercent, Signal: SignalGPU}},
	{"dcgm_fi_prof_gr_engine_active dcgm_fi_prof_sm_active nv_gpu_utilization nvidia_smi_utilization_gpu_ratio",
		MetricFact{Kind: KindRatio, Signal: SignalGPU}},
	{"dcgm_fi_dev_fb_used dcgm_fi_dev_fb_free nv_gpu_memory_used_bytes container_memory_working_set_bytes container_memory_usage_bytes nvidia_gpu_memory_used_bytes",
		MetricFact{Kind: KindBytes, Signal: SignalMemory}},
	{"container_cpu_usage_seconds_total process_cpu_seconds_total", MetricFact{Kind: KindTotal, Signal: SignalCPU}},
}

// Fact returns what is known of the metric called name, in any of the spellings
// that adapters make of it.
func Fact(name string) MetricFact {
	n := normMetric(name)
	for _, suffix := range [...]string{"", "_bucket", "_sum", "_count", "_total"} {
		base, ok := strings.CutSuffix(n, suffix)
		if !ok {
			continue
		}
		for i := range factTable {
			if hasWord(factTable[i].names, base) {
				f := factTable[i].fact
				f.Known = true
				return f
			}
		}
	}
	return guessFact(n)
}

// guessFact derives what it can from the words of a name that is not in the table.
func guessFact(n string) MetricFact {
	w := words(n)
	has := func(list ...string) bool {
		for _, l := range list {
			if w.has(l) {
				return true
			}
		}
		return false
	}
	f := MetricFact{Averaged: has("avg", "average", "mean", "max", "min", "p50", "p90", "p95", "p99", "median", "quantile")}
	switch {
	case has("replicas") && has("desired", "deployment", "recommended", "recommendation", "target", "wanted"):
		f.Kind, f.Signal = KindReplicas, SignalReplicas
		return f
	case has("ttft", "tpot", "itl", "latency") || has("queue") && has("time", "duration", "wait"):
		f.Kind, f.Signal, f.Averaged = timeKind(w), SignalLatency, true
		return f
	case has("rps", "qps") || has("requests", "request", "queries") && has("second", "rate", "sec"):
		f.Kind, f.Signal = KindRate, SignalRequests
		return f
	case has("gpu", "dcgm", "accelerator", "cuda") && has("util", "utilization", "utilisation", "duty", "busy") && !has("cache", "memory", "mem", "kv"):
		f.Kind, f.Signal = percentOrUnknown(w), SignalGPU
		return f
	case has("kv", "cache") && has("usage", "util", "utilization", "utilisation", "perc", "used", "ratio"):
		f.Kind, f.Signal = KindUnknown, SignalKV
		if has("ratio", "fraction") || has("perc") {
			f.Kind = KindRatio
		} else if has("percent", "pct", "percentage") {
			f.Kind = KindPercent
		}
		return f
	case has("memory", "mem", "fb"):
		f.Kind, f.Signal = KindUnknown, SignalMemory
		return f
	case has("cpu"):
		f.Kind, f.Signal = KindUnknown, SignalCPU
		return f
	case has("tokens", "token"):
		f.Kind, f.Signal = KindUnknown, SignalTokens
		return f
	case has("waiting", "queue", "queued", "pending", "deferred", "backlog"):
		f.Kind, f.Signal = KindCount, SignalQueue
	case has("running", "inflight", "concurrency", "active", "ongoing", "concurrent") && has("requests", "reqs", "request", "concurrency", "inflight", "streams"):
		f.Kind, f.Signal = KindCount, SignalRunning
	}
	if has("total") && f.Kind == KindCount && !has("waiting", "queue", "queued", "running") {
		f.Kind = KindTotal
	}
	return f
}

func timeKind(w wordList) MetricKind {
	switch {
	case w.has("us") || w.has("microseconds") || w.has("usec"):
		return KindMicros
	case w.has("ms") || w.has("milliseconds") || w.has("millis") || w.has("msec"):
		return KindMillis
	case w.has("seconds") || w.has("sec") || w.has("s") || w.has("secs"):
		return KindSeconds
	}
	return KindUnknown
}

func percentOrUnknown(w wordList) MetricKind {
	if w.has("percent") || w.has("pct") || w.has("percentage") {
		return KindPercent
	}
	return KindUnknown
}

// normMetric writes a metric name in the one spelling that tables use.
func normMetric(name string) string {
	var b strings.Builder
	b.Grow(len(name))
	for i := 0; i < len(name); i++ {
		c := name[i]
		switch {
		case c >= 'A' && c <= 'Z':
			b.WriteByte(c + 'a' - 'A')
		case c >= 'a' && c <= 'z' || c >= '0' && c <= '9':
			b.WriteByte(c)
		default:
			if b.Len() > 0 && b.String()[b.Len()-1] != '_' {
				b.WriteByte('_')
			}
		}
	}
	return strings.TrimRight(b.String(), "_")
}

// wordList is a normalised name, whose words are separated by underscores.
type wordList string

func words(n string) wordList { return wordList("_" + n + "_") }

func (w wordList) has(word string) bool { return strings.Contains(string(w), "_"+word+"_") }

// hasWord reports whether a space separated list contains word.
func hasWord(list, word string) bool {
	if word == "" {
		return false
	}
	for i := 0; ; {
		j := strings.Index(list[i:], word)
		if j < 0 {
			return false
		}
		j += i
		end := j + len(word)
		if (j == 0 || list[j-1] == ' ') && (end == len(list) || list[end] == ' ') {
			return true
		}
		i = end
	}
}

func hasSuffixWord(n, suffix string) bool {
	return suffix != "" && strings.HasSuffix(n, "_"+suffix)
}

func containsFold(s, sub string) bool {
	return strings.Contains(strings.ToLower(s), strings.ToLower(sub))
}
