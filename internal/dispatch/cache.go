// SPDX-License-Identifier: Apache-2.0

package dispatch

import (
	"errors"
	"strconv"

	"github.com/penstock-project/penstock/internal/fleet"
)

// CacheKind is what a KV event says.
type CacheKind uint8

// Kinds of KV events. The numbers stand in journals.
const (
	CacheStored  CacheKind = iota + 1 // Blocks, behind Parent
	CacheRemoved                      // Blocks
	CacheCleared                      // all of it
	CacheUnsure                       // events were lost
	CacheSure                         // what was lost was told again
	CacheUsed                         // Tokens are cached there, in the engine's count
)

// CacheEvent is what a replica told of its prefix cache, in the terms of the index.
type CacheEvent struct {
	Kind     CacheKind
	Endpoint string // ID
	Rank     int    // data-parallel rank that tells it; 0 where there is one
	Parent   uint64 // 0: the beginning of a prompt
	Blocks   []uint64
	Tokens   float64
}

// eventIndex is the part of an index that is fed by KV events.
type eventIndex interface {
	StoreBlocks(slot int32, parent uint64, hashes []uint64)
	RemoveBlocks(slot int32, hashes []uint64)
	MarkUnsure(slot int32)
	MarkSure(slot int32)
	Unsure(slot int32) bool
}

// Cached takes a KV event in. An event of an endpoint that is not listed is ignored.
func (d *Dispatch) Cached(now fleet.Time, e *CacheEvent) {
	d.begin(now)
	i := d.slotAt(e.Endpoint, e.Rank)
	x, fed := d.index.(eventIndex)
	if i < 0 || !fed || d.aux[i].gone {
		return
	}
	switch e.Kind {
	case CacheStored:
		x.StoreBlocks(i, e.Parent, e.Blocks)
	case CacheRemoved:
		x.RemoveBlocks(i, e.Blocks)
	case CacheCleared:
		d.index.Clear(i)
		d.aux[i].life++
	case CacheUnsure:
		x.MarkUnsure(i)
	case CacheSure:
		x.MarkSure(i)
	case CacheUsed:
		d.cacheUsed(i, e.Tokens)
	}
	d.refresh(i)
}

// roomOf is how many blocks of the index fit into the KV cache of a slot; 0: unknown.
// With KV events blocks are the engine's; else they have the usual length.
func (d *Dispatch) roomOf(i int32) int {
	s := &d.slots[i]
	if s.State == nil || s.KVTokens <= 0 {
		return 0
	}
	if d.o.Events && s.State.BlockSize.OK() && s.State.BlockSize.V >= 1 {
		return max(1, int(s.KVTokens/s.State.BlockSize.V))
	}
	if d.learned.blockTokens <= 0 {
		return 0
	}
	return max(1, int(s.KVTokens/d.learned.blockTokens))
}

// cacheUsed corrects how much an endpoint is believed to keep, by what its engine
// says is cached: beyond that nothing can be.
func (d *Dispatch) cacheUsed(i int32, tokens float64) {
	type bounded interface{ Keep(slot int32, blocks int) }
	if x, ok := d.index.(bounded); ok && d.learned.blockTokens > 0 {
		x.Keep(i, int(tokens/d.learned.blockTokens)+1)
	}
}

// savedIndex is the part of an index that outlives a process.
type savedIndex interface {
	Save(dst []byte, check uint64, name func(slot int32) string) []byte
	Load(data []byte, check uint64, slot func(name string) int32) error
}

// errNoSnapshot is what an index without snapshots answers.
var errNoSnapshot = errors.New("the index cannot be saved")

// SaveIndex appends a snapshot of the prefix index to dst, nil where the index has
// none. check identifies how the blocks were hashed. An endpoint goes by its ID and
// the start of its process: a cache that is gone is not believed in again.
func (d *Dispatch) SaveIndex(dst []byte, check uint64) []byte {
	x, ok := d.index.(savedIndex)
	if !ok {
		return nil
	}
	return x.Save(dst, check, func(slot int32) string {
		if s := &d.slots[slot]; s.State != nil && d.aux[slot].used {
			return d.lifeName(slot)
		}
		return ""
	})
}

// lifeName names one life of an endpoint's process.
func (d *Dispatch) lifeName(slot int32) string {
	start := ""
	if v := d.aux[slot].scrape.start; v.OK() {
		start = strconv.FormatInt(int64(v.V+0.5), 10)
	}
	return d.slots[slot].ID + "\x00" + start
}

// CheckIndex reports why a snapshot cannot be loaded; nil where it can.
func (d *Dispatch) CheckIndex(data []byte, check uint64) error {
	x, ok := d.index.(interface {
		Check(data []byte, check uint64) error
	})
	if !ok {
		return errNoSnapshot
	}
	return x.Check(data, check)
}

// Warm fills the index from a snapshot, as far as its endpoints are listed and their
// processes are the same.
func (d *Dispatch) Warm(now fleet.Time, data []byte, check uint64) error {
	d.begin(now)
	x, ok := d.index.(savedIndex)
	if !ok {
		return errNoSnapshot
	}
	err := x.Load(data, check, func(name string) int32 {
		for i := range d.slots {
			if d.aux[i].used && d.slots[i].State != nil && d.lifeName(int32(i)) == name {
				return int32(i)
			}
		}
		return -1
	})
	for i := range d.slots {
		if d.aux[i].used {
			d.refresh(int32(i))
		}
	}
	return err
}
