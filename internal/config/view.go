// SPDX-License-Identifier: Apache-2.0

package config

import (
	"bytes"
	"encoding/json"
	"fmt"
	"io"
	"strconv"
	"strings"
	"time"
)

// formatValue writes a scalar as one would write it in the file.
func formatValue(p any) string {
	switch v := p.(type) {
	case *string:
		return *v
	case *int:
		return strconv.Itoa(*v)
	case *bool:
		return strconv.FormatBool(*v)
	case *float64:
		return strconv.FormatFloat(*v, 'g', -1, 64)
	case *time.Duration:
		return formatDuration(*v)
	case *Bytes:
		return v.String()
	case *Ratio:
		return v.String()
	}
	return ""
}

// WriteYAML writes the effective configuration: every key, and behind each that
// the file does not name a remark that it is a default. What it writes is a valid
// file that means the same.
func (c *Config) WriteYAML(w io.Writer) error {
	var b bytes.Buffer
	c.writeObject(&b, rootObject, c, "", 0)
	_, err := w.Write(b.Bytes())
	return err
}

func (c *Config) writeObject(b *bytes.Buffer, o *object, v any, path string, depth int) {
	pad := strings.Repeat("  ", depth)
	for i := range o.fields {
		f := &o.fields[i]
		p, at := join(path, f.key), f.at(v)
		mark := ""
		if !c.set[p] {
			mark = "  # default"
		}
		switch f.kind {
		case kindObject:
			if !c.set[p] && isZero(at) || optionalBlock(f) && !c.set[p] && idle(at) {
				continue
			}
			fmt.Fprintf(b, "%s%s:\n", pad, f.key)
			c.writeObject(b, f.obj, at, p, depth+1)
		case kindObjects:
			els := f.each(at)
			if len(els) == 0 {
				fmt.Fprintf(b, "%s%s: []%s\n", pad, f.key, mark)
				continue
			}
			fmt.Fprintf(b, "%s%s:\n", pad, f.key)
			for j, el := range els {
				var sub bytes.Buffer
				c.writeObject(&sub, f.obj, el, fmt.Sprintf("%s[%d]", p, j), depth+2)
				// The first line of the element starts with the list mark.
				s := sub.String()
				b.WriteString(pad + "  - " + strings.TrimPrefix(s, pad+"    "))
			}
		case kindStrings:
			l := *at.(*[]string)
			quoted := make([]string, len(l))
			for j, s := range l {
				quoted[j] = quoteYAML(s)
			}
			if len(l) == 0 && !c.set[p] && isSource(o) {
				continue
			}
			fmt.Fprintf(b, "%s%s: [%s]%s\n", pad, f.key, strings.Join(quoted, ", "), mark)
		default:
			if !c.set[p] && isZero(at) && isSource(o) {
				continue
			}
			s := formatValue(at)
			if f.kind == kindString {
				s = quoteYAML(s)
			}
			fmt.Fprintf(b, "%s%s: %s%s\n", pad, f.key, s, mark)
		}
	}
}

// isSource reports whether at most one key of the mapping may be set, so that
// empty ones are better left out.
func isSource(o *object) bool { return o == replicasObject }

// idle reports whether a source of replicas is not in use.
func idle(at any) bool {
	switch v := at.(type) {
	case *Selector:
		return v.Namespace == "" && len(v.Labels) == 0
	case *Process:
		return len(v.Command) == 0
	}
	return isZero(at)
}

// optionalBlock reports whether a mapping means something by being there.
func optionalBlock(f *field) bool { return f.obj == selectorObject || f.obj == processObject }

// quoteYAML quotes a text where YAML could read it as something else.
func quoteYAML(s string) string {
	plain := s != ""
	for _, r := range s {
		if !(r >= 'a' && r <= 'z' || r >= 'A' && r <= 'Z' || r >= '0' && r <= '9' || strings.ContainsRune("._/-", r)) {
			plain = false
			break
		}
	}
	if plain {
		switch strings.ToLower(s) {
		case "true", "false", "yes", "no", "on", "off", "null", "y", "n", "~", ".inf", ".nan", "-":
			plain = false
		}
		if _, err := strconv.ParseFloat(s, 64); err == nil || s[0] == '-' || s[0] == '.' || s[0] >= '0' && s[0] <= '9' {
			plain = false
		}
	}
	if plain {
		return s
	}
	j, err := json.Marshal(s) // a JSON string is a YAML string
	if err != nil {
		return `""`
	}
	return string(j)
}

// tree returns the effective configuration as ordered JSON, in the shape of the
// file: durations, amounts and percentages as texts with their units.
func tree(o *object, v any) json.RawMessage {
	var b bytes.Buffer
	b.WriteByte('{')
	first := true
	for i := range o.fields {
		f := &o.fields[i]
		if isSource(o) && idle(f.at(v)) {
			continue // naming a source means using it
		}
		if !first {
			b.WriteByte(',')
		}
		first = false
		fmt.Fprintf(&b, "%q:", f.key)
		b.Write(treeValue(f, f.at(v)))
	}
	b.WriteByte('}')
	return b.Bytes()
}

func treeValue(f *field, at any) json.RawMessage {
	switch f.kind {
	case kindObject:
		return tree(f.obj, at)
	case kindObjects:
		els := f.each(at)
		parts := make([][]byte, len(els))
		for j, el := range els {
			parts[j] = tree(f.obj, el)
		}
		return append(append([]byte{'['}, bytes.Join(parts, []byte{','})...), ']')
	case kindStrings:
		l := *at.(*[]string)
		if len(l) == 0 {
			return json.RawMessage("[]")
		}
		return mustJSON(l)
	case kindInt, kindFloat, kindBool:
		return json.RawMessage(formatValue(at))
	}
	return mustJSON(formatValue(at))
}

// mustJSON encodes strings, numbers and lists of them, which cannot fail.
func mustJSON(v any) json.RawMessage {
	b, err := json.Marshal(v)
	if err != nil {
		panic("config: " + err.Error())
	}
	return b
}

// MarshalJSON writes the effective configuration in the shape of the file.
func (c *Config) MarshalJSON() ([]byte, error) { return tree(rootObject, c), nil }
