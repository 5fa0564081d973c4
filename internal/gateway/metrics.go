// SPDX-License-Identifier: Apache-2.0

package gateway

import (
	"strconv"
	"sync"
	"sync/atomic"

	"github.com/prometheus/client_golang/prometheus"
)

// metrics are the gateway's own series. Labels hold only what the configuration or
// an engine named: a client cannot make a new series.
type metrics struct {
	requests               *prometheus.CounterVec
	duration, queue        *prometheus.HistogramVec
	overhead, ttft, itl    *prometheus.HistogramVec
	prompt, cached, output *prometheus.CounterVec
	faults                 *prometheus.CounterVec
	disconnects            [len(phaseNames)]prometheus.Counter
	cancels, panics        prometheus.Counter
	maybeDuplicate         prometheus.Counter
	retries                struct{ connect, broken, status, stale, frozen prometheus.Counter }
	limited                *prometheus.CounterVec
	fallbacks              *prometheus.CounterVec
	settles                [2]prometheus.Counter // exact, estimated
	byName                 sync.Map              // seriesKey -> *series
	faultsBy               sync.Map              // source + kind -> prometheus.Counter
}

type seriesKey struct{ model, path string }

// series are the series of one model and path, looked up once.
type series struct {
	m                                        *metrics
	key                                      seriesKey
	statuses                                 [600]atomic.Pointer[prometheus.Counter]
	duration                                 prometheus.Observer
	queue                                    prometheus.Observer
	overhead                                 prometheus.Observer
	ttft                                     prometheus.Observer
	interToken                               prometheus.Observer
	promptTokens, cachedTokens, outputTokens prometheus.Counter
}

// Buckets in seconds. Those of TTFT reach from a cache hit on a short prompt to a
// cold start; those between tokens follow the OpenTelemetry conventions.
var (
	bucketsDuration = []float64{.005, .01, .025, .05, .1, .25, .5, 1, 2.5, 5, 10, 20, 40, 80, 160, 320, 640}
	bucketsQueue    = []float64{.0001, .001, .005, .01, .025, .05, .1, .25, .5, 1, 2.5, 5, 10, 30, 60, 120}
	bucketsOverhead = []float64{.00001, .000025, .00005, .0001, .00025, .0005, .001, .0025, .005, .01, .05, .25}
	bucketsTTFT     = []float64{.005, .01, .02, .04, .06, .08, .1, .25, .5, .75, 1, 2.5, 5, 7.5, 10, 20, 40, 80, 160}
	bucketsITL      = []float64{.0025, .005, .01, .025, .05, .075, .1, .15, .2, .3, .4, .5, .75, 1, 2.5, 5}
)

func newMetrics(h *Handler, reg prometheus.Registerer) *metrics {
	m := &metrics{}
	add := func(c prometheus.Collector) {
		if reg != nil {
			reg.MustRegister(c)
		}
	}
	counterVec := func(name, help string, labels ...string) *prometheus.CounterVec {
		c := prometheus.NewCounterVec(prometheus.CounterOpts{Name: "penstock_gateway_" + name, Help: help}, labels)
		add(c)
		return c
	}
	counter := func(name, help string) prometheus.Counter {
		c := prometheus.NewCounter(prometheus.CounterOpts{Name: "penstock_gateway_" + name, Help: help})
		add(c)
		return c
	}
	histogram := func(name, help string, buckets []float64, labels ...string) *prometheus.HistogramVec {
		c := prometheus.NewHistogramVec(prometheus.HistogramOpts{Name: "penstock_gateway_" + name, Help: help, Buckets: buckets}, labels)
		add(c)
		return c
	}
	m.requests = counterVec("requests_total", "Requests by what the client got; 499 is a client that left.", "model", "path", "status")
	m.duration = histogram("request_duration_seconds", "From the head of a request to the end of its answer.", bucketsDuration, "model", "path")
	m.queue = histogram("queue_seconds", "Time that the router held a request before it sent it.", bucketsQueue, "model")
	m.overhead = histogram("overhead_seconds", "Time that the gateway added: neither its queue, nor the replica, nor the upload.", bucketsOverhead, "model")
	m.ttft = histogram("ttft_seconds", "From the head of a streamed request to the first token sent on.", bucketsTTFT, "model")
	m.itl = histogram("inter_token_seconds", "Time between tokens of a stream, as sent on.", bucketsITL, "model")
	m.prompt = counterVec("prompt_tokens_total", "Prompt tokens, as engines count them.", "model")
	m.cached = counterVec("cached_prompt_tokens_total", "Prompt tokens that engines found in their caches.", "model")
	m.output = counterVec("output_tokens_total", "Generated tokens, as engines count them, else as seen in streams.", "model")
	m.faults = counterVec("errors_total", "Errors by who made them (gateway, engine) and kind.", "source", "kind")
	left := counterVec("client_disconnects_total", "Clients that left, by how far their request had come.", "phase")
	for i := range m.disconnects {
		m.disconnects[i] = left.WithLabelValues(phaseNames[i])
	}
	m.cancels = counter("upstream_cancels_total", "Requests given up at a replica because the client left.")
	m.panics = counter("panics_total", "Requests on which the gateway failed.")
	m.maybeDuplicate = counter("maybe_duplicates_total", "Requests sent again after an attempt that may have been executed.")
	retries := counterVec("retries_total", "Attempts after a failed one, by how that failed.", "reason")
	m.retries.connect, m.retries.broken = retries.WithLabelValues("connect"), retries.WithLabelValues("broken")
	m.retries.status, m.retries.stale = retries.WithLabelValues("status"), retries.WithLabelValues("stale_connection")
	m.limited = counterVec("ratelimit_refusals_total", "Requests that a limit of their tenant kept out, by what it counts.", "measure")
	m.fallbacks = counterVec("fallbacks_total", "Requests that another pool served, by why their own could not.", "from", "to", "reason")
	settles := counterVec("reservation_settles_total", "Reservations that were settled, by how the usage was known.", "kind")
	m.settles = [2]prometheus.Counter{settles.WithLabelValues("exact"), settles.WithLabelValues("estimated")}
	m.retries.frozen = retries.WithLabelValues("no_sign_of_life")
	add(&stateCollector{h: h})
	return m
}

// overLimit counts a request that a limit kept out; measure is one of a closed set.
func (m *metrics) overLimit(measure string) prometheus.Counter {
	return m.limited.WithLabelValues(measure)
}

// settled counts a reservation that was settled.
func (m *metrics) settled(estimated bool) prometheus.Counter {
	if estimated {
		return m.settles[1]
	}
	return m.settles[0]
}

// of returns the series of a target and path.
func (m *metrics) of(t *target, rt *routePattern) *series {
	return m.get(seriesKey{t.EngineName(), rt.path})
}

// unknown returns the series of requests that were refused before a model was
// found.
func (m *metrics) unknown(rt *routePattern) *series { return m.get(seriesKey{"unknown", rt.path}) }

func (m *metrics) get(k seriesKey) *series {
	if s, ok := m.byName.Load(k); ok {
		return s.(*series)
	}
	s := &series{
		m: m, key: k,
		duration: m.duration.WithLabelValues(k.model, k.path), queue: m.queue.WithLabelValues(k.model),
		overhead: m.overhead.WithLabelValues(k.model), ttft: m.ttft.WithLabelValues(k.model), interToken: m.itl.WithLabelValues(k.model),
		promptTokens: m.prompt.WithLabelValues(k.model), cachedTokens: m.cached.WithLabelValues(k.model), outputTokens: m.output.WithLabelValues(k.model),
	}
	got, _ := m.byName.LoadOrStore(k, s)
	return got.(*series)
}

// status returns the counter of requests that ended with an HTTP status.
func (s *series) status(code int) prometheus.Counter {
	if code < 0 || code >= len(s.statuses) {
		code = 0
	}
	if c := s.statuses[code].Load(); c != nil {
		return *c
	}
	c := s.m.requests.WithLabelValues(s.key.model, s.key.path, statusLabel(code))
	s.statuses[code].Store(&c)
	return c
}

func statusLabel(code int) string {
	if code < 100 || code > 599 {
		return "none"
	}
	return strconv.Itoa(code)
}

func (m *metrics) fault(source, kind string) prometheus.Counter {
	k := [2]string{source, kind}
	if c, ok := m.faultsBy.Load(k); ok {
		return c.(prometheus.Counter)
	}
	c := m.faults.WithLabelValues(source, kind)
	m.faultsBy.Store(k, c)
	return c
}

// stateCollector reads what is now at the moment of a scrape.
type stateCollector struct{ h *Handler }

var (
	descInFlight = prometheus.NewDesc("penstock_gateway_in_flight", "Requests under way.", nil, nil)
	descBodies   = prometheus.NewDesc("penstock_gateway_body_bytes", "Memory of request bodies under way.", nil, nil)
	descConns    = prometheus.NewDesc("penstock_gateway_upstream_connections", "Connections to replicas.", []string{"state"}, nil)
	descDials    = prometheus.NewDesc("penstock_gateway_upstream_dials_total", "Connections opened to replicas, by result.", []string{"result"}, nil)
	descReused   = prometheus.NewDesc("penstock_gateway_upstream_reused_total", "Requests over a connection that was used before.", nil, nil)
	descClosed   = prometheus.NewDesc("penstock_gateway_upstream_found_closed_total", "Idle connections that were closed, or too old, before their next use.", nil, nil)
	descClients  = prometheus.NewDesc("penstock_gateway_connections", "Connections of clients, without those that a stream took over.", nil, nil)
	descShut     = prometheus.NewDesc("penstock_gateway_connections_refused_total", "Connections that were closed at once because there were too many.", nil, nil)
	descPool     = prometheus.NewDesc("penstock_gateway_pool_requests", "Requests of a pool: sent and not ended, or held by the router.", []string{"pool", "state"}, nil)
	descEndpoint = prometheus.NewDesc("penstock_gateway_endpoint_in_flight", "Requests at a replica, as this gateway counts them.", []string{"pool", "endpoint"}, nil)
)

// Describe implements prometheus.Collector.
func (s *stateCollector) Describe(ch chan<- *prometheus.Desc) {
	for _, d := range []*prometheus.Desc{descInFlight, descBodies, descConns, descDials, descReused, descClosed, descClients, descShut, descPool, descEndpoint} {
		ch <- d
	}
}

// Collect implements prometheus.Collector.
func (s *stateCollector) Collect(ch chan<- prometheus.Metric) {
	gauge := func(d *prometheus.Desc, v int64, labels ...string) {
		ch <- prometheus.MustNewConstMetric(d, prometheus.GaugeValue, float64(v), labels...)
	}
	count := func(d *prometheus.Desc, v int64, labels ...string) {
		ch <- prometheus.MustNewConstMetric(d, prometheus.CounterValue, float64(v), labels...)
	}
	st := s.h.Stats()
	gauge(descInFlight, st.InFlight)
	gauge(descBodies, st.BodyBytes)
	gauge(descConns, st.Relay.Idle, "idle")
	gauge(descConns, st.Relay.Open-st.Relay.Idle, "busy")
	count(descDials, st.Relay.Dialed, "ok")
	count(descDials, st.Relay.DialFailed, "failed")
	count(descReused, st.Relay.Reused)
	count(descClosed, st.Relay.FoundClosed)
	gauge(descClients, int64(s.h.conns.count()))
	count(descShut, s.h.conns.refused.Load())
	for _, p := range s.h.catalogue.Load().pools {
		if p.Flow == nil {
			continue
		}
		fs := p.Flow.Stats()
		gauge(descPool, int64(fs.Totals.InFlight), p.Name, "in_flight")
		gauge(descPool, int64(fs.Totals.Held), p.Name, "held")
		for i := range fs.Endpoints {
			gauge(descEndpoint, int64(fs.Endpoints[i].InFlight), p.Name, fs.Endpoints[i].Endpoint)
		}
	}
}
