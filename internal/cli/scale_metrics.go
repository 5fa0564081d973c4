// SPDX-License-Identifier: Apache-2.0

package cli

import (
	"github.com/prometheus/client_golang/prometheus"

	"github.com/penstock-project/penstock/internal/fleet"
	"github.com/penstock-project/penstock/internal/flow"
)

// scaleMetrics is the table of names of the scaler's own metrics.
var scaleMetrics = []struct {
	name, help string
	labels     []string
}{
	{"penstock_scale_desired", "Replicas that the scaler wants. Absent while it has no opinion.", poolLabel},
	{"penstock_scale_current", "Replicas that were asked for, draining ones excluded.", poolLabel},
	{"penstock_scale_ready", "Replicas that take requests.", poolLabel},
	{"penstock_scale_pending", "Replicas on their way that are believed to come.", poolLabel},
	{"penstock_scale_overdue", "Replicas on their way that should have been ready or cannot come.", poolLabel},
	{"penstock_scale_raw", "Replicas that the ruling shadow wants, before constraints.", poolLabel},
	{"penstock_scale_binding", "1, with the constraint that had the last word.", []string{"pool", "constraint"}},
	{"penstock_scale_opinion", "1 while the scaler knows enough to decide by.", poolLabel},
	{"penstock_scale_acting", "1 while it acts: mode act, a hand, no pause and no other owner.", poolLabel},
	{"penstock_scale_offered", "Work offered, in seconds of replica time a second, mean of the last minute.", poolLabel},
	{"penstock_scale_carried_per_replica", "Work that one of the present replicas carries at the objective, same unit.", poolLabel},
	{"penstock_scale_capacity_fit_ratio", "What outcomes make of the believed capacity; 1: as believed.", poolLabel},
	{"penstock_scale_startup_seconds", "Learned start-up time.", []string{"pool", "quantile"}},
	{"penstock_scale_reversals", "Changes of direction in the last hour.", poolLabel},
	{"penstock_scale_attained_ratio", "Share of requests inside the objectives since the start.", poolLabel},
	{"penstock_scale_evaluated_timestamp_seconds", "When the scaler last evaluated.", poolLabel},
	{"penstock_scale_input_timestamp_seconds", "When work was last offered.", poolLabel},
	{"penstock_scale_differed_timestamp_seconds", "When it last wanted another number than there was.", poolLabel},
	{"penstock_scale_applied_total", "Calls of the hand by result: ok, error.", []string{"pool", "result"}},
}

func scaleDescs() map[string]*prometheus.Desc {
	out := map[string]*prometheus.Desc{}
	for _, m := range scaleMetrics {
		out[m.name] = prometheus.NewDesc(m.name, m.help, m.labels, nil)
	}
	return out
}

// scaleCollector exports the newest recommendations. What is unknown is left out.
type scaleCollector struct {
	s     *server
	descs map[string]*prometheus.Desc
}

// Describe implements prometheus.Collector.
func (c *scaleCollector) Describe(ch chan<- *prometheus.Desc) {
	for _, m := range scaleMetrics {
		ch <- c.descs[m.name]
	}
}

// Collect implements prometheus.Collector.
func (c *scaleCollector) Collect(ch chan<- prometheus.Metric) {
	for _, sc := range c.s.scalers() {
		if r := sc.Last(); r != nil {
			c.pool(ch, sc, r)
		}
	}
}

func (c *scaleCollector) pool(ch chan<- prometheus.Metric, sc *flow.Scaler, r *flow.ScaleRecord) {
	gauge := func(name string, v float64, labels ...string) {
		ch <- prometheus.MustNewConstMetric(c.descs[name], prometheus.GaugeValue, v, append([]string{r.Pool}, labels...)...)
	}
	if r.Desired != nil {
		gauge("penstock_scale_desired", float64(*r.Desired))
		gauge("penstock_scale_raw", float64(r.Raw))
		gauge("penstock_scale_binding", 1, r.Binding)
	}
	gauge("penstock_scale_opinion", flag(r.Desired != nil))
	leader, wakes := sc.Wakes()
	gauge("penstock_scale_acting", flag(wakes && leader == ""))
	gauge("penstock_scale_current", float64(r.Current))
	gauge("penstock_scale_ready", float64(r.Ready))
	coming := 0
	for i := range r.Pending {
		if r.Pending[i].ReadyAt != 0 {
			coming++
		}
	}
	gauge("penstock_scale_pending", float64(coming))
	gauge("penstock_scale_overdue", float64(len(r.Pending)-coming))
	gauge("penstock_scale_offered", r.Offered)
	gauge("penstock_scale_carried_per_replica", r.PerReplica)
	gauge("penstock_scale_capacity_fit_ratio", r.CapacityFit)
	gauge("penstock_scale_startup_seconds", r.StartP50, "0.5")
	gauge("penstock_scale_startup_seconds", r.StartP90, "0.9")
	gauge("penstock_scale_reversals", float64(r.Reversals))
	if r.Attained != nil {
		gauge("penstock_scale_attained_ratio", *r.Attained)
	}
	for _, t := range []struct {
		name string
		at   fleet.Time
	}{
		{"penstock_scale_evaluated_timestamp_seconds", fleet.Time(r.Time)}, {"penstock_scale_input_timestamp_seconds", fleet.Time(r.InputAt)},
		{"penstock_scale_differed_timestamp_seconds", fleet.Time(r.DifferedAt)},
	} {
		if t.at != 0 {
			gauge(t.name, float64(t.at)/1e9)
		}
	}
	for _, result := range []string{"ok", "error"} {
		ch <- prometheus.MustNewConstMetric(c.descs["penstock_scale_applied_total"], prometheus.CounterValue, float64(sc.Applied(result)), r.Pool, result)
	}
}
