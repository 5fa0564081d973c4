// SPDX-License-Identifier: Apache-2.0

package replica

import (
	"encoding/binary"
	"slices"
	"strconv"

	"github.com/zeebo/xxh3"
)

// The tokenizer of the simulated model: up to four ASCII bytes a token, other bytes
// in pairs, cut from the start of each piece of text. Real vocabularies differ, but
// the ratio is theirs, equal text has equal tokens, a prefix of a conversation has a
// prefix of its tokens, and an id tells its bytes, so that /detokenize needs no table.
const (
	tokenBytes = 4
	maxASCII   = 129 * 129 * 129 * 129 // ids of ASCII tokens end here
	firstASCII = 256                   // ids below are special
	firstHigh  = firstASCII + maxASCII
	vocabulary = firstHigh + 129*129
)

// Special tokens.
const (
	tokBegin uint32 = iota + 1
	tokHead
	tokHeadEnd
	tokEnd
	tokTools
	tokImage
	tokPad
)

var specialText = [...]string{"", "<|begin|>", "<|head|>", "<|/head|>", "<|end|>", "<|tools|>", "<|image|>", "<|pad|>"}

// appendTokens appends the tokens of text to dst.
func appendTokens(dst []uint32, text string) []uint32 {
	dst = slices.Grow(dst, len(text)/tokenBytes+1)
	for i := 0; i < len(text); {
		var id uint32
		if text[i] >= 0x80 {
			id = uint32(text[i]-0x80) + 1
			i++
			second := uint32(0)
			if i < len(text) && text[i] >= 0x80 {
				second = uint32(text[i]-0x80) + 1
				i++
			}
			dst = append(dst, firstHigh+id*129+second)
			continue
		}
		n := 0
		for n < tokenBytes && i < len(text) && text[i] < 0x80 {
			id = id*129 + uint32(text[i]) + 1
			i++
			n++
		}
		dst = append(dst, firstASCII+id)
	}
	return dst
}

// appendText appends the bytes that a token stands for; unknown ids become
// "<|id|>".
func appendText(dst []byte, id uint32) []byte {
	switch {
	case id < uint32(len(specialText)):
		return append(dst, specialText[id]...)
	case id >= firstHigh && id < vocabulary:
		id -= firstHigh
		dst = append(dst, byte(id/129-1)+0x80)
		if second := id % 129; second > 0 {
			dst = append(dst, byte(second-1)+0x80)
		}
		return dst
	case id > firstASCII && id < firstHigh:
		var b [tokenBytes]byte
		n := len(b)
		for id -= firstASCII; id > 0; id /= 129 {
			n--
			b[n] = byte(id%129 - 1)
		}
		return append(dst, b[n:]...)
	default:
		dst = append(dst, "<|"...)
		dst = strconv.AppendUint(dst, uint64(id), 10)
		return append(dst, "|>"...)
	}
}

// appendHead appends the tokens that open a message of a role.
func appendHead(dst []uint32, role string) []uint32 {
	dst = append(dst, tokHead)
	dst = appendTokens(dst, role)
	return append(dst, tokHeadEnd)
}

// imageTokens is what one image part counts, whatever its size.
const imageTokens = 256

func appendImage(dst []uint32, ref string) []uint32 {
	h := xxh3.HashString(ref)
	for range imageTokens {
		h = h*0x9e3779b97f4a7c15 + 1
		dst = append(dst, firstASCII+uint32(h>>40))
	}
	return append(dst, tokImage)
}

// chainSeed is what the chain of block hashes starts from: prompts of another
// adapter or cache salt share nothing.
func chainSeed(adapter, salt string) uint64 {
	return xxh3.HashString(strconv.Itoa(len(adapter)) + ":" + adapter + salt)
}

// appendBlocks appends the chained hashes of the whole blocks of tokens, block
// tokens each.
func appendBlocks(dst []uint64, seed uint64, tokens []uint32, block int) []uint64 {
	buf := make([]byte, 8+4*block)
	for h := seed; len(tokens) >= block; tokens = tokens[block:] {
		binary.LittleEndian.PutUint64(buf, h)
		for i, id := range tokens[:block] {
			binary.LittleEndian.PutUint32(buf[8+4*i:], id)
		}
		h = xxh3.Hash(buf)
		dst = append(dst, h)
	}
	return dst
}
