// SPDX-License-Identifier: Apache-2.0

package extproc

import (
	"strconv"
	"strings"
	"time"

	"google.golang.org/grpc/mem"

	"github.com/penstock-project/penstock/internal/fleet"
	"github.com/penstock-project/penstock/internal/wire"
)

func (ss *session) responseHeaders(f *frame) error {
	for _, h := range f.headers {
		switch h.name {
		case ":status":
			ss.status, _ = strconv.Atoi(h.value)
		case "content-type":
			ss.events = strings.HasPrefix(h.value, "text/event-stream")
		}
	}
	ss.scan.Reset(ss.events, ss.alias)
	ss.answered = f.endOfStream
	if ss.grant != nil && ss.status < 400 && !ss.events {
		ss.firstToken()
	}
	if ss.responseMode == modeNone {
		// The proxy ends the stream once this is answered and never says when the
		// response was complete: the ledger keeps the request for as long as one
		// like it takes.
		ss.answered = true
		ss.firstToken()
		ss.expire()
	}
	return ss.send(emptyReply(respResponseHeaders))
}

func (ss *session) firstToken() {
	if ss.first == 0 && ss.grant != nil {
		ss.first = ss.srv.o.Clock()
		ss.grant.FirstToken()
	}
}

func (ss *session) responseBody(f *frame) error {
	body := f.takeBody()
	body = ss.read(body)
	if f.endOfStream {
		ss.answered = true
		ss.scan.Close()
	}
	if ss.responseMode != modeFullDuplexStreamed {
		body.Free()
		return ss.send(emptyReply(respResponseBody))
	}
	return ss.send(streamedBody(respResponseBody, body, f.endOfStream)...)
}

// read lets the scanner follow the answer, across the boundaries of chunks, and
// returns what goes to the client.
func (ss *session) read(body mem.BufferSlice) mem.BufferSlice {
	var renamed mem.BufferSlice
	for i, b := range body {
		in := b.ReadOnlyData()
		out := ss.scan.Feed(in)
		if ss.alias == "" {
			continue
		}
		if len(out) == len(in) && (len(in) == 0 || &out[0] == &in[0]) {
			if renamed != nil {
				renamed = append(renamed, b)
			}
			continue
		}
		if renamed == nil {
			renamed = append(renamed, body[:i]...)
		}
		renamed = append(renamed, mem.SliceBuffer(append([]byte(nil), out...)))
		b.Free()
	}
	if ss.grant != nil && ss.scan.Frames > 0 {
		ss.firstToken()
		if n := ss.scan.Frames - ss.counted; n > 0 {
			ss.counted = ss.scan.Frames
			ss.grant.Tokens(n)
		}
	}
	if renamed != nil {
		return renamed
	}
	return body
}

// expire gives the grant back after the time that an answer like this one is
// expected to take.
func (ss *session) expire() {
	g := ss.grant
	if g == nil {
		return
	}
	ss.grant = nil
	o := fleet.Outcome{Kind: fleet.OutcomeOK, Status: ss.status, FirstToken: ss.first,
		PromptTokens: fleet.UnknownTokens, CachedTokens: fleet.UnknownTokens, OutputTokens: fleet.UnknownTokens}
	if ss.status >= 400 {
		o.Kind = kindOf(ss.status)
		o.End = ss.srv.o.Clock()
		g.Done(o)
		return
	}
	clock := ss.srv.o.Clock
	time.AfterFunc(g.ExpectedDecode(), func() {
		o.End = clock()
		g.Done(o)
	})
}

func kindOf(status int) fleet.OutcomeKind {
	if status >= 500 {
		return fleet.OutcomeEngineError
	}
	return fleet.OutcomeClientError
}

// finish is the last word on the request, whatever ended the stream.
func (ss *session) finish() {
	ss.body.Free()
	ss.body = nil
	g := ss.grant
	if g == nil {
		return
	}
	a := &ss.scan.Answer
	o := fleet.Outcome{
		Kind: fleet.OutcomeOK, Status: ss.status, FirstToken: ss.first, End: ss.srv.o.Clock(),
		PromptTokens: fleet.UnknownTokens, CachedTokens: fleet.UnknownTokens, OutputTokens: fleet.UnknownTokens,
	}
	if ss.status != 0 {
		o.PromptTokens, o.CachedTokens, o.OutputTokens = a.PromptTokens, a.CachedTokens, a.Tokens()
	}
	switch {
	case ss.status >= 400:
		o.Kind = kindOf(ss.status)
	case !ss.answered:
		o.Kind = fleet.OutcomeClientGone
		o.Status = wire.StatusClientClosed
	case a.ErrorCode != 0:
		o.Kind = kindOf(a.ErrorCode)
	case ss.events && !a.Complete():
		o.Kind = fleet.OutcomeTruncated
	}
	if o.Kind == fleet.OutcomeClientGone {
		ss.srv.Stats.ClientGone.Add(1)
	} else {
		ss.srv.Stats.Completed.Add(1)
	}
	g.Done(o)
}
