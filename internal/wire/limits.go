// SPDX-License-Identifier: Apache-2.0

package wire

import (
	"errors"
	"fmt"
	"regexp/syntax"
	"strconv"
)

// Limits bound what a scan accepts. The zero value of a field stands for its
// default. ScanRequest applies MaxDepth, ScanForm MaxParts, Check the rest.
type Limits struct {
	MaxDepth int // levels of arrays and objects; at most 1024

	MaxTokens   int // of one answer, as asked for
	MaxAnswers  int // n and best_of
	MaxPrompts  int // prompts of one batch of completions
	MaxLogprobs int // alternatives for each token

	MaxTools       int // tools of one request
	MaxSchemaBytes int // tool definitions, and each schema or grammar
	MaxSchemaDepth int // levels in them

	MaxMedia      int         // images, sounds and files
	MaxMediaBytes int         // each, as it stands in the body
	Media         MediaPolicy // addresses that engines may fetch

	MaxParts int // of a multipart body
}

// Defaults of Limits. Each is far above what client libraries send, and below what
// would make an engine set aside memory that it does not have.
const (
	DefaultMaxTokens      = 1 << 20 // beyond the context of any model
	DefaultMaxAnswers     = 128     // the ceiling of the API itself
	DefaultMaxPrompts     = 2048    // that of embeddings
	DefaultMaxLogprobs    = 128     // engines refuse more than 20 unless told otherwise
	DefaultMaxTools       = 512
	DefaultMaxSchemaBytes = 1 << 20
	DefaultMaxSchemaDepth = 64
	DefaultMaxMedia       = 100
	DefaultMaxMediaBytes  = 20 << 20
	DefaultMaxParts       = 64
)

// WithDefaults fills in what is not set.
func (l Limits) WithDefaults() Limits {
	for _, f := range []struct {
		at  *int
		def int
	}{
		{&l.MaxDepth, DefaultMaxDepth}, {&l.MaxTokens, DefaultMaxTokens}, {&l.MaxAnswers, DefaultMaxAnswers}, {&l.MaxPrompts, DefaultMaxPrompts},
		{&l.MaxLogprobs, DefaultMaxLogprobs}, {&l.MaxTools, DefaultMaxTools}, {&l.MaxSchemaBytes, DefaultMaxSchemaBytes},
		{&l.MaxSchemaDepth, DefaultMaxSchemaDepth}, {&l.MaxMedia, DefaultMaxMedia}, {&l.MaxMediaBytes, DefaultMaxMediaBytes}, {&l.MaxParts, DefaultMaxParts},
	} {
		if *f.at <= 0 {
			*f.at = f.def
		}
	}
	return l
}

const (
	maxGrammars   = 8
	maxMediaSpans = 1024
	maxPattern    = 1024 // bytes of a regular expression in a schema
)

// Answers is how many answers a request makes an engine compute.
func (s *Scan) Answers() int { return max(s.N, s.BestOf) * s.Prompts }

// Check holds what ScanRequest read in body against limits; l must have its defaults
// filled in. It returns nil where all hold.
func (s *Scan) Check(body []byte, l *Limits) *BadRequest {
	switch {
	case s.MostTokens > l.MaxTokens:
		return above("max_tokens", l.MaxTokens)
	case s.N > l.MaxAnswers:
		return above("n", l.MaxAnswers)
	case s.BestOf > l.MaxAnswers:
		return above("best_of", l.MaxAnswers)
	case s.Prompts > l.MaxPrompts:
		return &BadRequest{Param: "prompt", Message: "prompt must hold at most " + strconv.Itoa(l.MaxPrompts) + " prompts", Code: CodeInvalidValue}
	case s.Logprobs < 0 || s.Logprobs > l.MaxLogprobs:
		return above("logprobs", l.MaxLogprobs)
	case s.Media > min(l.MaxMedia, maxMediaSpans):
		return &BadRequest{Param: "messages", Message: "a request must hold at most " + strconv.Itoa(min(l.MaxMedia, maxMediaSpans)) + " images, sounds and files", Code: CodeInvalidValue}
	}
	if s.tools.Len() > 0 {
		if bad := s.checkTools(body, l); bad != nil {
			return bad
		}
	}
	for _, g := range s.grammars[:s.grammar] {
		if bad := checkSchema(body, g, "the schema or grammar", l); bad != nil {
			return bad
		}
	}
	for _, m := range s.media {
		if bad := checkMedia(body, m, l); bad != nil {
			return bad
		}
	}
	return nil
}

func above(param string, most int) *BadRequest {
	return &BadRequest{Param: param, Message: param + " must be at most " + strconv.Itoa(most), Code: CodeInvalidValue}
}

func (s *Scan) checkTools(body []byte, l *Limits) *BadRequest {
	if bad := checkSchema(body, s.tools, "tools", l); bad != nil {
		return bad
	}
	if body[s.tools.Start] != '[' {
		return nil
	}
	p := parser{b: body[:s.tools.End], i: s.tools.Start, maxDepth: maxNesting}
	n := 0
	for more := p.enter(']'); more; more = p.next(']') {
		p.skip()
		n++
	}
	if n > l.MaxTools {
		return &BadRequest{Param: "tools", Message: "a request must name at most " + strconv.Itoa(l.MaxTools) + " tools", Code: CodeInvalidValue}
	}
	return nil
}

// checkSchema bounds what an engine will compile. An expression that no engine can
// read has brought down whole workers.
func checkSchema(body []byte, at Span, what string, l *Limits) *BadRequest {
	if at.Len() > l.MaxSchemaBytes {
		return &BadRequest{Message: what + " must take at most " + strconv.Itoa(l.MaxSchemaBytes) + " bytes", Offset: at.Start, Code: CodeInvalidValue}
	}
	w := schemaWalk{p: parser{b: body[:at.End], i: at.Start, maxDepth: min(l.MaxSchemaDepth, maxNesting)}}
	w.value(false)
	switch {
	case w.bad != nil:
		return w.bad
	case w.p.err != nil:
		return &BadRequest{Message: what + " must nest at most " + strconv.Itoa(l.MaxSchemaDepth) + " levels", Offset: w.p.i, Code: CodeInvalidValue}
	}
	return nil
}

// schemaWalk visits every member of a schema whose text is valid JSON.
type schemaWalk struct {
	p   parser
	bad *BadRequest
}

// value steps over a value; pattern says that it is that of a member which holds a
// regular expression.
func (w *schemaWalk) value(pattern bool) {
	p := &w.p
	switch c := p.peek(); {
	case c == '{':
		for more := p.enter('}'); more && w.bad == nil; more = p.next('}') {
			t := p.str()
			p.colon()
			if p.err != nil {
				return
			}
			w.value(w.isPattern(t))
		}
	case c == '[':
		for more := p.enter(']'); more && w.bad == nil; more = p.next(']') {
			w.value(false)
		}
	case c == '"' && pattern:
		at := p.i
		if t := p.str(); p.err == nil {
			w.judge(t, at)
		}
	default:
		p.scalar(c)
	}
}

func (w *schemaWalk) isPattern(t text) bool {
	k := w.p.b[t.start:t.end]
	if t.escaped() {
		if len(k) > 6*len("guided_regex") {
			return false
		}
		k = unescape(nil, k)
	}
	return string(k) == "pattern" || string(k) == "regex"
}

func (w *schemaWalk) judge(t text, at int) {
	expr := string(w.p.b[t.start:t.end])
	if t.escaped() && len(expr) <= 6*maxPattern {
		expr = string(unescape(nil, []byte(expr)))
	}
	if why := badPattern(expr); why != "" {
		w.bad = &BadRequest{Message: "a pattern in a schema " + why, Offset: at, Code: CodeInvalidValue}
	}
}

// badPattern returns what is wrong with a regular expression; "" where nothing is.
// What other dialects have and Go's has not (looking around, references back) passes.
func badPattern(expr string) string {
	if len(expr) > maxPattern {
		return fmt.Sprintf("must take at most %d bytes", maxPattern)
	}
	var e *syntax.Error
	if _, err := syntax.Parse(expr, syntax.Perl); err == nil || !errors.As(err, &e) {
		return ""
	}
	switch e.Code {
	case syntax.ErrInvalidRepeatSize, syntax.ErrLarge, syntax.ErrNestingDepth:
		return "repeats or nests more than an engine can take"
	case syntax.ErrMissingBracket, syntax.ErrMissingParen, syntax.ErrUnexpectedParen, syntax.ErrMissingRepeatArgument,
		syntax.ErrInvalidRepeatOp, syntax.ErrTrailingBackslash, syntax.ErrInvalidUTF8:
		return "is no regular expression"
	}
	if !balanced(expr) {
		return "is no regular expression"
	}
	return ""
}

// balanced reports whether the parentheses and brackets of an expression match,
// whatever else it holds.
func balanced(expr string) bool {
	depth, class := 0, false
	for i := 0; i < len(expr); i++ {
		switch c := expr[i]; {
		case c == '\\':
			if i++; i == len(expr) {
				return false
			}
		case class:
			class = c != ']'
		case c == '[':
			class = true
		case c == '(':
			depth++
		case c == ')':
			if depth--; depth < 0 {
				return false
			}
		}
	}
	return depth == 0 && !class
}
