// SPDX-License-Identifier: Apache-2.0

package entry

import (
	"cmp"
	"context"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"net/http"
	"slices"
	"strconv"
	"sync"
	"sync/atomic"
	"time"

	"github.com/penstock-project/penstock/internal/fleet"
	"github.com/penstock-project/penstock/internal/flow"
	"github.com/penstock-project/penstock/internal/route"
	"github.com/penstock-project/penstock/internal/share"
	"github.com/penstock-project/penstock/internal/wire"
)

// Door is what the doors of a server have in common. Set its fields before use; it
// is then safe for concurrent use.
type Door struct {
	Auth   Authenticator // never nil
	Quotas *share.Meter  // nil: there are no limits
	// HashKey keys the hashes of prompts; the same in routers that share an index.
	HashKey    uint64
	BlockBytes int // text in a block of the index, in bytes
	// Limits bound what a body may ask for; the zero value: the defaults.
	Limits wire.Limits
	Clock  func() fleet.Time
	// SessionHeaders name a session where the body does not, in lower case.
	SessionHeaders []string
	// Tokens tells token ids; nil: prompts go by their text.
	Tokens Tokenizer
	// Watches are the requests that end with their key; nil: none does.
	Watches *Watches

	tenants atomic.Pointer[map[string]TenantPolicy]
	queues  queues
}

// Guarded reports whether callers have to say who they are.
func (d *Door) Guarded() bool {
	_, open := d.Auth.(Anonymous)
	return !open
}

// TenantPolicy is what holds for the requests of one tenant beside its quotas.
type TenantPolicy struct {
	// CacheSalt says with whom its requests share the prefix cache of an engine:
	// "shared" or "" with everybody, "tenant" with its own, "user" with the same user.
	CacheSalt string
	// QueueCap is how many of its requests may wait for a replica at a time; 0: any
	// number.
	QueueCap int
	// Pools are those that its prompts may reach; empty: all.
	Pools map[string]bool
	// Logging is the policy on prompts, see Logging*; "" is LoggingMetadata.
	Logging string
	// Deadline is how long after its arrival the first token of a request is still
	// worth having; 0: there is none. What is predicted to be later is refused at
	// once.
	Deadline time.Duration
}

// SetTenants replaces the policies of tenants; a tenant without one has the zero
// policy. Requests under way keep what they have.
func (d *Door) SetTenants(m map[string]TenantPolicy) { d.tenants.Store(&m) }

// Tenant returns the policy of a tenant.
func (d *Door) Tenant(name string) TenantPolicy {
	if m := d.tenants.Load(); m != nil {
		return (*m)[name]
	}
	return TenantPolicy{}
}

// MayReach reports whether the data policy of a tenant lets its prompts reach a pool.
func (d *Door) MayReach(tenant, pool string) bool {
	t := d.Tenant(tenant)
	return len(t.Pools) == 0 || t.Pools[pool]
}

// Salt returns the cache salt that a policy wants for a request, "" where the
// client's own, or none, stands. A client's salt may only part its requests further:
// it goes into ours.
func (d *Door) Salt(who *Identity, s *wire.Scan) string {
	policy := d.Tenant(who.Tenant).CacheSalt
	if policy != "tenant" && policy != "user" || !s.Surface.Generates() {
		return "" // other surfaces have no prefix cache that the timing of answers shows
	}
	b := append(make([]byte, 0, 192), "penstock cache salt v1\x00"...)
	b = strconv.AppendQuote(b, who.Tenant)
	if policy == "user" {
		// A token names its user; of a key the client says whom it asks for, which
		// parts its own users only.
		b = strconv.AppendQuote(append(b, 0), who.User)
		if who.User == "" {
			b = strconv.AppendQuote(append(b, 0), who.Key)
			b = strconv.AppendUint(append(b, 0), s.User, 10)
		}
	}
	b = strconv.AppendQuote(append(b, 0), string(s.CacheSalt))
	sum := sha256.Sum256(b)
	return hex.EncodeToString(sum[:16])
}

// Policies on what of a prompt may be recorded, the strictest first. Prompts and
// answers themselves are recorded nowhere; under LoggingNone there is no record of
// the decision on a request either, so it cannot be explained or replayed.
const (
	LoggingNone     = "none"
	LoggingMetadata = "metadata"
)

var loggingPolicies = []string{LoggingNone, LoggingMetadata, "hash", "redacted", "full"}

// HeaderLogging is how a client tightens the policy for one request.
const HeaderLogging = "X-Prompt-Logging"

// Logging is the policy of a request: the strictest of the tenant's, the key's and
// what the client asks for in its header. A word that is no policy counts as the
// strictest: who asks for less in words that we do not know must not get more.
func (d *Door) Logging(who *Identity, header []string) string {
	p := cmp.Or(d.Tenant(who.Tenant).Logging, LoggingMetadata)
	if who.Scopes != nil {
		p = stricter(p, who.Scopes.Logging)
	}
	for _, v := range header {
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

// QueueFull says that as many requests of a tenant wait as may.
type QueueFull struct{ Most int }

func (e *QueueFull) Error() string {
	return "the limit of " + strconv.Itoa(e.Most) + " waiting requests is reached"
}

// Acquire gets a place for a request of a tenant. One that has too many waiting is
// refused at once with *QueueFull: its queue would only grow. Other errors are those
// of Flow.Acquire.
func (d *Door) Acquire(ctx context.Context, pool *flow.Flow, r *fleet.Request) (*flow.Grant, error) {
	most := d.Tenant(r.Tenant).QueueCap
	if most <= 0 {
		return pool.Acquire(ctx, r)
	}
	leave, ok := d.queues.enter(r.Tenant, most)
	if !ok {
		return nil, &QueueFull{Most: most}
	}
	defer leave()
	return pool.Acquire(ctx, r)
}

// Fault makes the answer of a request that got no place, for the reason err.
func Fault(err error) *wire.Error {
	var fault *wire.Error
	var none *flow.NoReplicaError
	var full *QueueFull
	switch {
	case errors.As(err, &fault):
		return fault
	case errors.As(err, &full):
		return &wire.Error{Status: http.StatusTooManyRequests, Code: wire.CodeRateLimited, RetryAfter: time.Second, Message: full.Error()}
	case !errors.As(err, &none):
		return &wire.Error{Status: http.StatusServiceUnavailable, Code: wire.CodeNoReplica, RetryAfter: time.Second, Message: "no replica can take the request"}
	case none.Cause == route.DropModel || none.Cause == route.DropAdapter:
		return &wire.Error{Status: http.StatusNotFound, Code: wire.CodeModelNotFound, Param: "model", Message: none.Reason}
	}
	e := &wire.Error{Status: http.StatusServiceUnavailable, Code: wire.CodeNoReplica, RetryAfter: max(none.RetryAfter, time.Second), Message: none.Reason}
	if none.Late {
		e.Code = wire.CodeDeadline
	}
	return e
}

// OverLimit makes the answer to a request that a limit keeps out. What its head
// tells of the limit stands in no.Head.
func OverLimit(no *share.Refused) *wire.Error {
	return &wire.Error{Status: http.StatusTooManyRequests, Code: wire.CodeRateLimited, RetryAfter: no.RetryAfter, Message: no.Message()}
}
