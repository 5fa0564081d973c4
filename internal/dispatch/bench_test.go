// SPDX-License-Identifier: Apache-2.0

package dispatch

import (
	"fmt"
	"math/rand/v2"
	"testing"

	"github.com/penstock-project/penstock/internal/fleet"
	"github.com/penstock-project/penstock/internal/route"
)

// warmPool is a pool of n replicas with history: conversations that share a system
// prompt, some of them running.
func warmPool(n int, o Options) (*Dispatch, []*fleet.Request, fleet.Time) {
	p := testProfile()
	p.KVTokens, p.MaxSeqs = 2_000_000, 256
	o.Profile = p
	d := New(o)
	s := &fleet.Snapshot{Version: 1, At: 1e9}
	for i := range n {
		s.Endpoints = append(s.Endpoints, fleet.EndpointState{Endpoint: fleet.Endpoint{
			ID: fmt.Sprintf("r-%04d", i), Phase: fleet.PhaseReady, Models: []string{"m"},
		}})
	}
	now := fleet.Time(1e9)
	d.Observe(now, s, nil)
	rng := rand.New(rand.NewPCG(5, 6))
	var big []*fleet.Request
	var out []Send
	for k := range 4 * n {
		r := prompt(128, part{1, 6000}, part{uint64(100 + k), 2000 + rng.IntN(4000)})
		if k%(n/4+1) == 0 { // a 400 KB prompt: 800 blocks
			r = prompt(128, part{1, 6000}, part{uint64(100 + k), 800*128 - 6000})
			big = append(big, r)
		}
		now += 3e6
		t, _, sends := d.Arrive(now, r, out[:0])
		out = sends
		d.FirstToken(now, t, nil)
		if k%3 == 0 {
			d.End(now, t, fleet.Outcome{Kind: fleet.OutcomeOK, PromptTokens: r.PromptTokens, CachedTokens: -1, OutputTokens: 200}, nil)
		}
	}
	d.learned.prefill.n = sureAfter // so many were seen that accounts of copies are kept
	return d, big, now
}

// The pick over 100 replicas and a 400 KB prompt does not allocate, and neither
// does the whole life of a request in the dispatch.
func TestNoAllocation(t *testing.T) {
	for _, name := range route.Names() {
		policy, err := route.New(name, 1)
		if err != nil {
			t.Fatal(err)
		}
		d, big, now := warmPool(100, Options{Policy: policy})
		r := big[0]
		if len(r.Blocks) != 800 {
			t.Fatalf("%d blocks, want 800", len(r.Blocks))
		}
		var dec route.Decision
		d.Preview(now, r, &dec)
		if n := testing.AllocsPerRun(100, func() { d.Preview(now, r, &dec) }); n != 0 {
			t.Errorf("%s: %v allocations a pick, want 0", name, n)
		}
		out := make([]Send, 0, 8)
		life := func() {
			now += 1e6
			tk, _, _ := d.Arrive(now, r, out)
			d.FirstToken(now, tk, out)
			d.Progress(now, tk, 100)
			d.End(now, tk, fleet.Outcome{Kind: fleet.OutcomeOK, PromptTokens: r.PromptTokens, CachedTokens: 0, OutputTokens: 100}, out)
		}
		for range 100 {
			life()
		}
		if kept := d.rents.accounts != nil; kept != dec.Priced {
			t.Errorf("%s: accounts of copies %v, prices %v", name, kept, dec.Priced)
		}
		if n := testing.AllocsPerRun(200, life); n != 0 {
			t.Errorf("%s: %v allocations in the life of a request, want 0", name, n)
		}
		if dec.Chosen < 0 || len(dec.Candidates) != 100 {
			t.Errorf("%s: chose %d of %d", name, dec.Chosen, len(dec.Candidates))
		}
	}
}

func BenchmarkPick(b *testing.B) {
	for _, n := range []int{8, 64, 100, 1000} {
		b.Run(fmt.Sprint(n), func(b *testing.B) {
			d, big, now := warmPool(n, Options{})
			var dec route.Decision
			b.ReportAllocs()
			for i := 0; b.Loop(); i++ {
				d.Preview(now, big[i%len(big)], &dec)
			}
		})
	}
}

// BenchmarkLife is arrival, first token and end of a request.
func BenchmarkLife(b *testing.B) {
	for _, n := range []int{8, 64, 1000} {
		for _, bare := range []bool{false, true} {
			b.Run(fmt.Sprintf("%d/bare=%v", n, bare), func(b *testing.B) {
				d, big, now := warmPool(n, Options{Bare: bare})
				out := make([]Send, 0, 8)
				b.ReportAllocs()
				for i := 0; b.Loop(); i++ {
					r := big[i%len(big)]
					now += 1e7
					t, _, _ := d.Arrive(now, r, out)
					d.FirstToken(now, t, out)
					d.End(now, t, fleet.Outcome{Kind: fleet.OutcomeOK, PromptTokens: r.PromptTokens, CachedTokens: -1, OutputTokens: 100}, out)
				}
			})
		}
	}
}
