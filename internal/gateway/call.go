// SPDX-License-Identifier: Apache-2.0

package gateway

import (
	"context"
	"errors"
	"net/http"
	"sync/atomic"
	"time"

	"github.com/penstock-project/penstock/internal/entry"
	"github.com/penstock-project/penstock/internal/fleet"
	"github.com/penstock-project/penstock/internal/flow"
	"github.com/penstock-project/penstock/internal/prefix"
	"github.com/penstock-project/penstock/internal/promptlog"
	"github.com/penstock-project/penstock/internal/relay"
	"github.com/penstock-project/penstock/internal/rollout"
	"github.com/penstock-project/penstock/internal/wire"
)

// call is one forwarded request from its head to its account. It is used again for
// the next one, with its memory.
type call struct {
	h     *Handler
	w     http.ResponseWriter
	r     *http.Request
	route *routePattern
	ctx   context.Context

	id       string
	clientID string // that the client gave; ""
	who      entry.Identity
	target   *target
	series   *series

	buf    *buffer
	body   []byte
	scan   wire.Scan
	hasher prefix.Hasher
	req    fleet.Request
	out    relay.Request
	grant  *flow.Grant
	done   func()      // says that nothing is left of a request that has a rest
	rest   func()      // what is to do after the server is done with the request; nil: nothing
	back   *relay.Back // where the client's connection goes after a stream; nil: it stays with its server

	rollout *liveRollout // nil: the model is in none
	arm     rollout.Arm
	fallen  fallen

	limit       string // that kept the request out, by what it counts; ""
	translation translation
	trace       trace
	entry       *promptlog.Entry // what is recorded of prompt and answer; nil: nothing

	streamOf *holder // whose streams it counts among; nil: nobody's
	quota    quota
	watch    *entry.Watch // nil: the request may outlive its key
	salt     string       // cache salt that replicas get; "": the client's

	// learn is set once the answer is good: what the pool's engines lack, as the first
	// refusal said; nil: nothing.
	learn *atomic.Bool

	moved  bool // it was sent elsewhere, though it may have been executed
	began  bool // the status line is on its way to the client
	early  bool // it went before a replica was found, with comments
	phase  phase
	status int // that the client got; 0 none yet
	fault  string
	source string // of an error: gateway, engine; ""

	answer  wire.AnswerScanner
	follow  bool // answer is fed
	events  bool // the answer is an event stream
	told    bool // the pool knows of the first token
	frames  int  // of those, how many the pool knows
	outcome fleet.Outcome

	start    time.Time // of the request
	read     time.Time // its body was complete
	first    time.Time // first token of a stream
	last     time.Time // latest token
	over     time.Time // the answer was complete
	upstream time.Duration
	dup      bool // an attempt may have been executed twice
}

// phase is how far a request came.
type phase uint8

const (
	phaseUpload phase = iota
	phaseQueued
	phaseFirstByte // sent, waiting
	phaseAnswer
)

var phaseNames = [...]string{"upload", "queued", "first_byte", "answer"}

func newCall(h *Handler) *call { return &call{h: h} }

// reset lets go of everything but memory.
func (c *call) reset() {
	if c.buf != nil {
		c.h.bodies.release(c.buf)
	}
	scan, hasher, answer, stripper := c.scan, c.hasher, c.answer, c.quota.stripper
	*c = call{h: c.h, hasher: hasher}
	c.quota.stripper = stripper
	c.scan, c.answer = scan, answer
	c.scan.Forget()
	c.answer.Reset(false, "")
}

// serve does the whole of a forwarded request.
func (c *call) serve(w http.ResponseWriter, r *http.Request, rt *routePattern) {
	c.w, c.r, c.route, c.ctx = w, r, rt, r.Context()
	c.start = time.Now()
	c.id = c.h.ids.next()
	c.outcome = fleet.Outcome{Kind: fleet.OutcomeRefused, PromptTokens: -1, CachedTokens: -1, OutputTokens: -1}
	c.beginTrace()
	if err := c.prepare(); err != nil {
		c.giveUp(err)
		return
	}
	c.phase = phaseQueued
	g, err := c.acquire(c.ctx)
	if err != nil {
		c.giveUp(err)
		return
	}
	c.grant = g
	c.phase = phaseFirstByte
	c.shadowed()
	c.run()
}

// prepare reads and understands the request.
func (c *call) prepare() error {
	r := c.r
	if r.Method != http.MethodPost {
		return methodFault(c.w, "POST")
	}
	stripInternal(r.Header)
	c.closeAmbiguous()
	who, fault := c.h.door.Auth.Authenticate(r)
	if fault != nil {
		return fault
	}
	c.who = who
	if !who.MayCall(c.route.surface) {
		return &wire.Error{Status: http.StatusForbidden, Code: wire.CodeForbidden, Message: "this key may not use " + c.route.path}
	}
	if fault := c.enterDoor(); fault != nil {
		return fault
	}
	c.ctx, c.watch = c.h.door.Watches.Add(c.ctx, who.Key, nil)
	if err := c.precheck(); err != nil {
		return err
	}
	if enc := r.Header.Get("Content-Encoding"); enc != "" && enc != "identity" {
		return &wire.Error{Status: http.StatusUnsupportedMediaType, Code: wire.CodeEncoding,
			Message: "send the body without Content-Encoding"}
	}
	c.clientID = identify(r.Header, c.id)
	buf, n, err := c.h.bodies.read(c.w, r, c.start)
	if err != nil {
		return err
	}
	c.buf, c.body = buf, buf.b[:n]
	c.read = time.Now()
	t, err := c.understand()
	if err != nil {
		return err
	}
	if !who.MayUse(&t.Place) || !c.mayEnter(t.pool) {
		return entry.UnknownModel(t.Name)
	}
	c.target = t
	c.series = c.h.metrics.of(t, c.route)
	c.req.ID = c.id
	if c.rollout != nil {
		c.req.Arm = c.rollout.o.Spec.Name + "/" + c.arm.String()
	}
	level := c.h.door.Logging(&who, r.Header[entry.HeaderLogging])
	c.h.door.Terms(&c.req, &who, level)
	if c.h.o.Prompts != nil {
		c.entry = c.h.o.Prompts.Begin(&promptlog.Who{Tenant: who.Tenant, Key: who.Key, Model: t.Name, Surface: c.route.surface.String()},
			promptlog.ParseLevel(level), c.id, c.body)
	}
	if err := c.reserve(); err != nil {
		return err
	}
	c.address()
	if c.translation.bad != nil {
		return wire.FromBadRequest(c.translation.bad)
	}
	return nil
}

// understand scans the body and makes of it the request that a pool decides on.
func (c *call) understand() (*target, error) {
	h := c.h
	if fault := h.door.Scan(&c.scan, c.route.surface, c.r.Header.Get("Content-Type"), c.body); fault != nil {
		return nil, fault
	}
	var t *target
	if c.rollout = h.rollouts.find(c.scan.Model); c.rollout != nil {
		if t, c.arm = c.rollout.assign(c); t == nil {
			return nil, entry.UnknownModel(string(c.scan.Model))
		}
	} else {
		var err error
		if t, err = h.place(&c.scan); err != nil {
			return nil, err
		}
	}
	c.salt = h.door.Salt(&c.who, &c.scan)
	h.door.Fill(&c.req, &c.scan, c.body, &c.hasher, &t.Place, c.salt, t.pool.Flow.BytesPerToken(t.Model))
	h.door.Hint(&c.req, c.r.Header.Get)
	return t, nil
}

// place returns where the model that a body names leads.
func (h *Handler) place(s *wire.Scan) (*target, error) {
	t := h.catalogue.Load().find(s.Model)
	if t == nil && len(s.Model) == 0 {
		return nil, entry.MissingModel()
	}
	if t == nil {
		return nil, entry.UnknownModel(string(s.Model))
	}
	return t, nil
}

// address makes the request that replicas get.
func (c *call) address() {
	h := c.r.Header
	if c.who.Ours {
		dropCredentials(h)
	}
	if a := c.target.pool.Authorization; a != "" {
		h["Authorization"] = []string{a}
	}
	o := &c.out
	o.Method = c.r.Method
	o.Header = h
	// The path is that of the route, not the client's spelling of it.
	o.Target = c.route.path
	if q := c.r.URL.RawQuery; q != "" || c.r.URL.ForceQuery {
		o.Target += "?" + q
	}
	c.splice()
	o.Informational = c.informational
	o.Waiter = c
	if c.scan.Stream && !c.quota.lease.Hard() && c.watch == nil && c.h.o.Relay.Polls() && c.r.ProtoMajor == 1 && c.r.ProtoMinor == 1 && c.r.TLS == nil {
		c.back, _ = c.ctx.Value(backKey{}).(*relay.Back)
	}
	o.Polled = c.back != nil
}

// splice makes the body that replicas get: the client's own bytes, save where a
// policy wants it otherwise.
func (c *call) splice() {
	o := &c.out
	o.Body = [3][]byte{c.body}
	if edits := c.edits(c.target); len(edits) > 0 {
		o.Body[0], o.Body[1] = wire.Splice(c.body, edits)
	}
	if c.translation.on, c.translation.bad = false, nil; c.messages() && c.target.pool.translates() {
		c.translate()
	}
}

// edits are what policies want changed in the client's body on its way to a target.
func (c *call) edits(to *target) []wire.Edit {
	edits := make([]wire.Edit, 0, 4)
	if c.quota.strip {
		edits = append(edits, c.scan.AskUsage())
	}
	return entry.Edits(edits, &c.who, &c.scan, &to.Place, c.salt)
}

// informational passes a 1xx answer on.
func (c *call) informational(status int, hdr http.Header) {
	h := c.w.Header()
	for k, v := range hdr {
		h[k] = v
	}
	c.w.WriteHeader(status)
	for k := range hdr {
		delete(h, k)
	}
}

// giveUp ends a request that no replica answers, for the reason err.
func (c *call) giveUp(err error) {
	if c.ctx.Err() != nil || errors.Is(err, errClientGone) {
		c.left()
	}
	c.refuse(entry.Fault(err))
}

// left ends a request whose client is gone. Its connection is closed without an
// answer: a client that only closed its sending side must not take silence for an
// empty success.
func (c *call) left() {
	if c.watch.Closed() && !c.began {
		c.turnOut()
	}
	c.outcome.Kind = fleet.OutcomeClientGone
	c.status = wire.StatusClientClosed
	panic(http.ErrAbortHandler)
}

// refuse answers with an error of ours.
func (c *call) refuse(e *wire.Error) {
	c.status, c.fault, c.source = e.Status, e.Code, "gateway"
	c.outcome.Status = e.Status
	c.began = true
	if c.early {
		c.refuseLate(e)
		return
	}
	challenge(c.w, e)
	http.NewResponseController(c.w).SetWriteDeadline(time.Now().Add(refuseTime))
	c.tellLimits()
	c.echoID()
	e.Write(c.w, c.route.family, c.id)
}

// challenge tells a client that has no valid key which kind is wanted.
func challenge(w http.ResponseWriter, e *wire.Error) {
	if e.Status == http.StatusUnauthorized {
		w.Header().Set("Www-Authenticate", "Bearer")
	}
}

// refuseTime bounds the writing of an error.
const refuseTime = 10 * time.Second

// echoID sets the id headers of an answer.
func (c *call) echoID() {
	h := c.w.Header()
	h[headerRequestID] = []string{c.id}
	if c.clientID != "" {
		h[headerClientRequestID] = []string{c.clientID}
	}
}
