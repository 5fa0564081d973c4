// SPDX-License-Identifier: Apache-2.0

package console

import (
	"math"
	"net/http"
	"time"

	"github.com/penstock-project/penstock/internal/diagnose"
	"github.com/penstock-project/penstock/internal/diagnose/routing"
	"github.com/penstock-project/penstock/internal/dispatch"
	"github.com/penstock-project/penstock/internal/fleet"
	"github.com/penstock-project/penstock/internal/journal"
	"github.com/penstock-project/penstock/internal/route"
)

// Judge says what is wrong with a running system, by its state and its last
// decisions, the greatest harm first.
func Judge(st *Status, records []*route.Record) diagnose.Report {
	found := merge(liveOf(st).Judge(), routing.Analyse(routing.Input{Records: records}).Findings)
	checked := len(records)
	for _, p := range st.Pools {
		checked += 1 + len(p.Replica)
	}
	return diagnose.NewReport(checked, found)
}

// merge adds what the records show to what the state shows; a code that the state
// already gave is not said again.
func merge(live, deep []diagnose.Finding) []diagnose.Finding {
	said := map[string]bool{}
	for i := range live {
		said[live[i].Code] = true
	}
	for _, f := range deep {
		if !said[f.Code] {
			live = append(live, f)
		}
	}
	diagnose.SortByHarm(live)
	return live
}

// liveOf turns the status of a server into what the rules look at.
func liveOf(st *Status) *diagnose.Live {
	l := &diagnose.Live{Ready: st.Ready, Reason: st.Reason, ConfigFile: st.Config.File, ConfigError: st.Config.Error, JournalLost: st.Journal.Dropped}
	for i := range st.Pools {
		p := &st.Pools[i]
		lp := diagnose.LivePool{
			Name: p.Name, Arrived: p.Counters.Arrived, Ended: p.Counters.Ended, Refused: p.Counters.Refused, Leaked: p.Counters.Leaked, Held: p.Held,
		}
		if p.Queue != nil {
			for _, g := range p.Queue.Guards {
				if g.Off {
					lp.Off = append(lp.Off, diagnose.LiveGuard{
						Name: g.Name, TTFT: scaled(g.TTFTMS, 1), WithoutIt: scaled(g.WithoutMS, 1), Requests: g.Requests, Times: int(g.Switched),
					})
				}
			}
		}
		for k := range p.Replica {
			r := &p.Replica[k]
			lr := diagnose.LiveReplica{
				ID: r.ID, Phase: r.Phase, Reason: r.Reason, ScrapeError: r.ScrapeError, PhaseS: scaled(r.PhaseS, 1), SignalAge: scaled(r.SignalAgeMS, 1e-3),
				InFlight: r.InFlight, Running: valueOf(r.Running), Waiting: valueOf(r.Waiting), KV: valueOf(r.KVUsage),
			}
			if r.Own != nil {
				lr.Sent, lr.Failed, lr.Disagrees = r.Own.Sent, r.Own.Failed, r.Own.IndexDisagreement
				lr.Predicted, lr.Observed = r.Own.PredictedCached, r.Own.ObservedCached
			}
			if p := r.Pins; p != nil && p.Verdict == dispatch.PinsIgnored.String() {
				lr.PinsIgnored, lr.Pinned, lr.PinsMet, lr.PinsEven = true, p.Checked, p.Met, p.Chance
			}
			lp.Replicas = append(lp.Replicas, lr)
		}
		l.Pools = append(l.Pools, lp)
	}
	return l
}

func valueOf(r *Reading) float64 {
	if r == nil {
		return math.NaN()
	}
	return r.Value
}

func scaled(p *float64, scale float64) float64 {
	if p == nil {
		return math.NaN()
	}
	return *p * scale
}

// judgedRecords is how many of the last decisions a judgement reads.
const judgedRecords = 1000

// findings answers with what is wrong now.
func (s *Server) findings(w http.ResponseWriter, _ *http.Request) {
	st := s.Status()
	writeJSON(w, http.StatusOK, Judge(st, s.o.Journal.Query(journal.Filter{}, judgedRecords)))
}

// SLOState is what users of a pool are promised.
type SLOState struct {
	TTFTMS num `json:"ttft_ms"` // null: nothing is promised
	ITLMS  num `json:"itl_ms"`
}

// slo finds what the configuration promises the users of a pool.
func (s *Server) slo(pool string) SLOState {
	if s.o.Config != nil {
		if c := s.o.Config(); c != nil {
			for i := range c.Pools {
				if c.Pools[i].Name == pool {
					return SLOState{TTFTMS: num(c.Pools[i].SLO.TTFT.Seconds() * 1e3), ITLMS: num(c.Pools[i].SLO.ITL.Seconds() * 1e3)}
				}
			}
		}
	}
	return SLOState{TTFTMS: num(math.Inf(1)), ITLMS: num(math.Inf(1))}
}

// deepEvery is how often the records are judged while somebody watches: it reads a
// thousand of them.
const deepEvery = 10 * time.Second

// tick reads the journal, judges the pools and tells those who watch. Whole seconds
// are sampled into the history.
func (s *Server) tick() {
	now := s.o.Clock()
	wall := now.Wall()
	watched := s.hub.watched()
	h := s.history
	h.mu.Lock()
	if s.o.Journal != nil {
		h.read(s.o.Journal, wall)
	}
	renew := watched && s.o.Journal != nil && wall.Sub(h.deepAt) >= deepEvery
	h.mu.Unlock()
	if renew {
		deep := routing.Analyse(routing.Input{Records: s.o.Journal.Query(journal.Filter{}, judgedRecords)}).Findings
		h.mu.Lock()
		h.deep, h.deepAt = deep, wall
		h.mu.Unlock()
	}
	whole := wall.Unix() > h.seconds
	if !whole && !watched {
		return
	}
	st := s.Status()
	h.mu.Lock()
	h.observe(s, st, now, whole)
	h.mu.Unlock()
	if watched {
		s.hub.send(s.live(st, now))
	}
}

// settleFor is how long another state must hold before it is believed: a queue of
// one second is no news. A pool without a ready replica is news at once.
const settleFor = 5 * time.Second

// settle takes a verdict; its state only once it has held for a while.
func (h *history) settle(p *poolSeries, pool string, v diagnose.Verdict, now time.Time) {
	was := p.verdict.State
	calm := func(s diagnose.State) bool { return s == diagnose.StateGood || s == diagnose.StateIdle }
	switch {
	case v.State == was, was == "", v.State == diagnose.StateDown, was == diagnose.StateStarting, was == diagnose.StateDown, calm(was) && calm(v.State):
		p.next = v.State
	case p.next != v.State:
		p.next, p.nextAt = v.State, now
		return
	case now.Sub(p.nextAt) < settleFor:
		return
	}
	if v.State != was {
		if was != "" {
			h.mark(now, pool, "state", string(was)+" -> "+string(v.State))
		}
		p.since = now
	}
	p.verdict = v
}

// observe takes the state into the history. The caller holds the lock.
func (h *history) observe(s *Server, st *Status, now fleet.Time, whole bool) {
	wall := now.Wall().UTC()
	if wall.Sub(h.deepAt) > 3*deepEvery {
		h.deep = nil // nobody looked for a while: what the records said then is no news
	}
	found := merge(liveOf(st).Judge(), h.deep)
	h.hold(found, wall)
	h.changes(st, wall)
	for i := range st.Pools {
		p, ps := &st.Pools[i], h.pool(st.Pools[i].Name)
		if s.o.Desired != nil {
			if n, ok := s.o.Desired(p.Name); ok {
				h.scaled(p.Name, n, wall)
			}
		}
		g := ps.glance(p, wall.Unix(), s.slo(p.Name), found)
		h.phases(ps, p, wall)
		v := g.Verdict()
		h.settle(ps, p.Name, v, wall)
		if whole {
			ps.sample(&g, p, wall.Unix())
		}
	}
	if whole {
		h.seconds = wall.Unix()
		h.forget(wall)
	}
}
