// SPDX-License-Identifier: Apache-2.0

package extproc

import (
	"context"
	"fmt"
	"net"
	"testing"
	"time"

	"github.com/penstock-project/penstock/internal/dispatch"
	"github.com/penstock-project/penstock/internal/engine"
	"github.com/penstock-project/penstock/internal/entry"
	"github.com/penstock-project/penstock/internal/fleet"
	"github.com/penstock-project/penstock/internal/flow"
	"github.com/penstock-project/penstock/internal/route"
)

// onePool is a catalogue of one pool that serves one model, known by two names.
type onePool struct {
	flow  *flow.Flow
	model string
	alias string
}

func (c onePool) Resolve(name string) (entry.Target, bool) {
	return entry.Target{Pool: c.flow, Place: entry.Place{Name: name, Model: c.model, Rename: name != c.model}},
		name == "" || name == c.model || name == c.alias
}

func (c onePool) Pools() []entry.Target { return []entry.Target{{Pool: c.flow}} }

func newPool(t testing.TB, n int) *flow.Flow {
	t.Helper()
	p, ok := engine.Lookup(engine.Profiles()[0].Name)
	if !ok {
		t.Fatal("no profile")
	}
	policy, err := route.New("penstock", 1)
	if err != nil {
		t.Fatal(err)
	}
	f := flow.New(flow.Options{Pool: "p", Dispatch: dispatch.New(dispatch.Options{Policy: policy, Profile: p})})
	t.Cleanup(f.Close)
	snap := &fleet.Snapshot{Pool: "p", Version: 1, At: fleet.At(time.Now())}
	for i := range n {
		snap.Endpoints = append(snap.Endpoints, fleet.EndpointState{Endpoint: fleet.Endpoint{
			ID: fmt.Sprintf("r%d", i), URL: fmt.Sprintf("http://127.10.0.%d:8000", i+1), Phase: fleet.PhaseReady,
			Rank: -1, Models: []string{"m"}}})
	}
	f.Observe(snap)
	return f
}

func start(t testing.TB, o Options) (*Server, string) {
	t.Helper()
	s := New(o)
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	done := make(chan error, 1)
	go func() { done <- s.Serve(l) }()
	s.SetReady(true)
	t.Cleanup(func() {
		ctx, cancel := context.WithTimeout(context.Background(), time.Second)
		defer cancel()
		s.Drain(ctx)
		if err := <-done; err != nil {
			t.Error(err)
		}
	})
	return s, l.Addr().String()
}
