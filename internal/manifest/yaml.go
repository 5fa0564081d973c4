// SPDX-License-Identifier: Apache-2.0

package manifest

import (
	"bytes"
	"encoding/json"
	"fmt"
	"strconv"
	"strings"
	"unicode/utf8"

	"go.yaml.in/yaml/v3"

	"github.com/penstock-project/penstock/internal/diagnose"
)

// doc is one document of a stream.
type doc struct {
	file       string
	lines      []string // of the whole file
	start, end int      // first and last line, 1-based
	json       bool     // JSON: lines are known, but nothing can be edited in place
	root       node
}

// node is a YAML node that knows its document. The zero node is absent, and all
// methods of an absent node return nothing.
type node struct {
	y *yaml.Node
	d *doc
}

// maxDepth bounds every walk: an alias can refer to its own ancestor.
const maxDepth = 100

func (n node) ok() bool { return n.y != nil }

// follow resolves aliases.
func (n node) follow() node {
	for i := 0; n.y != nil && n.y.Kind == yaml.AliasNode && i < maxDepth; i++ {
		n.y = n.y.Alias
	}
	return n
}

func (n node) isMap() bool  { return n.y != nil && n.follow().y.Kind == yaml.MappingNode }
func (n node) isSeq() bool  { return n.y != nil && n.follow().y.Kind == yaml.SequenceNode }
func (n node) isFlow() bool { return n.y != nil && n.follow().y.Style&yaml.FlowStyle != 0 }
func (n node) isScalar() bool {
	return n.y != nil && n.follow().y.Kind == yaml.ScalarNode && n.follow().y.Tag != "!!null"
}

// pair returns key and value of a mapping's key, looking into merged mappings.
func (n node) pair(key string) (k, v node) { return n.pairAt(key, 0) }

func (n node) pairAt(key string, depth int) (k, v node) {
	n = n.follow()
	if n.y == nil || n.y.Kind != yaml.MappingNode || depth > maxDepth {
		return node{}, node{}
	}
	c := n.y.Content
	for i := 0; i+1 < len(c); i += 2 {
		if c[i].Value == key {
			return node{c[i], n.d}, node{c[i+1], n.d}.follow()
		}
	}
	for i := 0; i+1 < len(c); i += 2 {
		if c[i].Tag == "!!merge" {
			if k, v := (node{c[i+1], n.d}).pairAt(key, depth+1); v.ok() {
				return k, v
			}
		}
	}
	return node{}, node{}
}

// get walks a path of keys.
func (n node) get(path ...string) node {
	for _, p := range path {
		_, n = n.pair(p)
		if !n.ok() {
			return node{}
		}
	}
	return n
}

// items returns the elements of a sequence.
func (n node) items() []node {
	n = n.follow()
	if n.y == nil || n.y.Kind != yaml.SequenceNode {
		return nil
	}
	out := make([]node, 0, len(n.y.Content))
	for _, c := range n.y.Content {
		out = append(out, node{c, n.d}.follow())
	}
	return out
}

// each calls f with every key and value of a mapping, merged mappings included.
func (n node) each(f func(k, v node)) { n.eachAt(f, 0) }

func (n node) eachAt(f func(k, v node), depth int) {
	n = n.follow()
	if n.y == nil || n.y.Kind != yaml.MappingNode || depth > maxDepth {
		return
	}
	c := n.y.Content
	for i := 0; i+1 < len(c); i += 2 {
		if c[i].Tag == "!!merge" {
			node{c[i+1], n.d}.eachAt(f, depth+1)
			continue
		}
		f(node{c[i], n.d}, node{c[i+1], n.d}.follow())
	}
}

// has reports whether a mapping has any of the keys.
func (n node) has(keys ...string) bool {
	for _, k := range keys {
		if _, v := n.pair(k); v.ok() {
			return true
		}
	}
	return false
}

// line is the line of the node in its file, 0 where absent.
func (n node) line() int {
	if n.y == nil {
		return 0
	}
	return n.y.Line + n.d.start - 1
}

// text is the value of a scalar, "" for everything else.
func (n node) text() string {
	n = n.follow()
	if n.y == nil || n.y.Kind != yaml.ScalarNode || n.y.Tag == "!!null" {
		return ""
	}
	return n.y.Value
}

// str is the scalar at a path.
func (n node) str(path ...string) string { return n.get(path...).text() }

// span is the place of a scalar as it is written, quotes included. Block scalars
// and scalars over several lines have no length and cannot be replaced in place.
func (n node) span() diagnose.Span {
	if n.y == nil {
		return diagnose.Span{}
	}
	s := diagnose.Span{Line: n.line()}
	if s.Line < 1 || s.Line > len(n.d.lines) {
		return diagnose.Span{}
	}
	src := n.d.lines[s.Line-1]
	s.Col = byteCol(src, n.y.Column)
	if n.d.json {
		return s
	}
	if s.Col < 1 || s.Col > len(src) {
		return s
	}
	rest := src[s.Col-1:]
	if n.y.Kind != yaml.ScalarNode {
		s.Len = flowLen(rest)
		return s
	}
	switch {
	case n.y.Style&(yaml.LiteralStyle|yaml.FoldedStyle) != 0:
	case n.y.Style&yaml.SingleQuotedStyle != 0:
		s.Len = quotedLen(rest, '\'')
	case n.y.Style&yaml.DoubleQuotedStyle != 0:
		s.Len = quotedLen(rest, '"')
	case strings.HasPrefix(rest, n.y.Value):
		s.Len = len(n.y.Value)
	}
	return s
}

// byteCol turns a column in characters into one in bytes.
func byteCol(line string, col int) int {
	i := 0
	for c := 1; c < col && i < len(line); c++ {
		_, size := utf8.DecodeRuneInString(line[i:])
		i += size
	}
	return i + 1
}

// flowLen is the length of a mapping or list in flow style that ends on the line
// where it begins, 0 for everything else.
func flowLen(s string) int {
	if s[0] != '{' && s[0] != '[' {
		return 0
	}
	depth := 0
	for i := 0; i < len(s); i++ {
		switch s[i] {
		case '"', '\'':
			n := quotedLen(s[i:], s[i])
			if n == 0 {
				return 0
			}
			i += n - 1
		case '{', '[':
			depth++
		case '}', ']':
			if depth--; depth == 0 {
				return i + 1
			}
		}
	}
	return 0
}

func quotedLen(s string, q byte) int {
	for i := 1; i < len(s); i++ {
		switch {
		case q == '"' && s[i] == '\\':
			i++
		case s[i] == q && q == '\'' && i+1 < len(s) && s[i+1] == q:
			i++
		case s[i] == q:
			return i + 1
		}
	}
	return 0
}

// mapAt says where a mapping is and how a key can be added to it.
func (n node) mapAt() diagnose.MapAt {
	n = n.follow()
	if n.y == nil || n.y.Kind != yaml.MappingNode {
		return diagnose.MapAt{}
	}
	m := diagnose.MapAt{Line: n.line()}
	if m.Line < 1 || m.Line > len(n.d.lines) || n.d.json {
		return diagnose.MapAt{}
	}
	m.Col = byteCol(n.d.lines[m.Line-1], n.y.Column)
	if n.y.Style&yaml.FlowStyle != 0 {
		m.Flow = true
		src := n.d.lines[m.Line-1]
		if m.Col < 1 || m.Col > len(src) || src[m.Col-1] != '{' || len(n.y.Content) == 0 {
			return diagnose.MapAt{}
		}
		return m
	}
	m.Indent, m.After = m.Col-1, -1
	// A line can be added after a scalar that ends on the line where it begins.
	for i := 0; i+1 < len(n.y.Content); i += 2 {
		k, v := n.y.Content[i], n.y.Content[i+1]
		oneLine := v.Kind == yaml.ScalarNode && v.Style&(yaml.LiteralStyle|yaml.FoldedStyle) == 0 && !strings.Contains(v.Value, "\n")
		if next := i + 2; next < len(n.y.Content) {
			oneLine = oneLine && n.y.Content[next].Line == v.Line+1
		}
		if oneLine && k.Line == v.Line {
			m.After = v.Line + n.d.start - 1
			return m
		}
	}
	if strings.TrimSpace(n.d.lines[m.Line-1][:m.Col-1]) == "" {
		m.After = m.Line - 1
	}
	return m
}

// listAt is where a key with a list in block style is written: its line and
// column, and in After the last line of the list.
func (n node) listAt(key string) diagnose.MapAt {
	k, v := n.pair(key)
	if !v.isSeq() || v.y.Style&yaml.FlowStyle != 0 || n.follow().y.Style&yaml.FlowStyle != 0 || v.line() <= k.line() {
		return diagnose.MapAt{}
	}
	s := k.span()
	at := diagnose.MapAt{Line: s.Line, Col: s.Col, Indent: s.Col - 1}
	for i := s.Line; i < len(n.d.lines) && i < n.d.end; i++ {
		l := n.d.lines[i]
		trimmed := strings.TrimLeft(l, " ")
		if trimmed == "" || trimmed[0] == '#' {
			continue
		}
		if in := len(l) - len(trimmed); in < at.Indent || in == at.Indent && trimmed[0] != '-' {
			break
		}
		at.After = i + 1
	}
	return at
}

func (n node) strField(key string) diagnose.Field[string] {
	k, v := n.pair(key)
	return scalarField(k, v, func(s string) (string, bool) { return s, true })
}

func (n node) intField(key string) diagnose.Field[int] {
	k, v := n.pair(key)
	return scalarField(k, v, parseInt)
}

func (n node) floatField(key string) diagnose.Field[float64] {
	k, v := n.pair(key)
	return scalarField(k, v, diagnose.ParseQuantity)
}

func (n node) boolField(key string) diagnose.Field[bool] {
	k, v := n.pair(key)
	return scalarField(k, v, func(s string) (bool, bool) {
		b, err := strconv.ParseBool(strings.ToLower(s))
		return b, err == nil
	})
}

func (n node) secondsField(key string) diagnose.Field[float64] {
	k, v := n.pair(key)
	return scalarField(k, v, diagnose.ParseSeconds)
}

func parseInt(s string) (int, bool) {
	if i, err := strconv.Atoi(s); err == nil {
		return i, true
	}
	f, ok := diagnose.ParseQuantity(s)
	if !ok || f != float64(int(f)) {
		return 0, false
	}
	return int(f), true
}

func scalarField[T any](k, v node, parse func(string) (T, bool)) diagnose.Field[T] {
	if !v.isScalar() {
		return diagnose.Field[T]{}
	}
	val, ok := parse(strings.TrimSpace(v.text()))
	if !ok {
		return diagnose.Field[T]{}
	}
	f := diagnose.Field[T]{V: val, Set: true, Text: v.text(), At: v.span()}
	if k.ok() {
		f.Key = k.span()
	}
	return f
}

// scalar is a field that has no key: an element of a list.
func (n node) scalar() diagnose.Field[string] {
	return scalarField(node{}, n, func(s string) (string, bool) { return n.text(), true })
}

// pairs reads a mapping of scalars.
func (n node) pairs() diagnose.Pairs {
	var out diagnose.Pairs
	n.each(func(k, v node) {
		if v.isScalar() {
			out = append(out, diagnose.Pair{Name: k.text(), Value: scalarField(k, v, func(string) (string, bool) { return v.text(), true })})
		}
	})
	return out
}

// labels reads a selector: matchLabels, or the mapping itself.
func (n node) labels() (out diagnose.Pairs, exprs bool) {
	if m := n.get("matchLabels"); m.ok() {
		return m.pairs(), len(n.get("matchExpressions").items()) > 0
	}
	if n.has("matchExpressions") {
		return nil, true
	}
	return n.pairs(), false
}

// parseDoc parses the lines start..end of a file as one document.
func parseDoc(file string, lines []string, start, end int) (d *doc, err error) {
	defer func() {
		// The YAML library is given whatever a person has at hand; a panic in it
		// must not take the whole run down.
		if r := recover(); r != nil {
			err = fmt.Errorf("line %d: the YAML parser gave up: %v", start, r)
		}
	}()
	d = &doc{file: file, lines: lines, start: start, end: end}
	text := []byte(strings.Join(lines[start-1:end], "\n"))
	if t := bytes.TrimSpace(text); len(t) > 0 && (t[0] == '{' || t[0] == '[') {
		d.json = json.Valid(t)
	}
	var y yaml.Node
	if err := yaml.Unmarshal(text, &y); err != nil {
		return nil, err
	}
	if len(y.Content) == 1 {
		d.root = node{y.Content[0], d}.follow()
	}
	return d, nil
}
