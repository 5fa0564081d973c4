// SPDX-License-Identifier: Apache-2.0

package observe

import (
	"encoding/binary"
	"slices"
	"strings"
	"time"

	"github.com/zeebo/xxh3"

	"github.com/penstock-project/penstock/internal/prefix"
)

// CacheChange is what an engine's events mean for a router's index.
type CacheChange struct {
	Kind   CacheKind
	Parent uint64   // of Stored: our key of the block before; 0: the beginning of a prompt
	Keys   []uint64 // of Stored and Removed: our keys, computed from the token ids
	Tokens float64  // of Used: tokens that are cached now
}

// CacheKind is the kind of a CacheChange.
type CacheKind uint8

// Kinds of changes.
const (
	CacheStored CacheKind = iota + 1
	CacheRemoved
	CacheCleared
	CacheUnsure // events were lost
	CacheSure   // what was lost was told again
	CacheUsed
)

// TokenKeys appends to dst our keys of the whole blocks of a prompt's tokens, block
// tokens each. Engines hash as they like, with seeds of their own: a router computes
// its own keys from the token ids, which are the same in all of them.
func TokenKeys(dst []uint64, seed uint64, tokens []uint32, block int) []uint64 {
	chain := seed
	buf := make([]byte, 0, 4*block)
	for ; len(tokens) >= block; tokens = tokens[block:] {
		buf = buf[:0]
		for _, t := range tokens[:block] {
			buf = binary.LittleEndian.AppendUint32(buf, t)
		}
		chain = prefix.Chain(chain, xxh3.Hash(buf))
		dst = append(dst, chain)
	}
	return dst
}

// kvMostKept bounds the blocks that are remembered of one source. An engine has a few
// hundred thousand; one that stores without end and removes nothing is forgotten.
const kvMostKept = 1 << 22

// kvView is what the events of one source say: an engine, or one rank of it.
type kvView struct {
	key   uint64 // of the hashes
	model string

	known bool // a message was seen
	next  uint64
	keys  map[uint64]kvBlock // by the engine's hash
	block int                // tokens in a block
	state KVState
}

type kvBlock struct {
	key  uint64
	refs int // groups or media that hold it
}

// KVState is how well the events of a replica are heard.
type KVState struct {
	Source   string // endpoint that is read
	Fault    string // why it is not
	Batches  uint64
	Gaps     uint64 // times that messages were lost
	Healed   uint64 // of these made good by a replay
	Restarts uint64 // times that the sequence began anew
	Orphans  uint64 // blocks whose parent was unknown
	Bad      uint64 // messages and events that could not be read
	Blocks   int    // that the engine says it caches
	Tokens   int
	Unsure   bool
	Last     time.Time
}

func newKVView(key uint64, model string) *kvView {
	return &kvView{key: key, model: model, keys: map[uint64]kvBlock{}}
}

// gap is what a sequence number says before its message is taken in.
type gap uint8

const (
	inOrder gap = iota
	lost        // messages in between are missing
	again       // it was seen already
	restart     // the engine counts anew
)

// order judges a sequence number.
func (v *kvView) order(seq uint64) gap {
	switch {
	case !v.known:
		if seq > 0 {
			return lost // we came late: what it cached before is not known
		}
		return inOrder
	case seq == v.next:
		return inOrder
	case seq > v.next:
		return lost
	case seq+kvReorder >= v.next && seq != 0:
		return again
	}
	return restart
}

// kvReorder is how far back a message that comes twice may lie, for instance after a
// replay that overlaps the stream.
const kvReorder = 4096

// clear forgets all blocks, and with them what was unsure.
func (v *kvView) clear(out []CacheChange) []CacheChange {
	clear(v.keys)
	v.state.Unsure = false
	return append(out, CacheChange{Kind: CacheCleared})
}

// take takes a message in that is in order, or that follows a gap that nothing fills.
func (v *kvView) take(seq uint64, b *kvBatch, now time.Time, out []CacheChange) []CacheChange {
	v.known, v.next = true, seq+1
	v.state.Batches++
	v.state.Last = now
	for i := range b.events {
		out = v.event(&b.events[i], out)
	}
	v.state.Blocks, v.state.Tokens = len(v.keys), len(v.keys)*v.block
	return append(out, CacheChange{Kind: CacheUsed, Tokens: float64(v.state.Tokens)})
}

// indexed reports whether blocks of a group of layers stand for the prompt.
func (e *kvEvent) indexed() bool {
	switch e.spec {
	case "", "full_attention", "mla", "sink_full":
		return true
	}
	return false
}

func (v *kvView) event(e *kvEvent, out []CacheChange) []CacheChange {
	switch e.kind {
	case "AllBlocksCleared":
		return v.clear(out)
	case "BlockRemoved":
		c := CacheChange{Kind: CacheRemoved}
		for _, h := range e.hashes {
			b, ok := v.keys[h]
			if !ok {
				continue
			}
			if b.refs--; b.refs > 0 {
				v.keys[h] = b
				continue
			}
			delete(v.keys, h)
			c.Keys = append(c.Keys, b.key)
		}
		if len(c.Keys) > 0 {
			out = append(out, c)
		}
		return out
	case "BlockStored":
		// Divided, not multiplied: a block of 2^60 tokens must not overflow.
		if !e.indexed() || len(e.hashes) == 0 || e.block <= 0 || e.block > len(e.tokens)/len(e.hashes) {
			return out
		}
		if len(v.keys)+len(e.hashes) > kvMostKept {
			v.state.Bad++
			out = v.clear(out)
		}
		return v.stored(e, out)
	}
	return out
}

func (v *kvView) stored(e *kvEvent, out []CacheChange) []CacheChange {
	v.block = e.block
	c := CacheChange{Kind: CacheStored}
	seed := uint64(0)
	if e.child {
		p, ok := v.keys[e.parent]
		if !ok {
			v.state.Orphans += uint64(len(e.hashes))
			return out
		}
		c.Parent, seed = p.key, p.key
	} else {
		seed = prefix.Seed(v.key, v.model, e.lora, e.salt())
	}
	c.Keys = TokenKeys(nil, seed, e.tokens[:e.block*len(e.hashes)], e.block)
	for i, h := range e.hashes {
		b := v.keys[h]
		v.keys[h] = kvBlock{key: c.Keys[i], refs: b.refs + 1}
	}
	return append(out, c)
}

// salt is the cache salt among the extra keys of the first block: what is not the
// adapter's name.
func (e *kvEvent) salt() string {
	rest := slices.DeleteFunc(slices.Clone(e.extra), func(s string) bool { return s == e.lora })
	return strings.Join(rest, "\x00")
}
