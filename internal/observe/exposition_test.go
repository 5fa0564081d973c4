// SPDX-License-Identifier: Apache-2.0

package observe

import (
	"bytes"
	"encoding/json"
	"fmt"
	"math"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"pgregory.net/rapid"

	"github.com/penstock-project/penstock/internal/fleet"
	"github.com/penstock-project/penstock/internal/testinput"
)

const testNow fleet.Time = 1e18

func parse(t testing.TB, text string) (fleet.Signals, Parsed) {
	t.Helper()
	var s fleet.Signals
	out, err := Parse([]byte(text), EngineUnknown, testNow, &s)
	if err != nil {
		t.Fatal(err)
	}
	return s, out
}

func want(t *testing.T, name string, got fleet.Value, v float64) {
	t.Helper()
	if !got.OK() || math.Abs(got.V-v) > 1e-9*math.Max(1, math.Abs(v)) {
		t.Errorf("%s = %v, want %v", name, got, v)
	}
}

func unknown(t *testing.T, name string, got fleet.Value) {
	t.Helper()
	if got.OK() {
		t.Errorf("%s = %v, want unknown", name, got.V)
	}
}

func TestOldVLLM(t *testing.T) {
	s, out := parse(t, `# TYPE process_start_time_seconds gauge
process_virtual_memory_bytes 1.25e+010
process_start_time_seconds 1.7e+09
vllm:cache_config_info{block_size="16",num_cpu_blocks="64",num_gpu_blocks="100",sliding_window="None"} 1.0
vllm:num_requests_running{model_name="a/A"} 3.0
vllm:num_requests_waiting{model_name="a/A"} 2.0
vllm:num_requests_waiting{model_name="b/B"} 3.0
vllm:gpu_cache_usage_perc{model_name="a/A"} 0.0026
vllm:cpu_cache_usage_perc{model_name="a/A"} 0.9
vllm:gpu_prefix_cache_hit_rate{model_name="a/A"} -1.0
`)
	if out.Engine != EngineVLLM {
		t.Errorf("engine %v", out.Engine)
	}
	want(t, "running", s.Running, 3)
	want(t, "waiting", s.Waiting, 5)
	want(t, "kv", s.KVUsage, 0.0026)
	want(t, "block size", s.BlockSize, 16)
	want(t, "kv tokens", s.KVTokens, 1600)
	want(t, "start", s.StartTime, 1.7e9)
	unknown(t, "hit rate", s.HitRate)
	if s.Notes&fleet.NoteOldNames == 0 {
		t.Error("the old name is not noted")
	}
	wantLoads := []fleet.Load{
		{Model: "a/A", Running: fleet.Known(3, testNow), Waiting: fleet.Known(2, testNow), KVUsage: fleet.Known(0.0026, testNow)},
		{Model: "b/B", Waiting: fleet.Known(3, testNow)},
	}
	if d := cmp.Diff(wantLoads, s.Loads); d != "" {
		t.Error(d)
	}
}

func TestOldAndNewNamesAreNotAdded(t *testing.T) {
	text := `# HELP vllm:gpu_prefix_cache_queries_total in terms of number of queried tokens
vllm:gpu_cache_usage_perc{engine="0",model_name="m"} 0.25
vllm:gpu_prefix_cache_queries_total{engine="0",model_name="m"} 32.0
vllm:gpu_prefix_cache_queries_created{engine="0",model_name="m"} 1.75e+09
vllm:gpu_prefix_cache_hits_total{engine="0",model_name="m"} 8.0
vllm:kv_cache_usage_perc{engine="0",model_name="m"} 0.26
vllm:prefix_cache_queries_total{engine="0",model_name="m"} 33.0
vllm:prefix_cache_queries_created{engine="0",model_name="m"} 1.75e+09
vllm:prefix_cache_hits_total{engine="0",model_name="m"} 9.0
`
	for range 2 {
		s, _ := parse(t, text)
		want(t, "kv", s.KVUsage, 0.26)
		want(t, "queries", s.CacheQueries, 33)
		want(t, "hits", s.CacheHits, 9)
		if s.Notes != 0 || s.CacheUnitBlocks {
			t.Errorf("notes %v, blocks %v", s.Notes.Strings(), s.CacheUnitBlocks)
		}
		text = reverse(text)
	}
	s, _ := parse(t, `# HELP vllm:gpu_prefix_cache_queries_total in terms of number of queried blocks.
vllm:gpu_prefix_cache_queries_total{model_name="m"} 5
vllm:gpu_prefix_cache_hits_total{model_name="m"} 4
`)
	want(t, "queries", s.CacheQueries, 5)
	if !s.CacheUnitBlocks || s.Notes&fleet.NoteOldNames == 0 {
		t.Error("the unit of 0.8 is blocks, under old names")
	}
}

func reverse(text string) string {
	l := strings.Split(strings.TrimSuffix(text, "\n"), "\n")
	slices.Reverse(l)
	return strings.Join(l, "\n") + "\n"
}

func TestRanks(t *testing.T) {
	text := `vllm:num_requests_running{engine="0",model_name="m"} 12.0
vllm:num_requests_running{engine="1",model_name="m"} 3.0
vllm:num_requests_waiting{engine="0",model_name="m"} 37.0
vllm:num_requests_waiting{engine="1",model_name="m"} 0.0
vllm:kv_cache_usage_perc{engine="0",model_name="m"} 0.97
vllm:kv_cache_usage_perc{engine="1",model_name="m"} 0.05
vllm:request_queue_time_seconds_sum{engine="0",model_name="m"} 5
vllm:request_queue_time_seconds_sum{engine="1",model_name="m"} 7
vllm:cache_config_info{engine="0",block_size="16",num_gpu_blocks="10"} 1.0
vllm:cache_config_info{engine="1",block_size="16",num_gpu_blocks="10"} 1.0
`
	for range 2 {
		s, _ := parse(t, text)
		want(t, "running", s.Running, 15)
		want(t, "waiting", s.Waiting, 37)
		want(t, "kv", s.KVUsage, 0.97)
		want(t, "queue", s.QueueSum, 12)
		want(t, "kv tokens", s.KVTokens, 320)
		if len(s.Loads) != 2 || s.Loads[0].KVUsage.V != 0.97 || s.Loads[1].Rank != 1 || s.Notes&fleet.NoteRanks == 0 {
			t.Errorf("loads %+v, notes %v", s.Loads, s.Notes.Strings())
		}
		text = reverse(text)
	}
}

func TestSGLangSpellings(t *testing.T) {
	s, out := parse(t, `sglang:cache_hit_rate{name="g"} 87.5
sglang:queue_req{name="g"} 1.0
sglang:num_requests_running{name="g"} 2.0
sglang:num_requests_waiting{name="g"} 1.0
sglang:token_usage{name="g"} 0.0
`)
	if out.Engine != EngineSGLang {
		t.Errorf("engine %v", out.Engine)
	}
	want(t, "running", s.Running, 2)
	want(t, "waiting", s.Waiting, 1)
	want(t, "kv", s.KVUsage, 0)
	want(t, "hit rate", s.HitRate, 0.875)
	if s.Notes&fleet.NotePercent == 0 {
		t.Error("the percentage is not noted")
	}
	s, _ = parse(t, `# TYPE sglang_num_running_reqs gauge
sglang_num_running_reqs{dp_rank="0",tp_rank="0",worker_addr="grpc://h:1"} 7

sglang_num_running_reqs{dp_rank="0",tp_rank="1",worker_addr="grpc://h:1"} 7

sglang_num_running_reqs{dp_rank="1",tp_rank="2",worker_addr="grpc://h:1"} 4
sglang:num_running_reqs{dp_rank="0"} 6
sglang_num_queue_reqs{dp_rank="0"} 2
`)
	want(t, "running, one spelling", s.Running, 6)
	want(t, "waiting", s.Waiting, 2)
	s, _ = parse(t, `sglang_num_running_reqs{dp_rank="0",tp_rank="0"} 7
sglang_num_running_reqs{dp_rank="0",tp_rank="1"} 7
sglang_num_running_reqs{dp_rank="1",tp_rank="2"} 4
`)
	want(t, "running, tensor ranks repeat", s.Running, 11)
}

func TestLlamaCppAndTGI(t *testing.T) {
	s, out := parse(t, `llamacpp:prompt_tokens_total 143
llamacpp:tokens_predicted_total 673
llamacpp:predicted_tokens_seconds 22.7619
llamacpp:requests_processing 1
llamacpp:requests_deferred 3
`)
	if out.Engine != EngineLlamaCpp {
		t.Errorf("engine %v", out.Engine)
	}
	want(t, "running", s.Running, 1)
	want(t, "waiting", s.Waiting, 3)
	want(t, "prompt", s.PromptTokens, 143)
	want(t, "output", s.OutputTokens, 673)
	unknown(t, "kv", s.KVUsage)

	s, out = parse(t, `tgi_queue_size 12
tgi_batch_current_size 8
tgi_batch_current_max_tokens 12288
tgi_batch_max_total_tokens 16384
tgi_batch_inference_duration_bucket{le="0.01",method="{'method': 'prefill'}"} 0.0
tgi_request_count{method="{'method': \"a}b\"}"} 7
tgi_request_mean_time_per_token_duration_sum 5
tgi_request_mean_time_per_token_duration_count 100
`)
	if s.Notes&fleet.NoteTPOT == 0 {
		t.Error("a mean over whole requests passes for inter-token latency")
	}
	if out.Engine != EngineTGI || s.Notes&fleet.NoteKVEstimated == 0 {
		t.Errorf("engine %v, notes %v", out.Engine, s.Notes.Strings())
	}
	want(t, "waiting", s.Waiting, 12)
	want(t, "kv", s.KVUsage, 0.75)
	s, _ = parse(t, "tgi_queue_size 0.0\ntgi_batch_current_size 0.0\ntgi_batch_current_max_tokens 5\n")
	unknown(t, "kv without a limit", s.KVUsage)
}

func TestTensorRT(t *testing.T) {
	s, out := parse(t, `nv_trt_llm_request_metrics{model="m",request_type="active",version="1"} 5
nv_trt_llm_request_metrics{model="m",request_type="waiting",version="1"} 2
nv_trt_llm_request_metrics{model="m",request_type="scheduled",version="1"} 9
nv_trt_llm_kv_cache_block_metrics{kv_cache_block_type="fraction",model="m",version="1"} 0.5
nv_trt_llm_kv_cache_block_metrics{kv_cache_block_type="max",model="m",version="1"} 100
nv_trt_llm_kv_cache_block_metrics{kv_cache_block_type="tokens_per",model="m",version="1"} 64
nv_trt_llm_kv_cache_block_metrics{kv_cache_block_type="used",model="m",version="1"} 50
`)
	if out.Engine != EngineTriton {
		t.Errorf("engine %v", out.Engine)
	}
	want(t, "running", s.Running, 5)
	want(t, "waiting", s.Waiting, 2)
	want(t, "kv", s.KVUsage, 0.5)
	want(t, "kv tokens", s.KVTokens, 6400)
	s, out = parse(t, "trtllm_num_requests_running 4\ntrtllm_num_requests_waiting 1\ntrtllm_kv_cache_utilization 0.3\n")
	if out.Engine != EngineTRTLLM || s.Notes&fleet.NoteTPOT != 0 {
		t.Errorf("engine %v, notes %v", out.Engine, s.Notes.Strings())
	}
	want(t, "running", s.Running, 4)
	want(t, "waiting", s.Waiting, 1)
	want(t, "kv", s.KVUsage, 0.3)
	s, _ = parse(t, "trtllm_time_per_output_token_seconds_sum 5\ntrtllm_time_per_output_token_seconds_count 100\n")
	if s.Notes&fleet.NoteTPOT == 0 {
		t.Error("a mean over whole requests passes for inter-token latency")
	}
}

func TestAdaptersNewestSampleCounts(t *testing.T) {
	s, _ := parse(t, `vllm:lora_requests_info{max_lora="1",running_lora_adapters="",waiting_lora_adapters=""} 100.5
vllm:lora_requests_info{max_lora="1",running_lora_adapters="x, y",waiting_lora_adapters="x,y, z"} 102.5
vllm:lora_requests_info{max_lora="1",running_lora_adapters="old",waiting_lora_adapters="old"} 101.5
`)
	want(t, "slots", s.LoRASlots, 1)
	w := []fleet.Adapter{
		{Name: "old", State: fleet.AdapterResident, At: 101.5e9},
		{Name: "x", State: fleet.AdapterRunning, At: testNow},
		{Name: "y", State: fleet.AdapterRunning, At: testNow},
		{Name: "z", State: fleet.AdapterWaiting, At: testNow},
	}
	if d := cmp.Diff(w, s.Adapters); d != "" {
		t.Error(d)
	}
	// Ten series, in any order: the newest is the state, the others are memory.
	var b strings.Builder
	for _, i := range []int{3, 9, 1, 7, 0, 8, 2, 6, 4, 5} {
		fmt.Fprintf(&b, "vllm:lora_requests_info{max_lora=\"4\",running_lora_adapters=\"a%d\",waiting_lora_adapters=\"\"} %d\n", i, 100+i)
	}
	s, _ = parse(t, b.String())
	if len(s.Adapters) != loraKept || s.Adapters[0].Name != "a2" || s.Adapters[0].State != fleet.AdapterResident ||
		s.Adapters[0].At != 102e9 || s.Adapters[7].State != fleet.AdapterRunning {
		t.Errorf("adapters %+v", s.Adapters)
	}
	s, out := parse(t, `vllm:lora_requests_info{max_lora="2",running_lora_adapters="x",waiting_lora_adapters=""} 5
vllm:lora_requests_info{max_lora="2",running_lora_adapters="gone",waiting_lora_adapters=""} 4
vllm:lora_adapter_loaded{adapter_name="x",level="gpu"} 1
vllm:lora_adapter_loaded{adapter_name="idle",level="gpu"} 1
vllm:lora_adapter_loaded{adapter_name="gone",level="gpu"} 0
`)
	if len(s.Adapters) != 2 || s.Adapters[0].Name != "idle" || s.Adapters[0].State != fleet.AdapterResident || !out.AdaptersComplete {
		t.Errorf("adapters %+v", s.Adapters)
	}
}

func TestWaitingByReason(t *testing.T) {
	s, _ := parse(t, `vllm:num_requests_running{engine="0",model_name="q"} 37.0
vllm:num_requests_waiting{engine="0",model_name="q"} 12.0
vllm:num_requests_waiting_by_reason{engine="0",model_name="q",reason="capacity"} 9.0
vllm:num_requests_waiting_by_reason{engine="0",model_name="q",reason="deferred"} 3.0
`)
	want(t, "running", s.Running, 37)
	want(t, "waiting", s.Waiting, 9)
	want(t, "deferred", s.Deferred, 3)
	s, _ = parse(t, `vllm:num_requests_waiting_by_reason{engine="0",reason="capacity"} 2
vllm:num_requests_waiting_by_reason{engine="1",reason="capacity"} 3
vllm:num_requests_waiting_by_reason{engine="0",reason="deferred"} 9
`)
	want(t, "waiting of two engines", s.Waiting, 5)
	s, out := parse(t, "# nothing here\n")
	unknown(t, "waiting of nothing", s.Waiting)
	unknown(t, "running of nothing", s.Running)
	if out.Series != 0 {
		t.Errorf("%d series in nothing", out.Series)
	}
}

func TestNoMeasurements(t *testing.T) {
	for _, v := range []string{"NaN", "-1", "+Inf", "-Inf", "", "x", "1e999"} {
		s, _ := parse(t, "vllm:num_requests_running{engine=\"0\"} 4\nvllm:num_requests_waiting{engine=\"0\"} "+v+"\n")
		unknown(t, "waiting "+v, s.Waiting)
		want(t, "running beside "+v, s.Running, 4)
	}
	s, _ := parse(t, "vllm:num_requests_waiting{engine=\"0\"} 4\nvllm:num_requests_waiting{engine=\"1\"} NaN\n")
	unknown(t, "a sum without one rank", s.Waiting)
	s, _ = parse(t, `vllm:engine_sleep_state{engine="0",sleep_state="awake"} 0.0
vllm:engine_sleep_state{engine="0",sleep_state="weights_offloaded"} 1.0
`)
	want(t, "asleep", s.Asleep, 1)
	if _, err := Parse(bytes.Repeat([]byte("x"), maxLine+1), EngineUnknown, testNow, &s); err == nil {
		t.Error("an endless line is accepted")
	}
}

// TestPiecesDoNotMatter feeds a text in pieces of every size.
func TestPiecesDoNotMatter(t *testing.T) {
	text := exposition(1)
	whole, _ := parse(t, text)
	rapid.Check(t, func(t *rapid.T) {
		var p Parser
		var s fleet.Signals
		p.Reset(EngineUnknown)
		for rest := text; rest != ""; {
			n := min(rapid.IntRange(1, 9000).Draw(t, "n"), len(rest))
			if _, err := p.Write([]byte(rest[:n])); err != nil {
				t.Fatal(err)
			}
			rest = rest[n:]
		}
		if _, err := p.Finish(testNow, &s); err != nil {
			t.Fatal(err)
		}
		if d := cmp.Diff(whole, s); d != "" {
			t.Fatal(d)
		}
	})
}

func TestSteadyStateDoesNotAllocate(t *testing.T) {
	a, b := []byte(exposition(1)), []byte(exposition(2))
	var p Parser
	var s fleet.Signals
	run := func(text []byte) {
		p.Reset(EngineVLLM)
		for i := 0; i < len(text); i += 16 << 10 {
			if _, err := p.Write(text[i:min(i+16<<10, len(text))]); err != nil {
				t.Fatal(err)
			}
		}
		if _, err := p.Finish(testNow, &s); err != nil {
			t.Fatal(err)
		}
	}
	run(a)
	run(b)
	if n := testing.AllocsPerRun(20, func() { run(a); run(b) }); n > 0 {
		t.Errorf("%v allocations a scrape", n/2)
	}
	if len(s.Adapters) == 0 || !s.TTFTCount.OK() {
		t.Errorf("signals %+v", s)
	}
}

func BenchmarkParse(b *testing.B) {
	text := []byte(exposition(1))
	var p Parser
	var s fleet.Signals
	b.SetBytes(int64(len(text)))
	b.ReportAllocs()
	b.ReportMetric(float64(strings.Count(string(text), "\n")), "lines")
	for b.Loop() {
		p.Reset(EngineVLLM)
		_, _ = p.Write(text)
		_, _ = p.Finish(testNow, &s)
	}
}

// exposition generates a scrape as large and with as many lines as a real one of
// a current vLLM: about 590 lines and 52 kB.
func exposition(seed int) string {
	var b strings.Builder
	const labels = `engine="0",model_name="meta-llama/Llama-3.1-8B-Instruct"`
	family := func(name, typ, help string) {
		fmt.Fprintf(&b, "# HELP %s %s\n# TYPE %s %s\n", name, help, name, typ)
	}
	family("python_gc_objects_collected_total", "counter", "Objects collected during gc")
	for g := range 3 {
		fmt.Fprintf(&b, "python_gc_objects_collected_total{generation=\"%d\"} %d.0\n", g, 1000*seed)
	}
	family("process_start_time_seconds", "gauge", "Start time of the process since unix epoch in seconds.")
	b.WriteString("process_start_time_seconds 1.78e+09\n")
	for i, g := range []string{"num_requests_running", "num_requests_waiting", "kv_cache_usage_perc"} {
		family("vllm:"+g, "gauge", "What the engine says of itself, at the end of each step.")
		fmt.Fprintf(&b, "vllm:%s{%s} %g\n", g, labels, float64(seed+i)/10)
	}
	family("vllm:num_requests_waiting_by_reason", "gauge", "Requests that wait, by reason.")
	fmt.Fprintf(&b, "vllm:num_requests_waiting_by_reason{%s,reason=\"capacity\"} %d.0\n", labels, seed)
	fmt.Fprintf(&b, "vllm:num_requests_waiting_by_reason{%s,reason=\"deferred\"} 0.0\n", labels)
	for _, c := range []string{
		"prompt_tokens", "generation_tokens", "prefix_cache_queries", "prefix_cache_hits", "external_prefix_cache_queries",
		"external_prefix_cache_hits", "mm_cache_queries", "mm_cache_hits", "num_preemptions", "prompt_tokens_cached",
		"estimated_flops_per_gpu", "estimated_read_bytes_per_gpu",
	} {
		family("vllm:"+c+"_total", "counter", "A number that only grows, in its own unit.")
		fmt.Fprintf(&b, "vllm:%s_total{%s} %d.0\n", c, labels, 12345*seed)
		family("vllm:"+c+"_created", "gauge", "When the counter began.")
		fmt.Fprintf(&b, "vllm:%s_created{%s} 1.7812345678901234e+09\n", c, labels)
	}
	family("vllm:request_success_total", "counter", "Requests that ended well.")
	for _, r := range []string{"stop", "length", "abort", "error"} {
		fmt.Fprintf(&b, "vllm:request_success_total{engine=\"0\",finished_reason=%q,model_name=\"meta-llama/Llama-3.1-8B-Instruct\"} %d.0\n", r, seed)
	}
	b.WriteString(`vllm:cache_config_info{block_size="16",cache_dtype="auto",enable_prefix_caching="True",engine="0",gpu_memory_utilization="0.9",num_gpu_blocks="27000",sliding_window="None"} 1.0` + "\n")
	fmt.Fprintf(&b, "vllm:lora_requests_info{max_lora=\"4\",running_lora_adapters=\"sql,legal\",waiting_lora_adapters=\"sql,legal\"} 1.78%d1e+09\n", seed)
	for i, h := range []string{
		"request_prompt_tokens", "request_generation_tokens", "iteration_tokens_total", "request_max_num_generation_tokens",
		"request_params_n", "request_params_max_tokens", "time_to_first_token_seconds", "inter_token_latency_seconds",
		"request_time_per_output_token_seconds", "e2e_request_latency_seconds", "request_queue_time_seconds",
		"request_inference_time_seconds", "request_prefill_time_seconds", "request_decode_time_seconds",
		"request_num_preemptions", "request_prefill_kv_computed_tokens",
	} {
		family("vllm:"+h, "histogram", "How often a value of this size was seen.")
		for k := range 25 {
			fmt.Fprintf(&b, "vllm:%s_bucket{engine=\"0\",le=\"%g\",model_name=\"meta-llama/Llama-3.1-8B-Instruct\"} %d.0\n", h, 0.001*math.Pow(2, float64(k)), seed*k)
		}
		fmt.Fprintf(&b, "vllm:%s_bucket{engine=\"0\",le=\"+Inf\",model_name=\"meta-llama/Llama-3.1-8B-Instruct\"} %d.0\n", h, 25*seed)
		fmt.Fprintf(&b, "vllm:%s_count{%s} %d.0\n", h, labels, 25*seed)
		fmt.Fprintf(&b, "vllm:%s_sum{%s} %g\n", h, labels, 1.23456789*float64(seed+i))
	}
	return b.String()
}

// TestCases compares with the collected expositions of real engines.
func TestCases(t *testing.T) {
	type expected map[string]any
	for _, c := range []string{
		"01-vllm-v0-exposition", "02-vllm-010-dual-names", "04-dp-engine-label", "05-sglang-prefix-and-units",
		"07-llamacpp-no-kv-gauge", "09-tgi-exposition", "10-lora-requests-info", "70-vllm-waiting-by-reason",
	} {
		t.Run(c, func(t *testing.T) {
			dir := testinput.Shared(t, "cases/"+c)
			raw, err := os.ReadFile(filepath.Join(dir, "expected.json"))
			if err != nil {
				t.Fatal(err)
			}
			var exp expected
			if err := json.Unmarshal(raw, &exp); err != nil {
				t.Fatal(err)
			}
			if _, ok := exp["metrics.txt"]; !ok && fileThere(dir, "metrics.txt") {
				exp = expected{"metrics.txt": map[string]any(exp)}
			}
			for name, e := range exp {
				text, err := os.ReadFile(filepath.Join(dir, name))
				if err != nil {
					t.Fatal(err)
				}
				s, out := parse(t, string(text))
				fields := e.(map[string]any)
				if pod, ok := fields["pod"].(map[string]any); ok {
					fields = pod
				}
				for k, v := range fields {
					compareField(t, name, k, v, &s, out)
				}
			}
		})
	}
}

func fileThere(dir, name string) bool {
	_, err := os.Stat(filepath.Join(dir, name))
	return err == nil
}

// compareField checks one entry of an expected.json; entries that are no signal
// of ours, such as quantiles, are left to who uses them.
func compareField(t *testing.T, file, key string, v any, s *fleet.Signals, out Parsed) {
	values := map[string]fleet.Value{
		"running": s.Running, "congestion": s.Waiting, "queue": s.Waiting,
		"kv_usage": s.KVUsage, "kv_usage_max": s.KVUsage, "kv_usage_estimate": s.KVUsage, "prefix_hit_rate": s.HitRate,
		"block_size": s.BlockSize, "prompt_tokens_total": s.PromptTokens, "generation_tokens_total": s.OutputTokens,
		"prefix_queries": s.CacheQueries, "prefix_hits": s.CacheHits, "max_lora": s.LoRASlots,
	}
	values["waiting"] = s.Waiting
	if s.Deferred.OK() {
		values["waiting"] = fleet.Known(s.Waiting.V+s.Deferred.V, testNow)
	}
	if _, ok := v.([]any); ok {
		if key == "running" || key == "waiting" {
			compareAdapters(t, file, key, v.([]any), s)
		}
		return
	}
	if key == "engine" && out.Engine.String() != v {
		t.Errorf("%s: engine %v, want %v", file, out.Engine, v)
	}
	if key == "prefix_unit" && (v == "blocks") != s.CacheUnitBlocks {
		t.Errorf("%s: unit in blocks: %v, want %v", file, s.CacheUnitBlocks, v)
	}
	got, ok := values[key]
	switch {
	case !ok:
	case v == nil:
		unknown(t, file+": "+key, got)
	default:
		want(t, file+": "+key, got, v.(float64))
	}
}

func compareAdapters(t *testing.T, file, key string, list []any, s *fleet.Signals) {
	state := fleet.AdapterRunning
	if key == "waiting" {
		state = fleet.AdapterWaiting
	}
	var got, exp []string
	for _, a := range s.Adapters {
		if a.State == state {
			got = append(got, a.Name)
		}
	}
	for _, a := range list {
		exp = append(exp, a.(string))
	}
	if !slices.Equal(got, exp) {
		t.Errorf("%s: %s adapters %v, want %v", file, key, got, exp)
	}
}

// collected are the expositions of real engines, where they are at hand.
func collected() [][]byte {
	dir := os.Getenv("PENSTOCK_SHARED")
	if dir == "" {
		dir = filepath.Join("..", "..", "..", "shared")
	}
	files, _ := filepath.Glob(filepath.Join(dir, "cases", "*", "*.txt"))
	var out [][]byte
	for _, f := range files {
		if b, err := os.ReadFile(f); err == nil && len(b) < 64<<10 {
			out = append(out, b)
		}
	}
	return out
}

// FuzzParse: no text panics, and the numbers that come out are numbers.
func FuzzParse(f *testing.F) {
	f.Add([]byte(exposition(1)[:4000]), 100)
	f.Add([]byte("vllm:num_requests_waiting_by_reason{reason=\"capacity\",engine=\"1\"} 3\n"), 1)
	f.Add([]byte("vllm:lora_requests_info{max_lora=\"1\",running_lora_adapters=\"a,\\\"b\"} 1e9\n"), 3)
	f.Add([]byte("tgi_queue_size{m=\"{'x': \\\"}\\\"}\"} 1 1700000000\r\nsglang_token_usage NaN"), 7)
	for _, text := range collected() {
		f.Add(text, 977)
	}
	f.Fuzz(func(t *testing.T, text []byte, piece int) {
		var p Parser
		var s fleet.Signals
		for range 2 {
			p.Reset(EngineUnknown)
			step := max(1, piece)
			for i := 0; i < len(text); i += step {
				if _, err := p.Write(text[i:min(i+step, len(text))]); err != nil {
					return
				}
				if step > len(text) {
					break
				}
			}
			if _, err := p.Finish(testNow, &s); err != nil {
				return
			}
			for _, v := range []fleet.Value{s.Running, s.Waiting, s.KVUsage, s.KVTokens, s.TTFTSum, s.HitRate, s.StartTime} {
				if v.OK() && (v.V < 0 || v.V != v.V || math.IsInf(v.V, 0)) {
					t.Fatalf("%v is no measurement", v.V)
				}
			}
		}
	})
}
