// SPDX-License-Identifier: Apache-2.0

package entry

import (
	"context"
	"errors"
	"net/http"
	"time"

	"github.com/penstock-project/penstock/internal/fleet"
	"github.com/penstock-project/penstock/internal/identity"
	"github.com/penstock-project/penstock/internal/wire"
)

// KeyRing finds the caller of an API key.
type KeyRing interface {
	// Find returns false for every key that does not open, whatever the reason.
	Find(text string, now time.Time) (identity.Caller, bool)
}

// TokenVerifier finds the caller of a token.
type TokenVerifier interface {
	// Verify returns identity.ErrToken for a token that does not hold; any other
	// error means that nobody can say now.
	Verify(ctx context.Context, token string) (identity.Caller, error)
}

// Guard lets in who has a key, a token or a client certificate, and nobody else.
// Keys and Tokens may be nil.
type Guard struct {
	Keys   KeyRing
	Tokens TokenVerifier
	// Certificate returns the caller of a verified client certificate; nil: none.
	Certificate func(*http.Request) (identity.Caller, bool)
	// Failures slows down who guesses, by the address that a request comes from; nil:
	// nobody is. A request without an address, as a proxy hands it on, is not counted:
	// one who guesses would lock all others out.
	Failures *identity.Failures
}

// Unauthorized makes the one answer to whoever may not enter. Unknown, expired and
// revoked credentials look alike.
func Unauthorized() *wire.Error {
	return &wire.Error{Status: http.StatusUnauthorized, Code: wire.CodeUnauthorized, Message: "the API key is missing or not valid"}
}

// Authenticate identifies a request.
func (g *Guard) Authenticate(r *http.Request) (Identity, *wire.Error) {
	now := time.Now()
	failures := g.Failures
	if r.RemoteAddr == "" {
		failures = nil
	}
	if wait := failures.Blocked(r.RemoteAddr, now); wait > 0 {
		return Identity{}, &wire.Error{Status: http.StatusTooManyRequests, Code: wire.CodeRateLimited, RetryAfter: wait,
			Message: "too many requests without a valid API key"}
	}
	text, err := identity.Credential(r.Header)
	switch {
	case errors.Is(err, identity.ErrConflict):
		return Identity{}, &wire.Error{Status: http.StatusBadRequest, Code: wire.CodeInvalidValue,
			Message: "the request carries several credentials that differ; send one"}
	case errors.Is(err, identity.ErrNone) && g.Certificate != nil:
		if who, ok := g.Certificate(r); ok {
			return identityOf(who), nil
		}
	case err == nil:
		who, fault := g.find(r.Context(), text, now)
		if fault == nil {
			return identityOf(who), nil
		}
		if fault.Status != http.StatusUnauthorized {
			return Identity{}, fault
		}
	}
	failures.Note(r.RemoteAddr, now)
	return Identity{}, Unauthorized()
}

// find asks whoever knows a credential of this shape.
func (g *Guard) find(ctx context.Context, text string, now time.Time) (identity.Caller, *wire.Error) {
	if g.Keys != nil && (identity.IsKey(text) || g.Tokens == nil) {
		if who, ok := g.Keys.Find(text, now); ok {
			return who, nil
		}
		return identity.Caller{}, Unauthorized()
	}
	if g.Tokens == nil || identity.IsKey(text) {
		return identity.Caller{}, Unauthorized()
	}
	who, err := g.Tokens.Verify(ctx, text)
	switch {
	case err == nil:
		return who, nil
	case errors.Is(err, identity.ErrToken):
		return who, Unauthorized()
	}
	return who, &wire.Error{Status: http.StatusServiceUnavailable, Code: wire.CodeOverloaded, RetryAfter: 5 * time.Second,
		Message: "the issuer of tokens cannot be reached; the token was not judged"}
}

func identityOf(c identity.Caller) Identity {
	return Identity{Tenant: c.Tenant, Key: c.Key, Class: c.Class, User: c.User, Scopes: c.Scopes,
		Debug: c.Scopes != nil && c.Scopes.Debug, Ours: true}
}

// MayCall reports whether the caller may use an API.
func (i *Identity) MayCall(s fleet.Surface) bool {
	return i.Scopes == nil || i.Scopes.MayCall(s.String())
}

// MayUse reports whether the caller may use what a name leads to. An alias is
// allowed by its own name or by that of its model.
func (i *Identity) MayUse(p *Place) bool {
	if len(p.Tenants) > 0 && !p.Tenants[i.Tenant] {
		return false
	}
	if i.Scopes == nil {
		return true
	}
	if p.Adapter != "" {
		return i.Scopes.MayUse(p.Name, p.Model)
	}
	return i.Scopes.MayUse(p.Name, "") || p.Rename && i.Scopes.MayUse(p.Model, "")
}
