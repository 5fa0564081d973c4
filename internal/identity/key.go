// SPDX-License-Identifier: Apache-2.0

package identity

import (
	"crypto/rand"
	"crypto/sha256"
	"crypto/subtle"
	"encoding/hex"
	"fmt"
	"slices"
	"strings"
	"time"
)

// Shape of a key.
const (
	keyPrefix    = "psk_"
	idLength     = 10 // characters of the public id
	secretLength = 32 // characters of the secret, 5 bits each
)

// alphabet has 32 characters, so that each random byte gives one without bias.
const alphabet = "abcdefghijkmnpqrstuvwxyz23456789"

// Roles of the admin API, from the least to the most.
const (
	RoleNone    = ""
	RoleRead    = "read"
	RoleOperate = "operate"
	RoleAdmin   = "admin"
)

// Key is one key as the file keeps it. There is no secret in it.
type Key struct {
	ID      string    `json:"id"` // public
	Tenant  string    `json:"tenant"`
	Note    string    `json:"note,omitempty"`
	Class   uint8     `json:"class,omitempty"` // priority class, 0 is the most urgent
	Created time.Time `json:"created"`
	Revoked bool      `json:"revoked,omitempty"`
	Secrets []Secret  `json:"secrets"`
	Scopes
}

// Secret is one secret of a key. During a rotation a key has two.
type Secret struct {
	SHA256  string     `json:"sha256"` // hex
	Created time.Time  `json:"created"`
	Expires *time.Time `json:"expires,omitempty"` // nil: never
}

// Scopes are what a key may do. Names may end in "*", which stands for anything.
type Scopes struct {
	Models   []string `json:"models,omitempty"`   // names that clients use; empty: all of the catalogue
	Adapters []string `json:"adapters,omitempty"` // empty: those of the models above
	Surfaces []string `json:"surfaces,omitempty"` // empty: all; names as in fleet.Surface
	Debug    bool     `json:"debug,omitempty"`    // may learn which replica answered
	Role     string   `json:"role,omitempty"`     // in the admin API: read, operate, admin; "" none
	Logging  string   `json:"logging,omitempty"`  // policy on prompts; "" is the tenant's
}

// MayUse reports whether the scopes allow the model that clients call name, or its
// adapter. base is the adapter's model as clients call it; "" for a model.
func (s *Scopes) MayUse(name, base string) bool {
	if base == "" {
		return allowed(s.Models, name)
	}
	if len(s.Adapters) > 0 {
		return allowed(s.Adapters, name)
	}
	return allowed(s.Models, base) || allowed(s.Models, name)
}

// MayCall reports whether the scopes allow a surface.
func (s *Scopes) MayCall(surface string) bool { return allowed(s.Surfaces, surface) }

func allowed(list []string, name string) bool {
	if len(list) == 0 {
		return true
	}
	return slices.ContainsFunc(list, func(p string) bool {
		if head, ok := strings.CutSuffix(p, "*"); ok {
			return strings.HasPrefix(name, head)
		}
		return p == name
	})
}

// newText returns n random characters of the alphabet.
func newText(n int) string {
	b := make([]byte, n)
	rand.Read(b) // never fails
	for i := range b {
		b[i] = alphabet[b[i]&31]
	}
	return string(b)
}

// hashSecret returns the SHA-256 of a secret.
func hashSecret(secret string) [sha256.Size]byte { return sha256.Sum256([]byte(secret)) }

// newSecret draws a secret and returns it with what the file keeps of it.
func newSecret(now time.Time, expires *time.Time) (string, Secret) {
	text := newText(secretLength)
	h := hashSecret(text)
	return text, Secret{SHA256: hex.EncodeToString(h[:]), Created: now.UTC().Truncate(time.Second), Expires: expires}
}

// Write returns the whole key of a public id and a secret.
func writeKey(id, secret string) string { return keyPrefix + id + "_" + secret }

// parseKey splits a key. It accepts nothing that newText could not have made.
func parseKey(s string) (id, secret string, ok bool) {
	rest, ok := strings.CutPrefix(s, keyPrefix)
	if !ok || len(rest) != idLength+1+secretLength || rest[idLength] != '_' {
		return "", "", false
	}
	id, secret = rest[:idLength], rest[idLength+1:]
	return id, secret, isText(id) && isText(secret)
}

func isText(s string) bool {
	for i := 0; i < len(s); i++ {
		if strings.IndexByte(alphabet, s[i]) < 0 {
			return false
		}
	}
	return true
}

// live is a key that the store looks up: its hashes decoded.
type live struct {
	Key
	hashes [][sha256.Size]byte
}

// nobody stands in for an unknown key, so that it costs what a known one does.
var nobody = &live{hashes: [][sha256.Size]byte{hashSecret("")}}

// matches reports whether a secret opens the key now. Its time does not depend on
// where hashes differ.
func (k *live) matches(hash [sha256.Size]byte, now time.Time) bool {
	open := 0
	for i := range k.hashes {
		same := subtle.ConstantTimeCompare(hash[:], k.hashes[i][:])
		valid := 0
		if i < len(k.Secrets) && (k.Secrets[i].Expires == nil || now.Before(*k.Secrets[i].Expires)) {
			valid = 1
		}
		open |= same & valid
	}
	return open == 1 && !k.Revoked
}

// compile checks a key and makes it fit for lookups.
func (k *Key) compile() (*live, error) {
	l := &live{Key: *k}
	switch {
	case len(k.ID) != idLength || !isText(k.ID):
		return nil, fmt.Errorf("the id of a key must be %d characters of its alphabet", idLength)
	case k.Tenant == "":
		return nil, fmt.Errorf("key %s has no tenant", k.ID)
	case !slices.Contains([]string{RoleNone, RoleRead, RoleOperate, RoleAdmin}, k.Role):
		return nil, fmt.Errorf("key %s has a role that is none of read, operate, admin", k.ID)
	case !slices.Contains([]string{"", "none", "metadata", "hash", "redacted", "full"}, k.Logging):
		return nil, fmt.Errorf("key %s has a logging policy that is none of none, metadata, hash, redacted, full", k.ID)
	}
	for _, s := range k.Secrets {
		var h [sha256.Size]byte
		if n, err := hex.Decode(h[:], []byte(s.SHA256)); err != nil || n != len(h) || len(s.SHA256) != 2*len(h) {
			return nil, fmt.Errorf("key %s has a secret whose sha256 is not one", k.ID)
		}
		l.hashes = append(l.hashes, h)
	}
	return l, nil
}
