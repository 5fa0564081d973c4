// SPDX-License-Identifier: Apache-2.0

package extproc

import (
	"context"
	"errors"
	"io"
	"math"
	"net/http"
	"runtime/debug"
	"slices"
	"strconv"
	"strings"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/mem"
	"google.golang.org/grpc/status"

	"github.com/penstock-project/penstock/internal/entry"
	"github.com/penstock-project/penstock/internal/fleet"
	"github.com/penstock-project/penstock/internal/flow"
	"github.com/penstock-project/penstock/internal/wire"
)

// session is one HTTP request that passes through the proxy: one gRPC stream. It
// belongs to one goroutine, save as turn says.
type session struct {
	srv    *Server
	stream grpc.ServerStream
	ctx    context.Context
	in     frame
	out    reply

	requestMode, responseMode int

	path    string
	id      string
	surface fleet.Surface
	hints   []header // that may name a session
	opaque  bool     // a body that is no JSON: a pick by headers
	pinned  bool     // the client names a data-parallel rank itself
	// objective is the one that the request names, which says how urgent it is.
	objective string
	subset    subsetHint
	body      mem.BufferSlice
	gotBody   bool // a body message came; even an empty one is owed an answer
	size      int  // of the body so far, in bytes
	length    int  // that the client announced; -1: none
	held      int  // bytes of body that count in Stats.Held
	tryAt     int  // size from which on an early pick is tried
	alias     string

	track   tracker // of a body that is too large to wait for
	tracked int     // parts of body that track has seen

	terms terms // on which the caller is in
	turn  turn

	decided  bool // the pick was tried
	named    bool // an endpoint was named to the proxy
	trailers bool // trailers end the request
	sent     bool // the end of the request was answered
	refused  int  // status of our own answer; 0: none
	gone     bool // the proxy closed its side: the client left
	grant    *flow.Grant
	list     []string // endpoints that were named, the pick first
	room     [4]string
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
	ss := &session{srv: s, stream: stream, ctx: stream.Context(), length: -1,
		requestMode: modeFullDuplexStreamed, responseMode: modeFullDuplexStreamed}
	ss.in.guarded, ss.in.also = s.o.Door.Guarded(), s.o.Door.SessionHeaders
	defer ss.finish()
	for {
		err := stream.RecvMsg(&ss.in)
		if !ss.takeTurn() {
			return nil
		}
		if err != nil {
			return ss.ended(err)
		}
		if err = ss.safely(); err == nil {
			err = ss.giveTurn()
		}
		if errors.Is(err, errEnd) {
			return nil
		}
		if err != nil {
			return err
		}
	}
}

// safely handles the frame that came. A fault of ours while it is decided where a
// request goes becomes a pick without a decision: the request is none the worse.
func (ss *session) safely() (err error) {
	defer func() {
		if p := recover(); p != nil {
			ss.srv.Stats.Faults.Add(1)
			ss.srv.o.Log.Error("a fault in the endpoint picker", "request", ss.id, "panic", p, "stack", string(debug.Stack()))
			err = ss.afterFault()
		}
	}()
	return ss.frame(&ss.in)
}

// afterFault picks blindly where the pick is due, and ends the stream where more of
// the exchange is in doubt.
func (ss *session) afterFault() error {
	if ss.named || ss.refused != 0 || ss.requestMode != modeFullDuplexStreamed && ss.gotBody {
		return status.Error(codes.Internal, "a fault in the endpoint picker")
	}
	dest := ss.anyEndpoint()
	if dest == "" {
		return ss.refuse(entry.Fault(nil))
	}
	ss.decided = true
	ss.srv.Stats.Picked[Blind].Add(1)
	return ss.answer(dest, nil, ss.sent && !ss.trailers)
}

// anyEndpoint is a ready endpoint that the subset hint allows, one after another;
// "" where there is none.
func (ss *session) anyEndpoint() string {
	var ready []string
	for _, p := range ss.srv.o.Catalogue.Pools() {
		snap := p.Pool.Snapshot()
		if snap == nil || !ss.mayReach(&p) {
			continue
		}
		for i := range snap.Endpoints {
			hp := fleet.HostPort(snap.Endpoints[i].URL)
			if snap.Endpoints[i].Phase == fleet.PhaseReady && (!ss.subset.present || slices.Contains(ss.subset.addrs, hp)) {
				ready = append(ready, hp)
			}
		}
		if len(ready) > 0 {
			break // a request whose model is not known goes to the default pool
		}
	}
	if len(ready) == 0 {
		return ""
	}
	return ready[ss.srv.seq.Add(1)%uint64(len(ready))]
}

// ended reads the end of the stream. A proxy resets a stream whose request is
// done (Canceled) and half-closes one whose client left (EOF); neither is an error.
func (ss *session) ended(err error) error {
	if errors.Is(err, io.EOF) {
		ss.gone = true
		return nil
	}
	if status.Code(err) == codes.Canceled {
		return nil
	}
	return err
}

func (ss *session) frame(f *frame) error {
	if f.hasProtocol {
		ss.requestMode, ss.responseMode = f.requestMode, f.responseMode
		ss.srv.checkMode(f.requestMode)
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
		ss.scan.Close()
		return ss.empty(respResponseTrailers)
	}
	return nil
}

// checkMode says once what a way of asking costs.
func (s *Server) checkMode(mode int) {
	if mode < 0 || mode >= modeFullDuplexStreamed || s.told[mode].Swap(true) {
		return
	}
	switch mode {
	case modeNone, modeStreamed:
		s.o.Log.Warn("a proxy asks for picks before it shows the body: they know neither model nor prompt; " +
			"set request_body_mode: FULL_DUPLEX_STREAMED")
	default:
		s.o.Log.Warn("a proxy buffers request bodies: one above its buffer limit ends in 413; " +
			"set request_body_mode: FULL_DUPLEX_STREAMED")
	}
}

// send sends the reply that stands in ss.out.
func (ss *session) send() error { return ss.stream.SendMsg(&ss.out) }

// empty answers a frame with "go on".
func (ss *session) empty(field fieldNumber) error {
	ss.out.empty(field)
	return ss.send()
}

func (ss *session) requestHeaders(f *frame) error {
	json, coded := true, false
	for _, h := range f.headers {
		switch h.name {
		case ":path":
			ss.path = h.value
		case "x-request-id":
			ss.id = h.value
		case "content-length":
			if n, err := strconv.Atoi(h.value); err == nil && n >= 0 {
				ss.length = n
			}
		case "content-type":
			json = strings.Contains(h.value, "json")
		case "content-encoding":
			coded = h.value != "identity"
		case objectiveHeader:
			ss.objective = h.value
		case pinHeader:
			ss.pinned = true
		default:
			ss.terms.note(h)
		}
		if slices.Contains(ss.srv.o.Door.SessionHeaders, h.name) {
			ss.hints = append(ss.hints, h)
		}
	}
	ss.subset = subsetHint{present: f.subset.present}
	if len(f.subset.addrs) > 0 {
		ss.subset.addrs = append([]string(nil), f.subset.addrs...)
	}
	var known bool
	ss.surface, known = surfaceOf(ss.path)
	ss.opaque = coded || !json && !(known && ss.surface != fleet.SurfaceTranscriptions)
	if !validID(ss.id) {
		ss.id = "ps-" + ss.srv.o.RouterID + "-" + strconv.FormatUint(ss.srv.seq.Add(1), 36)
	}
	ss.tryAt = ss.srv.o.EarlyBody
	if fault := ss.admit(known, coded); fault != nil {
		return ss.refuse(fault)
	}
	switch {
	case ss.length > ss.srv.o.MaxBody:
		return ss.refuse(ss.tooLarge())
	case f.endOfStream || ss.requestMode == modeNone || ss.requestMode == modeStreamed:
		// Nothing of the body will be seen before the answer is due.
		ss.sent = true
		return ss.decide()
	case ss.requestMode == modeBuffered || ss.requestMode == modeBufferedPartial:
		// The proxy holds the body back until its headers are answered; the pick
		// follows with the body.
		return ss.empty(respRequestHeaders)
	}
	return nil
}

func (ss *session) tooLarge() *wire.Error {
	return &wire.Error{Status: http.StatusRequestEntityTooLarge, Code: wire.CodeTooLarge,
		Message: "the request body is larger than the limit of " + strconv.Itoa(ss.srv.o.MaxBody) + " bytes"}
}

func (ss *session) requestBody(f *frame) error {
	if ss.decided {
		return ss.passBody(f)
	}
	ss.gotBody = true
	part := f.takeBody()
	n := part.Len()
	ss.size += n
	ss.body = append(ss.body, part...)
	switch {
	case ss.size > ss.srv.o.MaxBody:
		return ss.refuse(ss.tooLarge())
	case !ss.hold(n):
		return ss.refuse(&wire.Error{Status: http.StatusServiceUnavailable, Code: wire.CodeOverloaded, RetryAfter: time.Second,
			Message: "too many large requests are under way; try again"})
	case f.endOfStream:
		ss.sent = true
		return ss.decide()
	case ss.size >= ss.tryAt && ss.requestMode == modeFullDuplexStreamed:
		return ss.early()
	}
	return nil
}

// passBody returns what comes of the body behind an early pick. A proxy may also
// deliver the last message twice; its end is answered once.
func (ss *session) passBody(f *frame) error {
	if ss.requestMode != modeFullDuplexStreamed {
		return ss.empty(respRequestBody)
	}
	if ss.sent {
		return nil
	}
	part := f.takeBody()
	if ss.size += part.Len(); ss.size > ss.srv.o.MaxBody {
		part.Free()
		return ss.refuse(ss.tooLarge())
	}
	if !ss.opaque {
		for _, b := range part {
			ss.track.feed(b.ReadOnlyData())
		}
		if ss.track.models > 1 {
			part.Free()
			// The pick and the catalogue went by the first one, an engine may go by
			// the last.
			return ss.refuse(&wire.Error{Status: http.StatusBadRequest, Code: wire.CodeInvalidValue, Param: "model", Message: "model is given twice"})
		}
	}
	ss.sent = f.endOfStream
	return ss.sendBody(respRequestBody, part, f.endOfStream)
}

// hold counts n more bytes of body as held; false where there are too many.
func (ss *session) hold(n int) bool {
	ss.held += n
	return ss.srv.Stats.Held.Add(int64(n)) <= ss.srv.o.MaxHeld
}

// release lets go of the body.
func (ss *session) release() {
	ss.body.Free()
	ss.body = nil
	ss.srv.Stats.Held.Add(-int64(ss.held))
	ss.held = 0
}

func (ss *session) requestTrailers() error {
	if ss.requestMode == modeFullDuplexStreamed && !ss.sent {
		ss.sent, ss.trailers = true, true
		if !ss.decided {
			if err := ss.decide(); err != nil {
				return err
			}
		}
	}
	return ss.empty(respRequestTrailers)
}

// refuse ends the request with an answer of our own. It is never a gRPC error: a
// proxy would make an empty 500 of that, whatever its failure mode.
func (ss *session) refuse(e *wire.Error) error {
	ss.decided, ss.refused = true, e.Status
	ss.srv.Stats.Refused[refusalIndex(e.Code)].Add(1)
	set := []header{
		{"content-type", "application/json"},
		{strings.ToLower(wire.HeaderRequestID), ss.id},
		{strings.ToLower(wire.HeaderErrorSource), "gateway"},
		{"x-penstock-dropped-reason", e.Code},
	}
	if reason := droppedReason(e.Code); reason != "" {
		set = append(set, header{"x-llm-d-request-dropped-reason", reason})
	}
	if e.Status == http.StatusUnauthorized {
		set = append(set, header{"www-authenticate", "Bearer"})
	}
	set = append(set, ss.terms.head...)
	if e.RetryAfter > 0 {
		set = append(set, header{"retry-after", strconv.Itoa(int((e.RetryAfter + time.Second - 1) / time.Second))})
	}
	body := e.AppendBody(nil, wire.FamilyOf(ss.surface), ss.id)
	ss.out.immediate(e.Status, set, body, e.Code)
	if err := ss.send(); err != nil {
		return err
	}
	return errEnd
}

// droppedReason is the name that llm-d gives to a refusal, "" where it has none.
func droppedReason(code string) string {
	switch code {
	case wire.CodeNoReplica:
		return "rejected-no-endpoints"
	case wire.CodeDeadline:
		return "rejected-ttl-expired"
	case wire.CodeOverloaded, wire.CodeRateLimited:
		return "rejected-saturated"
	}
	return ""
}

// decide picks for the whole request and answers it. Where request trailers follow no
// part of the body carries the end of the stream.
func (ss *session) decide() error {
	ask, e := ss.build()
	if e != nil {
		return ss.refuse(e)
	}
	return ss.pick(ask, !ss.trailers)
}

// early picks on the beginning of a large body once that names the model, so that
// the rest need not be held.
func (ss *session) early() error {
	if !ss.opaque {
		for _, b := range ss.body[ss.tracked:] {
			ss.track.feed(b.ReadOnlyData())
		}
		if ss.tracked = len(ss.body); !ss.track.named {
			return nil
		}
	}
	ask, ok := ss.buildEarly()
	if !ok {
		ss.tryAt = math.MaxInt
		return nil
	}
	ss.srv.Stats.Early.Add(1)
	return ss.pick(ask, false)
}

// pick asks the pool and answers with the endpoint and what is here of the body.
// end says that the body is complete with it.
func (ss *session) pick(ask *question, end bool) error {
	ss.decided = true
	start := ask.req.Arrived
	if fault := ss.reserve(ask); fault != nil {
		return ss.refuse(fault)
	}
	ask.req.Hold = ss.holdMost()
	ctx, cancel := context.WithTimeout(ss.ctx, ss.srv.o.PickTimeout)
	g, err := ss.srv.o.Door.Acquire(ctx, ask.to.Pool, &ask.req)
	cancel()
	if err != nil {
		if ss.turn.watch.Closed() {
			return ss.turnOut()
		}
		if ss.ctx.Err() != nil {
			ss.srv.Stats.ClientGone[0].Add(1)
			return errEnd
		}
		return ss.refuse(refusal(err, ask.to.Pool))
	}
	ss.grant, ss.alias = g, ask.alias
	ss.terms.since, ss.terms.stream = ss.srv.o.Clock(), ask.req.Stream
	if a := ask.to.Authorization; a != "" {
		ss.terms.change.set = append(ss.terms.change.set, header{"authorization", a})
	}
	now := ss.srv.o.Clock()
	ss.srv.metrics.pick.Observe(now.Seconds(start))
	id, _ := g.Endpoint()
	basis := HeadersOnly
	if ask.read {
		basis = ss.srv.basis(ask.to.Pool, id, now)
	}
	ss.srv.Stats.Picked[basis].Add(1)
	return ss.answer(ss.destination(), ask.body, end)
}

// holdMost bounds how long the router's queue may hold a request behind a proxy. No
// byte passes meanwhile that could keep the proxy's limits away. Where bodies are
// exchanged in both directions at once, none of its limits runs out before the idle
// time of a stream, which is minutes. In the other modes message_timeout does, 0.2 s
// where nothing else is said: nothing is held there.
func (ss *session) holdMost() time.Duration {
	if ss.requestMode != modeFullDuplexStreamed {
		return -1
	}
	return maxHold
}

// maxHold is far below the idle times of streams that are in use.
const maxHold = 10 * time.Second

// answer names the endpoints and returns what is here of the body; changed, where it
// is not nil, stands in its place. end says that the body is complete with it.
func (ss *session) answer(dest string, changed []byte, end bool) error {
	ss.named = true
	ss.pin()
	if ss.requestMode == modeBuffered || ss.requestMode == modeBufferedPartial {
		if !ss.gotBody { // the request ended with its headers
			ss.out.pick(respRequestHeaders, dest, &ss.terms.change)
			return ss.send()
		}
		ss.release()
		ss.out.buffered(changed, dest, &ss.terms.change)
		return ss.send()
	}
	ss.out.pick(respRequestHeaders, dest, &ss.terms.change)
	if err := ss.send(); err != nil {
		return err
	}
	if ss.requestMode != modeFullDuplexStreamed || !ss.gotBody {
		return nil
	}
	out := ss.body
	ss.body = nil
	ss.release()
	if changed != nil { // the model's name was replaced
		out.Free()
		out = mem.BufferSlice{mem.SliceBuffer(changed)}
	}
	return ss.sendBody(respRequestBody, out, end)
}

// pinHeader is flow.PinHeader as proxies write it.
const pinHeader = "x-data-parallel-rank"

// pin names the rank that the request is for. A client that names one itself would steer
// past the picker.
func (ss *session) pin() {
	c, pin := &ss.terms.change, ""
	if ss.grant != nil {
		pin = ss.grant.Pin()
	}
	switch {
	case pin != "":
		c.set = append(c.set, header{pinHeader, pin})
	case ss.pinned:
		c.remove = append(slices.Clip(c.remove), pinHeader)
	}
}

// sendBody returns a body in parts that every proxy takes. The last one ends the
// stream where end is set. The references of body go over.
func (ss *session) sendBody(field fieldNumber, body mem.BufferSlice, end bool) error {
	for {
		part, rest := cut(body, maxReplyBody)
		last := len(rest) == 0
		ss.out.part(field, part, end && last)
		if err := ss.send(); err != nil {
			rest.Free()
			return err
		}
		if last {
			return nil
		}
		body = rest
	}
}

// destination is the ordered list of endpoints, the pick first.
func (ss *session) destination() string {
	_, url := ss.grant.Endpoint()
	ss.list = append(ss.room[:0], fleet.HostPort(url))
	for _, u := range ss.grant.Alternatives() {
		ss.list = append(ss.list, fleet.HostPort(u))
	}
	return strings.Join(ss.list, ",")
}

// refusal makes the answer to a request that got no place in a pool. What is too busy
// to take it in time is 429 in the endpoint picker protocol; 503 means that there is
// no endpoint.
func refusal(err error, pool *flow.Flow) *wire.Error {
	var none *flow.NoReplicaError
	switch {
	case errors.Is(err, context.DeadlineExceeded):
		e := &wire.Error{Status: http.StatusServiceUnavailable, Code: wire.CodeDeadline,
			Message: "no replica could take the request in time", RetryAfter: time.Second}
		if snap := pool.Snapshot(); snap != nil && snap.Count(fleet.PhaseReady) > 0 {
			e.Status = http.StatusTooManyRequests
		}
		return e
	case errors.As(err, &none) && none.Late:
		e := entry.Fault(err)
		e.Status = http.StatusTooManyRequests
		return e
	}
	return entry.Fault(err)
}
