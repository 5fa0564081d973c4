// SPDX-License-Identifier: Apache-2.0

package observe

import (
	"slices"

	"github.com/penstock-project/penstock/internal/fleet"
)

// cacheInfo reads the capacity facts that vLLM writes into labels.
func (p *Parser) cacheInfo(labels []byte) {
	var blocks, size, tokens float64
	rank := 0
	for rest := labels; ; {
		name, value, next, ok := nextLabel(rest)
		if !ok {
			break
		}
		rest = next
		switch string(name) {
		case "num_gpu_blocks":
			blocks = positive(value)
		case "block_size":
			size = positive(value)
		case "_block_size_resolved":
			if size == 0 {
				size = positive(value)
			}
		case "kv_cache_size_tokens":
			tokens = positive(value)
		case "engine":
			if n, ok := smallInt(value); ok {
				rank = n
			}
		}
	}
	if tokens == 0 {
		tokens = blocks * size
	}
	p.kvSeen = true
	p.kvTokens += tokens // one series a rank, each rank has its own memory
	p.blockSize = max(p.blockSize, size)
	if rank < maxGroups {
		for len(p.kvRanks) <= rank {
			p.kvRanks = append(p.kvRanks, 0)
		}
		p.kvRanks[rank] += tokens
	}
}

// resolveRanks fills in what several ranks tell of themselves beside their load.
func (p *Parser) resolveRanks(now fleet.Time, e Engine, loads []fleet.Load) {
	deferred, kv := p.chosen(e, qWaitingDeferred), p.chosen(e, qKVTokens)
	prompt, output := p.chosen(e, qPrompt), p.chosen(e, qOutput)
	queries, hits := p.chosen(e, qCacheQueries), p.chosen(e, qCacheHits)
	preempted, finished := p.chosen(e, qPreemptions), p.chosen(e, qFinished)
	for i := range loads {
		l := &loads[i]
		g := slices.IndexFunc(p.groups, func(g group) bool { return g.rank == l.Rank && g.model == l.Model })
		if g < 0 {
			continue
		}
		l.Deferred, l.KVTokens = p.one(now, deferred, g), p.one(now, kv, g)
		l.PromptTokens, l.OutputTokens = p.one(now, prompt, g), p.one(now, output, g)
		l.CacheQueries, l.CacheHits = p.one(now, queries, g), p.one(now, hits, g)
		l.Preemptions, l.Finished = p.one(now, preempted, g), p.one(now, finished, g)
		if l.Rank < len(p.kvRanks) && p.kvRanks[l.Rank] > 0 {
			l.KVTokens = fleet.Known(p.kvRanks[l.Rank], now)
		}
	}
}
