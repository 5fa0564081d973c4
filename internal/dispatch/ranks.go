// SPDX-License-Identifier: Apache-2.0

package dispatch

import (
	"strconv"

	"github.com/zeebo/xxh3"

	"github.com/penstock-project/penstock/internal/fleet"
	"github.com/penstock-project/penstock/internal/route"
)

// maxRanks bounds the ranks of one endpoint that are candidates of their own; an
// endpoint with more is one candidate.
const maxRanks = 128

// home is an endpoint behind whose one address several data-parallel ranks answer.
// Each rank has a slot of its own, with its own cache, load and accounting; address,
// phase and breaker are those of the endpoint.
type home struct {
	id    string
	key   uint64   // hash of id
	names []string // of the ranks' slots
	keys  []uint64
	pins  []string // values of the header that asks for a rank
	slots []int32
	rows  []fleet.EndpointState // what the last snapshot says of each rank
	start fleet.Value           // of the process that was asked
	ended fleet.Value           // requests that it finished
	seen  fleet.Time            // last snapshot that listed it
	check pinCheck
}

// takesPins reports whether an engine has a header by which a request names its rank.
// vLLM reads X-data-parallel-rank, and so do newer versions of SGLang. One that does not
// is found out by its counters.
func takesPins(engine string) bool { return engine == "vllm" || engine == "sglang" }

// ranksTold is how many ranks an endpoint tells of: 0 where it does not tell, 1 where
// it is one. Ranks that are not numbered from 0 on without a gap cannot be asked for:
// the engine counts its own from 0. Ranks that do not each tell how many requests they
// finished count as not told: nothing would show whether pins are honoured.
func ranksTold(e *fleet.EndpointState) int {
	if e.ScrapedAt == 0 || !e.Running.OK() {
		return 0
	}
	if e.Notes&fleet.NoteRanks == 0 || !takesPins(e.Engine) {
		return 1
	}
	var told [maxRanks]bool
	n := 0
	for i := range e.Loads {
		r := e.Loads[i].Rank
		if r < 0 || r >= maxRanks {
			return 1
		}
		if !e.Loads[i].Finished.OK() {
			return 0
		}
		if !told[r] {
			told[r] = true
			n++
		}
	}
	for r := range n {
		if !told[r] {
			return 1
		}
	}
	return max(1, n)
}

// severalRanks reports whether a row tells of several ranks; that of a single rank does
// not.
func severalRanks(e *fleet.EndpointState) bool {
	if e.Notes&fleet.NoteRanks == 0 {
		return false
	}
	for i := range e.Loads {
		if e.Loads[i].Rank != e.Loads[0].Rank {
			return true
		}
	}
	return false
}

// homeOf returns the home of an endpoint whose ranks are candidates; nil where the
// endpoint is one candidate.
func (d *Dispatch) homeOf(e *fleet.EndpointState) *home {
	if len(d.homes) == 0 && e.Notes&fleet.NoteRanks == 0 {
		return nil
	}
	h, n := d.homes[e.ID], ranksTold(e)
	switch {
	case h == nil && n < 2:
		return nil
	case h == nil, n > 0 && n != len(h.names):
		if n < 2 {
			delete(d.homes, e.ID)
			return nil
		}
		h = newHome(e.ID, n)
		if d.homes == nil {
			d.homes = map[string]*home{}
		}
		d.homes[e.ID], d.split = h, true
	}
	h.seen = d.snap.At
	if h.renewed(e) { // another process may do otherwise
		h.check.reset()
	}
	if h.check.scraped(e); h.check.verdict == PinsIgnored {
		return nil
	}
	return h
}

// renewed reports whether another process answers than before. Where several API
// servers share an address none tells when it started; then the count of finished
// requests begins anew.
func (h *home) renewed(e *fleet.EndpointState) bool {
	yes := h.start.OK() && e.StartTime.OK() && e.StartTime.V > h.start.V+1 ||
		h.ended.OK() && e.Finished.OK() && e.Finished.V < h.ended.V
	if e.StartTime.OK() {
		h.start = e.StartTime
	}
	if e.Finished.OK() {
		h.ended = e.Finished
	}
	return yes
}

func newHome(id string, n int) *home {
	h := &home{id: id, key: xxh3.HashString(id), rows: make([]fleet.EndpointState, n)}
	for r := range n {
		pin := strconv.Itoa(r)
		name := id + "@" + pin
		h.names, h.pins, h.slots = append(h.names, name), append(h.pins, pin), append(h.slots, -1)
		h.keys = append(h.keys, xxh3.HashString(name))
	}
	h.check.init(n)
	return h
}

// dropHomes forgets endpoints that are not listed any more.
func (d *Dispatch) dropHomes() {
	for id, h := range d.homes {
		if h.seen != d.snap.At {
			delete(d.homes, id)
		}
	}
}

// seeRanks updates the slots of an endpoint's ranks from its row.
func (d *Dispatch) seeRanks(h *home, e *fleet.EndpointState) {
	for r, name := range h.names {
		i, ok := d.names[name]
		if !ok {
			i = d.addSlot(name)
		}
		a := &d.aux[i]
		if h.slots[r] = i; a.home != h {
			a.home, a.rank = h, int32(r)
		}
		rankRow(&h.rows[r], e, name, r, len(h.names))
		d.see(i, &h.rows[r], ok)
	}
}

// rankRow makes the row of one rank. What the engine tells of all ranks together is
// unknown of one, except for its memory, of which each has the same.
func rankRow(row, e *fleet.EndpointState, name string, rank, n int) {
	*row = *e
	row.ID, row.Rank, row.Loads = name, rank, nil
	var l fleet.Load
	for i := range e.Loads {
		o := &e.Loads[i]
		if o.Rank != rank {
			continue
		}
		if l.Model == "" && !l.Running.OK() && !l.Waiting.OK() {
			l = *o
			continue
		}
		for _, v := range [...]struct{ to, from *fleet.Value }{
			{&l.Running, &o.Running}, {&l.Waiting, &o.Waiting}, {&l.Deferred, &o.Deferred}, {&l.PromptTokens, &o.PromptTokens},
			{&l.OutputTokens, &o.OutputTokens}, {&l.CacheQueries, &o.CacheQueries}, {&l.CacheHits, &o.CacheHits},
			{&l.Preemptions, &o.Preemptions}, {&l.Finished, &o.Finished},
		} {
			*v.to = both(*v.to, *v.from)
		}
		l.KVUsage.V = max(l.KVUsage.V, o.KVUsage.V)
	}
	row.Running, row.Waiting, row.Deferred, row.KVUsage = l.Running, l.Waiting, l.Deferred, l.KVUsage
	row.PromptTokens, row.OutputTokens = l.PromptTokens, l.OutputTokens
	row.CacheQueries, row.CacheHits = l.CacheQueries, l.CacheHits
	row.Preemptions, row.Finished = l.Preemptions, l.Finished
	if row.KVTokens = l.KVTokens; !row.KVTokens.OK() && e.KVTokens.OK() {
		row.KVTokens = fleet.Value{V: e.KVTokens.V / float64(n), At: e.KVTokens.At}
	}
	if e.MaxSeqs.OK() { // the sum over the ranks
		row.MaxSeqs = fleet.Value{V: e.MaxSeqs.V / float64(n), At: e.MaxSeqs.At}
	}
}

// both adds two values; unknown where one is.
func both(a, b fleet.Value) fleet.Value {
	if !a.OK() || !b.OK() {
		return fleet.Value{}
	}
	return fleet.Value{V: a.V + b.V, At: min(a.At, b.At)}
}

// kin gives the breaker of a slot to the other ranks of its endpoint: one process
// answers for all of them.
func (d *Dispatch) kin(i int32) {
	h := d.aux[i].home
	if h == nil {
		return
	}
	for _, k := range h.slots {
		if k >= 0 && k != i && d.aux[k].home == h {
			d.aux[k].breaker = d.aux[i].breaker
		}
	}
}

// placeKey names the process behind a slot, whose attempts fail together.
func (d *Dispatch) placeKey(i int32) uint64 {
	if h := d.aux[i].home; h != nil {
		return h.key
	}
	return d.slots[i].Key
}

// whereIs returns the endpoint of a slot and the value of the header that asks for its
// rank; "" where the endpoint is one candidate.
func (d *Dispatch) whereIs(i int32) (endpoint, pin string) {
	if a := &d.aux[i]; a.home != nil {
		return a.home.id, a.home.pins[a.rank]
	}
	return d.slots[i].ID, ""
}

// slotAt returns the slot of an endpoint's rank; of the endpoint where it is one
// candidate; -1: there is none.
func (d *Dispatch) slotAt(endpoint string, rank int) int32 {
	if i, ok := d.names[endpoint]; ok && !d.aux[i].gone {
		return i
	}
	if h := d.homes[endpoint]; h != nil && rank >= 0 && rank < len(h.names) {
		if i, ok := d.names[h.names[rank]]; ok {
			return i
		}
	}
	return -1
}

// elsewhere returns the slot that stands for a key of another router, which takes an
// endpoint for one candidate where this one sees ranks, or the other way round; -1:
// none does. A request that names no rank goes to the one with the least.
func (d *Dispatch) elsewhere(key uint64) int32 {
	if len(d.homes) == 0 {
		return -1
	}
	for i := range d.slots {
		h := d.aux[i].home
		if h == nil || h.key != key || d.aux[i].gone {
			continue
		}
		least := int32(i)
		for _, k := range h.slots {
			if k >= 0 && d.slots[k].InFlight < d.slots[least].InFlight {
				least = k
			}
		}
		return least
	}
	for i := range d.slots {
		h := d.homes[d.slots[i].ID]
		if h == nil || d.aux[i].gone {
			continue
		}
		for _, k := range h.keys {
			if k == key {
				return int32(i)
			}
		}
	}
	return -1
}

// foldRanks puts the rows of ranks together into one row of their endpoint.
func (d *Dispatch) foldRanks(rows []EndpointLoad) []EndpointLoad {
	at := map[string]int{}
	out := rows[:0]
	for _, r := range rows {
		a := &d.aux[r.Slot]
		h := a.home
		if h == nil {
			if k, ok := at[r.Endpoint]; ok {
				out[k].add(&r)
				continue
			}
			at[r.Endpoint] = len(out)
			out = append(out, r)
			continue
		}
		rank := r
		rank.Rank, r.Endpoint = int(a.rank), h.id
		k, ok := at[h.id]
		if !ok {
			k = len(out)
			at[h.id] = k
			out = append(out, r)
		} else {
			out[k].add(&r)
		}
		if !a.gone {
			out[k].Ranks = append(out[k].Ranks, rank)
		}
	}
	for i := range out {
		if h := d.homes[out[i].Endpoint]; h != nil {
			out[i].Pins = h.check.state()
		}
	}
	return out
}

// add adds what another slot of the same endpoint has.
func (l *EndpointLoad) add(o *EndpointLoad) {
	if o.Drop == route.DropNone || l.Drop == route.DropGone {
		l.Drop = o.Drop
	}
	l.InFlight += o.InFlight
	l.Unstarted += o.Unstarted
	l.Streams += o.Streams
	l.PendingMS += o.PendingMS
	l.CtxTokens += o.CtxTokens
	l.PinnedBlocks += o.PinnedBlocks
	l.CacheBlocks += o.CacheBlocks
	l.CacheCap += o.CacheCap
	l.PeerInFlight += o.PeerInFlight
	l.PeerQueued += o.PeerQueued
	l.Queued += o.Queued
	l.QueuedMS += o.QueuedMS
	l.Slowness = max(l.Slowness, o.Slowness)
	l.KVLimit = min(l.KVLimit, o.KVLimit)
	l.PredictedCached += o.PredictedCached
	l.ObservedCached += o.ObservedCached
	l.Sent += o.Sent
	l.Failed += o.Failed
	l.Leaked += o.Leaked
	l.Restarts = max(l.Restarts, o.Restarts)
	l.EjectedUntil = max(l.EjectedUntil, o.EjectedUntil)
	l.ForeignStreams += o.ForeignStreams
	l.ForeignUnstarted += o.ForeignUnstarted
	l.IndexDisagreement = l.IndexDisagreement || o.IndexDisagreement
	l.CacheUnsure = l.CacheUnsure || o.CacheUnsure
	l.Overlaps = l.Overlaps || o.Overlaps
}

// mayFollow reports whether a proxy may take a request from one slot to another by
// itself: to another endpoint, which has the rank that the request names.
func (d *Dispatch) mayFollow(from, to int32) bool {
	a, b := &d.aux[from], &d.aux[to]
	if a.home == nil {
		return true
	}
	return b.home != nil && b.home != a.home && b.rank == a.rank
}
