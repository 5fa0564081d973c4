// SPDX-License-Identifier: Apache-2.0

package main

import (
	"bytes"
	"fmt"
	"net"
	"strconv"
	"time"
)

// Answers of the fake engine. A streamed chunk carries the moment at which it was
// written as its text, which every router passes on: nanoseconds since the epoch, 19
// digits until the year 2286.
const (
	chatAnswer = `{"id":"chatcmpl-bench","object":"chat.completion","created":1,"model":"bench","choices":[{"index":0,"message":{"role":"assistant","content":"An answer of a few words, as long as short answers are."},"finish_reason":"stop"}],"usage":{"prompt_tokens":500,"completion_tokens":12,"total_tokens":512,"prompt_tokens_details":{"cached_tokens":256}}}`
	chunkHead  = `data: {"id":"chatcmpl-bench","object":"chat.completion.chunk","created":1,"model":"bench","choices":[{"index":0,"delta":{"content":" @`
	stampLen   = 19
	chunkTail  = `"},"logprobs":null,"finish_reason":null}]}` + "\n\n"
	streamEnd  = `data: {"id":"chatcmpl-bench","object":"chat.completion.chunk","created":1,"model":"bench","choices":[{"index":0,"delta":{},"finish_reason":"length"}]}` + "\n\n" +
		`data: {"id":"chatcmpl-bench","object":"chat.completion.chunk","created":1,"model":"bench","choices":[],"usage":{"prompt_tokens":20,"completion_tokens":50,"total_tokens":70}}` + "\n\n" +
		"data: [DONE]\n\n"
	modelsAnswer = `{"object":"list","data":[{"id":"bench","object":"model","created":1,"owned_by":"vllm","root":"bench","parent":null,"max_model_len":262144}]}`
	metricsText  = `# HELP vllm:num_requests_running Number of requests in model execution batches.
# TYPE vllm:num_requests_running gauge
vllm:num_requests_running{engine="0",model_name="bench"} 0.0
# HELP vllm:num_requests_waiting Number of requests waiting to be processed.
# TYPE vllm:num_requests_waiting gauge
vllm:num_requests_waiting{engine="0",model_name="bench"} 0.0
# HELP vllm:kv_cache_usage_perc KV-cache usage. 1 means 100 percent usage.
# TYPE vllm:kv_cache_usage_perc gauge
vllm:kv_cache_usage_perc{engine="0",model_name="bench"} 0.0
# HELP vllm:cache_config_info Information of the LLMEngine CacheConfig
# TYPE vllm:cache_config_info gauge
vllm:cache_config_info{block_size="16",engine="0",num_gpu_blocks="65536"} 1.0
`
)

// serveEngines answers on all addresses like a model server that needs no time.
func serveEngines(listen []string, gap time.Duration) error {
	errs := make(chan error)
	for _, a := range listen {
		ln, err := net.Listen("tcp", a)
		if err != nil {
			return err
		}
		go func() {
			for {
				c, err := ln.Accept()
				if err != nil {
					errs <- err
					return
				}
				go serveEngine(newPeer(c), gap)
			}
		}()
	}
	return <-errs
}

// serveEngine answers requests. How many chunks a stream has is its max_tokens, and the
// milliseconds between them its seed: fields that every router passes on, one of them
// under its newer name.
func serveEngine(p *peer, gap time.Duration) {
	defer p.Close()
	for {
		m, err := p.head()
		if err != nil {
			return
		}
		line, _, _ := bytes.Cut(m.raw, []byte("\r\n"))
		path := string(line)
		p.skip(len(m.raw))
		var first []byte
		if err := p.body(m, func(b []byte) {
			if len(first) < 1024 {
				first = append(first, b[:min(len(b), 1024)]...)
			}
		}); err != nil {
			return
		}
		if bytes.Contains(first, []byte(`"stream":true`)) {
			err = streamAnswer(p, number(first, `"max_tokens":`, number(first, `"max_completion_tokens":`, 16)), time.Duration(number(first, `"seed":`, int(gap.Milliseconds())))*time.Millisecond)
		} else {
			err = plainAnswer(p, path)
		}
		if err != nil || m.close {
			return
		}
	}
}

// number reads the number behind a key near the beginning of a body; otherwise is
// what it is where there is none.
func number(b []byte, key string, otherwise int) int {
	_, rest, ok := bytes.Cut(b, []byte(key))
	if !ok {
		return otherwise
	}
	n := 0
	for _, c := range rest {
		if c < '0' || c > '9' {
			break
		}
		n = n*10 + int(c-'0')
	}
	return n
}

func plainAnswer(p *peer, line string) error {
	body, typ := chatAnswer, "application/json"
	switch {
	case bytes.HasPrefix([]byte(line), []byte("GET /v1/models")):
		body = modelsAnswer
	case bytes.HasPrefix([]byte(line), []byte("GET /metrics")):
		body, typ = metricsText, "text/plain; version=0.0.4"
	case bytes.HasPrefix([]byte(line), []byte("GET /version")):
		body = `{"version":"0.19.0"}`
	case bytes.HasPrefix([]byte(line), []byte("GET ")):
		body = ""
	}
	_, err := fmt.Fprintf(p, "HTTP/1.1 200 OK\r\ndate: Thu, 01 Jan 2026 00:00:00 GMT\r\nserver: bench\r\ncontent-length: %d\r\ncontent-type: %s\r\n\r\n%s",
		len(body), typ, body)
	return err
}

// streamAnswer writes n chunks at fixed times, however long a write takes.
func streamAnswer(p *peer, n int, gap time.Duration) error {
	const size = len(chunkHead) + stampLen + len(chunkTail)
	if _, err := p.Write([]byte("HTTP/1.1 200 OK\r\nserver: bench\r\ncontent-type: text/event-stream; charset=utf-8\r\ntransfer-encoding: chunked\r\n\r\n")); err != nil {
		return err
	}
	b := make([]byte, 0, 512)
	start := time.Now()
	for i := range n {
		time.Sleep(time.Until(start.Add(time.Duration(i+1) * gap)))
		b = append(b[:0], strconv.FormatInt(int64(size), 16)...)
		b = append(b, "\r\n"+chunkHead...)
		b = strconv.AppendInt(b, time.Now().UnixNano(), 10)
		b = append(b, chunkTail+"\r\n"...)
		if _, err := p.Write(b); err != nil {
			return err
		}
	}
	_, err := fmt.Fprintf(p, "%x\r\n%s\r\n0\r\n\r\n", len(streamEnd), streamEnd)
	return err
}
