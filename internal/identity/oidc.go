// SPDX-License-Identifier: Apache-2.0

package identity

import (
	"context"
	"crypto/sha256"
	"encoding/base64"
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"strings"
	"sync"
	"time"

	"github.com/coreos/go-oidc/v3/oidc"
)

// Issuer is one issuer of tokens that is trusted.
type Issuer struct {
	URL         string
	Audience    string
	TenantClaim string // claim that names the tenant; "": tenant
	RoleClaim   string // claim that names the role in the admin API; "": tokens have none
}

// Tokens judges tokens of issuers. It is safe for concurrent use. Keys of an issuer
// are fetched when they are first needed, and again when a token names a new one.
type Tokens struct {
	issuers map[string]*issuer
	client  *http.Client

	mu    sync.Mutex
	known map[[sha256.Size]byte]knownToken
}

type issuer struct {
	Issuer
	mu       sync.Mutex
	verifier *oidc.IDTokenVerifier // nil: the issuer was not reached yet
	tryAt    time.Time
}

// knownToken is a token that was verified. It is kept by the hash of all of it: two
// tokens that begin alike are two tokens.
type knownToken struct {
	who   Caller
	until time.Time
}

// Limits of Tokens.
const (
	knownMost  = 10000
	knownFor   = time.Minute // a key that is withdrawn at the issuer closes within it
	issuerWait = 5 * time.Second
)

// NewTokens trusts issuers. It does not reach for them yet.
func NewTokens(list []Issuer) *Tokens {
	t := &Tokens{issuers: map[string]*issuer{}, known: map[[sha256.Size]byte]knownToken{}, client: &http.Client{Timeout: issuerWait}}
	for _, i := range list {
		if i.TenantClaim == "" {
			i.TenantClaim = "tenant"
		}
		t.issuers[i.URL] = &issuer{Issuer: i}
	}
	return t
}

// Verify returns the caller that a token stands for. ErrToken says that the token
// does not hold; any other error that nobody can say now.
func (t *Tokens) Verify(ctx context.Context, token string) (Caller, error) {
	now := time.Now()
	hash := sha256.Sum256([]byte(token))
	t.mu.Lock()
	k, ok := t.known[hash]
	t.mu.Unlock()
	if ok && now.Before(k.until) {
		return k.who, nil
	}
	i := t.issuers[claimedIssuer(token)]
	if i == nil {
		return Caller{}, ErrToken
	}
	// One client that gives up must not spoil the fetch that others wait for.
	v, err := i.ready(oidc.ClientContext(context.WithoutCancel(ctx), t.client), now)
	if err != nil {
		return Caller{}, err
	}
	id, err := v.Verify(ctx, token)
	if err != nil {
		if strings.Contains(err.Error(), "fetching keys") || errors.Is(err, context.DeadlineExceeded) || ctx.Err() != nil {
			return Caller{}, fmt.Errorf("the keys of %s: not reached", i.URL)
		}
		return Caller{}, ErrToken
	}
	who, err := i.caller(id)
	if err != nil {
		return Caller{}, err
	}
	t.keep(hash, knownToken{who, minTime(id.Expiry, now.Add(knownFor))}, now)
	return who, nil
}

// caller reads who a verified token is for.
func (i *issuer) caller(id *oidc.IDToken) (Caller, error) {
	var claims map[string]any
	if err := id.Claims(&claims); err != nil {
		return Caller{}, ErrToken
	}
	tenant, _ := claims[i.TenantClaim].(string)
	if tenant == "" || id.Subject == "" {
		return Caller{}, ErrToken
	}
	return Caller{Tenant: tenant, Key: "jwt:" + id.Subject, User: id.Subject, Scopes: &Scopes{Role: i.role(claims)}}, nil
}

// role reads the role of a token: a word, or the highest of a list. Words that are
// no role count for nothing.
func (i *issuer) role(claims map[string]any) string {
	if i.RoleClaim == "" {
		return RoleNone
	}
	var words []any
	switch v := claims[i.RoleClaim].(type) {
	case string:
		words = []any{v}
	case []any:
		words = v
	}
	for _, r := range []string{RoleAdmin, RoleOperate, RoleRead} {
		for _, w := range words {
			if w == r {
				return r
			}
		}
	}
	return RoleNone
}

// ready returns the verifier of an issuer, after it has told where its keys are.
func (i *issuer) ready(ctx context.Context, now time.Time) (*oidc.IDTokenVerifier, error) {
	i.mu.Lock()
	defer i.mu.Unlock()
	if i.verifier != nil {
		return i.verifier, nil
	}
	if now.Before(i.tryAt) {
		return nil, fmt.Errorf("issuer %s: not reached", i.URL)
	}
	p, err := oidc.NewProvider(ctx, i.URL)
	if err != nil {
		i.tryAt = time.Now().Add(time.Second)
		return nil, fmt.Errorf("issuer %s: not reached", i.URL)
	}
	i.verifier = p.Verifier(&oidc.Config{ClientID: i.Audience})
	return i.verifier, nil
}

func (t *Tokens) keep(hash [sha256.Size]byte, k knownToken, now time.Time) {
	t.mu.Lock()
	defer t.mu.Unlock()
	if len(t.known) >= knownMost {
		for h, old := range t.known {
			if now.After(old.until) || len(t.known) >= knownMost {
				delete(t.known, h)
			}
		}
	}
	t.known[hash] = k
}

// claimedIssuer reads who a token says it is from, which only picks the keys to
// judge it by.
func claimedIssuer(token string) string {
	parts := strings.Split(token, ".")
	if len(parts) != 3 {
		return ""
	}
	b, err := base64.RawURLEncoding.DecodeString(parts[1])
	if err != nil {
		return ""
	}
	var c struct {
		Iss string `json:"iss"`
	}
	if json.Unmarshal(b, &c) != nil {
		return ""
	}
	return c.Iss
}

func minTime(a, b time.Time) time.Time {
	if a.Before(b) {
		return a
	}
	return b
}
