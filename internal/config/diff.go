// SPDX-License-Identifier: Apache-2.0

package config

import (
	"fmt"
	"strings"
)

// Change is one difference between two configurations.
type Change struct {
	Path string `json:"path"` // "pools[chat].route.policy"; list elements go by name
	Old  string `json:"old"`  // "" where the key was not there
	New  string `json:"new"`
	Live bool   `json:"live"` // a reload applies it; otherwise it needs a restart
}

// Diff returns what a change from a to b means, in the order of the table.
func Diff(a, b *Config) []Change {
	var out []Change
	diffObject(rootObject, a, b, "", &out)
	return out
}

func diffObject(o *object, a, b any, path string, out *[]Change) {
	for i := range o.fields {
		f := &o.fields[i]
		p, va, vb := join(path, f.key), f.at(a), f.at(b)
		switch f.kind {
		case kindObject:
			diffObject(f.obj, va, vb, p, out)
		case kindObjects:
			diffList(f, f.each(va), f.each(vb), p, out)
		case kindStrings:
			la, lb := strings.Join(*va.(*[]string), ", "), strings.Join(*vb.(*[]string), ", ")
			if la != lb {
				*out = append(*out, Change{Path: p, Old: la, New: lb, Live: f.live})
			}
		default:
			if sa, sb := formatValue(va), formatValue(vb); sa != sb {
				*out = append(*out, Change{Path: p, Old: sa, New: sb, Live: f.live})
			}
		}
	}
}

// diffList matches elements by name, or by position where they have none.
func diffList(f *field, a, b []any, path string, out *[]Change) {
	key := func(i int, v any) string {
		if id := f.obj.id; id != "" {
			if s := formatValue(f.obj.field(id).at(v)); s != "" {
				return s
			}
		}
		return fmt.Sprint(i)
	}
	in := func(l []any, k string) any {
		for i, v := range l {
			if key(i, v) == k {
				return v
			}
		}
		return nil
	}
	for i, v := range a {
		k := key(i, v)
		p := fmt.Sprintf("%s[%s]", path, k)
		if w := in(b, k); w != nil {
			diffObject(f.obj, v, w, p, out)
		} else {
			*out = append(*out, Change{Path: p, Old: "present", New: "", Live: f.live})
		}
	}
	for i, v := range b {
		if k := key(i, v); in(a, k) == nil {
			*out = append(*out, Change{Path: fmt.Sprintf("%s[%s]", path, k), Old: "", New: "present", Live: f.live})
		}
	}
}
