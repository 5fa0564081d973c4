// SPDX-License-Identifier: Apache-2.0

package wire

// json pushes p[i:end] through the machine. Positions in p matter for the
// replacement of the model's name.
func (s *AnswerScanner) json(p []byte, i, end int) {
	m := &s.m
	p = p[:end]
	for i < len(p) {
		switch m.state {
		case inString:
			i = s.inString(p, i)
		case inSkip:
			i = m.inSkip(p, i)
		case inNumber:
			i = m.inNumber(p, i)
		case inDone:
			i = m.inDone(p, i)
		case atRest:
			return
		default:
			i = s.between(p, i)
		}
	}
}

// between handles one byte outside of strings and numbers.
func (s *AnswerScanner) between(p []byte, i int) int {
	m := &s.m
	c := p[i]
	switch c {
	case ' ', '\t', '\n', '\r':
		return i + 1
	case '"':
		s.openString(p, i)
		return i + 1
	case '{', '[':
		if m.state == wantValue {
			m.open(c)
		}
		return i + 1
	case '}', ']':
		m.end()
		return i + 1
	case ',':
		m.comma()
		return i + 1
	case ':':
		if m.state == wantColon {
			m.state = wantValue
		}
		return i + 1
	}
	if m.state != wantValue && m.state != inLiteral {
		return i + 1
	}
	if c == '-' || c >= '0' && c <= '9' {
		m.state, m.num, m.numLen = inNumber, 0, 0
		return i
	}
	// true, false, null; false and null say nothing anywhere.
	if c == 't' && m.state == wantValue && m.slot == slotDetail {
		m.detail = true
	}
	m.state = inLiteral
	return i + 1
}

// openString decides what the string that begins at p[i] is for.
func (s *AnswerScanner) openString(p []byte, i int) {
	m := &s.m
	use := useNothing
	switch {
	case m.state == wantKey:
		use, m.keyLen = useKey, 0
	case m.state != wantValue:
	default:
		use = s.valueUse()
	}
	m.state, m.str, m.escaped = inString, use, false
	if use == useModel && s.alias != nil {
		s.out = append(s.out, p[s.from:i]...)
		s.out = append(s.out, s.alias...)
		s.swallow, s.replaced = true, true
	}
}

func (s *AnswerScanner) valueUse() stringUse {
	m := &s.m
	switch m.slot {
	case slotObject, slotFinish, slotStatus, slotErrorCode:
		m.keyLen = 0
		return useValue
	case slotKind:
		m.kindLen = 0
		return useValue
	case slotErrorType:
		m.errTypeLen = 0
		return useValue
	case slotID:
		m.idLen = 0
		return useValue
	case slotText:
		return useText
	case slotModel:
		return useModel
	case slotError:
		m.sawError = true
	case slotDetail:
		m.detail = true
	}
	return useNothing
}

// inString goes on in a string.
func (s *AnswerScanner) inString(p []byte, i int) int {
	m := &s.m
	for i < len(p) {
		if m.escaped {
			m.escaped = false
			m.take(p[i : i+1])
			i++
			continue
		}
		j := plainRun(p, i)
		if j > i {
			m.take(p[i:j])
		}
		if j == len(p) {
			return j
		}
		i = j + 1
		switch p[j] {
		case '"':
			s.closeString(i)
			return i
		case '\\':
			m.escaped = true
			m.take(p[j:i])
		}
	}
	return i
}

// take keeps bytes of a string as far as they matter.
func (m *machine) take(b []byte) {
	switch m.str {
	case useText:
		m.content = true
	case useKey:
		m.keyLen = keep(m.key[:], m.keyLen, b)
	case useValue:
		switch m.slot {
		case slotKind:
			m.kindLen = keepStart(m.kind[:], m.kindLen, b)
		case slotErrorType:
			m.errTypeLen = keepStart(m.errType[:], m.errTypeLen, b)
		case slotID:
			m.idLen = keepStart(m.id[:], m.idLen, b)
		default:
			m.keyLen = keep(m.key[:], m.keyLen, b)
		}
	}
}

// keep appends b to buf[:n], or gives up with -1 where it does not fit.
func keep(buf []byte, n int, b []byte) int {
	if n < 0 || n+len(b) > len(buf) {
		return -1
	}
	return n + copy(buf[n:], b)
}

// keepStart appends as much of b as fits.
func keepStart(buf []byte, n int, b []byte) int { return n + copy(buf[n:], b) }

// closeString ends the string whose last quote stands before p[i].
func (s *AnswerScanner) closeString(i int) {
	m := &s.m
	switch m.str {
	case useSkip:
		m.state = inSkip
		return
	case useKey:
		m.slot, m.state = slotNone, wantColon
		if m.keyLen >= 0 && m.sp > 0 {
			m.slot = slotOf(m.stack[m.sp-1], string(m.key[:m.keyLen]))
		}
		return
	case useValue:
		m.stringValue()
	case useModel:
		if s.swallow {
			s.swallow = false
			s.from = i
		}
	}
	m.state = wantComma
	if m.sp == 0 {
		m.state = atRest
	}
}

// inSkip goes on in a value that nobody reads.
func (m *machine) inSkip(p []byte, i int) int {
	for i < len(p) {
		if i = skipRun(p, i); i == len(p) {
			return i
		}
		c := p[i]
		i++
		switch c {
		case '"':
			m.state, m.str, m.escaped = inString, useSkip, false
			return i
		case '{', '[':
			m.skip++
		case '}', ']':
			if m.skip--; m.skip == 0 {
				m.state = wantComma
				return i
			}
		}
	}
	return i
}

// inNumber goes on in a number; fractions and exponents end its integer part.
func (m *machine) inNumber(p []byte, i int) int {
	for ; i < len(p); i++ {
		switch c := p[i]; {
		case c >= '0' && c <= '9':
			if m.numLen++; m.numLen <= 12 {
				m.num = m.num*10 + int(c-'0')
			}
		case c == '.' || c|0x20 == 'e':
			m.numLen = 13
		case c == '-' || c == '+':
			if m.numLen == 0 {
				m.num, m.numLen = -1, 13 // a negative count is none
			}
		default:
			m.number()
			m.state = wantComma
			if m.sp == 0 {
				m.state = atRest
			}
			return i
		}
	}
	return i
}

const doneMark = "[DONE]"

func (m *machine) inDone(p []byte, i int) int {
	for ; i < len(p); i++ {
		if m.donePos == len(doneMark) {
			return i + 1
		}
		if p[i] != doneMark[m.donePos] {
			m.state = atRest
			return i
		}
		if m.donePos++; m.donePos == len(doneMark) {
			m.done = true
			m.state = atRest
		}
	}
	return i
}
