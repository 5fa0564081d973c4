// SPDX-License-Identifier: Apache-2.0

package identity

import (
	"errors"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"pgregory.net/rapid"
)

var noon = time.Date(2026, 11, 29, 12, 0, 0, 0, time.UTC)

// saved makes a file of keys and the look-up of it.
func saved(t *testing.T, f *File) *Keys {
	t.Helper()
	path := filepath.Join(t.TempDir(), "keys.json")
	if err := f.Save(path); err != nil {
		t.Fatal(err)
	}
	k, err := LoadKeys(path)
	if err != nil {
		t.Fatal(err)
	}
	return k
}

func TestKeyOpens(t *testing.T) {
	f := &File{Schema: Schema}
	made, text, err := f.Create(Key{Tenant: "acme", Class: 2, Scopes: Scopes{Models: []string{"m"}, Debug: true}}, time.Hour, noon)
	if err != nil {
		t.Fatal(err)
	}
	k := saved(t, f)
	who, ok := k.Find(text, noon.Add(time.Minute))
	if !ok || who.Tenant != "acme" || who.Key != made.ID || who.Class != 2 || !who.Scopes.Debug {
		t.Fatalf("found %+v, %v", who, ok)
	}
	for name, wrong := range map[string]string{
		"another secret": text[:len(text)-1] + map[bool]string{true: "a", false: "b"}[text[len(text)-1] != 'a'],
		"unknown id":     keyPrefix + "aaaaaaaaaa" + text[len(keyPrefix)+idLength:],
		"only the id":    keyPrefix + made.ID, "nothing": "", "longer": text + "a", "the hash": f.Keys[0].Secrets[0].SHA256,
		"the hash as secret": writeKey(made.ID, f.Keys[0].Secrets[0].SHA256[:secretLength]),
		"upper case":         strings.ToUpper(text),
	} {
		if _, ok := k.Find(wrong, noon); ok {
			t.Errorf("%s opened the door", name)
		}
	}
	if _, ok := k.Find(text, noon.Add(time.Hour)); ok {
		t.Error("an expired key opened the door")
	}
}

// The file holds no secret, and only its owner reads it.
func TestFileHoldsNoSecret(t *testing.T) {
	f := &File{Schema: Schema}
	_, text, _ := f.Create(Key{Tenant: "acme"}, 0, noon)
	path := filepath.Join(t.TempDir(), "keys.json")
	if err := f.Save(path); err != nil {
		t.Fatal(err)
	}
	b, _ := os.ReadFile(path)
	if strings.Contains(string(b), text[len(keyPrefix)+idLength+1:]) {
		t.Error("the secret is in the file")
	}
	if st, _ := os.Stat(path); st.Mode().Perm() != 0o600 {
		t.Errorf("mode %v, want 0600", st.Mode())
	}
	if left, _ := filepath.Glob(filepath.Join(filepath.Dir(path), ".*")); len(left) > 0 {
		t.Errorf("left over: %v", left)
	}
}

func TestRotateOverlapsAndRevokes(t *testing.T) {
	f := &File{Schema: Schema}
	made, old, _ := f.Create(Key{Tenant: "acme"}, 0, noon)
	_, young, err := f.Rotate(made.ID, time.Hour, noon)
	if err != nil {
		t.Fatal(err)
	}
	k := saved(t, f)
	open := func(text string, at time.Time) bool { _, ok := k.Find(text, at); return ok }
	if !open(old, noon.Add(59*time.Minute)) || !open(young, noon.Add(59*time.Minute)) {
		t.Error("within the overlap both open")
	}
	if open(old, noon.Add(time.Hour)) || !open(young, noon.Add(time.Hour)) {
		t.Error("after the overlap only the new one opens")
	}
	if got := f.Find(made.ID).State(noon); got != "rotating" {
		t.Errorf("state %s", got)
	}
	if err := f.Revoke(made.ID); err != nil {
		t.Fatal(err)
	}
	k = saved(t, f)
	if open(young, noon) || open(old, noon) {
		t.Error("a revoked key opened the door")
	}
	if _, _, err := f.Rotate(made.ID, 0, noon); err == nil {
		t.Error("a revoked key was rotated")
	}
}

// A file with an error changes nothing.
func TestReloadKeepsOld(t *testing.T) {
	f := &File{Schema: Schema}
	_, text, _ := f.Create(Key{Tenant: "acme"}, 0, noon)
	k := saved(t, f)
	for _, bad := range []string{``, `{`, `{"schema":"penstock/keys/v2","keys":[]}`, `{"schema":"penstock/keys/v1","keys":[],"keys":[]}`,
		`{"schema":"penstock/keys/v1","keys":[{"id":"x","tenant":"a"}]}`, `{"schema":"penstock/keys/v1","keys":[{"onlyIp":"1.2.3.4"}]}`} {
		if err := os.WriteFile(k.path, []byte(bad), 0o600); err != nil {
			t.Fatal(err)
		}
		if err := k.Reload(); err == nil {
			t.Errorf("accepted %q", bad)
		}
		if _, ok := k.Find(text, noon); !ok {
			t.Fatal("the old keys are gone")
		}
	}
}

func TestScopes(t *testing.T) {
	s := &Scopes{Models: []string{"llama-*", "small"}, Surfaces: []string{"chat"}}
	for _, c := range []struct {
		name, base string
		want       bool
	}{{"llama-3", "", true}, {"small", "", true}, {"smaller", "", false}, {"Small", "", false}, {"lora", "small", true}, {"lora", "big", false}} {
		if got := s.MayUse(c.name, c.base); got != c.want {
			t.Errorf("MayUse(%q, %q) = %v", c.name, c.base, got)
		}
	}
	if !s.MayCall("chat") || s.MayCall("embeddings") {
		t.Error("surfaces")
	}
	only := &Scopes{Adapters: []string{"mine"}}
	if !only.MayUse("mine", "m") || only.MayUse("theirs", "m") {
		t.Error("adapters")
	}
}

func TestCredential(t *testing.T) {
	for _, c := range []struct {
		name string
		h    http.Header
		want string
		err  error
	}{
		{"bearer", http.Header{"Authorization": {"Bearer k"}}, "k", nil},
		{"lower case", http.Header{"Authorization": {"bearer k"}}, "k", nil},
		{"x-api-key", http.Header{"X-Api-Key": {"k"}}, "k", nil},
		{"both, equal", http.Header{"Authorization": {"Bearer k"}, "X-Api-Key": {"k"}}, "k", nil},
		{"both, different", http.Header{"Authorization": {"Bearer k"}, "X-Api-Key": {"l"}}, "", ErrConflict},
		{"two of one", http.Header{"Authorization": {"Bearer k", "Bearer k"}}, "", ErrConflict},
		{"none", http.Header{}, "", ErrNone},
		{"empty bearer", http.Header{"Authorization": {"Bearer"}}, "", ErrUnreadable},
		{"empty bearer and a key", http.Header{"Authorization": {"Bearer "}, "X-Api-Key": {"k"}}, "", ErrUnreadable},
		{"basic", http.Header{"Authorization": {"Basic abc"}}, "", ErrUnreadable},
		{"quotes", http.Header{"Authorization": {`Bearer "k"`}}, "", ErrUnreadable},
		{"SQL", http.Header{"Authorization": {`Bearer ' OR 1=1 --`}}, "", ErrUnreadable},
		{"NUL", http.Header{"Authorization": {"Bearer k\x00"}}, "", ErrUnreadable},
		{"huge", http.Header{"Authorization": {"Bearer " + strings.Repeat("k", maxCredential+1)}}, "", ErrUnreadable},
	} {
		if got, err := Credential(c.h); got != c.want || !errors.Is(err, c.err) {
			t.Errorf("%s: %q, %v; want %q, %v", c.name, got, err, c.want, c.err)
		}
	}
}

func TestFailures(t *testing.T) {
	f := &Failures{}
	for range failuresFree {
		if f.Blocked("10.0.0.1:5", noon) != 0 {
			t.Fatal("blocked too early")
		}
		f.Note("10.0.0.1:6", noon)
	}
	if f.Blocked("10.0.0.1:7", noon) < failuresLeast {
		t.Error("not blocked")
	}
	if f.Blocked("10.0.0.2:7", noon) != 0 {
		t.Error("another address is blocked")
	}
	if f.Blocked("10.0.0.1:7", noon.Add(2*time.Second)) != 0 {
		t.Error("still blocked")
	}
	for i := range 3 * failuresAddresses {
		f.Note(string(rune('a'+i%26))+strings.Repeat("x", i%997)+":1", noon.Add(time.Duration(i)))
	}
	if len(f.seen) > failuresAddresses {
		t.Errorf("%d addresses are kept", len(f.seen))
	}
}

// No text opens a door but the one that was made.
func TestNoOtherTextOpens(t *testing.T) {
	f := &File{Schema: Schema}
	_, text, _ := f.Create(Key{Tenant: "acme"}, 0, noon)
	k := saved(t, f)
	rapid.Check(t, func(t *rapid.T) {
		b := []byte(text)
		i := rapid.IntRange(0, len(b)-1).Draw(t, "at")
		c := rapid.Byte().Draw(t, "byte")
		if b[i] == c {
			t.Skip()
		}
		b[i] = c
		if _, ok := k.Find(string(b), noon); ok {
			t.Fatalf("%q opened the door", b)
		}
	})
}

func FuzzCredential(f *testing.F) {
	f.Add("Bearer psk_aaaaaaaaaa_bbbb", "")
	f.Add("Bearer a.b.c", "psk_")
	f.Add("", "\x00")
	f.Fuzz(func(t *testing.T, auth, key string) {
		h := http.Header{}
		if auth != "" {
			h["Authorization"] = []string{auth}
		}
		if key != "" {
			h["X-Api-Key"] = []string{key}
		}
		got, err := Credential(h)
		if (err == nil) == (got == "") {
			t.Fatalf("%q, %v", got, err)
		}
		parseKey(got)
	})
}

func FuzzKeysFile(f *testing.F) {
	f.Add([]byte(`{"schema":"penstock/keys/v1","keys":[{"id":"aaaaaaaaaa","tenant":"a","created":"2026-01-01T00:00:00Z","secrets":[{"sha256":"00","created":"2026-01-01T00:00:00Z"}]}]}`))
	f.Fuzz(func(t *testing.T, b []byte) { parseFile(b) })
}
