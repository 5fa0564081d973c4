// SPDX-License-Identifier: Apache-2.0

// Package routing judges records of routing decisions, from Penstock's own journal
// or from a table that another router can be made to write: caches that are
// scattered, hot prefixes, herds between scrapes, sessions that wander, indexes
// that believe what is gone.
package routing

import (
	"math"
	"slices"
	"strings"

	"github.com/penstock-project/penstock/internal/diagnose"
	"github.com/penstock-project/penstock/internal/route"
)

// candidate is one replica that a decision looked at. NaN is unknown.
type candidate struct {
	endpoint         string
	inFlight, cached float64
	scrapeAge        float64 // ms
	dropped          bool
}

// decision is one record in the terms of the rules. NaN is unknown, "" as well.
type decision struct {
	at                        float64 // seconds
	id, endpoint              string
	path, session, prefix     string
	router, policy, why, kind string
	group                     string
	prompt, cached, predicted float64 // tokens
	blocks, matched           float64
	ttft, e2e                 float64 // ms
	status                    float64
	snapshotAge               float64 // ms
	snapshot                  uint64
	weight                    float64 // decisions that this row stands for
	zero                      float64 // of these without a block; NaN where the row is one decision
	picker, failureMode       string
	candidates                []candidate
	line                      int
}

var unknown = math.NaN()

func known(v float64) bool { return !math.IsNaN(v) }

func orNaN(p *float64) float64 {
	if p == nil {
		return unknown
	}
	return *p
}

func intOrNaN(p *int) float64 {
	if p == nil {
		return unknown
	}
	return float64(*p)
}

// fromRecords reads Penstock's own records.
func fromRecords(list []*route.Record) []decision {
	out := make([]decision, 0, len(list))
	for i, r := range list {
		d := decision{
			at: float64(r.Time.UnixNano()) / 1e9, id: r.ID, endpoint: r.Chosen, path: r.Request.Surface, policy: r.Policy, why: r.Why,
			prompt: float64(r.Request.PromptTokens), blocks: float64(r.Request.Blocks), matched: unknown, cached: unknown, predicted: unknown,
			ttft: unknown, e2e: unknown, status: unknown, snapshotAge: orNaN(r.Snapshot.AgeMS), snapshot: r.Snapshot.Version, weight: 1, zero: unknown, line: i + 1,
		}
		for _, c := range r.Candidates {
			x := candidate{endpoint: c.Endpoint, inFlight: unknown, cached: unknown, scrapeAge: unknown, dropped: c.Dropped != ""}
			for _, s := range c.Signals {
				switch s.Name {
				case "in_flight":
					x.inFlight = orNaN(s.Value)
				case "cached":
					x.cached = orNaN(s.Value)
				case "running", "waiting":
					if s.AgeMS != nil {
						x.scrapeAge = *s.AgeMS
					}
				}
			}
			d.candidates = append(d.candidates, x)
		}
		if o := r.Outcome; o != nil {
			d.status, d.kind = float64(o.Status), o.Kind
			d.ttft, d.e2e = orNaN(o.TTFTMS), orNaN(o.E2EMS)
			d.cached, d.predicted = intOrNaN(o.CachedTokens), float64(o.PredictedCachedTokens)
			if o.PromptTokens != nil {
				d.prompt = float64(*o.PromptTokens)
			}
		}
		out = append(out, d)
	}
	slices.SortStableFunc(out, func(a, b decision) int {
		switch {
		case a.at < b.at:
			return -1
		case a.at > b.at:
			return 1
		}
		return 0
	})
	return out
}

// fromTable reads a table with one row a decision, or with counts of decisions.
func fromTable(t *diagnose.Table) []decision {
	col := func(names ...string) int { return t.Column(names...) }
	c := struct {
		endpoint, path, session, prefix, router, policy, kind, group, prompt, cached, predicted, blocks, matched,
		ttft, e2e, status, age, weight, zero, picker, mode, id int
	}{
		col("endpoint", "replica", "chosen", "pod", "backend", "server", "upstream", "picked", "worker", "pod_name", "replica_id", "backend_id", "target", "instance", "selected", "destination"), col("path", "url", "api", "surface", "endpoint_path"),
		col("session", "session_id", "conversation", "conversation_id", "user"), col("prefix", "prefix_hash", "prefix_id", "prompt_hash", "system_prompt"),
		col("router", "gateway", "router_id", "router_instance", "via"), col("policy", "algorithm"), col("kind", "outcome"), col("case", "group", "model", "pool"),
		col("prompt_tokens", "input_tokens", "isl", "num_prompt_tokens"), col("cached_tokens", "cache_hit_tokens", "observed_cached_tokens", "cached", "num_cached_tokens", "hit_tokens"),
		col("predicted_cached_tokens", "predicted_cached", "expected_cached_tokens", "predicted_tokens", "matched_tokens"), col("request_blocks", "blocks", "prompt_blocks"),
		col("cache_hits_all_workers", "matched_blocks", "cache_hits", "overlap_blocks", "hit_blocks"),
		col("ttft_ms", "ttft"), col("e2e_ms", "latency_ms", "duration_ms", "e2e"), col("status", "code", "http_status"),
		col("snapshot_age_ms", "scrape_age_ms", "age_ms"), col("decisions", "count", "requests", "n"), col("zero_block_decisions", "zero_blocks", "zero"),
		col("picker", "epp", "picker_up"), col("failure_mode", "failuremode"), col("id", "request_id"),
	}
	var out []decision
	for i := range t.Rows {
		num := func(j int) float64 {
			if v, ok := t.Float(i, j); ok {
				return v
			}
			return unknown
		}
		at, ok := t.Time(i)
		if !ok {
			at = unknown
		}
		d := decision{
			at: at, id: t.Text(i, c.id), endpoint: t.Text(i, c.endpoint), path: t.Text(i, c.path), session: t.Text(i, c.session), prefix: t.Text(i, c.prefix),
			router: t.Text(i, c.router), policy: t.Text(i, c.policy), kind: t.Text(i, c.kind), group: t.Text(i, c.group),
			prompt: num(c.prompt), cached: num(c.cached), predicted: num(c.predicted), blocks: num(c.blocks), matched: num(c.matched),
			ttft: num(c.ttft), e2e: num(c.e2e), status: num(c.status), snapshotAge: num(c.age), weight: 1, zero: num(c.zero),
			picker: strings.ToLower(t.Text(i, c.picker)), failureMode: t.Text(i, c.mode), line: t.Lines[i],
		}
		if w := num(c.weight); known(w) {
			d.weight = w
		}
		out = append(out, d)
	}
	return out
}

// endpoints lists the replicas that were chosen, sorted.
func endpoints(ds []decision) []string {
	var out []string
	for i := range ds {
		if e := ds[i].endpoint; e != "" && !slices.Contains(out, e) {
			out = append(out, e)
		}
	}
	slices.Sort(out)
	return out
}

// fleet returns how many replicas could have been chosen: the most that any
// decision looked at, or all that were ever chosen.
func fleet(ds []decision) int {
	n := len(endpoints(ds))
	for i := range ds {
		usable := 0
		for _, c := range ds[i].candidates {
			if !c.dropped {
				usable++
			}
		}
		n = max(n, usable)
	}
	return n
}
