// SPDX-License-Identifier: Apache-2.0

package cli

import (
	"context"
	"crypto/x509"
	"net/http"
	"strings"
	"time"

	"github.com/penstock-project/penstock/internal/config"
	"github.com/penstock-project/penstock/internal/entry"
	"github.com/penstock-project/penstock/internal/identity"
)

// keysInterval is the time between two looks at the file of keys: a revoked key
// closes within it.
const keysInterval = 2 * time.Second

// guarded reports whether a configuration says who may enter.
func guarded(c *config.Config) bool { return c.Auth.KeysFile != "" || len(c.Auth.JWT) > 0 }

// guard is who lets clients in.
type guard struct {
	auth   entry.Authenticator
	keys   *identity.Keys   // nil: no keys
	tokens *identity.Tokens // nil: no issuers
	logins *identity.Logins // nil: nobody signs in with a browser
}

// newGuard makes the guard that a configuration wants.
func newGuard(c *config.Config) (*guard, error) {
	if !guarded(c) {
		return &guard{auth: entry.Anonymous{Debug: true}}, nil
	}
	g := &guard{}
	door := &entry.Guard{Failures: &identity.Failures{}}
	if c.Auth.KeysFile != "" {
		keys, err := identity.LoadKeys(c.Auth.KeysFile)
		if err != nil {
			return nil, failf("make it with `penstock key create --file "+c.Auth.KeysFile+" --tenant NAME`", "auth.keysFile: %v", err)
		}
		g.keys, door.Keys = keys, keys
	}
	if len(c.Auth.JWT) > 0 {
		var list []identity.Issuer
		for _, j := range c.Auth.JWT {
			list = append(list, identity.Issuer{URL: j.Issuer, Audience: j.Audience, TenantClaim: j.TenantClaim, RoleClaim: j.RoleClaim})
		}
		g.tokens = identity.NewTokens(list)
		var err error
		if g.logins, err = newLogins(c.Auth.JWT); err != nil {
			return nil, err
		}
		door.Tokens = g.tokens
	}
	if c.TLS.ClientCA != "" {
		door.Certificate = certificateCaller(c.Tenants)
	}
	g.auth = door
	return g, nil
}

// newLogins lets people sign in at the issuers that say so; nil where none does.
func newLogins(list []config.JWT) (*identity.Logins, error) {
	var out []identity.LoginIssuer
	for i, j := range list {
		if !j.Login {
			continue
		}
		l := identity.LoginIssuer{URL: j.Issuer, ClientID: j.Audience, Redirect: j.LoginRedirect}
		if j.LoginSecretFile != "" {
			var err error
			if l.Secret, err = config.ReadSecret(j.LoginSecretFile); err != nil {
				return nil, failf("", "auth.jwt[%d].loginSecretFile: %v", i, err)
			}
		}
		out = append(out, l)
	}
	if len(out) == 0 {
		return nil, nil
	}
	return identity.NewLogins(out), nil
}

// certificateCaller identifies clients by the certificate that the handshake
// verified: its organisation is the tenant, which must be in the configuration, its
// common name stands for the key.
func certificateCaller(tenants []config.Tenant) func(*http.Request) (identity.Caller, bool) {
	known := map[string]bool{}
	for i := range tenants {
		known[tenants[i].Name] = true
	}
	return func(r *http.Request) (identity.Caller, bool) {
		if r.TLS == nil || len(r.TLS.VerifiedChains) == 0 {
			return identity.Caller{}, false
		}
		return callerOf(r.TLS.VerifiedChains[0][0], known)
	}
}

func callerOf(cert *x509.Certificate, known map[string]bool) (identity.Caller, bool) {
	org := cert.Subject.Organization
	if len(org) != 1 || !known[org[0]] || cert.Subject.CommonName == "" {
		return identity.Caller{}, false
	}
	return identity.Caller{Tenant: org[0], Key: "cert:" + cert.Subject.CommonName, Scopes: &identity.Scopes{}}, true
}

// reload reads the file of keys again; a file with errors changes nothing.
func (s *server) reloadKeys() {
	k := s.guard.keys
	if k == nil {
		return
	}
	before, was := k.Len(), k.Summary(time.Now())
	if err := k.Reload(); err != nil {
		s.log.Error("the file of keys has an error; the old keys go on", "error", err)
		return
	}
	s.auditKeys(was, k.Summary(time.Now()))
	s.log.Info("keys reloaded", "before", before, "now", k.Len())
}

// endStreams ends requests of all doors whose key was revoked or has expired, until
// ctx ends.
// Callers by token or certificate have names that are no ids of keys.
func (s *server) endStreams(ctx context.Context) {
	k := s.guard.keys
	if k == nil || !s.Config().Auth.EndStreams {
		return
	}
	for {
		select {
		case <-ctx.Done():
			return
		case <-time.After(keysInterval):
		}
		now := time.Now()
		if n := s.front.h.Door().Watches.End(func(id string) bool { return strings.Contains(id, ":") || k.Open(id, now) }); n > 0 {
			s.log.Info("requests ended with their key", "requests", n)
		}
	}
}

// watchKeys reloads the file of keys when it changes, until ctx ends.
func (s *server) watchKeys(ctx context.Context) {
	if s.guard.keys != nil {
		config.Watch(ctx, s.Config().Auth.KeysFile, keysInterval, s.reloadKeys)
	}
}
