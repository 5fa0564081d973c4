// SPDX-License-Identifier: Apache-2.0

package dispatch

import (
	"testing"

	"github.com/penstock-project/penstock/internal/fleet"
)

// ready makes a pool of n replicas that are all alike.
func readyPool(n int) *Dispatch {
	d := New(Options{Profile: testProfile()})
	s := &fleet.Snapshot{Version: 1}
	for i := range n {
		s.Endpoints = append(s.Endpoints, fleet.EndpointState{Endpoint: fleet.Endpoint{
			ID: string(rune('a' + i)), URL: "http://" + string(rune('a'+i)), Phase: fleet.PhaseReady}})
	}
	d.Observe(1e9, s, nil)
	return d
}

// once sends a request, answers it and returns where it went and what was predicted.
func once(d *Dispatch, now fleet.Time, r *fleet.Request, cached int) (slot int32, predicted int) {
	t, _, sends := d.Arrive(now, r, nil)
	slot, predicted = sends[0].Slot, sends[0].Decision.PredictedCached
	d.FirstToken(now+1e7, t, nil)
	d.End(now+2e7, t, fleet.Outcome{Kind: fleet.OutcomeOK, PromptTokens: r.PromptTokens, CachedTokens: cached, OutputTokens: 20}, nil)
	return slot, predicted
}

// TestSessionPrior: of prompts that the index knows nothing of, a session hint knows
// where the last one went, as far as answers bear it out.
func TestSessionPrior(t *testing.T) {
	d := readyPool(8)
	ask := func(session uint64, tenant string, tokens int) *fleet.Request {
		return &fleet.Request{ID: "x", Tenant: tenant, Model: "m", Stream: true, PromptTokens: tokens, BlockTokens: 128, Session: session}
	}
	now := fleet.Time(2e9)
	home, p := once(d, now, ask(7, "t", 4000), 0)
	if p != 0 {
		t.Fatalf("%d tokens predicted of a new session", p)
	}
	for k := range 5 {
		now += 1e9
		slot, p := once(d, now, ask(7, "t", 4000+500*k), 3900+500*k)
		if slot != home || p == 0 {
			t.Errorf("turn %d went to %d with %d tokens predicted, its home is %d", k, slot, p, home)
		}
	}
	if _, p := once(d, now+1e9, ask(7, "another", 4000), 0); p != 0 {
		t.Errorf("another tenant is believed to have %d tokens cached by that session", p)
	}
	// A hint that answers do not bear out is no opinion.
	for k := range 6 {
		now += 1e9
		_, p = once(d, now, ask(9, "t", 4000), 0)
		_ = k
	}
	if p > 256 {
		t.Errorf("%d tokens predicted of a session that never found any", p)
	}
	if a := d.index.Agreement(home); a.Disagrees {
		t.Error("the index answers for what the hint predicted")
	}
}

// TestCommonKeySpreads: one prompt_cache_key for a whole application, with a common
// system prompt, does not pull all of its conversations to one replica.
func TestCommonKeySpreads(t *testing.T) {
	w := newWorld(t, 4, testProfile(), Options{})
	for k := range 96 {
		r := prompt(16, part{1, 1000}, part{uint64(100 + k), 600})
		r.Session = 4711
		w.timers = append(w.timers, arrival{w.now + fleet.Time(k)*5e7, r, 200})
	}
	w.run(fleet.Never)
	w.check()
	t.Logf("conversations: %v", w.sent)
	for i, n := range w.sent {
		if n < 96/4/3 {
			t.Errorf("replica %d got %d of 96 conversations: %v", i, n, w.sent)
		}
	}
}

// TestSessionsAreBounded: a client that makes up hints fills no memory.
func TestSessionsAreBounded(t *testing.T) {
	d := readyPool(1)
	for k := range sessionsMost + 1000 {
		once(d, fleet.Time(2e9)+fleet.Time(k)*3e7, &fleet.Request{ID: "x", Model: "m", Stream: true, PromptTokens: 10, BlockTokens: 128, Session: uint64(k + 1)}, 0)
	}
	if len(d.sessions.all) > sessionsMost || len(d.sessions.at) > sessionsMost {
		t.Errorf("%d sessions", len(d.sessions.all))
	}
}
