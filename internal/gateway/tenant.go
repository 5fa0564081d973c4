// SPDX-License-Identifier: Apache-2.0

package gateway

import (
	"context"
	"errors"

	"github.com/penstock-project/penstock/internal/entry"
	"github.com/penstock-project/penstock/internal/flow"
)

// Door returns what this handler shares with the other doors of its server.
func (h *Handler) Door() *entry.Door { return h.door }

// SetTenants replaces the policies of tenants; a tenant without one has the zero
// policy. Requests under way keep what they have.
func (h *Handler) SetTenants(m map[string]entry.TenantPolicy) { h.door.SetTenants(m) }

// acquire gets a place for the request.
func (c *call) acquire(ctx context.Context) (*flow.Grant, error) {
	g, err := c.h.door.Acquire(ctx, c.target.pool.Flow, &c.req)
	var full *entry.QueueFull
	if errors.As(err, &full) {
		c.h.metrics.overLimit("queue").Inc()
	}
	return g, err
}
