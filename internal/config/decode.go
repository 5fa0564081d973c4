// SPDX-License-Identifier: Apache-2.0

package config

import (
	"errors"
	"fmt"
	"io"
	"os"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"time"

	"go.yaml.in/yaml/v3"
)

// Options are the names that other packages define and a file may use.
type Options struct {
	Policies []string // names of routing policies; empty: any
	Profiles []string // names of engine profiles; empty: any
}

// maxFile bounds a configuration file; maxNodes bounds what aliases can blow it
// up to; maxErrors bounds the report.
const (
	maxFile   = 1 << 20
	maxNodes  = 50_000
	maxErrors = 100
)

// Load reads and checks a file. What is wrong with its content comes back as
// Errors; anything else is an error of reading.
func Load(path string, o Options) (*Config, error) {
	f, err := os.Open(path)
	if err != nil {
		return nil, fmt.Errorf("read configuration: %w", err)
	}
	defer f.Close()
	b, err := io.ReadAll(io.LimitReader(f, maxFile+1))
	if err != nil {
		return nil, fmt.Errorf("read configuration: %w", err)
	}
	return Parse(path, b, o)
}

// Parse checks the text of a file called name. The error, if any, is Errors; the
// Config is nil then: a bad file never starts half.
func Parse(name string, src []byte, o Options) (*Config, error) {
	d := &decoder{file: name, opts: o, set: map[string]bool{}, at: map[string]*yaml.Node{}}
	if len(src) > maxFile {
		d.fail(1, 1, "", fmt.Sprintf("the file is larger than %s", Bytes(maxFile)))
		return nil, d.errs
	}
	d.src = strings.Split(string(src), "\n")
	c := &Config{file: name, set: d.set}
	applyDefaults(rootObject, c)
	root := d.parse(src)
	if root != nil {
		d.object(root, rootObject, c, "")
		if d.nodes <= maxNodes {
			d.validate(c)
		}
	}
	if len(d.errs) > 0 {
		slices.SortStableFunc(d.errs, func(a, b *Error) int {
			if a.Line != b.Line {
				return a.Line - b.Line
			}
			return a.Column - b.Column
		})
		return nil, d.errs
	}
	return c, nil
}

type decoder struct {
	file  string
	src   []string
	opts  Options
	errs  Errors
	set   map[string]bool
	at    map[string]*yaml.Node // where each path stands, for checks across keys
	nodes int
}

func (d *decoder) fail(line, col int, path, msg string) {
	if line < 1 {
		line = 1
	}
	if col < 1 {
		col = 1
	}
	if len(d.errs) >= maxErrors {
		return
	}
	d.errs = append(d.errs, &Error{File: d.file, Line: line, Column: col, Path: path, Msg: msg, Lines: excerpt(d.src, line)})
}

func (d *decoder) failAt(n *yaml.Node, path, format string, args ...any) {
	d.fail(n.Line, n.Column, path, fmt.Sprintf(format, args...))
}

// failPath reports at the place of a path, or at the nearest parent that stands
// in the file.
func (d *decoder) failPath(path, format string, args ...any) {
	for p := path; ; {
		if n := d.at[p]; n != nil {
			d.failAt(n, path, format, args...)
			return
		}
		i := strings.LastIndexAny(p, ".[")
		if i < 0 {
			d.fail(1, 1, path, fmt.Sprintf(format, args...))
			return
		}
		p = p[:i]
	}
}

var yamlLine = regexp.MustCompile(`(?:yaml: )?(?:line (\d+): )?(.*)`)

// parse returns the root mapping, nil where the file is empty or broken.
func (d *decoder) parse(src []byte) *yaml.Node {
	dec := yaml.NewDecoder(strings.NewReader(string(src)))
	var doc, more yaml.Node
	err := dec.Decode(&doc)
	if errors.Is(err, io.EOF) {
		return nil
	}
	if err != nil {
		d.syntax(err)
		return nil
	}
	if err := dec.Decode(&more); err == nil {
		at := &more
		if len(more.Content) > 0 {
			at = more.Content[0]
		}
		d.failAt(at, "", "a second document; one file holds one configuration")
	} else if !errors.Is(err, io.EOF) {
		d.syntax(err)
		return nil
	}
	if len(doc.Content) == 0 {
		return nil
	}
	root := doc.Content[0]
	if isNull(root) {
		return nil
	}
	return root
}

func (d *decoder) syntax(err error) {
	m := yamlLine.FindStringSubmatch(err.Error())
	line, _ := strconv.Atoi(m[1])
	line = min(max(line, 1), max(len(d.src), 1))
	col := 1
	if line <= len(d.src) {
		l := d.src[line-1]
		col = len(l) - len(strings.TrimLeft(l, " \t")) + 1
	}
	d.fail(line, col, "", "not valid YAML: "+m[2])
}

// resolve follows an alias and counts nodes, so that aliases of aliases cannot
// make a small file huge.
func (d *decoder) resolve(n *yaml.Node) (*yaml.Node, bool) {
	d.nodes++
	if d.nodes > maxNodes {
		if d.nodes == maxNodes+1 {
			d.failAt(n, "", "the file expands to more than %d values", maxNodes)
		}
		return n, false
	}
	for hops := 0; n.Kind == yaml.AliasNode; hops++ {
		if n.Alias == nil || hops > 8 {
			d.failAt(n, "", "an alias that leads nowhere")
			return n, false
		}
		n = n.Alias
	}
	return n, true
}

func isNull(n *yaml.Node) bool {
	return n.Kind == yaml.ScalarNode && n.Tag == "!!null"
}

func join(path, key string) string {
	if path == "" {
		return key
	}
	return path + "." + key
}

// object reads a mapping into dst, which holds its defaults.
func (d *decoder) object(n *yaml.Node, o *object, dst any, path string) {
	n, ok := d.resolve(n)
	if !ok {
		return
	}
	if n.Kind != yaml.MappingNode {
		if !isNull(n) {
			d.failAt(n, path, "%s must be a mapping, not %s", o.name, describe(n))
		}
		d.requireAll(n, o, nil, path)
		return
	}
	seen := map[string]*yaml.Node{}
	for i := 0; i+1 < len(n.Content); i += 2 {
		k, v := n.Content[i], n.Content[i+1]
		if k.Kind != yaml.ScalarNode || k.Tag == "!!merge" {
			d.failAt(k, path, "keys must be plain words; merge keys are not supported")
			continue
		}
		if first := seen[k.Value]; first != nil {
			d.failAt(k, join(path, k.Value), "%q is set twice; the first is in line %d", k.Value, first.Line)
			continue
		}
		seen[k.Value] = k
		f := o.field(k.Value)
		if f == nil {
			d.unknown(k, o, path)
			continue
		}
		p := join(path, f.key)
		d.at[p] = v
		d.set[p] = true
		d.value(v, f, f.at(dst), p)
	}
	d.requireAll(n, o, seen, path)
}

func (d *decoder) requireAll(n *yaml.Node, o *object, seen map[string]*yaml.Node, path string) {
	for i := range o.fields {
		f := &o.fields[i]
		if f.required && seen[f.key] == nil {
			d.failAt(n, join(path, f.key), "%s needs a %s", o.name, f.key)
		}
	}
}

// unknown reports a key that does not exist, with the key that was meant or the
// place where it belongs.
func (d *decoder) unknown(k *yaml.Node, o *object, path string) {
	keys := make([]string, len(o.fields))
	for i := range o.fields {
		keys[i] = o.fields[i].key
	}
	msg := fmt.Sprintf("unknown field %q", k.Value)
	switch near := suggest(k.Value, keys); {
	case secretKey.MatchString(k.Value):
		msg += "; secrets do not stand in this file: put it into a file and name that file"
		if o == engineObject {
			msg += " with apiKeyFile"
		}
	case near != "":
		msg += fmt.Sprintf("; did you mean %q?", near)
	default:
		if at := whereIs(k.Value); at != "" && at != join(path, k.Value) {
			msg += fmt.Sprintf("; it belongs to %s", at)
		} else {
			msg += "; known are " + strings.Join(keys, ", ")
		}
	}
	d.failAt(k, join(path, k.Value), "%s", msg)
}

var secretKey = regexp.MustCompile(`(?i)^(api[-_]?key|secret|token|password|passwd|credentials?|bearer)$`)

// whereIs returns the path under which a key is known, "" where none or several.
func whereIs(key string) string {
	found, n := "", 0
	var walk func(o *object, path string)
	walk = func(o *object, path string) {
		for i := range o.fields {
			f := &o.fields[i]
			p := join(path, f.key)
			if f.key == key {
				found, n = p, n+1
			}
			if f.kind == kindObjects {
				p += "[]"
			}
			if f.obj != nil {
				walk(f.obj, p)
			}
		}
	}
	walk(rootObject, "")
	if n != 1 {
		return ""
	}
	return found
}

func describe(n *yaml.Node) string {
	switch n.Kind {
	case yaml.MappingNode:
		return "a mapping"
	case yaml.SequenceNode:
		return "a list"
	case yaml.ScalarNode:
		switch n.Tag {
		case "!!int", "!!float":
			return "the number " + n.Value
		case "!!bool":
			return "the truth value " + n.Value
		case "!!null":
			return "nothing"
		}
		return "a text"
	}
	return "something else"
}

// value reads one value into dst, a pointer as field.at returns it.
func (d *decoder) value(n *yaml.Node, f *field, dst any, path string) {
	n, ok := d.resolve(n)
	if !ok {
		return
	}
	switch f.kind {
	case kindObject:
		d.object(n, f.obj, dst, path)
	case kindObjects:
		d.objects(n, f, dst, path)
	case kindStrings:
		d.strings(n, f, dst.(*[]string), path)
	default:
		d.scalar(n, f, dst, path)
	}
}

func (d *decoder) objects(n *yaml.Node, f *field, dst any, path string) {
	if isNull(n) {
		return
	}
	if n.Kind != yaml.SequenceNode {
		d.failAt(n, path, "%s must be a list, not %s", f.key, describe(n))
		return
	}
	for i, item := range n.Content {
		el := f.grow(dst)
		applyDefaults(f.obj, el)
		p := fmt.Sprintf("%s[%d]", path, i)
		d.at[p] = item
		d.object(item, f.obj, el, p)
	}
}

func (d *decoder) strings(n *yaml.Node, f *field, dst *[]string, path string) {
	if isNull(n) {
		return
	}
	if n.Kind != yaml.SequenceNode {
		d.failAt(n, path, "%s must be a list, not %s; write [%s]", f.key, describe(n), orWord(n.Value, "..."))
		return
	}
	for i, item := range n.Content {
		item, ok := d.resolve(item)
		if !ok {
			return
		}
		p := fmt.Sprintf("%s[%d]", path, i)
		d.at[p] = item
		if item.Kind != yaml.ScalarNode || isNull(item) {
			d.failAt(item, p, "%s must hold texts, not %s", f.key, describe(item))
			*dst = append(*dst, "")
			continue
		}
		if f.check != nil {
			if err := f.check(item.Value); err != nil {
				d.failAt(item, p, "%s: %v", f.key, err)
			}
		}
		*dst = append(*dst, item.Value) // also a wrong one: later checks count positions
	}
}

func orWord(s, or string) string {
	if s == "" {
		return or
	}
	return s
}

func (d *decoder) scalar(n *yaml.Node, f *field, dst any, path string) {
	if n.Kind != yaml.ScalarNode {
		d.failAt(n, path, "%s must be %s, not %s", f.key, kindWords[f.kind], describe(n))
		return
	}
	if isNull(n) {
		if f.required {
			d.failAt(n, path, "%s must not be empty", f.key)
		}
		return // nothing means the default
	}
	if err := d.set1(f, dst, n.Value); err != nil {
		d.failAt(n, path, "%s: %v", f.key, err)
	}
}

var kindWords = [...]string{
	kindString: "a text", kindInt: "a whole number", kindFloat: "a number", kindDuration: "a duration",
	kindBool: "true or false", kindBytes: "an amount of data", kindRatio: "a percentage", kindStrings: "a list of texts",
	kindObject: "a mapping", kindObjects: "a list of mappings",
}

// set1 reads the text of one scalar into dst and checks it.
func (d *decoder) set1(f *field, dst any, s string) error {
	num := 0.0
	switch dst := dst.(type) {
	case *string:
		if err := d.checkString(f, s); err != nil {
			return err
		}
		*dst = s
		return nil
	case *int:
		v, err := strconv.Atoi(strings.ReplaceAll(s, "_", ""))
		if err != nil {
			return fmt.Errorf("%q is not a whole number", s)
		}
		*dst, num = v, float64(v)
	case *bool:
		if s != "true" && s != "false" {
			return fmt.Errorf("%q is neither true nor false", s)
		}
		*dst = s == "true"
		return nil
	case *float64:
		v, err := strconv.ParseFloat(s, 64)
		if err != nil || v != v {
			return fmt.Errorf("%q is not a number", s)
		}
		*dst, num = v, v
	case *time.Duration:
		v, err := parseDuration(s)
		if err != nil {
			return err
		}
		*dst, num = v, v.Seconds()
	case *Bytes:
		v, err := parseBytes(s)
		if err != nil {
			return err
		}
		*dst, num = v, float64(v)
	case *Ratio:
		v, err := ParseRatio(s)
		if err != nil {
			return err
		}
		*dst, num = v, float64(v)
	}
	if (f.min != 0 || f.max != 0) && (num < f.min || num > f.max) {
		return fmt.Errorf("%s is out of range: %s to %s", s, bound(f, f.min), bound(f, f.max))
	}
	return nil
}

func bound(f *field, v float64) string {
	switch f.kind {
	case kindDuration:
		return formatDuration(time.Duration(v * float64(time.Second)))
	case kindBytes:
		return Bytes(v).String()
	}
	return strconv.FormatFloat(v, 'f', -1, 64)
}

func (d *decoder) checkString(f *field, s string) error {
	if f.required && s == "" {
		return errors.New("must not be empty")
	}
	if f.check != nil {
		if err := f.check(s); err != nil {
			return err
		}
	}
	allowed := f.enum
	if f.known != nil {
		allowed = f.known(d.opts)
	}
	if f.key == "profile" && (s == "auto" || strings.ContainsAny(s, "./")) {
		return nil
	}
	if len(allowed) == 0 || slices.Contains(allowed, s) {
		return nil
	}
	if near := suggest(s, allowed); near != "" {
		return fmt.Errorf("unknown value %q; did you mean %q?", s, near)
	}
	return fmt.Errorf("unknown value %q; use one of: %s", s, strings.Trim(strings.Join(allowed, ", "), ", "))
}

// applyDefaults sets every key of o that is still at its zero value to its default.
func applyDefaults(o *object, dst any) {
	d := &decoder{}
	for i := range o.fields {
		f := &o.fields[i]
		switch {
		case f.kind == kindObject:
			applyDefaults(f.obj, f.at(dst))
		case f.def != "" && isZero(f.at(dst)):
			if err := d.set1(f, f.at(dst), f.def); err != nil {
				panic("config: default of " + f.key + ": " + err.Error()) // a mistake in table.go; the tests find it
			}
		}
	}
}
