// SPDX-License-Identifier: Apache-2.0

package cli

import (
	"strconv"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/penstock-project/penstock/internal/console"
	"github.com/penstock-project/penstock/internal/dispatch"
	"github.com/penstock-project/penstock/internal/fleet"
)

// fleetCollector exports the state of the pools, the journal and the
// configuration, read at the moment of the scrape. A value that is unknown is left
// out, never exported as 0.
type fleetCollector struct {
	pools   func() []console.Pool
	state   func() console.ConfigState
	journal func() (records, written, dropped uint64)
	clock   func() fleet.Time
	descs   map[string]*prometheus.Desc
}

var poolLabel, replicaLabels = []string{"pool"}, []string{"pool", "replica"}

// fleetMetrics is the table of names; the documentation is made from it, too.
var fleetMetrics = []struct {
	name, help string
	labels     []string
}{
	{"penstock_pool_replicas", "Replicas of the pool by phase.", []string{"pool", "phase"}},
	{"penstock_pool_in_flight_requests", "Requests that were sent to a replica and have not ended.", poolLabel},
	{"penstock_pool_held_requests", "Requests that wait in the router.", poolLabel},
	{"penstock_pool_requests_total", "Requests that arrived.", poolLabel},
	{"penstock_pool_attempts_total", "Attempts, retries included.", poolLabel},
	{"penstock_pool_refused_requests_total", "Requests that no replica could take.", poolLabel},
	{"penstock_pool_retries_total", "Attempts that went to another replica.", poolLabel},
	{"penstock_pool_demoted_by_load_total", "Decisions that passed a warmer replica over because of its load.", poolLabel},
	{"penstock_pool_queue_on", "1 while the router's own queue is on.", poolLabel},
	{"penstock_pool_queue_held_requests_total", "Requests that the router's queue held and then sent.", poolLabel},
	{"penstock_pool_queue_hold_seconds_total", "Time that those were held.", poolLabel},
	{"penstock_pool_queue_longest_hold_seconds", "The longest that one was held since the start.", poolLabel},
	{"penstock_pool_queue_overdue_requests_total", "Held requests that were sent because the bound on waiting was reached.", poolLabel},
	{"penstock_pool_tenant_over_share", "1 while a tenant asks for far more than the others that wait, and keeps to some of the replicas.", []string{"pool", "tenant"}},
	{"penstock_pool_tenant_over_share_total", "Times that a tenant was found to be over its share.", poolLabel},
	{"penstock_pool_mechanism_off", "1 while a mechanism that may hold requests, or the affinity of LoRA adapters, is off because it harmed.", []string{"pool", "mechanism"}},
	{"penstock_pool_mechanism_switched_off_total", "Times that it was switched off.", []string{"pool", "mechanism"}},
	{"penstock_pool_leaked_requests_total", "In-flight counts that reconciliation wrote off.", poolLabel},
	{"penstock_pool_snapshot_age_seconds", "Age of the last snapshot.", poolLabel},
	{"penstock_pool_control_plane_age_seconds", "Time since the Kubernetes API server behind the pool last answered.", poolLabel},
	{"penstock_pool_control_plane_up", "1 while the Kubernetes API server behind the pool answers.", poolLabel},
	{"penstock_replica_up", "1 when the replica takes requests.", replicaLabels},
	{"penstock_replica_slow", "1 when the replica is alive but its probes time out.", replicaLabels},
	{"penstock_replica_in_flight_requests", "Requests that this router has at the replica.", replicaLabels},
	{"penstock_replica_pending_prefill_seconds", "Estimated prefill work that this router has at the replica.", replicaLabels},
	{"penstock_replica_attempts_total", "Attempts at the replica.", replicaLabels},
	{"penstock_replica_failed_attempts_total", "Attempts at the replica that failed.", replicaLabels},
	{"penstock_replica_restarts_total", "Restarts in place that were noticed.", replicaLabels},
	{"penstock_replica_predicted_cached_tokens_total", "Prompt tokens that were expected to be cached.", replicaLabels},
	{"penstock_replica_observed_cached_tokens_total", "Prompt tokens that the engine said were cached.", replicaLabels},
	{"penstock_replica_rank_in_flight_requests", "Requests that this router has at a data-parallel rank of the replica.", []string{"pool", "replica", "rank"}},
	{"penstock_replica_parallel", "1 while the replica is taken to compute several prompts at a time, so that nothing is held for it.", replicaLabels},
	{"penstock_replica_rank_pins_ignored", "1 when the engine computes requests at other data-parallel ranks than they name.", replicaLabels},
	{"penstock_replica_rank_pins_checked_requests", "Requests that named a rank and that the last verdict on that rests on.", replicaLabels},
	{"penstock_replica_rank_pins_met_requests", "Of those, counted by the engine at the rank that they named.", replicaLabels},
	{"penstock_replica_engine_running_requests", "The engine's own count of running requests.", replicaLabels},
	{"penstock_replica_engine_waiting_requests", "The engine's own count of requests that wait for capacity.", replicaLabels},
	{"penstock_replica_engine_kv_usage_ratio", "The engine's own KV-cache use, 0 to 1.", replicaLabels},
	{"penstock_replica_scrape_age_seconds", "Age of the last successful scrape.", replicaLabels},
	{"penstock_replica_scrape_error", "1 when the last scrape failed.", replicaLabels},
	{"penstock_journal_records_total", "Decisions that were recorded.", nil},
	{"penstock_journal_written_total", "Records that were written to disk.", nil},
	{"penstock_journal_dropped_total", "Records that the disk missed.", nil},
	{"penstock_config_last_reload_successful", "1 when the last reload of the configuration worked.", nil},
	{"penstock_config_last_reload_timestamp_seconds", "When the configuration was last reloaded.", nil},
}

func newFleetCollector(pools func() []console.Pool, state func() console.ConfigState, journal func() (uint64, uint64, uint64), clock func() fleet.Time) *fleetCollector {
	c := &fleetCollector{pools: pools, state: state, journal: journal, clock: clock, descs: map[string]*prometheus.Desc{}}
	for _, m := range fleetMetrics {
		c.descs[m.name] = prometheus.NewDesc(m.name, m.help, m.labels, nil)
	}
	return c
}

// Describe implements prometheus.Collector.
func (c *fleetCollector) Describe(ch chan<- *prometheus.Desc) {
	for _, m := range fleetMetrics {
		ch <- c.descs[m.name]
	}
}

// Collect implements prometheus.Collector.
func (c *fleetCollector) Collect(ch chan<- prometheus.Metric) {
	gauge := func(name string, v float64, labels ...string) {
		ch <- prometheus.MustNewConstMetric(c.descs[name], prometheus.GaugeValue, v, labels...)
	}
	counter := func(name string, v float64, labels ...string) {
		ch <- prometheus.MustNewConstMetric(c.descs[name], prometheus.CounterValue, v, labels...)
	}
	now := c.clock()
	for _, p := range c.pools() {
		st := p.Flow.Stats()
		t := &st.Totals
		gauge("penstock_pool_in_flight_requests", float64(t.InFlight), p.Name)
		gauge("penstock_pool_held_requests", float64(t.Held), p.Name)
		counter("penstock_pool_requests_total", float64(t.Arrived), p.Name)
		counter("penstock_pool_attempts_total", float64(t.Sent), p.Name)
		counter("penstock_pool_refused_requests_total", float64(t.Refused), p.Name)
		counter("penstock_pool_retries_total", float64(t.Retried), p.Name)
		counter("penstock_pool_demoted_by_load_total", float64(t.DemotedByLoad), p.Name)
		counter("penstock_pool_leaked_requests_total", float64(t.Leaked), p.Name)
		queueMetrics(gauge, counter, p.Name, t)
		for i := range st.Endpoints {
			e := &st.Endpoints[i]
			gauge("penstock_replica_in_flight_requests", float64(e.InFlight), p.Name, e.Endpoint)
			gauge("penstock_replica_pending_prefill_seconds", e.PendingMS/1e3, p.Name, e.Endpoint)
			counter("penstock_replica_attempts_total", float64(e.Sent), p.Name, e.Endpoint)
			counter("penstock_replica_failed_attempts_total", float64(e.Failed), p.Name, e.Endpoint)
			counter("penstock_replica_restarts_total", float64(e.Restarts), p.Name, e.Endpoint)
			counter("penstock_replica_predicted_cached_tokens_total", float64(e.PredictedCached), p.Name, e.Endpoint)
			counter("penstock_replica_observed_cached_tokens_total", float64(e.ObservedCached), p.Name, e.Endpoint)
			gauge("penstock_replica_parallel", flag(e.Overlaps), p.Name, e.Endpoint)
			rankMetrics(gauge, p.Name, e)
		}
		if p.Control != nil {
			cp := p.Control()
			if cp.AgeMS != nil {
				gauge("penstock_pool_control_plane_age_seconds", *cp.AgeMS/1e3, p.Name)
			}
			gauge("penstock_pool_control_plane_up", flag(cp.AgeMS != nil && cp.Fault == ""), p.Name)
		}
		if s := p.Observer.Snapshot(); s != nil {
			c.snapshot(gauge, p.Name, s, now)
		}
	}
	records, written, dropped := c.journal()
	counter("penstock_journal_records_total", float64(records))
	counter("penstock_journal_written_total", float64(written))
	counter("penstock_journal_dropped_total", float64(dropped))
	state := c.state()
	gauge("penstock_config_last_reload_successful", flag(state.ReloadOK))
	if state.ReloadedAt != nil {
		gauge("penstock_config_last_reload_timestamp_seconds", float64(state.ReloadedAt.UnixNano())/float64(time.Second))
	}
}

func rankMetrics(gauge func(string, float64, ...string), pool string, e *dispatch.EndpointLoad) {
	for i := range e.Ranks {
		gauge("penstock_replica_rank_in_flight_requests", float64(e.Ranks[i].InFlight), pool, e.Endpoint, strconv.Itoa(e.Ranks[i].Rank))
	}
	if p := e.Pins; p != nil {
		gauge("penstock_replica_rank_pins_ignored", flag(p.Verdict == dispatch.PinsIgnored), pool, e.Endpoint)
		gauge("penstock_replica_rank_pins_checked_requests", p.Checked, pool, e.Endpoint)
		gauge("penstock_replica_rank_pins_met_requests", p.Met, pool, e.Endpoint)
	}
}

func queueMetrics(gauge, counter func(string, float64, ...string), pool string, t *dispatch.Totals) {
	gauge("penstock_pool_queue_on", flag(t.QueueOn), pool)
	counter("penstock_pool_queue_held_requests_total", float64(t.Queue.Held), pool)
	counter("penstock_pool_queue_hold_seconds_total", t.Queue.Sum.Seconds(), pool)
	gauge("penstock_pool_queue_longest_hold_seconds", t.Queue.Longest.Seconds(), pool)
	counter("penstock_pool_queue_overdue_requests_total", float64(t.Overdue), pool)
	if o := t.Over; o != nil {
		gauge("penstock_pool_tenant_over_share", 1, pool, o.Tenant)
	}
	counter("penstock_pool_tenant_over_share_total", float64(t.OverShare), pool)
	for i := range t.Guards {
		g := &t.Guards[i]
		gauge("penstock_pool_mechanism_off", flag(g.Off), pool, g.Name)
		counter("penstock_pool_mechanism_switched_off_total", float64(g.Switched), pool, g.Name)
	}
}

func (c *fleetCollector) snapshot(gauge func(string, float64, ...string), pool string, s *fleet.Snapshot, now fleet.Time) {
	gauge("penstock_pool_snapshot_age_seconds", now.Sub(s.At).Seconds(), pool)
	for p := fleet.PhasePending; p <= fleet.PhaseAsleep; p++ {
		gauge("penstock_pool_replicas", float64(s.Count(p)), pool, p.String())
	}
	for i := range s.Endpoints {
		e := &s.Endpoints[i]
		gauge("penstock_replica_up", flag(e.Phase == fleet.PhaseReady), pool, e.ID)
		gauge("penstock_replica_slow", flag(e.Slow), pool, e.ID)
		gauge("penstock_replica_scrape_error", flag(e.ScrapeError != ""), pool, e.ID)
		if e.ScrapedAt != 0 {
			gauge("penstock_replica_scrape_age_seconds", now.Sub(e.ScrapedAt).Seconds(), pool, e.ID)
		}
		for _, v := range []struct {
			name string
			v    fleet.Value
		}{
			{"penstock_replica_engine_running_requests", e.Running}, {"penstock_replica_engine_waiting_requests", e.Waiting},
			{"penstock_replica_engine_kv_usage_ratio", e.KVUsage},
		} {
			if v.v.OK() {
				gauge(v.name, v.v.V, pool, e.ID)
			}
		}
	}
}

func flag(b bool) float64 {
	if b {
		return 1
	}
	return 0
}
