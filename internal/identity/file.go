// SPDX-License-Identifier: Apache-2.0

package identity

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"slices"
	"strings"
	"time"

	"github.com/go-json-experiment/json"
	"github.com/go-json-experiment/json/jsontext"

	"github.com/penstock-project/penstock/internal/wholefile"
)

// Schema is the version of the file of keys.
const Schema = "penstock/keys/v1"

// File is a file of keys in memory.
type File struct {
	Schema string `json:"schema"`
	Keys   []Key  `json:"keys"`
}

// maxFile bounds a file of keys, in bytes: some 100,000 keys.
const maxFile = 64 << 20

// ReadFile reads a file of keys. It is strict: an unknown member is an error,
// because it may be a restriction that this version does not know.
func ReadFile(path string) (*File, error) {
	st, err := os.Stat(path)
	if err != nil {
		return nil, err
	}
	if !st.Mode().IsRegular() { // opening a pipe would wait for its writer, without an end
		return nil, fmt.Errorf("%s is no regular file", path)
	}
	if st.Size() > maxFile {
		return nil, fmt.Errorf("%s is larger than %d bytes", path, maxFile)
	}
	b, err := os.ReadFile(path)
	if err != nil {
		return nil, err
	}
	f, err := parseFile(b)
	if err != nil {
		return nil, fmt.Errorf("%s: %w", path, err)
	}
	return f, nil
}

func parseFile(b []byte) (*File, error) {
	f := &File{}
	if err := json.Unmarshal(b, f, json.RejectUnknownMembers(true)); err != nil {
		var se *json.SemanticError
		if errors.As(err, &se) {
			return nil, fmt.Errorf("it does not fit the schema at %s", se.JSONPointer)
		}
		return nil, errors.New("it is not valid JSON")
	}
	if f.Schema != Schema {
		return nil, fmt.Errorf("its schema is not %s", Schema)
	}
	seen := map[string]bool{}
	for i := range f.Keys {
		if _, err := f.Keys[i].compile(); err != nil {
			return nil, err
		}
		if seen[f.Keys[i].ID] {
			return nil, fmt.Errorf("key %s stands there twice", f.Keys[i].ID)
		}
		seen[f.Keys[i].ID] = true
	}
	return f, nil
}

// OpenFile reads a file of keys, or returns an empty one where there is none.
func OpenFile(path string) (*File, error) {
	f, err := ReadFile(path)
	if errors.Is(err, fs.ErrNotExist) {
		return &File{Schema: Schema}, nil
	}
	return f, err
}

// Save writes the file as a whole or not at all, readable by its owner only.
func (f *File) Save(path string) error {
	b, err := json.Marshal(f, jsontext.WithIndent("  "))
	if err != nil {
		return err
	}
	return wholefile.Write(path, append(b, '\n'), 0o600)
}

// Find returns the key with a public id; nil where there is none.
func (f *File) Find(id string) *Key {
	for i := range f.Keys {
		if f.Keys[i].ID == id {
			return &f.Keys[i]
		}
	}
	return nil
}

// Create adds a key for what k says and returns it with its text, which nobody can
// tell again. ttl is how long it lives; 0: until it is revoked.
func (f *File) Create(k Key, ttl time.Duration, now time.Time) (Key, string, error) {
	for {
		if k.ID = newText(idLength); f.Find(k.ID) == nil {
			break
		}
	}
	k.Created, k.Revoked = now.UTC().Truncate(time.Second), false
	var expires *time.Time
	if ttl > 0 {
		t := k.Created.Add(ttl)
		expires = &t
	}
	text, s := newSecret(now, expires)
	k.Secrets = []Secret{s}
	if _, err := k.compile(); err != nil {
		return Key{}, "", err
	}
	f.Keys = append(f.Keys, k)
	return k, writeKey(k.ID, text), nil
}

// Rotate gives a key a new secret and lets the old ones live for overlap longer at
// most. It returns the new text of the key.
func (f *File) Rotate(id string, overlap time.Duration, now time.Time) (Key, string, error) {
	k := f.Find(id)
	switch {
	case k == nil:
		return Key{}, "", fmt.Errorf("there is no key %s", id)
	case k.Revoked:
		return Key{}, "", fmt.Errorf("key %s is revoked", id)
	}
	end := now.UTC().Truncate(time.Second).Add(overlap)
	var keep []Secret
	for _, s := range k.Secrets {
		if s.Expires == nil || s.Expires.After(end) {
			s.Expires = &end
		}
		if s.Expires.After(now) {
			keep = append(keep, s)
		}
	}
	text, s := newSecret(now, nil)
	k.Secrets = append(keep, s)
	return *k, writeKey(id, text), nil
}

// Revoke closes a key for good.
func (f *File) Revoke(id string) error {
	k := f.Find(id)
	if k == nil {
		return fmt.Errorf("there is no key %s", id)
	}
	k.Revoked, k.Secrets = true, nil
	return nil
}

// Sorted returns the keys by tenant and id.
func (f *File) Sorted() []Key {
	out := slices.Clone(f.Keys)
	slices.SortFunc(out, func(a, b Key) int {
		if c := strings.Compare(a.Tenant, b.Tenant); c != 0 {
			return c
		}
		return strings.Compare(a.ID, b.ID)
	})
	return out
}

// State says in a word what a key is worth at a moment: active, rotating, expired
// or revoked.
func (k *Key) State(now time.Time) string {
	open := 0
	for _, s := range k.Secrets {
		if s.Expires == nil || now.Before(*s.Expires) {
			open++
		}
	}
	switch {
	case k.Revoked:
		return "revoked"
	case open == 0:
		return "expired"
	case open > 1:
		return "rotating"
	}
	return "active"
}
