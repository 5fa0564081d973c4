// SPDX-License-Identifier: Apache-2.0

// Package scaling says from a history of replicas and signals why a fleet did not
// scale, scaled too late, flapped, ran away or asked for what cannot be had, and
// what another setting would have done with the same signals.
package scaling

import (
	"math"
	"regexp"
	"slices"
	"strconv"
	"strings"

	"github.com/penstock-project/penstock/internal/diagnose"
)

// row is one moment of a history. NaN is unknown, which is never zero.
type row struct {
	t                        float64
	replicas, ready, desired float64
	waiting, running, kv     float64
	ttft                     float64 // milliseconds
	cpu, gpu                 float64 // percent
	rps, prompt              float64
	target                   float64 // in flight per replica
	lost                     bool    // the signal's source answered nothing
	line                     int
	runningPerReady          float64
}

// history is a table read by the meaning of its columns.
type history struct {
	rows        []row
	has         map[string]bool
	replicaName string
	signalName  string
}

var unknown = math.NaN()

func known(v float64) bool { return !math.IsNaN(v) }

// column names, in any case and with any separators.
var columns = [...]struct {
	field string
	names []string
}{
	{"replicas", []string{"replicas", "spec_replicas", "num_replicas", "n_replicas", "replicas_current", "current_pods", "current_replicas", "current", "count", "pods", "replica_count", "naive_max_a", "allocation", "share", "kube_deployment_spec_replicas"}},
	{"ready", []string{"ready", "replicas_ready", "ready_replicas", "ready_pods", "readyreplicas", "available", "kube_deployment_status_replicas_ready"}},
	{"desired", []string{"desired", "replicas_desired", "desired_pods", "hpa_desired", "desired_replicas", "desiredreplicas", "recommendation", "recommended", "want", "wanted", "kube_horizontalpodautoscaler_status_desired_replicas"}},
	{"waiting", []string{"waiting_total", "requests_waiting", "num_waiting", "queued", "queue_length", "queue_len", "backlog", "waiting", "num_requests_waiting", "vllm_num_requests_waiting", "queue_total", "queue", "queue_depth", "queue_size", "waiting_total_true", "pending_requests", "sglang_num_queue_reqs", "queue_a", "num_queue_reqs", "tgi_queue_size"}},
	{"running", []string{"running_total", "running", "num_requests_running", "vllm_num_requests_running", "inflight", "in_flight", "concurrency", "active_requests"}},
	{"running_per_ready", []string{"running_per_ready", "running_per_replica", "running_avg", "inflight_per_replica"}},
	{"kv", []string{"kv_usage_max", "kv_usage", "kv_cache_usage", "kv_cache_usage_perc", "vllm_kv_cache_usage_perc", "gpu_cache_usage_perc", "kv_usage_avg", "kv"}},
	{"ttft_ms", []string{"ttft_p95_ms", "ttft_p99_ms", "ttft_p90_ms", "ttft_p50_ms", "ttft_ms", "p95_ttft_ms", "latency_p95_ms"}},
	{"ttft_s", []string{"ttft_p95_s", "ttft_p99_s", "ttft_s", "ttft_p95", "ttft", "ttft_seconds", "p95_ttft_s", "ttft_p95_seconds"}},
	{"cpu", []string{"cpu_pct_avg", "cpu_pct", "cpu_percent", "cpu_util", "cpu_utilization", "cpu_utilisation", "cpu", "cpu_avg"}},
	{"gpu", []string{"gpu_util_pct_avg", "gpu_util_pct", "gpu_util", "gpu_utilization", "gpu_utilisation", "dcgm_fi_dev_gpu_util", "gpu_pct", "gpu"}},
	{"rps", []string{"rps_in", "rps", "requests_per_second", "qps", "request_rate", "req_s", "requests_s"}},
	{"prompt", []string{"avg_prompt_tokens", "prompt_tokens_avg", "mean_prompt_tokens", "prompt_tokens", "input_tokens_avg", "isl"}},
	{"target", []string{"target_inflight_per_replica", "target_per_replica", "target", "target_waiting_per_replica"}},
	{"answer", []string{"prometheus_answer", "answer", "metric_answer", "signal", "metric_value", "observed"}},
}

// read turns a table into a history. It reports false where the table has neither
// replicas nor a signal.
func read(t *diagnose.Table) (*history, bool) {
	h := &history{has: map[string]bool{}}
	col := map[string]int{}
	for _, c := range columns {
		i := t.Column(c.names...)
		col[c.field] = i
		h.has[c.field] = i >= 0
	}
	for _, c := range columns {
		if !h.has[c.field] {
			i := columnByFact(t, c.field, col)
			col[c.field], h.has[c.field] = i, i >= 0
		}
	}
	if col["replicas"] < 0 && col["ready"] >= 0 {
		col["replicas"], h.has["replicas"] = col["ready"], true
	}
	if col["replicas"] < 0 && col["desired"] >= 0 {
		col["replicas"], h.has["replicas"] = col["desired"], true
	}
	if i := col["replicas"]; i >= 0 {
		h.replicaName = t.Columns[i]
	}
	if i := col["waiting"]; i >= 0 {
		h.signalName = t.Columns[i]
	}
	if !h.has["replicas"] && !h.has["waiting"] && !h.has["kv"] {
		return nil, false
	}
	for i := range t.Rows {
		num := func(field string) float64 {
			if v, ok := t.Float(i, col[field]); ok {
				return v
			}
			return unknown
		}
		at, ok := t.Time(i)
		if !ok {
			at = float64(i) * 15 // no time: the sync period of an HPA
		}
		r := row{
			t: at, replicas: num("replicas"), ready: num("ready"), desired: num("desired"), waiting: num("waiting"), running: num("running"),
			kv: num("kv"), ttft: num("ttft_ms"), cpu: num("cpu"), gpu: num("gpu"), rps: num("rps"), prompt: num("prompt"),
			target: num("target"), line: t.Lines[i], runningPerReady: num("running_per_ready"),
		}
		if s := num("ttft_s"); known(s) && !known(r.ttft) {
			r.ttft = s * 1000
		}
		if !known(r.running) && known(r.runningPerReady) && known(r.ready) {
			r.running = r.runningPerReady * r.ready
		}
		r.lost = lostSignal(t.Text(i, col["answer"])) || h.has["waiting"] && lostSignal(t.Text(i, col["waiting"]))
		h.rows = append(h.rows, r)
	}
	h.percents()
	slices.SortStableFunc(h.rows, func(a, b row) int {
		switch {
		case a.t < b.t:
			return -1
		case a.t > b.t:
			return 1
		}
		return 0
	})
	return h, len(h.rows) > 0
}

// percents reads shares and percentages alike: a column that never exceeds 1 holds
// shares.
func (h *history) percents() {
	for _, f := range [...]func(*row) *float64{
		func(r *row) *float64 { return &r.cpu }, func(r *row) *float64 { return &r.gpu },
	} {
		most := maxOf(h.series(func(r *row) float64 { return *f(r) }))
		if !known(most) || most > 1 {
			continue
		}
		for i := range h.rows {
			*f(&h.rows[i]) *= 100
		}
	}
}

// columnByFact finds a column by what its name says where no known name fits.
// Columns that are taken, targets and values of one replica are none.
func columnByFact(t *diagnose.Table, field string, taken map[string]int) int {
	want, ok := map[string]diagnose.SignalKind{
		"waiting": diagnose.SignalQueue, "running": diagnose.SignalRunning, "kv": diagnose.SignalKV, "cpu": diagnose.SignalCPU,
		"gpu": diagnose.SignalGPU, "rps": diagnose.SignalRequests,
	}[field]
	if !ok {
		return -1
	}
	used := make([]bool, len(t.Columns))
	for _, i := range taken {
		if i >= 0 {
			used[i] = true
		}
	}
	for i, c := range t.Columns {
		if used[i] || strings.Contains(c, "target") || strings.Contains(c, "_per_") {
			continue
		}
		f := diagnose.Fact(c)
		if f.Signal == want && f.Kind != diagnose.KindTotal && (field != "waiting" && field != "running" || f.Kind == diagnose.KindCount) {
			return i
		}
	}
	return -1
}

// lostSignal reports whether a cell says that the source answered nothing.
func lostSignal(s string) bool {
	switch strings.ToLower(strings.TrimSpace(s)) {
	case "empty", "nan", "none", "null", "unknown", "<unknown>", "no data", "nodata", "missing", "error", "timeout":
		return true
	}
	return false
}

// series returns the known values of one field in order.
func (h *history) series(f func(*row) float64) []float64 {
	var out []float64
	for i := range h.rows {
		if v := f(&h.rows[i]); known(v) {
			out = append(out, v)
		}
	}
	return out
}

func replicasOf(r *row) float64 { return r.replicas }
func waitingOf(r *row) float64  { return r.waiting }
func kvOf(r *row) float64       { return r.kv }
func ttftOf(r *row) float64     { return r.ttft }
func cpuOf(r *row) float64      { return r.cpu }
func gpuOf(r *row) float64      { return r.gpu }
func rpsOf(r *row) float64      { return r.rps }
func promptOf(r *row) float64   { return r.prompt }

func ends(v []float64) (first, last float64) {
	if len(v) == 0 {
		return unknown, unknown
	}
	return v[0], v[len(v)-1]
}

func maxOf(v []float64) float64 {
	if len(v) == 0 {
		return unknown
	}
	return slices.Max(v)
}

func minOf(v []float64) float64 {
	if len(v) == 0 {
		return unknown
	}
	return slices.Min(v)
}

// change is one step of the count.
type change struct {
	at       float64
	from, to int
	before   *row // the row whose signal was read
	line     int
}

// changes lists the steps of the count.
func (h *history) changes(f func(*row) float64) []change {
	var out []change
	last, has := 0.0, false
	var prev *row
	for i := range h.rows {
		r := &h.rows[i]
		v := f(r)
		if !known(v) {
			continue
		}
		if has && v != last {
			out = append(out, change{at: r.t, from: int(last), to: int(v), before: prev, line: r.line})
		}
		last, has, prev = v, true, r
	}
	return out
}

// decisionLine reads "ready=2 current=4 (2 pending) -> 8", as controllers log
// their decisions, in any order of words.
var decisionLine = regexp.MustCompile(`ready[=: ]+(\d+).*?(?:current|spec|replicas)[=: ]+(\d+).*?->\s*(\d+)`)

// FromDecisions reads lines of decisions into a table with the columns t_s, ready,
// replicas and desired; nil where there are none.
func FromDecisions(text string) *diagnose.Table {
	t := &diagnose.Table{Columns: []string{"t_s", "ready", "replicas", "desired"}}
	n := 0
	for line := range strings.Lines(text) {
		n++
		m := decisionLine.FindStringSubmatch(line)
		if m == nil {
			continue
		}
		at := strconv.Itoa(len(t.Rows) * 15)
		t.Rows = append(t.Rows, []string{at, m[1], m[2], m[3]})
		t.Lines = append(t.Lines, n)
	}
	if len(t.Rows) == 0 {
		return nil
	}
	return t
}

var newSize = regexp.MustCompile(`New size: (\d+)`)

// FromEvents reads the rescales that an HPA reports into a table; nil where there
// are none.
func FromEvents(events []diagnose.Event) *diagnose.Table {
	t := &diagnose.Table{Columns: []string{"t_s", "replicas", "reason"}}
	for i := range events {
		e := &events[i]
		m := newSize.FindStringSubmatch(e.Message)
		if e.Reason != "SuccessfulRescale" || m == nil || !e.HasTime {
			continue
		}
		_, reason, _ := strings.Cut(e.Message, "reason: ")
		t.Rows = append(t.Rows, []string{strconv.FormatFloat(e.At, 'f', 3, 64), m[1], reason})
		t.Lines = append(t.Lines, e.Line)
	}
	if len(t.Rows) < 2 {
		return nil
	}
	return t
}
