// SPDX-License-Identifier: Apache-2.0

package extproc

import (
	"errors"
	"math"
	"net/http"
	"slices"
	"strings"

	"github.com/penstock-project/penstock/internal/admit"
	"github.com/penstock-project/penstock/internal/entry"
	"github.com/penstock-project/penstock/internal/fleet"
	"github.com/penstock-project/penstock/internal/identity"
	"github.com/penstock-project/penstock/internal/share"
	"github.com/penstock-project/penstock/internal/wire"
)

// terms are those on which the caller of a request is in.
type terms struct {
	who         entry.Identity
	credentials http.Header // that the request carries; nil: none
	logging     []string    // values of the header that tightens the policy on prompts
	lease       *share.Lease
	head        []header   // what the answer's header tells of the limits
	change      change     // of the request's header on its way to the replica
	bytes       int        // of the answer
	since       fleet.Time // when an endpoint was named
	stream      bool       // the answer was asked for as a stream
	stopped     bool       // a hard limit ended the answer
}

// note keeps a header that says who is calling.
func (t *terms) note(h header) {
	if h.name == loggingHeader {
		t.logging = append(t.logging, h.value)
		return
	}
	if !slices.Contains(credentialHeaders[:], h.name) {
		return
	}
	if t.credentials == nil {
		t.credentials = http.Header{}
	}
	t.credentials.Add(h.name, h.value)
}

// admit finds out who is calling and whether anything is left for them, before the
// body is asked for. known says that the path is one of an API, coded that the body
// is compressed.
func (ss *session) admit(known, coded bool) *wire.Error {
	door, t := ss.srv.o.Door, &ss.terms
	if !door.Guarded() {
		return nil
	}
	_, none := identity.Credential(t.credentials)
	if !ss.srv.o.Optional || !errors.Is(none, identity.ErrNone) {
		// No address goes with it: all requests come from the proxy.
		r := (&http.Request{Header: t.credentials}).WithContext(ss.ctx)
		who, fault := door.Auth.Authenticate(r)
		if fault != nil {
			return fault
		}
		t.who = who
		ss.watchKey()
	}
	if t.who.Ours {
		t.change.remove = credentialHeaders[:]
	}
	switch {
	case !known:
	case !t.who.MayCall(ss.surface):
		return &wire.Error{Status: http.StatusForbidden, Code: wire.CodeForbidden, Message: "this key may not use this path"}
	case coded && ss.surface != fleet.SurfaceModels:
		// Which model it asks for, and how much, is part of what is allowed.
		return &wire.Error{Status: http.StatusUnsupportedMediaType, Code: wire.CodeEncoding, Message: "send the body without Content-Encoding"}
	}
	if salt := door.Tenant(t.who.Tenant).CacheSalt; salt == "tenant" || salt == "user" {
		// A salt of the client's that comes late in the body would stand behind ours,
		// and engines go by the last one.
		ss.tryAt = math.MaxInt
	}
	if no := door.Quotas.Precheck(t.who.Tenant, t.who.Key); no != nil {
		return ss.overLimit(no)
	}
	return nil
}

// callers puts on a request what holds for who is calling.
func (ss *session) callers(r *fleet.Request) {
	door, t := ss.srv.o.Door, &ss.terms
	if t.who.Tenant == "" && t.who.Scopes == nil && t.logging == nil {
		return
	}
	door.Terms(r, &t.who, door.Logging(&t.who, t.logging))
	if r.Surface == fleet.SurfaceModels {
		r.Deadline = 0 // there is no first token
	}
}

// reserve takes what the request may use from its tenant's limits. What only its
// headers were read of counts by the length of its body.
func (ss *session) reserve(ask *question) *wire.Error {
	m, t := ss.srv.o.Door.Quotas, &ss.terms
	if !m.Metered(t.who.Tenant) || !ask.read && ss.surface == fleet.SurfaceModels {
		return nil
	}
	prompt := ask.req.PromptTokens
	if !ask.read {
		prompt = max(1, max(ss.size, ss.length)/bytesPerToken)
	}
	lease, no := m.Reserve(ss.ctx, share.Ask{
		Tenant: t.who.Tenant, Key: t.who.Key, Model: ask.to.EngineName(), Prompt: prompt, MaxTokens: entry.OutputCap(ss.surface, ask.most), N: ask.n,
	})
	if no != nil {
		return ss.overLimit(no)
	}
	t.lease, t.head = lease, headers(lease.Head)
	return nil
}

func (ss *session) overLimit(no *share.Refused) *wire.Error {
	ss.terms.head = headers(no.Head)
	return entry.OverLimit(no)
}

func headers(fields []share.HeadField) []header {
	out := make([]header, len(fields))
	for i, f := range fields {
		out[i] = header{strings.ToLower(f.Name), f.Value}
	}
	return out
}

// cut ends an answer that reached a hard limit. The response has begun, so all that a
// proxy can do is to cut the connection.
func (ss *session) cut() error {
	return ss.refuse(&wire.Error{Status: http.StatusTooManyRequests, Code: wire.CodeRateLimited,
		Message: "the limit of tokens was reached within this answer"})
}

// bytesPerToken guesses tokens from bytes where nothing else tells.
const bytesPerToken = 4

// settle ends the reservation with what was used.
func (ss *session) settle(o *fleet.Outcome) {
	lease := ss.terms.lease
	if lease == nil {
		return
	}
	if o.Kind == fleet.OutcomeRefused || o.Kind == fleet.OutcomeConnectError {
		lease.Settle(admit.Usage{}, false) // no engine had it, or not to its end
		return
	}
	u := admit.Usage{Requests: 1}
	switch {
	case o.Kind == fleet.OutcomeClientError, o.Kind == fleet.OutcomeEngineError && ss.scan.Frames == 0:
		lease.Settle(u, false) // it was refused, or failed before it gave anything
		return
	case o.PromptTokens >= 0:
		u.Prompt, u.Cached = int64(o.PromptTokens), int64(max(o.CachedTokens, 0))
	default:
		u.Prompt = lease.Prompt()
	}
	switch {
	case o.OutputTokens >= 0 && ss.status != 0 && (ss.scan.OutputTokens >= 0 || ss.events):
		u.Output = int64(o.OutputTokens)
	case ss.surface.Generates():
		u.Output = int64(ss.terms.bytes / bytesPerToken)
	}
	took := o.End.Sub(ss.terms.since)
	if o.Kind == fleet.OutcomeClientGone && ss.surface.Generates() && !ss.terms.stream && (ss.status == 0 || ss.scan.OutputTokens < 0) {
		// The engine works on an answer that comes as a whole from the first moment on.
		u.Output = max(u.Output, lease.Produced(took))
	}
	whole := o.Kind == fleet.OutcomeOK && !ss.terms.stopped && !ss.turn.out
	if whole {
		lease.Pace(u.Output, took)
	}
	lease.Settle(u, whole)
}
