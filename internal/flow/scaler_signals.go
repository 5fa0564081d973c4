// SPDX-License-Identifier: Apache-2.0

package flow

import (
	"fmt"
	"math"
	"slices"
	"strings"

	"github.com/penstock-project/penstock/internal/dispatch"
	"github.com/penstock-project/penstock/internal/fleet"
	"github.com/penstock-project/penstock/internal/scale"
)

// gatherer turns the engines' own counters into signs of danger. What a replica says
// of itself counts where something else agrees: own accounting, or its queue.
type gatherer struct {
	pool  string
	last  map[string]counted
	at    fleet.Time
	queue window
	liars int // replicas whose word was not used
}

type counted struct {
	queueSum, queueCount, preempted fleet.Value
}

// Limits of what a replica may say of its KV cache without anybody agreeing.
const (
	fullKV  = 0.95
	halfKV  = 0.5 // of what it says must be known from own accounting
	leastKV = 0.1 // s between two readings of counters
)

// signals fills in the engines' part of what is known.
func (g *gatherer) signals(now fleet.Time, snap *fleet.Snapshot, st *Stats, out *scale.Gateway) {
	g.liars = 0
	if snap == nil {
		return
	}
	seen := map[string]counted{}
	preempted, known := 0.0, false
	for i := range snap.Endpoints {
		e := &snap.Endpoints[i]
		if e.Phase != fleet.PhaseReady {
			continue
		}
		c := counted{e.QueueSum, e.QueueCount, e.Preemptions}
		seen[e.ID] = c
		if was, ok := g.last[e.ID]; ok {
			if n := delta(was.queueCount, c.queueCount); n > 0 {
				g.queue.add(now, delta(was.queueSum, c.queueSum)/n)
			}
			if c.preempted.OK() && was.preempted.OK() {
				preempted, known = preempted+delta(was.preempted, c.preempted), true
			}
		}
		g.kv(e, st, out)
	}
	if dt := now.Seconds(g.at); g.at != 0 && dt > leastKV && known {
		out.Preempted = fleet.Known(preempted/dt, snap.At)
	}
	g.last, g.at = seen, now
	// The wait in the router and the wait in the engine; together they cannot be longer
	// than what clients waited for their first token.
	if q := g.queue.value(now); q.OK() {
		v := q.V + out.QueueTime.Or(0)
		if out.TTFT.OK() {
			v = math.Min(v, out.TTFT.V)
		}
		out.QueueTime = fleet.Known(v, q.At)
	}
}

// delta is how far a counter went; 0 where it is unknown or began again.
func delta(a, b fleet.Value) float64 {
	if !a.OK() || !b.OK() || b.V < a.V {
		return 0
	}
	return b.V - a.V
}

// kv takes the fullest cache that somebody else's word agrees with.
func (g *gatherer) kv(e *fleet.EndpointState, st *Stats, out *scale.Gateway) {
	if !e.KVUsage.OK() {
		return
	}
	if e.KVUsage.V > fullKV && !agrees(e, st) {
		g.liars++
		return
	}
	if !out.KV.OK() || e.KVUsage.V > out.KV.V {
		out.KV = e.KVUsage
	}
}

// agrees reports whether a full cache is plausible: requests wait there, others have
// load there, or our own requests fill half of what it says.
func agrees(e *fleet.EndpointState, st *Stats) bool {
	if e.Waiting.Or(0) > 0 || !e.KVTokens.OK() || e.KVTokens.V <= 0 {
		return true
	}
	for i := range st.Endpoints {
		l := &st.Endpoints[i]
		if l.Endpoint == e.ID {
			return l.ForeignStreams >= 1 || l.PeerInFlight > 0 || l.CtxTokens >= halfKV*e.KVUsage.V*e.KVTokens.V
		}
	}
	return false
}

// loads is what would be lost with each replica that could go.
func loads(snap *fleet.Snapshot, st *Stats) []scale.Load {
	if snap == nil {
		return nil
	}
	holders := map[string]int{}
	for i := range snap.Endpoints {
		for _, a := range snap.Endpoints[i].Adapters {
			if a.State == fleet.AdapterResident || a.State == fleet.AdapterRunning {
				holders[a.Name]++
			}
		}
	}
	var out []scale.Load
	for i := range snap.Endpoints {
		e := &snap.Endpoints[i]
		if e.Phase == fleet.PhaseDraining || e.Phase == fleet.PhaseAsleep {
			continue
		}
		l := scale.Load{ID: e.ID}
		for _, a := range e.Adapters {
			if holders[a.Name] == 1 && (a.State == fleet.AdapterResident || a.State == fleet.AdapterRunning) {
				l.Adapters++
			}
		}
		if r := loadOf(st, e.ID); r != nil {
			l.InFlight, l.Cached = r.InFlight+r.PeerInFlight, float64(r.CacheBlocks)
		}
		out = append(out, l)
	}
	slices.SortFunc(out, func(a, b scale.Load) int { return strings.Compare(a.ID, b.ID) })
	return out
}

func loadOf(st *Stats, id string) *dispatch.EndpointLoad {
	for i := range st.Endpoints {
		if st.Endpoints[i].Endpoint == id {
			return &st.Endpoints[i]
		}
	}
	return nil
}

// merge lists the replicas as observers see them, and over it what the hand knows of
// those that are on their way: an observer cannot tell a process that loads from one
// that does not run.
func merge(snap *fleet.Snapshot, pending []Pending, now fleet.Time) []ReplicaPhase {
	var out []ReplicaPhase
	index := map[string]int{}
	if snap != nil {
		for i := range snap.Endpoints {
			e := &snap.Endpoints[i]
			index[e.ID] = len(out)
			out = append(out, ReplicaPhase{e.ID, e.Phase, e.Since, e.Reason})
		}
	}
	for _, p := range pending {
		phase, ok := fleet.ParsePhase(p.Phase)
		if !ok || phase >= fleet.PhaseReady && phase != fleet.PhaseFailed {
			phase = fleet.PhasePending
		}
		i, seen := index[p.ID]
		switch {
		case !seen:
			out = append(out, ReplicaPhase{p.ID, min(phase, fleet.PhaseWarming), min(p.Since, now), p.Reason})
		case out[i].Phase < fleet.PhaseReady && phase < fleet.PhaseReady:
			out[i].Phase = max(out[i].Phase, phase)
			if p.Reason != "" {
				out[i].Reason = p.Reason
			}
			if p.Since != 0 && (out[i].Since == 0 || p.Since < out[i].Since) {
				out[i].Since = p.Since // a start begins when it was asked for
			}
		}
	}
	slices.SortFunc(out, func(a, b ReplicaPhase) int { return strings.Compare(a.ID, b.ID) })
	return out
}

const noMatch = "no replica serves a model of this pool: "

// mismatch says that replicas answer, but none with a model of the pool, and what they
// list: a loop without a match must not pass its silence off as a decision.
func mismatch(snap *fleet.Snapshot, models []string) string {
	if snap == nil || len(models) == 0 {
		return ""
	}
	listed := ""
	for i := range snap.Endpoints {
		e := &snap.Endpoints[i]
		for _, m := range e.Models {
			if slices.Contains(models, m) {
				return ""
			}
			if listed == "" || near(m, models[0]) {
				listed = m
			}
		}
	}
	if listed == "" {
		return ""
	}
	return fmt.Sprintf("%sthe configuration says %q; replicas report %q", noMatch, models[0], listed)
}

// near reports whether one name ends in the other, as with and without the owner of a
// repository.
func near(a, b string) bool {
	a, b = strings.ToLower(a), strings.ToLower(b)
	return strings.HasSuffix(a, b) || strings.HasSuffix(b, a)
}

// codeOf is the condition behind a lack of opinion.
func codeOf(why string) string {
	if strings.HasPrefix(why, noMatch) {
		return "NoMatchingReplicas"
	}
	return ""
}
