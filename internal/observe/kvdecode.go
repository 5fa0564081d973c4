// SPDX-License-Identifier: Apache-2.0

package observe

import (
	"bytes"
	"encoding/binary"
	"errors"
	"fmt"
	"io"

	"github.com/vmihailenco/msgpack/v5"
	"github.com/vmihailenco/msgpack/v5/msgpcode"
)

// kvEvent is one event of an engine's KV cache.
type kvEvent struct {
	kind   string // BlockStored, BlockRemoved, AllBlocksCleared
	hashes []uint64
	parent uint64
	child  bool // parent is set
	tokens []uint32
	block  int // tokens in a block
	lora   string
	extra  []string // extra keys of the first block: adapter, cache salt, hashes of images
	medium string
	group  int
	spec   string
}

// kvBatch is what one message carries.
type kvBatch struct {
	events []kvEvent
	rank   int
	bad    int // events that are there and cannot be read
}

// Bounds of one message: a step of an engine stores a few thousand blocks at most.
const (
	kvMostEvents = 1 << 16
	kvMostBlocks = 1 << 20
	kvMostTokens = 1 << 24
	kvMostExtra  = 1 << 12 // extra keys of a block
	kvMostDepth  = 6
)

var errKV = errors.New("malformed KV events")

// decodeKV reads a batch: [time, [event...], rank?] where an event is a map with its
// type or an array with the tag first. What is unknown is left out, and so is an event
// with a field of another type than is known: the others of its batch hold still.
func decodeKV(payload []byte) (b kvBatch, err error) {
	defer func() {
		if err != nil && !errors.Is(err, errKV) {
			err = fmt.Errorf("%w: %v", errKV, err)
		}
	}()
	r := bytes.NewReader(payload) // which the decoder reads without a buffer of its own
	d := msgpack.NewDecoder(r)
	n, err := d.DecodeArrayLen()
	if err != nil || n < 2 {
		return b, errKV
	}
	if err := kvSkip(d, 0); err != nil { // the time
		return b, err
	}
	events, err := d.DecodeArrayLen()
	if err != nil || events > kvMostEvents {
		return b, errKV
	}
	for range max(0, events) {
		start := r.Size() - int64(r.Len())
		e, err := decodeKVEvent(d)
		if err == nil {
			b.events = append(b.events, e)
			continue
		}
		b.bad++
		if _, err := r.Seek(start, io.SeekStart); err != nil {
			return b, err
		}
		if err := kvSkip(d, 0); err != nil {
			return b, err
		}
	}
	if n > 2 {
		if v, err := d.DecodeInt(); err == nil { // anything else is no rank
			b.rank = v
		}
	}
	return b, nil
}

// kvPositions are the names of the fields of an event in an array, after its tag.
var kvPositions = map[string][]string{
	"BlockStored": {"block_hashes", "parent_block_hash", "token_ids", "block_size", "lora_id", "medium", "lora_name", "extra_keys",
		"group_idx", "kv_cache_spec_kind"},
	"BlockRemoved": {"block_hashes", "medium", "group_idx"},
}

func decodeKVEvent(d *msgpack.Decoder) (e kvEvent, err error) {
	c, err := d.PeekCode()
	if err != nil {
		return e, err
	}
	if msgpcode.IsFixedMap(c) || c == msgpcode.Map16 || c == msgpcode.Map32 {
		n, err := d.DecodeMapLen()
		if err != nil || n > 64 {
			return e, errKV
		}
		for range n {
			name, err := d.DecodeString()
			if err != nil {
				return e, err
			}
			if err := e.field(d, name); err != nil {
				return e, err
			}
		}
		return e, nil
	}
	n, err := d.DecodeArrayLen()
	if err != nil || n < 1 || n > 64 {
		return e, errKV
	}
	if e.kind, err = d.DecodeString(); err != nil {
		return e, err
	}
	names := kvPositions[e.kind]
	for i := range n - 1 {
		name := ""
		if i < len(names) {
			name = names[i]
		}
		if err := e.field(d, name); err != nil {
			return e, err
		}
	}
	return e, nil
}

// field reads the value of one field.
func (e *kvEvent) field(d *msgpack.Decoder, name string) (err error) {
	switch name {
	case "type":
		e.kind, err = d.DecodeString()
	case "block_hashes":
		e.hashes, err = kvHashes(d)
	case "parent_block_hash":
		if kvNil(d) {
			return d.DecodeNil()
		}
		e.child = true
		e.parent, err = kvHash(d)
	case "token_ids":
		e.tokens, err = kvTokens(d)
	case "block_size":
		e.block, err = d.DecodeInt()
	case "lora_name":
		e.lora, err = kvString(d)
	case "medium":
		e.medium, err = kvString(d)
	case "kv_cache_spec_kind":
		e.spec, err = kvString(d)
	case "group_idx":
		if kvNil(d) {
			return d.DecodeNil()
		}
		e.group, err = d.DecodeInt()
	case "extra_keys":
		e.extra, err = kvExtra(d)
	default:
		err = kvSkip(d, 0)
	}
	return err
}

func kvNil(d *msgpack.Decoder) bool {
	c, err := d.PeekCode()
	return err == nil && c == msgpcode.Nil
}

func kvString(d *msgpack.Decoder) (string, error) {
	if kvNil(d) {
		return "", d.DecodeNil()
	}
	return d.DecodeString()
}

// kvHash reads a hash: a number, or bytes of which the last eight count.
func kvHash(d *msgpack.Decoder) (uint64, error) {
	c, err := d.PeekCode()
	if err != nil {
		return 0, err
	}
	if msgpcode.IsBin(c) || msgpcode.IsString(c) {
		b, err := d.DecodeBytes()
		if err != nil || len(b) == 0 {
			return 0, errKV
		}
		var last [8]byte
		copy(last[max(0, 8-len(b)):], b[max(0, len(b)-8):])
		return binary.BigEndian.Uint64(last[:]), nil
	}
	if c == msgpcode.Nil {
		return 0, errKV
	}
	v, err := d.DecodeInt64() // refuses what is no number; the largest ones wrap around
	return uint64(v), err
}

func kvHashes(d *msgpack.Decoder) ([]uint64, error) {
	n, err := d.DecodeArrayLen()
	if err != nil || n > kvMostBlocks {
		return nil, errKV
	}
	var out []uint64
	for range max(0, n) {
		h, err := kvHash(d)
		if err != nil {
			return nil, err
		}
		out = append(out, h)
	}
	return out, nil
}

func kvTokens(d *msgpack.Decoder) ([]uint32, error) {
	n, err := d.DecodeArrayLen()
	if err != nil || n > kvMostTokens {
		return nil, errKV
	}
	var out []uint32
	for range max(0, n) {
		v, err := d.DecodeInt64()
		if err != nil {
			return nil, err
		}
		out = append(out, uint32(v))
	}
	return out, nil
}

// kvExtra reads the extra keys and keeps those of the first block.
func kvExtra(d *msgpack.Decoder) ([]string, error) {
	if kvNil(d) {
		return nil, d.DecodeNil()
	}
	n, err := d.DecodeArrayLen()
	if err != nil || n > kvMostBlocks {
		return nil, errKV
	}
	var first []string
	for i := range max(0, n) {
		if i > 0 || kvNil(d) {
			if err := kvSkip(d, 0); err != nil {
				return nil, err
			}
			continue
		}
		v, err := kvValue(d, 0)
		if err != nil {
			return nil, err
		}
		list, ok := v.([]any)
		if !ok {
			list = []any{v}
		}
		for _, x := range list {
			if x != nil {
				first = append(first, fmt.Sprint(x))
			}
		}
	}
	return first, nil
}

// kvValue reads a value of bounded depth: the library's own reader of any value makes
// room for as many members as an array claims to have, and calls itself without end.
// Maps and extensions are nil.
func kvValue(d *msgpack.Decoder, depth int) (any, error) {
	c, err := d.PeekCode()
	switch {
	case err != nil:
		return nil, err
	case msgpcode.IsFixedArray(c) || c == msgpcode.Array16 || c == msgpcode.Array32:
		n, err := d.DecodeArrayLen()
		if err != nil || n > kvMostExtra || depth > kvMostDepth {
			return nil, errKV
		}
		out := []any{}
		for range n {
			v, err := kvValue(d, depth+1)
			if err != nil {
				return nil, err
			}
			out = append(out, v)
		}
		return out, nil
	case msgpcode.IsFixedMap(c) || c == msgpcode.Map16 || c == msgpcode.Map32 || msgpcode.IsExt(c):
		return nil, kvSkip(d, depth)
	}
	return d.DecodeInterface()
}

// kvSkip passes over a value whose depth is bounded.
func kvSkip(d *msgpack.Decoder, depth int) error {
	if depth > kvMostDepth {
		return errKV
	}
	c, err := d.PeekCode()
	if err != nil {
		return err
	}
	switch {
	case msgpcode.IsFixedArray(c) || c == msgpcode.Array16 || c == msgpcode.Array32:
		n, err := d.DecodeArrayLen()
		if err != nil || n > kvMostTokens {
			return errKV
		}
		for range n {
			if err := kvSkip(d, depth+1); err != nil {
				return err
			}
		}
		return nil
	case msgpcode.IsFixedMap(c) || c == msgpcode.Map16 || c == msgpcode.Map32:
		n, err := d.DecodeMapLen()
		if err != nil || n > kvMostTokens {
			return errKV
		}
		for range 2 * n {
			if err := kvSkip(d, depth+1); err != nil {
				return err
			}
		}
		return nil
	}
	return d.Skip()
}
