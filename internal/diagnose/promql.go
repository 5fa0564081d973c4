// SPDX-License-Identifier: Apache-2.0

package diagnose

import (
	"slices"
	"strings"
)

// Cardinality is how many series a query can return.
type Cardinality uint8

// Cardinalities. Many means: one per pod, rank or model, so one today and two
// after the first scale-up.
const (
	CardUnknown Cardinality = iota
	CardOne
	CardMany
)

// Query is what the text of a PromQL expression tells without asking Prometheus.
type Query struct {
	Card     Cardinality
	Outer    string   // the outermost aggregation: sum, avg, max, ...; "" none
	Metrics  []string // metric names in the order of the text
	Pinned   []string // labels that every selector fixes by equality
	Rate     bool     // a rate, increase or delta is taken
	OrZero   bool     // "or vector(0)": no data reads as zero
	Divided  bool     // two vectors are divided: the result is a ratio of some kind
	Quantile bool     // histogram_quantile
	OK       bool     // the text was understood
}

// Selects reports whether the query selects the metric with that normalised name.
func (q *Query) Selects(norm string) bool {
	return slices.ContainsFunc(q.Metrics, func(m string) bool { return normMetric(m) == norm })
}

// ParseQuery reads the part of PromQL that decides how many series come back. It
// never fails: what it does not understand comes back with OK false and an
// unknown cardinality.
func ParseQuery(text string) Query {
	p := promParser{src: text}
	p.next()
	v := p.expr(0)
	q := p.q
	if p.bad || p.tok != promEOF || p.depth > promDepth {
		return Query{Metrics: q.Metrics}
	}
	q.OK = true
	q.Outer = v.agg
	q.Pinned = p.pinned
	q.Card = v.card(p.pinned)
	return q
}

// vec is what the parser knows of a sub-expression.
type vec struct {
	scalar  bool     // a number, not a vector
	all     bool     // every label of the series is kept
	labels  []string // labels that are kept where all is false
	agg     string
	unknown bool
}

func (v vec) card(pinned []string) Cardinality {
	switch {
	case v.unknown:
		return CardUnknown
	case v.scalar:
		return CardOne
	case v.all:
		return CardMany
	}
	for _, l := range v.labels {
		if !slices.Contains(pinned, l) {
			return CardMany
		}
	}
	return CardOne
}

type promToken uint8

const (
	promEOF promToken = iota
	promIdent
	promNumber
	promString
	promPunct
)

const promDepth = 64

type promParser struct {
	src     string
	pos     int
	tok     promToken
	text    string
	bad     bool
	depth   int
	q       Query
	pinned  []string
	seenSel bool
}

func isIdentByte(c byte, first bool) bool {
	return c == '_' || c == ':' || c >= 'a' && c <= 'z' || c >= 'A' && c <= 'Z' || !first && c >= '0' && c <= '9'
}

func (p *promParser) next() {
	p.skipSpace()
	if p.pos >= len(p.src) {
		p.tok, p.text = promEOF, ""
		return
	}
	c := p.src[p.pos]
	start := p.pos
	switch {
	case isIdentByte(c, true):
		for p.pos < len(p.src) && isIdentByte(p.src[p.pos], false) {
			p.pos++
		}
		p.tok = promIdent
	case c >= '0' && c <= '9' || c == '.':
		for p.pos < len(p.src) && (isIdentByte(p.src[p.pos], false) || p.src[p.pos] == '.') {
			p.pos++
		}
		p.tok = promNumber
	case c == '"' || c == '\'' || c == '`':
		p.pos++
		for p.pos < len(p.src) && p.src[p.pos] != c {
			if p.src[p.pos] == '\\' && c != '`' {
				p.pos++
			}
			p.pos++
		}
		if p.pos >= len(p.src) {
			p.bad, p.tok = true, promEOF
			return
		}
		p.pos++
		p.tok, p.text = promString, p.src[start+1:p.pos-1]
		return
	default:
		p.pos++
		if p.pos < len(p.src) && strings.ContainsRune("=~", rune(p.src[p.pos])) && strings.IndexByte("=!<>", c) >= 0 {
			p.pos++
		}
		p.tok = promPunct
	}
	p.text = p.src[start:p.pos]
}

func (p *promParser) skipSpace() {
	for p.pos < len(p.src) {
		switch c := p.src[p.pos]; {
		case c == ' ' || c == '\t' || c == '\n' || c == '\r':
			p.pos++
		case c == '#':
			for p.pos < len(p.src) && p.src[p.pos] != '\n' {
				p.pos++
			}
		default:
			return
		}
	}
}

func (p *promParser) is(s string) bool { return p.tok != promEOF && p.tok != promString && p.text == s }

func (p *promParser) accept(s string) bool {
	if p.is(s) {
		p.next()
		return true
	}
	return false
}

func (p *promParser) want(s string) {
	if !p.accept(s) {
		p.bad = true
		p.tok = promEOF
	}
}

// binding returns the precedence of the operator at the current token, 0 if it is
// none. "or" binds loosest.
func (p *promParser) binding() int {
	if p.tok == promString || p.tok == promNumber || p.tok == promEOF {
		return 0
	}
	switch p.text {
	case "or":
		return 1
	case "and", "unless":
		return 2
	case "==", "!=", "<", "<=", ">", ">=":
		return 3
	case "+", "-":
		return 4
	case "*", "/", "%", "atan2":
		return 5
	case "^":
		return 6
	}
	return 0
}

func (p *promParser) expr(min int) vec {
	p.depth++
	defer func() { p.depth-- }()
	if p.depth > promDepth {
		p.bad, p.tok = true, promEOF
		return vec{unknown: true}
	}
	if p.accept("-") || p.accept("+") {
		return p.expr(6)
	}
	left := p.primary()
	for !p.bad {
		b := p.binding()
		if b == 0 || b <= min {
			return left
		}
		op := p.text
		p.next()
		p.accept("bool")
		on, ignoring := p.matching()
		right := p.expr(b)
		left = p.combine(op, left, right, on, ignoring)
	}
	return vec{unknown: true}
}

func (p *promParser) matching() (on []string, ignoring bool) {
	if p.is("on") || p.is("ignoring") {
		ignoring = p.is("ignoring")
		p.next()
		on = append([]string{}, p.labelList()...)
		if p.is("group_left") || p.is("group_right") {
			p.next()
			if p.is("(") {
				p.labelList()
			}
			ignoring = true // the many side keeps its labels
		}
	}
	return on, ignoring
}

func (p *promParser) combine(op string, l, r vec, on []string, ignoring bool) vec {
	switch op {
	case "or":
		if r.agg == "vector" {
			p.q.OrZero = true
			if l.card(p.pinned) == CardOne && !l.all {
				return vec{agg: l.agg}
			}
		}
		if l.scalar && r.scalar {
			return l
		}
		if !l.all && !r.all && len(l.labels) == 0 && len(r.labels) == 0 {
			return vec{agg: l.agg, unknown: l.unknown || r.unknown}
		}
		return vec{all: true, agg: l.agg, unknown: l.unknown || r.unknown}
	case "and", "unless":
		return l
	}
	if op == "/" && !l.scalar && !r.scalar {
		p.q.Divided = true
	}
	switch {
	case l.scalar && r.scalar:
		return vec{scalar: true}
	case l.scalar:
		return r
	case r.scalar:
		return l
	case on != nil && !ignoring:
		return vec{labels: on, agg: l.agg, unknown: l.unknown || r.unknown}
	}
	out := vec{all: l.all && r.all || ignoring && (l.all || r.all), agg: l.agg, unknown: l.unknown || r.unknown}
	if !out.all {
		out.labels = l.labels
		if l.all {
			out.labels = r.labels
		}
	}
	return out
}

func (p *promParser) labelList() []string {
	var out []string
	p.want("(")
	for !p.bad && !p.is(")") {
		if p.tok != promIdent {
			p.bad, p.tok = true, promEOF
			return nil
		}
		out = append(out, p.text)
		p.next()
		if !p.accept(",") {
			break
		}
	}
	p.want(")")
	return out
}

func (p *promParser) primary() vec {
	switch {
	case p.tok == promNumber:
		p.next()
		return vec{scalar: true}
	case p.tok == promString:
		p.next()
		return vec{scalar: true}
	case p.accept("("):
		v := p.expr(0)
		p.want(")")
		p.suffix()
		return v
	case p.is("{"):
		v := p.selector("")
		p.suffix()
		return v
	case p.tok == promIdent:
		name := p.text
		p.next()
		switch {
		case isAggregation(name) && (p.is("(") || p.is("by") || p.is("without")):
			v := p.aggregate(name)
			p.suffix()
			return v
		case p.is("("):
			v := p.call(name)
			p.suffix()
			return v
		case strings.EqualFold(name, "inf") || strings.EqualFold(name, "nan"):
			return vec{scalar: true}
		}
		v := p.selector(name)
		p.suffix()
		return v
	}
	p.bad, p.tok = true, promEOF
	return vec{unknown: true}
}

// isAggregation reports whether name is an aggregation operator.
func isAggregation(name string) bool {
	switch name {
	case "sum", "avg", "max", "min", "count", "group", "stddev", "stdvar", "quantile", "topk", "bottomk", "count_values", "limitk":
		return true
	}
	return false
}

// suffix skips ranges, offsets and @ modifiers.
func (p *promParser) suffix() {
	for !p.bad {
		switch {
		case p.accept("["):
			for !p.bad && !p.is("]") {
				if p.tok == promEOF {
					p.bad = true
					return
				}
				p.next()
			}
			p.want("]")
		case p.is("offset"):
			p.next()
			p.accept("-")
			p.next()
		case p.accept("@"):
			name := p.text
			p.next()
			if name == "start" || name == "end" {
				p.want("(")
				p.want(")")
			}
		default:
			return
		}
	}
}
