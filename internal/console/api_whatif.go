// SPDX-License-Identifier: Apache-2.0

package console

import (
	"encoding/json"
	"fmt"
	"net/http"

	"github.com/penstock-project/penstock/internal/engine"
	"github.com/penstock-project/penstock/internal/journal"
	"github.com/penstock-project/penstock/internal/route"
	"github.com/penstock-project/penstock/internal/sim"
)

// whatif plays the question through the simulator. One runs at a time, so that a
// page cannot take the processor from the traffic.
func (s *Server) whatif(w http.ResponseWriter, r *http.Request) {
	q := sim.WhatIfQuestion{Replicas: 8, Shared: 0.7, Load: 0.5, Requests: 4000, Seed: 1,
		Policies: []string{route.PolicyRandom, route.PolicyLeastRequests, route.PolicyAffinity, route.PolicyPenstock}}
	if err := json.NewDecoder(http.MaxBytesReader(w, r.Body, 64<<10)).Decode(&q); err != nil {
		fail(w, http.StatusBadRequest, "bad_question", "the body is not a question: "+err.Error())
		return
	}
	name := r.URL.Query().Get("profile")
	if name == "" {
		name = engine.DefaultProfile
	}
	p, ok := engine.Lookup(name)
	if !ok {
		fail(w, http.StatusBadRequest, "bad_question", fmt.Sprintf("there is no engine profile %q", clip(name)))
		return
	}
	select {
	case s.playing <- struct{}{}:
		defer func() { <-s.playing }()
	case <-r.Context().Done():
		return
	}
	a, err := sim.AnswerWhatIf(p, q)
	if err != nil {
		fail(w, http.StatusBadRequest, "bad_question", err.Error())
		return
	}
	writeJSON(w, http.StatusOK, a)
}

// Repicked is what another policy says of one recorded decision.
type Repicked struct {
	Schema    string  `json:"schema"` // penstock/repick/v1
	ID        string  `json:"id"`
	Policy    string  `json:"policy"`
	Recorded  string  `json:"recorded"` // the replica that was picked
	Picks     string  `json:"picks"`    // the one that this policy picks; "" none
	Share     float64 `json:"share"`    // of the draws, where ties are drawn
	ExtraMS   float64 `json:"extra_ms"` // predicted cost over that of the recorded pick
	Estimated string  `json:"estimated,omitempty"`
}

// repick asks another policy about a recorded decision.
func (s *Server) repick(w http.ResponseWriter, r *http.Request) {
	rec, ok := s.record(w, r.PathValue("id"))
	if !ok {
		return
	}
	policy := r.URL.Query().Get("policy")
	pick, share, extra, err := sim.Repick(rec, policy)
	if err != nil {
		fail(w, http.StatusBadRequest, "cannot_replay", err.Error())
		return
	}
	writeJSON(w, http.StatusOK, Repicked{Schema: "penstock/repick/v1", ID: rec.ID, Policy: policy, Recorded: rec.Chosen, Picks: pick,
		Share: share, ExtraMS: round3(extra), Estimated: sim.Replayable()[policy]})
}

// Replayed is what another policy would have picked in the decisions in memory.
type Replayed struct {
	Schema     string         `json:"schema"` // penstock/replay/v1
	Policy     string         `json:"policy"`
	Records    int            `json:"records"`
	Skipped    map[string]int `json:"skipped"`
	Differ     float64        `json:"picks_that_differ"`
	Share      float64        `json:"share_that_differs"`
	ExtraMS    float64        `json:"extra_cost_ms"`
	IntervalMS float64        `json:"extra_cost_95_ms"`
	Estimated  string         `json:"estimated,omitempty"`
}

// replay asks another policy about the decisions in memory, at most a thousand.
func (s *Server) replay(w http.ResponseWriter, r *http.Request) {
	policy := r.URL.Query().Get("policy")
	rp, err := sim.NewReplay(policy)
	if err != nil {
		fail(w, http.StatusBadRequest, "cannot_replay", err.Error())
		return
	}
	f, ok := filterOf(w, r)
	if !ok {
		return
	}
	for _, rec := range s.o.Journal.Query(f, maxDecisions) {
		rp.Add(rec)
	}
	mean, half := rp.MeanMS()
	out := Replayed{Schema: "penstock/replay/v1", Policy: policy, Records: rp.Records, Skipped: rp.Skipped, Differ: round3(rp.Differ),
		ExtraMS: round3(mean), IntervalMS: round3(half), Estimated: sim.Replayable()[policy]}
	if rp.Records > 0 {
		out.Share = round3(rp.Differ / float64(rp.Records))
	}
	writeJSON(w, http.StatusOK, out)
}

// record finds a decision in memory, else in the files; it answers where there is
// none.
func (s *Server) record(w http.ResponseWriter, id string) (*route.Record, bool) {
	if rec, ok := s.o.Journal.Get(id); ok {
		return rec, true
	}
	if dir := s.o.Journal.Dir(); dir != "" {
		if rec, err := journal.Find(dir, journal.ByID(id)); err == nil && rec != nil {
			return rec, true
		}
	}
	st := s.o.Journal.Stats()
	fail(w, http.StatusNotFound, "unknown_request",
		fmt.Sprintf("no record of request %q; the last %d of %d are kept in memory", clip(id), st.InMemory, st.Records))
	return nil, false
}
