// SPDX-License-Identifier: Apache-2.0

package gateway

import (
	"context"
	"net/http"
	"strings"
	"time"

	"github.com/penstock-project/penstock/internal/fleet"
	"github.com/penstock-project/penstock/internal/relay"
	"github.com/penstock-project/penstock/internal/wire"
)

// pass relays an answer to the client and notes how it ended.
func (c *call) pass(a *relay.Answer, endpoint string, from time.Time) {
	if c.learn != nil && a.Status < 300 {
		c.learn.Store(true)
	}
	kind := a.Header("Content-Type")
	c.events = a.Status == http.StatusOK && hasMediaType(kind, "text/event-stream")
	if c.early && !c.events {
		if k := c.keep(a, endpoint); k != nil {
			c.passKept(k)
			return
		}
		c.outcome.Kind = fleet.OutcomeBroken
		c.refuse(&wire.Error{Status: http.StatusBadGateway, Code: wire.CodeBroken, Message: "the replica's answer broke off"})
		return
	}
	json := hasMediaType(kind, "application/json")
	plain := a.Header("Content-Encoding") == ""
	c.follow = plain && a.Status < 300 && (c.events || json)
	if c.translation.on && !c.events {
		c.passTranslated(a, endpoint, from)
		return
	}
	alias := ""
	if c.translation.on {
		c.translation.stream.Reset(c.target.Name, c.id)
	} else if c.follow && c.target.Rename {
		alias = c.target.Name
	}
	h := c.w.Header()
	a.CopyHeader(h)
	if c.follow {
		c.answer.Reset(c.events, alias)
		c.quota.strip = c.quota.strip && c.events
		if c.quota.strip {
			c.quota.stripper.Reset()
		}
		if alias != "" || c.quota.strip || c.translation.on {
			delete(h, "Content-Length") // it may become longer or shorter
		}
	} else {
		c.quota.strip = false
	}
	c.phase = phaseAnswer
	c.head(a.Status, endpoint)
	if c.back != nil {
		if rest, done := a.Take(c.w, c, c.back, c.r.Close); rest != nil {
			c.done = done
			c.rest = func() { end, _ := rest(); c.passed(end, from) }
			return
		}
	}
	end, _ := a.Relay(c.w, c)
	c.passed(end, from)
}

// detach lets go of all that the server holds for the request: it is over there,
// while the stream goes on.
func (c *call) detach() (rest, done func()) {
	rest, done = c.rest, c.done
	c.rest, c.done, c.w, c.r, c.ctx = nil, nil, nil, nil, context.Background()
	c.out = relay.Request{}
	if c.buf != nil {
		c.h.bodies.release(c.buf)
		c.buf, c.body = nil, nil
	}
	return rest, done
}

// passed notes how the relaying of an answer that began at from ended.
func (c *call) passed(end relay.Ending, from time.Time) {
	c.over = time.Now()
	c.upstream += c.over.Sub(from)
	c.judge(end)
	if (c.quota.stopped || c.watch.Closed() && c.events && c.follow) && c.r != nil && c.r.Context().Err() == nil {
		c.sayStopped()
		return
	}
	if end == relay.EndClientGone {
		c.left()
	}
	if end != relay.EndComplete && !(c.events && c.follow && c.route.generates) {
		panic(http.ErrAbortHandler) // a cut answer to which we add no word must look cut
	}
}

func hasMediaType(v, want string) bool {
	return len(v) >= len(want) && strings.EqualFold(v[:len(want)], want) &&
		(len(v) == len(want) || v[len(want)] == ';' || v[len(want)] == ' ')
}

// Payload follows the answer on its way; see relay.Sink.
func (c *call) Payload(p []byte) []byte {
	if !c.follow {
		c.quota.bytes += int64(len(p))
		c.entry.Answer(p)
		return p
	}
	if !c.events {
		c.quota.bytes += int64(len(p))
	}
	p = c.answer.Feed(p)
	if c.quota.strip {
		p = c.quota.stripper.Feed(p)
	}
	if c.translation.on {
		p = c.translation.stream.Feed(p)
	}
	c.entry.Answer(p)
	return p
}

// Written accounts for what has just gone to the client; see relay.Sink.
func (c *call) Written(now time.Time) {
	if !c.events || !c.follow {
		return // an answer as a whole shows no first token
	}
	n := c.answer.Frames - c.frames
	if n == 0 {
		return
	}
	c.frames = c.answer.Frames
	if !c.told {
		c.told, c.first = true, now
		c.grant.FirstToken()
	} else {
		// Several tokens that came together: each waited its share.
		c.series.interToken.Observe(now.Sub(c.last).Seconds() / float64(n))
	}
	c.last = now
	c.grant.Tokens(n)
	if c.quota.lease != nil {
		c.count(n)
	}
}

// End gives the last words of a stream that has not come to its own end; see
// relay.Sink. A stream that ends without a finish reason and without an error of
// the engine must not look complete, even if its connection ended in good order.
func (c *call) End(e relay.Ending) []byte {
	if !c.events || !c.follow || !c.route.generates {
		return nil
	}
	c.answer.Close()
	last := []byte{}
	if c.quota.strip {
		last = append(last, c.quota.stripper.Rest()...)
	}
	if c.translation.on {
		last = append(last, c.translation.stream.Rest()...)
	}
	if c.answer.Complete() {
		return last
	}
	fault := wire.Error{Status: http.StatusBadGateway, Code: wire.CodeTruncated,
		Message: "the replica's stream broke off before its end; what came so far is incomplete"}
	if e == relay.EndStalled {
		fault.Status, fault.Code = http.StatusGatewayTimeout, wire.CodeTimeout
		fault.Message = "the replica's stream stalled; what came so far is incomplete"
	}
	c.fault, c.source = fault.Code, "gateway"
	if !c.translation.on { // whose events are whole
		last = append(last, c.answer.Gap()...)
	}
	return fault.AppendEvent(last, c.route.family, c.id, c.answer.ResponseID())
}

// judge sets the outcome from what was seen of the answer.
func (c *call) judge(end relay.Ending) {
	o := &c.outcome
	o.Kind = statusKind(c.status)
	if c.follow {
		c.answer.Close()
		o.PromptTokens, o.CachedTokens, o.OutputTokens = c.answer.PromptTokens, c.answer.CachedTokens, c.answer.OutputTokens
		if o.OutputTokens < 0 && c.events {
			o.OutputTokens = c.answer.Frames
		}
		if code := c.answer.ErrorCode; code != 0 {
			o.Kind = statusKind(code)
			c.fault, c.source = "in_stream_error", "engine"
		}
	}
	switch {
	case end == relay.EndClientGone:
		o.Kind = fleet.OutcomeClientGone
	case end == relay.EndComplete && !(c.events && c.route.generates && c.follow && !c.answer.Complete()):
	case c.events && c.follow && c.answer.Complete():
		// It said all it had to say before the connection broke.
	case end == relay.EndStalled:
		o.Kind, c.fault, c.source = fleet.OutcomeTimeout, wire.CodeTimeout, "gateway"
	default:
		o.Kind, c.fault, c.source = fleet.OutcomeTruncated, wire.CodeTruncated, "gateway"
	}
}
