// SPDX-License-Identifier: Apache-2.0

package gateway

import (
	"net/url"
	"strconv"
	"time"

	"github.com/penstock-project/penstock/internal/fleet"
	"github.com/penstock-project/penstock/internal/telemetry"
)

// headerTraceparent is that of W3C Trace Context, in canonical form.
const headerTraceparent = "Traceparent"

// Tracer takes the spans of requests.
type Tracer struct {
	Exporter *telemetry.Exporter
	Sample   float64 // share of the traces that begin here
}

// trace is the span of a request, and of its attempts. The zero value is none.
type trace struct {
	span    *telemetry.Span // of the request; nil: it is not sampled
	attempt *telemetry.Span // the one that runs
	peer    string          // endpoint of the attempt
}

// begin starts the span of a request, as a part of the client's trace where it is in
// one. A client's decision whether a trace is kept holds.
func (c *call) beginTrace() {
	t := c.h.o.Tracer
	if t == nil {
		return
	}
	var in telemetry.Context
	known := false
	if v := c.r.Header[headerTraceparent]; len(v) == 1 {
		in, known = telemetry.ParseTraceparent(v[0])
	}
	if !known {
		in = telemetry.NewTrace(t.Sample)
	}
	if !in.Sampled {
		return // what the client sent goes on unchanged
	}
	s := &telemetry.Span{Context: in, Parent: in.Span, Name: "POST " + c.route.path, Kind: telemetry.KindServer, Start: c.start}
	if !known {
		s.Parent = telemetry.SpanID{}
	}
	s.Span = telemetry.NewSpanID()
	c.trace.span = s
}

// traceAttempt starts the span of an attempt and tells the engine of it.
func (c *call) traceAttempt(id, to string, now time.Time) {
	t := &c.trace
	if t.span == nil {
		return
	}
	c.endAttempt(now, "retried")
	voc := c.h.o.Tracer.Exporter.Vocabulary()
	op := telemetry.OperationOf(c.route.surface.String())
	model := c.target.Name
	s := &telemetry.Span{Context: t.span.Context, Parent: t.span.Span, Name: op + " " + model, Kind: telemetry.KindClient, Start: now}
	s.Span = telemetry.NewSpanID()
	s.Attrs = append(make([]telemetry.Attr, 0, 16), telemetry.String(voc.Operation, op), telemetry.String(voc.Provider, "penstock"),
		telemetry.String(voc.RequestModel, model), telemetry.String("penstock.replica", id), telemetry.String("penstock.pool", c.target.pool.Name))
	if u, err := url.Parse(to); err == nil {
		s.Attrs = append(s.Attrs, telemetry.String("server.address", u.Hostname()))
		if p, err := strconv.Atoi(u.Port()); err == nil {
			s.Attrs = append(s.Attrs, telemetry.Int("server.port", p))
		}
	}
	if c.scan.MaxTokens > 0 {
		s.Attrs = append(s.Attrs, telemetry.Int(voc.MaxTokens, c.scan.MaxTokens))
	}
	if voc.Stream != "" {
		s.Attrs = append(s.Attrs, telemetry.Bool(voc.Stream, c.scan.Stream))
	}
	t.attempt, t.peer = s, id
	c.out.Header[headerTraceparent] = []string{s.Traceparent()}
}

// endAttempt ends the span of the attempt that runs; fault says why it failed, "" that
// it did not.
func (c *call) endAttempt(now time.Time, fault string) {
	s := c.trace.attempt
	if s == nil {
		return
	}
	c.trace.attempt = nil
	s.End = now
	if fault != "" {
		s.Failed, s.Message = true, fault
		s.Attrs = append(s.Attrs, telemetry.String("error.type", fault))
	}
	c.h.o.Tracer.Exporter.End(s)
}

// endTrace ends the spans of a request with what became of it.
func (c *call) endTrace(now time.Time) {
	t := &c.trace
	if t.span == nil {
		return
	}
	s := t.span
	o := &c.outcome
	fault := ""
	if o.Kind != fleet.OutcomeOK {
		fault = o.Kind.String()
		if c.fault != "" {
			fault = c.fault
		}
	}
	if a := t.attempt; a != nil {
		voc := c.h.o.Tracer.Exporter.Vocabulary()
		add := func(key string, v int) {
			if key != "" && v >= 0 {
				a.Attrs = append(a.Attrs, telemetry.Int(key, v))
			}
		}
		a.Attrs = append(a.Attrs, telemetry.String(voc.ResponseModel, c.target.EngineName()))
		add(voc.InputTokens, o.PromptTokens)
		add(voc.OutputTokens, o.OutputTokens)
		add(voc.CachedTokens, o.CachedTokens)
		if voc.FirstChunk != "" && c.told {
			a.Attrs = append(a.Attrs, telemetry.Float(voc.FirstChunk, c.first.Sub(a.Start).Seconds()))
		}
		c.endAttempt(now, fault)
	}
	s.End = now
	s.Attrs = append(make([]telemetry.Attr, 0, 16), telemetry.String("http.request.method", "POST"), telemetry.String("http.route", c.route.path),
		telemetry.Int("http.response.status_code", c.status), telemetry.String("penstock.request_id", c.id), telemetry.String("penstock.outcome", o.Kind.String()))
	optional := func(key, v string) {
		if v != "" {
			s.Attrs = append(s.Attrs, telemetry.String(key, v))
		}
	}
	optional("penstock.tenant", c.who.Tenant)
	optional("penstock.key", c.who.Key)
	optional("penstock.rollout.arm", c.req.Arm)
	optional("penstock.fallback", c.req.Via)
	optional("error.type", fault)
	if c.grant != nil {
		s.Attrs = append(s.Attrs, telemetry.Float("penstock.queue_seconds", c.grant.Held().Seconds()), telemetry.Int("penstock.attempts", c.grant.Attempts()),
			telemetry.Int("penstock.predicted_cached_tokens", c.grant.PredictedCached()))
	}
	if c.status >= 500 {
		s.Failed, s.Message = true, fault
	}
	c.trace = trace{}
	c.h.o.Tracer.Exporter.End(s)
}
