// SPDX-License-Identifier: Apache-2.0

package migrate

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"strconv"
	"strings"

	"go.yaml.in/yaml/v3"
)

// node is a value of the source with anchors and merges resolved, and whether somebody
// looked at it. A nil node is one that is not there; all methods take it.
type node struct {
	path string
	line int
	kind yaml.Kind // MappingNode, SequenceNode, ScalarNode
	val  string    // of a scalar
	null bool
	keys []string // of a mapping
	kids []*node
	used bool
}

// maxNodes bounds what anchors may grow a source to.
const maxNodes = 100_000

// documents reads all documents of a source.
func documents(name string, src []byte) ([]*node, error) {
	dec := yaml.NewDecoder(bytes.NewReader(src))
	left := maxNodes
	var out []*node
	for {
		var y yaml.Node
		err := dec.Decode(&y)
		if errors.Is(err, io.EOF) {
			return out, nil
		}
		if err != nil {
			return nil, fmt.Errorf("%s: %s", name, plain(err.Error()))
		}
		n, err := grow(&y, "", &left, 0)
		if err != nil {
			return nil, fmt.Errorf("%s: %w", name, err)
		}
		if n != nil && !n.null {
			out = append(out, n)
		}
	}
}

func grow(y *yaml.Node, path string, left *int, depth int) (*node, error) {
	for y.Kind == yaml.DocumentNode || y.Kind == yaml.AliasNode {
		if y.Kind == yaml.AliasNode {
			y = y.Alias
		} else if len(y.Content) == 0 {
			return nil, nil
		} else {
			y = y.Content[0]
		}
	}
	if *left--; *left < 0 || depth > 100 {
		return nil, fmt.Errorf("line %d: too deep or too large", y.Line)
	}
	n := &node{path: path, line: y.Line, kind: y.Kind, val: y.Value, null: y.Tag == "!!null"}
	switch y.Kind {
	case yaml.SequenceNode:
		for i, c := range y.Content {
			k, err := grow(c, fmt.Sprintf("%s[%d]", path, i), left, depth+1)
			if err != nil {
				return nil, err
			}
			n.kids = append(n.kids, k)
		}
	case yaml.MappingNode:
		if err := n.growMapping(y, left, depth); err != nil {
			return nil, err
		}
	}
	return n, nil
}

// growMapping adds the keys of a mapping, its own before merged ones.
func (n *node) growMapping(y *yaml.Node, left *int, depth int) error {
	var merged []*yaml.Node
	for i := 0; i+1 < len(y.Content); i += 2 {
		k, v := y.Content[i], y.Content[i+1]
		if k.Tag == "!!merge" {
			merged = append(merged, v)
			continue
		}
		key := k.Value
		if k.Kind != yaml.ScalarNode {
			key = "?"
		}
		path := key
		if n.path != "" {
			path = n.path + "." + key
		}
		kid, err := grow(v, path, left, depth+1)
		if err != nil {
			return err
		}
		kid.line = k.Line
		if n.get(key) == nil {
			n.keys, n.kids = append(n.keys, key), append(n.kids, kid)
		}
	}
	for _, v := range merged {
		m, err := grow(v, n.path, left, depth+1)
		if err != nil {
			return err
		}
		from := []*node{m}
		if m.kind == yaml.SequenceNode {
			from = m.kids
		}
		for _, f := range from {
			for i, k := range f.keys {
				if n.get(k) == nil {
					n.keys, n.kids = append(n.keys, k), append(n.kids, f.kids[i])
				}
			}
		}
	}
	return nil
}

// get returns a key of a mapping, or nil.
func (n *node) get(key string) *node {
	if n == nil || n.kind != yaml.MappingNode {
		return nil
	}
	for i, k := range n.keys {
		if k == key {
			return n.kids[i]
		}
	}
	return nil
}

// at follows a path of keys.
func (n *node) at(keys ...string) *node {
	for _, k := range keys {
		n = n.get(k)
	}
	return n
}

// list returns the elements of a sequence; a scalar is a list of one.
func (n *node) list() []*node {
	switch {
	case n == nil || n.null:
		return nil
	case n.kind == yaml.SequenceNode:
		return n.kids
	case n.kind == yaml.ScalarNode:
		return []*node{n}
	}
	return nil
}

// take returns the text of a scalar and marks it used; "" for what is no scalar.
func (n *node) take() string {
	if n == nil || n.kind != yaml.ScalarNode {
		return ""
	}
	n.used = true
	if n.null {
		return ""
	}
	return strings.TrimSpace(n.val)
}

// number returns a scalar that is a number of at least 0 and at most 1e15.
func (n *node) number() (float64, bool) {
	if n == nil || n.kind != yaml.ScalarNode {
		return 0, false
	}
	v, err := strconv.ParseFloat(strings.ReplaceAll(strings.TrimSpace(n.val), "_", ""), 64)
	if err != nil || !(v >= 0 && v <= 1e15) {
		return 0, false
	}
	n.used = true
	return v, true
}

// mark says that a value and all below it were dealt with.
func (n *node) mark() { n.set(true) }

// unmark forgets that a part was used, so that it is noted as a whole.
func (n *node) unmark() { n.set(false) }

func (n *node) set(used bool) {
	if n == nil {
		return
	}
	n.used = used
	for _, k := range n.kids {
		k.set(used)
	}
}

// touched reports whether anything of a value was used.
func (n *node) touched() bool {
	if n.used {
		return true
	}
	for _, k := range n.kids {
		if k.touched() {
			return true
		}
	}
	return false
}

// leave notes a key that does not come over.
func (j *job) leave(n *node, why string) {
	if n == nil || n.used {
		return
	}
	j.note(Left, n.path, n.line, why)
	n.mark()
}

// rest notes all that was not used, the highest key of each part once. why knows
// reasons by path, without the numbers of list elements.
func (j *job) rest(n *node, why func(path string) string) {
	if n == nil || n.used && len(n.kids) == 0 {
		return
	}
	reason := why(trimIndexes(n.path))
	if !n.touched() {
		if len(n.kids) > 0 && reason == "" && strings.Count(n.path, ".") < 1 {
			// A section: what is in it is told one by one.
			for _, k := range n.kids {
				j.rest(k, why)
			}
			return
		}
		if len(n.kids) == 0 && (n.kind != yaml.ScalarNode || n.null) && reason == "" {
			return // {} or [] or nothing: there is nothing in it
		}
		if reason == "" {
			reason = "not known to this converter; look up what it does there"
		}
		j.leave(n, reason)
		return
	}
	for _, k := range n.kids {
		j.rest(k, why)
	}
}

func trimIndexes(path string) string {
	var b strings.Builder
	in := false
	for _, r := range path {
		switch {
		case r == '[':
			in = true
		case r == ']' && in:
			in = false
		case !in:
			b.WriteRune(r)
		}
	}
	return b.String()
}
