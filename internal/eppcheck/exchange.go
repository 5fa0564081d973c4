// SPDX-License-Identifier: Apache-2.0

package eppcheck

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/netip"
	"reflect"
	"sort"
	"strings"

	corev3 "github.com/envoyproxy/go-control-plane/envoy/config/core/v3"
	filterv3 "github.com/envoyproxy/go-control-plane/envoy/extensions/filters/http/ext_proc/v3"
	extprocv3 "github.com/envoyproxy/go-control-plane/envoy/service/ext_proc/v3"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/types/known/structpb"
)

// Names of the endpoint picker protocol.
const (
	destination     = "x-gateway-destination-endpoint"
	subsetKey       = "x-gateway-destination-endpoint-subset"
	subsetNamespace = "envoy.lb.subset_hint"
	lbNamespace     = "envoy.lb"
)

// subset is a hint in one of the shapes that proxies send.
type subset struct {
	set   bool
	value any // []any of strings, or a string
}

func list(addrs ...string) subset {
	v := make([]any, len(addrs))
	for i, a := range addrs {
		v[i] = a
	}
	return subset{true, v}
}

func headersFrame(method, path string, extra [][2]string, eos bool, s subset) *extprocv3.ProcessingRequest {
	hs := []*corev3.HeaderValue{
		{Key: ":authority", RawValue: []byte("models.example")},
		{Key: ":path", RawValue: []byte(path)},
		{Key: ":method", RawValue: []byte(method)},
		{Key: ":scheme", RawValue: []byte("http")},
		{Key: "content-type", RawValue: []byte("application/json")},
		{Key: "x-request-id", RawValue: []byte("9a1f7e6e-0000-4000-8000-000000000000")},
	}
	for _, h := range extra {
		hs = append(hs, &corev3.HeaderValue{Key: h[0], RawValue: []byte(h[1])})
	}
	f := &extprocv3.ProcessingRequest{
		Request: &extprocv3.ProcessingRequest_RequestHeaders{RequestHeaders: &extprocv3.HttpHeaders{
			Headers: &corev3.HeaderMap{Headers: hs}, EndOfStream: eos}},
		ProtocolConfig: &extprocv3.ProtocolConfiguration{
			RequestBodyMode:  filterv3.ProcessingMode_FULL_DUPLEX_STREAMED,
			ResponseBodyMode: filterv3.ProcessingMode_FULL_DUPLEX_STREAMED,
		},
	}
	if s.set {
		v, err := structpb.NewStruct(map[string]any{subsetKey: s.value})
		if err == nil {
			f.MetadataContext = &corev3.Metadata{FilterMetadata: map[string]*structpb.Struct{subsetNamespace: v}}
		}
	}
	return f
}

func bodyFrame(b []byte, eos bool) *extprocv3.ProcessingRequest {
	return &extprocv3.ProcessingRequest{Request: &extprocv3.ProcessingRequest_RequestBody{
		RequestBody: &extprocv3.HttpBody{Body: b, EndOfStream: eos}}}
}

func responseHeaders(code string) *extprocv3.ProcessingRequest {
	return &extprocv3.ProcessingRequest{Request: &extprocv3.ProcessingRequest_ResponseHeaders{
		ResponseHeaders: &extprocv3.HttpHeaders{Headers: &corev3.HeaderMap{Headers: []*corev3.HeaderValue{
			{Key: ":status", RawValue: []byte(code)}, {Key: "content-type", RawValue: []byte("text/event-stream")},
		}}}}}
}

func responseBody(b []byte, eos bool) *extprocv3.ProcessingRequest {
	return &extprocv3.ProcessingRequest{Request: &extprocv3.ProcessingRequest_ResponseBody{
		ResponseBody: &extprocv3.HttpBody{Body: b, EndOfStream: eos}}}
}

// call is one exchange with the picker.
type call struct {
	stream extprocv3.ExternalProcessor_ProcessClient
	cancel context.CancelFunc
}

func (p *probe) open(ctx context.Context) (*call, error) {
	c, cancel := context.WithTimeout(ctx, p.o.Timeout)
	s, err := p.api.Process(c)
	if err != nil {
		cancel()
		return nil, err
	}
	return &call{s, cancel}, nil
}

func (c *call) close() { c.cancel() }

func (c *call) send(fs ...*extprocv3.ProcessingRequest) error {
	for _, f := range fs {
		if err := c.stream.Send(f); err != nil {
			return fmt.Errorf("the picker closed the stream: %w", c.why(err))
		}
	}
	return nil
}

func (c *call) why(err error) error {
	if errors.Is(err, io.EOF) {
		if _, e := c.stream.Recv(); e != nil {
			return e
		}
	}
	return err
}

// recv waits for one answer and says in plain words what came instead.
func (c *call) recv(what string) (*extprocv3.ProcessingResponse, error) {
	r, err := c.stream.Recv()
	switch {
	case err == nil:
		return r, nil
	case errors.Is(err, io.EOF):
		return nil, fmt.Errorf("no %s: the picker ended the stream", what)
	case status.Code(err) == codes.DeadlineExceeded:
		return nil, fmt.Errorf("no %s: the picker hangs", what)
	default:
		return nil, fmt.Errorf("no %s: gRPC error %v, which a proxy turns into an empty 500", what, err)
	}
}

func answered(err error) bool {
	c := status.Code(err)
	return c != codes.Unavailable && c != codes.DeadlineExceeded
}

// picked is the picker's answer to a request.
type picked struct {
	immediate *extprocv3.ImmediateResponse
	headers   *extprocv3.HeadersResponse
	header    string // destination header
	metadata  string // destination in dynamic metadata
	body      []byte
	parts     int
	largest   int
	eos       bool
}

// endpoints splits the destination, which may be an ordered list.
func (k *picked) endpoints() []string { return strings.Split(k.header, ",") }

// first reads the answer to the headers, which may be an immediate response.
func (c *call) first() (*picked, error) {
	r, err := c.recv("answer to the request headers")
	if err != nil {
		return nil, err
	}
	k := &picked{}
	if k.immediate = r.GetImmediateResponse(); k.immediate != nil {
		return k, nil
	}
	if k.headers = r.GetRequestHeaders(); k.headers == nil {
		return nil, fmt.Errorf("the first answer is %T, not to the request headers: a proxy fails the request", r.GetResponse())
	}
	for _, h := range k.headers.GetResponse().GetHeaderMutation().GetSetHeaders() {
		if strings.EqualFold(h.GetHeader().GetKey(), destination) {
			k.header = value(h.GetHeader())
		}
	}
	k.metadata = r.GetDynamicMetadata().GetFields()[lbNamespace].GetStructValue().GetFields()[destination].GetStringValue()
	return k, nil
}

func value(h *corev3.HeaderValue) string {
	if len(h.GetRawValue()) > 0 {
		return string(h.GetRawValue())
	}
	return h.GetValue()
}

// rest reads the body that the picker returns until its end, or until want bytes
// came where no end follows (a request with trailers).
func (c *call) rest(k *picked, want int) error {
	for {
		r, err := c.recv(fmt.Sprintf("rest of the request body (%d of %d bytes came back)", len(k.body), want))
		if err != nil {
			return err
		}
		if im := r.GetImmediateResponse(); im != nil {
			k.immediate = im
			return nil
		}
		b := r.GetRequestBody()
		if b == nil {
			return fmt.Errorf("%T came where the request body was due", r.GetResponse())
		}
		s := b.GetResponse().GetBodyMutation().GetStreamedResponse()
		if s == nil {
			return errors.New("the body came back in a plain body mutation, which a proxy refuses in full duplex mode")
		}
		k.parts++
		k.largest = max(k.largest, len(s.GetBody()))
		k.body = append(k.body, s.GetBody()...)
		if s.GetEndOfStream() {
			k.eos = true
			return nil
		}
		if want > 0 && len(k.body) >= want {
			// The end may come as a part of its own; only ask for it where the
			// caller has sent one.
			return nil
		}
	}
}

// request plays one whole request: headers, the given body frames, and reads the
// pick and the returned body.
func (p *probe) request(ctx context.Context, head *extprocv3.ProcessingRequest, frames ...*extprocv3.ProcessingRequest) (*picked, error) {
	c, err := p.open(ctx)
	if err != nil {
		return nil, err
	}
	defer c.close()
	return c.play(head, frames...)
}

// play sends the request while it reads the answers, as a proxy does: a picker may
// return the beginning of a body before it has seen the end, and neither side may
// wait for the other.
func (c *call) play(head *extprocv3.ProcessingRequest, frames ...*extprocv3.ProcessingRequest) (*picked, error) {
	for _, f := range frames { // a proxy says it with every message
		f.MetadataContext = head.MetadataContext
	}
	if err := c.send(head); err != nil {
		return nil, err
	}
	go func() {
		for _, f := range frames {
			if c.stream.Send(f) != nil {
				return // the reader learns why
			}
		}
	}()
	k, err := c.first()
	if err != nil || k.immediate != nil || len(frames) == 0 {
		return k, err
	}
	for !k.eos && k.immediate == nil {
		if err := c.rest(k, 0); err != nil {
			return k, err
		}
	}
	return k, nil
}

// chat is a chat request for the pool's model.
func (p *probe) chat(text string) []byte {
	return []byte(fmt.Sprintf(`{"model":%q,"messages":[{"role":"user","content":%q}],"max_tokens":16}`, p.o.Model, text))
}

func (p *probe) post(ctx context.Context, body []byte, extra [][2]string, s subset) (*picked, error) {
	return p.request(ctx, headersFrame("POST", "/v1/chat/completions", extra, false, s), bodyFrame(body, true))
}

// good plays a request that has to be picked and returned whole. A picker that parses
// the body and writes it anew passes where it means the same: whether its bytes are
// the same is a check of its own.
func (p *probe) good(ctx context.Context, body []byte, frames ...*extprocv3.ProcessingRequest) (*picked, error) {
	k, err := p.request(ctx, headersFrame("POST", "/v1/chat/completions", nil, false, subset{}), frames...)
	if err != nil {
		return nil, err
	}
	if err := k.valid(); err != nil {
		return nil, err
	}
	if !bytes.Equal(k.body, body) && !sameJSON(k.body, body) {
		return nil, fmt.Errorf("%d bytes were sent, %d came back, and they differ from byte %d on", len(body), len(k.body), differ(body, k.body))
	}
	return k, nil
}

// sameJSON reports whether two texts are JSON of the same meaning.
func sameJSON(a, b []byte) bool {
	var x, y any
	return json.Unmarshal(a, &x) == nil && json.Unmarshal(b, &y) == nil && reflect.DeepEqual(x, y)
}

func differ(a, b []byte) int {
	for i := range min(len(a), len(b)) {
		if a[i] != b[i] {
			return i
		}
	}
	return min(len(a), len(b))
}

// valid says whether the answer is a pick.
func (k *picked) valid() error {
	if k.immediate != nil {
		return fmt.Errorf("refused with %d: %.120s", k.immediate.GetStatus().GetCode(), k.immediate.GetBody())
	}
	if k.header == "" {
		return fmt.Errorf("no header %s was set", destination)
	}
	for _, a := range k.endpoints() {
		if _, err := netip.ParseAddrPort(a); err != nil {
			return fmt.Errorf("the destination %q is not ip:port[,ip:port] without spaces", k.header)
		}
	}
	return nil
}

// learn asks for picks with different prompts and collects the endpoints.
func (p *probe) learn(ctx context.Context) []string {
	seen := map[string]bool{}
	for i := range 48 {
		k, err := p.post(ctx, p.chat(strings.Repeat(fmt.Sprintf("question %d about something else. ", i), 40)), nil, subset{})
		if err != nil || k.valid() != nil {
			continue
		}
		for _, a := range k.endpoints() {
			seen[a] = true
		}
	}
	var out []string
	for a := range seen {
		out = append(out, a)
	}
	sort.Strings(out)
	return out
}
