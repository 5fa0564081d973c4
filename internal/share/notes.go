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
//	           held      endpoint (8), flags (1), prompt, work, waited, fcfs (4 each, float);
//	                     with flagLeads the key by which others follow it (8), stride
//	                     (varint), number of marks (varint), marks (8 each); with
//	                     flagFollows the key of the one that it follows (8), line (1)
//	           cold      flags (1), prompt, waited, tokens in a block (4 each, float),
//	                     number of blocks (varint), blocks (8 each)
//	           progress  tokens (4, float)
//
// There are hashes and numbers in it: no text, no names. Routers below versionMeet do
// not know flagLeads and flagFollows, and are not sent what comes with them.
const (
	itemPool  = 0xF0
	itemReset = 0xF1

	flagStream  = 1
	flagLeads   = 2
	flagFollows = 4
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

// appendNote writes a note for a router of a version.
func appendNote(dst []byte, n *dispatch.Note, version int) []byte {
	dst = append(dst, byte(n.Kind))
	dst = binary.LittleEndian.AppendUint64(dst, uint64(n.Ticket))
	flags := byte(0)
	if n.Stream {
		flags |= flagStream
	}
	if n.Kind == dispatch.NoteHeld && version >= versionMeet {
		if n.Lead != 0 {
			flags |= flagLeads
		}
		if n.Follow != 0 {
			flags |= flagFollows
		}
	}
	switch n.Kind {
	case dispatch.NoteSent, dispatch.NoteHeld:
		dst = binary.LittleEndian.AppendUint64(dst, n.Key)
		dst = appendFloat(append(dst, flags), n.Prompt)
		if n.Kind == dispatch.NoteHeld {
			dst = appendFloat(appendFloat(appendFloat(dst, n.Work), n.Waited), n.FCFS)
			return appendMeet(dst, n, flags)
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

// appendMeet writes what a held request leads and follows by.
func appendMeet(dst []byte, n *dispatch.Note, flags byte) []byte {
	if flags&flagLeads != 0 {
		dst = binary.LittleEndian.AppendUint64(dst, n.Lead)
		dst = binary.AppendUvarint(dst, uint64(n.Stride))
		dst = appendBlocks(dst, n.Blocks[:min(len(n.Blocks), dispatch.MarksMost)])
	}
	if flags&flagFollows != 0 {
		dst = append(binary.LittleEndian.AppendUint64(dst, n.Follow), n.Line)
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
	blocks []uint64 // of the last note, reused for the one after the next
	spare  []uint64
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
// Blocks of the note are valid until the call after the next. It returns false at the end.
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
		flags := byte(0)
		if p := r.take(1); p != nil {
			flags = p[0]
		}
		n.Stream = flags&flagStream != 0
		n.Prompt = r.float()
		if n.Kind == dispatch.NoteHeld {
			n.Work, n.Waited, n.FCFS = r.float(), r.float(), r.float()
			r.meet(n, flags)
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

// meet reads what a held request leads and follows by.
func (r *noteReader) meet(n *dispatch.Note, flags byte) {
	if flags&flagLeads != 0 {
		n.Lead = r.fixed()
		stride, used := binary.Uvarint(r.b)
		if r.bad || used <= 0 || stride < 1 || stride > blocksMost {
			r.bad = true
			return
		}
		r.b, n.Stride = r.b[used:], int32(stride)
		if r.readBlocks(n); len(n.Blocks) > dispatch.MarksMost {
			r.bad = true
		}
	}
	if flags&flagFollows != 0 {
		n.Follow = r.fixed()
		if p := r.take(1); p != nil {
			n.Line = p[0]
		}
	}
}

func (r *noteReader) readBlocks(n *dispatch.Note) {
	count, used := binary.Uvarint(r.b)
	if r.bad || used <= 0 || count > blocksMost || int(count) > (len(r.b)-used)/8 {
		r.bad = true
		return
	}
	r.b = r.b[used:]
	r.blocks, r.spare = r.spare[:0], r.blocks
	for range count {
		r.blocks = append(r.blocks, binary.LittleEndian.Uint64(r.b))
		r.b = r.b[8:]
	}
	n.Blocks = r.blocks
}
