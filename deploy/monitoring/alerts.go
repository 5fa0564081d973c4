// SPDX-License-Identifier: Apache-2.0

package monitoring

// Alert is one rule. Runbook is a page of this repository.
type Alert struct {
	Name, Expr, For, Severity string
	Summary, Description      string
	Runbook                   string
}

// finding is the page of a finding.
func finding(code string) string { return "docs/reference/findings/" + code + ".md" }

// Alerts are the rules for a server. Thresholds are those from which users notice;
// the two of time to first token and of errors are to be set to what was promised.
func Alerts() []Alert {
	return append(append(userAlerts(), fleetAlerts()...), selfAlerts()...)
}

func userAlerts() []Alert {
	return []Alert{
		{"PenstockNoReadyReplica", `sum by (job, pool) (penstock_pool_replicas{phase="ready"}) == 0`, "1m", "page",
			"Pool {{ $labels.pool }} has no ready replica", "Requests wait or are refused.", finding("no-ready-replica")},
		{"PenstockSlowFirstToken", `histogram_quantile(0.95, sum by (le, job, model) (rate(penstock_gateway_ttft_seconds_bucket[5m]))) > 2`, "5m", "page",
			"First tokens of {{ $labels.model }} take {{ $value | humanizeDuration }} (p95)", "Set the threshold to what was promised. `penstock top` says what binds: queue, KV cache, or the prompts themselves.", "docs/how-to/console.md"},
		{"PenstockErrors", `sum by (job, model) (rate(penstock_gateway_requests_total{status=~"5.."}[5m])) / sum by (job, model) (rate(penstock_gateway_requests_total[5m])) > 0.01`, "5m", "page",
			"{{ $value | humanizePercentage }} of requests for {{ $labels.model }} fail", "`penstock explain --last --filter kind!=ok` shows one of them.", finding("request-failed")},
		{"PenstockRefusals", `sum by (job, pool) (rate(penstock_pool_refused_requests_total[5m])) > 0.05 * sum by (job, pool) (rate(penstock_pool_requests_total[5m]))`, "5m", "warning",
			"More than 5 % of the requests of pool {{ $labels.pool }} are refused", "No replica could take them.", finding("requests-refused")},
		{"PenstockQueueStays", `min_over_time(penstock_pool_held_requests[5m]) > 0`, "5m", "warning",
			"Requests of pool {{ $labels.pool }} have waited in the router for minutes", "The replicas have no room. `penstock diagnose scaling` says why their count does not grow.", finding("request-held")},
	}
}

func fleetAlerts() []Alert {
	return []Alert{
		{"PenstockFleetFull", `min by (job, pool) (penstock_replica_engine_kv_usage_ratio) > 0.9 and on (job, pool) sum by (job, pool) (penstock_replica_engine_waiting_requests) > 0`, "5m", "warning",
			"Every replica of pool {{ $labels.pool }} has a full KV cache while requests wait", "More replicas are needed, or less admitted.", finding("fleet-full")},
		{"PenstockReplicaFails", `increase(penstock_replica_failed_attempts_total[10m]) > 0.1 * increase(penstock_replica_attempts_total[10m]) and increase(penstock_replica_attempts_total[10m]) > 20`, "", "warning",
			"Attempts at {{ $labels.replica }} of pool {{ $labels.pool }} fail", "More than a tenth of them, in ten minutes.", finding("replica-errors")},
		{"PenstockReadinessFlaps", `changes(penstock_replica_up[30m]) > 6`, "", "warning",
			"{{ $labels.replica }} of pool {{ $labels.pool }} comes and goes", "It changed between ready and not ready {{ $value }} times in half an hour.", finding("readiness-flaps")},
		{"PenstockSignalsStale", `penstock_replica_scrape_age_seconds > 15 and on (job, pool, replica) penstock_replica_up == 1`, "2m", "warning",
			"The metrics of {{ $labels.replica }} are {{ $value | humanizeDuration }} old", "The router carries it on its own accounting alone.", finding("signals-stale")},
		{"PenstockIndexWrong", `increase(penstock_replica_observed_cached_tokens_total[30m]) < 0.5 * increase(penstock_replica_predicted_cached_tokens_total[30m]) and increase(penstock_replica_predicted_cached_tokens_total[30m]) > 100000`, "10m", "warning",
			"{{ $labels.replica }} finds less than half of what the index expects in its cache", "Prefixes are routed to a cache that does not hold them.", finding("index-disagrees")},
	}
}

func selfAlerts() []Alert {
	return []Alert{
		{"PenstockReloadRejected", `penstock_config_last_reload_successful == 0`, "1m", "warning",
			"A configuration was rejected; the one before it runs on", "`penstock config check FILE` says what is wrong, by line.", finding("config-rejected")},
		{"PenstockControlPlaneAway", `penstock_pool_control_plane_up == 0`, "2m", "warning",
			"The Kubernetes API server behind pool {{ $labels.pool }} does not answer", "The last list of replicas stays in use.", "docs/reference/failures.md"},
		{"PenstockJournalLosesRecords", `increase(penstock_journal_dropped_total[10m]) > 0`, "", "warning",
			"Records of decisions did not reach the disk", "Explanations and replays will have gaps.", finding("journal-loses-records")},
		{"PenstockCountsLeak", `increase(penstock_pool_leaked_requests_total[15m]) > 5`, "", "warning",
			"Requests of pool {{ $labels.pool }} never report their end", "Until reconciliation writes them off, their replica looks busier than it is.", finding("accounting-healed")},
		{"PenstockQuotaStoreAway", `penstock_quota_store_up == 0`, "2m", "warning",
			"The store of quotas does not answer", "Each gateway goes on with what it had leased.", "docs/how-to/quotas.md"},
	}
}
