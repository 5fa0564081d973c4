// SPDX-License-Identifier: Apache-2.0

package gateway

import (
	"cmp"
	"sync"
)

// refusals count the requests that we refused, by tenant and reason. Both are sets
// that the configuration and we ourselves close.
type refusals struct {
	mu sync.Mutex
	by map[string]map[string]uint64
}

func (r *refusals) add(tenant, reason string) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.by == nil {
		r.by = map[string]map[string]uint64{}
	}
	m := r.by[tenant]
	if m == nil {
		m = map[string]uint64{}
		r.by[tenant] = m
	}
	m[reason]++
}

// Refused returns how many requests of each tenant were refused, by reason: what a
// limit counts, or the code of the error.
func (h *Handler) Refused() map[string]map[string]uint64 {
	h.refusals.mu.Lock()
	defer h.refusals.mu.Unlock()
	out := map[string]map[string]uint64{}
	for t, m := range h.refusals.by {
		out[t] = map[string]uint64{}
		for reason, n := range m {
			out[t][reason] = n
		}
	}
	return out
}

// accountRefusal counts a request that we refused.
func (c *call) accountRefusal() {
	if c.source == "gateway" && c.status >= 400 && c.phase < phaseAnswer {
		c.h.refusals.add(c.who.Tenant, cmp.Or(c.limit, c.fault))
	}
}
