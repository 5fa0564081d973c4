// SPDX-License-Identifier: Apache-2.0

package gateway

import (
	"context"
	"net/http"
	"sync"
	"sync/atomic"

	"github.com/penstock-project/penstock/internal/entry"
	"github.com/penstock-project/penstock/internal/fleet"
)

// watched is a request that ends when its key does.
type watched struct {
	key    string
	cancel context.CancelFunc
	closed atomic.Bool // the key does not open any more
}

// watches holds the requests under way whose keys are watched.
type watches struct {
	mu  sync.Mutex
	all map[*watched]struct{}
}

func (w *watches) add(ctx context.Context, key string) (context.Context, *watched) {
	ctx, cancel := context.WithCancel(ctx)
	v := &watched{key: key, cancel: cancel}
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.all == nil {
		w.all = map[*watched]struct{}{}
	}
	w.all[v] = struct{}{}
	return ctx, v
}

func (w *watches) drop(v *watched) {
	if v == nil {
		return
	}
	v.cancel()
	w.mu.Lock()
	defer w.mu.Unlock()
	delete(w.all, v)
}

// EndStreams ends the requests whose key does not open any more: those that wait with
// 401, streams with an error event. It returns how many. Only requests that began with
// Options.EndStreams are known.
func (h *Handler) EndStreams(open func(key string) bool) int {
	h.watches.mu.Lock()
	defer h.watches.mu.Unlock()
	n := 0
	for v := range h.watches.all {
		if !v.closed.Load() && !open(v.key) {
			v.closed.Store(true)
			v.cancel()
			n++
		}
	}
	return n
}

// revoked reports whether the key of the request was closed while it ran.
func (c *call) revoked() bool { return c.watch != nil && c.watch.closed.Load() }

// watchKey makes the request end with its key, where that is wanted.
func (c *call) watchKey() {
	if c.h.o.EndStreams && c.who.Key != "" {
		c.ctx, c.watch = c.h.watches.add(c.ctx, c.who.Key)
	}
}

// turnOut ends a request whose key was closed before anything of its answer was sent.
func (c *call) turnOut() {
	c.outcome.Kind = fleet.OutcomeRefused
	c.refuse(entry.Unauthorized())
	http.NewResponseController(c.w).Flush() // a client that left as well misses it
	panic(http.ErrAbortHandler)
}
