// SPDX-License-Identifier: Apache-2.0

// Package telemetry sends spans, metrics and log records to an OTLP/HTTP receiver, in
// protobuf, and holds the names that the GenAI conventions give to what they tell.
//
// Spans and records wait in bounded queues: where the receiver is slow or away they
// are dropped and counted, and no request waits. There is no text of prompts in a span
// or a metric; a log record holds what the policy on prompts put there.
package telemetry

import (
	"bytes"
	"context"
	"fmt"
	"io"
	"log/slog"
	"net/http"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/prometheus/client_golang/prometheus"
)

// Options of an Exporter.
type Options struct {
	URL        string // base of the receiver, such as http://collector:4318
	Service    string // service.name
	Instance   string // service.instance.id
	Version    string // service.version
	Vocabulary Vocabulary
	Metrics    prometheus.Gatherer // nil: no metrics are sent
	Every      time.Duration       // between sendings of metrics; 0: 15 s
	Log        *slog.Logger        // nil: discard
	Client     *http.Client        // nil: one with a limit of 10 s
}

// Limits of the queues.
const (
	queueSpans = 8192
	batchSpans = 512
	flushEvery = time.Second
	attempts   = 4 // of one batch
)

// Exporter sends. It is safe for concurrent use; a nil *Exporter sends nothing.
type Exporter struct {
	o     Options
	spans chan *Span
	logs  chan LogRecord
	start time.Time

	Sent, Dropped, Failures atomic.Uint64 // spans and records; batches
	warned                  atomic.Int64
}

// New returns an Exporter. Run sends.
func New(o Options) *Exporter {
	if o.Every <= 0 {
		o.Every = 15 * time.Second
	}
	if o.Log == nil {
		o.Log = slog.New(slog.DiscardHandler)
	}
	if o.Client == nil {
		o.Client = &http.Client{Timeout: 10 * time.Second}
	}
	o.URL = strings.TrimSuffix(o.URL, "/")
	return &Exporter{o: o, spans: make(chan *Span, queueSpans), logs: make(chan LogRecord, queueSpans), start: time.Now()}
}

// Vocabulary returns the names in use.
func (e *Exporter) Vocabulary() Vocabulary { return e.o.Vocabulary }

// End queues a finished span.
func (e *Exporter) End(s *Span) {
	if e == nil {
		return
	}
	select {
	case e.spans <- s:
	default:
		e.Dropped.Add(1)
	}
}

// Log queues a log record.
func (e *Exporter) Log(r LogRecord) {
	if e == nil {
		return
	}
	select {
	case e.logs <- r:
	default:
		e.Dropped.Add(1)
	}
}

// Run sends until ctx ends, then what still waits.
func (e *Exporter) Run(ctx context.Context) {
	if e == nil {
		return
	}
	var wg sync.WaitGroup
	defer wg.Wait()
	wg.Go(func() { e.runSpans(ctx) })
	wg.Go(func() { e.runLogs(ctx) })
	if e.o.Metrics == nil {
		return
	}
	t := time.NewTicker(e.o.Every)
	defer t.Stop()
	for {
		select {
		case <-ctx.Done():
			e.sendMetrics(context.WithoutCancel(ctx))
			return
		case <-t.C:
			e.sendMetrics(ctx)
		}
	}
}

func (e *Exporter) runSpans(ctx context.Context) {
	batches(ctx, e.spans, func(ctx context.Context, batch []*Span) {
		e.send(ctx, "/v1/traces", e.encodeSpans(batch), len(batch))
	})
}

func (e *Exporter) runLogs(ctx context.Context) {
	batches(ctx, e.logs, func(ctx context.Context, batch []LogRecord) {
		e.send(ctx, "/v1/logs", e.encodeLogs(batch), len(batch))
	})
}

// batches gathers what a queue holds, and hands it on when there is enough, or after a
// while.
func batches[T any](ctx context.Context, queue <-chan T, send func(context.Context, []T)) {
	t := time.NewTicker(flushEvery)
	defer t.Stop()
	var batch []T
	flush := func(ctx context.Context) {
		if len(batch) > 0 {
			send(ctx, batch)
			batch = batch[:0]
		}
	}
	for {
		select {
		case x := <-queue:
			if batch = append(batch, x); len(batch) >= batchSpans {
				flush(ctx)
			}
		case <-t.C:
			flush(ctx)
		case <-ctx.Done():
			last, cancel := context.WithTimeout(context.WithoutCancel(ctx), 5*time.Second)
			defer cancel()
			for {
				select {
				case x := <-queue:
					batch = append(batch, x)
				default:
					flush(last)
					return
				}
			}
		}
	}
}

func (e *Exporter) sendMetrics(ctx context.Context) {
	families, err := e.o.Metrics.Gather()
	if err != nil {
		e.warn("metrics", err)
	}
	if len(families) > 0 {
		e.send(ctx, "/v1/metrics", e.encodeMetrics(families, time.Now()), 0)
	}
}

// send posts a batch, again after a while where the receiver asks for it.
func (e *Exporter) send(ctx context.Context, path string, body []byte, n int) {
	wait := time.Second
	for i := range attempts {
		again, after, err := e.post(ctx, path, body)
		if err == nil {
			e.Sent.Add(uint64(n))
			return
		}
		e.Failures.Add(1)
		e.warn(path, err)
		if !again || i == attempts-1 {
			break
		}
		select {
		case <-ctx.Done():
			e.Dropped.Add(uint64(n))
			return
		case <-time.After(max(wait, after)):
			wait *= 2
		}
	}
	e.Dropped.Add(uint64(n))
}

func (e *Exporter) post(ctx context.Context, path string, body []byte) (again bool, after time.Duration, err error) {
	req, err := http.NewRequestWithContext(ctx, http.MethodPost, e.o.URL+path, bytes.NewReader(body))
	if err != nil {
		return false, 0, err
	}
	req.Header.Set("Content-Type", "application/x-protobuf")
	res, err := e.o.Client.Do(req)
	if err != nil {
		return true, 0, err
	}
	defer res.Body.Close()
	_, _ = io.Copy(io.Discard, io.LimitReader(res.Body, 64<<10)) // so that the connection is used again
	if res.StatusCode/100 == 2 {
		return false, 0, nil
	}
	if s, err := strconv.Atoi(res.Header.Get("Retry-After")); err == nil && s > 0 {
		after = min(time.Duration(s)*time.Second, 30*time.Second)
	}
	switch res.StatusCode {
	case http.StatusTooManyRequests, http.StatusBadGateway, http.StatusServiceUnavailable, http.StatusGatewayTimeout:
		again = true
	}
	return again, after, fmt.Errorf("the receiver answered %d", res.StatusCode)
}

// warn says once a minute that the receiver does not take what it gets.
func (e *Exporter) warn(what string, err error) {
	now := time.Now().Unix()
	if last := e.warned.Load(); now-last >= 60 && e.warned.CompareAndSwap(last, now) {
		e.o.Log.Warn("telemetry is not taken", "what", what, "url", e.o.URL, "error", err)
	}
}
