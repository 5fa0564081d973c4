// SPDX-License-Identifier: Apache-2.0

// Package entry says who may enter, on what terms, and as what: it identifies the
// caller of a request, holds it against the limits of its tenant, and makes of its
// body the request that a pool decides on.
//
// Every door of a server, the gateway and the endpoint picker, goes through one
// Door, so that a limit holds for both together.
package entry

import (
	"net/http"

	"github.com/penstock-project/penstock/internal/identity"
	"github.com/penstock-project/penstock/internal/wire"
)

// Identity is who sent a request, as the Authenticator found it. Nothing in it
// comes from what a client merely claims.
type Identity struct {
	Tenant string // "" for the anonymous one
	Key    string // public id of the key, for logs; never a secret or a hash
	Class  uint8  // priority class, 0 is the most urgent
	Debug  bool   // may learn which replica answered
	User   string // subject of a token; ""
	// Scopes bound what it may do; nil: nothing does.
	Scopes *identity.Scopes
	// Ours says that the credential was meant for us and does not go on to an engine.
	Ours bool
}

// Authenticator tells who sent a request, before its body is read. It is called
// from many goroutines.
type Authenticator interface {
	// Authenticate returns the identity or why there is none. It does not keep r
	// and does not change it.
	Authenticate(r *http.Request) (Identity, *wire.Error)
}

// Anonymous lets everybody in and leaves credentials for the engines. It is for
// listeners on loopback; whoever builds the gateway sees to that.
type Anonymous struct{ Debug bool }

// Authenticate never refuses.
func (a Anonymous) Authenticate(*http.Request) (Identity, *wire.Error) {
	return Identity{Debug: a.Debug}, nil
}
