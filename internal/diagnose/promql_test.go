// SPDX-License-Identifier: Apache-2.0

package diagnose

import "testing"

func TestParseQuery(t *testing.T) {
	for _, c := range []struct {
		query string
		card  Cardinality
		outer string
	}{
		{`vllm:num_requests_waiting`, CardMany, ""},
		{`vllm:num_requests_waiting{model_name="m"}`, CardMany, ""},
		{`sum(vllm:num_requests_waiting)`, CardOne, "sum"},
		{`sum(vllm:num_requests_waiting{namespace="prod"}) or vector(0)`, CardOne, "sum"},
		{`(
		   sum(llm_d_epp_inflight_tokens{namespace="x", producer_name="y"}) / 15928
		 ) or vector(0)`, CardOne, "sum"},
		{`sum by (model_name) (vllm:num_requests_waiting)`, CardMany, "sum"},
		{`sum by (model_name) (vllm:num_requests_waiting{model_name="m"})`, CardOne, "sum"},
		{`sum(vllm:num_requests_waiting) by (namespace)`, CardMany, "sum"},
		{`avg(vllm:kv_cache_usage_perc)`, CardOne, "avg"},
		{`max(sglang:token_usage) > 0.5`, CardOne, "max"},
		{`histogram_quantile(0.95, sum(rate(vllm:time_to_first_token_seconds_bucket[2m])) by (le))`, CardOne, "quantile"},
		{`histogram_quantile(0.95, sum by (le, pod) (rate(x_bucket[2m])))`, CardMany, "quantile"},
		{`histogram_quantile(0.95, rate(x_bucket[2m]))`, CardMany, "quantile"},
		{`rate(vllm:request_success_total[1m])`, CardMany, ""},
		{`sum(rate(vllm:request_success_total[1m] offset 5m))`, CardOne, "sum"},
		{`sum(a) / sum(b)`, CardOne, "sum"},
		{`sum by (pod) (a) / on (pod) sum by (pod) (b)`, CardMany, "sum"},
		{`a or vector(0)`, CardMany, ""},
		{`scalar(a)`, CardOne, ""},
		{`max_over_time(sum(a)[5m:15s])`, CardOne, "sum"},
		{`ceil(avg_over_time(a[5m]))`, CardMany, ""},
		{`a{pod="chat-0"}`, CardUnknown, ""},
		{`topk(1, a)`, CardUnknown, "topk"},
		{`{__name__="vllm:num_requests_waiting"}`, CardMany, ""},
		{`-sum(a)`, CardOne, "sum"},
		{`sum(a{x="{}"})`, CardOne, "sum"},
		{`sum(`, CardUnknown, ""},
		{`sum(a) sum(b)`, CardUnknown, ""},
		{``, CardUnknown, ""},
	} {
		q := ParseQuery(c.query)
		if q.Card != c.card || q.Outer != c.outer {
			t.Errorf("%s: card %d outer %q, want %d %q (%+v)", c.query, q.Card, q.Outer, c.card, c.outer, q)
		}
	}
	if q := ParseQuery(`sum(a) or vector(0)`); !q.OrZero || !q.OK {
		t.Errorf("or vector(0) is not seen: %+v", q)
	}
	if q := ParseQuery(`sum(rate(vllm:request_success_total{model_name="m"}[1m]))`); !q.Rate || len(q.Metrics) != 1 || q.Metrics[0] != "vllm:request_success_total" {
		t.Errorf("rate: %+v", q)
	}
}

func FuzzParseQuery(f *testing.F) {
	for _, s := range []string{`sum(a)`, `sum by (x) (rate(a{b="c"}[5m])) / 2 or vector(0)`, `((((`, `a{b=~"x|y"} offset 5m @ end()`} {
		f.Add(s)
	}
	f.Fuzz(func(t *testing.T, s string) {
		q := ParseQuery(s)
		if !q.OK && q.Card != CardUnknown {
			t.Errorf("%q: not understood, yet cardinality %d", s, q.Card)
		}
	})
}

func TestFact(t *testing.T) {
	for _, c := range []struct {
		name   string
		kind   MetricKind
		signal SignalKind
		avg    bool
	}{
		{"vllm:num_requests_waiting", KindCount, SignalQueue, false},
		{"vllm_num_requests_waiting", KindCount, SignalQueue, false},
		{"gpu_cache_usage_perc", KindRatio, SignalKV, false},
		{"sglang:token_usage", KindRatio, SignalKV, false},
		{"avg_time_queue_us", KindMicros, SignalLatency, true},
		{"DCGM_FI_DEV_GPU_UTIL", KindPercent, SignalGPU, false},
		{"kubernetes.io|container|accelerator|duty_cycle", KindUnknown, SignalGPU, false},
		{"wva_desired_replicas", KindReplicas, SignalReplicas, false},
		{"chat_queue_depth", KindCount, SignalQueue, false},
		{"llm_queue_wait_ms", KindMillis, SignalLatency, true},
		{"http_requests_per_second", KindRate, SignalRequests, false},
		{"ttft_p95_seconds", KindSeconds, SignalLatency, true},
		{"inference_pool_average_queue_size", KindCount, SignalQueue, true},
		{"vllm:time_to_first_token_seconds_bucket", KindSeconds, SignalLatency, true},
		{"something", KindUnknown, SignalOther, false},
		{"vllm:num_requests_waiting_total", KindCount, SignalQueue, false},
	} {
		f := Fact(c.name)
		if f.Kind != c.kind || f.Signal != c.signal || f.Averaged != c.avg {
			t.Errorf("%s: kind %d signal %d averaged %v, want %d %d %v", c.name, f.Kind, f.Signal, f.Averaged, c.kind, c.signal, c.avg)
		}
	}
}
