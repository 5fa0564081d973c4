// SPDX-License-Identifier: Apache-2.0

package identity

import (
	"context"
	"crypto"
	"crypto/rand"
	"crypto/rsa"
	"crypto/sha256"
	"encoding/base64"
	"encoding/json"
	"errors"
	"fmt"
	"math/big"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync"
	"testing"
	"time"
)

// localIssuer is an OIDC issuer on a socket of its own.
type localIssuer struct {
	*httptest.Server
	mu      sync.Mutex
	kid     string
	key     *rsa.PrivateKey
	fetches int
	// exchange answers /token; nil: there is none.
	exchange func(http.ResponseWriter, *http.Request)
}

func newIssuer(t *testing.T) *localIssuer {
	i := &localIssuer{}
	i.rotate(t, "one")
	i.Server = httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		i.mu.Lock()
		defer i.mu.Unlock()
		w.Header().Set("Content-Type", "application/json")
		switch r.URL.Path {
		case "/.well-known/openid-configuration":
			fmt.Fprintf(w, `{"issuer":%q,"jwks_uri":%q,"authorization_endpoint":%q,"token_endpoint":%q,"id_token_signing_alg_values_supported":["RS256"]}`,
				"http://"+r.Host, "http://"+r.Host+"/keys", "http://"+r.Host+"/auth", "http://"+r.Host+"/token")
		case "/keys":
			i.fetches++
			n := base64.RawURLEncoding.EncodeToString(i.key.N.Bytes())
			e := base64.RawURLEncoding.EncodeToString(big.NewInt(int64(i.key.E)).Bytes())
			fmt.Fprintf(w, `{"keys":[{"kty":"RSA","alg":"RS256","use":"sig","kid":%q,"n":%q,"e":%q}]}`, i.kid, n, e)
		case "/token":
			if i.exchange == nil {
				http.NotFound(w, r)
				return
			}
			i.exchange(w, r)
		default:
			http.NotFound(w, r)
		}
	}))
	t.Cleanup(i.Close)
	return i
}

func (i *localIssuer) rotate(t *testing.T, kid string) {
	k, err := rsa.GenerateKey(rand.Reader, 2048)
	if err != nil {
		t.Fatal(err)
	}
	i.mu.Lock()
	i.kid, i.key = kid, k
	i.mu.Unlock()
}

func (i *localIssuer) token(claims map[string]any) string {
	i.mu.Lock()
	defer i.mu.Unlock()
	return i.sign(claims)
}

// sign makes a token; i.mu is held.
func (i *localIssuer) sign(claims map[string]any) string {
	enc := func(v any) string { b, _ := json.Marshal(v); return base64.RawURLEncoding.EncodeToString(b) }
	s := enc(map[string]any{"alg": "RS256", "kid": i.kid}) + "." + enc(claims)
	h := sha256.Sum256([]byte(s))
	sig, _ := rsa.SignPKCS1v15(rand.Reader, i.key, crypto.SHA256, h[:])
	return s + "." + base64.RawURLEncoding.EncodeToString(sig)
}

func (i *localIssuer) claims(change ...any) map[string]any {
	c := map[string]any{"iss": i.URL, "aud": "penstock", "sub": "ann", "tenant": "acme", "exp": time.Now().Add(time.Hour).Unix()}
	for k := 0; k+1 < len(change); k += 2 {
		c[change[k].(string)] = change[k+1]
	}
	return c
}

func TestTokens(t *testing.T) {
	i := newIssuer(t)
	other := newIssuer(t)
	v := NewTokens([]Issuer{{URL: i.URL, Audience: "penstock"}})
	ctx := context.Background()
	good := i.token(i.claims())
	for range 3 {
		who, err := v.Verify(ctx, good)
		if err != nil || who.Tenant != "acme" || who.User != "ann" {
			t.Fatalf("%+v, %v", who, err)
		}
	}
	if i.fetches != 1 {
		t.Errorf("the keys were fetched %d times", i.fetches)
	}
	part := strings.Split(good, ".")
	none := base64.RawURLEncoding.EncodeToString([]byte(`{"alg":"none"}`)) + "." + part[1] + "."
	for name, bad := range map[string]string{
		"expired": i.token(i.claims("exp", time.Now().Add(-time.Minute).Unix())), "another audience": i.token(i.claims("aud", "x")),
		"no tenant": i.token(i.claims("tenant", "")), "a tenant that is no text": i.token(i.claims("tenant", 7)),
		"another issuer": other.token(other.claims()), "an issuer it is not from": other.token(i.claims()),
		"no signature": none, "cut": good[:len(good)-4], "claims changed": part[0] + "." + strings.Split(i.token(i.claims("tenant", "rich")), ".")[1] + "." + part[2],
		"same beginning": good[:20] + "x", "dots": "...", "two dots": "..", "nothing": "",
	} {
		if who, err := v.Verify(ctx, bad); !errors.Is(err, ErrToken) {
			t.Errorf("%s: %+v, %v", name, who, err)
		}
	}
	// New keys at the issuer are fetched when a token names one.
	i.rotate(t, "two")
	if _, err := v.Verify(ctx, i.token(i.claims("sub", "bob"))); err != nil {
		t.Errorf("after a rotation: %v", err)
	}
}

// An issuer that is away is no reason to call a token wrong; what was verified
// lately goes on.
func TestIssuerAway(t *testing.T) {
	i := newIssuer(t)
	v := NewTokens([]Issuer{{URL: i.URL, Audience: "penstock"}})
	good, young := i.token(i.claims()), i.token(i.claims("sub", "bob"))
	if _, err := v.Verify(context.Background(), good); err != nil {
		t.Fatal(err)
	}
	i.rotate(t, "two")
	rotated := i.token(i.claims())
	i.Close()
	if _, err := v.Verify(context.Background(), good); err != nil {
		t.Error(err)
	}
	if _, err := v.Verify(context.Background(), young); err != nil {
		t.Errorf("the keys are known: %v", err)
	}
	if _, err := v.Verify(context.Background(), rotated); err == nil || errors.Is(err, ErrToken) {
		t.Errorf("a key that cannot be fetched: %v", err)
	}
	fresh := NewTokens([]Issuer{{URL: i.URL, Audience: "penstock"}})
	if _, err := fresh.Verify(context.Background(), good); err == nil || errors.Is(err, ErrToken) {
		t.Errorf("an issuer that was never reached: %v", err)
	}
}
