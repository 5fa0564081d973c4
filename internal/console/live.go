// SPDX-License-Identifier: Apache-2.0

package console

import (
	"encoding/json"
	"fmt"
	"net/http"
	"sync"
	"time"

	"github.com/penstock-project/penstock/internal/diagnose"
	"github.com/penstock-project/penstock/internal/fleet"
	"github.com/penstock-project/penstock/internal/journal"
	"github.com/penstock-project/penstock/internal/route"
)

// LiveSchema is the schema of what is sent to those who watch.
const LiveSchema = "penstock/live/v1"

// Live is the state of all pools at one moment, small enough to be sent twice a
// second. Values are null where they are unknown.
type Live struct {
	Schema   string             `json:"schema"`
	Time     time.Time          `json:"time"`
	Router   string             `json:"router,omitempty"`
	Version  string             `json:"version"`
	UptimeS  float64            `json:"uptime_s"`
	Ready    bool               `json:"ready"`
	Reason   string             `json:"reason,omitempty"`
	Listen   ListenState        `json:"listen"`
	Config   ConfigState        `json:"config"`
	Pools    []LivePool         `json:"pools"`
	Findings []diagnose.Finding `json:"findings"`
	Marks    []Mark             `json:"marks"` // of the last minute
	Parts    []string           `json:"parts"` // of the API that this server has beside the usual
}

// LivePool is one pool at one moment.
type LivePool struct {
	Name     string           `json:"name"`
	Policy   string           `json:"policy"`
	Models   []string         `json:"models"`
	Verdict  PoolVerdict      `json:"verdict"`
	SLO      SLOState         `json:"slo"`
	Recent   Recent           `json:"recent"`
	Now      map[string]num   `json:"now"` // the columns of the series
	Phases   map[string]int   `json:"phases"`
	Counters Counters         `json:"counters"`
	Replicas []LiveReplica    `json:"replicas"`
	Adapters []AdapterSummary `json:"adapters,omitempty"`
	Snapshot *SnapshotState   `json:"snapshot"`
}

// PoolVerdict is a verdict with how long its state holds.
type PoolVerdict struct {
	diagnose.Verdict
	Since time.Time `json:"since"`
}

// judged adds verdict and last minute to the pools of a status, as far as they are
// known.
func (s *Server) judged(st *Status, now fleet.Time) {
	h := s.history
	h.mu.Lock()
	defer h.mu.Unlock()
	for i := range st.Pools {
		p := &st.Pools[i]
		ps := h.pools[p.Name]
		if ps == nil || ps.verdict.State == "" {
			continue
		}
		recent, slo := recentOf(ps.win.over(now.Wall().Unix(), windowSeconds)), s.slo(p.Name)
		p.Verdict, p.Recent, p.SLO = &PoolVerdict{Verdict: ps.verdict, Since: ps.since}, &recent, &slo
	}
}

// Recent is what the last minute was like for users.
type Recent struct {
	Requests  int `json:"requests"`
	Failed    int `json:"failed"`
	TTFTP50MS num `json:"ttft_p50_ms"`
	TTFTP95MS num `json:"ttft_p95_ms"`
	Hit       num `json:"hit"`        // cached share of prompt tokens
	HitRandom num `json:"hit_random"` // what a random replica would have had, as the router believed
	HitBest   num `json:"hit_best"`   // what the warmest replica of each request had
}

// LiveReplica is one replica at one moment.
type LiveReplica struct {
	ID       string   `json:"id"`
	Phase    string   `json:"phase"`
	PhaseS   *float64 `json:"phase_s,omitempty"`
	Reason   string   `json:"reason,omitempty"`
	Slow     bool     `json:"slow,omitempty"`
	Running  *float64 `json:"run"`
	Waiting  *float64 `json:"wait"`
	InFlight int      `json:"in_flight"`
	KV       *float64 `json:"kv"`
	Hit      *float64 `json:"hit"`
	TTFTP95  num      `json:"ttft_p95_ms"`
	AgeMS    *float64 `json:"age_ms"`
	Adapters []string `json:"adapters,omitempty"`
	Dropped  string   `json:"dropped,omitempty"`
	Note     string   `json:"note,omitempty"`
}

func recentOf(w *second) Recent {
	return Recent{
		Requests: w.requests, Failed: w.failed, TTFTP50MS: num(w.ttft.quantile(0.5)), TTFTP95MS: num(w.ttft.quantile(0.95)),
		Hit: num(ratio(float64(w.cached), float64(w.known))), HitRandom: num(ratio(w.meanCached, w.seen)), HitBest: num(ratio(w.bestly, w.seen)),
	}
}

// live puts state and history together.
func (s *Server) live(st *Status, now fleet.Time) *Live {
	h := s.history
	h.mu.Lock()
	defer h.mu.Unlock()
	wall := now.Wall().UTC()
	l := &Live{
		Schema: LiveSchema, Time: wall, Router: st.Router, Version: st.Version, UptimeS: st.UptimeS, Ready: st.Ready, Reason: st.Reason,
		Listen: st.Listen, Config: st.Config, Pools: []LivePool{}, Findings: []diagnose.Finding{}, Marks: []Mark{}, Parts: s.parts,
	}
	for _, f := range h.findings {
		if f.To == nil {
			l.Findings = append(l.Findings, f.Finding)
		}
	}
	for _, m := range h.marks {
		if wall.Sub(m.Time) < time.Minute {
			l.Marks = append(l.Marks, m)
		}
	}
	for i := range st.Pools {
		l.Pools = append(l.Pools, s.livePool(&st.Pools[i], wall))
	}
	return l
}

// livePool describes one pool. The caller holds the lock of the history.
func (s *Server) livePool(p *PoolStatus, wall time.Time) LivePool {
	ps := s.history.pool(p.Name)
	sec := wall.Unix()
	out := LivePool{
		Name: p.Name, Policy: p.Policy, Models: p.Models, SLO: s.slo(p.Name), Counters: p.Counters, Adapters: p.Adapters, Snapshot: p.Snapshot,
		Recent: recentOf(ps.win.over(sec, windowSeconds)), Now: map[string]num{}, Phases: map[string]int{}, Replicas: make([]LiveReplica, len(p.Replica)),
	}
	out.Verdict.Verdict, out.Verdict.Since = ps.verdict, ps.since
	if k := s.history.seconds % seriesSeconds; ps.at[k] == s.history.seconds {
		for c, name := range columnNames {
			out.Now[name] = ps.points[k][c]
		}
	}
	for i := range p.Replica {
		r := &p.Replica[i]
		out.Phases[r.Phase]++
		l := LiveReplica{
			ID: r.ID, Phase: r.Phase, PhaseS: r.PhaseS, Reason: r.Reason, Slow: r.Slow, InFlight: r.InFlight,
			Running: pointer(r.Running), Waiting: pointer(r.Waiting), KV: pointer(r.KVUsage), Hit: pointer(r.HitRatio),
			TTFTP95: unknown, AgeMS: r.SignalAgeMS, Note: r.ScrapeError,
		}
		if t := ps.replica[r.ID]; t != nil {
			l.TTFTP95 = t.p95(sec)
		}
		if r.Own != nil && r.Own.Dropped != r.Phase {
			l.Dropped = r.Own.Dropped
		}
		for _, a := range r.Adapters {
			if a.State == fleet.AdapterRunning.String() || a.State == fleet.AdapterResident.String() {
				l.Adapters = append(l.Adapters, a.Name)
			}
		}
		out.Replicas[i] = l
	}
	return out
}

func pointer(r *Reading) *float64 {
	if r == nil {
		return nil
	}
	return &r.Value
}

// maxViewers bounds the open event streams.
const maxViewers = 64

// hub passes the state to those who watch. A viewer that has not taken the last
// one yet gets the newest instead.
type hub struct {
	mu      sync.Mutex
	viewers map[chan []byte]struct{}
}

func (h *hub) watched() bool {
	h.mu.Lock()
	defer h.mu.Unlock()
	return len(h.viewers) > 0
}

func (h *hub) join() (chan []byte, bool) {
	h.mu.Lock()
	defer h.mu.Unlock()
	if len(h.viewers) >= maxViewers {
		return nil, false
	}
	if h.viewers == nil {
		h.viewers = map[chan []byte]struct{}{}
	}
	c := make(chan []byte, 1)
	h.viewers[c] = struct{}{}
	return c, true
}

func (h *hub) leave(c chan []byte) {
	h.mu.Lock()
	defer h.mu.Unlock()
	delete(h.viewers, c)
}

func (h *hub) send(l *Live) {
	b, err := json.Marshal(l)
	if err != nil {
		return
	}
	h.mu.Lock()
	defer h.mu.Unlock()
	for c := range h.viewers {
		select {
		case <-c: // the viewer is slow: it gets this one instead
		default:
		}
		c <- b
	}
}

// Row is one decision in a list of many.
type Row struct {
	ID        string    `json:"id"`
	Time      time.Time `json:"time"`
	Pool      string    `json:"pool"`
	Tenant    string    `json:"tenant,omitempty"`
	Model     string    `json:"model"`
	Adapter   string    `json:"adapter,omitempty"`
	Replica   string    `json:"replica"`
	Why       string    `json:"why"`
	Kind      string    `json:"kind"`
	Status    int       `json:"status"`
	TTFTMS    *float64  `json:"ttft_ms"`
	E2EMS     *float64  `json:"e2e_ms"`
	QueueMS   float64   `json:"queue_ms"`
	Prompt    int       `json:"prompt"`
	Cached    *int      `json:"cached"`
	Predicted int       `json:"predicted"`
	Output    *int      `json:"output"`
}

func rowOf(b *route.Brief) Row {
	r := Row{
		ID: b.ID, Time: b.At.Wall().UTC(), Pool: b.Pool, Tenant: b.Tenant, Model: b.Model, Adapter: b.Adapter,
		Replica: b.Endpoint, Why: b.Why, Kind: b.Kind, Status: b.Status, QueueMS: round3(b.QueueMS), Prompt: b.Prompt, Predicted: b.PredictedCached,
	}
	if b.TTFTMS >= 0 {
		v := round3(b.TTFTMS)
		r.TTFTMS = &v
	}
	if b.E2EMS >= 0 {
		v := round3(b.E2EMS)
		r.E2EMS = &v
	}
	if n := b.Cached; n >= 0 {
		r.Cached = &n
	}
	if n := b.Output; n >= 0 {
		r.Output = &n
	}
	return r
}

// rows is one batch of decisions of the event stream.
type rows struct {
	Rows    []Row `json:"rows"`
	Skipped int   `json:"skipped"` // came as well, and were too many to show
}

// Pace of the decisions of the event stream: a person reads no faster.
const (
	rowsEvery = 250 * time.Millisecond
	rowsMost  = 25
)

// watch streams the state, and with ?decisions=1 the decisions that pass ?filter=.
func (s *Server) watch(w http.ResponseWriter, r *http.Request) {
	f, ok := filterOf(w, r)
	if !ok {
		return
	}
	ticks, ok := s.hub.join()
	if !ok {
		fail(w, http.StatusServiceUnavailable, "too_many_viewers", fmt.Sprintf("%d event streams are open already", maxViewers))
		return
	}
	defer s.hub.leave(ticks)
	w.Header().Set("Content-Type", "text/event-stream")
	rc := http.NewResponseController(w)
	send := func(event string, data []byte) bool {
		_ = rc.SetWriteDeadline(time.Now().Add(20 * time.Second))
		if _, err := fmt.Fprintf(w, "event: %s\ndata: %s\n\n", event, data); err != nil {
			return false
		}
		return rc.Flush() == nil
	}
	fmt.Fprint(w, "retry: 1000\n\n")
	first, _ := json.Marshal(s.live(s.Status(), s.o.Clock()))
	if !send("tick", first) {
		return
	}
	var batch <-chan time.Time
	cursor := uint64(0)
	if r.URL.Query().Get("decisions") == "1" {
		t := time.NewTicker(rowsEvery)
		defer t.Stop()
		batch, cursor = t.C, s.o.Journal.Head()
	}
	for {
		select {
		case <-r.Context().Done():
			return
		case b := <-ticks:
			if !send("tick", b) {
				return
			}
		case <-batch:
			out := s.batch(&cursor, f)
			if out == nil {
				continue
			}
			if b, err := json.Marshal(out); err == nil && !send("decisions", b) {
				return
			}
		}
	}
}

// batch reads what came since the cursor: the newest rows, and how many more.
func (s *Server) batch(cursor *uint64, f journal.Filter) *rows {
	out := &rows{}
	next, missed := s.o.Journal.Briefs(*cursor, 0, f, func(b route.Brief) {
		if len(out.Rows) == rowsMost {
			out.Rows = append(out.Rows[:0], out.Rows[1:]...)
			out.Skipped++
		}
		out.Rows = append(out.Rows, rowOf(&b))
	})
	*cursor = next
	out.Skipped += int(missed)
	if len(out.Rows) == 0 && out.Skipped == 0 {
		return nil
	}
	return out
}

// seriesPool is the history of one pool in the answer of /api/v1/series.
type seriesPool struct {
	Name    string           `json:"name"`
	SLO     SLOState         `json:"slo"`
	Columns map[string][]num `json:"columns"`
}

// seriesAnswer is the answer of /api/v1/series.
type seriesAnswer struct {
	Schema   string        `json:"schema"`
	End      int64         `json:"end"`    // unix second of the last value
	StepS    int           `json:"step_s"` // between two values
	Pools    []seriesPool  `json:"pools"`
	Marks    []Mark        `json:"marks"`
	Phases   []Span        `json:"phases"`
	Findings []FindingSpan `json:"findings"`
}

// series answers with the last quarter of an hour.
func (s *Server) series(w http.ResponseWriter, r *http.Request) {
	writeJSON(w, http.StatusOK, s.past(r.URL.Query().Get("pool")))
}

// past copies the history of one pool, or of all where the name is empty: a client
// that reads slowly must not hold the lock that each sample needs.
func (s *Server) past(want string) *seriesAnswer {
	h := s.history
	h.mu.Lock()
	defer h.mu.Unlock()
	end := h.seconds
	out := &seriesAnswer{
		Schema: SeriesSchema, End: end, StepS: 1, Pools: []seriesPool{},
		Marks: append([]Mark{}, h.marks...), Phases: make([]Span, 0, len(h.spans)), Findings: make([]FindingSpan, 0, len(h.findings)),
	}
	for _, span := range h.spans {
		out.Phases = append(out.Phases, *span)
	}
	for _, f := range h.findings {
		out.Findings = append(out.Findings, *f)
	}
	for _, name := range h.order {
		if want != "" && name != want {
			continue
		}
		p := seriesPool{Name: name, SLO: s.slo(name), Columns: map[string][]num{}}
		ps := h.pools[name]
		first := h.firstKnown(ps, end)
		for c, col := range columnNames {
			list := make([]num, 0, end-first+1)
			for sec := first; sec <= end && sec > 0; sec++ {
				v := unknown
				if k := sec % seriesSeconds; ps.at[k] == sec {
					v = ps.points[k][c]
				}
				list = append(list, v)
			}
			p.Columns[col] = list
		}
		out.Pools = append(out.Pools, p)
	}
	return out
}

// firstKnown is the first second of the history that holds a value.
func (h *history) firstKnown(p *poolSeries, end int64) int64 {
	for sec := end - seriesSeconds + 1; sec < end; sec++ {
		if sec > 0 && p.at[sec%seriesSeconds] == sec {
			return sec
		}
	}
	return end
}

// Value returns a column of the pool's series at this moment, false where it is
// unknown.
func (p *LivePool) Value(name string) (float64, bool) { v, ok := p.Now[name]; return v.Known(ok) }

// Known returns the number, false where it is unknown or ok is false.
func (n num) Known(ok bool) (float64, bool) { v := float64(n); return v, ok && v == v }
