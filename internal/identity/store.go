// SPDX-License-Identifier: Apache-2.0

package identity

import (
	"cmp"
	"fmt"
	"sync/atomic"
	"time"
)

// Caller is who sent a request.
type Caller struct {
	Tenant string
	Key    string // public id of the key, or a name for a token or certificate
	Class  uint8
	User   string // of a token: its subject; ""
	Scopes *Scopes
}

// Keys looks keys up. It is safe for concurrent use.
type Keys struct {
	path string
	keys atomic.Pointer[map[string]*live]
}

// LoadKeys reads a file of keys.
func LoadKeys(path string) (*Keys, error) {
	k := &Keys{path: path}
	return k, k.Reload()
}

// Reload reads the file again. Where it has an error the old keys stay.
func (k *Keys) Reload() error {
	f, err := ReadFile(k.path)
	if err != nil {
		return err
	}
	m := make(map[string]*live, len(f.Keys))
	for i := range f.Keys {
		l, err := f.Keys[i].compile()
		if err != nil {
			return err
		}
		m[l.ID] = l
	}
	k.keys.Store(&m)
	return nil
}

// Len returns the number of keys.
func (k *Keys) Len() int { return len(*k.keys.Load()) }

// Summary describes each key in a few words, by public id: for a log of changes. There
// is nothing of a secret in it.
func (k *Keys) Summary(now time.Time) map[string]string {
	out := map[string]string{}
	for id, l := range *k.keys.Load() {
		out[id] = fmt.Sprintf("tenant %s, %s, %d secrets, class %d, role %s, models %v", l.Tenant, l.State(now), len(l.Secrets), l.Class, cmp.Or(l.Role, "none"), l.Models)
	}
	return out
}

// Find returns the caller that a key stands for. Unknown, revoked and expired keys
// and wrong secrets cannot be told apart.
func (k *Keys) Find(text string, now time.Time) (Caller, bool) {
	id, secret, wellFormed := parseKey(text)
	key := (*k.keys.Load())[id]
	if key == nil || !wellFormed {
		key = nobody
	}
	if !key.matches(hashSecret(secret), now) || key == nobody {
		return Caller{}, false
	}
	return Caller{Tenant: key.Tenant, Key: key.ID, Class: key.Class, Scopes: &key.Scopes}, true
}

// Open reports whether the key with a public id still opens.
func (k *Keys) Open(id string, now time.Time) bool {
	l := (*k.keys.Load())[id]
	if l == nil {
		return false
	}
	s := l.State(now)
	return s == "active" || s == "rotating"
}

// IsKey reports whether a credential has the shape of a key of ours, valid or not.
func IsKey(text string) bool {
	return len(text) >= len(keyPrefix) && text[:len(keyPrefix)] == keyPrefix
}
