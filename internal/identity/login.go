// SPDX-License-Identifier: Apache-2.0

package identity

import (
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"net/http"
	"net/url"
	"sync"
	"time"

	"github.com/coreos/go-oidc/v3/oidc"
	"golang.org/x/oauth2"

	"github.com/penstock-project/penstock/internal/config"
)

// LoginIssuer is an issuer at which people sign in with a browser. Its tokens must be
// trusted by a Tokens, too: what a sign-in yields is judged like any other token.
type LoginIssuer struct {
	URL      string
	ClientID string        // the audience of its tokens
	Secret   config.Secret // empty: a public client, held by its proof key alone
	Redirect string        // address of the callback; "": the one that the browser came by
}

// Logins signs people in by the authorization code flow with a proof key (RFC 7636), a
// state that is bound to the browser and a nonce. It is safe for concurrent use.
type Logins struct {
	issuers []LoginIssuer
	client  *http.Client

	mu   sync.Mutex
	open map[string]attempt // by state
}

// attempt is a sign-in that has begun.
type attempt struct {
	issuer   LoginIssuer
	flow     oauth2.Config
	verifier string
	nonce    string
	provider *oidc.Provider
	until    time.Time
}

// Limits of Logins: how long a person may take at the issuer, and how many may be on
// their way at a time.
const (
	loginFor   = 10 * time.Minute
	loginsMost = 1000
)

// Errors of a sign-in: ErrLogin says that it does not hold, ErrIssuer that the issuer
// does not answer, ErrBusy that too many are on their way.
var (
	ErrLogin  = errors.New("the sign-in does not hold")
	ErrIssuer = errors.New("the issuer does not answer")
	ErrBusy   = errors.New("too many sign-ins are on their way")
)

// NewLogins signs in at issuers. It does not reach for them yet.
func NewLogins(list []LoginIssuer) *Logins {
	return &Logins{issuers: list, open: map[string]attempt{}, client: &http.Client{Timeout: issuerWait}}
}

// Names returns the hosts of the issuers in their order.
func (l *Logins) Names() []string {
	out := make([]string, len(l.issuers))
	for i := range l.issuers {
		out[i] = l.issuers[i].URL
		if u, err := url.Parse(l.issuers[i].URL); err == nil && u.Host != "" {
			out[i] = u.Host
		}
	}
	return out
}

// Begin returns the address at the n-th issuer that the browser shall go to, and the state
// that the browser has to keep for Finish. callback is where the issuer sends it back to,
// unless the issuer's own Redirect says otherwise.
func (l *Logins) Begin(ctx context.Context, n int, callback string) (to, state string, err error) {
	if n < 0 || n >= len(l.issuers) {
		return "", "", ErrLogin
	}
	i := l.issuers[n]
	p, err := oidc.NewProvider(oidc.ClientContext(context.WithoutCancel(ctx), l.client), i.URL)
	if err != nil {
		return "", "", fmt.Errorf("%w: %s", ErrIssuer, i.URL)
	}
	if i.Redirect != "" {
		callback = i.Redirect
	}
	a := attempt{issuer: i, verifier: oauth2.GenerateVerifier(), nonce: rand.Text(), provider: p, until: time.Now().Add(loginFor),
		flow: oauth2.Config{ClientID: i.ClientID, ClientSecret: i.Secret.Reveal(), Endpoint: p.Endpoint(), RedirectURL: callback, Scopes: []string{oidc.ScopeOpenID, "profile", "email"}}}
	state = rand.Text()
	l.mu.Lock()
	defer l.mu.Unlock()
	for k, v := range l.open {
		if time.Now().After(v.until) {
			delete(l.open, k)
		}
	}
	if len(l.open) >= loginsMost {
		return "", "", ErrBusy
	}
	l.open[state] = a
	return a.flow.AuthCodeURL(state, oauth2.S256ChallengeOption(a.verifier), oidc.Nonce(a.nonce)), state, nil
}

// Finish exchanges the code that the issuer gave for a token, which it returns verified:
// from this issuer, for this client, and made for this sign-in. A state counts once.
func (l *Logins) Finish(ctx context.Context, state, code string) (string, error) {
	l.mu.Lock()
	a, ok := l.open[state]
	delete(l.open, state)
	l.mu.Unlock()
	if !ok || code == "" || time.Now().After(a.until) {
		return "", ErrLogin
	}
	ctx = oidc.ClientContext(ctx, l.client)
	tok, err := a.flow.Exchange(ctx, code, oauth2.VerifierOption(a.verifier))
	if err != nil {
		if _, refused := errors.AsType[*oauth2.RetrieveError](err); refused {
			return "", ErrLogin
		}
		return "", fmt.Errorf("%w: %s", ErrIssuer, a.issuer.URL)
	}
	raw, _ := tok.Extra("id_token").(string)
	id, err := a.provider.Verifier(&oidc.Config{ClientID: a.issuer.ClientID}).Verify(ctx, raw)
	if err != nil || id.Nonce != a.nonce {
		return "", ErrLogin
	}
	return raw, nil
}
