// SPDX-License-Identifier: Apache-2.0

package extproc

import (
	"slices"
	"strconv"
	"strings"
	"time"

	"google.golang.org/grpc/mem"

	"github.com/penstock-project/penstock/internal/admit"
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
	if f.served != "" && ss.grant != nil {
		ss.moved(f.served)
	}
	if ss.grant != nil && ss.status < 400 && !ss.events {
		ss.firstToken()
	}
	if ss.responseMode == modeNone && !f.endOfStream {
		// The proxy ends the stream once this is answered and never says when the
		// response was complete: the ledger keeps the request for as long as one
		// like it takes.
		ss.answered = true
		ss.firstToken()
		ss.expire()
	}
	if len(ss.terms.head) > 0 && ss.terms.lease != nil {
		ss.out.headers(respResponseHeaders, &change{set: ss.terms.head})
		return ss.send()
	}
	return ss.empty(respResponseHeaders)
}

// moved follows a request that the proxy has taken down the list of endpoints: all
// before the one that served it did not.
func (ss *session) moved(served string) {
	i := slices.Index(ss.list, served)
	if i <= 0 {
		return // the pick itself, or somewhere that was never named
	}
	ss.srv.Stats.Fallbacks.Add(1)
	for _, hp := range ss.list[1 : i+1] {
		ss.grant.Moved(hp, fleet.OutcomeConnectError)
	}
}

func (ss *session) firstToken() {
	if ss.first == 0 && ss.grant != nil {
		ss.first = ss.srv.o.Clock()
		ss.grant.FirstToken()
	}
}

func (ss *session) responseBody(f *frame) error {
	body := ss.read(f.takeBody())
	if ss.terms.stopped {
		body.Free()
		return ss.cut()
	}
	if f.endOfStream {
		ss.answered = true
		ss.scan.Close()
	}
	if ss.responseMode != modeFullDuplexStreamed {
		body.Free()
		return ss.empty(respResponseBody)
	}
	return ss.sendBody(respResponseBody, body, f.endOfStream)
}

// read lets the scanner follow the answer, across the boundaries of chunks, and
// returns what goes to the client.
func (ss *session) read(body mem.BufferSlice) mem.BufferSlice {
	var renamed mem.BufferSlice
	for i, b := range body {
		in := b.ReadOnlyData()
		ss.terms.bytes += len(in)
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
	if ss.grant != nil && ss.scan.Frames > ss.counted {
		ss.firstToken()
		ss.grant.Tokens(ss.scan.Frames - ss.counted)
		ss.terms.stopped = ss.terms.lease.Count(ss.scan.Frames-ss.counted) && ss.terms.lease.Hard()
		ss.counted = ss.scan.Frames
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
	ss.srv.Stats.Unseen.Add(1)
	o := fleet.Outcome{Kind: fleet.OutcomeOK, Status: ss.status, FirstToken: ss.first,
		PromptTokens: fleet.UnknownTokens, CachedTokens: fleet.UnknownTokens, OutputTokens: fleet.UnknownTokens}
	lease := ss.terms.lease
	ss.terms.lease = nil // settled here
	if ss.status >= 400 {
		o.Kind = kindOf(ss.status)
		o.End = ss.srv.o.Clock()
		lease.Settle(admit.Usage{Requests: 1}, false)
		g.Done(o)
		return
	}
	clock := ss.srv.o.Clock
	time.AfterFunc(g.ExpectedDecode(), func() {
		o.End = clock()
		if lease != nil {
			lease.Settle(admit.Usage{Requests: 1, Prompt: lease.Prompt(), Output: int64(g.ExpectedOutput())}, false)
		}
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
	ss.release()
	ss.in.reset()
	ss.srv.o.Door.Watches.Drop(ss.turn.watch)
	g := ss.grant
	if g == nil {
		ss.terms.lease.Settle(admit.Usage{}, false)
		if !ss.decided {
			ss.srv.Stats.ClientGone[0].Add(1)
		}
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
	case ss.terms.stopped, ss.turn.out && ss.status != 0 && ss.status < 400:
		// The replica did what it was asked for.
	case ss.refused != 0:
		o.Kind, o.Status = fleet.OutcomeRefused, ss.refused
		if ss.turn.out && ss.status == 0 {
			o.Kind = fleet.OutcomeClientGone // the replica works on it and nobody waits
		}
		ss.settle(&o)
		g.Done(o)
		return
	case ss.status >= 400:
		o.Kind = kindOf(ss.status)
	case !ss.answered && ss.status == 0 && ss.responseMode == modeNone && !ss.gone:
		// The proxy shows nothing of the response, not even its headers: the pick is
		// all there is to know.
		ss.expire()
		return
	case !ss.answered:
		o.Kind, o.Status = fleet.OutcomeClientGone, wire.StatusClientClosed
	case a.ErrorCode != 0:
		o.Kind = kindOf(a.ErrorCode)
	case ss.events && !a.Complete():
		o.Kind = fleet.OutcomeTruncated
	}
	if o.Kind == fleet.OutcomeClientGone {
		ss.srv.Stats.ClientGone[1].Add(1)
	} else {
		ss.srv.Stats.Completed.Add(1)
	}
	ss.settle(&o)
	g.Done(o)
}
