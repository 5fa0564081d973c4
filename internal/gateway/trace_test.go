// SPDX-License-Identifier: Apache-2.0

package gateway

import (
	"bytes"
	"context"
	"io"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync"
	"testing"

	"github.com/penstock-project/penstock/internal/telemetry"
)

// collector is an OTLP receiver that keeps all bytes.
func collector(t *testing.T) (url string, got func() []byte) {
	var mu sync.Mutex
	var all []byte
	s := httptest.NewServer(http.HandlerFunc(func(_ http.ResponseWriter, r *http.Request) {
		b, _ := io.ReadAll(r.Body)
		mu.Lock()
		all = append(all, b...)
		mu.Unlock()
	}))
	t.Cleanup(s.Close)
	return s.URL, func() []byte { mu.Lock(); defer mu.Unlock(); return bytes.Clone(all) }
}

// The engine sees the span of its attempt, within the trace of the client; spans tell
// who and what, and nothing of the prompt.
func TestTraces(t *testing.T) {
	e := &lastSeen{}
	u := scripted(t, e.script)
	url, got := collector(t)
	voc, _ := telemetry.FindVocabulary("genai-2026")
	x := telemetry.New(telemetry.Options{URL: url, Service: "penstock", Vocabulary: voc})
	f := newFixture(t, setup{options: Options{Tracer: &Tracer{Exporter: x, Sample: 1}, Auth: everybody{tenant: "acme", key: "k1"}}}, u.url)
	ctx, cancel := context.WithCancel(context.Background())
	done := make(chan struct{})
	go func() { x.Run(ctx); close(done) }()
	parent := func() telemetry.Context {
		e.mu.Lock()
		defer e.mu.Unlock()
		c, ok := telemetry.ParseTraceparent(e.head.Get("Traceparent"))
		if !ok {
			t.Errorf("the engine got %q", e.head.Get("Traceparent"))
		}
		return c
	}
	const theirs = "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-0"
	body := strings.Replace(chatBody, "hello", "CANARY-trace", 1)
	f.chat(body, "Traceparent", theirs+"1", "Tracestate", "a=b")
	in, _ := telemetry.ParseTraceparent(theirs + "1")
	mine := parent()
	if mine.Trace != in.Trace || mine.Span == in.Span || e.head.Get("Tracestate") != "a=b" {
		t.Errorf("%v", mine)
	}
	f.chat(body) // a trace of its own
	own := parent()
	if own.Trace == in.Trace || !own.Sampled {
		t.Errorf("%v", own)
	}
	f.chat(body, "Traceparent", theirs+"0") // not to be kept: it passes as it is
	if c := parent(); c.Span != in.Span || c.Sampled {
		t.Errorf("%v", c)
	}
	f.settled()
	cancel()
	<-done
	all := got()
	for _, want := range []string{string(mine.Span[:]), string(own.Span[:]), string(in.Trace[:]), "POST /v1/chat/completions", "chat m", "gen_ai.usage.input_tokens", "penstock.tenant", "acme", "server.address", "penstock.replica"} {
		if !bytes.Contains(all, []byte(want)) {
			t.Errorf("no span tells of %q", want)
		}
	}
	if bytes.Contains(all, []byte("CANARY")) {
		t.Error("a span holds text of a prompt")
	}
	if n := bytes.Count(all, []byte("chat m")); n != 2 {
		t.Errorf("%d spans of attempts", n)
	}
}
