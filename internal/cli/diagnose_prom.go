// SPDX-License-Identifier: Apache-2.0

package cli

import (
	"context"
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"net/url"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/penstock-project/penstock/internal/diagnose"
)

// promColumn is one column of a history and the queries that may give it, the
// first with data wins. NS and NAME are replaced.
type promColumn struct {
	name    string
	queries []string
}

// promColumns are the series that engines and kube-state-metrics publish.
var promColumns = [...]promColumn{
	{"replicas", []string{`sum(kube_deployment_spec_replicas{NS NAME})`, `sum(kube_statefulset_replicas{NS})`}},
	{"ready", []string{`sum(kube_deployment_status_replicas_ready{NS NAME})`}},
	{"desired", []string{`sum(kube_horizontalpodautoscaler_status_desired_replicas{NS})`}},
	{"waiting_total", []string{`sum(vllm:num_requests_waiting{NS})`, `sum(sglang:num_queue_reqs{NS})`, `sum(tgi_queue_size{NS})`, `sum(llamacpp:requests_deferred{NS})`, `sum(trtllm_num_requests_waiting{NS})`}},
	{"running_total", []string{`sum(vllm:num_requests_running{NS})`, `sum(sglang:num_running_reqs{NS})`, `sum(tgi_batch_current_size{NS})`, `sum(llamacpp:requests_processing{NS})`}},
	{"kv_usage_max", []string{`max(vllm:kv_cache_usage_perc{NS})`, `max(vllm:gpu_cache_usage_perc{NS})`, `max(sglang:token_usage{NS})`, `max(trtllm_kv_cache_utilization{NS})`}},
	{"ttft_p95_s", []string{`histogram_quantile(0.95, sum by (le) (rate(vllm:time_to_first_token_seconds_bucket{NS}[2m])))`, `histogram_quantile(0.95, sum by (le) (rate(sglang:time_to_first_token_seconds_bucket{NS}[2m])))`}},
	{"gpu_util_pct", []string{`avg(DCGM_FI_DEV_GPU_UTIL{NS})`}},
}

// promHistory reads a history from a Prometheus.
func (e *Env) promHistory(ctx context.Context, f *scalingFlags) (*diagnose.Table, error) {
	base, err := url.Parse(f.prometheus)
	if err != nil || base.Host == "" {
		return nil, usagef("write --prometheus http://prometheus:9090", "%q is not the URL of a Prometheus", f.prometheus)
	}
	if f.since <= 0 || f.step <= 0 || f.since/f.step > 11000 {
		return nil, usagef("Prometheus answers at most 11,000 samples a series", "--since %s in steps of %s cannot be asked", f.since, f.step)
	}
	end := e.Now()
	table := &diagnose.Table{Columns: []string{"t_s"}}
	cells := map[int64][]string{}
	found := 0
	for i, col := range promColumns {
		table.Columns = append(table.Columns, col.name)
		for _, q := range col.queries {
			series, err := promRange(ctx, base, fillQuery(q, f), end.Add(-f.since), end, f.step)
			if err != nil {
				return nil, err
			}
			if len(series) == 0 {
				continue
			}
			found++
			for t, v := range series {
				row := cells[t]
				if row == nil {
					row = make([]string, len(promColumns)+1)
					cells[t] = row
				}
				row[i+1] = v
			}
			break
		}
	}
	if found == 0 {
		return nil, failf("check --namespace and --deployment, and that the engines are scraped", "%s has no series of an engine or a Deployment for that time", f.prometheus)
	}
	times := make([]int64, 0, len(cells))
	for t := range cells {
		times = append(times, t)
	}
	slices.Sort(times)
	for i, t := range times {
		row := cells[t]
		row[0] = strconv.FormatInt(t-times[0], 10)
		table.Rows = append(table.Rows, row)
		table.Lines = append(table.Lines, i+1)
	}
	return table, nil
}

func fillQuery(q string, f *scalingFlags) string {
	ns, name := "", ""
	if f.namespace != "" {
		ns = fmt.Sprintf("namespace=%q,", f.namespace)
	}
	if f.deployment != "" {
		name = fmt.Sprintf("deployment=%q", f.deployment)
	}
	q = strings.ReplaceAll(q, "NS NAME", ns+name)
	return strings.ReplaceAll(q, "NS", ns)
}

// promRange asks one range query that returns one series at most.
func promRange(ctx context.Context, base *url.URL, query string, from, to time.Time, step time.Duration) (map[int64]string, error) {
	u := base.JoinPath("/api/v1/query_range")
	u.RawQuery = url.Values{
		"query": {query}, "start": {strconv.FormatInt(from.Unix(), 10)}, "end": {strconv.FormatInt(to.Unix(), 10)}, "step": {strconv.FormatFloat(step.Seconds(), 'f', -1, 64)},
	}.Encode()
	ctx, cancel := context.WithTimeout(ctx, 30*time.Second)
	defer cancel()
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, u.String(), nil)
	if err != nil {
		return nil, err
	}
	res, err := http.DefaultClient.Do(req)
	if err != nil {
		return nil, &Fault{Code: ExitUnreachable, Err: fmt.Errorf("no answer from %s: %w", base.Host, err), Hint: "is this the URL of a Prometheus?"}
	}
	defer res.Body.Close()
	b, err := io.ReadAll(io.LimitReader(res.Body, 64<<20))
	if err != nil {
		return nil, err
	}
	var ans struct {
		Status string `json:"status"`
		Error  string `json:"error"`
		Data   struct {
			Result []struct {
				Values [][2]any `json:"values"`
			} `json:"result"`
		} `json:"data"`
	}
	if err := json.Unmarshal(b, &ans); err != nil {
		return nil, failf("is this the URL of a Prometheus?", "%s answered %d with something that is not the API of Prometheus", base.Host, res.StatusCode)
	}
	if ans.Status != "success" {
		return nil, failf("", "%s: %s", base.Host, ans.Error)
	}
	out := map[int64]string{}
	if len(ans.Data.Result) == 0 {
		return out, nil
	}
	for _, v := range ans.Data.Result[0].Values {
		t, ok1 := v[0].(float64)
		s, ok2 := v[1].(string)
		if ok1 && ok2 {
			out[int64(t)] = s
		}
	}
	return out, nil
}
