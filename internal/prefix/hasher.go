// SPDX-License-Identifier: Apache-2.0

package prefix

import (
	"math/bits"

	"github.com/zeebo/xxh3"
)

// DefaultBlockBytes is the length of a block of text in bytes. 512 bytes are
// about 128 tokens of English: long enough that the index stays below a tenth of
// a byte per prompt byte, short enough that a shared system prompt is seen.
const DefaultBlockBytes = 512

// chainMul is an odd constant with well mixed bits (the 64-bit golden ratio); it
// makes one step of the chain a bijection for every block.
const chainMul = 0x9E3779B97F4A7C15

// Hasher turns a stream of text into chained block hashes. The hashes depend only
// on the bytes, the block length and the seed, not on how the bytes were split
// over calls of Write. After the first few requests it does not allocate.
type Hasher struct {
	blocks     []uint64
	chain      uint64
	blockBytes int
	partial    int // bytes in buf
	total      int
	buf        []byte // a block that is not whole yet
}

// Reset starts a new prompt. seed comes from Seed; blockBytes <= 0 means
// DefaultBlockBytes. The slice that Blocks returned before is reused.
func (h *Hasher) Reset(seed uint64, blockBytes int) {
	if blockBytes <= 0 {
		blockBytes = DefaultBlockBytes
	}
	if cap(h.buf) < blockBytes {
		h.buf = make([]byte, blockBytes)
	}
	h.buf = h.buf[:blockBytes]
	h.blocks = h.blocks[:0]
	h.chain, h.blockBytes, h.partial, h.total = seed, blockBytes, 0, 0
}

// Write appends text. It keeps no reference to p.
func (h *Hasher) Write(p []byte) {
	p = p[write(h, p):]
	for len(p) >= h.blockBytes {
		h.step(xxh3.Hash(p[:h.blockBytes]))
		p = p[h.blockBytes:]
	}
	h.partial += copy(h.buf[h.partial:], p)
}

// WriteString appends text like Write.
func (h *Hasher) WriteString(s string) {
	s = s[write(h, s):]
	for len(s) >= h.blockBytes {
		h.step(xxh3.HashString(s[:h.blockBytes]))
		s = s[h.blockBytes:]
	}
	h.partial += copy(h.buf[h.partial:], s)
}

// write counts p and completes the block that is not whole yet. It returns how
// much of p went into that block: all of p where it is still not whole.
func write[T string | []byte](h *Hasher, p T) int {
	if h.blockBytes == 0 {
		h.Reset(0, 0)
	}
	h.total += len(p)
	if h.partial == 0 {
		return 0
	}
	n := copy(h.buf[h.partial:], p)
	h.partial += n
	if h.partial == h.blockBytes {
		h.step(xxh3.Hash(h.buf))
		h.partial = 0
	}
	return n
}

func (h *Hasher) step(block uint64) {
	h.chain = Chain(h.chain, block)
	h.blocks = append(h.blocks, h.chain)
}

// Blocks returns the chained hashes of the whole blocks so far, first block
// first. Trailing text that does not fill a block has no hash: it cannot be
// shared with a longer prompt. The slice is valid until the next Reset.
func (h *Hasher) Blocks() []uint64 { return h.blocks }

// Bytes returns how many bytes were written since Reset.
func (h *Hasher) Bytes() int { return h.total }

// Chain appends one block, given by any 64-bit hash of its content, to the chain
// and returns the new chained hash. Zero is kept free as "no block".
func Chain(chain, block uint64) uint64 {
	c := (bits.RotateLeft64(chain, 29) ^ block) * chainMul
	if c == 0 {
		return 1
	}
	return c
}

// Seed returns the start of the chain for prompts of one model, adapter and cache
// salt: equal text under different seeds shares no block. key is the router's
// secret; without it nobody can compute hashes that collide with another
// tenant's. The fields are length-separated: ("ab", "c") differs from ("a", "bc").
func Seed(key uint64, model, adapter, salt string) uint64 {
	s := xxh3.HashStringSeed(model, key)
	s = Chain(s, xxh3.HashStringSeed(adapter, key^1))
	return Chain(s, xxh3.HashStringSeed(salt, key^2))
}
