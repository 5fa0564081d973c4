// SPDX-License-Identifier: Apache-2.0

package flow

import (
	"fmt"
	"testing"

	"github.com/penstock-project/penstock/internal/dispatch"
	"github.com/penstock-project/penstock/internal/fleet"
	"github.com/penstock-project/penstock/internal/route"
)

// ring keeps the last captures, as a journal does.
type ring struct {
	last [1000]*route.Capture
	n    int
}

func (r *ring) Record(*route.Record) {}

func (r *ring) Capture(c *route.Capture) *route.Capture {
	old := r.last[r.n%len(r.last)]
	r.last[r.n%len(r.last)] = c
	r.n++
	return old
}

// BenchmarkAcquire is the router's whole part in a request: decision, first token,
// 64 tokens, end, record.
func BenchmarkAcquire(b *testing.B) {
	for _, n := range []int{8, 100, 1000} {
		b.Run(fmt.Sprint(n), func(b *testing.B) {
			f := New(Options{Dispatch: dispatch.New(dispatch.Options{}), Recorder: &ring{}})
			defer f.Close()
			f.Observe(snapshot(1, make([]fleet.Phase, n)...))
			phases := make([]fleet.Phase, n)
			for i := range phases {
				phases[i] = fleet.PhaseReady
			}
			f.Observe(snapshot(2, phases...))
			r := request("x")
			b.ReportAllocs()
			for b.Loop() {
				g, err := f.Acquire(b.Context(), r)
				if err != nil {
					b.Fatal(err)
				}
				g.FirstToken()
				g.Tokens(32)
				g.Tokens(32)
				g.Done(fleet.Outcome{Kind: fleet.OutcomeOK, PromptTokens: 1000, CachedTokens: 900, OutputTokens: 64})
			}
		})
	}
}

func BenchmarkRecord(b *testing.B) {
	var k kept
	f := New(Options{Dispatch: dispatch.New(dispatch.Options{}), Recorder: &k})
	defer f.Close()
	f.Observe(snapshot(2, fleet.PhaseReady, fleet.PhaseReady, fleet.PhaseReady, fleet.PhaseReady))
	b.ReportAllocs()
	for b.Loop() {
		f.Preview(request("x"))
	}
}
