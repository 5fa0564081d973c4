// SPDX-License-Identifier: Apache-2.0

package config

import (
	"encoding/json"
	"fmt"
	"os"
	"regexp"
	"slices"
	"testing"

	"github.com/rogpeppe/go-internal/txtar"
	"go.yaml.in/yaml/v3"
)

// schemaErrors checks v against the part of JSON Schema that Schema uses.
func schemaErrors(s map[string]any, v any, path string) []string {
	var out []string
	fail := func(format string, args ...any) { out = append(out, path+": "+fmt.Sprintf(format, args...)) }
	if typ, ok := s["type"]; ok && !typeMatches(typ, v) {
		fail("%T is no %v", v, typ)
		return out
	}
	if enum, ok := s["enum"].([]any); ok && !slices.Contains(enum, v) {
		fail("%v is not in %v", v, enum)
	}
	switch v := v.(type) {
	case map[string]any:
		props, _ := s["properties"].(map[string]any)
		for k, e := range v {
			p, ok := props[k].(map[string]any)
			if !ok {
				fail("unknown key %s", k)
				continue
			}
			out = append(out, schemaErrors(p, e, path+"."+k)...)
		}
		req, _ := s["required"].([]any)
		for _, r := range req {
			if _, ok := v[r.(string)]; !ok {
				fail("needs %s", r)
			}
		}
	case []any:
		for i, e := range v {
			out = append(out, schemaErrors(s["items"].(map[string]any), e, fmt.Sprintf("%s[%d]", path, i))...)
		}
	case string:
		if p, ok := s["pattern"].(string); ok && !regexp.MustCompile(p).MatchString(v) {
			fail("%q does not match %s", v, p)
		}
	case float64:
		if m, ok := s["minimum"].(float64); ok && v < m {
			fail("%v < %v", v, m)
		}
		if m, ok := s["maximum"].(float64); ok && v > m {
			fail("%v > %v", v, m)
		}
	}
	return out
}

func typeMatches(typ, v any) bool {
	if l, ok := typ.([]any); ok {
		return slices.ContainsFunc(l, func(t any) bool { return typeMatches(t, v) })
	}
	switch v := v.(type) {
	case map[string]any:
		return typ == "object"
	case []any:
		return typ == "array"
	case string:
		return typ == "string"
	case bool:
		return typ == "boolean"
	case float64:
		return typ == "number" || typ == "integer" && v == float64(int64(v))
	}
	return false
}

// asJSON turns YAML into what encoding/json would have read.
func asJSON(t *testing.T, src []byte) any {
	t.Helper()
	var v any
	if err := yaml.Unmarshal(src, &v); err != nil {
		t.Fatal(err)
	}
	b, err := json.Marshal(v)
	if err != nil {
		t.Fatal(err)
	}
	var out any
	if err := json.Unmarshal(b, &out); err != nil {
		t.Fatal(err)
	}
	return out
}

func TestSchemaAgreesWithDecoder(t *testing.T) {
	var schema map[string]any
	if err := json.Unmarshal(Schema(testOptions), &schema); err != nil {
		t.Fatal(err)
	}
	full, err := os.ReadFile("testdata/full.yaml")
	if err != nil {
		t.Fatal(err)
	}
	if errs := schemaErrors(schema, asJSON(t, full), ""); len(errs) > 0 {
		t.Errorf("the example does not fit the schema: %v", errs)
	}
	if errs := schemaErrors(schema, asJSON(t, treeOf(load(t, "full.yaml"))), ""); len(errs) > 0 {
		t.Errorf("the effective configuration does not fit the schema: %v", errs)
	}
	ar, err := txtar.ParseFile("testdata/bad.txtar")
	if err != nil {
		t.Fatal(err)
	}
	for _, f := range ar.Files {
		switch f.Name {
		case "keys.yaml", "units.yaml":
			if errs := schemaErrors(schema, asJSON(t, f.Data), ""); len(errs) == 0 {
				t.Errorf("%s fits the schema", f.Name)
			}
		}
	}
}

func TestTable(t *testing.T) {
	var walk func(o *object, path string)
	walk = func(o *object, path string) {
		seen := map[string]bool{}
		for i := range o.fields {
			f := &o.fields[i]
			if seen[f.key] {
				t.Errorf("%s.%s is there twice", path, f.key)
			}
			seen[f.key] = true
			if f.doc == "" || f.doc[len(f.doc)-1] != '.' {
				t.Errorf("%s.%s needs a sentence", path, f.key)
			}
			if f.obj != nil {
				walk(f.obj, path+"."+f.key)
			}
		}
	}
	walk(rootObject, "")
}
