// SPDX-License-Identifier: Apache-2.0

package wire

import (
	"bytes"
	"slices"
)

// Edit replaces a range of a body.
type Edit struct {
	At  Span
	New string
}

// Splice makes the edits, which must not overlap, and returns the body in two
// parts: up to the last edit, in new memory, and the untouched rest of body.
func Splice(body []byte, edits []Edit) (head, tail []byte) {
	slices.SortFunc(edits, func(a, b Edit) int { return a.At.Start - b.At.Start })
	from, size := 0, 0
	for _, e := range edits {
		size += e.At.Start - from + len(e.New)
		from = e.At.End
	}
	head, from = make([]byte, 0, size), 0
	for _, e := range edits {
		head = append(head, body[from:e.At.Start]...)
		head = append(head, e.New...)
		from = e.At.End
	}
	return head, body[from:]
}

// first is the place behind the brace that opens the body.
func (s *Scan) first() Span { return Span{s.open + 1, s.open + 1} }

// comma is what follows a member that is inserted in front of all others.
func (s *Scan) comma() string {
	if s.bare {
		return ""
	}
	return ","
}

// AskUsage is the edit that makes an engine tell the usage at the end of a stream.
// Everything else that the client asked of stream_options stays.
func (s *Scan) AskUsage() Edit {
	switch {
	case s.UsageSpan.Len() > 0:
		return Edit{s.UsageSpan, "true"}
	case s.OptionsSpan.Len() == 0:
		return Edit{s.first(), `"stream_options":{"include_usage":true}` + s.comma()}
	case s.optionsOpen > 0:
		at := Span{s.optionsOpen, s.optionsOpen}
		if s.optionsBare {
			return Edit{at, `"include_usage":true`}
		}
		return Edit{at, `"include_usage":true,`}
	}
	return Edit{s.OptionsSpan, `{"include_usage":true}`} // null, or nothing that an engine takes
}

// SetSalt is the edit that puts a salt in the place of the client's, or in front of
// all where it sent none.
func (s *Scan) SetSalt(salt string) Edit {
	v := string(AppendString(nil, salt))
	if s.SaltSpan.Len() > 0 {
		return Edit{s.SaltSpan, v}
	}
	return Edit{s.first(), `"cache_salt":` + v + s.comma()}
}

// UsageStripper takes out of an event stream what an engine added because AskUsage
// asked for it: the last event with the usage and no choices, and "usage":null in
// the others. All other bytes pass as they came. The zero value is ready.
type UsageStripper struct {
	hold    []byte // of the event that is not complete
	out     []byte
	line    int  // bytes of the current line
	cr      bool // the last byte was a carriage return
	swallow bool // a line feed that follows belongs to an event that was dropped
	pass    bool // the event is too long to be held
}

// maxEvent bounds an event that is looked at as a whole, in bytes. The event with
// the usage is far smaller.
const maxEvent = 256 << 10

var usageName = []byte(`"usage"`)

// Reset starts a new answer.
func (s *UsageStripper) Reset() { *s = UsageStripper{hold: s.hold[:0], out: s.out[:0]} }

// Feed takes the next bytes and returns what goes to the client, valid until the
// next call.
func (s *UsageStripper) Feed(p []byte) []byte {
	if len(s.hold) == 0 && !s.pass && s.line == 0 && !s.cr && bytes.HasSuffix(p, []byte("\n\n")) && !bytes.Contains(p, usageName) {
		return p
	}
	s.out = s.out[:0]
	from := 0
	for i := 0; i < len(p); i++ {
		c := p[i]
		if c == '\n' && s.cr {
			s.cr = false
			if s.swallow {
				from = i + 1
			} else if len(s.hold) == 0 && from == i {
				s.out = append(s.out, c) // the second half of the end of the last event
				from = i + 1
			}
			s.swallow = false
			continue
		}
		s.cr, s.swallow = c == '\r', false
		if c != '\n' && c != '\r' {
			s.line++
			continue
		}
		blank := s.line == 0
		s.line = 0
		if blank {
			s.event(p[from : i+1])
			from = i + 1
		}
	}
	s.keep(p[from:])
	return s.out
}

// keep holds the beginning of an event.
func (s *UsageStripper) keep(p []byte) {
	switch {
	case s.pass:
		s.out = append(s.out, p...)
	case len(s.hold)+len(p) > maxEvent:
		s.out = append(append(s.out, s.hold...), p...)
		s.hold, s.pass = s.hold[:0], true
	default:
		s.hold = append(s.hold, p...)
	}
}

// event ends an event with its last bytes.
func (s *UsageStripper) event(p []byte) {
	if s.pass {
		s.pass = false
		s.out = append(s.out, p...)
		return
	}
	whole := p
	if len(s.hold) > 0 {
		s.hold = append(s.hold, p...)
		whole = s.hold
	}
	n := len(s.out)
	if len(whole) > maxEvent {
		s.out = append(s.out, whole...) // however it was cut into reads
	} else {
		s.out = appendStripped(s.out, whole)
	}
	s.swallow = len(s.out) == n && s.cr
	s.hold = s.hold[:0]
}

// Rest returns what is held of an event that never ended.
func (s *UsageStripper) Rest() []byte {
	r := appendStripped(nil, s.hold)
	s.hold = s.hold[:0]
	return r
}

// appendStripped appends an event without what AskUsage brought.
func appendStripped(dst, ev []byte) []byte {
	if !bytes.Contains(ev, usageName) {
		return append(dst, ev...)
	}
	at := bytes.IndexByte(ev, '{')
	if at < 0 || !bytes.HasPrefix(bytes.TrimLeft(ev, "\r\n"), []byte(dataField)) {
		return append(dst, ev...)
	}
	m := members{b: ev, i: at + 1}
	var usage, cut Span
	choices := true // there are none
	for before := at + 1; m.next(); before = m.end {
		switch string(m.name) {
		case "usage":
			usage = Span{m.value, m.end}
			cut = Span{before, m.end} // with the comma in front
			if ev[before] != ',' {
				if cut = (Span{m.start, m.end}); m.i < len(ev) && ev[m.i] == ',' {
					cut.End = m.i + 1
				}
			}
		case "choices":
			v := bytes.ReplaceAll(ev[m.value:m.end], []byte(" "), nil)
			choices = string(v) == "[]" || string(v) == "null"
		}
	}
	switch {
	case usage.Len() == 0 || m.broken:
	case string(ev[usage.Start:usage.End]) == "null":
		dst = append(dst, ev[:cut.Start]...)
		return append(dst, ev[cut.End:]...)
	case ev[usage.Start] == '{' && choices:
		return dst
	}
	return append(dst, ev...)
}

// members walks over the members of a JSON object without judging it.
type members struct {
	b                 []byte
	i                 int // where to go on
	name              []byte
	start, value, end int // of the member
	broken            bool
}

func (m *members) space() byte {
	for m.i < len(m.b) {
		switch c := m.b[m.i]; c {
		case ' ', '\t', '\n', '\r':
			m.i++
		default:
			return c
		}
	}
	return 0
}

// next moves to the next member; at the end, or where there is no JSON, it returns
// false.
func (m *members) next() bool {
	c := m.space()
	if c == ',' {
		m.i++
		c = m.space()
	}
	if c != '"' {
		m.broken = c != '}'
		return false
	}
	m.start = m.i
	m.text()
	m.name = m.b[m.start+1 : max(m.i-1, m.start+1)]
	if m.space() != ':' {
		m.broken = true
		return false
	}
	m.i++
	m.space()
	m.value = m.i
	depth := 0
	for m.i < len(m.b) {
		switch c := m.b[m.i]; c {
		case '"':
			m.text()
			continue
		case '{', '[':
			depth++
		case '}', ']':
			if depth == 0 {
				return m.done()
			}
			depth--
		case ',':
			if depth == 0 {
				return m.done()
			}
		}
		m.i++
	}
	m.broken = true
	return false
}

// done ends a member before its comma or the closing brace, without white space.
func (m *members) done() bool {
	m.end = len(bytes.TrimRight(m.b[:m.i], " \t\r\n"))
	m.broken = m.end <= m.value
	return !m.broken
}

// text moves behind a string.
func (m *members) text() {
	for m.i++; m.i < len(m.b); m.i++ {
		switch m.b[m.i] {
		case '\\':
			m.i++
		case '"':
			m.i++
			return
		}
	}
}
