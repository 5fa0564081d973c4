// SPDX-License-Identifier: Apache-2.0

package replica

import (
	"fmt"
	"net/http"
	"slices"
	"strconv"
	"strings"

	"github.com/penstock-project/penstock/internal/engine"
	"github.com/penstock-project/penstock/internal/fleet"
)

// rank is one data-parallel rank: an engine of its own, with its own cache and queue,
// behind the address that all share. Guarded by Server.mu.
type rank struct {
	n      int
	label  string // engine="0"
	core   *engine.Core
	met    metrics
	events *eventStream // nil: off
	at     engine.Stats // while a page of metrics is written
}

// rankHeader is the header by which a request names its rank.
const rankHeader = "X-Data-Parallel-Rank"

func newRank(n int, p engine.Profile, events bool) *rank {
	r := &rank{n: n, label: label("engine", strconv.Itoa(n)), core: engine.NewCore(p, engine.CoreOptions{BlockEvents: events})}
	r.met.reset(&p)
	return r
}

// openEvents opens the rank's stream of KV events: each has ports of its own, those of
// the first one plus its number, as in the real engine.
func (r *rank) openEvents(o *Options, block int) error {
	if o.KVEvents == "" {
		return nil
	}
	endpoint, err := ownPort(o.KVEvents, r.n)
	if err != nil {
		return err
	}
	replay, err := ownPort(o.KVReplay, r.n)
	if err != nil {
		return err
	}
	r.events, err = newEventStream(endpoint, replay, o.Models[0], block, r.n)
	return err
}

// ownPort adds a rank's number to the port of an endpoint.
func ownPort(endpoint string, n int) (string, error) {
	if n == 0 || endpoint == "" {
		return endpoint, nil
	}
	i := strings.LastIndexByte(endpoint, ':')
	port, err := strconv.Atoi(endpoint[i+1:])
	if err != nil || port+n > 65535 {
		return "", fmt.Errorf("%s has no port that the rank's number can be added to", endpoint)
	}
	return endpoint[:i+1] + strconv.Itoa(port+n), nil
}

// asked returns the rank that a request names, -1 where it names none or names are
// ignored. A name that is no number is none, as in the real server; one that is out of
// range is the client's error.
func (s *Server) asked(h http.Header) (int, *apiError) {
	n, err := strconv.Atoi(strings.TrimSpace(h.Get(rankHeader)))
	if err != nil || s.opt.IgnoreRank {
		return -1, nil
	}
	if n < 0 || n >= len(s.ranks) {
		return -1, badRequest("", "data_parallel_rank %d is out of range [0, %d).", n, len(s.ranks))
	}
	return n, nil
}

// idlest is the rank that the server's own balancer takes: the least of four times the
// waiting requests and the running ones, the next in turn among equals. The caller
// holds the lock.
func (s *Server) idlest(now fleet.Time) int {
	best, least := 0, -1
	for k := range s.ranks {
		i := (s.turnOf + k) % len(s.ranks)
		st := s.ranks[i].core.Stats(now)
		if load := 4*st.Waiting + st.Running; least < 0 || load < least {
			best, least = i, load
		}
	}
	s.turnOf = (best + 1) % len(s.ranks)
	return best
}

// stats sums up the ranks. The caller holds the lock.
func (s *Server) stats(now fleet.Time) engine.Stats {
	out := s.ranks[0].core.Stats(now)
	for _, r := range s.ranks[1:] {
		st := r.core.Stats(now)
		for _, v := range []struct{ to, from *int }{
			{&out.Running, &st.Running}, {&out.Decoding, &st.Decoding}, {&out.Waiting, &st.Waiting}, {&out.Deferred, &st.Deferred},
			{&out.WaitingTokens, &st.WaitingTokens}, {&out.PrefillTokens, &st.PrefillTokens}, {&out.ContextTokens, &st.ContextTokens},
			{&out.KVTokens, &st.KVTokens}, {&out.KVUsedTokens, &st.KVUsedTokens}, {&out.KVCachedTokens, &st.KVCachedTokens},
		} {
			*v.to += *v.from
		}
		for _, v := range []struct{ to, from *int64 }{
			{&out.CacheQueries, &st.CacheQueries}, {&out.CacheHits, &st.CacheHits}, {&out.PromptTokens, &st.PromptTokens},
			{&out.OutputTokens, &st.OutputTokens}, {&out.Prefilled, &st.Prefilled}, {&out.Finished, &st.Finished},
			{&out.Cancelled, &st.Cancelled}, {&out.Rejected, &st.Rejected}, {&out.Preemptions, &st.Preemptions},
			{&out.AdapterLoads, &st.AdapterLoads}, {&out.AdapterEvictions, &st.AdapterEvictions}, {&out.Steps, &st.Steps},
		} {
			*v.to += *v.from
		}
		out.BusySeconds += st.BusySeconds
	}
	return out
}

// RankStats returns the engine's state now, rank by rank.
func (s *Server) RankStats() []engine.Stats {
	s.mu.Lock()
	defer s.mu.Unlock()
	var out []engine.Stats
	for _, r := range s.ranks {
		out = append(out, r.core.Stats(s.now()))
	}
	return out
}

// running lists the adapters of running requests, whatever their rank. The caller holds
// the lock.
func (s *Server) running() []string {
	var names []string
	for _, r := range s.ranks {
		s.states = r.core.Adapters(s.states[:0])
		for _, a := range s.states {
			if a.Running > 0 && !slices.Contains(names, a.Name) {
				names = append(names, a.Name)
			}
		}
	}
	return names
}
