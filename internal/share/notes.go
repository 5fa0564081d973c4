// SPDX-License-Identifier: Apache-2.0

package share

import (
	"encoding/binary"
	"errors"
	"math"

	"github.com/penstock-project/penstock/internal/dispatch"
)

// What one router tells another is a stream of items, all numbers little endian:
//
//	itemPool   8 bytes: hash of the name of the pool that the next items are about
//	itemReset  nothing: forget what was told about the pool; all of it follows
//	itemWant, itemIndex  see index.go
//	a note     its kind (1 byte), the ticket (8), then by kind
//	           sent      endpoint (8), flags (1), prompt, uncached, tokens in a block
//	                     (4 each, float), number of blocks (varint), blocks (8 each)
//	           held      endpoint (8), flags (1), prompt, work, waited, fcfs (4 each, float)
//	           cold      flags (1), prompt, waited, tokens in a block (4 each, float),
//	                     number of blocks (varint), blocks (8 each)
//	           progress  tokens (4, float)
//
// There are hashes and numbers in it: no text, no names.
const (
	itemPool  = 0xF0
	itemReset = 0xF1

	flagStream = 1
	// blocksMost bounds the blocks of one note: 64 MiB of text.
	blocksMost = 1 << 17
)

var errNotes = errors.New("malformed notes")

func appendPool(dst []byte, pool uint64) []byte {
	return binary.LittleEndian.AppendUint64(append(dst, itemPool), pool)
}

func appendFloat(dst []byte, v float64) []byte {
	return binary.LittleEndian.AppendUint32(dst, math.Float32bits(float32(v)))
}

func appendNote(dst []byte, n *dispatch.Note) []byte {
	dst = append(dst, byte(n.Kind))
	dst = binary.LittleEndian.AppendUint64(dst, uint64(n.Ticket))
	flags := byte(0)
	if n.Stream {
		flags |= flagStream
	}
	switch n.Kind {
	case dispatch.NoteSent, dispatch.NoteHeld:
		dst = binary.LittleEndian.AppendUint64(dst, n.Key)
		dst = appendFloat(append(dst, flags), n.Prompt)
		if n.Kind == dispatch.NoteHeld {
			return appendFloat(appendFloat(appendFloat(dst, n.Work), n.Waited), n.FCFS)
		}
		return appendBlocks(appendFloat(appendFloat(dst, n.Uncached), n.BlockTokens), n.Blocks)
	case dispatch.NoteCold:
		dst = appendFloat(append(dst, flags), n.Prompt)
		return appendBlocks(appendFloat(appendFloat(dst, n.Waited), n.BlockTokens), n.Blocks)
	case dispatch.NoteProgress:
		dst = appendFloat(dst, n.Tokens)
	}
	return dst
}

func appendBlocks(dst []byte, blocks []uint64) []byte {
	blocks = blocks[:min(len(blocks), blocksMost)]
	dst = binary.AppendUvarint(dst, uint64(len(blocks)))
	for _, b := range blocks {
		dst = binary.LittleEndian.AppendUint64(dst, b)
	}
	return dst
}

// noteReader reads items and stays bad after the first malformed one.
type noteReader struct {
	b      []byte
	bad    bool
	blocks []uint64 // reused from note to note
}

func (r *noteReader) take(n int) []byte {
	if r.bad || n > len(r.b) {
		r.bad = true
		return nil
	}
	p := r.b[:n]
	r.b = r.b[n:]
	return p
}

func (r *noteReader) fixed() uint64 {
	if p := r.take(8); p != nil {
		return binary.LittleEndian.Uint64(p)
	}
	return 0
}

// float reads a number that is finite and not negative.
func (r *noteReader) float() float64 {
	p := r.take(4)
	if p == nil {
		return 0
	}
	v := float64(math.Float32frombits(binary.LittleEndian.Uint32(p)))
	if !(v >= 0 && v <= math.MaxInt32) {
		r.bad = true
		return 0
	}
	return v
}

// next reads one item: a note, or with kind itemPool and itemReset something else.
// Blocks of the note are valid until the next call. It returns false at the end.
func (r *noteReader) next(n *dispatch.Note) (item byte, pool uint64, ok bool) {
	if len(r.b) == 0 || r.bad {
		return 0, 0, false
	}
	item = r.take(1)[0]
	switch item {
	case itemPool:
		return item, r.fixed(), !r.bad
	case itemReset, itemWant, itemIndex:
		return item, 0, true
	}
	*n = dispatch.Note{Kind: dispatch.NoteKind(item), Ticket: dispatch.Ticket(r.fixed())}
	switch n.Kind {
	case dispatch.NoteSent, dispatch.NoteHeld, dispatch.NoteCold:
		if n.Kind != dispatch.NoteCold {
			n.Key = r.fixed()
		}
		if p := r.take(1); p != nil {
			n.Stream = p[0]&flagStream != 0
		}
		n.Prompt = r.float()
		if n.Kind == dispatch.NoteHeld {
			n.Work, n.Waited, n.FCFS = r.float(), r.float(), r.float()
			break
		}
		if n.Kind == dispatch.NoteCold {
			n.Waited = r.float()
		} else {
			n.Uncached = r.float()
		}
		n.BlockTokens = r.float()
		r.readBlocks(n)
	case dispatch.NoteProgress:
		n.Tokens = r.float()
	case dispatch.NoteFirst, dispatch.NoteEnd, dispatch.NoteReleased:
	default:
		r.bad = true
	}
	return item, 0, !r.bad
}

func (r *noteReader) readBlocks(n *dispatch.Note) {
	count, used := binary.Uvarint(r.b)
	if r.bad || used <= 0 || count > blocksMost || int(count) > (len(r.b)-used)/8 {
		r.bad = true
		return
	}
	r.b = r.b[used:]
	r.blocks = r.blocks[:0]
	for range count {
		r.blocks = append(r.blocks, binary.LittleEndian.Uint64(r.b))
		r.b = r.b[8:]
	}
	n.Blocks = r.blocks
}
