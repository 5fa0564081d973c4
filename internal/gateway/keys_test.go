// SPDX-License-Identifier: Apache-2.0

package gateway

import (
	"context"
	"errors"
	"io"
	"net"
	"net/http"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/penstock-project/penstock/internal/entry"
	"github.com/penstock-project/penstock/internal/identity"
)

// keyFile is a file of keys for tests.
type keyFile struct {
	t    testing.TB
	f    identity.File
	path string
}

func newKeyFile(t testing.TB) *keyFile {
	return &keyFile{t: t, f: identity.File{Schema: identity.Schema}, path: filepath.Join(t.TempDir(), "keys.json")}
}

func (k *keyFile) add(key identity.Key) (id, text string) {
	made, text, err := k.f.Create(key, 0, time.Now())
	if err != nil {
		k.t.Fatal(err)
	}
	return made.ID, text
}

func (k *keyFile) load() *identity.Keys {
	if err := k.f.Save(k.path); err != nil {
		k.t.Fatal(err)
	}
	keys, err := identity.LoadKeys(k.path)
	if err != nil {
		k.t.Fatal(err)
	}
	return keys
}

// echo answers with the head that the engine got.
func echo(t testing.TB) *replica {
	return scripted(t, func(c net.Conn, req *http.Request, _ []byte) bool {
		var b strings.Builder
		req.Header.Write(&b)
		io.WriteString(c, strings.Replace(jsonAnswer(200, okBody), "\r\n\r\n", "\r\nX-Got: "+strings.ReplaceAll(b.String(), "\r\n", "|")+"\r\n\r\n", 1))
		return true
	})
}

func TestKeysAreTheDoor(t *testing.T) {
	k := newKeyFile(t)
	_, good := k.add(identity.Key{Tenant: "acme", Class: 3})
	revoked, closed := k.add(identity.Key{Tenant: "acme"})
	if err := k.f.Revoke(revoked); err != nil {
		t.Fatal(err)
	}
	expired, text, err := k.f.Create(identity.Key{Tenant: "acme"}, time.Second, time.Now().Add(-time.Hour))
	_ = expired
	if err != nil {
		t.Fatal(err)
	}
	u := echo(t)
	f := newFixture(t, setup{options: Options{Auth: &entry.Guard{Keys: k.load()}}}, u.url)

	res, _ := f.chat(chatBody, "Authorization", "Bearer "+good, "Cookie", "a=b")
	if res.StatusCode != 200 {
		t.Fatalf("a good key got %d", res.StatusCode)
	}
	if got := res.Header.Get("X-Got"); strings.Contains(got, good) || strings.Contains(got, "Authorization") {
		t.Errorf("the key went on to the engine: %s", got)
	}
	f.outcome(1)
	if r := f.records.last(); r.Request.Tenant != "acme" {
		t.Errorf("tenant %q", r.Request.Tenant)
	}
	// Unknown, expired, revoked, malformed, none: one answer, to the byte, save the id.
	seen := u.seen.Load()
	var first string
	for _, headers := range [][]string{
		{"Authorization", "Bearer " + closed}, {"Authorization", "Bearer " + text}, {"Authorization", "Bearer psk_aaaaaaaaaa_bbbb"},
		{"X-Api-Key", "sk-other"}, {"Authorization", "Basic abc"}, {"Authorization", "Bearer "}, {},
		{"Authorization", "Bearer a.b.c"}, {"X-Tenant", "acme", "X-Penstock-Tenant", "acme"},
	} {
		res, body := f.chat(chatBody, headers...)
		if res.StatusCode != 401 || res.Header.Get("Www-Authenticate") != "Bearer" {
			t.Errorf("%q got %d", headers, res.StatusCode)
		}
		if first == "" {
			first = body
		}
		if body != first {
			t.Errorf("the answers differ: %s, %s", first, body)
		}
		if res, _ := f.post("/v1/nothing", chatBody, headers...); res.StatusCode != 401 {
			t.Errorf("a path that is not served told a stranger so: %d", res.StatusCode)
		}
	}
	if res, _ := f.chat(chatBody, "Authorization", "Bearer "+good, "X-Api-Key", closed); res.StatusCode != 400 {
		t.Errorf("two credentials got %d", res.StatusCode)
	}
	if got := u.seen.Load(); got != seen {
		t.Errorf("%d refused requests reached the engine", got-seen)
	}
	if s := f.log.String(); strings.Contains(s, good) || strings.Contains(s, closed) {
		t.Error("a key is in the log")
	}
	f.settled()
}

func TestScopesBound(t *testing.T) {
	k := newKeyFile(t)
	_, narrow := k.add(identity.Key{Tenant: "acme", Scopes: identity.Scopes{Models: []string{"m"}, Adapters: []string{"none"}, Surfaces: []string{"chat"}}})
	_, wide := k.add(identity.Key{Tenant: "acme", Scopes: identity.Scopes{Debug: true}})
	u := says(t, jsonAnswer(200, okBody))
	f := newFixture(t, setup{options: Options{Auth: &entry.Guard{Keys: k.load()}}}, u.url)
	body := func(model string) string { return strings.Replace(chatBody, `"m"`, `"`+model+`"`, 1) }
	for _, c := range []struct {
		path, model, key string
		status           int
	}{
		{"/v1/chat/completions", "m", narrow, 200}, {"/v1/chat/completions", "alias", narrow, 200},
		{"/v1/chat/completions", "lora", narrow, 404}, {"/v1/chat/completions", "lora", wide, 200},
		{"/v1/embeddings", "m", narrow, 403}, {"/v1/embeddings", "m", wide, 200},
	} {
		res, text := f.post(c.path, body(c.model), "X-Api-Key", c.key)
		if res.StatusCode != c.status {
			t.Errorf("%s %s: %d, want %d: %s", c.path, c.model, res.StatusCode, c.status, text)
		}
		if got := res.Header.Get(headerReplica) != ""; res.StatusCode == 200 && got != (c.key == wide) {
			t.Errorf("debug scope: replica told: %v", got)
		}
	}
	// What a key may not use and what does not exist look alike.
	_, hidden := f.chat(body("lora"), "X-Api-Key", narrow)
	_, absent := f.chat(body("gone"), "X-Api-Key", narrow)
	if strings.ReplaceAll(hidden, "lora", "gone") != absent {
		t.Errorf("the answers differ: %s, %s", hidden, absent)
	}
	list := func(key string) string {
		req, _ := http.NewRequest("GET", f.url+"/v1/models", nil)
		req.Header.Set("Authorization", "Bearer "+key)
		res, err := http.DefaultClient.Do(req)
		if err != nil {
			t.Fatal(err)
		}
		defer res.Body.Close()
		b, _ := io.ReadAll(res.Body)
		return string(b)
	}
	if l := list(narrow); strings.Contains(l, `"lora"`) || !strings.Contains(l, `"id":"m"`) {
		t.Errorf("narrow sees %s", l)
	}
	if l := list(wide); !strings.Contains(l, `"lora"`) {
		t.Errorf("wide sees %s", l)
	}
}

// An issuer that cannot be reached is no reason to call a token wrong.
type brokenIssuer struct{}

func (brokenIssuer) Verify(context.Context, string) (identity.Caller, error) {
	return identity.Caller{}, errors.New("no route to the issuer")
}

func TestIssuerDownIsNot401(t *testing.T) {
	u := says(t, jsonAnswer(200, okBody))
	f := newFixture(t, setup{options: Options{Auth: &entry.Guard{Tokens: brokenIssuer{}}}}, u.url)
	res, body := f.chat(chatBody, "Authorization", "Bearer a.b.c")
	if res.StatusCode != 503 || res.Header.Get("Retry-After") == "" || strings.Contains(body, "route") {
		t.Errorf("%d %s", res.StatusCode, body)
	}
}

// Who guesses is slowed down; a key that opens still does from elsewhere.
func TestGuessingIsSlowedDown(t *testing.T) {
	k := newKeyFile(t)
	k.add(identity.Key{Tenant: "acme"})
	u := says(t, jsonAnswer(200, okBody))
	f := newFixture(t, setup{options: Options{Auth: &entry.Guard{Keys: k.load(), Failures: &identity.Failures{}}}}, u.url)
	for i := range 200 {
		res, _ := f.chat(chatBody, "X-Api-Key", "guess")
		if res.StatusCode == 429 {
			if i < 50 || res.Header.Get("Retry-After") == "" {
				t.Errorf("429 after %d", i)
			}
			return
		}
	}
	t.Error("200 guesses in a row were answered")
}
