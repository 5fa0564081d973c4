// SPDX-License-Identifier: Apache-2.0

package console

import (
	"context"
	"testing"
	"time"

	"github.com/penstock-project/penstock/internal/dispatch"
	"github.com/penstock-project/penstock/internal/flow"
	"github.com/penstock-project/penstock/internal/observe"
)

// TestDoubtInKVEvents: a replica is shown as unsure from a gap in its events until the
// index is believed again.
func TestDoubtInKVEvents(t *testing.T) {
	f := flow.New(flow.Options{Pool: "chat", Dispatch: dispatch.New(dispatch.Options{Pool: "chat"})})
	defer f.Close()
	ob := observe.New(observe.Options{Pool: "chat", Source: observe.Static{{ID: "r0", URL: "http://127.0.0.1:1", Rank: -1}}, Publish: f.Observe})
	ctx, cancel := context.WithCancel(t.Context())
	done := make(chan struct{})
	go func() { defer close(done); _ = ob.Run(ctx) }()
	defer func() { cancel(); <-done }()
	for len(f.Stats().Endpoints) == 0 {
		time.Sleep(5 * time.Millisecond)
	}
	p := Pool{Name: "chat", Flow: f, Observer: ob, KV: func() map[string]*KVState { return map[string]*KVState{"r0": {Unsure: true}} }}
	for _, c := range []struct {
		kind   dispatch.CacheKind
		unsure bool
	}{{dispatch.CacheUnsure, true}, {dispatch.CacheSure, false}} {
		f.Cached(&dispatch.CacheEvent{Kind: c.kind, Endpoint: "r0"})
		if r := poolStatus(p, 2).Replica; len(r) != 1 || r[0].KVEvents == nil || r[0].KVEvents.Unsure != c.unsure {
			t.Errorf("after event %d: %+v", c.kind, r)
		}
	}
}
