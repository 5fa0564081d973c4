// SPDX-License-Identifier: Apache-2.0

package extproc

import (
	"context"
	"errors"
	"io"
	"net/http"
	"strconv"
	"strings"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/mem"
	"google.golang.org/grpc/status"

	"github.com/penstock-project/penstock/internal/fleet"
	"github.com/penstock-project/penstock/internal/flow"
	"github.com/penstock-project/penstock/internal/wire"
)

// session is one HTTP request that passes through the proxy: one gRPC stream.
type session struct {
	srv    *Server
	stream grpc.ServerStream
	ctx    context.Context

	requestMode, responseMode int

	path, method string
	id           string
	surface      fleet.Surface
	subset       subsetHint
	body         mem.BufferSlice
	gotBody      bool // a body message came; even an empty one is owed an answer
	size         int
	alias        string // name that the client used, where it is not the engine's

	decided  bool // the pick was answered
	refused  bool // an immediate response ended the request
	grant    *flow.Grant
	scan     wire.AnswerScanner
	events   bool
	status   int
	first    fleet.Time
	counted  int  // output tokens told to the flow
	answered bool // the response came to its end
}

var errEnd = errors.New("the request is over")

// process serves one stream until the proxy ends it.
func (s *Server) process(stream grpc.ServerStream) error {
	s.Stats.Streams.Add(1)
	s.Stats.Open.Add(1)
	defer s.Stats.Open.Add(-1)
	ss := &session{srv: s, stream: stream, ctx: stream.Context(),
		requestMode: modeFullDuplexStreamed, responseMode: modeFullDuplexStreamed}
	defer ss.finish()
	var f frame
	defer f.reset()
	for {
		if err := stream.RecvMsg(&f); err != nil {
			return ss.ended(err)
		}
		if err := ss.frame(&f); err != nil {
			if errors.Is(err, errEnd) {
				return nil
			}
			return err
		}
	}
}

// ended reads the end of the stream. A proxy resets a stream whose request is
// done (Canceled) and half-closes one whose client left (EOF); neither is an error.
func (ss *session) ended(err error) error {
	if errors.Is(err, io.EOF) || status.Code(err) == codes.Canceled {
		return nil
	}
	return err
}

func (ss *session) frame(f *frame) error {
	if f.hasProtocol {
		ss.requestMode, ss.responseMode = f.requestMode, f.responseMode
	}
	switch f.kind {
	case frameRequestHeaders:
		return ss.requestHeaders(f)
	case frameRequestBody:
		return ss.requestBody(f)
	case frameRequestTrailers:
		return ss.requestTrailers()
	case frameResponseHeaders:
		return ss.responseHeaders(f)
	case frameResponseBody:
		return ss.responseBody(f)
	case frameResponseTrailers:
		ss.answered = true
		return ss.send(emptyReply(respResponseTrailers))
	}
	return nil
}

func (ss *session) send(rs ...*reply) error {
	for _, r := range rs {
		if err := ss.stream.SendMsg(r); err != nil {
			return err
		}
	}
	return nil
}

func (ss *session) requestHeaders(f *frame) error {
	for _, h := range f.headers {
		switch h.name {
		case ":path":
			ss.path = h.value
		case ":method":
			ss.method = h.value
		case "x-request-id":
			ss.id = h.value
		}
	}
	ss.subset = subsetHint{present: f.subset.present, addrs: append([]string(nil), f.subset.addrs...)}
	ss.surface = surfaceOf(ss.path)
	if !validID(ss.id) {
		ss.id = "ps-" + ss.srv.o.RouterID + "-" + strconv.FormatUint(ss.srv.seq.Add(1), 36)
	}
	switch {
	case f.endOfStream || ss.requestMode == modeNone || ss.requestMode == modeStreamed:
		// Nothing of the body will be seen before the answer is due.
		return ss.decide(false)
	case ss.requestMode == modeBuffered || ss.requestMode == modeBufferedPartial:
		// The proxy holds the body back until its headers are answered; the pick
		// follows with the body.
		return ss.send(emptyReply(respRequestHeaders))
	}
	return nil
}

func (ss *session) requestBody(f *frame) error {
	if ss.decided {
		// A proxy may deliver the last message twice; what was picked stays picked.
		if ss.requestMode != modeFullDuplexStreamed {
			return ss.send(emptyReply(respRequestBody))
		}
		return nil
	}
	ss.gotBody = true
	part := f.takeBody()
	ss.size += part.Len()
	ss.body = append(ss.body, part...)
	if ss.size > ss.srv.o.MaxBody {
		return ss.refuse(&wire.Error{Status: http.StatusRequestEntityTooLarge, Code: wire.CodeTooLarge,
			Message: "the request body is larger than the limit of " + strconv.Itoa(ss.srv.o.MaxBody) + " bytes"})
	}
	if !f.endOfStream {
		return nil
	}
	return ss.decide(false)
}

func (ss *session) requestTrailers() error {
	if !ss.decided && ss.requestMode == modeFullDuplexStreamed {
		if err := ss.decide(true); err != nil {
			return err
		}
	}
	return ss.send(emptyReply(respRequestTrailers))
}

// refuse ends the request with an answer of our own. It is never a gRPC error: a
// proxy would make an empty 500 of that, whatever its failure mode.
func (ss *session) refuse(e *wire.Error) error {
	ss.refused = true
	ss.srv.Stats.Refused.Add(1)
	set := []header{
		{"content-type", "application/json"},
		{strings.ToLower(wire.HeaderRequestID), ss.id},
		{strings.ToLower(wire.HeaderErrorSource), "gateway"},
		{"x-penstock-dropped-reason", e.Code},
	}
	if e.RetryAfter > 0 {
		set = append(set, header{"retry-after", strconv.Itoa(int((e.RetryAfter + time.Second - 1) / time.Second))})
	}
	body := e.AppendBody(nil, wire.FamilyOf(ss.surface), ss.id)
	if err := ss.send(immediate(e.Status, set, body, e.Code)); err != nil {
		return err
	}
	return errEnd
}

// decide picks and answers the request. trailers says that request trailers
// follow, so that no part of the body carries the end of the stream.
func (ss *session) decide(trailers bool) error {
	ss.decided = true
	req, pool, body, e := ss.build()
	if e != nil {
		return ss.refuse(e)
	}
	ctx, cancel := context.WithTimeout(ss.ctx, ss.srv.o.PickTimeout)
	g, err := pool.Acquire(ctx, req)
	cancel()
	if err != nil {
		if ss.ctx.Err() != nil {
			ss.srv.Stats.ClientGone.Add(1)
			return errEnd
		}
		return ss.refuse(refusal(err))
	}
	ss.grant = g
	ss.srv.Stats.Picked.Add(1)
	dest := ss.destination()
	set := []header{{destinationHeader, dest}}
	clear := true
	switch {
	case ss.requestMode == modeBuffered || ss.requestMode == modeBufferedPartial:
		return ss.send(bufferedReply(set, body, dest))
	case ss.requestMode != modeFullDuplexStreamed || !ss.gotBody:
		return ss.send(headersReply(respRequestHeaders, set, nil, clear, dest))
	}
	if err := ss.send(headersReply(respRequestHeaders, set, nil, clear, dest)); err != nil {
		return err
	}
	out := ss.body
	ss.body = nil
	if body != nil { // the model's name was replaced
		out.Free()
		out = mem.BufferSlice{mem.SliceBuffer(body)}
	}
	return ss.send(streamedBody(respRequestBody, out, !trailers)...)
}

// destination is the ordered list of endpoints, the pick first.
func (ss *session) destination() string {
	_, url := ss.grant.Endpoint()
	list := hostPort(url)
	for _, u := range ss.grant.Alternatives() {
		list += "," + hostPort(u)
	}
	return list
}

func hostPort(url string) string {
	if _, rest, ok := strings.Cut(url, "://"); ok {
		url = rest
	}
	hp, _, _ := strings.Cut(url, "/")
	return hp
}

func refusal(err error) *wire.Error {
	var none *flow.NoReplicaError
	switch {
	case errors.As(err, &none):
		return &wire.Error{Status: http.StatusServiceUnavailable, Code: wire.CodeNoReplica,
			Message: none.Reason, RetryAfter: max(none.RetryAfter, time.Second)}
	case errors.Is(err, context.DeadlineExceeded):
		return &wire.Error{Status: http.StatusServiceUnavailable, Code: wire.CodeDeadline,
			Message: "no replica could take the request in time", RetryAfter: time.Second}
	}
	return &wire.Error{Status: http.StatusServiceUnavailable, Code: wire.CodeNoReplica,
		Message: "no replica can take the request", RetryAfter: time.Second}
}
