// SPDX-License-Identifier: Apache-2.0

package wire

import (
	"bytes"
	"strings"
)

// AnswerScanner follows the body of an answer. It keeps no copy: its state is a
// few hundred bytes whatever passes, and it does not allocate, except for the
// output buffer of a rename. The zero value is not ready: call Reset.
type AnswerScanner struct {
	Answer

	m      machine
	events bool // an event stream, not one JSON text

	line    lineState
	matched int  // of "data:" at the beginning of a line
	cr      bool // the last byte was a carriage return
	open    bool // a line of an event stands, without the blank line that ends it
	pending bool // the event has a data line
	closed  bool

	alias    []byte // JSON string to put in place of the model's name; nil: none
	out      []byte
	from     int  // first byte of the current input that is not in out yet
	swallow  bool // inside of a name that is being replaced
	replaced bool // something of the current input was
}

// Answer is what was seen of an answer so far. Token counts are -1 until the
// engine tells them; the last telling counts.
type Answer struct {
	PromptTokens int // whole prompt, cached part included
	CachedTokens int
	OutputTokens int
	Frames       int // events that brought generated content; for one choice, one or more tokens each
	Events       int // events of any kind

	Finished bool // a finish or stop reason, or the event that ends a response
	Done     bool // [DONE], or the end event of the API family

	// ErrorCode is the HTTP status that an error inside of the answer stands for;
	// 0 while there was none.
	ErrorCode int
}

// Tokens returns the number of generated tokens: the engine's count, else the
// number of frames with content.
func (a *Answer) Tokens() int {
	if a.OutputTokens >= 0 {
		return a.OutputTokens
	}
	return a.Frames
}

// Complete reports whether an event stream has come to its own end.
func (a *Answer) Complete() bool { return a.Finished || a.Done || a.ErrorCode != 0 }

type lineState uint8

const (
	lineStart lineState = iota
	lineField           // within "data:"
	lineColon           // right behind it
	lineData
	lineSkip // some other field or a comment
)

// Reset starts a new answer. events says that it is an event stream. A non-empty
// alias replaces the name of the model in it.
func (s *AnswerScanner) Reset(events bool, alias string) {
	*s = AnswerScanner{
		Answer: Answer{PromptTokens: -1, CachedTokens: -1, OutputTokens: -1},
		events: events, alias: s.alias[:0], out: s.out[:0],
	}
	if alias == "" {
		s.alias = nil
	} else {
		s.alias = AppendString(s.alias, alias)
	}
	s.m.begin()
}

// Feed takes the next bytes of the answer and returns what goes to the client: p
// itself, or with a replaced name a slice that is valid until the next call.
func (s *AnswerScanner) Feed(p []byte) []byte {
	s.from, s.replaced = 0, s.swallow
	s.out = s.out[:0]
	if s.events {
		s.feedEvents(p)
	} else {
		s.json(p, 0, len(p))
	}
	if !s.replaced {
		return p
	}
	if !s.swallow {
		s.out = append(s.out, p[s.from:]...)
	}
	return s.out
}

// Close says that the answer has ended, however it did: an event without the blank
// line that should follow it counts.
func (s *AnswerScanner) Close() {
	if s.closed {
		return
	}
	s.closed = true
	if !s.events {
		s.judge()
	} else if s.pending {
		s.endEvent()
	}
}

// Gap returns the line ends that a new event needs before it, so that it does not
// become part of a broken one.
func (s *AnswerScanner) Gap() string {
	switch {
	case !s.events || s.line == lineStart && !s.open:
		return ""
	case s.line == lineStart && !s.cr:
		return "\n"
	}
	return "\n\n" // the first may complete a line end of CR and LF
}

// ResponseID returns the id of the response in the Responses API; "" unknown.
func (s *AnswerScanner) ResponseID() string { return string(s.m.id[:s.m.idLen]) }

// feedEvents splits p into lines. A line ends with LF, CR, or both.
func (s *AnswerScanner) feedEvents(p []byte) {
	i := 0
	for i < len(p) {
		if s.cr {
			s.cr = false
			if p[i] == '\n' {
				i++
				continue
			}
		}
		switch s.line {
		case lineStart, lineField:
			i = s.field(p, i)
		case lineColon:
			s.line = lineData
			if p[i] == ' ' {
				i++
			}
		default:
			end := lineEnd(p, i)
			if s.line == lineData {
				s.json(p, i, end)
			}
			if i = end; i < len(p) {
				s.endLine(p[i])
				i++
			}
		}
	}
}

func lineEnd(p []byte, i int) int {
	q := p[i:]
	if n := bytes.IndexByte(q, '\n'); n >= 0 {
		q = q[:n]
	}
	if n := bytes.IndexByte(q, '\r'); n >= 0 {
		q = q[:n]
	}
	return i + len(q)
}

const dataField = "data:"

// field matches the beginning of a line against "data:" and returns where to go on.
func (s *AnswerScanner) field(p []byte, i int) int {
	if s.line == lineStart {
		s.matched = 0
		if p[i] != '\n' && p[i] != '\r' {
			s.open = true
		}
	}
	for ; i < len(p); i++ {
		switch c := p[i]; {
		case c == dataField[s.matched]:
			s.line = lineField
			if s.matched++; s.matched == len(dataField) {
				s.pending = true
				s.line = lineColon
				return i + 1
			}
		case c == '\n' || c == '\r':
			if s.line == lineStart {
				s.blank()
			}
			s.endLine(c)
			return i + 1
		case c == '{' && s.line == lineStart:
			// No event at all: a JSON text, as engines that fail write it.
			s.pending = true
			s.line = lineData
			return i
		default:
			s.line = lineSkip
			return i
		}
	}
	return i
}

func (s *AnswerScanner) endLine(c byte) {
	s.line = lineStart
	s.cr = c == '\r'
}

// blank is an empty line: it ends an event.
func (s *AnswerScanner) blank() {
	s.open = false
	if s.pending {
		s.endEvent()
	}
}

func (s *AnswerScanner) endEvent() {
	s.pending = false
	s.Events++
	s.judge()
	s.m.begin()
}

// judge reads out what the machine saw in one JSON text.
func (s *AnswerScanner) judge() {
	m := &s.m
	if m.done {
		s.Done = true
		return
	}
	kind := string(m.kind[:m.kindLen])
	if m.content || strings.HasSuffix(kind, ".delta") && strings.HasPrefix(kind, "response.") || kind == "content_block_delta" {
		s.Frames++
	}
	switch kind {
	case "message_stop", "response.completed", "response.incomplete":
		s.Finished, s.Done = true, true
	}
	if m.finish {
		s.Finished = true
	}
	s.takeUsage()
	failed := m.failed || m.sawError || m.objectError || kind == "error" || kind == "response.failed" ||
		m.detail && !m.choices && kind == ""
	if failed && s.ErrorCode == 0 {
		s.ErrorCode = m.errorStatus()
	}
}

func (s *AnswerScanner) takeUsage() {
	m := &s.m
	if m.prompt >= 0 {
		// Anthropic counts what came from the cache apart, the others include it.
		s.PromptTokens = m.prompt + m.apartCached
		s.CachedTokens = max(s.CachedTokens, m.cached)
	}
	if m.cached >= 0 {
		s.CachedTokens = m.cached
	}
	if m.output >= 0 {
		s.OutputTokens = m.output
	}
}
