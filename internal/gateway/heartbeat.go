// SPDX-License-Identifier: Apache-2.0

package gateway

import (
	"bytes"
	"context"
	"encoding/json"
	"net/http"
	"sync"
	"time"

	"github.com/penstock-project/penstock/internal/flow"
	"github.com/penstock-project/penstock/internal/wire"
)

// beat keeps a client that asked for an event stream alive while its request waits
// for a pool without a ready replica: comments, which every reader of event streams
// skips. From the first on the status line is gone: what goes wrong later is told as
// the last event of the stream.
type beat struct {
	mu    sync.Mutex
	c     *call
	every time.Duration
	timer *time.Timer
	over  bool
}

// beatComment is what a waiting stream gets.
var beatComment = []byte(": waiting for a replica\n\n")

// waitFor asks a pool that has no ready replica for a place.
func (c *call) waitFor(ctx context.Context) (*flow.Grant, error) {
	b := &beat{c: c, every: c.target.pool.Heartbeat}
	b.mu.Lock() // write may come at once
	b.timer = time.AfterFunc(b.every, b.write)
	b.mu.Unlock()
	g, err := c.h.door.Acquire(ctx, c.target.pool.Flow, &c.req)
	b.timer.Stop()
	b.mu.Lock()
	b.over = true
	b.mu.Unlock()
	if c.early {
		// The server keeps this connection: what was written is in its buffers.
		c.back, c.out.Polled, c.out.Informational = nil, false, nil
		_ = http.NewResponseController(c.w).SetWriteDeadline(time.Time{})
	}
	return g, err
}

// beats reports whether the request gets comments while it waits.
func (c *call) beats() bool {
	p := c.target.pool
	return c.scan.Stream && c.route.generates && p.Heartbeat > 0 && p.Flow.Cold() && c.r.ProtoAtLeast(1, 1)
}

// write sends one comment, and before the first the header.
func (b *beat) write() {
	b.mu.Lock()
	defer b.mu.Unlock()
	c := b.c
	if b.over || c.ctx.Err() != nil {
		return
	}
	out := http.NewResponseController(c.w)
	_ = out.SetWriteDeadline(time.Now().Add(refuseTime))
	if !c.early {
		h := c.w.Header()
		h["Content-Type"] = []string{"text/event-stream; charset=utf-8"}
		h["Cache-Control"] = []string{"no-cache"}
		c.tellLimits()
		c.echoID()
		c.early, c.began, c.status = true, true, http.StatusOK
		c.w.WriteHeader(http.StatusOK)
	}
	if _, err := c.w.Write(beatComment); err != nil || out.Flush() != nil {
		return // the server notices that the client is gone
	}
	b.timer.Reset(b.every)
}

// refuseLate tells an error in a stream whose header is gone.
func (c *call) refuseLate(e *wire.Error) {
	_ = http.NewResponseController(c.w).SetWriteDeadline(time.Now().Add(refuseTime))
	if _, err := c.w.Write(e.AppendEvent(nil, c.route.family, c.id, "")); err != nil {
		c.left()
	}
}

// keptLate passes an engine's error on in a stream whose header is gone: as it came,
// where it is JSON.
func (c *call) keptLate(k *held) {
	c.status, c.outcome.Status, c.source = k.status, k.status, "engine"
	c.outcome.Kind = statusKind(k.status)
	var b bytes.Buffer
	if c.route.family == wire.FamilyResponses || json.Compact(&b, k.body) != nil || b.Len() == 0 || b.Bytes()[0] != '{' {
		c.refuseLate(&wire.Error{Status: k.status, Code: wire.CodeBadAnswer, Message: http.StatusText(k.status) + " from the replica"})
		return
	}
	event := "data: " + b.String() + "\n\n"
	if c.route.family == wire.FamilyAnthropic {
		event = "event: error\n" + event
	} else {
		event += "data: [DONE]\n\n"
	}
	_ = http.NewResponseController(c.w).SetWriteDeadline(time.Now().Add(refuseTime))
	if _, err := c.w.Write([]byte(event)); err != nil {
		c.left()
	}
}
