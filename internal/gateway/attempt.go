// SPDX-License-Identifier: Apache-2.0

package gateway

import (
	"bytes"
	"errors"
	"net/http"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/penstock-project/penstock/internal/fleet"
	"github.com/penstock-project/penstock/internal/flow"
	"github.com/penstock-project/penstock/internal/relay"
	"github.com/penstock-project/penstock/internal/wire"
)

// held is an engine's error that is kept back while the request is tried elsewhere.
type held struct {
	status int
	header http.Header
	body   []byte
	id     string // of the endpoint
}

// Limits of an error that is kept back.
const (
	heldBytes = 1 << 20
	heldTime  = 5 * time.Second
)

// run sends the request until there is an answer, or no place to send it to.
func (c *call) run() {
	var kept *held
	for {
		id, url := c.grant.Endpoint()
		from := time.Now()
		setPin(c.out.Header, c.grant.Pin())
		c.traceAttempt(id, url, from)
		a, err := c.h.o.Relay.Send(c.ctx, url, &c.out)
		if err == nil {
			c.noteStale(a.Stale)
			if c.mustRead(a.Status) && (c.moved || !c.mayMove(a.Status)) {
				if !c.otherwise(a, id, from) {
					return
				}
				continue
			}
			if c.moved || !c.mayMove(a.Status) {
				c.pass(a, id, from)
				return
			}
			answer := c.keep(a, id)
			if c.ctx.Err() != nil {
				c.left()
			}
			c.upstream += time.Since(from)
			if answer == nil {
				err = &relay.Failure{Kind: relay.FailBroken, Err: errors.New("an error answer broke off")}
			} else if !c.shutsDown(answer) {
				c.passKept(answer)
				return
			} else {
				kept, c.moved = answer, true
				kind := fleet.OutcomeEngineError
				if answer.status == http.StatusNotFound {
					kind = fleet.OutcomeClientError
				}
				if next := c.grant.Retry(c.ctx, kind); next != nil {
					c.none(next, kept, nil)
					return
				}
				c.h.metrics.retries.status.Inc()
				continue
			}
		} else {
			c.upstream += time.Since(from)
		}
		var f *relay.Failure
		errors.As(err, &f)
		c.noteStale(f.Stale)
		if !c.again(f, kept) {
			return
		}
	}
}

// setPin names the rank that a request is for in its header; "" none. The client's own
// header of that name is gone by then.
func setPin(h http.Header, pin string) {
	if pin != "" {
		h[flow.PinHeader] = []string{pin}
	} else {
		delete(h, flow.PinHeader) // of an attempt before
	}
}

// otherwise judges a 400 that may be our own doing: to a request that we made ask for
// usage, or to one that is too long for this pool and not for another. Where the
// request can be sent otherwise it reports true; any other answer is passed on.
func (c *call) otherwise(a *relay.Answer, id string, from time.Time) bool {
	answer := c.keep(a, id)
	if c.ctx.Err() != nil {
		c.left()
	}
	c.upstream += time.Since(from)
	switch {
	case answer == nil:
		c.outcome.Kind = fleet.OutcomeBroken
		c.refuse(&wire.Error{Status: http.StatusBadGateway, Code: wire.CodeBroken, Message: "the replica's error answer broke off"})
		return false
	case c.outgrew(answer), c.inOtherWords(answer):
		return true
	case c.translation.bad != nil:
		c.refuse(wire.FromBadRequest(c.translation.bad))
		return false
	case c.translation.on && c.route.surface == fleet.SurfaceCountTokens && lacksPath(answer):
		c.estimated()
		return false
	case !c.refusesUsage(answer):
		c.passKept(answer)
		return false
	}
	// A client's own text may stand in a refusal: only an answer that comes without the
	// option shows that it was the option.
	c.learn = &c.target.pool.noUsage
	c.quota.strip = false
	c.splice()
	return true
}

// mayMove reports whether an answer with this status may be one that another replica
// would not give: the engine cannot serve, or it has no such adapter, whatever it
// listed.
func (c *call) mayMove(status int) bool {
	switch status {
	case http.StatusServiceUnavailable, http.StatusInternalServerError:
		return true
	case http.StatusNotFound:
		return c.target.Adapter != "" && !c.mustRead(status)
	}
	return false
}

// lacksAdapter reports whether a 404 says that the replica does not have the adapter
// of the request, rather than that something else is missing.
func (c *call) lacksAdapter(k *held) bool {
	return bytes.Contains(k.body, []byte(c.target.Adapter)) &&
		(bytes.Contains(k.body, []byte("does not exist")) || bytes.Contains(k.body, []byte("not found")))
}

// shutdownMarks are what engines say in a 500 while they shut down: the request was
// not executed. vLLM's executor, and the plain words.
var shutdownMarks = [][]byte{
	[]byte("cannot schedule new futures after shutdown"),
	[]byte("shutting down"),
	[]byte("is draining"),
}

// shutsDown reports whether an answer that mayMove says that this engine does not take
// the request: 503, 500 while it drains, 404 where it lacks the adapter.
func (c *call) shutsDown(k *held) bool {
	switch k.status {
	case http.StatusServiceUnavailable:
		return true
	case http.StatusNotFound:
		return c.lacksAdapter(k)
	}
	for _, m := range shutdownMarks {
		if bytes.Contains(k.body, m) {
			return true
		}
	}
	snap := c.target.pool.Flow.Snapshot()
	if snap == nil {
		return false
	}
	for i := range snap.Endpoints {
		if e := &snap.Endpoints[i]; e.ID == k.id {
			return e.Phase == fleet.PhaseDraining
		}
	}
	return false
}

// keep reads an error answer whole; nil where that failed.
func (c *call) keep(a *relay.Answer, id string) *held {
	k := &held{status: a.Status, header: http.Header{}, id: id}
	a.CopyHeader(k.header)
	body, err := a.ReadAll(heldBytes, heldTime)
	if err != nil {
		return nil
	}
	k.body = body
	return k
}

// again decides what follows a failed attempt and reports whether the request goes
// to another endpoint. Where it does not, the client has been answered.
func (c *call) again(f *relay.Failure, kept *held) bool {
	m := c.h.metrics
	switch f.Kind {
	case relay.FailClientGone:
		c.left()
	case relay.FailConnect:
		next := c.grant.Retry(c.ctx, fleet.OutcomeConnectError)
		if next != nil && c.ctx.Err() == nil && c.leave(viaUnreachable, fleet.Outcome{Kind: fleet.OutcomeConnectError, PromptTokens: -1, CachedTokens: -1, OutputTokens: -1}) {
			return true
		}
		if next != nil {
			c.outcome.Kind = fleet.OutcomeConnectError
			c.none(next, kept, &wire.Error{Status: http.StatusServiceUnavailable, Code: wire.CodeUnreachable, RetryAfter: time.Second,
				Message: "no replica could be reached"})
			return false
		}
		m.retries.connect.Inc()
		return true
	case relay.FailFrozen:
		// Patient has seen that there is somewhere else to go.
		return c.move(kept, m.retries.frozen, &wire.Error{Status: http.StatusGatewayTimeout, Code: wire.CodeTimeout,
			Message: "the replica shows no sign of life"})
	case relay.FailBroken:
		lost := &wire.Error{Status: http.StatusBadGateway, Code: wire.CodeBroken, Message: "the replica closed the connection without an answer"}
		return c.move(kept, m.retries.broken, lost)
	case relay.FailTimeout:
		c.outcome.Kind = fleet.OutcomeTimeout
		c.none(nil, kept, &wire.Error{Status: http.StatusGatewayTimeout, Code: wire.CodeTimeout, Message: "the replica did not answer in time"})
	default:
		c.outcome.Kind = fleet.OutcomeBroken
		c.none(nil, kept, &wire.Error{Status: http.StatusBadGateway, Code: wire.CodeBadAnswer, Message: "the replica's answer is no valid HTTP"})
	}
	return false
}

// move sends a request elsewhere that may have been executed: once. Where it
// cannot, the client has been answered with lost.
func (c *call) move(kept *held, count prometheus.Counter, lost *wire.Error) bool {
	c.outcome.Kind = fleet.OutcomeBroken
	if c.moved {
		c.none(nil, kept, lost)
		return false
	}
	c.moved = true
	if next := c.grant.Retry(c.ctx, fleet.OutcomeBroken); next != nil {
		c.none(next, kept, lost)
		return false
	}
	c.outcome.Kind = fleet.OutcomeRefused
	c.dup = true
	count.Inc()
	c.h.metrics.maybeDuplicate.Inc()
	return true
}

// Patient keeps a request where it is as long as its replica lives, however slow it
// is: time alone moves nothing. See relay.Waiter.
func (c *call) Patient(waited time.Duration) bool {
	lifeless := c.h.o.Lifeless
	if waited < lifeless || c.moved {
		return true
	}
	snap := c.target.pool.Flow.Snapshot()
	if snap == nil {
		return true
	}
	id, _ := c.grant.Endpoint()
	frozen, elsewhere := false, false
	for i := range snap.Endpoints {
		e := &snap.Endpoints[i]
		if e.ID == id {
			frozen = e.Slow && e.LifeAt != 0 && c.h.o.Clock().Sub(e.LifeAt) >= lifeless
		} else if e.Phase == fleet.PhaseReady && !e.Slow {
			elsewhere = true
		}
	}
	return !frozen || !elsewhere
}

// none ends a request for which there is no further endpoint: with the engine's own
// error where one was kept, else with e.
func (c *call) none(err error, kept *held, e *wire.Error) {
	var no *flow.NoReplicaError
	switch {
	case c.ctx.Err() != nil:
		c.left()
	case kept != nil:
		c.passKept(kept)
	case e != nil:
		if errors.As(err, &no) && e.RetryAfter > 0 {
			e.RetryAfter = max(no.RetryAfter, time.Second)
		}
		c.refuse(e)
	}
}

// noteStale counts a request that was sent twice over a connection that turned out
// closed.
func (c *call) noteStale(stale bool) {
	if stale {
		c.dup = true
		c.h.metrics.retries.stale.Inc()
		c.h.metrics.maybeDuplicate.Inc()
	}
}

// passKept answers with an engine's error that was kept back, unchanged.
func (c *call) passKept(k *held) {
	if c.translation.on {
		c.translatedError(k)
	}
	if c.early {
		c.keptLate(k)
		return
	}
	h := c.w.Header()
	for name, v := range k.header {
		h[name] = v
	}
	c.head(k.status, k.id)
	c.outcome.Kind = statusKind(k.status)
	http.NewResponseController(c.w).SetWriteDeadline(time.Now().Add(refuseTime))
	c.entry.Answer(k.body)
	if _, err := c.w.Write(k.body); err != nil {
		c.left()
	}
}

// statusKind is what an engine's status says of the outcome.
func statusKind(status int) fleet.OutcomeKind {
	switch {
	case status >= 500:
		return fleet.OutcomeEngineError
	case status >= 400:
		return fleet.OutcomeClientError
	}
	return fleet.OutcomeOK
}

// head sends the status line and header of an engine's answer. The header has been
// copied to the response already.
func (c *call) head(status int, endpoint string) {
	h := c.w.Header()
	if h["Content-Type"] == nil {
		h["Content-Type"] = nil // no guessing: what the engine did not say stays unsaid
	}
	c.tellLimits()
	c.echoID()
	if c.who.Debug {
		h[headerReplica] = []string{endpoint}
	}
	c.began = true
	c.status, c.outcome.Status = status, status
	if status >= 400 {
		c.source = "engine"
	}
	if c.early {
		return
	}
	c.w.WriteHeader(status)
}
