// SPDX-License-Identifier: Apache-2.0

package entry

import (
	"context"
	"errors"
	"net/http"
	"testing"
	"time"

	"github.com/penstock-project/penstock/internal/dispatch"
	"github.com/penstock-project/penstock/internal/fleet"
	"github.com/penstock-project/penstock/internal/flow"
	"github.com/penstock-project/penstock/internal/identity"
	"github.com/penstock-project/penstock/internal/route"
	"github.com/penstock-project/penstock/internal/wire"
)

func TestStricter(t *testing.T) {
	for _, c := range [][3]string{
		{"metadata", "", "metadata"}, {"metadata", "none", "none"}, {"none", "full", "none"}, {"full", "metadata", "metadata"},
		{"metadata", "full", "metadata"}, {"full", "nonsense", "none"},
	} {
		if got := stricter(c[0], c[1]); got != c[2] {
			t.Errorf("stricter(%q, %q) = %q, want %q", c[0], c[1], got, c[2])
		}
	}
}

func TestFault(t *testing.T) {
	for _, c := range []struct {
		err    error
		status int
		code   string
		retry  time.Duration
	}{
		{&wire.Error{Status: 418, Code: "x"}, 418, "x", 0},
		{&QueueFull{Most: 3}, 429, wire.CodeRateLimited, time.Second},
		{&flow.NoReplicaError{Cause: route.DropModel}, 404, wire.CodeModelNotFound, 0},
		{&flow.NoReplicaError{Cause: route.DropNotReady, RetryAfter: 5 * time.Second}, 503, wire.CodeNoReplica, 5 * time.Second},
		{&flow.NoReplicaError{Late: true, RetryAfter: 7 * time.Second}, 503, wire.CodeDeadline, 7 * time.Second},
		{errors.New("something else"), 503, wire.CodeNoReplica, time.Second},
	} {
		e := Fault(c.err)
		if e.Status != c.status || e.Code != c.code || e.RetryAfter != c.retry {
			t.Errorf("%v: %d %s after %s, want %d %s after %s", c.err, e.Status, e.Code, e.RetryAfter, c.status, c.code, c.retry)
		}
	}
}

// A tenant that has as many requests waiting as it may is refused; others are not.
func TestQueueCap(t *testing.T) {
	d := &Door{Auth: Anonymous{}}
	d.SetTenants(map[string]TenantPolicy{"a": {QueueCap: 1}})
	pool := flow.New(flow.Options{Pool: "p", Dispatch: dispatch.New(dispatch.Options{Pool: "p", HoldFor: time.Minute})})
	defer pool.Close()
	pool.Observe(&fleet.Snapshot{Pool: "p", Version: 1, At: fleet.At(time.Now()), Endpoints: []fleet.EndpointState{{Endpoint: fleet.Endpoint{
		ID: "r", URL: "http://r", Phase: fleet.PhaseLoading, Models: []string{"m"}}}}})
	ctx, cancel := context.WithCancel(t.Context())
	waits := make(chan error, 1)
	go func() {
		_, err := d.Acquire(ctx, pool, &fleet.Request{ID: "1", Tenant: "a", Model: "m"})
		waits <- err
	}()
	for pool.Stats().Totals.Held == 0 {
		time.Sleep(time.Millisecond)
	}
	var full *QueueFull
	if _, err := d.Acquire(t.Context(), pool, &fleet.Request{ID: "2", Tenant: "a", Model: "m"}); !errors.As(err, &full) || full.Most != 1 {
		t.Errorf("a second one that waits: %v", err)
	}
	cancel()
	if err := <-waits; !errors.Is(err, context.Canceled) {
		t.Errorf("the first one: %v", err)
	}
}

type noKeys struct{}

func (noKeys) Find(string, time.Time) (identity.Caller, bool) { return identity.Caller{}, false }

// Whoever guesses through a proxy must not lock out the others behind it.
func TestFailuresNeedAnAddress(t *testing.T) {
	g := &Guard{Keys: noKeys{}, Failures: &identity.Failures{}}
	last := func(addr string) (status int) {
		for range 1000 {
			_, e := g.Authenticate(&http.Request{Header: http.Header{"Authorization": {"Bearer guess"}}, RemoteAddr: addr})
			status = e.Status
		}
		return status
	}
	if got := last(""); got != http.StatusUnauthorized {
		t.Errorf("without an address: %d", got)
	}
	if got := last("10.0.0.1:1"); got != http.StatusTooManyRequests {
		t.Errorf("with an address: %d", got)
	}
}
