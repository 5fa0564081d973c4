// SPDX-License-Identifier: Apache-2.0

package gateway

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"fmt"
	"net/http"
	"strconv"
	"sync"
	"sync/atomic"
	"time"

	"github.com/penstock-project/penstock/internal/fleet"
	"github.com/penstock-project/penstock/internal/flow"
	"github.com/penstock-project/penstock/internal/wire"
)

// TenantPolicy is what holds for the requests of one tenant beside its quotas.
type TenantPolicy struct {
	// CacheSalt says with whom its requests share the prefix cache of an engine:
	// "shared" or "" with everybody, "tenant" with its own, "user" with the same user.
	CacheSalt string
	// QueueCap is how many of its requests may wait for a replica at a time; 0: any
	// number.
	QueueCap int
	// Logging is the policy on prompts, see Logging*; "" is LoggingMetadata.
	Logging string
	// Deadline is how long after its arrival the first token of a request is still
	// worth having; 0: there is none. What is predicted to be later is refused at
	// once.
	Deadline time.Duration
}

// SetTenants replaces the policies of tenants; a tenant without one has the zero
// policy. Requests under way keep what they have.
func (h *Handler) SetTenants(m map[string]TenantPolicy) { h.tenants.Store(&m) }

func (h *Handler) tenant(name string) TenantPolicy {
	if m := h.tenants.Load(); m != nil {
		return (*m)[name]
	}
	return TenantPolicy{}
}

// saltOf returns the cache salt that a policy wants for a request, "" where the
// client's own, or none, stands. A client's salt may only part its requests further:
// it goes into ours.
func saltOf(policy string, who *Identity, s *wire.Scan) string {
	if policy != "tenant" && policy != "user" || !salted(s.Surface) {
		return ""
	}
	h := sha256.New()
	fmt.Fprintf(h, "penstock cache salt v1\x00%q", who.Tenant)
	if policy == "user" {
		// A token names its user; of a key the client says whom it asks for, which
		// parts its own users only.
		fmt.Fprintf(h, "\x00%q", who.User)
		if who.User == "" {
			fmt.Fprintf(h, "\x00%q\x00%d", who.Key, s.User)
		}
	}
	fmt.Fprintf(h, "\x00%q", s.CacheSalt)
	return hex.EncodeToString(h.Sum(nil)[:16])
}

// salted reports whether a surface has a prefix cache that its answers' timing shows.
func salted(s fleet.Surface) bool {
	switch s {
	case fleet.SurfaceChat, fleet.SurfaceCompletions, fleet.SurfaceResponses, fleet.SurfaceMessages:
		return true
	}
	return false
}

// queues counts the requests of each tenant that wait for a replica.
type queues struct{ byTenant sync.Map } // name -> *atomic.Int64

// enter counts a request that may have to wait. It returns how to leave, or false
// where the tenant has as many as it may.
func (q *queues) enter(tenant string, most int) (leave func(), ok bool) {
	v, found := q.byTenant.Load(tenant)
	if !found {
		v, _ = q.byTenant.LoadOrStore(tenant, new(atomic.Int64))
	}
	n := v.(*atomic.Int64)
	if n.Add(1) > int64(most) {
		n.Add(-1)
		return nil, false
	}
	return func() { n.Add(-1) }, true
}

// acquire gets a place for the request. A tenant that has too many waiting is
// refused at once: its queue would only grow.
func (c *call) acquire(ctx context.Context) (*flow.Grant, error) {
	most := c.h.tenant(c.who.Tenant).QueueCap
	if most <= 0 {
		return c.target.pool.Flow.Acquire(ctx, &c.req)
	}
	leave, ok := c.h.queues.enter(c.who.Tenant, most)
	if !ok {
		c.h.metrics.overLimit("queue").Inc()
		return nil, &wire.Error{Status: http.StatusTooManyRequests, Code: wire.CodeRateLimited, RetryAfter: time.Second,
			Message: "the limit of " + strconv.Itoa(most) + " waiting requests is reached"}
	}
	defer leave()
	return c.target.pool.Flow.Acquire(ctx, &c.req)
}
