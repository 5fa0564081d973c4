// SPDX-License-Identifier: Apache-2.0

package replica

import (
	"net/http"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/penstock-project/penstock/internal/engine"
)

// metrics is what the engine core does not count itself. Guarded by Server.mu.
type metrics struct {
	success  [len(finishReasons)]uint64
	rejected uint64

	promptLen, outputLen, stepTokens, maxOutput histogram
	paramN, paramMax                            histogram
	ttft, gap, perToken                         histogram
	e2e, queue, inference, prefill, decode      histogram
	preemptions, computed                       histogram

	promptComputed, promptCached uint64
	last                         engine.Stats // at the last look, for tokens a step

	adapters []adapterSample
	maxLoRA  string
}

// adapterSample is one series of vllm:lora_requests_info. The real engine never
// removes one: a reader takes the one with the largest value.
type adapterSample struct {
	running string
	at      float64
}

var finishReasons = [...]string{"stop", "length", "abort", "error", "repetition"}

func (m *metrics) reset(p *engine.Profile) {
	length, seconds := lengthBuckets(p.MaxModelLen), secondsBuckets()
	*m = metrics{
		promptLen: newHistogram(length), outputLen: newHistogram(length), maxOutput: newHistogram(length),
		paramMax: newHistogram(length), computed: newHistogram(length), stepTokens: newHistogram(stepBuckets()),
		paramN: newHistogram([]float64{1, 2, 5, 10, 20}), preemptions: newHistogram([]float64{1, 2, 3, 4, 5, 10, 20}),
		ttft: newHistogram(ttftBuckets()), gap: newHistogram(gapBuckets()), perToken: newHistogram(gapBuckets()),
		e2e: newHistogram(seconds), queue: newHistogram(seconds), inference: newHistogram(seconds),
		prefill: newHistogram(seconds), decode: newHistogram(seconds),
		maxLoRA: strconv.Itoa(p.LoRASlots),
	}
	if p.LoRASlots > 0 {
		m.adapters = []adapterSample{{at: unixSeconds(time.Now())}}
	}
}

func unixSeconds(t time.Time) float64 { return float64(t.UnixMicro()) / 1e6 }

func (m *metrics) admitted(j *job) {
	cached := uint64(j.cached.Load())
	m.promptCached += cached
	m.promptComputed += uint64(j.seq.PromptTokens) - cached
}

func (m *metrics) firstToken(j *job) { m.ttft.observe(j.first.Sub(j.submitted).Seconds(), 1) }

// gaps observes the times between tokens up to the n-th, which came at the latest at at.
func (m *metrics) gaps(j *job, n int, at time.Time) {
	if k := n - j.counted; k > 0 {
		m.gap.observe(max(0, at.Sub(j.countedAt).Seconds())/float64(k), k)
		j.counted, j.countedAt = n, at
	}
}

func (m *metrics) finished(j *job, output int, at time.Time) {
	for i, r := range finishReasons {
		if r == j.reason {
			m.success[i]++
		}
	}
	m.promptLen.observe(float64(j.seq.PromptTokens), 1)
	m.outputLen.observe(float64(output), 1)
	m.maxOutput.observe(float64(output), 1)
	m.paramN.observe(1, 1)
	m.paramMax.observe(float64(j.maxTokens), 1)
	m.preemptions.observe(float64(j.preemptions), 1)
	m.computed.observe(float64(j.seq.PromptTokens)-float64(j.cached.Load()), 1)
	m.e2e.observe(at.Sub(j.submitted).Seconds(), 1)
	m.queue.observe(j.admitted.Sub(j.submitted).Seconds(), 1)
	m.inference.observe(at.Sub(j.admitted).Seconds(), 1)
	m.prefill.observe(j.first.Sub(j.admitted).Seconds(), 1)
	m.decode.observe(at.Sub(j.first).Seconds(), 1)
	if output > 1 {
		m.perToken.observe(at.Sub(j.first).Seconds()/float64(output-1), 1)
	}
}

// observeSteps spreads the tokens since the last look evenly over the steps since.
func (m *metrics) observeSteps(st engine.Stats) {
	if n := st.Steps - m.last.Steps; n > 0 {
		tokens := st.OutputTokens + st.Prefilled - m.last.OutputTokens - m.last.Prefilled
		m.stepTokens.observe(float64(tokens)/float64(n), int(n))
		m.last = st
	}
}

// noteAdapters keeps vllm:lora_requests_info: each set of running adapters leaves a
// series whose value is the time when it last held, and the list of waiting adapters
// repeats the running one, as in the real engine. The caller holds the lock.
func (s *Server) noteAdapters(wall time.Time) {
	if s.profile.LoRASlots == 0 {
		return
	}
	names, met := s.running(), &s.ranks[0].met
	now := adapterSample{running: strings.Join(names, ","), at: unixSeconds(wall)}
	last := &met.adapters[len(met.adapters)-1]
	if last.running == now.running {
		if len(s.jobs) > 0 {
			last.at = now.at
		}
		return
	}
	i := slices.IndexFunc(met.adapters, func(a adapterSample) bool {
		return a.running == now.running
	})
	if i >= 0 {
		met.adapters = slices.Delete(met.adapters, i, i+1)
	}
	met.adapters = append(met.adapters, now)
}

func (s *Server) metricsPage(w http.ResponseWriter, _ *http.Request) {
	s.mu.Lock()
	wall := time.Now()
	now := s.clock.at(wall)
	s.countGaps(wall, now)
	for _, r := range s.ranks {
		r.at = r.core.Stats(now)
		r.met.observeSteps(r.at)
	}
	s.noteAdapters(wall)
	x := exposition{b: make([]byte, 0, 48<<10)}
	s.writeProcess(&x)
	s.writeEngine(&x)
	s.mu.Unlock()
	s.http.write(&x)
	w.Header().Set("Content-Type", "text/plain; version=0.0.4; charset=utf-8")
	_, _ = w.Write(x.b) // the client may be gone
}

// page writes families with one series, or one for each of some values, a rank.
type page struct {
	x     *exposition
	ranks []*rank
	name  string // the model's label
}

func (p *page) one(family, typ, help string, v func(*rank) float64) {
	p.x.family(family, typ, help)
	for _, r := range p.ranks {
		p.x.sample(family, r.label+","+p.name, v(r))
	}
}

func (p *page) by(family, typ, help, key string, values []string, vs func(*rank) []float64) {
	p.x.family(family, typ, help)
	for _, r := range p.ranks {
		for i, v := range vs(r) {
			if key < "model_name" {
				p.x.sample(family, r.label+","+label(key, values[i])+","+p.name, v)
			} else {
				p.x.sample(family, r.label+","+p.name+","+label(key, values[i]), v)
			}
		}
	}
}

func (s *Server) writeEngine(x *exposition) {
	name := label("model_name", s.models[0])
	p := page{x, s.ranks, name}
	one, by := p.one, p.by
	none := func(*rank) float64 { return 0 }
	one("vllm:estimated_flops_per_gpu_total", "counter", "Estimated arithmetic per accelerator; not modelled.", none)
	one("vllm:estimated_read_bytes_per_gpu_total", "counter", "Estimated bytes read per accelerator; not modelled.", none)
	one("vllm:estimated_write_bytes_per_gpu_total", "counter", "Estimated bytes written per accelerator; not modelled.", none)
	one("vllm:num_requests_running", "gauge", "Requests in the batch.", func(r *rank) float64 { return float64(r.at.Running) })
	one("vllm:num_requests_waiting", "gauge", "Requests that wait.", func(r *rank) float64 { return float64(r.at.Waiting) })
	by("vllm:num_requests_waiting_by_reason", "gauge", "Requests that wait, by why.", "reason", []string{"capacity", "deferred"},
		func(r *rank) []float64 {
			return []float64{float64(r.at.Waiting - r.at.Deferred), float64(r.at.Deferred)}
		})
	by("vllm:engine_sleep_state", "gauge", "1 for the state that the engine is in.", "sleep_state",
		[]string{"awake", "weights_offloaded", "discard_all"}, func(*rank) []float64 {
			awake, offloaded, discarded := s.sleepState()
			return []float64{awake, offloaded, discarded}
		})
	one("vllm:kv_cache_usage_perc", "gauge", "Share of KV blocks in use, 0 to 1.", func(r *rank) float64 { return r.at.KVUsage() })
	one("vllm:prefix_cache_queries_total", "counter", "Prompt tokens looked up in the prefix cache.", func(r *rank) float64 { return float64(r.at.CacheQueries) })
	one("vllm:prefix_cache_hits_total", "counter", "Prompt tokens found in the prefix cache.", func(r *rank) float64 { return float64(r.at.CacheHits) })
	one("vllm:external_prefix_cache_queries_total", "counter", "Lookups in an external cache; there is none.", none)
	one("vllm:external_prefix_cache_hits_total", "counter", "Hits in an external cache; there is none.", none)
	one("vllm:mm_cache_queries_total", "counter", "Lookups in the multimodal cache; there is none.", none)
	one("vllm:mm_cache_hits_total", "counter", "Hits in the multimodal cache; there is none.", none)
	one("vllm:num_preemptions_total", "counter", "Preemptions since the start.", func(r *rank) float64 { return float64(r.at.Preemptions) })
	one("vllm:prompt_tokens_total", "counter", "Prompt tokens of requests that had their first token.", func(r *rank) float64 { return float64(r.at.PromptTokens) })
	by("vllm:prompt_tokens_by_source_total", "counter", "Prompt tokens by where they came from.", "source",
		[]string{"local_compute", "local_cache_hit", "external_kv_transfer"},
		func(r *rank) []float64 {
			return []float64{float64(r.met.promptComputed), float64(r.met.promptCached), 0}
		})
	one("vllm:prompt_tokens_cached_total", "counter", "Prompt tokens that were not computed.", func(r *rank) float64 { return float64(r.met.promptCached) })
	by("vllm:prompt_tokens_cached_by_source_total", "counter", "Prompt tokens that were not computed, by cache.", "source",
		[]string{"device", "host", "disk", "p2p", "external_unspecified"},
		func(r *rank) []float64 { return []float64{float64(r.met.promptCached), 0, 0, 0, 0} })
	one("vllm:generation_tokens_total", "counter", "Output tokens.", func(r *rank) float64 { return float64(r.at.OutputTokens) })
	by("vllm:request_success_total", "counter", "Requests that came to an end, by why.", "finished_reason", finishReasons[:], func(r *rank) []float64 {
		out := make([]float64, len(finishReasons))
		for i, v := range r.met.success {
			out[i] = float64(v)
		}
		return out
	})
	first := &s.ranks[0].met
	x.family("vllm:admission_rejections_total", "counter", "Requests refused before they were queued.")
	x.sample("vllm:admission_rejections_total", name+`,reason="max_num_queued_reqs"`, float64(first.rejected))
	s.writeHistograms(x, name)
	if len(first.adapters) > 0 {
		x.family("vllm:lora_requests_info", "gauge", "Adapters of requests in flight; the value is the time of the sample.")
		for _, a := range first.adapters {
			x.sample("vllm:lora_requests_info", label("max_lora", first.maxLoRA)+","+label("running_lora_adapters", a.running)+","+label("waiting_lora_adapters", a.running), a.at)
		}
	}
	x.family("vllm:cache_config_info", "gauge", "Configuration of the KV cache, in labels.")
	for _, r := range s.ranks {
		x.sample("vllm:cache_config_info", cacheConfig(&s.profile, r.n), 1)
	}
}

// writeHistograms writes the histograms of the engine; name is the model label.
func (s *Server) writeHistograms(x *exposition, name string) {
	for _, h := range []struct {
		family, help string
		h            func(*metrics) *histogram
	}{
		{"vllm:request_prompt_tokens", "Prompt tokens a request.", func(m *metrics) *histogram { return &m.promptLen }},
		{"vllm:request_generation_tokens", "Output tokens a request.", func(m *metrics) *histogram { return &m.outputLen }},
		{"vllm:iteration_tokens_total", "Tokens an engine step.", func(m *metrics) *histogram { return &m.stepTokens }},
		{"vllm:request_max_num_generation_tokens", "Longest output of a request's sequences.", func(m *metrics) *histogram { return &m.maxOutput }},
		{"vllm:request_params_n", "Parameter n.", func(m *metrics) *histogram { return &m.paramN }},
		{"vllm:request_params_max_tokens", "Parameter max_tokens.", func(m *metrics) *histogram { return &m.paramMax }},
		{"vllm:time_to_first_token_seconds", "Time to first token.", func(m *metrics) *histogram { return &m.ttft }},
		{"vllm:inter_token_latency_seconds", "Time between tokens.", func(m *metrics) *histogram { return &m.gap }},
		{"vllm:request_time_per_output_token_seconds", "Mean time a token of a request.", func(m *metrics) *histogram { return &m.perToken }},
		{"vllm:e2e_request_latency_seconds", "Time from arrival to end.", func(m *metrics) *histogram { return &m.e2e }},
		{"vllm:request_queue_time_seconds", "Time from arrival to the batch.", func(m *metrics) *histogram { return &m.queue }},
		{"vllm:request_inference_time_seconds", "Time from the batch to the end.", func(m *metrics) *histogram { return &m.inference }},
		{"vllm:request_prefill_time_seconds", "Time from the batch to the first token.", func(m *metrics) *histogram { return &m.prefill }},
		{"vllm:request_decode_time_seconds", "Time from the first token to the end.", func(m *metrics) *histogram { return &m.decode }},
		{"vllm:request_num_preemptions", "Preemptions a request.", func(m *metrics) *histogram { return &m.preemptions }},
		{"vllm:request_prefill_kv_computed_tokens", "Prompt tokens computed a request, cached ones excluded.", func(m *metrics) *histogram { return &m.computed }},
	} {
		x.family(h.family, "histogram", h.help)
		for _, r := range s.ranks {
			x.series(h.family, r.label, name, h.h(&r.met))
		}
	}
}
