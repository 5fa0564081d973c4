// SPDX-License-Identifier: Apache-2.0

package sim

import (
	"math"

	"github.com/penstock-project/penstock/internal/engine"
	"github.com/penstock-project/penstock/internal/fleet"
)

// lostEvents is the share of event batches that IndexLossyEvents loses.
const lostEvents = 0.05

// replica is one engine replica of the run.
type replica struct {
	id       string
	turn     int  // rank that its own balancer looks at first
	up       bool // takes requests
	absent   bool // not in the snapshot at all
	draining bool
	told     bool // the routers know that it drains
	changed  bool // was not there all the time
	started  fleet.Time
	last     fleet.Signals // what the last scrape that worked said

	preempted int64 // before the last restart
}

// apply makes a change to a replica happen.
func (r *run) apply(c Change) {
	p := &r.replicas[c.Replica]
	p.changed, r.joined = true, true
	switch c.Kind {
	case ChangeDie:
		r.die(c.Replica)
	case ChangeStart:
		p.up, p.absent, p.draining, p.told, p.started = true, false, false, false, r.now
		p.last = fleet.Signals{}
	case ChangeDrain:
		p.draining = p.up
	}
}

// drained takes a draining replica away once the routers know and it has nothing
// left to do.
func (r *run) drained(i int) {
	if p := &r.replicas[i]; p.draining && p.told && r.idle(i) {
		p.up, p.draining, p.absent = false, false, true
		r.joined = true
	}
}

// die loses all that a replica has. Requests without a first token go elsewhere;
// the others' clients send them again.
func (r *run) die(i int) {
	p := &r.replicas[i]
	p.up, p.draining = false, false
	var lost []engine.Event
	for k, c := range r.coresOf(i) {
		p.preempted += c.Stats(r.now).Preemptions
		c.Reset(r.now)
		lost = c.Advance(r.now, lost)
		r.wheel.set(i*r.c.Ranks+k, c.Next())
		if r.c.fed() {
			r.publish(i*r.c.Ranks + k)
		}
	}
	for _, e := range lost {
		n := int32(e.Seq)
		f := r.flights[n]
		router := f.router
		rt := &r.routers[router]
		rt.sends = rt.sends[:0]
		if !r.streams[n] {
			r.retry(n, fleet.OutcomeBroken)
			r.send(router, rt.sends)
			continue
		}
		sends := rt.d.End(r.now, f.ticket, fleet.Outcome{
			Kind: fleet.OutcomeTruncated, Status: 200, FirstToken: f.first, End: r.now,
			PromptTokens: -1, CachedTokens: -1, OutputTokens: f.seen,
		}, rt.sends)
		r.send(router, sends)
		f.replica, r.streams[n] = -1, false
		r.submit(n)
	}
}

// publish feeds the KV events of an engine core to the routers' indexes.
func (r *run) publish(core int) {
	r.changes = r.cores[core].TakeBlockChanges(r.changes[:0])
	for _, c := range r.changes {
		if r.c.Index == IndexLossyEvents && c.Kind != engine.BlocksCleared && r.noise.Float64() < lostEvents {
			continue
		}
		for k := range r.routers {
			rt := &r.routers[k]
			slot := rt.slots[core]
			if slot < 0 {
				continue
			}
			switch c.Kind {
			case engine.BlocksStored:
				parent := uint64(0)
				if c.HasParent {
					parent = c.Parent
				}
				rt.index.StoreBlocks(slot, parent, c.Blocks)
			case engine.BlocksRemoved:
				rt.index.RemoveBlocks(slot, c.Blocks)
			case engine.BlocksCleared:
				rt.index.Clear(slot)
			}
		}
	}
}

// scrape reads every replica's metrics into the snapshot that is on its way.
func (r *run) scrape() {
	r.version++
	s := r.blank()
	s.Pool, s.Version, s.At = "sim", r.version, r.now
	for _, i := range r.byID {
		p := &r.replicas[i]
		if p.absent {
			continue
		}
		s.Endpoints = s.Endpoints[:len(s.Endpoints)+1] // all of the row is written
		e := &s.Endpoints[len(s.Endpoints)-1]
		e.Endpoint = fleet.Endpoint{
			ID: p.id, URL: p.id, Rank: -1, Since: p.started, Phase: fleet.PhaseReady, Models: r.models,
		}
		if r.c.Ranks > 1 {
			e.Engine = "vllm"
		}
		switch {
		case p.draining:
			e.Phase = fleet.PhaseDraining
		case !p.up:
			e.Phase = fleet.PhaseFailed
		}
		if p.up && (r.c.Signals.Missing == 0 || r.noise.Float64() >= r.c.Signals.Missing) {
			if r.c.Ranks > 1 {
				r.rankSignals(i, p)
			} else {
				r.signalsOf(r.cores[i], p, &p.last)
			}
		}
		e.Signals = p.last
	}
	r.pending = s
}

// blank returns a snapshot without rows that no router looks at any more: the pending
// one where it never got to them, else the one before the last that did.
func (r *run) blank() *fleet.Snapshot {
	s := r.pending
	if r.nextDeliver == fleet.Never {
		s, r.pending = r.spare, nil
		r.spare = nil
	}
	if s == nil {
		s = &fleet.Snapshot{Endpoints: make([]fleet.EndpointState, 0, len(r.replicas))}
	}
	s.Endpoints = s.Endpoints[:0]
	return s
}

// signalsOf reads the metrics of one of a replica's engine cores into to, of which
// nothing else is ever set.
func (r *run) signalsOf(c *engine.Core, p *replica, to *fleet.Signals) {
	s := c.Stats(r.now)
	at := func(v int64) fleet.Value { return fleet.Value{V: float64(v), At: r.now} }
	to.Running, to.Waiting, to.Deferred = r.gauge(float64(s.Running)), r.gauge(float64(s.Waiting-s.Deferred)), at(int64(s.Deferred))
	to.KVUsage, to.KVTokens, to.BlockSize = r.gauge(s.KVUsage()), at(int64(s.KVTokens)), at(int64(r.c.Profile.BlockTokens))
	to.PromptTokens, to.OutputTokens = at(s.PromptTokens), at(s.OutputTokens)
	to.CacheQueries, to.CacheHits = at(s.CacheQueries), at(s.CacheHits)
	to.Preemptions, to.Finished = at(s.Preemptions), at(s.Finished)
	to.MaxSeqs, to.LoRASlots = at(int64(r.c.Profile.MaxSeqs)), at(int64(r.c.Profile.LoRASlots))
	to.StartTime, to.ScrapedAt = fleet.Value{V: p.started.Seconds(0), At: r.now}, r.now
}

// gauge is a gauge as a scrape has it.
func (r *run) gauge(v float64) fleet.Value {
	if r.c.Signals.Noise > 0 {
		v *= math.Exp(r.c.Signals.Noise * r.noise.Norm())
	}
	return fleet.Value{V: v, At: r.now}
}

// deliver hands the snapshot that is on its way to the routers.
func (r *run) deliver() {
	r.nextDeliver = fleet.Never
	r.spare, r.held = r.held, r.pending
	for k := range r.routers {
		rt := &r.routers[k]
		r.send(k, rt.d.Observe(r.now, r.pending, rt.sends[:0]))
	}
	for i := range r.replicas {
		if p := &r.replicas[i]; p.draining {
			p.told = p.told || r.pendingSays(p, fleet.PhaseDraining)
			r.drained(i)
		}
	}
	if r.joined || r.version%compareEvery == 0 {
		r.compare()
		r.joined = false
	}
}

// pendingSays reports whether the snapshot just delivered has a replica in a phase.
func (r *run) pendingSays(p *replica, phase fleet.Phase) bool {
	for i := range r.pending.Endpoints {
		if e := &r.pending.Endpoints[i]; e.ID == p.id {
			return e.Phase == phase
		}
	}
	return false
}

// compareEvery is the number of scrapes between two comparisons of the routers'
// accounting with the replicas.
const compareEvery = 8

// compare notes the routers' slots and how far their accounting is from the truth.
func (r *run) compare() {
	var have [1024]int32
	for k := range r.routers {
		rt := &r.routers[k]
		for i := range rt.slots {
			rt.slots[i] = -1
		}
		rt.rows = rt.d.Ledger(r.now, rt.rows[:0])
		for j := range rt.rows {
			row := &rt.rows[j]
			i := number(row.Endpoint[1:])
			r.noteSlots(rt, int(i), row)
			if int(i) < len(have) {
				have[i] += int32(row.InFlight)
			}
		}
	}
	for i := range min(len(r.replicas), len(have)) {
		if p := &r.replicas[i]; p.up {
			for _, c := range r.coresOf(i) {
				have[i] -= int32(c.InFlight())
			}
			r.m.diff += math.Abs(float64(have[i]))
			r.m.diffs++
		}
	}
}

// wheel is a binary heap over the engine cores by when they have something to do; the
// lower number first among equals.
type wheel struct {
	at    []fleet.Time
	heap  []int32
	place []int32
}

func (w *wheel) init(n int) {
	for i := range n {
		w.at = append(w.at, fleet.Never)
		w.heap = append(w.heap, int32(i))
		w.place = append(w.place, int32(i))
	}
}

func (w *wheel) top() (core int, at fleet.Time) {
	if len(w.heap) == 0 {
		return 0, fleet.Never
	}
	return int(w.heap[0]), w.at[w.heap[0]]
}

func (w *wheel) less(a, b int32) bool {
	return w.at[a] < w.at[b] || w.at[a] == w.at[b] && a < b
}

func (w *wheel) set(core int, at fleet.Time) {
	w.at[core] = at
	k := w.place[core]
	for k > 0 {
		up := (k - 1) / 2
		if !w.less(w.heap[k], w.heap[up]) {
			break
		}
		w.swap(k, up)
		k = up
	}
	for {
		c := 2*k + 1
		if int(c) >= len(w.heap) {
			return
		}
		if int(c)+1 < len(w.heap) && w.less(w.heap[c+1], w.heap[c]) {
			c++
		}
		if !w.less(w.heap[c], w.heap[k]) {
			return
		}
		w.swap(k, c)
		k = c
	}
}

func (w *wheel) swap(a, b int32) {
	w.heap[a], w.heap[b] = w.heap[b], w.heap[a]
	w.place[w.heap[a]], w.place[w.heap[b]] = a, b
}
