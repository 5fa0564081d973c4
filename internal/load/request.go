// SPDX-License-Identifier: Apache-2.0

package load

import (
	"context"
	"errors"
	"fmt"
	"net"
	"os"
	"strconv"
	"sync"
	"time"

	"github.com/penstock-project/penstock/internal/wire"
	"github.com/penstock-project/penstock/internal/workload"
)

// Result is how one request ended.
type Result struct {
	Item   workload.Item
	Start  time.Time
	Late   time.Duration // sent after it was due
	Status int           // HTTP status; 0 none
	// Error is the kind of error, "" for a good answer: connect, timeout, broken
	// (no answer), truncated (an answer without its end), http_NNN, in_stream_NNN,
	// empty, bad_answer.
	Error  string
	Detail string // for people; never prompt text
	Cut    bool   // the run ended first; no error of the endpoint

	TTFT         time.Duration // until the first content; 0 where there was none
	E2E          time.Duration
	PromptTokens int // as the endpoint counts, else as the workload does
	CachedTokens int // -1 where the endpoint does not tell
	OutputTokens int

	gaps []time.Duration // between events with content; valid until the exchange is used again
}

// exchange holds what one request needs and the next one can use again.
type exchange struct {
	req, json []byte
	errBody   []byte
	scan      wire.AnswerScanner
	gaps      []time.Duration
}

var exchanges = sync.Pool{New: func() any { return new(exchange) }}

// appendBody writes the JSON of a request.
func (o *Options) appendBody(b []byte, it workload.Item) []byte {
	t := it.Request()
	model := o.Model
	if it.Session.Adapter != "" {
		model = it.Session.Adapter
	}
	b = append(b, `{"model":`...)
	b = wire.AppendString(b, model)
	if o.Completions {
		b = append(b, `,"prompt":"`...)
		b = t.AppendPrompt(b)
		b = append(b, '"')
	} else {
		b = append(b, `,"messages":`...)
		b = t.AppendMessages(b)
	}
	b = append(b, `,"max_tokens":`...)
	b = strconv.AppendInt(b, int64(t.OutputTokens), 10)
	if !o.StopEarly {
		b = append(b, `,"ignore_eos":true`...)
	}
	if !o.NoStream {
		b = append(b, `,"stream":true,"stream_options":{"include_usage":true}`...)
	}
	return append(b, '}')
}

// appendRequest writes head and body.
func (o *Options) appendRequest(x *exchange, it workload.Item) []byte {
	x.json = o.appendBody(x.json[:0], it)
	b := append(x.req[:0], "POST "...)
	b = append(b, o.Target.path...)
	if o.Completions {
		b = append(b, "/v1/completions HTTP/1.1\r\nHost: "...)
	} else {
		b = append(b, "/v1/chat/completions HTTP/1.1\r\nHost: "...)
	}
	b = append(b, o.Target.host...)
	b = append(b, "\r\nUser-Agent: penstock-load\r\nContent-Type: application/json\r\nContent-Length: "...)
	b = strconv.AppendInt(b, int64(len(x.json)), 10)
	if o.Target.Key != "" {
		b = append(b, "\r\nAuthorization: Bearer "...)
		b = append(b, o.Target.Key...)
	}
	b = append(b, "\r\n\r\n"...)
	return append(b, x.json...)
}

// do sends one request and waits for its end.
func (r *Runner) do(ctx context.Context, x *exchange, res *Result) {
	x.req = r.opt.appendRequest(x, res.Item)
	x.gaps = x.gaps[:0]
	res.CachedTokens = -1
	res.Start = time.Now()
	c, err := r.client.get(ctx)
	if err != nil {
		r.fail(ctx, res, "connect", err)
		return
	}
	unwatch := context.AfterFunc(ctx, func() { c.Close() })
	defer unwatch()
	if r.opt.Timeout > 0 {
		c.SetDeadline(res.Start.Add(r.opt.Timeout))
	}
	reuse := r.answer(ctx, c, x, res)
	if reuse && unwatch() {
		r.client.put(c)
	} else {
		c.Close()
	}
	res.gaps = x.gaps
}

// answer writes the request and reads the answer to its end.
func (r *Runner) answer(ctx context.Context, c *conn, x *exchange, res *Result) (reuse bool) {
	if _, err := c.Write(x.req); err != nil {
		r.fail(ctx, res, "broken", err)
		return false
	}
	h, err := c.head()
	if err != nil {
		r.fail(ctx, res, "broken", err)
		return false
	}
	res.Status = h.status
	if h.status/100 != 2 {
		x.errBody = x.errBody[:0]
		reuse, err = c.body(h, func(p []byte, _ time.Time) {
			x.errBody = append(x.errBody, p[:min(len(p), 1024-min(len(x.errBody), 1024))]...)
		})
		res.E2E = time.Since(res.Start)
		res.Error, res.Detail = "http_"+strconv.Itoa(h.status), excerpt(x.errBody)
		return reuse && err == nil
	}
	x.scan.Reset(h.events, "")
	var last time.Time
	reuse, err = c.body(h, func(p []byte, at time.Time) {
		before := x.scan.Frames
		x.scan.Feed(p)
		for n := x.scan.Frames - before; n > 0; n-- {
			if last.IsZero() {
				res.TTFT = at.Sub(res.Start)
			} else {
				x.gaps = append(x.gaps, at.Sub(last))
			}
			last = at
		}
	})
	res.E2E = c.readAt.Sub(res.Start)
	x.scan.Close()
	if err == nil && h.events && x.scan.Frames > 0 && last.IsZero() {
		res.TTFT = res.E2E // the only event lacked its blank line
	}
	r.judge(ctx, res, h, &x.scan.Answer, err)
	return reuse && err == nil
}

// judge decides whether an answer with a good status was one.
func (r *Runner) judge(ctx context.Context, res *Result, h head, a *wire.Answer, err error) {
	res.PromptTokens = a.PromptTokens
	if res.PromptTokens < 0 {
		res.PromptTokens = res.Item.Request().PromptTokens
	}
	res.CachedTokens, res.OutputTokens = a.CachedTokens, a.Tokens()
	switch {
	case a.ErrorCode != 0:
		res.Error, res.Detail = "in_stream_"+strconv.Itoa(a.ErrorCode), "an error inside the answer"
	case err != nil:
		kind := "truncated"
		if a.Frames == 0 && a.Events == 0 {
			kind = "broken"
		}
		r.fail(ctx, res, kind, err)
	case h.events && !a.Complete():
		res.Error, res.Detail = "truncated", fmt.Sprintf("the stream ended after %d events without a finish reason", a.Events)
	case res.OutputTokens == 0:
		res.Error, res.Detail = "empty", "a success without content"
	}
	if !h.events {
		res.TTFT = 0 // the whole answer came at once: there is no first token to time
	}
}

// fail records an error of the transport, or that the run ended.
func (r *Runner) fail(ctx context.Context, res *Result, kind string, err error) {
	res.E2E = time.Since(res.Start)
	if ctx.Err() != nil {
		res.Cut = true
		return
	}
	var ne net.Error
	if errors.Is(err, os.ErrDeadlineExceeded) || errors.As(err, &ne) && ne.Timeout() {
		kind = "timeout"
	}
	res.Error, res.Detail = kind, excerpt([]byte(err.Error()))
}
