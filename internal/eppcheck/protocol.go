// SPDX-License-Identifier: Apache-2.0

package eppcheck

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"strings"

	corev3 "github.com/envoyproxy/go-control-plane/envoy/config/core/v3"
	extprocv3 "github.com/envoyproxy/go-control-plane/envoy/service/ext_proc/v3"
)

func protocolChecks() []check {
	return []check{
		{"pick-post", checkPickPost},
		{"pick-get-header-only", checkPickGetHeaderOnly},
		{"pick-empty-post", checkPickEmptyPost},
		{"destination-metadata", checkDestinationMetadata},
		{"destination-overwritten", checkDestinationOverwritten},
		{"clear-route-cache", checkClearRouteCache},
		{"few-headers-set", checkFewHeadersSet},
		{"many-headers", checkManyHeaders},
		{"one-value-form", checkOneValueForm},
	}
}

// odd is a body that a parse and a new marshal would change.
var odd = []byte(`{ "z":1e2,"model":%MODEL%,"big":12345678901234567890123,"seed":9007199254740993,` +
	`"messages":[{"role":"user","content":"caf\u00e9 \/ <b>&amp;"}], "a":0.90,"nested":{"b":null,"a":[ ]} }`)

func (p *probe) oddBody() []byte {
	return bytes.Replace(odd, []byte("%MODEL%"), []byte(fmt.Sprintf("%q", p.o.Model)), 1)
}

func bodyChecks() []check {
	long := func(n int) func(ctx context.Context, p *probe) (string, error) {
		return func(ctx context.Context, p *probe) (string, error) {
			b := p.chat(strings.Repeat("a long prompt. ", n/15))
			var frames []*extprocv3.ProcessingRequest
			for i := 0; i < len(b); i += 65536 {
				frames = append(frames, bodyFrame(b[i:min(i+65536, len(b))], false))
			}
			frames = append(frames, bodyFrame(nil, true))
			k, err := p.good(ctx, b, frames...)
			if err != nil {
				return "", err
			}
			return fmt.Sprintf("%d bytes back in %d parts of at most %d", len(k.body), k.parts, k.largest), nil
		}
	}
	return []check{
		{"body-byte-exact", checkBodyByteExact},
		{"body-end-separate", checkBodyEndSeparate},
		{"body-300kB", long(300_000)},
		{"body-one-large-message", checkBodyOneLargeMessage},
		{"body-1.5MB", long(1_500_000)},
		{"body-10MB", long(10_000_000)},
		{"body-parts-below-64KiB", checkBodyPartsBelow64KiB},
		{"request-trailers", checkRequestTrailers},
		{"body-not-json-path", checkBodyNotJsonPath},
	}
}

func checkPickPost(ctx context.Context, p *probe) (string, error) {
	b := p.chat("hello")
	k, err := p.good(ctx, b, bodyFrame(b, true))
	if err != nil {
		return "", err
	}
	return "picked " + k.header, nil
}

func checkPickGetHeaderOnly(ctx context.Context, p *probe) (string, error) {
	k, err := p.request(ctx, headersFrame("GET", "/v1/models", nil, true, subset{}))
	if err == nil {
		err = k.valid()
	}
	if err != nil {
		return "", err
	}
	return "a request that ends with its headers is answered at once", nil
}

func checkPickEmptyPost(ctx context.Context, p *probe) (string, error) {
	k, err := p.request(ctx, headersFrame("POST", "/v1/chat/completions", [][2]string{{"content-length", "0"}}, true, subset{}))
	if err != nil {
		return "", err
	}
	if k.immediate == nil && k.valid() != nil {
		return "", k.valid()
	}
	return "answered", nil
}

func checkDestinationMetadata(ctx context.Context, p *probe) (string, error) {
	b := p.chat("hello")
	k, err := p.good(ctx, b, bodyFrame(b, true))
	if err != nil {
		return "", err
	}
	if k.metadata != k.header {
		return "", fmt.Errorf("header says %q, dynamic metadata %s says %q; a proxy that overrides the host reads the metadata", k.header, lbNamespace, k.metadata)
	}
	return "header and metadata agree", nil
}

func checkDestinationOverwritten(ctx context.Context, p *probe) (string, error) {
	forged := "127.0.0.99:1"
	k, err := p.post(ctx, p.chat("x"), [][2]string{{destination, forged}}, subset{})
	if err == nil {
		err = k.valid()
	}
	if err != nil {
		return "", err
	}
	if strings.Contains(k.header, forged) {
		return "", fmt.Errorf("the destination that the client sent won: %s", k.header)
	}
	for _, h := range k.headers.GetResponse().GetHeaderMutation().GetSetHeaders() {
		//lint:ignore SA1019 pickers of the field still set the old field, and proxies still obey it
		if h.GetHeader().GetKey() == destination && h.GetAppend().GetValue() {
			return "", errors.New("the destination is appended to the client's instead of overwriting it")
		}
	}
	return "the client's own destination header is overwritten", nil
}

func checkClearRouteCache(ctx context.Context, p *probe) (string, error) {
	k, err := p.post(ctx, p.chat("x"), nil, subset{})
	if err == nil {
		err = k.valid()
	}
	if err == nil && !k.headers.GetResponse().GetClearRouteCache() {
		err = errors.New("clear_route_cache is not set: a route that matches on the destination is not chosen again")
	}
	return "set", err
}

func checkFewHeadersSet(ctx context.Context, p *probe) (string, error) {
	extra := [][2]string{{"x-rep", "a"}, {"x-rep", "b"}}
	k, err := p.post(ctx, p.chat("x"), extra, subset{})
	if err == nil {
		err = k.valid()
	}
	if err != nil {
		return "", err
	}
	set := k.headers.GetResponse().GetHeaderMutation().GetSetHeaders()
	for _, h := range set {
		if h.GetHeader().GetKey() == "x-rep" {
			return "", errors.New("a header that the client repeated is set again, which leaves one of its values")
		}
	}
	if len(set) > 12 {
		return "", fmt.Errorf("%d headers are set; incoming ones must not be set again", len(set))
	}
	return fmt.Sprintf("%d headers set", len(set)), nil
}

func checkManyHeaders(ctx context.Context, p *probe) (string, error) {
	var extra [][2]string
	for i := range 93 { // with the six of every request 99, so that one may be added
		extra = append(extra, [2]string{fmt.Sprintf("x-h-%d", i), "v"})
	}
	k, err := p.post(ctx, p.chat("x"), extra, subset{})
	if err == nil {
		err = k.valid()
	}
	if err != nil {
		return "", err
	}
	m := k.headers.GetResponse().GetHeaderMutation()
	if n := len(m.GetSetHeaders()) + len(m.GetRemoveHeaders()); n > 100 {
		return "", fmt.Errorf("%d header operations on a request with 99 headers: a proxy refuses more than 100", n)
	}
	return "99 request headers", nil
}

func checkOneValueForm(ctx context.Context, p *probe) (string, error) {
	k, err := p.post(ctx, p.chat("x"), nil, subset{})
	if err == nil {
		err = k.valid()
	}
	if err != nil {
		return "", err
	}
	for _, h := range k.headers.GetResponse().GetHeaderMutation().GetSetHeaders() {
		if h.GetHeader().GetValue() != "" && len(h.GetHeader().GetRawValue()) > 0 {
			return "", fmt.Errorf("header %s carries value and raw_value; a proxy refuses both", h.GetHeader().GetKey())
		}
	}
	return "each header has one of value and raw_value", nil
}

func checkBodyByteExact(ctx context.Context, p *probe) (string, error) {
	b := p.oddBody()
	k, err := p.good(ctx, b, bodyFrame(b, true))
	if err == nil && !bytes.Equal(k.body, b) {
		err = fmt.Errorf("%d bytes were sent, %d came back, and they differ from byte %d on: the body was written anew", len(b), len(k.body), differ(b, k.body))
	}
	return "big integers, escapes, spaces and key order unchanged", err
}

func checkBodyEndSeparate(ctx context.Context, p *probe) (string, error) {
	b := p.chat("end comes alone")
	_, err := p.good(ctx, b, bodyFrame(b, false), bodyFrame(nil, true))
	return "an empty last message ends the body", err
}

func checkBodyOneLargeMessage(ctx context.Context, p *probe) (string, error) {
	b := p.chat(strings.Repeat("x", 103_000))
	_, err := p.good(ctx, b, bodyFrame(b, true))
	return "a message above 64 KiB", err
}

func checkBodyPartsBelow64KiB(ctx context.Context, p *probe) (string, error) {
	b := p.chat(strings.Repeat("y", 200_000))
	k, err := p.good(ctx, b, bodyFrame(b, true))
	if err != nil {
		return "", err
	}
	if k.largest > 65536 {
		return "", fmt.Errorf("a part of %d bytes; some proxies refuse more than 64 KiB", k.largest)
	}
	return fmt.Sprintf("largest part %d bytes", k.largest), nil
}

func checkRequestTrailers(ctx context.Context, p *probe) (string, error) {
	b := p.chat("trailers follow")
	c, err := p.open(ctx)
	if err != nil {
		return "", err
	}
	defer c.close()
	trailers := &extprocv3.ProcessingRequest{Request: &extprocv3.ProcessingRequest_RequestTrailers{
		RequestTrailers: &extprocv3.HttpTrailers{Trailers: &corev3.HeaderMap{}}}}
	if err := c.send(headersFrame("POST", "/v1/chat/completions", nil, false, subset{}), bodyFrame(b, false), trailers); err != nil {
		return "", err
	}
	k, err := c.first()
	if err == nil {
		err = k.valid()
	}
	for err == nil && len(k.body) < len(b) && k.immediate == nil {
		err = c.rest(k, len(b))
	}
	if err != nil {
		return "", fmt.Errorf("trailers end the request, no body message with its end comes: %w", err)
	}
	if !bytes.Equal(k.body, b) && !sameJSON(k.body, b) {
		return "", errors.New("the body came back changed")
	}
	for {
		r, err := c.recv("answer to the request trailers")
		if err != nil {
			return "", err
		}
		if r.GetRequestTrailers() != nil {
			return "the trailers end the request and are answered", nil
		}
		if r.GetRequestBody() == nil {
			return "", fmt.Errorf("%T came where the trailers' answer was due", r.GetResponse())
		}
	}
}

func checkBodyNotJsonPath(ctx context.Context, p *probe) (string, error) {
	k, err := p.request(ctx, headersFrame("POST", "/v1/chat/completions", nil, false, subset{}), bodyFrame([]byte("\x00\x01 not json"), true))
	if err != nil {
		return "", err
	}
	if k.immediate == nil {
		return "", errors.New("a body that is no JSON was picked for")
	}
	if c := k.immediate.GetStatus().GetCode(); c != 400 {
		return "", fmt.Errorf("answered %d, want 400", c)
	}
	return "400", nil
}
