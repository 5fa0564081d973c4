// SPDX-License-Identifier: Apache-2.0

package prefix

import "github.com/penstock-project/penstock/internal/fleet"

// DefaultCapacity is what a replica is believed to hold, in blocks, while its
// real KV capacity is unknown.
const DefaultCapacity = 32768

// Options of an Index. The zero value is usable.
type Options struct {
	// MaxBytes bounds the memory of the index; 0 means no bound. Beyond it the
	// least recently used blocks of all replicas in turn leave.
	MaxBytes int64
	// Events makes RemoveBlocks and StoreBlocks possible, at about 13 bytes more
	// for each distinct block.
	Events bool
}

// Ref names blocks that Pin pinned. The zero Ref names nothing.
type Ref struct {
	lane uint16
	gen  uint32
	hold uint32
}

// Stats of an Index.
type Stats struct {
	Bytes     int64  // live bytes
	Replicas  int    // slots in use
	Blocks    int64  // distinct blocks
	Entries   int64  // (block, replica) pairs
	Evictions uint64 // pairs that left for lack of room, since the start
	Orphans   uint64 // events dropped because their parent block was unknown
	Refused   uint64 // inserts cut short because MaxBytes was reached and all else was pinned
}

// The methods of Index:
//
//	Add(slot int32, capacityBlocks int)      // KV capacity in blocks; <= 0 unknown; believed capacity starts at 90 % of it
//	SetCapacity(slot int32, capacityBlocks int)
//	Remove(slot int32), Clear(slot int32)    // O(1); swept in later calls
//	Slots() int                              // one more than the largest slot in use
//	Match(blocks []uint64, hits []int32)
//	MatchPinned(blocks []uint64, hits, pinned []int32) // also the leading blocks of requests in flight there
//	MatchOne(slot int32, blocks []uint64) int
//	Insert(now fleet.Time, slot int32, blocks []uint64)  // sent there; most recently used
//	Pin(now fleet.Time, slot int32, blocks []uint64) Ref // Insert, and kept until Unpin
//	Unpin(now fleet.Time, r Ref)
//	Pinned(slot int32) int, PinnedPrefix(slot int32, blocks []uint64) int
//	Used(slot int32) int, Capacity(slot int32) int, Full(slot int32) bool
//	StoreBlocks(slot int32, parent uint64, hashes []uint64), RemoveBlocks(slot int32, hashes []uint64), ClearAll = Clear
//	MarkUnsure(slot int32), Unsure(slot int32) bool // a gap in the event sequence
//	Feedback(slot int32, expectedTokens, cachedTokens int), Agreement(slot int32) Agreement
//	Stats() Stats, Save(dst []byte, name func(slot int32) string) []byte, Load(data []byte, slot func(name string) int32) error
//	Sweep(n int) bool
var _ fleet.Time
