// SPDX-License-Identifier: Apache-2.0

package flow

import (
	"fmt"
	"math/rand/v2"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/penstock-project/penstock/internal/dispatch"
	"github.com/penstock-project/penstock/internal/fleet"
	"github.com/penstock-project/penstock/internal/route"
)

// stillFor runs 200 requests a second, whose answers do not stream, for 12 s against
// four replicas. The last one is still from 4 s on for 5 s: what is there then and what
// comes is answered afterwards, and scrapes of it hang. Twice a second 24 requests come
// at once. It returns how many took more than half a second.
func stillFor(t *testing.T, p route.Policy) int {
	var slow atomic.Int32
	f := New(Options{Pool: "p", Dispatch: dispatch.New(dispatch.Options{Pool: "p", Policy: p, Queue: true})})
	defer f.Close()
	start := time.Now()
	from, to := start.Add(4*time.Second), start.Add(9*time.Second)
	seen := fleet.At(start)
	look := func(n uint64) {
		s := snapshot(n, fleet.PhaseReady, fleet.PhaseReady, fleet.PhaseReady, fleet.PhaseReady)
		now := time.Now()
		if now.Before(from) || now.After(to) {
			seen = s.At
		}
		for i := range s.Endpoints {
			s.Endpoints[i].ScrapedAt, s.Endpoints[i].LifeAt = s.At, s.At
		}
		s.Endpoints[3].ScrapedAt, s.Endpoints[3].LifeAt = seen, seen
		f.Observe(s)
	}
	look(1)
	r := rand.New(rand.NewPCG(1, 1))
	var wg sync.WaitGroup
	send := func(n int) {
		answer := time.Duration(1+r.IntN(4)) * time.Millisecond
		wg.Go(func() {
			begin := time.Now()
			q := request(fmt.Sprint(n))
			q.Stream, q.Blocks = false, []uint64{1, 2, uint64(n) + 1000}
			g, err := f.Acquire(t.Context(), q)
			if err != nil {
				t.Error(err)
				return
			}
			time.Sleep(answer)
			if id, _ := g.Endpoint(); id == "r-3" && time.Now().After(from) && begin.Before(to) {
				time.Sleep(time.Until(to))
			}
			g.Done(fleet.Outcome{Kind: fleet.OutcomeOK, Status: 200, PromptTokens: 1000, CachedTokens: -1, OutputTokens: 12})
			if time.Since(begin) > 500*time.Millisecond {
				slow.Add(1)
			}
		})
	}
	for n := range 2400 {
		at := start.Add(time.Duration(n)*5*time.Millisecond + time.Duration(r.Int64N(int64(5*time.Millisecond))))
		time.Sleep(time.Until(at))
		if n%200 == 0 {
			look(uint64(n) + 2)
		}
		send(n)
		if n%100 == 50 {
			for k := range 23 {
				send(10000 + 100*n + k)
			}
		}
	}
	wg.Wait()
	if s := f.Stats(); s.Totals.InFlight != 0 {
		t.Errorf("in flight at the end: %d", s.Totals.InFlight)
	}
	return int(slow.Load())
}

// A replica that stands still draws no more requests than one has to find that out,
// although its prompts count as computed once that is due: fewer than by least requests.
func TestStillReplica(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		ours, least := stillFor(t, route.Penstock()), stillFor(t, route.LeastRequests(1))
		t.Logf("slow: %d, by least requests %d", ours, least)
		if ours > 3 || ours > least {
			t.Errorf("%d requests were slow, by least requests %d", ours, least)
		}
	})
}

// One that is long in answering, and answers to scrapes, is not taken for one that
// stands still: what has its prompt in the cache there still goes there.
func TestLongAnswerIsNoStandstill(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := New(Options{Pool: "p", Dispatch: dispatch.New(dispatch.Options{Pool: "p"})})
		defer f.Close()
		look := func(n uint64) {
			s := snapshot(n, fleet.PhaseReady, fleet.PhaseReady)
			for i := range s.Endpoints {
				s.Endpoints[i].ScrapedAt = s.At
			}
			f.Observe(s)
		}
		look(1)
		take := func(key uint64) *Grant {
			q := request(fmt.Sprint(key))
			q.Stream, q.PromptTokens = false, 8000
			for k := range q.Blocks {
				q.Blocks[k] += key
			}
			q.BlockTokens = 1000
			g, err := f.Acquire(t.Context(), q)
			if err != nil {
				t.Fatal(err)
			}
			return g
		}
		ok := fleet.Outcome{Kind: fleet.OutcomeOK, Status: 200, PromptTokens: 8000, CachedTokens: -1, OutputTokens: 12}
		for range 40 {
			g := take(100)
			time.Sleep(500 * time.Millisecond)
			g.Done(ok)
		}
		long := take(100)
		home, _ := long.Endpoint()
		for n := range uint64(30) {
			time.Sleep(time.Second)
			look(n + 2)
		}
		g := take(100)
		if id, _ := g.Endpoint(); id != home {
			t.Errorf("sent to %s, its prompt is at %s, which has been busy for long", id, home)
		}
		g.Done(ok)
		long.Done(ok)
	})
}
