// SPDX-License-Identifier: Apache-2.0

package identity

import (
	"crypto/sha256"
	"encoding/base64"
	"encoding/json"
	"errors"
	"net/http"
	"net/url"
	"testing"
	"time"
)

// browserAt is what the issuer remembers of a browser that came to sign in.
type browserAt struct {
	challenge, nonce, redirect, client string
}

// signingIn makes an issuer that checks the proof key, and a Logins that trusts it. change
// may bend the claims of the token.
func signingIn(t *testing.T, seen *browserAt, change func(map[string]any)) (*localIssuer, *Logins) {
	i := newIssuer(t)
	i.exchange = func(w http.ResponseWriter, r *http.Request) {
		_ = r.ParseForm()
		proof := sha256.Sum256([]byte(r.PostForm.Get("code_verifier")))
		if r.PostForm.Get("code") != "good" || base64.RawURLEncoding.EncodeToString(proof[:]) != seen.challenge || r.PostForm.Get("redirect_uri") != seen.redirect {
			w.WriteHeader(http.StatusBadRequest)
			_, _ = w.Write([]byte(`{"error":"invalid_grant"}`))
			return
		}
		claims := i.claims("aud", "console", "nonce", seen.nonce, "roles", []string{"operate"})
		if change != nil {
			change(claims)
		}
		_ = json.NewEncoder(w).Encode(map[string]any{"access_token": "a", "token_type": "Bearer", "id_token": i.sign(claims)})
	}
	return i, NewLogins([]LoginIssuer{{URL: i.URL, ClientID: "console"}})
}

func begin(t *testing.T, l *Logins, seen *browserAt) (state string) {
	t.Helper()
	to, state, err := l.Begin(t.Context(), 0, "http://127.0.0.1:9900/login/back")
	if err != nil {
		t.Fatal(err)
	}
	u, _ := url.Parse(to)
	q := u.Query()
	*seen = browserAt{q.Get("code_challenge"), q.Get("nonce"), q.Get("redirect_uri"), q.Get("client_id")}
	if q.Get("state") != state || q.Get("code_challenge_method") != "S256" || q.Get("response_type") != "code" || seen.client != "console" || len(state) < 20 || u.Path != "/auth" {
		t.Fatalf("to %s", to)
	}
	return state
}

func TestLogin(t *testing.T) {
	var seen browserAt
	i, l := signingIn(t, &seen, nil)
	state := begin(t, l, &seen)
	token, err := l.Finish(t.Context(), state, "good")
	if err != nil {
		t.Fatal(err)
	}
	who, err := NewTokens([]Issuer{{URL: i.URL, Audience: "console", RoleClaim: "roles"}}).Verify(t.Context(), token)
	if err != nil || who.Scopes.Role != RoleOperate || who.User != "ann" {
		t.Errorf("%+v %v", who, err)
	}
	if _, err := l.Finish(t.Context(), state, "good"); !errors.Is(err, ErrLogin) {
		t.Errorf("a state counts twice: %v", err)
	}
	for name, code := range map[string]string{"a wrong code": "bad", "no code": ""} {
		if _, err := l.Finish(t.Context(), begin(t, l, &seen), code); !errors.Is(err, ErrLogin) {
			t.Errorf("%s: %v", name, err)
		}
	}
	if _, err := l.Finish(t.Context(), "made-up", "good"); !errors.Is(err, ErrLogin) {
		t.Errorf("a state that was never given: %v", err)
	}
	if _, _, err := l.Begin(t.Context(), 1, ""); !errors.Is(err, ErrLogin) {
		t.Errorf("an issuer that is not there: %v", err)
	}
	// The code of another sign-in: its proof key is not ours.
	first := begin(t, l, &seen)
	begin(t, l, &seen)
	if _, err := l.Finish(t.Context(), first, "good"); !errors.Is(err, ErrLogin) {
		t.Errorf("a code of somebody else: %v", err)
	}
	i.Close()
	if _, _, err := l.Begin(t.Context(), 0, ""); !errors.Is(err, ErrIssuer) {
		t.Errorf("an issuer that is away: %v", err)
	}
}

func TestLoginRefusesTokens(t *testing.T) {
	for name, change := range map[string]func(map[string]any){
		"another nonce":  func(c map[string]any) { c["nonce"] = "x" },
		"no nonce":       func(c map[string]any) { delete(c, "nonce") },
		"another client": func(c map[string]any) { c["aud"] = "x" },
		"another issuer": func(c map[string]any) { c["iss"] = "https://evil.example" },
		"expired":        func(c map[string]any) { c["exp"] = 1 },
	} {
		var seen browserAt
		_, l := signingIn(t, &seen, change)
		if token, err := l.Finish(t.Context(), begin(t, l, &seen), "good"); !errors.Is(err, ErrLogin) || token != "" {
			t.Errorf("%s: %q %v", name, token, err)
		}
	}
}

func TestLoginsAreBounded(t *testing.T) {
	var seen browserAt
	_, l := signingIn(t, &seen, nil)
	for n := range loginsMost {
		l.open[string(rune(0x4e00+n))] = attempt{until: time.Now().Add(loginFor)}
	}
	if _, _, err := l.Begin(t.Context(), 0, ""); !errors.Is(err, ErrBusy) {
		t.Errorf("one more than %d: %v", loginsMost, err)
	}
}
