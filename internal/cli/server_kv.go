// SPDX-License-Identifier: Apache-2.0

package cli

import (
	"context"
	"time"

	"github.com/penstock-project/penstock/internal/console"
	"github.com/penstock-project/penstock/internal/dispatch"
	"github.com/penstock-project/penstock/internal/fleet"
	"github.com/penstock-project/penstock/internal/observe"
)

// readKV makes the reader of a pool's KV events; none where they are off.
func (s *server) readKV(lp *livePool) {
	mode := lp.cfg.Engine.KVEvents
	if mode == "" || mode == "off" {
		return
	}
	exact := lp.cfg.Engine.Tokens == "exact"
	lp.kv = observe.NewKVReader(observe.KVOptions{
		Mode: mode, Key: s.hashKey, Auth: lp.auth, Log: s.log,
		Apply: func(endpoint string, rank int, changes []observe.CacheChange) {
			applyCache(lp, endpoint, rank, changes, exact)
		},
	})
	s.background = append(s.background, func(ctx context.Context) { lp.kv.Run(ctx) })
}

// cacheStep is how many blocks one call into the pool takes: a request that waits for
// the pool meanwhile waits some tens of microseconds.
const cacheStep = 256

// applyCache tells a pool what a replica's engine caches. Keys of blocks are those of
// token ids: they mean something to the index only where prompts are hashed by token.
// All else, that a cache was emptied, that events were lost and how much is cached,
// corrects an index of text as well.
func applyCache(lp *livePool, endpoint string, rank int, changes []observe.CacheChange, exact bool) {
	kinds := [...]dispatch.CacheKind{
		observe.CacheStored: dispatch.CacheStored, observe.CacheRemoved: dispatch.CacheRemoved, observe.CacheCleared: dispatch.CacheCleared,
		observe.CacheUnsure: dispatch.CacheUnsure, observe.CacheSure: dispatch.CacheSure, observe.CacheUsed: dispatch.CacheUsed,
	}
	for i := range changes {
		c := &changes[i]
		e := dispatch.CacheEvent{Kind: kinds[c.Kind], Endpoint: endpoint, Rank: rank, Parent: c.Parent, Tokens: c.Tokens}
		switch c.Kind {
		case observe.CacheStored, observe.CacheRemoved:
			if !exact {
				continue
			}
			for keys := c.Keys; len(keys) > 0; {
				n := min(len(keys), cacheStep)
				e.Blocks = keys[:n]
				lp.flow.Cached(&e)
				e.Parent, keys = keys[n-1], keys[n:]
			}
			continue
		case observe.CacheUsed:
			if exact {
				continue // every block that left was told of
			}
		}
		lp.flow.Cached(&e)
	}
}

// observeKV follows the replicas of a snapshot.
func (lp *livePool) observeKV(snap *fleet.Snapshot) {
	if lp.kv != nil {
		lp.kv.Observe(snap)
	}
}

// kvStates describes how the events of a pool's replicas are heard, by replica.
func (lp *livePool) kvStates() map[string]*console.KVState {
	if lp.kv == nil {
		return nil
	}
	out := map[string]*console.KVState{}
	for id, s := range lp.kv.States() {
		k := &console.KVState{
			Source: s.Source, Fault: s.Fault, Batches: s.Batches, Gaps: s.Gaps, Healed: s.Healed, Restarts: s.Restarts,
			Orphans: s.Orphans, Malformed: s.Bad, Tokens: s.Tokens, Unsure: s.Unsure,
		}
		if !s.Last.IsZero() {
			ms := float64(time.Since(s.Last)/time.Microsecond) / 1e3
			k.AgeMS = &ms
		}
		out[id] = k
	}
	return out
}
