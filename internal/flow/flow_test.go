// SPDX-License-Identifier: Apache-2.0

package flow

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"math/rand/v2"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/penstock-project/penstock/internal/dispatch"
	"github.com/penstock-project/penstock/internal/fleet"
	"github.com/penstock-project/penstock/internal/route"
)

func snapshot(version uint64, phases ...fleet.Phase) *fleet.Snapshot {
	s := &fleet.Snapshot{Pool: "p", Version: version, At: fleet.At(time.Now())}
	for i, p := range phases {
		s.Endpoints = append(s.Endpoints, fleet.EndpointState{Endpoint: fleet.Endpoint{
			ID: fmt.Sprintf("r-%d", i), URL: fmt.Sprintf("http://r-%d", i), Phase: p, Models: []string{"m"},
		}})
	}
	return s
}

func request(id string) *fleet.Request {
	return &fleet.Request{ID: id, Tenant: "acme", Model: "m", Stream: true, PromptTokens: 1000, BlockTokens: 128, Blocks: []uint64{1, 2, 3, 4, 5, 6, 7}}
}

type kept struct {
	mu sync.Mutex
	rs []*route.Record
}

func (k *kept) Record(r *route.Record) {
	k.mu.Lock()
	defer k.mu.Unlock()
	k.rs = append(k.rs, r)
}

func (k *kept) last() *route.Record { return k.rs[len(k.rs)-1] }

func TestGrant(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		k := &kept{}
		f := New(Options{Pool: "p", Dispatch: dispatch.New(dispatch.Options{Pool: "p"}), Recorder: k})
		defer f.Close()

		var none *NoReplicaError
		if _, err := f.Acquire(t.Context(), request("a")); !errors.As(err, &none) || none.RetryAfter <= 0 {
			t.Fatalf("before the first snapshot: %v, want NoReplicaError", err)
		}
		f.Observe(snapshot(1, fleet.PhaseReady, fleet.PhaseReady, fleet.PhaseLoading))
		g, err := f.Acquire(t.Context(), request("b"))
		if err != nil {
			t.Fatal(err)
		}
		first, url := g.Endpoint()
		if url != "http://"+first || first == "r-2" {
			t.Errorf("sent to %q at %q", first, url)
		}
		time.Sleep(50 * time.Millisecond)
		if err := g.Retry(t.Context(), fleet.OutcomeBroken); err != nil {
			t.Fatal(err)
		}
		second, _ := g.Endpoint()
		if second == first {
			t.Errorf("retried at the same endpoint %s", first)
		}
		if err := g.Retry(t.Context(), fleet.OutcomeBroken); !errors.As(err, &none) {
			t.Errorf("a second retry after a reset: %v, want NoReplicaError", err)
		}
		time.Sleep(100 * time.Millisecond)
		g.Done(fleet.Outcome{Kind: fleet.OutcomeBroken, Status: 502, PromptTokens: -1, CachedTokens: -1, OutputTokens: -1})
		g.Done(fleet.Outcome{Kind: fleet.OutcomeOK})
		if s := f.Stats(); s.Totals.InFlight != 0 || s.Totals.Ended != 1 {
			t.Errorf("totals after the end: %+v", s.Totals)
		}
		r := k.last()
		if r.ID != "b" || len(r.Outcome.Attempts) != 2 || !r.Outcome.MaybeDuplicate || r.Outcome.Kind != "broken" || *r.Outcome.E2EMS != 150 {
			b, _ := json.MarshalIndent(r, "", " ")
			t.Errorf("record: %s", b)
		}
	})
}

func TestRecordOfAnswer(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		k := &kept{}
		f := New(Options{Pool: "p", Dispatch: dispatch.New(dispatch.Options{Pool: "p"}), Recorder: k})
		defer f.Close()
		f.Observe(snapshot(7, fleet.PhaseReady, fleet.PhaseDraining, fleet.PhaseReady))
		for i := range 2 {
			g, err := f.Acquire(t.Context(), request(fmt.Sprint(i)))
			if err != nil {
				t.Fatal(err)
			}
			time.Sleep(200 * time.Millisecond)
			g.FirstToken()
			g.FirstToken()
			for range 100 {
				g.Tokens(1)
			}
			time.Sleep(time.Second)
			g.Done(fleet.Outcome{Kind: fleet.OutcomeOK, Status: 200, PromptTokens: 1010, CachedTokens: 896 * i, OutputTokens: 101})
		}
		b, err := json.Marshal(k.last())
		if err != nil {
			t.Fatal(err)
		}
		for _, want := range []string{
			`"schema":"penstock/decision/v1"`, `"policy":"penstock"`, `"snapshot":{"version":7,"age_ms":1200}`,
			`"dropped":"draining","cost_ms":null`, `"ttft_ms":200,"e2e_ms":1200`, `"cached_tokens":896`,
			`"predicted_cached_tokens":896`, `"status":200`, `"tenant":"acme"`,
		} {
			if !strings.Contains(string(b), want) {
				t.Errorf("no %s in %s", want, b)
			}
		}
		p := f.Preview(request("peek"))
		if p.Outcome != nil || p.Chosen != k.last().Chosen || f.Stats().Totals.InFlight != 0 {
			t.Errorf("preview: %+v", p)
		}
		if err := f.SetPolicy("no-such"); err == nil || !strings.Contains(err.Error(), "round-robin") {
			t.Errorf("unknown policy: %v", err)
		}
		if err := f.SetPolicy("round-robin"); err != nil || f.Stats().Totals.Policy != "round-robin" {
			t.Errorf("policy round-robin: %v", err)
		}
	})
}

// A request waits for a replica to become ready as long as it may, and not longer.
func TestHoldForReplica(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		k := &kept{}
		f := New(Options{Pool: "p", Dispatch: dispatch.New(dispatch.Options{Pool: "p", HoldFor: 10 * time.Second}), Recorder: k})
		defer f.Close()
		f.Observe(snapshot(1, fleet.PhaseLoading))
		start := time.Now()
		go func() {
			time.Sleep(3 * time.Second)
			f.Observe(snapshot(2, fleet.PhaseReady))
		}()
		g, err := f.Acquire(t.Context(), request("a"))
		if err != nil || time.Since(start) != 3*time.Second || g.Held() != 3*time.Second {
			t.Fatalf("after %v: %v, held %v", time.Since(start), err, g.Held())
		}
		g.Done(unknown(fleet.OutcomeOK))
		if q := k.last().Outcome.QueueMS; q != 3000 {
			t.Errorf("queue_ms %v, want 3000", q)
		}

		f.Observe(snapshot(3, fleet.PhaseFailed))
		start = time.Now()
		var none *NoReplicaError
		if _, err = f.Acquire(t.Context(), request("b")); !errors.As(err, &none) || time.Since(start) != 10*time.Second {
			t.Errorf("refused after %v with %v, want 10 s", time.Since(start), err)
		}
		if r := k.last(); r.Outcome.Kind != "refused" || r.Outcome.QueueMS != 10000 {
			t.Errorf("record of the refusal: %+v", r.Outcome)
		}

		ctx, cancel := context.WithTimeout(t.Context(), time.Second)
		defer cancel()
		if _, err = f.Acquire(ctx, request("c")); !errors.Is(err, context.DeadlineExceeded) {
			t.Errorf("client left: %v", err)
		}
		if s := f.Stats().Totals; s.Held != 0 || s.InFlight != 0 {
			t.Errorf("left behind: %+v", s)
		}

		go func() {
			time.Sleep(time.Second)
			f.Close()
		}()
		if _, err = f.Acquire(t.Context(), request("d")); !errors.As(err, &none) {
			t.Errorf("at the end: %v", err)
		}
	})
}

// Whatever clients do and however requests end, nothing is left behind: no ledger
// entry, no goroutine (synctest would report it), one record for each request.
func TestEveryEnding(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		k := &kept{}
		d := dispatch.New(dispatch.Options{Pool: "p", Queue: true, HoldFor: 2 * time.Second})
		f := New(Options{Pool: "p", Dispatch: d, Recorder: k})
		f.Observe(snapshot(1, fleet.PhaseReady, fleet.PhaseReady))
		stop := make(chan struct{})
		var wg sync.WaitGroup
		wg.Go(func() {
			for v := uint64(2); ; v++ {
				select {
				case <-stop:
					return
				case <-time.After(100 * time.Millisecond):
				}
				p := fleet.PhaseReady
				if v%5 == 0 {
					p = fleet.PhaseFailed
				}
				q := fleet.PhaseReady
				if v%10 == 0 {
					q = fleet.PhaseLoading
				}
				f.Observe(snapshot(v, p, q))
			}
		})
		var clients sync.WaitGroup
		for c := range 200 {
			clients.Go(func() { client(t, f, c) })
		}
		clients.Wait()
		close(stop)
		wg.Wait()
		s := f.Stats()
		if s.Totals.InFlight != 0 || s.Totals.Held != 0 {
			t.Errorf("left behind: %+v", s.Totals)
		}
		for _, e := range s.Endpoints {
			if e.InFlight+e.Unstarted+e.Streams+e.Queued != 0 || e.PendingMS != 0 || e.PinnedBlocks != 0 {
				t.Errorf("left behind: %+v", e)
			}
		}
		if len(k.rs) != 200 {
			t.Errorf("%d records of 200 requests", len(k.rs))
		}
		f.Close()
	})
}

// client sends one request and ends it in one of many ways.
func client(t *testing.T, f *Flow, seed int) {
	rng := rand.New(rand.NewPCG(uint64(seed), 1))
	nap := func(ms int) { time.Sleep(time.Duration(rng.IntN(ms)) * time.Millisecond) }
	nap(1000)
	ctx, cancel := context.WithTimeout(t.Context(), time.Duration(1+rng.IntN(5000))*time.Millisecond)
	defer cancel()
	g, err := f.Acquire(ctx, request(fmt.Sprint(seed)))
	if err != nil {
		return
	}
	o := unknown(fleet.OutcomeKind(rng.IntN(int(fleet.OutcomeRefused))))
	nap(100)
	for range rng.IntN(3) {
		if g.Retry(ctx, []fleet.OutcomeKind{fleet.OutcomeConnectError, fleet.OutcomeBroken}[rng.IntN(2)]) != nil {
			break
		}
		nap(50)
	}
	if rng.IntN(2) == 0 {
		g.FirstToken()
		for range rng.IntN(100) {
			g.Tokens(1)
		}
		nap(500)
	}
	if rng.IntN(4) == 0 {
		go g.Done(o)
	}
	g.Done(o)
}
