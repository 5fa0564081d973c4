// SPDX-License-Identifier: Apache-2.0

package sim

import (
	"fmt"

	"github.com/penstock-project/penstock/internal/dispatch"
	"github.com/penstock-project/penstock/internal/engine"
	"github.com/penstock-project/penstock/internal/fleet"
)

// RankKind says what replicas of several data-parallel ranks tell and do.
type RankKind uint8

// Kinds of ranks behind one address.
const (
	RanksPinned RankKind = iota // counters by rank, and a request is served at the rank that it names
	RanksDeaf                   // counters by rank, and the replica takes the rank that it likes
	RanksTotal                  // one total: to the router the replica is one candidate
)

var rankNames = [...]string{"pinned", "deaf", "total"}

func (k RankKind) String() string {
	if int(k) < len(rankNames) {
		return rankNames[k]
	}
	return "unknown"
}

// ParseRankKind is the inverse of String.
func ParseRankKind(s string) (RankKind, error) {
	for k, name := range rankNames {
		if s == name {
			return RankKind(k), nil
		}
	}
	return 0, fmt.Errorf("%q is unknown; use pinned, deaf or total", s)
}

// RankResult is what became of the ranks of a run.
type RankResult struct {
	Ranks int    `json:"ranks"` // of each replica
	Kind  string `json:"kind"`
	// Pinned counts requests that were sent with the name of a rank, Met those of them
	// that were served there.
	Pinned int `json:"pinned"`
	Met    int `json:"met"`
	// Honoured, Ignored and Unproven count replicas by what the first router found of
	// their pins; where they tell one total there is nothing to find.
	Honoured int `json:"pins_honoured"`
	Ignored  int `json:"pins_ignored"`
	Unproven int `json:"pins_unproven"`
}

// Each rank has an engine core of its own, numbered replica by replica: those of
// replica i are i*Ranks and up.

// coresOf returns the engine cores of a replica.
func (r *run) coresOf(i int) []*engine.Core {
	return r.cores[i*r.c.Ranks : (i+1)*r.c.Ranks]
}

// idle reports whether a replica has nothing left to do.
func (r *run) idle(i int) bool {
	for _, c := range r.coresOf(i) {
		if c.Next() != fleet.Never {
			return false
		}
	}
	return true
}

// coreFor returns the number of the core at a replica that serves a request: that of the
// rank which it names, else the one that the replica's own balancer takes: the least
// of four times the waiting requests and the running ones, the next in turn among
// equals.
func (r *run) coreFor(i int, pin string) int {
	n := r.c.Ranks
	if n == 1 {
		return i
	}
	named := -1
	if pin != "" {
		named = int(number(pin))
		if r.ranks.Pinned++; r.c.RankKind == RanksPinned {
			r.ranks.Met++
			return i*n + named
		}
	}
	p := &r.replicas[i]
	best, least := 0, -1
	for k := range n {
		rank := (p.turn + k) % n
		s := r.cores[i*n+rank].Stats(r.now)
		if load := 4*s.Waiting + s.Running; least < 0 || load < least {
			best, least = rank, load
		}
	}
	p.turn = (best + 1) % n
	if best == named {
		r.ranks.Met++
	}
	return i*n + best
}

// rankSignals reads the metrics of a replica of several ranks into p.last: sums, and
// beside them those of each rank where it tells them.
func (r *run) rankSignals(i int, p *replica) {
	var sum fleet.Signals
	var loads []fleet.Load
	usage := 0.0
	for k, c := range r.coresOf(i) {
		var s fleet.Signals
		r.signalsOf(c, p, &s)
		if k == 0 {
			sum = s
		} else {
			for _, v := range [...]struct{ to, from *fleet.Value }{
				{&sum.Running, &s.Running}, {&sum.Waiting, &s.Waiting}, {&sum.Deferred, &s.Deferred}, {&sum.KVTokens, &s.KVTokens},
				{&sum.PromptTokens, &s.PromptTokens}, {&sum.OutputTokens, &s.OutputTokens}, {&sum.CacheQueries, &s.CacheQueries},
				{&sum.CacheHits, &s.CacheHits}, {&sum.Preemptions, &s.Preemptions}, {&sum.Finished, &s.Finished}, {&sum.MaxSeqs, &s.MaxSeqs},
			} {
				v.to.V += v.from.V
			}
		}
		usage = max(usage, s.KVUsage.V)
		loads = append(loads, fleet.Load{
			Model: r.c.Profile.Model, Rank: k, Running: s.Running, Waiting: s.Waiting, Deferred: s.Deferred, KVUsage: s.KVUsage,
			KVTokens: s.KVTokens, PromptTokens: s.PromptTokens, OutputTokens: s.OutputTokens, CacheQueries: s.CacheQueries,
			CacheHits: s.CacheHits, Preemptions: s.Preemptions, Finished: s.Finished,
		})
	}
	sum.KVUsage.V = usage
	if r.c.RankKind != RanksTotal {
		sum.Loads, sum.Notes = loads, sum.Notes|fleet.NoteRanks
	}
	p.last = sum
}

// noteSlots notes where a router has a row's endpoint, or its ranks.
func (r *run) noteSlots(rt *router, i int, row *dispatch.EndpointLoad) {
	at := rt.slots[i*r.c.Ranks : (i+1)*r.c.Ranks]
	for k := range at {
		at[k] = row.Slot
	}
	for k := range row.Ranks {
		if rank := row.Ranks[k].Rank; rank < len(at) {
			at[rank] = row.Ranks[k].Slot
		}
	}
}

// rankResult sums up what became of the ranks; nil where replicas have one each.
func (r *run) rankResult() *RankResult {
	if r.c.Ranks == 1 {
		return nil
	}
	out := r.ranks
	out.Ranks, out.Kind = r.c.Ranks, r.c.RankKind.String()
	rt := &r.routers[0]
	rt.rows = rt.d.Ledger(r.now, rt.rows[:0])
	for i := range rt.rows {
		switch p := rt.rows[i].Pins; {
		case p == nil:
		case p.Verdict == dispatch.PinsHonoured:
			out.Honoured++
		case p.Verdict == dispatch.PinsIgnored:
			out.Ignored++
		default:
			out.Unproven++
		}
	}
	return &out
}
