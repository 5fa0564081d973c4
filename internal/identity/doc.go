// SPDX-License-Identifier: Apache-2.0

// Package identity says who sent a request: by an API key of a file, by a token of
// an OIDC issuer, or by a client certificate. Nothing else that a client sends
// counts.
//
// A key is psk_PUBLICID_SECRET. The public id names it in logs and in the file; of
// the secret the file holds the SHA-256 only. The secret has 160 random bits, so a
// fast hash is enough: there is nothing to guess.
package identity
