// SPDX-License-Identifier: Apache-2.0

package gateway

import (
	"net/http"

	"github.com/penstock-project/penstock/internal/entry"
	"github.com/penstock-project/penstock/internal/fleet"
)

// turnOut ends a request whose key was closed before anything of its answer was sent.
func (c *call) turnOut() {
	c.outcome.Kind = fleet.OutcomeRefused
	if c.grant != nil && c.phase >= phaseFirstByte {
		c.outcome.Kind = fleet.OutcomeClientGone // an engine worked on it: it costs what it costs one who leaves
	}
	c.refuse(entry.Unauthorized())
	http.NewResponseController(c.w).Flush() // a client that left as well misses it
	panic(http.ErrAbortHandler)
}
