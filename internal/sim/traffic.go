// SPDX-License-Identifier: Apache-2.0

package sim

import (
	"github.com/penstock-project/penstock/internal/engine"
	"github.com/penstock-project/penstock/internal/workload"
)

// Traffic is a workload made ready for runs: its sessions and the block hashes of
// each prompt. Runs only read it, so one Traffic serves many policies.
type Traffic struct {
	sessions []*workload.Session
	turns    [][]prompt
	requests int
	tokens   int64
	block    int
}

// prompt holds the hashes of one turn in engine blocks: those of the prompt, and
// behind them those that its answer fills where the next turn continues it.
type prompt struct {
	all   []uint64
	whole int // blocks of the prompt
}

// NewTraffic draws from src until it has limit requests (0: until src ends) and
// hashes their prompts in blocks of blockTokens tokens.
func NewTraffic(src workload.Source, limit, blockTokens int) *Traffic {
	t := &Traffic{block: blockTokens}
	for s := src.Next(); s != nil; s = src.Next() {
		t.add(s)
		if limit > 0 && t.requests >= limit {
			break
		}
	}
	return t
}

// Salted returns the traffic with prompts that only sessions of the same salt share,
// as the cache_salt of a request does it: salt tells that of session n.
func (t *Traffic) Salted(salt func(n int) string) *Traffic {
	u := &Traffic{block: t.block}
	for n, s := range t.sessions {
		u.addSalted(s, salt(n))
	}
	return u
}

// Requests returns the number of requests and the number of their prompt tokens.
func (t *Traffic) Requests() (n int, promptTokens int64) { return t.requests, t.tokens }

// Without returns the traffic less the sessions of one tenant.
func (t *Traffic) Without(tenant string) *Traffic {
	u := &Traffic{block: t.block}
	for i, s := range t.sessions {
		if s.Tenant == tenant {
			continue
		}
		u.sessions = append(u.sessions, s)
		u.turns = append(u.turns, t.turns[i])
		u.count(s)
	}
	return u
}

func (t *Traffic) count(s *workload.Session) {
	t.requests += len(s.Turns)
	for i := range s.Turns {
		t.tokens += int64(s.Turns[i].PromptTokens)
	}
}

// means returns the mean output of a request in tokens and the mean pause before a
// turn in seconds.
func (t *Traffic) means() (output, think float64) {
	for _, s := range t.sessions {
		for i := range s.Turns {
			output += float64(s.Turns[i].OutputTokens)
			think += s.Turns[i].Think.Seconds()
		}
	}
	n := float64(max(1, t.requests))
	return output / n, think / n
}

// coldSeconds is what a mean request costs a replica of p that has none of its prompt:
// its prefill and its share of decode steps with 16 streams.
func (t *Traffic) coldSeconds(p *engine.Profile) float64 {
	output, _ := t.means()
	mean := int(t.tokens / int64(max(1, t.requests)))
	return p.PrefillSeconds(mean, mean) + output*p.DecodeStepSeconds(16, 16*float64(mean))/16
}

// adapters returns the LoRA adapters that the traffic names, in order of first sight.
func (t *Traffic) adapters() []string {
	var out []string
	seen := map[string]bool{"": true}
	for _, s := range t.sessions {
		if !seen[s.Adapter] {
			seen[s.Adapter] = true
			out = append(out, s.Adapter)
		}
	}
	return out
}

func (t *Traffic) add(s *workload.Session) { t.addSalted(s, "") }

func (t *Traffic) addSalted(s *workload.Session, salt string) {
	seed := workload.AdapterSeed(s.Adapter)
	if salt != "" {
		seed ^= workload.AdapterSeed("salt " + salt)
	}
	prompts := make([]prompt, len(s.Turns))
	// From the last turn backwards: a turn that the next one continues shares the
	// memory of its hashes.
	for i := len(s.Turns) - 1; i >= 0; i-- {
		turn := &s.Turns[i]
		p := &prompts[i]
		p.whole = turn.PromptTokens / t.block
		if i+1 < len(s.Turns) {
			if n, ok := continues(turn, &s.Turns[i+1]); ok {
				blocks := min(n/t.block, len(prompts[i+1].all))
				p.all = prompts[i+1].all[:blocks:blocks]
				p.whole = min(p.whole, blocks)
				continue
			}
		}
		p.all = turn.Blocks(make([]uint64, 0, p.whole), t.block, seed)
		p.whole = len(p.all)
	}
	t.sessions = append(t.sessions, s)
	t.turns = append(t.turns, prompts)
	t.count(s)
}

// continues reports whether next begins with the whole prompt of turn, and how many
// tokens of next are that prompt and its answer.
func continues(turn, next *workload.Turn) (tokens int, ok bool) {
	n := len(turn.Prompt)
	if len(next.Prompt) <= n {
		return 0, false
	}
	for i := range n {
		if turn.Prompt[i] != next.Prompt[i] {
			return 0, false
		}
	}
	tokens = turn.PromptTokens
	if a := &next.Prompt[n]; a.Role == workload.RoleAssistant && int(a.Tokens) == turn.OutputTokens {
		tokens += turn.OutputTokens
	}
	return tokens, true
}

// Ceiling is the share of prompt tokens that one endless cache of prompts and
// answers would find: more than any fleet can.
func (t *Traffic) Ceiling() float64 {
	seen := map[uint64]struct{}{}
	hit := 0
	for i, s := range t.sessions {
		for k := range s.Turns {
			p := &t.turns[i][k]
			n := 0
			for n < p.whole {
				if _, ok := seen[p.all[n]]; !ok {
					break
				}
				n++
			}
			hit += n
			for _, b := range p.all[n:] {
				seen[b] = struct{}{}
			}
		}
	}
	return share(int64(hit*t.block), t.tokens)
}
