// SPDX-License-Identifier: Apache-2.0

package console

import (
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"time"

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
	if !s.play(r) {
		return
	}
	defer s.played()
	a, err := sim.AnswerWhatIf(p, q)
	if err != nil {
		fail(w, http.StatusBadRequest, "bad_question", err.Error())
		return
	}
	writeJSON(w, http.StatusOK, a)
}

// play takes the only place of those who compute, so that pages cannot take the processor
// from the traffic; false where who asks has left. played gives it back.
func (s *Server) play(r *http.Request) bool {
	select {
	case s.playing <- struct{}{}:
		return true
	case <-r.Context().Done():
		return false
	}
}

func (s *Server) played() { <-s.playing }

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
	writeJSON(w, http.StatusOK, replayed(policy, rp))
}

func replayed(policy string, rp *sim.Replay) Replayed {
	mean, half := rp.MeanMS()
	out := Replayed{Schema: "penstock/replay/v1", Policy: policy, Records: rp.Records, Skipped: rp.Skipped, Differ: round3(rp.Differ),
		ExtraMS: round3(mean), IntervalMS: round3(half), Estimated: sim.Replayable()[policy]}
	if rp.Records > 0 {
		out.Share = round3(rp.Differ / float64(rp.Records))
	}
	return out
}

// ReplayedJournal is what other policies would have picked in a journal that was sent.
type ReplayedJournal struct {
	Schema  string     `json:"schema"` // penstock/replay-journal/v1
	From    *time.Time `json:"from"`   // of the first record; null where there is none
	To      *time.Time `json:"to"`
	Results []Replayed `json:"results"` // in the order in which they were asked for
}

// Bounds of a journal that is sent: its size, how many policies are asked about it, and how
// long it may take to come.
const (
	maxJournal    = 256 << 20 // bytes
	maxPolicies   = 16
	journalWithin = 2 * time.Minute
)

// replayJournal asks policies about a journal in the body: lines of JSON, as
// journal.dir holds them. Nothing of it is kept.
func (s *Server) replayJournal(w http.ResponseWriter, r *http.Request) {
	names := r.URL.Query()["policy"]
	if len(names) == 0 || len(names) > maxPolicies {
		fail(w, http.StatusBadRequest, "bad_question", fmt.Sprintf("name 1 to %d policies: ?policy=least-requests&policy=min-ttft", maxPolicies))
		return
	}
	var plays []*sim.Replay
	for _, n := range names {
		rp, err := sim.NewReplay(n)
		if err != nil {
			fail(w, http.StatusBadRequest, "cannot_replay", err.Error())
			return
		}
		plays = append(plays, rp)
	}
	if !s.play(r) {
		return
	}
	defer s.played()
	// Who sends slowly holds the only place no longer than this.
	_ = http.NewResponseController(w).SetReadDeadline(time.Now().Add(journalWithin))
	out := ReplayedJournal{Schema: "penstock/replay-journal/v1", Results: []Replayed{}}
	for rec, err := range journal.Read("journal", http.MaxBytesReader(w, r.Body, maxJournal)) {
		if big, ok := errors.AsType[*http.MaxBytesError](err); ok {
			fail(w, http.StatusRequestEntityTooLarge, "too_large", fmt.Sprintf("a journal may have %d MiB here; penstock replay reads longer ones", big.Limit>>20))
			return
		}
		if err != nil {
			fail(w, http.StatusBadRequest, "no_journal", err.Error())
			return
		}
		at := rec.Time.UTC()
		if out.From == nil {
			out.From = &at
		}
		out.To = &at
		for _, rp := range plays {
			rp.Add(rec)
		}
	}
	for i, rp := range plays {
		out.Results = append(out.Results, replayed(names[i], rp))
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
