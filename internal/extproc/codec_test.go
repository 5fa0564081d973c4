// SPDX-License-Identifier: Apache-2.0

package extproc

import (
	"bytes"
	"testing"

	corev3 "github.com/envoyproxy/go-control-plane/envoy/config/core/v3"
	filterv3 "github.com/envoyproxy/go-control-plane/envoy/extensions/filters/http/ext_proc/v3"
	extprocv3 "github.com/envoyproxy/go-control-plane/envoy/service/ext_proc/v3"
	"google.golang.org/grpc/mem"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/structpb"
)

// split cuts a message into buffers of n bytes, as gRPC hands long ones over.
func split(b []byte, n int) mem.BufferSlice {
	var out mem.BufferSlice
	for len(b) > 0 {
		k := min(n, len(b))
		c := append([]byte(nil), b[:k]...)
		out = append(out, mem.NewBuffer(&c, nil))
		b = b[k:]
	}
	return out
}

func encode(t testing.TB, m proto.Message) []byte {
	t.Helper()
	b, err := proto.Marshal(m)
	if err != nil {
		t.Fatal(err)
	}
	return b
}

func hintMetadata(t testing.TB, hint any) *corev3.Metadata {
	t.Helper()
	st, err := structpb.NewStruct(map[string]any{subsetKey: hint, "other": 1})
	if err != nil {
		t.Fatal(err)
	}
	served, err := structpb.NewStruct(map[string]any{servedKey: "10.0.0.9:8000", "x": true})
	if err != nil {
		t.Fatal(err)
	}
	return &corev3.Metadata{FilterMetadata: map[string]*structpb.Struct{subsetNamespace: st, destinationNamespace: served, "z": st}}
}

func TestUnmarshalHeaders(t *testing.T) {
	hs := []*corev3.HeaderValue{
		{Key: ":path", RawValue: []byte("/v1/chat/completions")},
		{Key: "x-rep", Value: "a"}, {Key: "x-rep", RawValue: []byte("b")},
		{Key: "content-type", Value: "a"}, {Key: "content-length", RawValue: []byte("b")},
	}
	for _, tc := range []struct {
		hint any
		want []string
	}{
		{[]any{"10.0.0.1:8000", "10.0.0.2:8000"}, []string{"10.0.0.1:8000", "10.0.0.2:8000"}},
		{[]any{}, nil},
		{"10.0.0.1:8000, 10.0.0.2:8000", []string{"10.0.0.1:8000", "10.0.0.2:8000"}},
	} {
		msg := encode(t, &extprocv3.ProcessingRequest{
			Request: &extprocv3.ProcessingRequest_RequestHeaders{RequestHeaders: &extprocv3.HttpHeaders{
				Headers: &corev3.HeaderMap{Headers: hs}, EndOfStream: true}},
			MetadataContext: hintMetadata(t, tc.hint),
			ProtocolConfig: &extprocv3.ProtocolConfiguration{
				RequestBodyMode:  filterv3.ProcessingMode_FULL_DUPLEX_STREAMED,
				ResponseBodyMode: filterv3.ProcessingMode_STREAMED},
			Attributes: map[string]*structpb.Struct{"a": {}},
		})
		for n := 1; n <= len(msg); n += 7 {
			var f frame
			if err := f.unmarshal(split(msg, n)); err != nil {
				t.Fatal(err)
			}
			if f.kind != frameRequestHeaders || !f.endOfStream || len(f.headers) != 3 ||
				f.headers[0].value != "/v1/chat/completions" || f.headers[1] != (header{"content-type", "a"}) || f.headers[2] != (header{"content-length", "b"}) {
				t.Fatalf("buffers of %d: %+v", n, f)
			}
			if !f.subset.present || !equal(f.subset.addrs, tc.want) || f.served != "10.0.0.9:8000" {
				t.Fatalf("hint %v, served %q", f.subset, f.served)
			}
			if f.requestMode != modeFullDuplexStreamed || f.responseMode != modeStreamed || !f.hasProtocol {
				t.Fatalf("modes %d %d", f.requestMode, f.responseMode)
			}
		}
	}
}

func equal(a, b []string) bool {
	if len(a) != len(b) {
		return false
	}
	for i := range a {
		if a[i] != b[i] {
			return false
		}
	}
	return true
}

func TestBodyGoesThroughUncopied(t *testing.T) {
	body := bytes.Repeat([]byte("0123456789abcdef"), 20000) // 320 kB
	msg := encode(t, &extprocv3.ProcessingRequest{Request: &extprocv3.ProcessingRequest_RequestBody{
		RequestBody: &extprocv3.HttpBody{Body: body, EndOfStream: true}}})
	var f frame
	if err := f.unmarshal(split(msg, 16384)); err != nil {
		t.Fatal(err)
	}
	if f.kind != frameRequestBody || !f.endOfStream || !bytes.Equal(f.body.Materialize(), body) {
		t.Fatal("the body is not what was sent")
	}
	var got []byte
	var r reply
	for rest, i := f.takeBody(), 0; ; i++ {
		var part mem.BufferSlice
		part, rest = cut(rest, maxReplyBody)
		last := len(rest) == 0
		r.part(respRequestBody, part, last)
		var out extprocv3.ProcessingResponse
		if err := proto.Unmarshal(r.marshal().Materialize(), &out); err != nil {
			t.Fatal(err)
		}
		s := out.GetRequestBody().GetResponse().GetBodyMutation().GetStreamedResponse()
		if len(s.GetBody()) > maxReplyBody || s.GetEndOfStream() != last {
			t.Fatalf("part %d: %d bytes, end %v", i, len(s.GetBody()), s.GetEndOfStream())
		}
		if got = append(got, s.GetBody()...); last {
			break
		}
	}
	if !bytes.Equal(got, body) {
		t.Fatalf("%d bytes came back of %d", len(got), len(body))
	}
}

func TestRepliesAreWhatTheProtocolSays(t *testing.T) {
	decode := func(make func(*reply)) *extprocv3.ProcessingResponse {
		var r reply
		make(&r)
		var out extprocv3.ProcessingResponse
		if err := proto.Unmarshal(r.marshal().Materialize(), &out); err != nil {
			t.Fatal(err)
		}
		return &out
	}
	dest := "10.0.0.1:1,10.0.0.2:1"
	isPick := func(out *extprocv3.ProcessingResponse, c *extprocv3.CommonResponse) {
		t.Helper()
		set := c.GetHeaderMutation().GetSetHeaders()
		if !c.GetClearRouteCache() || len(set) == 0 || set[0].GetHeader().GetKey() != destinationHeader ||
			string(set[0].GetHeader().GetRawValue()) != dest || set[0].GetAppendAction() != corev3.HeaderValueOption_OVERWRITE_IF_EXISTS_OR_ADD {
			t.Fatalf("%v", out)
		}
		if destinationOf(out) != dest {
			t.Fatalf("metadata of %v", out)
		}
	}
	out := decode(func(r *reply) { r.pick(respRequestHeaders, dest, &change{}) })
	isPick(out, out.GetRequestHeaders().GetResponse())
	out = decode(func(r *reply) { r.buffered(nil, dest, &change{}) })
	isPick(out, out.GetRequestBody().GetResponse())
	if out.GetRequestBody().GetResponse().GetBodyMutation() != nil {
		t.Fatalf("%v", out)
	}
	long := bytes.Repeat([]byte("x"), 300)
	out = decode(func(r *reply) {
		r.buffered(long, dest, &change{set: []header{{"authorization", "Bearer k"}}, remove: []string{"x-api-key", "api-key"}})
	})
	c := out.GetRequestBody().GetResponse()
	isPick(out, c)
	if set := c.GetHeaderMutation().GetSetHeaders(); len(set) != 3 || string(set[1].GetHeader().GetRawValue()) != "300" || set[2].GetHeader().GetKey() != "authorization" || !bytes.Equal(c.GetBodyMutation().GetBody(), long) {
		t.Fatalf("%v", out)
	}
	if gone := c.GetHeaderMutation().GetRemoveHeaders(); len(gone) != 2 || gone[0] != "x-api-key" || gone[1] != "api-key" {
		t.Fatalf("removed %v", gone)
	}
	told := decode(func(r *reply) { r.headers(respResponseHeaders, &change{set: []header{{"x-a", "1"}, {"x-b", "2"}}}) })
	if set := told.GetResponseHeaders().GetResponse().GetHeaderMutation().GetSetHeaders(); len(set) != 2 || set[1].GetHeader().GetKey() != "x-b" {
		t.Fatalf("%v", told)
	}
	im := decode(func(r *reply) {
		r.immediate(503, []header{{"content-type", "application/json"}, {"retry-after", "2"}}, []byte(`{"error":{}}`), "no_replica")
	}).GetImmediateResponse()
	if int(im.GetStatus().GetCode()) != 503 || string(im.GetBody()) != `{"error":{}}` || im.GetDetails() != "no_replica" || len(im.GetHeaders().GetSetHeaders()) != 2 {
		t.Fatalf("%v", im)
	}
	if decode(func(r *reply) { r.empty(respResponseTrailers) }).GetResponseTrailers() == nil {
		t.Fatal("no trailers answer")
	}
	for _, n := range []int{0, 1, copiedBody, copiedBody + 1, maxReplyBody} {
		for _, eos := range []bool{false, true} {
			body := bytes.Repeat([]byte("b"), n)
			s := decode(func(r *reply) { r.part(respResponseBody, split(body, 700), eos) }).GetResponseBody().GetResponse().GetBodyMutation().GetStreamedResponse()
			if s == nil || s.GetEndOfStream() != eos || !bytes.Equal(s.GetBody(), body) {
				t.Fatalf("%d bytes, end %v: %v", n, eos, s)
			}
		}
	}
}

// Headers that configuration names are kept as well, by their first frame and after a
// reset, and no others.
func TestUnmarshalKeepsNamedHeaders(t *testing.T) {
	h := heads(chatPath, false, fds, fds)
	m := h.GetRequestHeaders().Headers
	m.Headers = append(m.Headers, &corev3.HeaderValue{Key: "x-session-id", RawValue: []byte("s")},
		&corev3.HeaderValue{Key: "x-other", RawValue: []byte("o")}, &corev3.HeaderValue{Key: "authorization", RawValue: []byte("Bearer k")})
	f := frame{also: []string{"x-session-id"}}
	for range 2 {
		if err := f.unmarshal(split(encode(t, h), 9)); err != nil {
			t.Fatal(err)
		}
		if len(f.headers) != 2 || f.headers[1] != (header{"x-session-id", "s"}) {
			t.Fatalf("%v", f.headers)
		}
	}
}

// FuzzUnmarshal holds the hand-written reader against the generated one.
func FuzzUnmarshal(f *testing.F) {
	f.Add(encode(f, &extprocv3.ProcessingRequest{Request: &extprocv3.ProcessingRequest_RequestBody{
		RequestBody: &extprocv3.HttpBody{Body: []byte("abc"), EndOfStream: true}}}), 3)
	f.Add(encode(f, &extprocv3.ProcessingRequest{MetadataContext: hintMetadata(f, []any{"a:1"}),
		Request: &extprocv3.ProcessingRequest_ResponseHeaders{ResponseHeaders: &extprocv3.HttpHeaders{}}}), 5)
	f.Add([]byte{0x22, 0x02, 0x0a, 0xff}, 1)
	f.Fuzz(func(t *testing.T, msg []byte, n int) {
		if n <= 0 || n > 1<<16 {
			n = 16
		}
		var got frame
		err := got.unmarshal(split(msg, n))
		var want extprocv3.ProcessingRequest
		if proto.Unmarshal(msg, &want) != nil {
			return // we read fewer fields, so we may accept more
		}
		if err != nil {
			return // repeated oneof members and groups are refused; the oracle merges them
		}
		if b := want.GetRequestBody(); b != nil && got.kind == frameRequestBody {
			if !bytes.Equal(got.body.Materialize(), b.GetBody()) && bytes.Count(msg, []byte{0x22}) == 1 {
				t.Fatalf("body %q, want %q", got.body.Materialize(), b.GetBody())
			}
		}
		if h := want.GetRequestHeaders(); h != nil && got.kind == frameRequestHeaders {
			n := 0
			for _, v := range h.GetHeaders().GetHeaders() {
				if got.wanted([]byte(v.GetKey())) != "" {
					n++
				}
			}
			if len(got.headers) < n {
				t.Fatalf("%d headers, want %d", len(got.headers), n)
			}
		}
	})
}
