// SPDX-License-Identifier: Apache-2.0

package gateway

import "github.com/penstock-project/penstock/internal/entry"

// Door returns what this handler shares with the other doors of its server.
func (h *Handler) Door() *entry.Door { return h.door }

// SetTenants replaces the policies of tenants; a tenant without one has the zero
// policy. Requests under way keep what they have.
func (h *Handler) SetTenants(m map[string]entry.TenantPolicy) { h.door.SetTenants(m) }
