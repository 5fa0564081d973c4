// SPDX-License-Identifier: Apache-2.0

package cli

import (
	"encoding/json"
	"net/http"
	"os"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/penstock-project/penstock/internal/config"
	"github.com/penstock-project/penstock/internal/gateway"
	"github.com/penstock-project/penstock/internal/promptlog"
	"github.com/penstock-project/penstock/internal/telemetry"
)

// recording is where a server sends what it tells about requests.
type recording struct {
	otlp    *telemetry.Exporter // nil: nowhere
	tracer  *gateway.Tracer
	prompts *promptlog.Log
}

// openRecording opens the exporter and the prompt log of the configuration.
func (s *server) openRecording() (err error) {
	t := &s.cfg.Telemetry
	if t.OTLP != "" {
		voc, _ := telemetry.FindVocabulary(t.Vocabulary) // is one of the configuration's words
		client := &http.Client{Timeout: 10 * time.Second}
		if t.AuthorizationFile != "" {
			key, err := config.ReadSecret(t.AuthorizationFile)
			if err != nil {
				return failf("telemetry.authorizationFile names a file with the value of the Authorization header", "%v", err)
			}
			client.Transport = authorized{key}
		}
		instance, err := os.Hostname()
		if err != nil {
			instance = s.router
		}
		s.recording.otlp = telemetry.New(telemetry.Options{
			URL: t.OTLP, Service: "penstock", Instance: instance + "/" + s.router, Version: buildVersion().Version, Vocabulary: voc,
			Metrics: s.reg, Every: t.Every, Log: s.log, Client: client,
		})
		s.recording.tracer = &gateway.Tracer{Exporter: s.recording.otlp, Sample: float64(t.Sample)}
		s.background = append(s.background, s.recording.otlp.Run)
		s.reg.MustRegister(telemetryCollector{s.recording.otlp})
	}
	s.recording.prompts, err = s.openPrompts(otlpSink{s.recording.otlp})
	return err
}

// authorized adds a header to requests to the receiver of telemetry.
type authorized struct{ key config.Secret }

// RoundTrip implements http.RoundTripper.
func (a authorized) RoundTrip(r *http.Request) (*http.Response, error) {
	r = r.Clone(r.Context())
	r.Header.Set("Authorization", a.key.Reveal())
	return http.DefaultTransport.RoundTrip(r)
}

// otlpSink sends entries of the prompt log as log records.
type otlpSink struct{ e *telemetry.Exporter }

// Take implements promptlog.Sink.
func (s otlpSink) Take(r *promptlog.Record) {
	b, err := json.Marshal(r)
	if err != nil {
		return
	}
	s.e.Log(telemetry.LogRecord{Time: r.Time, Name: "penstock.prompt", Body: string(b), Attrs: []telemetry.Attr{
		telemetry.String("penstock.request_id", r.ID), telemetry.String("penstock.tenant", r.Tenant), telemetry.String("penstock.logging.level", r.Level),
	}})
}

// Close implements promptlog.Sink: the exporter sends what waits when it ends.
func (s otlpSink) Close() {}

// telemetryCollector tells what became of what was to be sent.
type telemetryCollector struct{ e *telemetry.Exporter }

var (
	descOTLPSent    = prometheus.NewDesc("penstock_telemetry_sent_total", "Spans and log records that the receiver took.", nil, nil)
	descOTLPDropped = prometheus.NewDesc("penstock_telemetry_dropped_total", "Spans and log records that were dropped: the receiver was slow or away.", nil, nil)
	descOTLPFailed  = prometheus.NewDesc("penstock_telemetry_failures_total", "Sendings that failed.", nil, nil)
)

// Describe implements prometheus.Collector.
func (c telemetryCollector) Describe(ch chan<- *prometheus.Desc) {
	ch <- descOTLPSent
	ch <- descOTLPDropped
	ch <- descOTLPFailed
}

// Collect implements prometheus.Collector.
func (c telemetryCollector) Collect(ch chan<- prometheus.Metric) {
	for d, v := range map[*prometheus.Desc]uint64{descOTLPSent: c.e.Sent.Load(), descOTLPDropped: c.e.Dropped.Load(), descOTLPFailed: c.e.Failures.Load()} {
		ch <- prometheus.MustNewConstMetric(d, prometheus.CounterValue, float64(v))
	}
}
