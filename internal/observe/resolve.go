// SPDX-License-Identifier: Apache-2.0

package observe

import (
	"bytes"
	"cmp"
	"slices"

	"github.com/penstock-project/penstock/internal/fleet"
)

// resolve turns the cells of a scrape into signals.
func (p *Parser) resolve(now fleet.Time, e Engine, s *fleet.Signals) {
	adapters, loads := s.Adapters[:0], s.Loads[:0]
	*s = fleet.Signals{ScrapedAt: now, Adapters: adapters, Loads: loads}
	get := func(q quantity) fleet.Value { return p.total(now, e, q, s) }

	s.Running = get(qRunning)
	s.Waiting = get(qWaiting)
	if c := get(qWaitingCapacity); c.OK() {
		s.Waiting, s.Deferred = c, get(qWaitingDeferred)
	}
	s.KVUsage = get(qKVUsage)
	s.PromptTokens, s.OutputTokens = get(qPrompt), get(qOutput)
	s.CacheQueries, s.CacheHits = get(qCacheQueries), get(qCacheHits)
	s.Preemptions, s.Finished = get(qPreemptions), get(qFinished)
	s.TTFTSum, s.TTFTCount = get(qTTFTSum), get(qTTFTCount)
	s.ITLSum, s.ITLCount = get(qITLSum), get(qITLCount)
	s.QueueSum, s.QueueCount = get(qQueueSum), get(qQueueCount)
	s.MaxSeqs, s.StartTime = get(qMaxSeqs), get(qStartTime)
	if a := get(qAwake); a.OK() {
		s.Asleep = fleet.Known(1-min(a.V, 1), now)
	}
	if h := get(qHitRate); h.OK() {
		if h.V > 1 {
			h.V /= 100
			s.Notes |= fleet.NotePercent
		}
		s.HitRate = h
	}
	p.capacity(now, get, s)
	if r := p.chosen(e, qCacheQueries); p.blocks && r >= 0 && rows[r].old {
		s.CacheUnitBlocks = true
	}
	if e == EngineTGI {
		p.estimateKV(now, get, s)
	}
	// What these two call the time of a token is the mean over whole requests.
	if (e == EngineTGI || e == EngineTRTLLM) && p.chosen(e, qITLSum) >= 0 {
		s.Notes |= fleet.NoteTPOT
	}
	p.resolveAdapters(now, s)
	p.resolveLoads(now, e, s)
}

// capacity fills in what the engine says of its KV memory.
func (p *Parser) capacity(now fleet.Time, get func(quantity) fleet.Value, s *fleet.Signals) {
	if p.kvSeen {
		if p.kvTokens > 0 {
			s.KVTokens = fleet.Known(p.kvTokens, now)
		}
		if p.blockSize > 0 {
			s.BlockSize = fleet.Known(p.blockSize, now)
		}
		return
	}
	s.KVTokens, s.BlockSize = get(qKVTokens), get(qBlockSize)
	if blocks := get(qKVBlocks); blocks.OK() && s.BlockSize.OK() {
		s.KVTokens = fleet.Known(blocks.V*s.BlockSize.V, now)
	}
}

// estimateKV takes the token budget of the batch for the KV memory: TGI admits by
// it and exports nothing nearer.
func (p *Parser) estimateKV(now fleet.Time, get func(quantity) fleet.Value, s *fleet.Signals) {
	used, limit := get(qBatchTokens), get(qBatchLimit)
	if used.OK() && limit.OK() && limit.V > 0 {
		s.KVUsage = fleet.Known(used.V/limit.V, now)
		s.Notes |= fleet.NoteKVEstimated
	}
}

// chosen returns the row that speaks for a quantity: of those that are present
// the one with the lowest pref; -1 where none is.
func (p *Parser) chosen(e Engine, q quantity) int {
	best := -1
	for _, r := range p.touched {
		row := &rows[r]
		if row.q != q || row.engine != EngineUnknown && row.engine != e {
			continue
		}
		if best < 0 || row.pref < rows[best].pref {
			best = int(r)
		}
	}
	return best
}

// total folds the groups of a quantity into one value. A part that is no
// measurement makes the whole unknown: a sum without one rank would look idler
// than the replica is.
func (p *Parser) total(now fleet.Time, e Engine, q quantity, s *fleet.Signals) fleet.Value {
	r := p.chosen(e, q)
	if r < 0 {
		return fleet.Value{}
	}
	var sum, top float64
	n := 0
	for g := range p.groups {
		c := p.cells[r*p.stride+g]
		if !c.seen {
			continue
		}
		if c.bad {
			return fleet.Value{}
		}
		sum, top = sum+c.v, max(top, c.v)
		n++
	}
	if n == 0 {
		return fleet.Value{}
	}
	if rows[r].old {
		s.Notes |= fleet.NoteOldNames
	}
	switch folds[q] {
	case foldMax:
		return fleet.Known(top, now)
	case foldMean:
		return fleet.Known(sum/float64(n), now)
	}
	return fleet.Known(sum, now)
}

func (p *Parser) one(now fleet.Time, r, g int) fleet.Value {
	if r < 0 {
		return fleet.Value{}
	}
	c := p.cells[r*p.stride+g]
	if !c.seen || c.bad {
		return fleet.Value{}
	}
	return fleet.Known(c.v, now)
}

// resolveLoads splits the load by model and rank where there is more than one.
func (p *Parser) resolveLoads(now fleet.Time, e Engine, s *fleet.Signals) {
	run, wait, kv := p.chosen(e, qRunning), p.chosen(e, qWaiting), p.chosen(e, qKVUsage)
	if r := p.chosen(e, qWaitingCapacity); r >= 0 {
		wait = r
	}
	ranks := false
	for g := range p.groups {
		l := fleet.Load{
			Model: p.groups[g].model, Rank: p.groups[g].rank,
			Running: p.one(now, run, g), Waiting: p.one(now, wait, g), KVUsage: p.one(now, kv, g),
		}
		if !l.Running.OK() && !l.Waiting.OK() && !l.KVUsage.OK() {
			continue
		}
		s.Loads = append(s.Loads, l)
		if l.Rank != s.Loads[0].Rank {
			ranks = true
		}
	}
	if len(s.Loads) < 2 {
		s.Loads = s.Loads[:0]
		return
	}
	slices.SortFunc(s.Loads, func(a, b fleet.Load) int {
		return cmp.Or(cmp.Compare(a.Model, b.Model), cmp.Compare(a.Rank, b.Rank))
	})
	if ranks {
		s.Notes |= fleet.NoteRanks
		p.resolveRanks(now, e, s.Loads)
	}
}

// resolveAdapters lists the adapters that have requests; those that had some
// lately, as resident with the moment when they were seen; and, where the engine
// tells, those that are resident. vLLM repeats running adapters in the waiting
// list; they count as running.
func (p *Parser) resolveAdapters(now fleet.Time, s *fleet.Signals) {
	for i := range p.lora[:p.loraSeen] {
		l := &p.lora[i]
		if i == 0 {
			s.LoRASlots = fleet.Known(l.slots, now)
			s.Adapters = p.listed(s.Adapters, l.running, fleet.AdapterRunning, now)
			s.Adapters = p.listed(s.Adapters, l.waiting, fleet.AdapterWaiting, now)
		} else if !p.loadedSeen {
			s.Adapters = p.listed(s.Adapters, l.running, fleet.AdapterResident, min(now, fleet.Time(l.at*1e9)))
		}
	}
	for _, a := range p.loaded {
		s.Adapters = addAdapter(s.Adapters, a.name, fleet.AdapterResident, now)
	}
	slices.SortFunc(s.Adapters, func(a, b fleet.Adapter) int { return cmp.Compare(a.Name, b.Name) })
}

func (p *Parser) listed(out []fleet.Adapter, list []byte, state fleet.AdapterState, now fleet.Time) []fleet.Adapter {
	for len(list) > 0 {
		var name []byte
		if i := bytes.IndexByte(list, ','); i >= 0 {
			name, list = list[:i], list[i+1:]
		} else {
			name, list = list, nil
		}
		if name = bytes.TrimSpace(name); len(name) > 0 {
			out = addAdapter(out, p.intern(name), state, now)
		}
	}
	return out
}

func addAdapter(out []fleet.Adapter, name string, state fleet.AdapterState, now fleet.Time) []fleet.Adapter {
	for i := range out {
		if out[i].Name == name {
			return out
		}
	}
	return append(out, fleet.Adapter{Name: name, State: state, At: now})
}
