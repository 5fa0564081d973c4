// SPDX-License-Identifier: Apache-2.0

package wire

import (
	"encoding/binary"
	"math/bits"
)

// Eight bytes at a time, for the search in strings.
const (
	lanes01 = 0x0101010101010101
	lanes80 = 0x8080808080808080
	lanes02 = 0x0202020202020202
	lanes21 = 0x2121212121212121
	lanes5c = 0x5c5c5c5c5c5c5c5c
)

// stops marks, in the high bit of its lane, the lowest byte of x that ends a plain
// run inside a JSON string: a quote, a backslash or a control character. Lanes
// above the lowest mark may be wrong (the subtraction borrows), so only the lowest
// one counts. x^2 maps the quote to 0x20, right above the control characters.
func stops(x uint64) uint64 {
	return (((x ^ lanes02) - lanes21) | ((x ^ lanes5c) - lanes01)) & ^x & lanes80
}

// plainRun returns the index of the first byte at or after i that is a quote, a
// backslash or a control character; len(b) where there is none.
func plainRun(b []byte, i int) int {
	for i+32 <= len(b) {
		q := b[i : i+32 : i+32]
		m0 := stops(binary.LittleEndian.Uint64(q))
		m1 := stops(binary.LittleEndian.Uint64(q[8:]))
		m2 := stops(binary.LittleEndian.Uint64(q[16:]))
		m3 := stops(binary.LittleEndian.Uint64(q[24:]))
		if m0|m1|m2|m3 == 0 {
			i += 32
			continue
		}
		switch {
		case m0 != 0:
			return i + bits.TrailingZeros64(m0)>>3
		case m1 != 0:
			return i + 8 + bits.TrailingZeros64(m1)>>3
		case m2 != 0:
			return i + 16 + bits.TrailingZeros64(m2)>>3
		}
		return i + 24 + bits.TrailingZeros64(m3)>>3
	}
	for i+8 <= len(b) {
		if m := stops(binary.LittleEndian.Uint64(b[i:])); m != 0 {
			return i + bits.TrailingZeros64(m)>>3
		}
		i += 8
	}
	for i < len(b) && b[i] != '"' && b[i] != '\\' && b[i] >= 0x20 {
		i++
	}
	return i
}

// parser walks one JSON text. The first error sticks: after it every method
// returns at once, so that callers test it where it matters only.
type parser struct {
	b        []byte
	i        int
	depth    int
	maxDepth int
	err      *BadRequest
	s        *Scan
}

func (p *parser) fail(msg string) {
	if p.err == nil {
		p.err = &BadRequest{Message: "the body is not valid JSON: " + msg, Offset: p.i, Code: CodeInvalidJSON}
	}
}

func (p *parser) space() {
	for p.i < len(p.b) {
		switch p.b[p.i] {
		case ' ', '\n', '\t', '\r':
			p.i++
		default:
			return
		}
	}
}

// peek returns the first byte of the next token, 0 at the end.
func (p *parser) peek() byte {
	p.space()
	if p.i < len(p.b) {
		return p.b[p.i]
	}
	return 0
}

// enter steps over the opening bracket that peek saw and reports whether the
// container has a member.
func (p *parser) enter(end byte) bool {
	if p.depth++; p.depth > p.maxDepth {
		p.fail("nested too deeply")
		return false
	}
	p.i++
	if p.peek() == end {
		p.i++
		p.depth--
		return false
	}
	return p.err == nil
}

// next steps over what follows a member and reports whether another one comes.
func (p *parser) next(end byte) bool {
	if p.err != nil {
		return false
	}
	switch c := p.peek(); c {
	case ',':
		p.i++
		p.space()
		return true
	case end:
		p.i++
		p.depth--
	case 0:
		p.fail("unexpected end")
	default:
		p.fail("expected a comma or the end of an array or object")
	}
	return false
}

// text is a scanned string: the span between its quotes, and how many bytes the
// escapes in it take more than what they stand for.
type text struct {
	start, end int
	saved      int
}

func (t text) escaped() bool { return t.saved > 0 }

// str scans the string whose opening quote peek saw.
func (p *parser) str() text {
	if p.i >= len(p.b) || p.b[p.i] != '"' {
		p.fail("expected a string")
		return text{}
	}
	t := text{start: p.i + 1}
	b, i := p.b, p.i+1
	for {
		i = plainRun(b, i)
		if i >= len(b) {
			p.i = i
			p.fail("a string does not end")
			return text{}
		}
		switch b[i] {
		case '"':
			t.end, p.i = i, i+1
			return t
		case '\\':
			n, saved := escape(b[i:])
			if n == 0 {
				p.i = i
				p.fail("bad escape in a string")
				return text{}
			}
			i += n
			t.saved += saved
		default:
			p.i = i
			p.fail("control character in a string")
			return text{}
		}
	}
}

// escape returns the length of the escape that b begins with and how many bytes
// longer it is than the UTF-8 it stands for; 0 where it is no escape. Half of a
// surrogate pair counts as two bytes.
func escape(b []byte) (n, saved int) {
	if len(b) < 2 {
		return 0, 0
	}
	switch b[1] {
	case '"', '\\', '/', 'b', 'f', 'n', 'r', 't':
		return 2, 1
	case 'u':
		if len(b) < 6 {
			return 0, 0
		}
		r := hex4(b[2:6])
		switch {
		case r < 0:
			return 0, 0
		case r < 0x80:
			return 6, 5
		case r < 0x800 || r >= 0xd800 && r < 0xe000:
			return 6, 4
		}
		return 6, 3
	}
	return 0, 0
}

func hex4(b []byte) rune {
	var r rune
	for _, c := range b[:4] {
		switch {
		case c >= '0' && c <= '9':
			c -= '0'
		case c|0x20 >= 'a' && c|0x20 <= 'f':
			c = c | 0x20 - 'a' + 10
		default:
			return -1
		}
		r = r<<4 | rune(c)
	}
	return r
}

// number steps over a number.
func (p *parser) number() {
	b, i := p.b, p.i
	digits := func() bool {
		from := i
		for i < len(b) && b[i] >= '0' && b[i] <= '9' {
			i++
		}
		return i > from
	}
	if i < len(b) && b[i] == '-' {
		i++
	}
	ok := true
	if i < len(b) && b[i] == '0' {
		i++
	} else {
		ok = digits()
	}
	if ok && i < len(b) && b[i] == '.' {
		i++
		ok = digits()
	}
	if ok && i < len(b) && b[i]|0x20 == 'e' {
		i++
		if i < len(b) && (b[i] == '+' || b[i] == '-') {
			i++
		}
		ok = digits()
	}
	p.i = i
	if !ok {
		p.fail("bad number")
	}
}

func (p *parser) literal(word string) {
	if len(p.b)-p.i < len(word) || string(p.b[p.i:p.i+len(word)]) != word {
		p.fail("unexpected character")
		return
	}
	p.i += len(word)
}

// scalar steps over a string, number or literal whose first byte is c.
func (p *parser) scalar(c byte) {
	switch {
	case c == '"':
		p.str()
	case c == '-' || c >= '0' && c <= '9':
		p.number()
	case c == 't':
		p.literal("true")
	case c == 'f':
		p.literal("false")
	case c == 'n':
		p.literal("null")
	case c == 0 && p.i >= len(p.b):
		p.fail("unexpected end")
	default:
		p.fail("unexpected character")
	}
}

// skip steps over one value and returns its span.
func (p *parser) skip() (start, end int) {
	c := p.peek()
	start = p.i
	if c == '{' || c == '[' {
		p.container(c)
	} else {
		p.scalar(c)
	}
	return start, p.i
}

// maxNesting is the most that container can follow: one bit a level.
const maxNesting = 1024

// container steps over an array or object and all that is in it, without recursion.
func (p *parser) container(c byte) {
	var objects [maxNesting / 64]uint64 // bit d: level d is an object
	base := p.depth
	for p.err == nil {
		// Here c begins a value.
		if c == '{' || c == '[' {
			end := c + 2
			if p.enter(end) {
				d := uint(p.depth - 1)
				if c == '{' {
					objects[d/64] |= 1 << (d % 64)
					p.anyKey()
				} else {
					objects[d/64] &^= 1 << (d % 64)
				}
				c = p.peek()
				continue
			}
		} else {
			p.scalar(c)
		}
		// Here a value has ended: close what ends with it.
		for {
			if p.depth == base || p.err != nil {
				return
			}
			d := uint(p.depth - 1)
			object := objects[d/64]&(1<<(d%64)) != 0
			end := byte(']')
			if object {
				end = '}'
			}
			if p.next(end) {
				if object {
					p.anyKey()
				}
				c = p.peek()
				break
			}
		}
	}
}

// anyKey steps over a key that nobody reads and its colon.
func (p *parser) anyKey() {
	p.str()
	p.colon()
}

func (p *parser) colon() {
	if p.peek() != ':' {
		p.fail("expected a colon after a key")
		return
	}
	p.i++
}
