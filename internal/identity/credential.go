// SPDX-License-Identifier: Apache-2.0

package identity

import (
	"errors"
	"net/http"
	"strings"
)

// Errors of Credential.
var (
	ErrNone        = errors.New("there is no API key in the request")
	ErrConflict    = errors.New("the request carries several credentials that differ")
	ErrUnreadable  = errors.New("the Authorization header is not Bearer and a key")
	maxCredential  = 16 << 10
	credentialKeys = [...]string{"X-Api-Key", "Api-Key"}
)

// Credential returns what a request identifies itself with: the bearer token of
// Authorization, x-api-key or api-key. Several are an error unless they are equal:
// two accepted credentials would be two identities to choose from. The errors hold
// nothing of the credential.
func Credential(h http.Header) (string, error) {
	found := ""
	take := func(v string) error {
		switch {
		case v == "" || len(v) > maxCredential || !printable(v):
			return ErrUnreadable
		case found != "" && found != v:
			return ErrConflict
		}
		found = v
		return nil
	}
	if auth := h["Authorization"]; len(auth) > 1 {
		return "", ErrConflict
	} else if len(auth) == 1 {
		scheme, rest, _ := strings.Cut(auth[0], " ")
		if !strings.EqualFold(scheme, "bearer") {
			return "", ErrUnreadable
		}
		if err := take(strings.TrimSpace(rest)); err != nil {
			return "", err
		}
	}
	for _, name := range credentialKeys {
		if len(h[name]) > 1 {
			return "", ErrConflict
		}
		for _, v := range h[name] {
			if err := take(v); err != nil {
				return "", err
			}
		}
	}
	if found == "" {
		return "", ErrNone
	}
	return found, nil
}

// printable refuses bytes that no credential has: controls, spaces, quotes.
func printable(s string) bool {
	for i := 0; i < len(s); i++ {
		if c := s[i]; c <= ' ' || c >= 0x7f || c == '"' || c == '\'' || c == ',' {
			return false
		}
	}
	return true
}
