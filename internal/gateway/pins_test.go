// SPDX-License-Identifier: Apache-2.0

package gateway

import (
	"io"
	"net"
	"net/http"
	"sync"
	"testing"
	"time"

	"github.com/penstock-project/penstock/internal/fleet"
)

// ranked gives the pool a snapshot in which each replica tells of so many ranks.
func (f *fixture) ranked(ranks int, urls ...string) {
	now := fleet.At(time.Now())
	f.observe(fleet.PhaseReady, urls...)
	s := *f.flow.Snapshot()
	s.Endpoints = append([]fleet.EndpointState(nil), s.Endpoints...)
	for i := range s.Endpoints {
		e := &s.Endpoints[i]
		e.Engine, e.Running, e.Waiting, e.ScrapedAt, e.Notes = "vllm", fleet.Known(0, now), fleet.Known(0, now), now, fleet.NoteRanks
		for r := range ranks {
			e.Loads = append(e.Loads, fleet.Load{Model: "m", Rank: r, Running: fleet.Known(0, now), Waiting: fleet.Known(0, now), Finished: fleet.Known(0, now)})
		}
	}
	f.flow.Observe(&s)
}

// TestPinOnTheWire sends each request to a rank by name, whatever the client names
// itself, and changes no other byte of it; where there is one rank nothing is added.
func TestPinOnTheWire(t *testing.T) {
	var mu sync.Mutex
	var heads []http.Header
	var bodies []string
	u := scripted(t, func(c net.Conn, r *http.Request, body []byte) bool {
		mu.Lock()
		heads, bodies = append(heads, r.Header), append(bodies, string(body))
		mu.Unlock()
		io.WriteString(c, jsonAnswer(200, okBody))
		return true
	})
	f := newFixture(t, setup{}, u.url)
	ask := func() http.Header {
		t.Helper()
		if res, body := f.chat(chatBody, "X-Data-Parallel-Rank", "7", "X-Request-Id", "one"); res.StatusCode != 200 || body != okBody {
			t.Fatalf("%d %s", res.StatusCode, body)
		}
		mu.Lock()
		defer mu.Unlock()
		if b := bodies[len(bodies)-1]; b != chatBody {
			t.Errorf("body %s", b)
		}
		return heads[len(heads)-1]
	}
	plain := ask()
	if v := plain["X-Data-Parallel-Rank"]; v != nil {
		t.Errorf("one rank: pinned to %q", v)
	}
	f.ranked(3, u.url)
	seen := map[string]int{}
	for range 6 { // round robin
		h := ask()
		v := h["X-Data-Parallel-Rank"]
		if len(v) != 1 {
			t.Fatalf("pins %q", v)
		}
		seen[v[0]]++
		if len(h) != len(plain)+1 {
			t.Errorf("header %v, without ranks %v", h, plain)
		}
	}
	if seen["0"] != 2 || seen["1"] != 2 || seen["2"] != 2 {
		t.Errorf("ranks %v", seen)
	}
	f.settled()
}

// TestRetryPinsAnew: the replica that the request moves to has one rank, and hears of
// none.
func TestRetryPinsAnew(t *testing.T) {
	bad := says(t, jsonAnswer(503, `{"error":{"message":"no"}}`))
	var got []string
	var mu sync.Mutex
	good := scripted(t, func(c net.Conn, r *http.Request, _ []byte) bool {
		mu.Lock()
		got = append(got, r.Header.Get("X-Data-Parallel-Rank"))
		mu.Unlock()
		io.WriteString(c, jsonAnswer(200, okBody))
		return true
	})
	f := newFixture(t, setup{}, bad.url, good.url)
	f.ranked(2, bad.url, good.url)
	s := *f.flow.Snapshot()
	s.Endpoints = append([]fleet.EndpointState(nil), s.Endpoints...)
	s.Endpoints[1].Loads, s.Endpoints[1].Notes = nil, 0
	f.flow.Observe(&s)
	for range 6 {
		if res, _ := f.chat(chatBody); res.StatusCode != 200 {
			t.Fatalf("%d", res.StatusCode)
		}
	}
	if bad.seen.Load() == 0 {
		t.Error("nothing was tried at the replica that fails")
	}
	for _, v := range got {
		if v != "" {
			t.Errorf("one rank, asked for %q", v)
		}
	}
	f.settled()
}
