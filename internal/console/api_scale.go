// SPDX-License-Identifier: Apache-2.0

package console

import (
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"time"

	"github.com/penstock-project/penstock/internal/flow"
)

// ScaleListSchema is the schema name of ScaleList.
const ScaleListSchema = "penstock/recommendations/v1"

// Scaling knows the scalers of the pools and does what an operator asks of one.
type Scaling interface {
	// Scales returns the newest recommendation of each pool, in the order of the
	// configuration; a pool that has none yet is left out.
	Scales() []*flow.ScaleRecord
	// ScaleHistory returns the last recommendations of a pool, newest first; false where
	// there is no such pool.
	ScaleHistory(pool string, limit int) ([]*flow.ScaleRecord, bool)
	// ScaleAsk says what other targets would have kept over the last hour at most; false
	// where there is no such pool.
	ScaleAsk(pool string, t flow.ScaleTargets) (flow.ScaleAsk, bool)
	// ScaleAct pauses, resumes or pins to n replicas. found is false where there is no
	// such pool.
	ScaleAct(pool, what string, n int) (found bool, err error)
}

// ScaleList is the answer of /api/v1/scale and of a history.
type ScaleList struct {
	Schema          string              `json:"schema"`
	Time            time.Time           `json:"time"`
	Recommendations []*flow.ScaleRecord `json:"recommendations"`
}

// scaleRoutes registers the routes where there is a Scaling.
func (s *Server) scaleRoutes(mux *http.ServeMux) {
	if s.o.Scaling == nil {
		return
	}
	mux.HandleFunc("GET /api/v1/scale", s.listScales)
	mux.HandleFunc("GET /api/v1/scale/{pool}", s.oneScale)
	mux.HandleFunc("GET /api/v1/scale/{pool}/history", s.scaleHistory)
	mux.HandleFunc("POST /api/v1/scale/{pool}/ask", s.askScale)
	mux.HandleFunc("POST /api/v1/scale/{pool}/{act}", s.actScale)
}

func (s *Server) scaleList(l []*flow.ScaleRecord) ScaleList {
	if l == nil {
		l = []*flow.ScaleRecord{}
	}
	return ScaleList{Schema: ScaleListSchema, Time: s.o.Clock().Wall().UTC(), Recommendations: l}
}

func (s *Server) listScales(w http.ResponseWriter, _ *http.Request) {
	writeJSON(w, http.StatusOK, s.scaleList(s.o.Scaling.Scales()))
}

func (s *Server) noPool(w http.ResponseWriter, r *http.Request) {
	var names []string
	for _, p := range s.o.Pools() {
		names = append(names, p.Name)
	}
	fail(w, http.StatusNotFound, "unknown_pool", fmt.Sprintf("there is no pool %q; there are: %s", clip(r.PathValue("pool")), orNone(names)))
}

func (s *Server) oneScale(w http.ResponseWriter, r *http.Request) {
	l, ok := s.o.Scaling.ScaleHistory(r.PathValue("pool"), 1)
	switch {
	case !ok:
		s.noPool(w, r)
	case len(l) == 0:
		fail(w, http.StatusServiceUnavailable, "no_recommendation", "the scaler has not evaluated this pool yet")
	default:
		writeJSON(w, http.StatusOK, l[0])
	}
}

func (s *Server) scaleHistory(w http.ResponseWriter, r *http.Request) {
	limit, ok := limitOf(w, r, 50)
	if !ok {
		return
	}
	l, ok := s.o.Scaling.ScaleHistory(r.PathValue("pool"), limit)
	if !ok {
		s.noPool(w, r)
		return
	}
	writeJSON(w, http.StatusOK, s.scaleList(l))
}

// ScaleAsked is the answer of /api/v1/scale/POOL/ask.
type ScaleAsked struct {
	Schema  string            `json:"schema"` // flow.ScaleAskSchema
	Time    time.Time         `json:"time"`
	Targets flow.ScaleTargets `json:"targets"`
	flow.ScaleAsk
}

// askScale plays the evaluations in memory under other targets. One question of the
// simulator kind runs at a time.
func (s *Server) askScale(w http.ResponseWriter, r *http.Request) {
	var t flow.ScaleTargets
	d := json.NewDecoder(http.MaxBytesReader(w, r.Body, 4<<10))
	d.DisallowUnknownFields()
	err := d.Decode(&t)
	if err == nil {
		err = t.Check()
	}
	if err != nil {
		fail(w, http.StatusBadRequest, "bad_question", "the body is no question such as {\"attainment\": 0.95}: "+err.Error())
		return
	}
	if !s.play(r) {
		return
	}
	defer s.played()
	a, ok := s.o.Scaling.ScaleAsk(r.PathValue("pool"), t)
	switch {
	case !ok:
		s.noPool(w, r)
	case a.Ticks == 0:
		fail(w, http.StatusServiceUnavailable, "no_recommendation", "the scaler has not evaluated this pool yet")
	default:
		writeJSON(w, http.StatusOK, ScaleAsked{Schema: flow.ScaleAskSchema, Time: s.o.Clock().Wall().UTC(), Targets: t, ScaleAsk: a})
	}
}

// actScale pauses, pins or resumes. The body of a pin is {"replicas": 3}.
func (s *Server) actScale(w http.ResponseWriter, r *http.Request) {
	what := r.PathValue("act")
	var body struct {
		Replicas *int `json:"replicas"`
	}
	b, err := io.ReadAll(http.MaxBytesReader(w, r.Body, 1<<10))
	if err == nil && len(b) > 0 {
		err = json.Unmarshal(b, &body)
	}
	n := 0
	switch {
	case what != "pause" && what != "pin" && what != "resume":
		s.notFound(w, r)
		return
	case err != nil || what == "pin" && (body.Replicas == nil || *body.Replicas < 0):
		fail(w, http.StatusBadRequest, "bad_body", `the body of a pin is {"replicas": 3}`)
		return
	case body.Replicas != nil:
		n = *body.Replicas
	}
	found, err := s.o.Scaling.ScaleAct(r.PathValue("pool"), what, n)
	switch {
	case !found:
		s.noPool(w, r)
	case err != nil:
		fail(w, http.StatusConflict, "out_of_bounds", err.Error())
	default:
		s.oneScale(w, r)
	}
}
