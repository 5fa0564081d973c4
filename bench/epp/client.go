// SPDX-License-Identifier: Apache-2.0

package main

import (
	"context"
	"fmt"
	"slices"
	"sync"
	"time"

	corev3 "github.com/envoyproxy/go-control-plane/envoy/config/core/v3"
	filterv3 "github.com/envoyproxy/go-control-plane/envoy/extensions/filters/http/ext_proc/v3"
	extprocv3 "github.com/envoyproxy/go-control-plane/envoy/service/ext_proc/v3"
	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials/insecure"

	"github.com/penstock-project/penstock/bench/proctree"
)

// client plays the proxy.
type client struct {
	api extprocv3.ExternalProcessorClient
}

func dial(ctx context.Context, addr string) (*client, error) {
	conn, err := grpc.NewClient("passthrough:///"+addr, grpc.WithTransportCredentials(insecure.NewCredentials()),
		grpc.WithDefaultCallOptions(grpc.MaxCallRecvMsgSize(128<<20)))
	if err != nil {
		return nil, err
	}
	c := &client{extprocv3.NewExternalProcessorClient(conn)}
	limit := time.Now().Add(15 * time.Second)
	for {
		_, err := c.request(ctx, body(1), 0)
		if err == nil {
			return c, nil
		}
		if time.Now().After(limit) {
			return nil, err
		}
		time.Sleep(100 * time.Millisecond)
	}
}

var nextBody = func() func() int {
	var mu sync.Mutex
	n := 0
	return func() int {
		mu.Lock()
		defer mu.Unlock()
		n++
		return n
	}
}()

// body is a chat request of 2 KiB: 1 KiB of a shared system prompt and a text of
// its own.
func body(i int) []byte {
	return []byte(fmt.Sprintf(`{"model":"bench","messages":[{"role":"system","content":%q},{"role":"user","content":%q}],"max_tokens":64}`,
		longText(1024), fmt.Sprint(i, " ", longText(850))))
}

func longBody(i int) []byte {
	return []byte(fmt.Sprintf(`{"model":"bench","messages":[{"role":"system","content":%q},{"role":"user","content":%q}]}`,
		fmt.Sprint(i%8, " ", longText(350_000)), fmt.Sprint(i, " ", longText(50_000))))
}

func headersFrame() *extprocv3.ProcessingRequest {
	return &extprocv3.ProcessingRequest{
		Request: &extprocv3.ProcessingRequest_RequestHeaders{RequestHeaders: &extprocv3.HttpHeaders{
			Headers: &corev3.HeaderMap{Headers: []*corev3.HeaderValue{
				{Key: ":authority", RawValue: []byte("bench")}, {Key: ":path", RawValue: []byte("/v1/chat/completions")},
				{Key: ":method", RawValue: []byte("POST")}, {Key: ":scheme", RawValue: []byte("http")},
				{Key: "content-type", RawValue: []byte("application/json")}, {Key: "user-agent", RawValue: []byte("bench/1")},
				{Key: "x-request-id", RawValue: []byte("0e6a4b1e-1111-4222-8333-444455556666")},
				{Key: "x-forwarded-proto", RawValue: []byte("http")},
			}}}},
		ProtocolConfig: &extprocv3.ProtocolConfiguration{
			RequestBodyMode:  filterv3.ProcessingMode_FULL_DUPLEX_STREAMED,
			ResponseBodyMode: filterv3.ProcessingMode_FULL_DUPLEX_STREAMED},
	}
}

// request plays one request and, with chunks > 0, an answer of so many chunks.
func (c *client) request(ctx context.Context, b []byte, chunks int) (time.Duration, error) {
	ctx, cancel := context.WithTimeout(ctx, 20*time.Second)
	defer cancel()
	start := time.Now()
	s, err := c.api.Process(ctx)
	if err != nil {
		return 0, err
	}
	if err := s.Send(headersFrame()); err != nil {
		return 0, err
	}
	for i := 0; i < len(b); i += 65536 {
		part := b[i:min(i+65536, len(b))]
		if err := s.Send(&extprocv3.ProcessingRequest{Request: &extprocv3.ProcessingRequest_RequestBody{
			RequestBody: &extprocv3.HttpBody{Body: part}}}); err != nil {
			return 0, err
		}
	}
	if err := s.Send(&extprocv3.ProcessingRequest{Request: &extprocv3.ProcessingRequest_RequestBody{
		RequestBody: &extprocv3.HttpBody{EndOfStream: true}}}); err != nil {
		return 0, err
	}
	n := 0
	for done := false; !done; {
		r, err := s.Recv()
		if err != nil {
			return 0, err
		}
		if im := r.GetImmediateResponse(); im != nil {
			return 0, fmt.Errorf("refused with %d: %s", im.GetStatus().GetCode(), im.GetBody())
		}
		if p := r.GetRequestBody(); p != nil {
			sr := p.GetResponse().GetBodyMutation().GetStreamedResponse()
			n += len(sr.GetBody())
			done = sr.GetEndOfStream()
		}
	}
	took := time.Since(start)
	if n != len(b) {
		return 0, fmt.Errorf("%d of %d bytes came back", n, len(b))
	}
	if chunks == 0 {
		return took, whole(s)
	}
	return took, answer(s, chunks)
}

var wholeAnswer = []byte(`{"id":"chatcmpl-bench","object":"chat.completion","created":1,"model":"bench","choices":[{"index":0,"message":{"role":"assistant","content":"a word"},"finish_reason":"stop"}],"usage":{"prompt_tokens":470,"completion_tokens":2,"total_tokens":472}}`)

// whole plays an answer that is no stream: head and one body with its usage, as engines
// give it.
func whole(s extprocv3.ExternalProcessor_ProcessClient) error {
	for _, r := range []*extprocv3.ProcessingRequest{
		{Request: &extprocv3.ProcessingRequest_ResponseHeaders{
			ResponseHeaders: &extprocv3.HttpHeaders{Headers: &corev3.HeaderMap{Headers: []*corev3.HeaderValue{
				{Key: ":status", RawValue: []byte("200")}, {Key: "content-type", RawValue: []byte("application/json")}}}}}},
		{Request: &extprocv3.ProcessingRequest_ResponseBody{ResponseBody: &extprocv3.HttpBody{Body: wholeAnswer, EndOfStream: true}}},
	} {
		if err := s.Send(r); err != nil {
			return err
		}
		if _, err := s.Recv(); err != nil {
			return err
		}
	}
	return nil
}

var chunk = []byte(`data: {"id":"chatcmpl-bench","object":"chat.completion.chunk","created":1,"model":"bench","choices":[{"index":0,"delta":{"content":" word"},"logprobs":null,"finish_reason":null}]}` + "\n\n")

// answer plays the response: headers, then chunks one by one.
func answer(s extprocv3.ExternalProcessor_ProcessClient, chunks int) error {
	if err := s.Send(&extprocv3.ProcessingRequest{Request: &extprocv3.ProcessingRequest_ResponseHeaders{
		ResponseHeaders: &extprocv3.HttpHeaders{Headers: &corev3.HeaderMap{Headers: []*corev3.HeaderValue{
			{Key: ":status", RawValue: []byte("200")}, {Key: "content-type", RawValue: []byte("text/event-stream")}}}}}}); err != nil {
		return err
	}
	if _, err := s.Recv(); err != nil {
		return err
	}
	for i := range chunks + 1 {
		b := &extprocv3.HttpBody{Body: chunk, EndOfStream: i == chunks}
		if i == chunks {
			b.Body = []byte("data: [DONE]\n\n")
		}
		if err := s.Send(&extprocv3.ProcessingRequest{Request: &extprocv3.ProcessingRequest_ResponseBody{ResponseBody: b}}); err != nil {
			return err
		}
		if _, err := s.Recv(); err != nil {
			return err
		}
	}
	return nil
}

// work is one cell: its unit is what the CPU time is divided by.
type work struct {
	name        string
	concurrency int
	body        func(int) []byte
	chunks      int // per request; 0: the unit is the request
}

var works = []work{
	{"chat-2k", 8, body, 0},
	{"prompt-400k", 4, longBody, 0},
	{"sse-chunk", 8, body, 400},
}

// measured is a cell: CPU and wall time of the process in us a unit, latency in ms.
type measured struct{ cpu, wall, p50 float64 }

func (w work) run(ctx context.Context, c *client, pid int, dur time.Duration) (measured, error) {
	var mu sync.Mutex
	var lat []float64
	var fail error
	start := time.Now()
	stop := start.Add(dur)
	before := proctree.CPUSeconds(pid)
	var wg sync.WaitGroup
	for range w.concurrency {
		wg.Add(1)
		go func() {
			defer wg.Done()
			for time.Now().Before(stop) {
				d, err := c.request(ctx, w.body(nextBody()), w.chunks)
				mu.Lock()
				if err != nil && fail == nil {
					fail = err
				}
				lat = append(lat, d.Seconds()*1e3)
				mu.Unlock()
				if err != nil {
					return
				}
			}
		}()
	}
	wg.Wait()
	if fail != nil {
		return measured{}, fail
	}
	units := float64(len(lat))
	if w.chunks > 0 {
		units *= float64(w.chunks + 1)
	}
	wall := time.Since(start).Seconds() / units * 1e6
	return measured{(proctree.CPUSeconds(pid) - before) / units * 1e6, wall, median(lat)}, nil
}

func median(v []float64) float64 {
	s := slices.Clone(v)
	slices.Sort(s)
	return s[len(s)/2]
}
