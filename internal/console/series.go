// SPDX-License-Identifier: Apache-2.0

package console

import (
	"context"
	"math"
	"strconv"
	"strings"
	"sync"
	"time"

	"github.com/penstock-project/penstock/internal/diagnose"
	"github.com/penstock-project/penstock/internal/fleet"
	"github.com/penstock-project/penstock/internal/journal"
	"github.com/penstock-project/penstock/internal/route"
)

// SeriesSchema is the schema of the series of the last quarter of an hour.
const SeriesSchema = "penstock/series/v1"

// How long the history reaches back, and how much of it is kept at most.
const (
	seriesSeconds = 15 * 60
	maxMarks      = 400
	maxSpans      = 4000
)

// num is a number in JSON with four digits behind the point, null where it is
// unknown.
type num float64

var unknown = num(math.NaN())

// MarshalJSON implements json.Marshaler.
func (n num) MarshalJSON() ([]byte, error) {
	v := float64(n)
	if math.IsNaN(v) || math.IsInf(v, 0) {
		return []byte("null"), nil
	}
	return strconv.AppendFloat(nil, math.Round(v*1e4)/1e4, 'f', -1, 64), nil
}

// UnmarshalJSON implements json.Unmarshaler.
func (n *num) UnmarshalJSON(b []byte) error {
	if string(b) == "null" {
		*n = unknown
		return nil
	}
	v, err := strconv.ParseFloat(string(b), 64)
	*n = num(v)
	return err
}

// Columns of the series, in this order.
const (
	colTTFTP50   = iota // ms, over the last 10 s
	colTTFTP95          // ms, over the last 10 s
	colQueueP95         // ms held by the router, over the last 10 s
	colWaiting          // requests waiting at replicas, by their own metrics
	colHeld             // requests waiting in the router
	colInFlight         // requests
	colKVMax            // fullest replica, 0 to 1
	colKVMean           // mean of the ready replicas, 0 to 1
	colRequests         // ended a second, over the last 10 s
	colFailed           // failed a second, over the last 10 s
	colIn               // prompt tokens a second, over the last 10 s
	colOut              // output tokens a second, over the last 10 s
	colHit              // cached share of prompt tokens, over the last minute
	colHitRandom        // the same for a random replica, by the router's belief
	colHitBest          // the same for the warmest replica of each request
	colReady            // replicas
	colReplicas         // replicas
	colDesired          // replicas
	numColumns
)

var columnNames = [numColumns]string{
	"ttft_p50_ms", "ttft_p95_ms", "queue_p95_ms", "waiting", "held", "in_flight", "kv_max", "kv_mean",
	"requests_per_s", "failed_per_s", "prompt_tokens_per_s", "output_tokens_per_s",
	"hit", "hit_random", "hit_best", "ready", "replicas", "desired",
}

type point [numColumns]num

// poolSeries is the history of one pool.
type poolSeries struct {
	win     window
	at      [seriesSeconds]int64 // unix second of each place of the ring; 0 empty
	points  [seriesSeconds]point
	replica map[string]*replicaTimes // TTFT by replica
	phase   map[string]*Span         // open spans by replica
	verdict diagnose.Verdict
	since   time.Time      // of the verdict's state
	next    diagnose.State // what the state is about to become
	nextAt  time.Time      // since when
	policy  string
	desired int // -1 unknown
}

// replicaTimes holds the last times to first token at one replica.
type replicaTimes struct {
	ms [64]float64
	at [64]int64 // unix second; 0 empty
	n  int
}

func (t *replicaTimes) add(at int64, ms float64) {
	t.ms[t.n%len(t.ms)], t.at[t.n%len(t.ms)] = ms, at
	t.n++
}

// p95 is over the last minute.
func (t *replicaTimes) p95(now int64) num {
	var h histogram
	for i, at := range t.at {
		if at > now-windowSeconds {
			h.add(t.ms[i])
		}
	}
	return num(h.quantile(0.95))
}

// Mark is something that happened at one moment.
type Mark struct {
	Time time.Time `json:"time"`
	Pool string    `json:"pool,omitempty"`
	Kind string    `json:"kind"` // reload, policy, scale, ready, failed, phase, state
	Text string    `json:"text"`
}

// Span is one phase of one replica, or the time in which a finding held. To is
// null while it lasts.
type Span struct {
	Pool    string     `json:"pool,omitempty"`
	Replica string     `json:"replica,omitempty"`
	Phase   string     `json:"phase,omitempty"`
	Reason  string     `json:"reason,omitempty"`
	From    time.Time  `json:"from"`
	To      *time.Time `json:"to"`
}

// FindingSpan is a finding with the time in which it held.
type FindingSpan struct {
	diagnose.Finding
	From time.Time  `json:"from"`
	To   *time.Time `json:"to"`
}

// history keeps the last quarter of an hour of all pools. Its methods are safe for
// concurrent use.
type history struct {
	mu       sync.Mutex
	pools    map[string]*poolSeries
	order    []string
	marks    []Mark
	spans    []*Span
	findings []*FindingSpan
	cursor   uint64
	reloaded time.Time
	deep     []diagnose.Finding // of the records; renewed while somebody looks
	deepAt   time.Time
	seconds  int64 // last whole second that was sampled
}

func newHistory() *history { return &history{pools: map[string]*poolSeries{}} }

func (h *history) pool(name string) *poolSeries {
	p := h.pools[name]
	if p == nil {
		p = &poolSeries{replica: map[string]*replicaTimes{}, phase: map[string]*Span{}, desired: -1}
		h.pools[name] = p
		h.order = append(h.order, name)
	}
	return p
}

// read books what the journal got since the last call.
func (h *history) read(j *journal.Journal, now time.Time) {
	sec := now.Unix()
	h.cursor, _ = j.Briefs(h.cursor, 0, journal.Filter{}, func(b route.Brief) {
		p := h.pool(b.Pool)
		p.win.at(sec).add(&b)
		if b.TTFTMS >= 0 && b.Endpoint != "" {
			t := p.replica[b.Endpoint]
			if t == nil {
				t = &replicaTimes{}
				p.replica[b.Endpoint] = t
			}
			t.add(sec, b.TTFTMS)
		}
	})
}

// glance looks at a pool as a person would.
func (p *poolSeries) glance(st *PoolStatus, now int64, slo SLOState, found []diagnose.Finding) diagnose.Glance {
	last := p.win.over(now, windowSeconds)
	g := diagnose.Glance{
		Pool: st.Name, Ready: st.Ready, Replicas: st.Replicas, Held: st.Held, InFlight: st.InFlight,
		Requests: last.requests, Failed: last.failed, TTFTP95MS: last.ttft.quantile(0.95), SLOTTFTMS: float64(slo.TTFTMS),
		Hit: ratio(float64(last.cached), float64(last.known)), Random: ratio(last.meanCached, last.seen),
		Waiting: math.NaN(), KVMax: math.NaN(),
	}
	for i := range st.Replica {
		switch r := &st.Replica[i]; {
		case r.Phase != fleet.PhaseReady.String():
			switch r.Phase {
			case "pending", "pulling", "loading", "warming":
				g.Coming++
			}
		default:
			if r.Waiting != nil {
				g.Waiting = r.Waiting.Value + zeroIfNaN(g.Waiting)
			}
			if r.KVUsage != nil {
				g.KVMax = max(zeroIfNaN(g.KVMax), r.KVUsage.Value)
			}
		}
	}
	for i := range found {
		if o := found[i].Object; strings.HasPrefix(o, "replica "+st.Name+"/") || o == "pool "+st.Name || !strings.Contains(o, " ") {
			g.Findings = append(g.Findings, found[i])
		}
	}
	return g
}

func zeroIfNaN(v float64) float64 {
	if math.IsNaN(v) {
		return 0
	}
	return v
}

// sample fills the point of the second now.
func (p *poolSeries) sample(g *diagnose.Glance, st *PoolStatus, now int64) {
	near, minute := p.win.over(now, 10), p.win.over(now, windowSeconds)
	var kv float64
	n := 0
	for i := range st.Replica {
		if r := &st.Replica[i]; r.Phase == "ready" && r.KVUsage != nil {
			kv += r.KVUsage.Value
			n++
		}
	}
	desired := unknown
	if p.desired >= 0 {
		desired = num(p.desired)
	}
	k := now % seriesSeconds
	p.at[k] = now
	p.points[k] = point{
		colTTFTP50: num(near.ttft.quantile(0.5)), colTTFTP95: num(near.ttft.quantile(0.95)), colQueueP95: num(near.queue.quantile(0.95)),
		colWaiting: num(g.Waiting), colHeld: num(g.Held), colInFlight: num(g.InFlight), colKVMax: num(g.KVMax), colKVMean: num(ratio(kv, float64(n))),
		colRequests: num(near.requests) / 10, colFailed: num(near.failed) / 10, colIn: num(near.prompt) / 10, colOut: num(near.output) / 10,
		colHit: num(g.Hit), colHitRandom: num(g.Random), colHitBest: num(ratio(minute.bestly, minute.seen)),
		colReady: num(st.Ready), colReplicas: num(st.Replicas), colDesired: desired,
	}
}

// phases notes what changed in the lives of the replicas.
func (h *history) phases(p *poolSeries, st *PoolStatus, now time.Time) {
	here := map[string]bool{}
	for i := range st.Replica {
		r := &st.Replica[i]
		here[r.ID] = true
		phase := r.Phase
		if r.Slow && phase == "ready" {
			phase = "slow"
		}
		open := p.phase[r.ID]
		if open != nil && open.Phase == phase {
			continue
		}
		from := now
		if open != nil {
			open.To = &from
			h.mark(now, st.Name, markOf(phase), r.ID+": "+open.Phase+" -> "+phase+because(r.Reason))
		} else if r.PhaseS != nil {
			from = now.Add(-time.Duration(*r.PhaseS * float64(time.Second)))
		}
		span := &Span{Pool: st.Name, Replica: r.ID, Phase: phase, Reason: r.Reason, From: from}
		p.phase[r.ID] = span
		h.spans = append(h.spans, span)
	}
	for id, open := range p.phase {
		if !here[id] {
			at := now
			open.To = &at
			delete(p.phase, id)
			delete(p.replica, id)
		}
	}
}

func markOf(phase string) string {
	if phase == "ready" || phase == "failed" {
		return phase
	}
	return "phase"
}

func because(reason string) string {
	if reason == "" {
		return ""
	}
	return " (" + reason + ")"
}

func (h *history) mark(now time.Time, pool, kind, text string) {
	h.marks = append(h.marks, Mark{Time: now, Pool: pool, Kind: kind, Text: text})
}

// changes notes a reload, another policy and another desired count.
func (h *history) changes(st *Status, now time.Time) {
	if c := st.Config; c.ReloadedAt != nil && !c.ReloadedAt.Equal(h.reloaded) {
		h.reloaded = *c.ReloadedAt
		if c.ReloadOK {
			h.mark(now, "", "reload", "configuration reloaded, "+c.Digest)
		} else {
			h.mark(now, "", "reload", "configuration rejected: "+c.Error)
		}
	}
	for i := range st.Pools {
		p := h.pool(st.Pools[i].Name)
		if was := p.policy; was != st.Pools[i].Policy {
			if was != "" {
				h.mark(now, st.Pools[i].Name, "policy", "policy "+was+" -> "+st.Pools[i].Policy)
			}
			p.policy = st.Pools[i].Policy
		}
	}
}

// scaled notes the count that the scaler wants.
func (h *history) scaled(pool string, desired int, now time.Time) {
	p := h.pool(pool)
	if p.desired >= 0 && p.desired != desired {
		h.mark(now, pool, "scale", "wanted "+strconv.Itoa(p.desired)+" -> "+strconv.Itoa(desired))
	}
	p.desired = desired
}

// hold extends the spans of findings that are still there and ends the others.
func (h *history) hold(found []diagnose.Finding, now time.Time) {
	open := map[string]*FindingSpan{}
	for _, s := range h.findings {
		if s.To == nil {
			open[s.Code+"|"+s.Object] = s
		}
	}
	for i := range found {
		key := found[i].Code + "|" + found[i].Object
		if s := open[key]; s != nil {
			s.Finding = found[i]
			delete(open, key)
			continue
		}
		h.findings = append(h.findings, &FindingSpan{Finding: found[i], From: now})
	}
	for _, s := range open {
		at := now
		s.To = &at
	}
}

// forget drops what is older than the history, and the oldest of too much.
func (h *history) forget(now time.Time) {
	old := now.Add(-seriesSeconds * time.Second)
	h.marks = trim(h.marks, maxMarks, func(m *Mark) bool { return m.Time.Before(old) })
	h.spans = trim(h.spans, maxSpans, func(s **Span) bool { return (*s).To != nil && (*s).To.Before(old) })
	h.findings = trim(h.findings, maxMarks, func(s **FindingSpan) bool { return (*s).To != nil && (*s).To.Before(old) })
}

func trim[T any](list []T, most int, gone func(*T) bool) []T {
	kept := list[:0]
	for i := range list {
		if !gone(&list[i]) {
			kept = append(kept, list[i])
		}
	}
	if len(kept) > most {
		kept = append(kept[:0], kept[len(kept)-most:]...)
	}
	return kept
}

// Run samples the history once a second, and twice a second sends the state to
// those who watch, until ctx ends. Call it once.
func (s *Server) Run(ctx context.Context) {
	t := time.NewTicker(500 * time.Millisecond)
	defer t.Stop()
	for {
		select {
		case <-ctx.Done():
			return
		case <-t.C:
			s.tick()
		}
	}
}
