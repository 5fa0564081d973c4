// SPDX-License-Identifier: Apache-2.0

package eppcheck

import (
	"bytes"
	"context"
	"errors"
	"fmt"

	corev3 "github.com/envoyproxy/go-control-plane/envoy/config/core/v3"
	extprocv3 "github.com/envoyproxy/go-control-plane/envoy/service/ext_proc/v3"
)

// routed opens an exchange and plays it up to the point where the proxy has sent
// the request on.
func (p *probe) routed(ctx context.Context) (*call, error) {
	c, err := p.open(ctx)
	if err != nil {
		return nil, err
	}
	k, err := c.play(headersFrame("POST", "/v1/chat/completions", nil, false, subset{}), bodyFrame(p.chat("answer me"), true))
	if err == nil {
		err = k.valid()
	}
	if err != nil {
		c.close()
		return nil, err
	}
	return c, nil
}

func (c *call) responseHeadersAnswered(code string) error {
	if err := c.send(responseHeaders(code)); err != nil {
		return err
	}
	r, err := c.recv("answer to the response headers")
	if err != nil {
		return err
	}
	if r.GetResponseHeaders() == nil {
		return fmt.Errorf("%T came where the answer to the response headers was due", r.GetResponse())
	}
	return nil
}

// echo sends one response chunk and reads it back. Part by part it must be equal.
func (c *call) echo(chunk []byte, eos bool) error {
	if err := c.send(responseBody(chunk, eos)); err != nil {
		return err
	}
	var got []byte
	for {
		r, err := c.recv("response chunk")
		if err != nil {
			return err
		}
		b := r.GetResponseBody()
		if b == nil {
			return fmt.Errorf("%T came where a response chunk was due", r.GetResponse())
		}
		s := b.GetResponse().GetBodyMutation().GetStreamedResponse()
		if s == nil {
			return errors.New("a response chunk came back in a plain body mutation")
		}
		got = append(got, s.GetBody()...)
		if s.GetEndOfStream() != (eos && len(got) >= len(chunk)) {
			return fmt.Errorf("end_of_stream is %v after %d of %d bytes", s.GetEndOfStream(), len(got), len(chunk))
		}
		if len(got) >= len(chunk) {
			break
		}
	}
	if !bytes.Equal(got, chunk) {
		return fmt.Errorf("a response chunk came back changed: %.60q", got)
	}
	return nil
}

func responseChecks() []check {
	return []check{
		answering("response-headers", "200", func(*call) (string, error) { return "answered", nil }),
		answering("response-stream", "200", checkResponseStream),
		answering("response-usage-split", "200", checkResponseUsageSplit),
		answering("response-trailers", "200", checkResponseTrailers),
		answering("response-3MB", "200", checkResponse3MB),
		answering("response-503-passes", "503", func(c *call) (string, error) {
			return "an engine's 503 passes with its body", c.echo([]byte(`{"error":{"message":"busy"}}`), true)
		}),
	}
}

// answering is a check that plays a request up to the answer with the given status,
// whose headers the picker has answered, and goes on from there.
func answering(name, status string, then func(*call) (string, error)) check {
	return check{name, func(ctx context.Context, p *probe) (string, error) {
		c, err := p.routed(ctx)
		if err != nil {
			return "", err
		}
		defer c.close()
		if err := c.responseHeadersAnswered(status); err != nil {
			return "", err
		}
		return then(c)
	}}
}

func checkResponseStream(c *call) (string, error) {
	for i := range 8 {
		chunk := fmt.Appendf(nil, "data: {\"choices\":[{\"index\":0,\"delta\":{\"content\":\"t%d\"}}]}\n\n", i)
		if err := c.echo(chunk, false); err != nil {
			return "", fmt.Errorf("chunk %d, before the next was sent: %w", i, err)
		}
	}
	if err := c.echo([]byte("data: [DONE]\n\n"), false); err != nil {
		return "", err
	}
	return "9 chunks, each back before the next", c.echo(nil, true)
}

func checkResponseUsageSplit(c *call) (string, error) {
	for _, part := range []string{"data: {\"choices\":[],\"us", "age\":{\"prompt_tokens\":98,\"completion_tokens\":2}}\n", "\ndata: [DONE]\n\n"} {
		if err := c.echo([]byte(part), false); err != nil {
			return "", err
		}
	}
	return "an event split over three chunks passes unchanged", c.echo(nil, true)
}

func checkResponseTrailers(c *call) (string, error) {
	if err := c.echo([]byte("hello"), false); err != nil {
		return "", err
	}
	if err := c.send(&extprocv3.ProcessingRequest{Request: &extprocv3.ProcessingRequest_ResponseTrailers{
		ResponseTrailers: &extprocv3.HttpTrailers{Trailers: &corev3.HeaderMap{}}}}); err != nil {
		return "", err
	}
	r, err := c.recv("answer to the response trailers")
	if err != nil {
		return "", err
	}
	if r.GetResponseTrailers() == nil {
		return "", fmt.Errorf("%T came where the answer to the response trailers was due", r.GetResponse())
	}
	return "answered", nil
}

func checkResponse3MB(c *call) (string, error) {
	chunk := bytes.Repeat([]byte("0123456789abcdef"), 4096)
	go func() {
		for range 47 {
			_ = c.stream.Send(responseBody(chunk, false))
		}
		_ = c.stream.Send(responseBody(chunk, true))
	}()
	n := 0
	for {
		r, err := c.recv("response chunk")
		if err != nil {
			return "", fmt.Errorf("after %d bytes: %w", n, err)
		}
		s := r.GetResponseBody().GetResponse().GetBodyMutation().GetStreamedResponse()
		n += len(s.GetBody())
		if s.GetEndOfStream() {
			break
		}
	}
	if n != 48*len(chunk) {
		return "", fmt.Errorf("%d of %d bytes came back", n, 48*len(chunk))
	}
	return "3 MiB back", nil
}
