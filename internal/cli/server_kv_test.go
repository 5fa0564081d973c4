// SPDX-License-Identifier: Apache-2.0

package cli

import (
	"fmt"
	"testing"
	"time"

	"github.com/penstock-project/penstock/internal/config"
	"github.com/penstock-project/penstock/internal/console"
	"github.com/penstock-project/penstock/internal/journal"
	"github.com/penstock-project/penstock/internal/replica"
	"github.com/penstock-project/penstock/internal/testinput"
)

func unusedAddr(t *testing.T) string {
	t.Helper()
	return fmt.Sprintf("127.0.0.1:%d", testinput.Port(t))
}

func eventually(t *testing.T, what string, ok func() bool) {
	t.Helper()
	for range 12000 { // a minute
		if ok() {
			return
		}
		time.Sleep(5 * time.Millisecond)
	}
	t.Fatalf("it never came to pass that %s", what)
}

// accounted waits until nothing is under way at the gateway of s: the record of a
// request is made behind its answer.
func accounted(t *testing.T, s *server) {
	t.Helper()
	eventually(t, "the last request is accounted for", func() bool { return s.front.h.Stats().InFlight == 0 })
}

// TestKVEventsCorrectTheIndex: replicas publish over real sockets; a router that goes
// by token ids knows what they cache to the block, also after they evicted it, and that
// a restarted one caches nothing.
func TestKVEventsCorrectTheIndex(t *testing.T) {
	port := testinput.Port(t)
	options := func(listen string) replica.Options {
		return replica.Options{
			Models: []string{"m"}, Listen: listen, Speed: 50, KVTokens: 6400,
			KVEvents: fmt.Sprintf("tcp://*:%d", port), KVReplay: fmt.Sprintf("tcp://*:%d", testinput.Port(t)),
		}
	}
	start := func(listen string) *replica.Server {
		r, err := replica.New(options(listen))
		if err != nil {
			t.Fatal(err)
		}
		if err := r.Start(t.Context()); err != nil {
			t.Fatal(err)
		}
		t.Cleanup(r.Close)
		return r
	}
	r := start("127.0.0.1:0")
	s, _ := runServer(t, func(c *config.Config) { c.Pools[0].Engine.Tokens = "exact" }, r.URL())
	row := func() *console.ReplicaStatus { return &s.admin.Status().Pools[0].Replica[0] }
	eventually(t, "the events are read", func() bool { k := row().KVEvents; return k != nil && k.Fault == "" })
	eventually(t, "the size of a block is known", func() bool { return row().KVTokens != nil })

	// The subscription takes a moment to arrive; what was published before is asked for
	// again.
	for c := range 3 {
		turn(t, s.GatewayURL(), c, 3)
	}
	eventually(t, "they are heard", func() bool { k := row().KVEvents; return k.Batches > 0 && k.Tokens > 0 })
	// What an engine publishes of an answer comes some time behind it.
	heard := func(r *replica.Server) func() bool {
		return func() bool { k := row().KVEvents; return k != nil && k.Tokens == r.Stats().KVCachedTokens }
	}
	predicted := func() (predicted, cached int) {
		accounted(t, s)
		if rec, ok := s.journal.Last(journal.Filter{}); ok {
			return rec.Outcome.PredictedCachedTokens, *rec.Outcome.CachedTokens
		}
		t.Fatal("no record")
		return 0, 0
	}
	// Conversations push each other out of a cache that holds two of them.
	off := 0
	for i := range 12 {
		eventually(t, "all is heard", heard(r))
		_, want := turn(t, s.GatewayURL(), i%4, 3+i/4)
		p, cached := predicted()
		if cached != want {
			t.Fatalf("the record says %d cached tokens, the answer %d", cached, want)
		}
		if d := p - cached; d > 16 || d < -16 {
			off++
			t.Logf("turn %d: %d tokens predicted, %d cached", i, p, cached)
		}
	}
	if off > 1 {
		t.Errorf("%d of 12 predictions were off by more than a block", off)
	}

	listen := r.Addr()
	r.Close()
	_ = start(listen)
	eventually(t, "the router knows that the cache is gone", func() bool {
		row := row()
		return row.Phase == "ready" && row.Own != nil && row.Own.Restarts > 0 && row.Own.CacheBlocks == 0
	})
	turn(t, s.GatewayURL(), 0, 6)
	if p, cached := predicted(); p != 0 || cached != 0 {
		t.Errorf("after the restart %d tokens predicted, %d cached", p, cached)
	}
	eventually(t, "the new process is heard", func() bool { k := row().KVEvents; return k != nil && k.Tokens > 0 })
}

// TestKVEventsOfAnIndexOfText: without token ids single blocks mean nothing; how much
// is cached bounds what is believed.
func TestKVEventsOfAnIndexOfText(t *testing.T) {
	urls, all := startReplicas(t, 1, func(_ int, o *replica.Options) {
		o.KVTokens, o.KVEvents = 6400, fmt.Sprintf("tcp://*:%d", testinput.Port(t))
	})
	s, _ := runServer(t, nil, urls...)
	row := func() *console.ReplicaStatus { return &s.admin.Status().Pools[0].Replica[0] }
	eventually(t, "the events are read", func() bool { k := row().KVEvents; return k != nil && k.Fault == "" })
	n := 0
	eventually(t, "they are heard", func() bool { turn(t, s.GatewayURL(), n, 3); n++; return row().KVEvents.Batches > 3 })
	accounted(t, s)
	eventually(t, "all is heard", func() bool { return row().KVEvents.Tokens == all[0].Stats().KVCachedTokens })
	st := row()
	// A block of text is 512 bytes, about 128 tokens.
	if believed := float64(st.Own.CacheBlocks) * 128; believed > 1.3*float64(st.KVEvents.Tokens)+256 {
		t.Errorf("%d blocks of text are believed to be cached, %d tokens are", st.Own.CacheBlocks, st.KVEvents.Tokens)
	}
}
