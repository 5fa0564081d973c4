// SPDX-License-Identifier: Apache-2.0

package gateway

import (
	"cmp"
	"slices"
)

// Policies on what of a prompt may be recorded, the strictest first. Prompts and
// answers themselves are recorded nowhere; under LoggingNone there is no record of
// the decision on a request either, so it cannot be explained or replayed.
const (
	LoggingNone     = "none"
	LoggingMetadata = "metadata"
)

var loggingPolicies = []string{LoggingNone, LoggingMetadata, "hash", "redacted", "full"}

// headerLogging is how a client tightens the policy for one request.
const headerLogging = "X-Prompt-Logging"

// logging is the policy of a request: the strictest of the tenant's, the key's and
// what the client asks for. A word that is no policy counts as the strictest: who
// asks for less in words that we do not know must not get more.
func (c *call) logging() string {
	p := cmp.Or(c.h.tenant(c.who.Tenant).Logging, LoggingMetadata)
	if c.who.Scopes != nil {
		p = stricter(p, c.who.Scopes.Logging)
	}
	for _, v := range c.r.Header[headerLogging] {
		p = stricter(p, cmp.Or(v, LoggingNone))
	}
	return p
}

// stricter returns the stricter of two policies; "" is no opinion.
func stricter(a, b string) string {
	if b == "" {
		return a
	}
	return loggingPolicies[max(0, min(slices.Index(loggingPolicies, a), slices.Index(loggingPolicies, b)))]
}
