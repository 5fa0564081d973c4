// SPDX-License-Identifier: Apache-2.0

package observe

import "strings"

// Engine is a kind of model server.
type Engine uint8

// Engines in the order of the names table.
const (
	EngineUnknown Engine = iota
	EngineVLLM
	EngineSGLang
	EngineTGI
	EngineLlamaCpp
	EngineTRTLLM // trtllm-serve
	EngineTriton // Triton with the TensorRT-LLM backend
	EngineOllama // exports no metrics
	numEngines
)

var engineNames = [numEngines]string{"", "vllm", "sglang", "tgi", "llamacpp", "trtllm", "triton", "ollama"}

func (e Engine) String() string {
	if e < numEngines {
		return engineNames[e]
	}
	return ""
}

// ownerEngine maps the owned_by of /v1/models to an engine: the cheapest way to
// tell engines apart that export no metrics, or none yet.
func ownerEngine(owner string) Engine {
	switch strings.ToLower(owner) {
	case "vllm":
		return EngineVLLM
	case "sglang":
		return EngineSGLang
	case "llamacpp":
		return EngineLlamaCpp
	case "tensorrt_llm":
		return EngineTRTLLM
	case "library", "ollama":
		return EngineOllama
	}
	return EngineUnknown
}

// quantity is what a series measures.
type quantity uint8

const (
	qRunning quantity = iota
	qWaiting
	qWaitingCapacity
	qWaitingDeferred
	qKVUsage
	qKVTokens
	qKVBlocks
	qBlockSize
	qPrompt
	qOutput
	qCacheQueries
	qCacheHits
	qHitRate
	qPreemptions
	qFinished
	qTTFTSum
	qTTFTCount
	qITLSum
	qITLCount
	qQueueSum
	qQueueCount
	qMaxSeqs
	qStartTime
	qAwake
	qBatchTokens
	qBatchLimit
	qCacheInfo     // facts in labels
	qAdapters      // lists in labels, the value is a clock
	qAdapterLoaded // one series an adapter
	numQuantities
)

// fold says how the series of one quantity add up to one number of a replica.
type fold uint8

const (
	foldSum fold = iota
	foldMax
	foldMean
)

// folds: gauges of pressure are not averaged, since the mean hides a full rank.
var folds = [numQuantities]fold{
	qKVUsage: foldMax, qBlockSize: foldMax, qHitRate: foldMean, qStartTime: foldMax, qAwake: foldMean,
}

// row is one metric name of one engine. Names match exactly, never by prefix: the
// families of one engine start with each other's names.
type row struct {
	engine Engine // EngineUnknown: any
	name   string
	q      quantity
	pref   uint8 // of several rows for one quantity the lowest that is present counts; they are never added
	old    bool  // deprecated name
	// Only series whose label has the value count; label "" is all.
	label, value string
}

func histogram(e Engine, pref uint8, old bool, name string, sum, count quantity) []row {
	return []row{
		{engine: e, name: name + "_sum", q: sum, pref: pref, old: old},
		{engine: e, name: name + "_count", q: count, pref: pref, old: old},
	}
}

func concat(parts ...[]row) []row {
	var out []row
	for _, p := range parts {
		out = append(out, p...)
	}
	return out
}

// rows is the table of names. Sources: the metric definitions of vLLM 0.5 to
// 0.32, SGLang 0.3 to 0.5, TGI 3, llama.cpp, TensorRT-LLM and its Triton backend.
var rows = concat(
	[]row{{name: "process_start_time_seconds", q: qStartTime}},
	vllmRows(), sglangRows("sglang:", 0), sglangRows("sglang_", 8), tgiRows(), llamaRows(), trtRows(), tritonRows(),
)

func vllmRows() []row {
	const e = EngineVLLM
	return concat([]row{
		{engine: e, name: "vllm:num_requests_running", q: qRunning},
		{engine: e, name: "vllm:num_requests_waiting", q: qWaiting},
		{engine: e, name: "vllm:num_requests_waiting_by_reason", q: qWaitingCapacity, label: "reason", value: "capacity"},
		{engine: e, name: "vllm:num_requests_waiting_by_reason", q: qWaitingDeferred, label: "reason", value: "deferred"},
		{engine: e, name: "vllm:kv_cache_usage_perc", q: qKVUsage},
		{engine: e, name: "vllm:gpu_cache_usage_perc", q: qKVUsage, pref: 1, old: true},
		{engine: e, name: "vllm:prompt_tokens_total", q: qPrompt},
		{engine: e, name: "vllm:generation_tokens_total", q: qOutput},
		{engine: e, name: "vllm:prefix_cache_queries_total", q: qCacheQueries},
		{engine: e, name: "vllm:prefix_cache_hits_total", q: qCacheHits},
		{engine: e, name: "vllm:gpu_prefix_cache_queries_total", q: qCacheQueries, pref: 1, old: true},
		{engine: e, name: "vllm:gpu_prefix_cache_hits_total", q: qCacheHits, pref: 1, old: true},
		{engine: e, name: "vllm:gpu_prefix_cache_hit_rate", q: qHitRate, old: true},
		{engine: e, name: "vllm:num_preemptions_total", q: qPreemptions},
		{engine: e, name: "vllm:request_success_total", q: qFinished},
		{engine: e, name: "vllm:engine_sleep_state", q: qAwake, label: "sleep_state", value: "awake"},
		{engine: e, name: "vllm:cache_config_info", q: qCacheInfo},
		{engine: e, name: "vllm:lora_requests_info", q: qAdapters},
		{engine: e, name: "vllm:lora_adapter_loaded", q: qAdapterLoaded},
	},
		histogram(e, 0, false, "vllm:time_to_first_token_seconds", qTTFTSum, qTTFTCount),
		histogram(e, 0, false, "vllm:inter_token_latency_seconds", qITLSum, qITLCount),
		histogram(e, 1, true, "vllm:time_per_output_token_seconds", qITLSum, qITLCount),
		histogram(e, 0, false, "vllm:request_queue_time_seconds", qQueueSum, qQueueCount),
	)
}

// sglangRows takes the prefix, since routers and collectors turn the colon into
// an underscore; pref keeps the two spellings from being added.
func sglangRows(prefix string, pref uint8) []row {
	const e = EngineSGLang
	gauge := func(name string, q quantity, p uint8, old bool) row {
		return row{engine: e, name: prefix + name, q: q, pref: pref + p, old: old}
	}
	return concat([]row{
		gauge("num_running_reqs", qRunning, 0, false),
		gauge("num_requests_running", qRunning, 1, true),
		gauge("num_queue_reqs", qWaiting, 0, false),
		gauge("num_requests_waiting", qWaiting, 1, true),
		gauge("queue_req", qWaiting, 2, true),
		gauge("token_usage", qKVUsage, 0, false),
		gauge("max_total_num_tokens", qKVTokens, 0, false),
		gauge("cache_hit_rate", qHitRate, 0, false),
		gauge("prompt_tokens_total", qPrompt, 0, false),
		gauge("generation_tokens_total", qOutput, 0, false),
		gauge("num_requests_total", qFinished, 0, false),
		gauge("max_running_requests", qMaxSeqs, 0, false),
	},
		histogram(e, pref, false, prefix+"time_to_first_token_seconds", qTTFTSum, qTTFTCount),
		histogram(e, pref, false, prefix+"inter_token_latency_seconds", qITLSum, qITLCount),
		histogram(e, pref+1, true, prefix+"time_per_output_token_seconds", qITLSum, qITLCount),
		histogram(e, pref, false, prefix+"queue_time_seconds", qQueueSum, qQueueCount),
	)
}

func tgiRows() []row {
	const e = EngineTGI
	return concat([]row{
		{engine: e, name: "tgi_queue_size", q: qWaiting},
		{engine: e, name: "tgi_batch_current_size", q: qRunning},
		{engine: e, name: "tgi_batch_current_max_tokens", q: qBatchTokens},
		{engine: e, name: "tgi_batch_max_total_tokens", q: qBatchLimit},
		{engine: e, name: "tgi_request_success", q: qFinished},
		{engine: e, name: "tgi_request_input_length_sum", q: qPrompt},
		{engine: e, name: "tgi_request_generated_tokens_sum", q: qOutput},
	},
		histogram(e, 0, false, "tgi_request_queue_duration", qQueueSum, qQueueCount),
		histogram(e, 0, false, "tgi_request_mean_time_per_token_duration", qITLSum, qITLCount),
	)
}

func llamaRows() []row {
	const e = EngineLlamaCpp
	return []row{
		{engine: e, name: "llamacpp:requests_processing", q: qRunning},
		{engine: e, name: "llamacpp:requests_deferred", q: qWaiting},
		{engine: e, name: "llamacpp:prompt_tokens_total", q: qPrompt},
		{engine: e, name: "llamacpp:tokens_predicted_total", q: qOutput},
		{engine: e, name: "llamacpp:kv_cache_usage_ratio", q: qKVUsage, old: true}, // gone from current builds
	}
}

func trtRows() []row {
	const e = EngineTRTLLM
	return concat([]row{
		{engine: e, name: "trtllm_num_requests_running", q: qRunning},
		{engine: e, name: "trtllm_num_requests_waiting", q: qWaiting},
		{engine: e, name: "trtllm_kv_cache_utilization", q: qKVUsage},
		{engine: e, name: "trtllm_kv_cache_hit_rate", q: qHitRate},
		{engine: e, name: "trtllm_request_success_total", q: qFinished},
	},
		histogram(e, 0, false, "trtllm_time_to_first_token_seconds", qTTFTSum, qTTFTCount),
		histogram(e, 0, false, "trtllm_time_per_output_token_seconds", qITLSum, qITLCount),
		histogram(e, 0, false, "trtllm_request_queue_time_seconds", qQueueSum, qQueueCount),
	)
}

func tritonRows() []row {
	const e = EngineTriton
	request := func(kind string, q quantity) row {
		return row{engine: e, name: "nv_trt_llm_request_metrics", q: q, label: "request_type", value: kind}
	}
	block := func(kind string, q quantity) row {
		return row{engine: e, name: "nv_trt_llm_kv_cache_block_metrics", q: q, label: "kv_cache_block_type", value: kind}
	}
	return []row{
		request("active", qRunning), request("waiting", qWaiting), request("max", qMaxSeqs),
		block("fraction", qKVUsage), block("max", qKVBlocks), block("tokens_per", qBlockSize),
	}
}

// rowIndex finds the rows of a name: rows[first : first+n].
type rowRange struct{ first, n int16 }

var rowIndex = indexRows(rows)

// indexRows relies on rows of one name standing side by side.
func indexRows(rows []row) map[string]rowRange {
	m := make(map[string]rowRange, len(rows))
	for i := range rows {
		r, ok := m[rows[i].name]
		if !ok {
			r.first = int16(i)
		}
		r.n++
		m[rows[i].name] = r
	}
	return m
}

// metricPaths are where an engine's exposition is, tried in order: trtllm-serve
// answers /metrics with JSON statistics and serves Prometheus beside it.
var metricPaths = [...]string{"/metrics", "/prometheus/metrics"}
