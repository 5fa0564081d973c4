// SPDX-License-Identifier: Apache-2.0

package prefix

import (
	"math"

	"github.com/penstock-project/penstock/internal/fleet"
)

// DefaultCapacity is what a replica is believed to hold, in blocks, while its
// real KV capacity is unknown.
const DefaultCapacity = 32768

// Options of an Index. The zero value is usable.
type Options struct {
	// MaxBytes bounds the live bytes of the index, exceeded by at most one
	// prompt; 0 means no bound. Beyond it the least recently used blocks leave,
	// one replica after the other.
	MaxBytes int64
	// Events makes StoreBlocks and RemoveBlocks possible, at about 13 bytes more
	// for each distinct block.
	Events bool
}

// Ref names blocks that Pin pinned. The zero Ref names nothing.
type Ref struct {
	hold uint32
	gen  uint32
	lane uint16
}

// Stats of an Index.
type Stats struct {
	Bytes     int64  // live bytes
	Reserved  int64  // bytes of all pages and tables; never returned
	Replicas  int    // slots in use
	Blocks    int64  // distinct blocks
	Entries   int64  // (block, replica) pairs
	Evictions uint64 // pairs that left for lack of room, since the start
	Orphans   uint64 // blocks of events whose parent was unknown, dropped
	Refused   uint64 // prompts not indexed: MaxBytes reached and everything pinned
	Unswept   int    // cleared replicas whose entries are still being removed
}

// lane is one life of one slot: a cleared slot gets a fresh lane, and the old one
// is swept a little at a time.
type lane struct {
	slot   int32 // -1 once cleared
	gen    uint32
	oldest uint32 // list of holds that may leave, children before parents
	newest uint32
	pinOld uint32 // list of pinned holds, children before parents
	pinNew uint32
	used   int64 // blocks held
	pinned int64 // blocks pinned

	kv       float64 // blocks that fit into the KV cache; 0 unknown
	capacity float64 // blocks believed to be kept
	fed      bool    // KV events arrive: capacity is theirs to tell
	unsure   bool    // some events were lost
	agree    window
}

// Index keeps for every replica the set of prompt blocks that its prefix cache is
// believed to hold. Replicas are small numbers (slots) chosen by the caller. It
// is a tree of runs of blocks shared by all replicas; work is proportional to the
// branch points on the way of a prompt, not to its blocks.
//
// Within a replica the least recently used block that nobody builds on leaves
// first (tail first, as engines do); blocks of requests in flight never leave.
type Index struct {
	o     Options
	s     store
	heads table // first hash of a run -> node
	pairs table // (node, lane) -> hold
	every table // any hash -> node, with Options.Events

	lanes     []lane // [0] is none
	laneSlot  []int32
	freeLanes []uint16
	dead      []uint16 // lanes to sweep
	slotLane  []uint16

	path  []step
	holes bool // RemoveBlocks made a hole: hits are no longer nested sets
	hand  int  // next lane to give up blocks for MaxBytes
	stats Stats
}

// NewIndex returns an empty index.
func NewIndex(o Options) *Index {
	return &Index{
		o: o, heads: newTable(), pairs: newTable(), every: newTable(),
		lanes: make([]lane, 1), laneSlot: []int32{-1},
	}
}

// Add starts a replica with an empty cache. capacityBlocks is how many blocks fit
// into its KV cache, <= 0 if unknown. A slot in use is cleared first. At most
// 65,535 replicas are indexed; what is sent to more is not recorded.
func (x *Index) Add(slot int32, capacityBlocks int) {
	for int(slot) >= len(x.slotLane) {
		x.slotLane = append(x.slotLane, 0)
	}
	x.retire(slot)
	if x.slotLane[slot] = x.newLane(slot); x.slotLane[slot] == 0 {
		return
	}
	x.stats.Replicas++
	x.SetCapacity(slot, capacityBlocks)
}

// SetCapacity tells how many blocks fit into the replica's KV cache; <= 0 means
// unknown. What Feedback learned is kept in proportion.
func (x *Index) SetCapacity(slot int32, capacityBlocks int) {
	l := x.lane(slot)
	if l == nil {
		return
	}
	kv := float64(max(capacityBlocks, 0))
	switch {
	case kv == l.kv && l.capacity > 0:
		return
	case kv == 0:
		l.capacity = DefaultCapacity
	case l.kv > 0:
		l.capacity *= kv / l.kv
	default:
		l.capacity = maxShare * kv
	}
	l.kv = kv
	for l.used > int64(x.limit(l)) && l.oldest != 0 { // rare: all of it at once
		x.evict(x.slotLane[slot])
	}
}

// Remove forgets a replica. It takes constant time: Match stops seeing it at once,
// its entries are removed in small steps by later calls.
func (x *Index) Remove(slot int32) {
	if x.lane(slot) == nil {
		return
	}
	x.retire(slot)
	x.slotLane[slot] = 0
}

// Clear empties a replica's cache (it restarted, or said so), in constant time
// like Remove. Pins of requests that were in flight there are void; the believed
// capacity starts afresh.
func (x *Index) Clear(slot int32) {
	l := x.lane(slot)
	if l == nil {
		return
	}
	kv, fed := int(l.kv), l.fed
	x.Add(slot, kv)
	x.lane(slot).fed = fed
}

// Slots returns one more than the largest slot that was ever in use: the length
// that hits need.
func (x *Index) Slots() int { return len(x.slotLane) }

// Used returns the number of blocks believed to be at the replica.
func (x *Index) Used(slot int32) int {
	if l := x.lane(slot); l != nil {
		return int(l.used)
	}
	return 0
}

// Capacity returns the number of blocks that the replica is believed to keep.
func (x *Index) Capacity(slot int32) int {
	if l := x.lane(slot); l != nil {
		return int(x.limit(l))
	}
	return 0
}

// Full reports whether a new block at the replica pushes another one out.
func (x *Index) Full(slot int32) bool {
	l := x.lane(slot)
	return l != nil && float64(l.used) >= 0.98*x.limit(l)
}

// Pinned returns the number of distinct blocks of requests in flight there.
func (x *Index) Pinned(slot int32) int {
	if l := x.lane(slot); l != nil {
		return int(l.pinned)
	}
	return 0
}

// Stats returns the state of the index. Constant time.
func (x *Index) Stats() Stats {
	s := x.stats
	s.Bytes = x.bytes()
	s.Reserved = x.s.reserved() + x.heads.bytes() + x.pairs.bytes() + x.every.bytes()
	s.Unswept = len(x.dead)
	return s
}

func (x *Index) bytes() int64 {
	return x.s.liveNode*nodeBytes + x.s.liveHold*holdBytes + x.s.runBytes +
		int64(x.heads.n+x.pairs.n+x.every.n)*entryBytes
}

// limit is the number of blocks beyond which blocks leave. An engine that tells
// what it evicts is only held to what fits at all, in case events were lost.
func (x *Index) limit(l *lane) float64 {
	if l.fed {
		if l.kv > 0 {
			return l.kv
		}
		return math.Inf(1)
	}
	return l.capacity
}

func (x *Index) lane(slot int32) *lane {
	if slot < 0 || int(slot) >= len(x.slotLane) || x.slotLane[slot] == 0 {
		return nil
	}
	return &x.lanes[x.slotLane[slot]]
}

func (x *Index) newLane(slot int32) uint16 {
	full := len(x.lanes) > maxCount
	if len(x.freeLanes) == 0 && full {
		x.sweep(math.MaxInt)
	}
	if n := len(x.freeLanes); n > 0 {
		l := x.freeLanes[n-1]
		x.freeLanes = x.freeLanes[:n-1]
		x.lanes[l] = lane{slot: slot, gen: x.lanes[l].gen + 1}
		x.laneSlot[l] = slot
		return l
	}
	if full {
		return 0
	}
	x.lanes = append(x.lanes, lane{slot: slot, gen: 1})
	x.laneSlot = append(x.laneSlot, slot)
	return uint16(len(x.lanes) - 1)
}

func (x *Index) retire(slot int32) {
	id := x.slotLane[slot]
	if id == 0 {
		return
	}
	x.stats.Replicas--
	l := &x.lanes[id]
	l.slot, x.laneSlot[id] = -1, -1
	l.gen++ // voids every Ref
	x.dead = append(x.dead, id)
}

// sweepStep is the number of holds that one insert removes of cleared lanes: a few
// microseconds at most. Nothing is added to a cleared lane, so the sweep always ends.
const sweepStep = 32

// sweepBlocks is how many blocks cost as much as a hold, where each has an entry of its
// own: a run of 256 is removed alone in a step.
const sweepBlocks = 8

// Sweep removes up to n runs of cleared replicas, fewer where each block of theirs is
// filed for events, and reports whether any are left.
// Inserts do the same in small steps; a caller with idle time may do it sooner.
func (x *Index) Sweep(n int) bool {
	x.sweep(n)
	return len(x.dead) > 0
}

func (x *Index) sweep(n int) {
	for n > 0 && len(x.dead) > 0 {
		id := x.dead[len(x.dead)-1]
		l := &x.lanes[id]
		for n > 0 && l.oldest != 0 {
			n -= x.dropCost(l.oldest)
			x.drop(l.oldest)
		}
		for n > 0 && l.oldest == 0 && l.pinOld != 0 {
			n -= x.dropCost(l.pinOld)
			x.drop(l.pinOld)
		}
		if l.oldest == 0 && l.pinOld == 0 {
			x.dead = x.dead[:len(x.dead)-1]
			x.freeLanes = append(x.freeLanes, id)
		}
	}
}

// dropCost is what the removal of a hold costs, in holds.
func (x *Index) dropCost(i uint32) int {
	n := x.s.node(x.s.hold(i).node)
	if !x.o.Events || n.nHold > 1 {
		return 1
	}
	return 1 + int(n.len)/sweepBlocks
}

// Insert records that a prompt was sent to a replica: its blocks are there now and
// are the most recently used. Blocks beyond the believed capacity leave.
func (x *Index) Insert(_ fleet.Time, slot int32, blocks []uint64) {
	l := x.lane(slot)
	if l == nil {
		return
	}
	x.sweep(sweepStep)
	x.touch(x.extend(x.slotLane[slot], blocks))
	x.evict(x.slotLane[slot])
}

// Pin is Insert for a request in flight: its blocks stay until Unpin. Requests
// that share blocks pin them together. A restart (Clear) voids the Ref.
func (x *Index) Pin(_ fleet.Time, slot int32, blocks []uint64) Ref {
	l := x.lane(slot)
	if l == nil {
		return Ref{}
	}
	id := x.slotLane[slot]
	x.sweep(sweepStep)
	h := x.extend(id, blocks)
	if h == 0 || x.s.hold(h).pins == maxCount {
		x.touch(h)
		return Ref{}
	}
	x.pin(h)
	x.evict(id)
	return Ref{lane: id, gen: x.lanes[id].gen, hold: h}
}

// Unpin releases what Pin pinned, once; the blocks are the most recently used now,
// as an engine frees them at the end of a request. A void Ref is ignored.
func (x *Index) Unpin(_ fleet.Time, r Ref) {
	if r.hold == 0 || x.lanes[r.lane].gen != r.gen {
		return
	}
	l := &x.lanes[r.lane]
	for i := r.hold; i != 0; {
		h := x.s.hold(i)
		if h.pins > 1 {
			h.pins--
		} else {
			x.unlist(i)
			h.pins = 0
			x.listNewest(i)
			n := x.s.node(h.node)
			n.nPin--
			l.pinned -= int64(n.len)
		}
		i = h.up
	}
	x.evict(r.lane)
}

func (x *Index) pin(deepest uint32) {
	l := &x.lanes[x.s.hold(deepest).lane]
	below := uint32(0)
	for i := deepest; i != 0; {
		h := x.s.hold(i)
		if h.pins > 0 {
			h.pins++
		} else {
			x.unlist(i)
			h.pins = 1
			x.listPinned(i, below)
			n := x.s.node(h.node)
			n.nPin++
			l.pinned += int64(n.len)
		}
		below = i
		i = h.up
	}
}

// touch makes the way to a hold the most recently used, its end oldest.
func (x *Index) touch(deepest uint32) {
	for i := deepest; i != 0; {
		h := x.s.hold(i)
		if h.pins == 0 {
			x.unlist(i)
			x.listNewest(i)
		}
		i = h.up
	}
}

// evictMost is how many blocks leave in one call where more are due: those of a long
// prompt leave in two or three calls, none of which takes longer than the look-up of
// the prompt itself. Half of what is due leaves at least, so the rest stays below the
// length of the longest prompt.
const evictMost = 512

// evict lets blocks leave until the lane is within its limit, all is pinned, or enough
// left for one call.
func (x *Index) evict(id uint16) {
	l := &x.lanes[id]
	due := int64(math.Ceil(float64(l.used) - x.limit(l)))
	left := max(evictMost, due/2)
	for due > 0 && left > 0 && l.oldest != 0 {
		before := l.used
		x.giveUp(l.oldest, min(due, left))
		due, left = due-(before-l.used), left-(before-l.used)
	}
}

// giveUp removes up to n blocks from the end of an unpinned hold without kids.
func (x *Index) giveUp(i uint32, n int64) {
	h := x.s.hold(i)
	take := min(n, int64(h.held))
	x.stats.Evictions += uint64(take)
	if take == int64(h.held) {
		x.drop(i)
		return
	}
	h.held -= uint16(take)
	x.lanes[h.lane].used -= take
	x.stats.Entries -= take
}

// room makes room within MaxBytes, replica after replica, and reports whether the
// index is below the bound.
func (x *Index) room() bool {
	if x.o.MaxBytes <= 0 {
		return true
	}
	for idle := 0; x.bytes() >= x.o.MaxBytes; {
		if len(x.dead) > 0 {
			x.sweep(1)
			continue
		}
		if x.hand++; x.hand >= len(x.lanes) {
			x.hand = 1
		}
		l := &x.lanes[x.hand]
		if l.oldest == 0 {
			if idle++; idle > len(x.lanes) {
				return false
			}
			continue
		}
		idle = 0
		x.giveUp(l.oldest, maxRun)
	}
	return true
}
