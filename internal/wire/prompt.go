// SPDX-License-Identifier: Apache-2.0

package wire

import (
	"encoding/binary"

	"github.com/zeebo/xxh3"

	"github.com/penstock-project/penstock/internal/prefix"
)

// Marks between the pieces of a prompt. They are control characters, which cannot
// stand in the text of a JSON string as it is written, so no text can fake them.
const (
	markRole    = "\x01" // before the role of a message
	markContent = "\x02" // before its content
	markPart    = "\x03" // between parts
	markMedia   = "\x04" // before the digest of an image, sound or file
	markTools   = "\x05" // before tool definitions and calls
)

// pieceKind says what a piece is and which mark stands before it.
type pieceKind uint8

const (
	pieceRole   pieceKind = iota // body[a:b], the role of the next message
	pieceText                    // body[a:b], text
	pieceStruct                  // body[a:b], tools, calls and the like, as JSON
	pieceMedia                   // a<<32 | b is a digest
)

// piece is one stretch of the prompt.
type piece struct {
	a, b uint32
	kind pieceKind
}

// maxPieces bounds the memory of a scan. What comes after so many messages and
// parts does not count for prefix routing.
const maxPieces = 1 << 16

// opaqueBytes is the length from which a part of an unknown kind without text is
// taken for media: no tool call that we know comes so without a text member.
const opaqueBytes = 16 << 10

func (p *parser) add(kind pieceKind, start, end int) {
	if len(p.s.pieces) < maxPieces {
		p.s.pieces = append(p.s.pieces, piece{uint32(start), uint32(end), kind})
	}
}

func (p *parser) addText(t text) {
	p.s.TextBytes += t.end - t.start - t.saved
	p.add(pieceText, t.start, t.end)
}

func (p *parser) addStruct(start, end int) {
	p.s.TextBytes += end - start
	p.add(pieceStruct, start, end)
}

func (p *parser) addMedia(start, end int) {
	h := xxh3.Hash(p.b[start:end])
	if p.s.Media++; len(p.s.media) < maxMediaSpans {
		p.s.media = append(p.s.media, Span{start, end})
	}
	if len(p.s.pieces) < maxPieces {
		p.s.pieces = append(p.s.pieces, piece{uint32(h >> 32), uint32(h), pieceMedia})
	}
}

// prompt reads a top-level member that holds a part of the prompt.
func (p *parser) prompt(id keyID) {
	from := len(p.s.pieces)
	r := regionMain
	switch id {
	case keySystem, keyInstructions:
		r = regionSystem
		p.content(&place{top: id, index: -1, part: -1}, 0)
	case keyTools:
		r = regionTools
		if start, end := p.skip(); p.err == nil && end-start > len("null") {
			p.addStruct(start, end)
			p.s.tools = Span{start, end}
		}
	case keyMessages:
		p.messages(id)
	case keyInput, keyPrompt, keyQuery, keyText1:
		p.texts(id)
	default:
		r = regionMore
		p.texts(id)
	}
	p.s.regions[r] = region{from, len(p.s.pieces)}
}

// texts reads a string, an array of strings, token numbers, or items like messages.
func (p *parser) texts(id keyID) {
	switch p.peek() {
	case '"':
		if t := p.str(); p.err == nil {
			p.addText(t)
		}
	case '[':
		p.items(id)
	default:
		p.skip()
	}
}

func (p *parser) messages(id keyID) {
	if p.peek() != '[' {
		p.skip()
		return
	}
	p.items(id)
}

// items reads an array of strings, numbers, arrays of numbers, or messages.
func (p *parser) items(id keyID) {
	where := place{top: id, index: -1, part: -1}
	from, pieces, tokens, batch := p.i, len(p.s.pieces), 0, 0
	for more := p.enter(']'); more; more = p.next(']') {
		where.index++
		switch c := p.peek(); {
		case c == '"':
			batch++
			if t := p.str(); p.err == nil {
				p.addText(t)
			}
		case c == '{':
			p.s.Messages++
			p.message(&where)
		case c == '[':
			batch++
			start := p.i
			if tokens += p.numbers(); p.err == nil {
				p.add(pieceStruct, start, p.i)
			}
		default:
			if p.skip(); c == '-' || c >= '0' && c <= '9' {
				tokens++
			}
		}
	}
	if id == keyPrompt {
		p.s.Prompts = max(1, batch)
	}
	if p.err == nil && tokens > 0 && p.s.TokenIDs == 0 {
		if len(p.s.pieces) == pieces {
			p.add(pieceStruct, from, p.i)
		}
		p.s.TokenIDs = tokens
	}
}

// numbers steps over an array and returns how many numbers it holds.
func (p *parser) numbers() int {
	n := 0
	for more := p.enter(']'); more; more = p.next(']') {
		if c := p.peek(); c == '-' || c >= '0' && c <= '9' {
			n++
		}
		p.skip()
	}
	return n
}

// message reads one message or input item.
func (p *parser) message(where *place) {
	start, from := p.i, len(p.s.pieces)
	p.add(pieceRole, 0, 0) // the role may come last, but counts first
	var seen keySet
	for more := p.enter('}'); more; more = p.next('}') {
		switch p.key(messageKeys, &seen, where) {
		case keyNone:
			if p.err == nil {
				p.skip()
			}
		case keyRole:
			if p.peek() != '"' {
				p.skip()
			} else if t := p.str(); p.err == nil && from < len(p.s.pieces) {
				p.s.pieces[from].a, p.s.pieces[from].b = uint32(t.start), uint32(t.end)
			}
		case keyToolCalls:
			if start, end := p.skip(); p.err == nil && end-start > len("null") {
				p.addStruct(start, end)
			}
		case keyName:
			p.optionalText()
		default: // content, output, arguments
			p.content(where, 0)
		}
	}
	if p.err == nil && len(p.s.pieces) == from+1 && !seen.has(keyRole) {
		p.opaque(start, p.i) // an input item of a kind of its own
	}
}

// opaque adds an object that had no member that we read.
func (p *parser) opaque(start, end int) {
	if end-start > opaqueBytes {
		p.addMedia(start, end)
	} else {
		p.addStruct(start, end)
	}
}

func (p *parser) optionalText() {
	if p.peek() != '"' {
		p.skip()
	} else if t := p.str(); p.err == nil {
		p.addText(t)
	}
}

// maxPartNesting is how deep parts inside of parts are told apart: a tool's result
// holds text and images in parts of its own.
const maxPartNesting = 3

// content reads the content of a message: a string, an array of parts, or null.
func (p *parser) content(where *place, nesting int) {
	switch c := p.peek(); {
	case c == '"':
		if t := p.str(); p.err == nil {
			p.addText(t)
		}
	case c == '[' && nesting < maxPartNesting:
		w := *where
		w.part = -1
		for more := p.enter(']'); more; more = p.next(']') {
			w.part++
			if p.peek() == '{' {
				p.part(&w, nesting)
			} else {
				p.optionalText()
			}
		}
	case c == '{' || c == '[':
		start, end := p.skip()
		if p.err == nil {
			p.opaque(start, end)
		}
	default:
		p.skip()
	}
}

// part reads one part of a message's content.
func (p *parser) part(where *place, nesting int) {
	start, from := p.i, len(p.s.pieces)
	var seen keySet
	var media Span
	for more := p.enter('}'); more; more = p.next('}') {
		switch id := p.key(partKeys, &seen, where); id {
		case keyNone:
			if p.err == nil {
				p.skip()
			}
		case keyType:
			p.skip()
		case keyText, keyThinking, keyName:
			p.optionalText()
		case keyContent:
			p.content(where, nesting+1)
		case keyPartInput:
			if start, end := p.skip(); p.err == nil {
				p.addStruct(start, end)
			}
		default:
			s, e := p.skip()
			media = Span{s, e}
		}
	}
	switch {
	case p.err != nil:
	case media.Len() > 0:
		p.addMedia(media.Start, media.End)
	case len(p.s.pieces) == from && from < maxPieces:
		p.opaque(start, p.i)
	}
}

// Feed writes the prompt of body into h, which the caller has reset with the seed
// of its model. body is what ScanRequest read.
func (s *Scan) Feed(body []byte, h *prefix.Hasher) {
	for _, r := range s.regions {
		afterRole := true
		for _, p := range s.pieces[r.from:r.to] {
			switch p.kind {
			case pieceRole:
				h.WriteString(markRole)
				h.Write(body[p.a:p.b])
				h.WriteString(markContent)
				afterRole = true
				continue
			case pieceText:
				if !afterRole {
					h.WriteString(markPart)
				}
				h.Write(body[p.a:p.b])
			case pieceStruct:
				h.WriteString(markTools)
				h.Write(body[p.a:p.b])
			case pieceMedia:
				var digest [8]byte
				binary.LittleEndian.PutUint32(digest[:], p.a)
				binary.LittleEndian.PutUint32(digest[4:], p.b)
				h.WriteString(markMedia)
				h.Write(digest[:])
			}
			afterRole = false
		}
		if r.to > r.from {
			h.WriteString(markRole)
		}
	}
}
