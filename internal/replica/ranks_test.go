// SPDX-License-Identifier: Apache-2.0

package replica

import (
	"fmt"
	"io"
	"net/http"
	"strings"
	"testing"

	"github.com/penstock-project/penstock/internal/testinput"
)

// askRank posts a chat whose header names a rank, "" none.
func askRank(t *testing.T, s *Server, rank, text string) (int, string) {
	t.Helper()
	req, err := http.NewRequest("POST", s.URL()+"/v1/chat/completions", strings.NewReader(
		fmt.Sprintf(`{"model":"tiny","max_tokens":4,"ignore_eos":true,"messages":[{"role":"user","content":%q}]}`, text)))
	if err != nil {
		t.Fatal(err)
	}
	if rank != "" {
		req.Header.Set("X-data-parallel-rank", rank)
	}
	res, err := http.DefaultClient.Do(req)
	if err != nil {
		t.Fatal(err)
	}
	defer res.Body.Close()
	b, err := io.ReadAll(res.Body)
	if err != nil {
		t.Fatal(err)
	}
	return res.StatusCode, string(b)
}

// TestRanks: each rank has a cache and counters of its own; a request goes to the one
// that it names, else to the idlest.
func TestRanks(t *testing.T) {
	long := strings.Repeat("word ", 200)
	s := start(t, Options{Ranks: 2, KVTokens: 16000})
	cached := func(body string) int { return parse(t, body).Usage.Details.Cached }
	for i, c := range []struct {
		rank string
		warm bool
	}{{"1", false}, {"1", true}, {"0", false}, {"0", true}} {
		status, body := askRank(t, s, c.rank, long)
		if status != 200 || (cached(body) > 0) != c.warm {
			t.Errorf("request %d at rank %s: %d, %d tokens cached, want any: %v", i, c.rank, status, cached(body), c.warm)
		}
	}
	m := scrape(t, s)
	for _, r := range []string{"0", "1"} {
		if n := m[`vllm:request_success_total{engine="`+r+`",finished_reason="length",model_name="tiny"}`]; n != 2 {
			t.Errorf("rank %s finished %v requests", r, n)
		}
		if m[`vllm:num_requests_running{engine="`+r+`",model_name="tiny"}`] != 0 || m[`vllm:prefix_cache_hits_total{engine="`+r+`",model_name="tiny"}`] == 0 {
			t.Errorf("rank %s: %v", r, m)
		}
	}
	for _, rank := range []string{"2", "-1"} {
		if status, body := askRank(t, s, rank, "hi"); status != 400 || !strings.Contains(body, "out of range [0, 2)") {
			t.Errorf("rank %s: %d %s", rank, status, body)
		}
	}
	for range 4 { // one at a time: all are idle, so it is their turn
		if status, _ := askRank(t, s, "", "hi"); status != 200 {
			t.Error(status)
		}
	}
	if status, _ := askRank(t, s, "first", "hi"); status != 200 { // no number is no name
		t.Error(status)
	}
	st := s.RankStats()
	if st[0].Finished+st[1].Finished != 9 || st[0].Finished < 4 || st[1].Finished < 4 || s.Stats().Finished != 9 {
		t.Errorf("%d and %d finished", st[0].Finished, st[1].Finished)
	}
}

// TestRankIsIgnored: a server that does not read the header spreads as it likes.
func TestRankIsIgnored(t *testing.T) {
	s := start(t, Options{Ranks: 2, IgnoreRank: true})
	for range 4 {
		if status, _ := askRank(t, s, "1", "hi"); status != 200 {
			t.Error(status)
		}
	}
	if st := s.RankStats(); st[0].Finished != 2 || st[1].Finished != 2 {
		t.Errorf("%d and %d finished", st[0].Finished, st[1].Finished)
	}
}

// TestRankEvents: each rank publishes on a port of its own and says where.
func TestRankEvents(t *testing.T) {
	port := testinput.Port(t)
	s := start(t, Options{Ranks: 2, KVEvents: fmt.Sprintf("tcp://*:%d", port)})
	_, b := get(t, s, "/kv_event_sources")
	if !strings.Contains(b, fmt.Sprintf("tcp://*:%d", port)) || !strings.Contains(b, fmt.Sprintf("tcp://*:%d", port+1)) {
		t.Error(b)
	}
	if _, err := New(Options{Models: []string{"m"}, Ranks: 2, KVEvents: "tcp://*:65535"}); err == nil {
		t.Error("a port beyond the last one")
	}
}
