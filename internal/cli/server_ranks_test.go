// SPDX-License-Identifier: Apache-2.0

package cli

import (
	"io"
	"math/rand/v2"
	"net/http"
	"strings"
	"testing"

	"github.com/penstock-project/penstock/internal/console"
	"github.com/penstock-project/penstock/internal/diagnose"
	"github.com/penstock-project/penstock/internal/journal"
	"github.com/penstock-project/penstock/internal/replica"
)

// TestRanksBehindOnePort: two replicas with three data-parallel ranks each, over real
// sockets. With pins a conversation finds its rank again; where the engine ignores them
// it does so by luck, and status, metrics and findings say so.
func TestRanksBehindOnePort(t *testing.T) {
	const conversations = 30
	run := func(ignore bool) (hits float64, s *server, all []*replica.Server) {
		urls, all := startReplicas(t, 2, func(_ int, o *replica.Options) { o.Ranks, o.IgnoreRank = 3, ignore })
		s, _ = runServer(t, nil, urls...)
		eventually(t, "the ranks are told apart", func() bool {
			for _, r := range s.admin.Status().Pools[0].Replica {
				if len(r.Ranks) != 3 {
					return false
				}
			}
			return true
		})
		round(t, s.GatewayURL(), conversations, 3)
		prompt, cached := 0, 0
		// In another order: a balancer that takes ranks in turn must not meet them again.
		for _, c := range rand.New(rand.NewPCG(1, 2)).Perm(conversations) {
			p, k := turn(t, s.GatewayURL(), c, 4)
			prompt, cached = prompt+p, cached+k
		}
		return float64(cached) / float64(prompt), s, all
	}
	pinned, s, all := run(false)
	scattered, deaf, _ := run(true)
	t.Logf("hit ratio of turn 4: %.3f with pins, %.3f where they are ignored", pinned, scattered)
	if pinned < 0.65 { // turn 4 finds 3 of 4 parts
		t.Errorf("hit ratio with pins %.3f, want 0.75", pinned)
	}
	if scattered > 0.8*pinned {
		t.Errorf("hit ratio %.3f where pins are ignored: the test shows nothing", scattered)
	}
	// Ranks that idle are equal, and which of them a conversation begins on is chance.
	more := 1000
	eventually(t, "every rank is used", func() bool {
		turn(t, s.GatewayURL(), more, 1)
		more++
		for _, r := range all {
			for _, st := range r.RankStats() {
				if st.Finished == 0 {
					return false
				}
			}
		}
		return true
	})
	accounted(t, s)
	if rec, ok := s.journal.Last(journal.Filter{}); !ok || !strings.Contains(rec.Chosen, "@") || len(rec.Candidates) != 6 {
		t.Errorf("the record does not price ranks: %+v", rec)
	}

	replicas := func(s *server) []console.ReplicaStatus { return s.admin.Status().Pools[0].Replica }
	c := 100
	verdict := func(s *server, want string) {
		t.Helper()
		eventually(t, "pins are "+want, func() bool {
			turn(t, s.GatewayURL(), c%conversations, 1+c%3)
			c++
			for _, r := range replicas(s) {
				if r.Pins == nil || r.Pins.Verdict != want {
					return false
				}
			}
			return true
		})
	}
	verdict(s, "honoured")
	verdict(deaf, "ignored")
	for _, r := range replicas(deaf) {
		if len(r.Ranks) != 0 || !strings.Contains(strings.Join(r.Notes, " "), "ignores X-data-parallel-rank") {
			t.Errorf("%+v", r)
		}
	}
	report := console.Judge(deaf.admin.Status(), nil)
	n := 0
	for _, f := range report.Findings {
		if f.Code == "rank-pins-ignored" {
			n++
		}
	}
	if n != 2 {
		t.Errorf("findings %+v", report.Findings)
	}
	if r := console.Judge(s.admin.Status(), nil); hasFinding(r, "rank-pins-ignored") {
		t.Errorf("findings where pins are honoured: %+v", r.Findings)
	}
	if m := page(t, deaf.AdminURL()+"/metrics"); strings.Count(m, "penstock_replica_rank_pins_ignored{") != 2 || strings.Count(m, "} 1\n") == 0 {
		t.Error("the metric does not tell")
	}
	if _, ok := deaf.journal.Last(journal.Filter{}); !ok {
		t.Error("no record")
	}
	turn(t, deaf.GatewayURL(), 1, 2)
	accounted(t, deaf)
	if rec, _ := deaf.journal.Last(journal.Filter{}); strings.Contains(rec.Chosen, "@") || len(rec.Candidates) != 2 {
		t.Errorf("a replica that ignores pins is not one candidate: %+v", rec)
	}
}

func hasFinding(r diagnose.Report, code string) bool {
	for _, f := range r.Findings {
		if f.Code == code {
			return true
		}
	}
	return false
}

func page(t *testing.T, url string) string {
	t.Helper()
	res, err := http.Get(url)
	if err != nil {
		t.Fatal(err)
	}
	defer res.Body.Close()
	b, err := io.ReadAll(res.Body)
	if err != nil {
		t.Fatal(err)
	}
	return string(b)
}
