// SPDX-License-Identifier: Apache-2.0

package entry

import (
	"context"
	"sync"
	"sync/atomic"
)

// Watch is a request that ends when its key does.
type Watch struct {
	key    string
	cancel context.CancelFunc
	then   func() // nil: there is nothing else to do
	closed atomic.Bool
}

// Closed reports whether the key of the request was closed while it ran. A request
// that is not watched, nil, outlives its key.
func (v *Watch) Closed() bool { return v != nil && v.closed.Load() }

// Watches holds the requests under way whose keys are watched, of all doors. It is
// safe for concurrent use; a nil one holds none.
type Watches struct {
	mu  sync.Mutex
	all map[*Watch]struct{}
}

// Add begins to watch the key of a request. The context that it returns ends with the
// key; then, where it is not nil, is called on a goroutine of its own once it did.
// Whoever is not known by a key, or Watches that are nil, get ctx and no Watch.
func (w *Watches) Add(ctx context.Context, key string, then func()) (context.Context, *Watch) {
	if w == nil || key == "" {
		return ctx, nil
	}
	ctx, cancel := context.WithCancel(ctx)
	v := &Watch{key: key, cancel: cancel, then: then}
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.all == nil {
		w.all = map[*Watch]struct{}{}
	}
	w.all[v] = struct{}{}
	return ctx, v
}

// Drop ends a watch, with its request. A nil one is none.
func (w *Watches) Drop(v *Watch) {
	if v == nil {
		return
	}
	v.cancel()
	w.mu.Lock()
	defer w.mu.Unlock()
	delete(w.all, v)
}

// End ends the requests whose key does not open any more, and returns how many.
func (w *Watches) End(open func(key string) bool) int {
	if w == nil {
		return 0
	}
	w.mu.Lock()
	defer w.mu.Unlock()
	n := 0
	for v := range w.all {
		if v.Closed() || open(v.key) {
			continue
		}
		v.closed.Store(true)
		v.cancel()
		if v.then != nil {
			go v.then()
		}
		n++
	}
	return n
}
