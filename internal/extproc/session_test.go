// SPDX-License-Identifier: Apache-2.0

package extproc

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"strings"
	"testing"
	"time"

	corev3 "github.com/envoyproxy/go-control-plane/envoy/config/core/v3"
	filterv3 "github.com/envoyproxy/go-control-plane/envoy/extensions/filters/http/ext_proc/v3"
	extprocv3 "github.com/envoyproxy/go-control-plane/envoy/service/ext_proc/v3"
	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/grpc/health/grpc_health_v1"

	"github.com/penstock-project/penstock/internal/fleet"
)

type proxy struct {
	t      *testing.T
	stream extprocv3.ExternalProcessor_ProcessClient
	cancel context.CancelFunc
}

func connect(t *testing.T, addr string) *grpc.ClientConn {
	t.Helper()
	conn, err := grpc.NewClient("passthrough:///"+addr, grpc.WithTransportCredentials(insecure.NewCredentials()))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { conn.Close() })
	return conn
}

func newProxy(t *testing.T, addr string) *proxy {
	t.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
	t.Cleanup(cancel)
	s, err := extprocv3.NewExternalProcessorClient(connect(t, addr)).Process(ctx)
	if err != nil {
		t.Fatal(err)
	}
	return &proxy{t, s, cancel}
}

func (p *proxy) send(fs ...*extprocv3.ProcessingRequest) {
	p.t.Helper()
	for _, f := range fs {
		err := p.stream.Send(f)
		if errors.Is(err, io.EOF) {
			return // the picker has said its last word already; recv tells which
		}
		if err != nil {
			p.t.Fatal(err)
		}
	}
}

func (p *proxy) recv() *extprocv3.ProcessingResponse {
	p.t.Helper()
	r, err := p.stream.Recv()
	if err != nil {
		p.t.Fatal(err)
	}
	return r
}

// body reads streamed parts until their end.
func (p *proxy) body(get func(*extprocv3.ProcessingResponse) *extprocv3.BodyResponse) []byte {
	p.t.Helper()
	var out []byte
	for {
		r := p.recv()
		b := get(r)
		if b == nil {
			p.t.Fatalf("want a body, got %v", r)
		}
		s := b.GetResponse().GetBodyMutation().GetStreamedResponse()
		out = append(out, s.GetBody()...)
		if s.GetEndOfStream() {
			return out
		}
	}
}

func heads(path string, eos bool, req, resp filterv3.ProcessingMode_BodySendMode) *extprocv3.ProcessingRequest {
	return &extprocv3.ProcessingRequest{
		Request: &extprocv3.ProcessingRequest_RequestHeaders{RequestHeaders: &extprocv3.HttpHeaders{
			EndOfStream: eos,
			Headers: &corev3.HeaderMap{Headers: []*corev3.HeaderValue{
				{Key: ":path", RawValue: []byte(path)}, {Key: ":method", RawValue: []byte("POST")},
			}}}},
		ProtocolConfig: &extprocv3.ProtocolConfiguration{RequestBodyMode: req, ResponseBodyMode: resp},
	}
}

func reqBody(b string, eos bool) *extprocv3.ProcessingRequest {
	return &extprocv3.ProcessingRequest{Request: &extprocv3.ProcessingRequest_RequestBody{
		RequestBody: &extprocv3.HttpBody{Body: []byte(b), EndOfStream: eos}}}
}

func respBody(b string, eos bool) *extprocv3.ProcessingRequest {
	return &extprocv3.ProcessingRequest{Request: &extprocv3.ProcessingRequest_ResponseBody{
		ResponseBody: &extprocv3.HttpBody{Body: []byte(b), EndOfStream: eos}}}
}

func respHeads(ctype string) *extprocv3.ProcessingRequest { return respStatus("200", ctype) }

func respStatus(status, ctype string) *extprocv3.ProcessingRequest {
	return &extprocv3.ProcessingRequest{Request: &extprocv3.ProcessingRequest_ResponseHeaders{
		ResponseHeaders: &extprocv3.HttpHeaders{Headers: &corev3.HeaderMap{Headers: []*corev3.HeaderValue{
			{Key: ":status", RawValue: []byte(status)}, {Key: "content-type", RawValue: []byte(ctype)}}}}}}
}

const (
	fds      = filterv3.ProcessingMode_FULL_DUPLEX_STREAMED
	buffered = filterv3.ProcessingMode_BUFFERED
	none     = filterv3.ProcessingMode_NONE
	streamed = filterv3.ProcessingMode_STREAMED
)

const chatPath = "/v1/chat/completions"

func chatBody(model, text string) string {
	return fmt.Sprintf(`{"messages":[{"role":"user","content":%q}], "model" : %q ,"n":1.0}`, text, model)
}

func destinationOf(r *extprocv3.ProcessingResponse) string {
	return r.GetDynamicMetadata().GetFields()[destinationNamespace].GetStructValue().GetFields()[destinationHeader].GetStringValue()
}

func TestModelNameIsReplacedBothWays(t *testing.T) {
	for _, alias := range []string{"chat", "a-much-longer-name-than-the-engine-has"} {
		f := newPool(t, 2)
		_, addr := start(t, Options{Catalogue: onePool{flow: f, model: "m", alias: alias}})
		p := newProxy(t, addr)
		in := chatBody(alias, `the text "model":"`+alias+`" stays`)
		p.send(heads(chatPath, false, fds, fds), reqBody(in[:20], false), reqBody(in[20:], true))
		if d := destinationOf(p.recv()); strings.Count(d, ",") != 1 {
			t.Errorf("destination %q, want a pick and one fallback", d)
		}
		got := string(p.body(func(r *extprocv3.ProcessingResponse) *extprocv3.BodyResponse { return r.GetRequestBody() }))
		if want := chatBody("m", `the text "model":"`+alias+`" stays`); got != want {
			t.Errorf("body\n got %s\nwant %s", got, want)
		}
		p.send(respHeads("text/event-stream"))
		p.recv()
		event := `data: {"model":"m","choices":[{"delta":{"content":"say \"model\":\"m\""}}]}` + "\n\n"
		var out []byte
		for i := range len(event) { // byte by byte: no chunk boundary may hide the name
			p.send(respBody(event[i:i+1], false))
			out = append(out, p.recv().GetResponseBody().GetResponse().GetBodyMutation().GetStreamedResponse().GetBody()...)
		}
		if want := strings.Replace(event, `"model":"m",`, `"model":"`+alias+`",`, 1); string(out) != want {
			t.Errorf("event\n got %s\nwant %s", out, want)
		}
	}
}

func TestBufferedMode(t *testing.T) {
	f := newPool(t, 2)
	_, addr := start(t, Options{Catalogue: onePool{flow: f, model: "m", alias: "chat"}})
	for model, changed := range map[string]bool{"m": false, "chat": true} {
		p := newProxy(t, addr)
		p.send(heads(chatPath, false, buffered, none))
		if r := p.recv(); r.GetRequestHeaders() == nil {
			t.Fatalf("the proxy waits for the headers' answer before it sends the body: %v", r)
		}
		p.send(reqBody(chatBody(model, "x"), true))
		r := p.recv()
		c := r.GetRequestBody().GetResponse()
		if destinationOf(r) == "" || !c.GetClearRouteCache() {
			t.Fatalf("no pick with the body: %v", r)
		}
		if got := c.GetBodyMutation().GetBody(); changed != (len(got) > 0) {
			t.Errorf("model %s: body mutation %q", model, got)
		} else if changed {
			length := ""
			for _, h := range c.GetHeaderMutation().GetSetHeaders() {
				if h.GetHeader().GetKey() == "content-length" {
					length = string(h.GetHeader().GetRawValue())
				}
			}
			if length != fmt.Sprint(len(got)) {
				t.Errorf("content-length %q, body %d: a proxy answers 500 to that", length, len(got))
			}
		}
		p.send(respHeads("application/json"))
		if p.recv().GetResponseHeaders() == nil {
			t.Fatal("no answer to the response headers")
		}
	}
}

func TestHeaderOnlyAndStreamedModes(t *testing.T) {
	f := newPool(t, 2)
	s, addr := start(t, Options{Catalogue: onePool{flow: f, model: "m"}})
	p := newProxy(t, addr)
	p.send(heads(chatPath, false, none, none))
	if destinationOf(p.recv()) == "" {
		t.Fatal("no pick although no body will ever come")
	}
	p = newProxy(t, addr)
	p.send(heads(chatPath, false, streamed, streamed))
	if destinationOf(p.recv()) == "" {
		t.Fatal("no pick in streamed mode")
	}
	p.send(reqBody("anything", true))
	if b := p.recv().GetRequestBody(); b == nil || b.GetResponse().GetBodyMutation() != nil {
		t.Fatal("a streamed_response in streamed mode cuts the request")
	}
	p.send(respHeads("text/event-stream"))
	p.recv()
	p.send(respBody("data: x\n\n", true))
	if b := p.recv().GetResponseBody(); b == nil || b.GetResponse().GetBodyMutation() != nil {
		t.Fatal("a streamed_response in streamed mode cuts the answer")
	}
	if n := s.Stats.Picked[HeadersOnly].Load(); n != 2 {
		t.Errorf("%d picks by headers counted, want 2", n)
	}
}

func TestEndOfBodyDeliveredTwice(t *testing.T) {
	f := newPool(t, 1)
	_, addr := start(t, Options{Catalogue: onePool{flow: f, model: "m"}})
	p := newProxy(t, addr)
	p.send(heads(chatPath, false, fds, fds), reqBody(chatBody("m", "x"), true), reqBody("", true))
	p.recv()
	p.body(func(r *extprocv3.ProcessingResponse) *extprocv3.BodyResponse { return r.GetRequestBody() })
	p.send(respHeads("application/json"))
	if r := p.recv(); r.GetResponseHeaders() == nil {
		t.Fatalf("want the answer to the response headers, got %v", r)
	}
}

func TestRefusals(t *testing.T) {
	f := newPool(t, 1)
	_, addr := start(t, Options{Catalogue: onePool{flow: f, model: "m"}, MaxBody: 1000})
	for _, tc := range []struct {
		name, path, body string
		status           int
		want             string
	}{
		{"too large", chatPath, chatBody("m", strings.Repeat("x", 2000)), 413, "1000 bytes"},
		{"unknown model", chatPath, chatBody("other", "x"), 404, `"code":"model_not_found"`},
		{"unknown model, Anthropic", "/v1/messages", chatBody("other", "x"), 404, `"type":"not_found_error"`},
		{"model twice", chatPath, `{"model":"m","Model":"m","messages":[]}`, 400, "error"},
		{"empty body", chatPath, "", 400, "empty"},
	} {
		p := newProxy(t, addr)
		p.send(heads(tc.path, false, fds, fds), reqBody(tc.body, true))
		im := p.recv().GetImmediateResponse()
		if int(im.GetStatus().GetCode()) != tc.status || !bytes.Contains(im.GetBody(), []byte(tc.want)) {
			t.Errorf("%s: %d %s", tc.name, im.GetStatus().GetCode(), im.GetBody())
		}
	}
	f.Observe(&fleet.Snapshot{Pool: "p", Version: 2, At: fleet.At(time.Now())})
	p := newProxy(t, addr)
	p.send(heads("/v1/models", true, fds, fds))
	im := p.recv().GetImmediateResponse()
	retry := ""
	for _, h := range im.GetHeaders().GetSetHeaders() {
		if h.GetHeader().GetKey() == "retry-after" {
			retry = string(h.GetHeader().GetRawValue())
		}
	}
	if im.GetStatus().GetCode() != 503 || retry == "" {
		t.Errorf("empty pool, GET: %v", im)
	}
}

func TestClientThatLeavesGivesItsPlaceBack(t *testing.T) {
	f := newPool(t, 2)
	s, addr := start(t, Options{Catalogue: onePool{flow: f, model: "m"}})
	for i := range 30 {
		p := newProxy(t, addr)
		p.send(heads(chatPath, false, fds, fds), reqBody(chatBody("m", "x"), true))
		p.recv()
		if i%2 == 0 {
			p.send(respHeads("text/event-stream"), respBody("data: {}\n\n", false))
		}
		p.cancel()
	}
	deadline := time.Now().Add(time.Minute)
	for f.Stats().Totals.InFlight != 0 || s.Stats.Open.Load() != 0 {
		if time.Now().After(deadline) {
			t.Fatalf("%d in flight, %d streams", f.Stats().Totals.InFlight, s.Stats.Open.Load())
		}
		time.Sleep(5 * time.Millisecond)
	}
	if n := s.Stats.ClientGone[1].Load(); n != 30 {
		t.Errorf("%d of 30 counted as gone", n)
	}
}

func TestDrainLetsStreamsEnd(t *testing.T) {
	f := newPool(t, 1)
	s, addr := start(t, Options{Catalogue: onePool{flow: f, model: "m"}})
	p := newProxy(t, addr)
	p.send(heads(chatPath, false, fds, fds), reqBody(chatBody("m", "x"), true))
	p.recv()
	p.body(func(r *extprocv3.ProcessingResponse) *extprocv3.BodyResponse { return r.GetRequestBody() })
	p.send(respHeads("text/event-stream"))
	p.recv()

	health := grpc_health_v1.NewHealthClient(connect(t, addr))
	watch, err := health.Watch(context.Background(), &grpc_health_v1.HealthCheckRequest{Service: ServiceName})
	if err != nil {
		t.Fatal(err)
	}
	if r, err := watch.Recv(); err != nil || r.GetStatus() != grpc_health_v1.HealthCheckResponse_SERVING {
		t.Fatal(r, err)
	}
	ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
	defer cancel()
	done := make(chan struct{})
	go func() { s.Drain(ctx); close(done) }()
	if r, err := watch.Recv(); err != nil || r.GetStatus() != grpc_health_v1.HealthCheckResponse_NOT_SERVING {
		t.Fatal("health does not say NOT_SERVING first:", r, err)
	}
	for range 3 {
		p.send(respBody("data: {\"choices\":[{\"delta\":{\"content\":\"x\"}}]}\n\n", false))
		p.recv()
	}
	p.send(respBody("data: [DONE]\n\n", true))
	p.body(func(r *extprocv3.ProcessingResponse) *extprocv3.BodyResponse { return r.GetResponseBody() })
	p.cancel()
	<-done // a watch of the health does not hold it
	if ctx.Err() != nil {
		t.Error("the drain came to its limit although every request had ended")
	}
}

func TestNoResponseBodiesStillEnds(t *testing.T) {
	f := newPool(t, 1)
	_, addr := start(t, Options{Catalogue: onePool{flow: f, model: "m"}})
	p := newProxy(t, addr)
	p.send(heads(chatPath, false, fds, none), reqBody(chatBody("m", "x"), true))
	p.recv()
	p.body(func(r *extprocv3.ProcessingResponse) *extprocv3.BodyResponse { return r.GetRequestBody() })
	p.send(respHeads("text/event-stream"))
	p.recv()
	p.cancel()
	if f.Stats().Totals.InFlight != 1 {
		t.Error("the request must count for as long as an answer takes")
	}
}
