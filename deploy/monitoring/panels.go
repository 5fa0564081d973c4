// SPDX-License-Identifier: Apache-2.0

// Package monitoring holds what a Prometheus and a Grafana need to watch Penstock, as
// values: the panels of a dashboard and the alert rules. The files in deploy/grafana
// and deploy/alerts are written from it, and a test checks every metric name against
// the metrics that a server registers.
package monitoring

// Query is one line of a panel.
type Query struct{ Expr, Legend string }

// Panel is one panel of the dashboard.
type Panel struct {
	Title, About string
	Unit         string // of Grafana: s, reqps, short, percentunit, ...
	Queries      []Query
	Max          float64 // of the axis; 0: free
	Stack        bool
	Width        int // of 24 columns; 0: 8
}

// Row is a headed group of panels.
type Row struct {
	Title  string
	Panels []Panel
}

// quantile is a quantile of a histogram by one label.
func quantile(q, metric, selector, by string) string {
	return "histogram_quantile(" + q + ", sum by (le, " + by + ") (rate(" + metric + "_bucket{" + selector + "}[$__rate_interval])))"
}

// Selectors of the dashboard's variables.
const (
	jobSel   = `job=~"$job"`
	poolSel  = `job=~"$job", pool=~"$pool"`
	modelSel = `job=~"$job", model=~"$model"`
)

// Rows is the dashboard, in the order of the questions: are users fine, what binds,
// what is done about it.
func Rows() []Row {
	return []Row{
		{"Are users fine?", usersPanels()},
		{"What binds?", bindingPanels()},
		{"Does routing find the caches?", cachePanels()},
		{"Replicas", replicaPanels()},
		{"Tenants", tenantPanels()},
		{"Penstock itself", selfPanels()},
	}
}

func usersPanels() []Panel {
	return []Panel{
		{Title: "Time to first token", Unit: "s", Width: 12, About: "From the head of a streamed request to the first token sent on, queue of the router included.", Queries: []Query{
			{quantile("0.5", "penstock_gateway_ttft_seconds", modelSel, "model"), "{{model}} p50"},
			{quantile("0.95", "penstock_gateway_ttft_seconds", modelSel, "model"), "{{model}} p95"},
			{quantile("0.99", "penstock_gateway_ttft_seconds", modelSel, "model"), "{{model}} p99"},
		}},
		{Title: "Time between tokens", Unit: "s", Width: 12, About: "Of streams, as sent on to clients.", Queries: []Query{
			{quantile("0.5", "penstock_gateway_inter_token_seconds", modelSel, "model"), "{{model}} p50"},
			{quantile("0.99", "penstock_gateway_inter_token_seconds", modelSel, "model"), "{{model}} p99"},
		}},
		{Title: "Requests by status", Unit: "reqps", Stack: true, About: "499 is a client that left.", Queries: []Query{
			{"sum by (status) (rate(penstock_gateway_requests_total{" + modelSel + "}[$__rate_interval]))", "{{status}}"},
		}},
		{Title: "Errors by source", Unit: "reqps", Stack: true, About: "Who made the error: this gateway, or an engine.", Queries: []Query{
			{"sum by (source, kind) (rate(penstock_gateway_errors_total{" + jobSel + "}[$__rate_interval]))", "{{source}} {{kind}}"},
		}},
		{Title: "Tokens", Unit: "short", About: "A second, as engines count them.", Queries: []Query{
			{"sum(rate(penstock_gateway_prompt_tokens_total{" + modelSel + "}[$__rate_interval]))", "prompt"},
			{"sum(rate(penstock_gateway_cached_prompt_tokens_total{" + modelSel + "}[$__rate_interval]))", "prompt, cached"},
			{"sum(rate(penstock_gateway_output_tokens_total{" + modelSel + "}[$__rate_interval]))", "output"},
		}},
	}
}

func bindingPanels() []Panel {
	return []Panel{
		{Title: "Requests that wait", Unit: "short", About: "In the router, and at the replicas by their own metrics.", Queries: []Query{
			{"sum by (pool) (penstock_pool_held_requests{" + poolSel + "})", "{{pool}} in the router"},
			{"sum by (pool) (penstock_replica_engine_waiting_requests{" + poolSel + "})", "{{pool}} at replicas"},
		}},
		{Title: "Held by the router", Unit: "s", About: "Time between arrival and sending.", Queries: []Query{
			{quantile("0.95", "penstock_gateway_queue_seconds", modelSel, "model"), "{{model}} p95"},
		}},
		{Title: "KV cache", Unit: "percentunit", Max: 1, About: "The engines' own numbers. A full cache makes requests wait and evicts what was shared.", Queries: []Query{
			{"max by (pool) (penstock_replica_engine_kv_usage_ratio{" + poolSel + "})", "{{pool}} fullest"},
			{"avg by (pool) (penstock_replica_engine_kv_usage_ratio{" + poolSel + "})", "{{pool}} mean"},
		}},
	}
}

func cachePanels() []Panel {
	return []Panel{
		{Title: "Prompt tokens from a cache", Unit: "percentunit", Max: 1, About: "Share of prompt tokens, as engines report it.", Queries: []Query{
			{"sum by (model) (rate(penstock_gateway_cached_prompt_tokens_total{" + modelSel + "}[$__rate_interval])) / sum by (model) (rate(penstock_gateway_prompt_tokens_total{" + modelSel + "}[$__rate_interval]))", "{{model}}"},
		}},
		{Title: "Predicted and observed", Unit: "short", About: "Cached tokens a second: what the index expected and what engines reported. A gap is an index that is wrong.", Queries: []Query{
			{"sum by (pool) (rate(penstock_replica_predicted_cached_tokens_total{" + poolSel + "}[$__rate_interval]))", "{{pool}} predicted"},
			{"sum by (pool) (rate(penstock_replica_observed_cached_tokens_total{" + poolSel + "}[$__rate_interval]))", "{{pool}} observed"},
		}},
		{Title: "Warmer replica passed over", Unit: "reqps", About: "Decisions in which load outweighed the cache.", Queries: []Query{
			{"sum by (pool) (rate(penstock_pool_demoted_by_load_total{" + poolSel + "}[$__rate_interval]))", "{{pool}}"},
		}},
	}
}

func replicaPanels() []Panel {
	return []Panel{
		{Title: "Replicas by phase", Unit: "short", Stack: true, Queries: []Query{
			{"sum by (phase) (penstock_pool_replicas{" + poolSel + "}) > 0", "{{phase}}"},
		}},
		{Title: "In flight by replica", Unit: "short", About: "As this router counts them.", Queries: []Query{
			{"penstock_replica_in_flight_requests{" + poolSel + "}", "{{pool}} {{replica}}"},
		}},
		{Title: "KV cache by replica", Unit: "percentunit", Max: 1, Queries: []Query{
			{"penstock_replica_engine_kv_usage_ratio{" + poolSel + "}", "{{pool}} {{replica}}"},
		}},
		{Title: "Failed attempts", Unit: "reqps", Queries: []Query{
			{"sum by (pool, replica) (rate(penstock_replica_failed_attempts_total{" + poolSel + "}[$__rate_interval])) > 0", "{{pool}} {{replica}}"},
		}},
		{Title: "Age of signals", Unit: "s", About: "Since the last successful scrape. An old signal is not used.", Queries: []Query{
			{"max by (pool) (penstock_replica_scrape_age_seconds{" + poolSel + "})", "{{pool}} oldest"},
			{"max by (pool) (penstock_pool_snapshot_age_seconds{" + poolSel + "})", "{{pool}} snapshot"},
		}},
		{Title: "Restarts in place", Unit: "short", Queries: []Query{
			{"sum by (pool, replica) (increase(penstock_replica_restarts_total{" + poolSel + "}[1h])) > 0", "{{pool}} {{replica}}"},
		}},
	}
}

func tenantPanels() []Panel {
	return []Panel{
		{Title: "Quotas used", Unit: "percentunit", About: "What is gone of each limit. Above 1 is debt.", Queries: []Query{
			{"1 - penstock_quota_left{" + jobSel + "} / (penstock_quota_limit{" + jobSel + "} > 0)", "{{tenant}} {{measure}} {{period}}"},
		}},
		{Title: "Kept out by limits", Unit: "reqps", Queries: []Query{
			{"sum by (measure) (rate(penstock_gateway_ratelimit_refusals_total{" + jobSel + "}[$__rate_interval]))", "{{measure}}"},
		}},
		{Title: "Clients that left", Unit: "reqps", About: "By how far their request had come.", Queries: []Query{
			{"sum by (phase) (rate(penstock_gateway_client_disconnects_total{" + jobSel + "}[$__rate_interval]))", "{{phase}}"},
		}},
	}
}

func selfPanels() []Panel {
	return []Panel{
		{Title: "Time that the gateway adds", Unit: "s", About: "Neither its queue, nor the replica, nor the upload.", Queries: []Query{
			{quantile("0.5", "penstock_gateway_overhead_seconds", modelSel, "model"), "{{model}} p50"},
			{quantile("0.99", "penstock_gateway_overhead_seconds", modelSel, "model"), "{{model}} p99"},
		}},
		{Title: "Retries", Unit: "reqps", Queries: []Query{
			{"sum by (reason) (rate(penstock_gateway_retries_total{" + jobSel + "}[$__rate_interval]))", "{{reason}}"},
		}},
		{Title: "Records that the disk missed, counts that leaked", Unit: "short", Queries: []Query{
			{"sum(increase(penstock_journal_dropped_total{" + jobSel + "}[1h]))", "records"},
			{"sum(increase(penstock_pool_leaked_requests_total{" + poolSel + "}[1h]))", "counts"},
		}},
	}
}
