// SPDX-License-Identifier: Apache-2.0

package extproc

import (
	"slices"
	"strings"
	"sync/atomic"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/penstock-project/penstock/internal/fleet"
	"github.com/penstock-project/penstock/internal/flow"
	"github.com/penstock-project/penstock/internal/wire"
)

// Basis is what a pick was made on.
type Basis uint8

const (
	// Informed: the request was read, and the picked endpoint's signals are fresh.
	Informed Basis = iota
	// OwnAccounting: the request was read, but the picked endpoint has told nothing
	// for a while: only what this picker sent there is known.
	OwnAccounting
	// HeadersOnly: the request showed no more than its headers, so nothing is known
	// of its model, its length or its prefix.
	HeadersOnly
	// Blind: a fault of the picker itself came in the way of a decision.
	Blind

	numBases
)

var basisNames = [numBases]string{"signals", "own_accounting", "headers_only", "blind"}

// String returns the label of the basis in metrics.
func (b Basis) String() string { return basisNames[b] }

// Stats count what the picker did. All but Open are totals since its start. Safe
// for concurrent use.
type Stats struct {
	Streams    atomic.Int64 // requests that a proxy asked about
	Picked     [numBases]atomic.Int64
	Refused    [len(refusalCodes)]atomic.Int64 // immediate responses, by reason
	ClientGone [2]atomic.Int64                 // before the pick, after it
	Completed  atomic.Int64                    // answers seen to their end
	Unseen     atomic.Int64                    // answers of which the proxy shows no end
	Fallbacks  atomic.Int64                    // requests that another endpoint than the pick served
	Early      atomic.Int64                    // picks made before the whole body was here
	Faults     atomic.Int64                    // panics that were caught
	Held       atomic.Int64                    // bytes of request bodies held now
	Open       atomic.Int64                    // streams open now
}

// Picks returns the picks of every basis together.
func (s *Stats) Picks() int64 {
	n := int64(0)
	for i := range s.Picked {
		n += s.Picked[i].Load()
	}
	return n
}

// refusalCodes are the reasons of immediate responses that have a series of their
// own; the last one stands for all others.
var refusalCodes = [...]string{
	wire.CodeNoReplica, wire.CodeDeadline, wire.CodeOverloaded, wire.CodeTooLarge, wire.CodeModelNotFound,
	wire.CodeInvalidJSON, wire.CodeMissing, wire.CodeRateLimited, wire.CodeUnauthorized, wire.CodeForbidden, "other",
}

func refusalIndex(code string) int {
	if i := slices.Index(refusalCodes[:], code); i >= 0 {
		return i
	}
	return len(refusalCodes) - 1
}

// basis says what a pick that read the request was made on.
func (s *Server) basis(pool *flow.Flow, id string, now fleet.Time) Basis {
	snap := pool.Snapshot()
	if snap == nil {
		return OwnAccounting
	}
	i, ok := slices.BinarySearchFunc(snap.Endpoints, id, func(e fleet.EndpointState, id string) int {
		return strings.Compare(e.ID, id)
	})
	if !ok || Stale(&snap.Endpoints[i], now, s.o.SignalAge) {
		return OwnAccounting
	}
	return Informed
}

// Stale reports whether an endpoint has told nothing for longer than age.
func Stale(e *fleet.EndpointState, now fleet.Time, age time.Duration) bool {
	return e.ScrapedAt == 0 || now.Sub(e.ScrapedAt) > age
}

// metrics describe the series of a Server.
type metrics struct {
	picks, refused, gone, streams, completed, unseen, fallbacks, early, faults, held, open, ready *prometheus.Desc
	pick                                                                                          prometheus.Histogram
}

// bucketsPick in seconds: from a pick that costs only itself to one that waited in
// the queue.
var bucketsPick = []float64{.00005, .0001, .00025, .0005, .001, .0025, .005, .01, .05, .25, 1, 5, 20, 60}

func newMetrics() *metrics {
	desc := func(name, help string, labels ...string) *prometheus.Desc {
		return prometheus.NewDesc("penstock_epp_"+name, help, labels, nil)
	}
	return &metrics{
		picks:     desc("picks_total", "Picks by what they were made on: signals is informed, the others are more or less blind.", "basis"),
		refused:   desc("refused_total", "Requests that were answered without an endpoint, by reason.", "reason"),
		gone:      desc("client_gone_total", "Clients that left, by whether an endpoint had been picked.", "phase"),
		streams:   desc("streams_total", "Requests that a proxy asked about."),
		completed: desc("completed_total", "Answers that were seen to their end."),
		unseen:    desc("unseen_answers_total", "Answers whose end the proxy does not show (response bodies are not sent)."),
		fallbacks: desc("fallbacks_total", "Requests that an endpoint behind the pick in the list served."),
		early:     desc("early_picks_total", "Picks made before the whole body of a large request was here."),
		faults:    desc("faults_total", "Faults of the picker itself, each of which became a blind pick or a failed exchange."),
		held:      desc("held_body_bytes", "Bytes of request bodies that wait for their pick."),
		open:      desc("open_streams", "Streams that are open now."),
		ready:     desc("ready", "1 when gRPC health says SERVING."),
		pick: prometheus.NewHistogram(prometheus.HistogramOpts{
			Name: "penstock_epp_pick_duration_seconds", Buckets: bucketsPick,
			Help: "From the end of a request to its pick, time in the router's queue included.",
		}),
	}
}

// Describe implements prometheus.Collector.
func (s *Server) Describe(ch chan<- *prometheus.Desc) {
	m := s.metrics
	for _, d := range []*prometheus.Desc{m.picks, m.refused, m.gone, m.streams, m.completed, m.unseen, m.fallbacks, m.early, m.faults, m.held, m.open, m.ready} {
		ch <- d
	}
	m.pick.Describe(ch)
}

// Collect implements prometheus.Collector.
func (s *Server) Collect(ch chan<- prometheus.Metric) {
	m, st := s.metrics, &s.Stats
	counter := func(d *prometheus.Desc, n int64, labels ...string) {
		ch <- prometheus.MustNewConstMetric(d, prometheus.CounterValue, float64(n), labels...)
	}
	gauge := func(d *prometheus.Desc, v float64) { ch <- prometheus.MustNewConstMetric(d, prometheus.GaugeValue, v) }
	for b := range numBases {
		counter(m.picks, st.Picked[b].Load(), b.String())
	}
	for i, code := range refusalCodes {
		counter(m.refused, st.Refused[i].Load(), code)
	}
	counter(m.gone, st.ClientGone[0].Load(), "before_pick")
	counter(m.gone, st.ClientGone[1].Load(), "after_pick")
	counter(m.streams, st.Streams.Load())
	counter(m.completed, st.Completed.Load())
	counter(m.unseen, st.Unseen.Load())
	counter(m.fallbacks, st.Fallbacks.Load())
	counter(m.early, st.Early.Load())
	counter(m.faults, st.Faults.Load())
	gauge(m.held, float64(st.Held.Load()))
	gauge(m.open, float64(st.Open.Load()))
	ready := 0.0
	if s.ready.Load() {
		ready = 1
	}
	gauge(m.ready, ready)
	m.pick.Collect(ch)
}
