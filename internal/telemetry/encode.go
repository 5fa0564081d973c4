// SPDX-License-Identifier: Apache-2.0

package telemetry

import (
	"math"
	"strings"
	"time"

	dto "github.com/prometheus/client_model/go"
	"google.golang.org/protobuf/encoding/protowire"
)

// The messages below are those of opentelemetry-proto v1; the numbers are its fields.
// They are written by hand: three small messages do not need generated code, a
// registry and reflection on the way of every request.

type proto []byte

func (p proto) text(field int, s string) proto {
	if s == "" {
		return p
	}
	return proto(protowire.AppendString(protowire.AppendTag(p, protowire.Number(field), protowire.BytesType), s))
}

func (p proto) bytes(field int, b []byte) proto {
	return proto(protowire.AppendBytes(protowire.AppendTag(p, protowire.Number(field), protowire.BytesType), b))
}

func (p proto) uint(field int, v uint64) proto {
	return proto(protowire.AppendVarint(protowire.AppendTag(p, protowire.Number(field), protowire.VarintType), v))
}

func (p proto) fixed(field int, v uint64) proto {
	return proto(protowire.AppendFixed64(protowire.AppendTag(p, protowire.Number(field), protowire.Fixed64Type), v))
}

func (p proto) float(field int, v float64) proto { return p.fixed(field, math.Float64bits(v)) }

func nanos(t time.Time) uint64 {
	if t.IsZero() {
		return 0
	}
	return uint64(t.UnixNano())
}

// attr appends a KeyValue.
func (p proto) attr(a *Attr) proto {
	var room [128]byte
	v := proto(room[:0])
	switch a.T {
	case TypeInt:
		v = v.uint(3, uint64(a.I))
	case TypeFloat:
		v = v.float(4, a.F)
	case TypeBool:
		n := uint64(0)
		if a.B {
			n = 1
		}
		v = v.uint(2, n)
	default:
		v = proto(protowire.AppendString(protowire.AppendTag(v, 1, protowire.BytesType), strings.ToValidUTF8(a.S, "\ufffd")))
	}
	return p.text(1, a.Key).bytes(2, v)
}

func (p proto) attrs(field int, list []Attr) proto {
	var room [256]byte
	for i := range list {
		p = p.bytes(field, proto(room[:0]).attr(&list[i]))
	}
	return p
}

func (e *Exporter) resource() proto {
	return proto(nil).attrs(1, []Attr{
		String("service.name", e.o.Service), String("service.instance.id", e.o.Instance), String("service.version", e.o.Version),
		String("telemetry.sdk.name", "penstock"), String("telemetry.sdk.language", "go"),
	})
}

func (e *Exporter) scope() proto { return proto(nil).text(1, "penstock").text(2, e.o.Version) }

// wrap puts a list of items into a request: resource, scope, items. The three signals
// number these fields alike.
func (e *Exporter) wrap(items proto) []byte {
	scoped := append(proto(nil).bytes(1, e.scope()), items...)
	return proto(nil).bytes(1, proto(nil).bytes(1, e.resource()).bytes(2, scoped))
}

func (e *Exporter) encodeSpans(list []*Span) []byte {
	items := make(proto, 0, 1024*len(list))
	var room [1024]byte
	for _, s := range list {
		p := proto(room[:0]).bytes(1, s.Trace[:]).bytes(2, s.Span[:])
		if s.Parent != (SpanID{}) {
			p = p.bytes(4, s.Parent[:])
		}
		p = p.text(5, s.Name).uint(6, uint64(s.Kind)).fixed(7, nanos(s.Start)).fixed(8, nanos(s.End)).attrs(9, s.Attrs)
		if s.Failed {
			p = p.bytes(15, proto(nil).text(2, s.Message).uint(3, 2))
		}
		items = items.bytes(2, p)
	}
	return e.wrap(items)
}

func (e *Exporter) encodeLogs(list []LogRecord) []byte {
	var items proto
	for i := range list {
		r := &list[i]
		body := Attr{S: r.Body}
		p := proto(nil).fixed(1, nanos(r.Time)).uint(2, 9) // INFO
		var v proto
		v = proto(protowire.AppendString(protowire.AppendTag(v, 1, protowire.BytesType), strings.ToValidUTF8(body.S, "\ufffd")))
		p = p.bytes(5, v).attrs(6, r.Attrs).text(12, r.Name)
		items = items.bytes(2, p)
	}
	return e.wrap(items)
}

// encodeMetrics writes what a registry gathered: cumulative sums, gauges, histograms.
// Summaries have no counterpart that is not deprecated, and are left out.
func (e *Exporter) encodeMetrics(families []*dto.MetricFamily, now time.Time) []byte {
	var items proto
	for _, f := range families {
		name := f.GetName()
		if to, ok := e.o.Vocabulary.Metrics[name]; ok {
			name = to
		}
		genAI := name != f.GetName()
		m := proto(nil).text(1, name).text(2, f.GetHelp()).text(3, unitOf(f.GetName()))
		var points proto
		for _, x := range f.GetMetric() {
			if p := e.point(f.GetType(), x, now, genAI); p != nil {
				points = points.bytes(1, p)
			}
		}
		if points == nil {
			continue
		}
		switch f.GetType() {
		case dto.MetricType_COUNTER:
			m = m.bytes(7, points.uint(2, 2).uint(3, 1))
		case dto.MetricType_HISTOGRAM:
			m = m.bytes(9, points.uint(2, 2))
		default:
			m = m.bytes(5, points)
		}
		items = items.bytes(2, m)
	}
	return e.wrap(items)
}

// point writes one data point; nil where its type has none.
func (e *Exporter) point(t dto.MetricType, x *dto.Metric, now time.Time, genAI bool) proto {
	var list []Attr
	for _, l := range x.GetLabel() {
		key, value := l.GetName(), l.GetValue()
		if genAI {
			if key == "path" {
				list = append(list, String(e.o.Vocabulary.Operation, OperationOf(surfaceOf(value))))
			}
			if key == "model" {
				key = e.o.Vocabulary.RequestModel
			}
		}
		list = append(list, String(key, value))
	}
	p := proto(nil)
	switch t {
	case dto.MetricType_COUNTER:
		return p.fixed(2, nanos(e.start)).fixed(3, nanos(now)).float(4, x.GetCounter().GetValue()).attrs(7, list)
	case dto.MetricType_GAUGE:
		return p.fixed(3, nanos(now)).float(4, x.GetGauge().GetValue()).attrs(7, list)
	case dto.MetricType_UNTYPED:
		return p.fixed(3, nanos(now)).float(4, x.GetUntyped().GetValue()).attrs(7, list)
	case dto.MetricType_HISTOGRAM:
		h := x.GetHistogram()
		p = p.fixed(2, nanos(e.start)).fixed(3, nanos(now)).fixed(4, h.GetSampleCount()).float(5, h.GetSampleSum())
		var counts, bounds []byte
		last := uint64(0)
		for _, b := range h.GetBucket() {
			if math.IsInf(b.GetUpperBound(), 1) {
				continue
			}
			counts = protowire.AppendFixed64(counts, b.GetCumulativeCount()-last)
			bounds = protowire.AppendFixed64(bounds, math.Float64bits(b.GetUpperBound()))
			last = b.GetCumulativeCount()
		}
		counts = protowire.AppendFixed64(counts, h.GetSampleCount()-last)
		return p.bytes(6, counts).bytes(7, bounds).attrs(9, list)
	}
	return nil
}

// surfaceOf names the surface of a path, as far as operations have names.
func surfaceOf(path string) string {
	switch path {
	case "/v1/chat/completions":
		return "chat"
	case "/v1/completions", "/v1/embeddings", "/v1/responses", "/v1/messages":
		return strings.TrimPrefix(path, "/v1/")
	}
	return strings.Trim(path, "/")
}

// unitOf reads the unit out of a name in the style of Prometheus, in UCUM.
func unitOf(name string) string {
	name = strings.TrimSuffix(name, "_total")
	switch {
	case strings.HasSuffix(name, "_seconds"):
		return "s"
	case strings.HasSuffix(name, "_bytes"):
		return "By"
	case strings.HasSuffix(name, "_tokens"):
		return "{token}"
	}
	return ""
}
