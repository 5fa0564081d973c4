// SPDX-License-Identifier: Apache-2.0

package dispatch

import (
	"testing"

	"github.com/penstock-project/penstock/internal/fleet"
)

// sparse sends requests one by one to an engine that honours pins, and ends each a
// scrape after the engine counted it.
func sparse(t *testing.T, o fleet.Outcome) *PinState {
	t.Helper()
	w := newRankWorld(t, 1, 2, testProfile(), Options{})
	var finished [2]float64
	look := func() {
		w.now += 1e9
		s := w.rankSnapshot()
		for r := range finished {
			s.Endpoints[0].Loads[r].Finished = fleet.Known(finished[r], w.now)
		}
		s.Endpoints[0].Finished = fleet.Known(finished[0]+finished[1], w.now)
		w.d.Observe(w.now, s, nil)
	}
	look()
	for k := range 40 {
		ticket, _, sends := w.d.Arrive(w.now, prompt(16, part{uint64(k), 160}), nil)
		if len(sends) != 1 {
			t.Fatalf("request %d: %+v", k, sends)
		}
		if pin := sends[0].Pin; pin != "" {
			finished[pin[0]-'0']++
		}
		look()
		w.d.End(w.now+1, ticket, o, nil)
		w.now++
		look()
	}
	return w.d.Ledger(w.now, nil)[0].Pins
}

// Where a proxy shows nothing of answers, their ends are guesses: that the engine counts
// at other moments is no proof against it.
func TestGuessedEndsProveNothing(t *testing.T) {
	p := sparse(t, fleet.Outcome{Kind: fleet.OutcomeOK,
		PromptTokens: fleet.UnknownTokens, CachedTokens: fleet.UnknownTokens, OutputTokens: fleet.UnknownTokens})
	if p.Verdict != PinsUnproven || p.Checked != 0 {
		t.Errorf("%+v", *p)
	}
}

// A request that a proxy took from an endpoint of one rank to one of several names none:
// where it is computed says nothing of those that do.
func TestUnpinnedProvesNothing(t *testing.T) {
	w := newRankWorld(t, 2, 2, testProfile(), Options{})
	s := w.rankSnapshot()
	s.Endpoints[0].Loads, s.Endpoints[0].Notes = nil, 0
	w.d.Observe(w.now, s, nil)
	ended := func() (n uint64) {
		for _, v := range w.d.homes["r-1"].check.ended {
			n += v
		}
		return n
	}
	o := fleet.Outcome{Kind: fleet.OutcomeOK, PromptTokens: 160, OutputTokens: 5}
	for _, c := range []struct {
		from string
		want uint64
	}{{"r-0", 0}, {"r-1", 1}} {
		r := prompt(16, part{1, 160})
		r.Subset, r.SubsetOnly = []string{fleet.HostPort("http://" + c.from)}, true
		k, _, sends := w.d.Arrive(w.now, r, nil)
		if len(sends) != 1 || sends[0].Endpoint != c.from {
			t.Fatalf("%+v", sends)
		}
		if c.from == "r-0" {
			w.d.Bind(k, fleet.HostPort("http://r-1"))
			if v, _ := w.d.Retry(w.now, k, fleet.OutcomeConnectError, nil); v.Kind != Sent {
				t.Fatalf("%+v", v)
			}
		}
		w.d.End(w.now, k, o, nil)
		if n := ended(); n != c.want {
			t.Errorf("from %s: %d ends count, want %d", c.from, n, c.want)
		}
	}
}
