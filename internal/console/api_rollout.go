// SPDX-License-Identifier: Apache-2.0

package console

import (
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"strings"
	"time"
)

// RolloutSchema is the schema name of RolloutList.
const RolloutSchema = "penstock/rollout/v1"

// Rollouter knows the rollouts and does what an operator asks of one.
type Rollouter interface {
	Rollouts() []Rollout
	// Act promotes (a step), promotes to the end (promote-all), holds or aborts. found
	// is false where there is no rollout of that name.
	Act(name, what, by string) (found bool, err error)
}

// RolloutList is the answer of /api/v1/rollout.
type RolloutList struct {
	Schema   string    `json:"schema"`
	Time     time.Time `json:"time"`
	Rollouts []Rollout `json:"rollouts"`
}

// Rollout is one rollout. Numbers that are unknown are null.
type Rollout struct {
	Name   string    `json:"name"`
	Model  string    `json:"model"`
	State  string    `json:"state"` // running, blocked, held, rolled_back, aborted, promoted
	Weight float64   `json:"weight"`
	Sticky string    `json:"sticky"`
	Since  time.Time `json:"since"`
	// Next is the weight of the step that follows; null at the end.
	Next     *float64        `json:"next_weight"`
	Auto     bool            `json:"auto"`
	Baseline RolloutArm      `json:"baseline"`
	Canary   RolloutArm      `json:"canary"`
	Steps    []RolloutStep   `json:"steps"`
	Evidence RolloutEvidence `json:"evidence"`
	Shadow   *RolloutShadow  `json:"shadow,omitempty"`
}

// RolloutArm is one version.
type RolloutArm struct {
	Model    string `json:"model"`
	Pool     string `json:"pool,omitempty"`
	Requests int    `json:"requests"`
	Failed   int    `json:"failed"`
	Prompt   int64  `json:"prompt_tokens"`
	Output   int64  `json:"output_tokens"`
}

// RolloutStep is one change with what it was made on.
type RolloutStep struct {
	Time     time.Time           `json:"time"`
	State    string              `json:"state"`
	From     float64             `json:"from"`
	To       float64             `json:"to"`
	Why      string              `json:"why"`
	By       string              `json:"by,omitempty"` // operator; absent: the guard
	Evidence []RolloutComparison `json:"evidence"`
}

// RolloutEvidence compares the versions now.
type RolloutEvidence struct {
	TTFT   *RolloutComparison `json:"ttft"`
	ITL    *RolloutComparison `json:"itl"`
	Errors *RolloutComparison `json:"errors"`
}

// RolloutComparison is one quantity of both versions. Low and High bound the canary
// over the baseline: a ratio of times, a difference of shares.
type RolloutComparison struct {
	Name     string   `json:"name"`
	Unit     string   `json:"unit"` // s, share
	Baseline *float64 `json:"baseline"`
	Canary   *float64 `json:"canary"`
	N        int      `json:"n"` // observations of the canary
	NBase    int      `json:"n_baseline"`
	Low      *float64 `json:"low"`
	High     *float64 `json:"high"`
	Margin   float64  `json:"margin"`
	Verdict  string   `json:"verdict"` // open, fine, suspect, worse
}

// RolloutShadow is what copies of requests cost.
type RolloutShadow struct {
	Share         float64 `json:"share"`
	TokensPerHour int64   `json:"tokens_per_hour"`
	Running       int     `json:"running"`
	Sent          uint64  `json:"sent"`
	Skipped       uint64  `json:"skipped"`
	Tokens        int64   `json:"tokens"`
	Left          int64   `json:"left"`
}

// rolloutRoutes registers the routes where there is a Rollouter.
func (s *Server) rolloutRoutes(mux *http.ServeMux) {
	if s.o.Rollouts == nil {
		return
	}
	mux.HandleFunc("GET /api/v1/rollout", s.listRollouts)
	mux.HandleFunc("GET /api/v1/rollout/{name}", s.oneRollout)
	mux.HandleFunc("POST /api/v1/rollout/{name}/{act}", s.actRollout)
}

func (s *Server) rolloutList(all []Rollout) RolloutList {
	if all == nil {
		all = []Rollout{}
	}
	return RolloutList{Schema: RolloutSchema, Time: s.o.Clock().Wall().UTC(), Rollouts: all}
}

func (s *Server) listRollouts(w http.ResponseWriter, _ *http.Request) {
	writeJSON(w, http.StatusOK, s.rolloutList(s.o.Rollouts.Rollouts()))
}

func (s *Server) oneRollout(w http.ResponseWriter, r *http.Request) {
	for _, ro := range s.o.Rollouts.Rollouts() {
		if ro.Name == r.PathValue("name") {
			writeJSON(w, http.StatusOK, s.rolloutList([]Rollout{ro}))
			return
		}
	}
	s.noRollout(w, r)
}

func (s *Server) noRollout(w http.ResponseWriter, r *http.Request) {
	var names []string
	for _, ro := range s.o.Rollouts.Rollouts() {
		names = append(names, ro.Name)
	}
	fail(w, http.StatusNotFound, "unknown_rollout", fmt.Sprintf("there is no rollout %q; there are: %s", clip(r.PathValue("name")), orNone(names)))
}

func orNone(names []string) string {
	if len(names) == 0 {
		return "none"
	}
	return strings.Join(names, ", ")
}

// actRollout promotes, holds or aborts. The body may be {"full": true}: promote to the
// end.
func (s *Server) actRollout(w http.ResponseWriter, r *http.Request) {
	what := r.PathValue("act")
	var body struct {
		Full bool `json:"full"`
	}
	b, err := io.ReadAll(http.MaxBytesReader(w, r.Body, 1<<10))
	if err == nil && len(b) > 0 {
		err = json.Unmarshal(b, &body)
	}
	if err != nil {
		fail(w, http.StatusBadRequest, "bad_body", `the body must be empty or {"full": true}`)
		return
	}
	switch what {
	case "promote":
		if body.Full {
			what = "promote-all"
		}
	case "hold", "abort":
	default:
		s.notFound(w, r)
		return
	}
	found, err := s.o.Rollouts.Act(r.PathValue("name"), what, s.operator(r))
	switch {
	case !found:
		s.noRollout(w, r)
	case err != nil:
		fail(w, http.StatusConflict, "rollout_over", err.Error())
	default:
		s.oneRollout(w, r)
	}
}
