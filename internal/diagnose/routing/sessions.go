// SPDX-License-Identifier: Apache-2.0

package routing

import (
	"fmt"
	"slices"
	"strconv"
	"strings"

	"github.com/penstock-project/penstock/internal/diagnose"
)

// turn is one step of a session.
type turn struct {
	endpoint, router string
	at               float64
}

// sessions finds conversations that meet another replica from turn to turn, and
// says whether several routers or a change of the fleet scatter them.
func (a *analysis) sessions() {
	byID := map[string][]turn{}
	var ids []string
	for i := range a.ds {
		d := &a.ds[i]
		if d.session == "" || d.endpoint == "" {
			continue
		}
		if _, ok := byID[d.session]; !ok {
			ids = append(ids, d.session)
		}
		byID[d.session] = append(byID[d.session], turn{d.endpoint, d.router, d.at})
	}
	moves, steps, crossMoves, crossSteps, sameMoves, sameSteps := 0, 0, 0, 0, 0, 0
	scattered := 0
	for _, id := range ids {
		ts := byID[id]
		moved := false
		for i := 1; i < len(ts); i++ {
			steps++
			m := 0
			if ts[i].endpoint != ts[i-1].endpoint {
				m, moved = 1, true
			}
			moves += m
			if ts[i].router != ts[i-1].router {
				crossSteps++
				crossMoves += m
			} else {
				sameSteps++
				sameMoves += m
			}
		}
		if moved {
			scattered++
		}
	}
	if steps < enough {
		return
	}
	rate := float64(moves) / float64(steps)
	a.facts["turns_away_from_warm"] = diagnose.Round(rate, 4)
	joined, late, at := a.joined(byID, ids)
	if rate < 0.1 && joined <= 0.3 {
		return
	}
	steady := a.steady(byID, ids, at)
	f := a.new("sessions-scattered", "router", 0)
	f.Evidence = []diagnose.Evidence{
		diagnose.Ev("sessions", len(ids), ""), diagnose.Ev("sessions_that_moved", scattered, ""), diagnose.Ev("turns_away_from_warm", rate, ""), diagnose.Ev("replicas", fleet(a.ds), "replicas"),
	}
	cause := "the affinity does not hold"
	remedy := "Choose by a hash of the conversation's prefix (rendezvous or ring), which every router computes alike and which moves one key in N when a replica is added."
	switch {
	case joined > 0.3 && steady < 0.1:
		cause = fmt.Sprintf("when %s joined, %s %% of the sessions moved, where one in %d would do", late, pct(joined), fleet(a.ds))
		f.Evidence = append(f.Evidence, diagnose.Ev("moved_on_add", joined, ""), diagnose.Evidence{Name: "joined", Value: late})
	case crossSteps >= enough && share(float64(crossMoves), float64(crossSteps)) > 2*share(float64(sameMoves), float64(max(1, sameSteps)))+0.1:
		cause = "each router keeps its own map: turns that meet another router meet another replica"
		f.Evidence = append(f.Evidence, diagnose.Ev("moved_across_routers", share(float64(crossMoves), float64(crossSteps)), ""), diagnose.Ev("moved_within_a_router", share(float64(sameMoves), float64(max(1, sameSteps))), ""))
	}
	f.Evidence = append(f.Evidence, diagnose.Evidence{Name: "cause", Value: cause})
	f.Message = fmt.Sprintf("%d of %d sessions changed their replica, %s %% of all turns met a cold one: %s", scattered, len(ids), pct(rate), cause)
	f.Remedy = remedy
	a.add(f)
}

// joined returns which share of the sessions moved when a replica was first seen
// after others had been for a while, and which replica that was.
func (a *analysis) joined(byID map[string][]turn, ids []string) (moved float64, late string, at float64) {
	first := map[string]float64{}
	names := endpoints(a.ds)
	for i := range a.ds {
		d := &a.ds[i]
		if _, ok := first[d.endpoint]; !ok && d.endpoint != "" {
			first[d.endpoint] = d.at
		}
	}
	begin, end := a.ds[0].at, a.ds[len(a.ds)-1].at
	for _, n := range names {
		if t := first[n]; t > begin+0.3*(end-begin) && t > at {
			late, at = n, t
		}
	}
	if late == "" {
		return 0, "", 0
	}
	n := 0
	for _, id := range ids {
		ts := byID[id]
		i := slices.IndexFunc(ts, func(t turn) bool { return t.at >= at })
		if i <= 0 {
			continue
		}
		n++
		if ts[i].endpoint != ts[i-1].endpoint {
			moved++
		}
	}
	if n < 10 {
		return 0, "", 0
	}
	return moved / float64(n), late, at
}

// steady is the share of turns that moved although no replica joined between them.
func (a *analysis) steady(byID map[string][]turn, ids []string, joinedAt float64) float64 {
	n, moved := 0, 0
	for _, id := range ids {
		ts := byID[id]
		for i := 1; i < len(ts); i++ {
			if ts[i-1].at < joinedAt && ts[i].at >= joinedAt {
				continue
			}
			n++
			if ts[i].endpoint != ts[i-1].endpoint {
				moved++
			}
		}
	}
	return share(float64(moved), float64(max(1, n)))
}

// staleFrom is the age in milliseconds from which a scrape says little of a
// replica's queue.
const staleFrom = 15000

// stale finds decisions on old signals and clocks that disagree.
func (a *analysis) stale() {
	n, old, future := 0, 0, 0
	worst := 0.0
	for i := range a.ds {
		d := &a.ds[i]
		age := d.snapshotAge
		if !known(age) {
			for _, c := range d.candidates {
				if known(c.scrapeAge) {
					age = c.scrapeAge
				}
			}
		}
		if !known(age) {
			continue
		}
		n++
		if age > staleFrom {
			old++
			worst = max(worst, age)
		}
		if age < -1000 {
			future++
		}
	}
	if n < enough {
		return
	}
	if old*5 >= n {
		f := a.new("signals-stale", "router", 0)
		f.Evidence = []diagnose.Evidence{diagnose.Ev("decisions", n, ""), diagnose.Ev("on_signals_older_than_15_s", old, ""), diagnose.Ev("oldest", worst/1000, "s")}
		f.Message = fmt.Sprintf("%d of %d decisions were made on signals older than 15 s (up to %s): the router carries itself on its own accounting alone", old, n, diagnose.Seconds(worst/1000))
		f.Remedy = "Check that the engines answer /metrics in time (a busy engine delays it), and the router's scrape interval and errors: penstock status"
		a.add(f)
	}
	if future*20 >= n {
		f := a.new("clock-skew", "router", 0)
		f.Evidence = []diagnose.Evidence{diagnose.Ev("decisions", n, ""), diagnose.Ev("with_signals_from_the_future", future, "")}
		f.Message = fmt.Sprintf("%d of %d decisions carry signals from the future: the clocks of router and scraper disagree", future, n)
		f.Remedy = "Synchronise the clocks (chrony, NTP)."
		a.add(f)
	}
}

// failures finds requests that had no replica, and a fail-open that is none.
func (a *analysis) failures() {
	n, refused, void, down := 0.0, 0.0, 0.0, 0.0
	why := ""
	for i := range a.ds {
		d := &a.ds[i]
		n += d.weight
		bad := known(d.status) && d.status >= 500
		if isDown(d.picker) {
			down += d.weight
			if bad && strings.EqualFold(d.failureMode, "FailOpen") {
				void += d.weight
			}
			continue
		}
		if (d.kind == "refused" || bad) && d.endpoint == "" && known(d.status) {
			refused += d.weight
			if d.why != "" {
				why = d.why
			}
		}
	}
	if void > 0 {
		f := a.new("fail-open-void", "picker", 0)
		f.Evidence = []diagnose.Evidence{diagnose.Ev("while_picker_down", down, "requests"), diagnose.Ev("ended_in_5xx", void, "requests"), {Name: "failureMode", Value: "FailOpen"}}
		f.Message = fmt.Sprintf("%s of %s requests ended in a 5xx while the picker was down, although the failure mode is FailOpen", diagnose.Num(void), diagnose.Num(down))
		f.Remedy = "Give the picker's cluster a gRPC health check and healthy_panic_threshold 0: without them the proxy still sends requests with a body to the dead picker."
		a.add(f)
	}
	if refused >= enough && refused*20 >= n {
		f := a.new("requests-refused", "router", 0)
		f.Evidence = []diagnose.Evidence{diagnose.Ev("refused", refused, "requests"), diagnose.Ev("requests", n, "")}
		f.Message = fmt.Sprintf("%s of %s requests found no replica", diagnose.Num(refused), diagnose.Num(n))
		if why != "" {
			f.Message += ": " + why
		}
		f.Remedy = "See which replicas are ready and why the others are not: penstock status"
		a.add(f)
	}
}

func isDown(s string) bool {
	switch s {
	case "down", "0", "false", "dead", "killed", "unreachable":
		return true
	}
	return false
}

// kvEvents reads a stream of KV-cache events (pod, start, seq, ev, blocks) and says
// which replicas lost their cache and which of their events were missed. It reports
// whether the table was one.
func (a *analysis) kvEvents(t *diagnose.Table) bool {
	pod, ev, seq := t.Column("pod", "replica", "endpoint"), t.Column("ev", "event", "type"), t.Column("seq", "sequence")
	start, blocks := t.Column("start", "start_time"), t.Column("blocks", "block_hashes")
	if pod < 0 || ev < 0 || seq < 0 {
		return false
	}
	type state struct {
		start, seq float64
		held       int
		seen       bool
	}
	states := map[string]*state{}
	for i := range t.Rows {
		name := t.Text(i, pod)
		s := states[name]
		if s == nil {
			s = &state{start: unknown, seq: -1}
			states[name] = s
		}
		at, _ := t.Time(i)
		n, _ := t.Float(i, seq)
		st, hasStart := t.Float(i, start)
		switch {
		case s.seen && (hasStart && known(s.start) && st > s.start || n <= s.seq):
			f := a.new("replica-restarted", name, t.Lines[i])
			f.Evidence = []diagnose.Evidence{{Name: "replica", Value: name}, diagnose.Ev("at", at, "s"), diagnose.Ev("blocks_lost", s.held, "blocks"), diagnose.Ev("sequence_was", s.seq, ""), diagnose.Ev("sequence_is", n, "")}
			f.Message = fmt.Sprintf("%s restarted in place at t=%s s: the %d blocks that it held are gone, and the index must drop them", name, diagnose.Num(at), s.held)
			f.Remedy = "Identify a replica by its start time as well as its name; clear its entries when the time or the event sequence goes back."
			a.add(f)
			s.held = 0
		case n > s.seq+1:
			f := a.new("kv-events-lost", name, t.Lines[i])
			f.Evidence = []diagnose.Evidence{{Name: "replica", Value: name}, diagnose.Ev("from_sequence", s.seq+1, ""), diagnose.Ev("to_sequence", n-1, ""), diagnose.Ev("missed", n-s.seq-1, "events")}
			f.Message = fmt.Sprintf("%s events of %s are missing before sequence %s: what the index believes of it is unsure", diagnose.Num(n-s.seq-1), name, diagnose.Num(n))
			f.Remedy = "Ask the engine's replay endpoint for the missing sequence numbers, or keep no credit for blocks that were not seen."
			a.add(f)
		}
		s.seen, s.seq = true, n
		if hasStart {
			s.start = st
		}
		count := listLen(t.Text(i, blocks))
		switch t.Text(i, ev) {
		case "BlockStored":
			s.held += count
		case "BlockRemoved":
			s.held = max(0, s.held-count)
		case "AllBlocksCleared":
			s.held = 0
		}
	}
	return true
}

// listLen is the number of elements of a JSON list in a cell.
func listLen(s string) int {
	s = strings.TrimSpace(s)
	if n, err := strconv.Atoi(s); err == nil {
		return n
	}
	s = strings.Trim(s, "[]")
	if s == "" {
		return 0
	}
	return strings.Count(s, ",") + 1
}
