// SPDX-License-Identifier: Apache-2.0

package routing

import (
	"fmt"
	"math"
	"slices"
	"strings"

	"github.com/penstock-project/penstock/internal/diagnose"
)

// Causes why a router that matches blocks has none to match.
const (
	causeShort     = "prompts below block size"
	causeNoEvents  = "no kv events"
	causeTokenizer = "tokenizer/template mismatch"
)

// tally counts the decisions of one path or group.
type tally struct {
	name                        string
	total, zero                 float64
	short, noEvents, mismatched int
	rows                        int
	line                        int
}

// blind finds routing that is cache-aware in name: no block to match, or blocks
// that never match.
func (a *analysis) blind() {
	byPath := a.tallies(func(d *decision) string { return d.path })
	byGroup := a.tallies(func(d *decision) string { return d.group })
	total, zero := 0.0, 0.0
	for _, t := range byPath {
		total, zero = total+t.total, zero+t.zero
	}
	if total > 0 && zero >= math.Max(enough, 0.25*total) && !a.blindIsShort() {
		a.add(a.degraded(byPath, total, zero))
		return
	}
	for _, t := range byGroup {
		if cause := t.cause(); cause != "" {
			a.add(a.groupBlind(t, cause))
		}
	}
}

// blindIsShort reports whether the decisions without a block are just short
// prompts, which no index can help.
func (a *analysis) blindIsShort() bool {
	n, short := 0.0, 0.0
	for i := range a.ds {
		d := &a.ds[i]
		if known(d.zero) || !known(d.blocks) || d.blocks > 0 {
			continue
		}
		n++
		limit := a.block
		if !known(limit) {
			limit = 256 // a block is never larger in engines' defaults
		}
		if known(d.prompt) && d.prompt < limit {
			short++
		}
	}
	return n > 0 && short >= 0.9*n
}

func (a *analysis) tallies(key func(*decision) string) []*tally {
	var out []*tally
	for i := range a.ds {
		d := &a.ds[i]
		if !known(d.blocks) && !known(d.zero) {
			continue
		}
		name := key(d)
		j := slices.IndexFunc(out, func(t *tally) bool { return t.name == name })
		if j < 0 {
			out = append(out, &tally{name: name, line: d.line})
			j = len(out) - 1
		}
		t := out[j]
		t.rows++
		t.total += d.weight
		switch {
		case known(d.zero):
			t.zero += d.zero
		case d.blocks == 0:
			t.zero += d.weight
			switch {
			case known(a.block) && known(d.prompt) && d.prompt < a.block:
				t.short++
			case known(a.block) && known(d.prompt):
				t.mismatched++
			}
		case known(d.matched) && d.matched == 0:
			t.noEvents++
		}
	}
	return out
}

// cause names why a group of decisions has no match, "" where it has.
func (t *tally) cause() string {
	switch {
	case t.name == "" || t.rows == 0:
		return ""
	case t.short == t.rows:
		return causeShort
	case t.noEvents == t.rows:
		return causeNoEvents
	case t.mismatched == t.rows:
		return causeTokenizer
	}
	return ""
}

func (a *analysis) degraded(paths []*tally, total, zero float64) diagnose.Finding {
	var bad []string
	line := 0
	for _, t := range paths {
		if t.name != "" && t.zero >= 0.5*t.total {
			bad = append(bad, t.name)
			line = t.line
		}
	}
	f := a.new("kv-aware-off", "router", line)
	f.Evidence = []diagnose.Evidence{
		{Name: "state", Value: "DEGRADED"}, diagnose.Ev("zero", zero, "decisions"), diagnose.Ev("total", total, "decisions"),
	}
	if len(bad) == 1 {
		f.Evidence = append(f.Evidence, diagnose.Evidence{Name: "path", Value: bad[0]})
	} else if len(bad) > 1 {
		f.Evidence = append(f.Evidence, diagnose.Evidence{Name: "path", Value: bad})
	}
	for _, t := range paths {
		if t.name != "" {
			f.Evidence = append(f.Evidence, diagnose.Ev("zero_at_"+t.name, t.zero, "of "+diagnose.Num(t.total)))
		}
	}
	f.Message = fmt.Sprintf("%s of %s decisions had no block to match: the routing is least-loaded under another name", diagnose.Num(zero), diagnose.Num(total))
	if len(bad) > 0 && len(bad) < len(paths) {
		f.Message += ", all of it at " + strings.Join(bad, ", ") + ", whose bodies the router does not read into blocks"
	}
	f.Remedy = "Use text-prefix affinity where exact matching is not possible; it needs no tokenizer. For the path named, check that the router reads its fields (input, prompt, messages) and renders the same template as the engine."
	return f
}

func (a *analysis) groupBlind(t *tally, cause string) diagnose.Finding {
	f := a.new("kv-aware-off", t.name, t.line)
	f.Evidence = []diagnose.Evidence{{Name: "cause", Value: cause}, diagnose.Ev("decisions", t.total, ""), diagnose.Ev("block_tokens", a.block, "tokens")}
	switch cause {
	case causeShort:
		f.Severity = diagnose.Note
		f.Message = fmt.Sprintf("%s: every prompt is shorter than one block of %s tokens, so there is nothing to match", t.name, diagnose.Num(a.block))
		f.Remedy = "A smaller block size, or text-prefix affinity."
	case causeNoEvents:
		f.Message = fmt.Sprintf("%s: prompts have blocks and no replica ever has one: no KV events arrive", t.name)
		f.Remedy = "Check the event transport: the engine's --kv-events-config, the endpoint, who binds and who connects, the topic; and that hashes agree (PYTHONHASHSEED, block size)."
	default:
		f.Message = fmt.Sprintf("%s: prompts longer than a block give none: the tokenizer or the chat template of the router is missing or differs", t.name)
		f.Remedy = "Load the tokenizer and template of the engine's model, or fall back to text-prefix affinity."
	}
	return f
}

// believed sums what the index believed and what the engine reported.
type believed struct {
	endpoint                    string
	n                           int
	prompt, predicted, cached   float64
	lastGood, firstBad, badRows float64
}

// parity compares predicted with reported cached tokens, per replica.
func (a *analysis) parity() {
	var list []*believed
	all := &believed{endpoint: "all"}
	for i := range a.ds {
		d := &a.ds[i]
		if !known(d.predicted) || !known(d.cached) || !known(d.prompt) || d.prompt <= 0 {
			continue
		}
		j := slices.IndexFunc(list, func(b *believed) bool { return b.endpoint == d.endpoint })
		if j < 0 {
			list = append(list, &believed{endpoint: d.endpoint, lastGood: unknown, firstBad: unknown})
			j = len(list) - 1
		}
		for _, b := range [...]*believed{list[j], all} {
			b.n++
			b.prompt, b.predicted, b.cached = b.prompt+d.prompt, b.predicted+d.predicted, b.cached+d.cached
		}
		if d.predicted >= 0.3*d.prompt {
			if d.cached < 0.2*d.predicted {
				list[j].badRows++
				if !known(list[j].firstBad) {
					list[j].firstBad = d.at
				}
			} else {
				list[j].lastGood = d.at
				if list[j].badRows < 3 {
					list[j].firstBad, list[j].badRows = unknown, 0
				}
			}
		}
	}
	if all.n < 5 {
		return
	}
	predicted, cached := share(all.predicted, all.prompt), share(all.cached, all.prompt)
	a.facts["predicted_hit"] = diagnose.Round(predicted, 4)
	a.facts["observed_hit"] = diagnose.Round(cached, 4)
	for _, b := range list {
		if b.n >= 5 && b.badRows >= 3 && known(b.firstBad) && (!known(b.lastGood) || b.firstBad >= b.lastGood) && len(list) > 1 {
			a.add(a.restarted(b))
			return
		}
	}
	if all.n >= enough && predicted >= 0.3 && cached < 0.5*predicted {
		f := a.new("index-disagrees", "router", 0)
		f.Evidence = []diagnose.Evidence{diagnose.Ev("predicted_hit", predicted, ""), diagnose.Ev("observed_hit", cached, ""), diagnose.Ev("requests", all.n, "")}
		f.Message = fmt.Sprintf("the index predicts %s %% of the prompt tokens cached and the engines report %s %%: what it believes is not there", pct(predicted), pct(cached))
		f.Remedy = "Check the believed capacity of the replicas (KV tokens, block size), restarts in place, and the cache salt; with KV events on, check for gaps in their sequence."
		a.add(f)
	}
}

func pct(v float64) string { return diagnose.Num(diagnose.Round(v*100, 1)) }

func (a *analysis) restarted(b *believed) diagnose.Finding {
	f := a.new("restart-believed-warm", b.endpoint, 0)
	f.Evidence = []diagnose.Evidence{
		{Name: "replica", Value: b.endpoint}, diagnose.Ev("requests", b.badRows, ""), diagnose.Ev("predicted_hit", share(b.predicted, b.prompt), ""),
		diagnose.Ev("observed_hit", share(b.cached, b.prompt), ""), diagnose.Ev("since", b.firstBad, "s"),
	}
	f.Message = fmt.Sprintf("%s is believed warm and answers cold since t=%s s: it lost its cache (a restart in place, a reset) and gets exactly the traffic that needs it", b.endpoint, diagnose.Num(b.firstBad))
	f.Remedy = "Drop the replica's entries when its start time, restart count or event sequence goes back; Penstock does."
	return f
}

// scattered compares the measured hit rate with what affinity would reach on the
// same traffic.
func (a *analysis) scattered() {
	n, prompt, got, best := 0, 0.0, 0.0, 0.0
	for i := range a.ds {
		d := &a.ds[i]
		if !known(d.prompt) || d.prompt <= 0 || len(d.candidates) < 2 {
			continue
		}
		top, mine := 0.0, unknown
		for _, c := range d.candidates {
			if known(c.cached) && !c.dropped {
				top = math.Max(top, c.cached)
				if c.endpoint == d.endpoint {
					mine = c.cached
				}
			}
		}
		if !known(mine) {
			continue
		}
		n++
		prompt, best = prompt+d.prompt, best+top
		if known(d.cached) {
			mine = d.cached
		}
		got += mine
	}
	if n < enough {
		n, prompt, got, best = a.byPrefix()
	}
	if n < enough || prompt == 0 {
		return
	}
	measured, reach := got/prompt, best/prompt
	a.facts["measured_hit"], a.facts["affinity_hit"] = diagnose.Round(measured, 4), diagnose.Round(reach, 4)
	if reach < 0.2 || measured >= 0.6*reach || a.has("restart-believed-warm") || a.has("index-disagrees") || a.has("kv-aware-off") {
		return
	}
	f := a.new("cache-scattered", "router", 0)
	f.Evidence = []diagnose.Evidence{
		diagnose.Ev("measured_hit", measured, ""), diagnose.Ev("affinity_hit", reach, ""), diagnose.Ev("replicas", fleet(a.ds), "replicas"), diagnose.Ev("requests", n, ""),
		{Name: "policy", Value: policyOf(a.ds)},
	}
	f.Message = fmt.Sprintf("%s %% of the prompt tokens were found in a cache; sending each request where its prefix lies would have found %s %% on the same traffic", pct(measured), pct(reach))
	f.Remedy = "Route by prefix: penstock serve --replica URL ..., or a prefix scorer in the picker that is there. What it would have done: penstock replay JOURNAL --policy penstock"
	a.add(f)
}

// byPrefix computes both rates from prefixes or sessions: a request can hit where
// its prefix was seen before.
func (a *analysis) byPrefix() (n int, prompt, got, best float64) {
	type key struct{ prefix, endpoint string }
	seen := map[key]bool{}
	anywhere := map[string]bool{}
	for i := range a.ds {
		d := &a.ds[i]
		p := d.prefix
		if p == "" {
			p = d.session
		}
		if p == "" || d.endpoint == "" {
			continue
		}
		size := d.prompt
		if !known(size) || size <= 0 {
			size = 1
		}
		n++
		prompt += size
		if anywhere[p] {
			best += size
		}
		switch {
		case known(d.cached):
			got += d.cached
		case seen[key{p, d.endpoint}]:
			got += size
		}
		seen[key{p, d.endpoint}], anywhere[p] = true, true
	}
	return n, prompt, got, best
}

func (a *analysis) has(code string) bool {
	return slices.ContainsFunc(a.out, func(f diagnose.Finding) bool { return f.Code == code })
}

func policyOf(ds []decision) any {
	for i := range ds {
		if ds[i].policy != "" {
			return ds[i].policy
		}
	}
	return nil
}
