// SPDX-License-Identifier: Apache-2.0

package telemetry

import (
	"context"
	"io"
	"math"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"google.golang.org/protobuf/encoding/protowire"
)

// message is a protobuf message whose fields nobody has described: numbers and their
// values, messages still encoded.
type message map[protowire.Number][]any

func decode(t *testing.T, b []byte) message {
	t.Helper()
	m := message{}
	for len(b) > 0 {
		num, typ, n := protowire.ConsumeTag(b)
		if n < 0 {
			t.Fatal("no protobuf")
		}
		b = b[n:]
		switch typ {
		case protowire.VarintType:
			v, n := protowire.ConsumeVarint(b)
			m[num], b = append(m[num], v), b[n:]
		case protowire.Fixed64Type:
			v, n := protowire.ConsumeFixed64(b)
			m[num], b = append(m[num], v), b[n:]
		case protowire.BytesType:
			v, n := protowire.ConsumeBytes(b)
			if n < 0 {
				t.Fatal("a field is cut")
			}
			m[num], b = append(m[num], v), b[n:]
		default:
			t.Fatalf("field %d has type %d", num, typ)
		}
	}
	return m
}

// in goes down a path of fields, the first of each.
func (m message) in(t *testing.T, path ...protowire.Number) message {
	t.Helper()
	for _, p := range path {
		if len(m[p]) == 0 {
			t.Fatalf("there is no field %d in %v", p, m)
		}
		m = decode(t, m[p][0].([]byte))
	}
	return m
}

func (m message) text(num protowire.Number) string {
	if len(m[num]) == 0 {
		return ""
	}
	return string(m[num][0].([]byte))
}

// attributes reads a list of KeyValue.
func (m message) attributes(t *testing.T, num protowire.Number) map[string]any {
	t.Helper()
	out := map[string]any{}
	for _, kv := range m[num] {
		x := decode(t, kv.([]byte))
		v := x.in(t, 2)
		switch {
		case len(v[1]) > 0:
			out[x.text(1)] = v.text(1)
		case len(v[3]) > 0:
			out[x.text(1)] = int64(v[3][0].(uint64))
		case len(v[4]) > 0:
			out[x.text(1)] = math.Float64frombits(v[4][0].(uint64))
		case len(v[2]) > 0:
			out[x.text(1)] = v[2][0].(uint64) == 1
		}
	}
	return out
}

// receiver is an OTLP/HTTP receiver that keeps what it gets.
type receiver struct {
	*httptest.Server
	mu    sync.Mutex
	got   map[string][][]byte
	fails int // answers 503 so many times first
}

func newReceiver(t *testing.T) *receiver {
	r := &receiver{got: map[string][][]byte{}}
	r.Server = httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, req *http.Request) {
		b, _ := io.ReadAll(req.Body)
		r.mu.Lock()
		defer r.mu.Unlock()
		if req.Header.Get("Content-Type") != "application/x-protobuf" || req.Method != "POST" {
			w.WriteHeader(http.StatusUnsupportedMediaType)
			return
		}
		if r.fails > 0 {
			r.fails--
			w.WriteHeader(http.StatusServiceUnavailable)
			return
		}
		r.got[req.URL.Path] = append(r.got[req.URL.Path], b)
	}))
	t.Cleanup(r.Close)
	return r
}

func (r *receiver) of(path string) [][]byte {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.got[path]
}

func TestExport(t *testing.T) {
	r := newReceiver(t)
	r.fails = 1
	reg := prometheus.NewRegistry()
	c := prometheus.NewCounterVec(prometheus.CounterOpts{Name: "penstock_gateway_prompt_tokens_total", Help: "h"}, []string{"model"})
	h := prometheus.NewHistogramVec(prometheus.HistogramOpts{Name: "penstock_gateway_request_duration_seconds", Buckets: []float64{1, 2}}, []string{"model", "path"})
	g := prometheus.NewGauge(prometheus.GaugeOpts{Name: "penstock_own"})
	reg.MustRegister(c, h, g)
	c.WithLabelValues("m").Add(7)
	h.WithLabelValues("m", "/v1/chat/completions").Observe(.5)
	h.WithLabelValues("m", "/v1/chat/completions").Observe(3)
	g.Set(2.5)
	voc, _ := FindVocabulary("genai-2026")
	e := New(Options{URL: r.URL + "/", Service: "penstock", Instance: "i1", Version: "v1", Vocabulary: voc, Metrics: reg, Every: time.Hour})
	ctx, cancel := context.WithCancel(context.Background())
	done := make(chan struct{})
	go func() { e.Run(ctx); close(done) }()
	s := &Span{Context: NewTrace(1), Name: "chat m", Kind: KindClient, Start: time.Unix(10, 5), End: time.Unix(11, 0), Failed: true, Message: "broken",
		Attrs: []Attr{String("gen_ai.operation.name", "chat"), Int("n", 3), Float("f", .5), Bool("b", true)}}
	s.Span, s.Parent = NewSpanID(), NewSpanID()
	e.End(s)
	e.Log(LogRecord{Time: time.Unix(12, 0), Name: "penstock.prompt", Body: "text", Attrs: []Attr{String("id", "x")}})
	for end := time.Now().Add(time.Minute); e.Sent.Load() < 2 && time.Now().Before(end); { // both came, and the answers were read
		time.Sleep(10 * time.Millisecond)
	}
	cancel()
	<-done
	if e.Dropped.Load() != 0 || e.Failures.Load() != 1 || e.Sent.Load() != 2 {
		t.Errorf("sent %d, dropped %d, failures %d", e.Sent.Load(), e.Dropped.Load(), e.Failures.Load())
	}

	all := decode(t, r.of("/v1/traces")[0])
	res := all.in(t, 1, 1).attributes(t, 1)
	if res["service.name"] != "penstock" || res["service.instance.id"] != "i1" {
		t.Errorf("resource %v", res)
	}
	span := all.in(t, 1, 2, 2)
	if span.text(1) != string(s.Trace[:]) || span.text(2) != string(s.Span[:]) || span.text(4) != string(s.Parent[:]) || span.text(5) != "chat m" ||
		span[6][0] != uint64(KindClient) || span[7][0] != uint64(10e9+5) || span[8][0] != uint64(11e9) {
		t.Errorf("span %v", span)
	}
	if a := span.attributes(t, 9); a["gen_ai.operation.name"] != "chat" || a["n"] != int64(3) || a["f"] != .5 || a["b"] != true {
		t.Errorf("attributes %v", a)
	}
	if st := span.in(t, 15); st.text(2) != "broken" || st[3][0] != uint64(2) {
		t.Errorf("status %v", st)
	}
	rec := decode(t, r.of("/v1/logs")[0]).in(t, 1, 2, 2)
	if rec[1][0] != uint64(12e9) || rec.in(t, 5).text(1) != "text" || rec.text(12) != "penstock.prompt" || rec.attributes(t, 6)["id"] != "x" {
		t.Errorf("record %v", rec)
	}
	checkMetrics(t, decode(t, r.of("/v1/metrics")[0]).in(t, 1, 2))
}

func checkMetrics(t *testing.T, scope message) {
	t.Helper()
	seen := map[string]message{}
	for _, b := range scope[2] {
		m := decode(t, b.([]byte))
		seen[m.text(1)] = m
	}
	if m := seen["gen_ai.client.inference.usage.input_tokens"]; m == nil || m.text(3) != "{token}" {
		t.Fatalf("%v", seen)
	} else if sum := m.in(t, 7); sum[2][0] != uint64(2) || sum[3][0] != uint64(1) || math.Float64frombits(sum.in(t, 1)[4][0].(uint64)) != 7 ||
		sum.in(t, 1).attributes(t, 7)["gen_ai.request.model"] != "m" {
		t.Errorf("sum %v", sum)
	}
	if m := seen["gen_ai.client.inference.duration"]; m == nil || m.text(3) != "s" {
		t.Fatalf("%v", seen)
	} else {
		p := m.in(t, 9, 1)
		if a := p.attributes(t, 9); p[4][0] != uint64(2) || math.Float64frombits(p[5][0].(uint64)) != 3.5 || a["gen_ai.operation.name"] != "chat" {
			t.Errorf("point %v %v", p, a)
		}
		var counts []uint64
		for b := p[6][0].([]byte); len(b) > 0; {
			v, n := protowire.ConsumeFixed64(b)
			counts, b = append(counts, v), b[n:]
		}
		if len(counts) != 3 || counts[0] != 1 || counts[1] != 0 || counts[2] != 1 || len(p[7][0].([]byte)) != 16 {
			t.Errorf("buckets %v", counts)
		}
	}
	if m := seen["penstock_own"]; m == nil || math.Float64frombits(m.in(t, 5, 1)[4][0].(uint64)) != 2.5 {
		t.Errorf("%v", seen)
	}
}

// A receiver that is away costs spans, never a request.
func TestReceiverAway(t *testing.T) {
	e := New(Options{URL: "http://127.0.0.1:1", Client: &http.Client{Timeout: 100 * time.Millisecond}})
	for range queueSpans + 100 {
		e.End(&Span{})
	}
	if e.Dropped.Load() != 100 {
		t.Errorf("%d dropped", e.Dropped.Load())
	}
	var none *Exporter
	none.End(&Span{})
	none.Log(LogRecord{})
	none.Run(context.Background())
}

func TestTraceparent(t *testing.T) {
	good := "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01"
	c, ok := ParseTraceparent(good)
	if !ok || !c.Sampled || c.Traceparent() != good {
		t.Errorf("%+v %v", c, ok)
	}
	for _, s := range []string{
		"", good[:54], good + "x", "ff" + good[2:], strings.ToUpper(good), "00-00000000000000000000000000000000-00f067aa0ba902b7-01",
		"00-4bf92f3577b34da6a3ce929d0e0e4736-0000000000000000-01", strings.Replace(good, "4bf9", "4bg9", 1), good + "-more",
	} {
		if _, ok := ParseTraceparent(s); ok {
			t.Errorf("%q passed", s)
		}
	}
	if _, ok := ParseTraceparent("01" + good[2:] + "-more"); !ok {
		t.Error("a later version is refused")
	}
	n := 0
	for range 2000 {
		if NewTrace(.25).Sampled {
			n++
		}
	}
	if n < 380 || n > 620 {
		t.Errorf("a quarter is %d of 2000", n)
	}
}

func TestVocabularies(t *testing.T) {
	for _, v := range vocabularies {
		got, ok := FindVocabulary(v.Name)
		if !ok || got.Operation == "" || got.Provider == "" || len(got.Metrics) == 0 {
			t.Errorf("%+v", v)
		}
	}
	if _, ok := FindVocabulary("other"); ok {
		t.Error("an unknown vocabulary")
	}
}
