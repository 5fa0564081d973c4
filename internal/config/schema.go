// SPDX-License-Identifier: Apache-2.0

package config

import (
	"bytes"
	"encoding/json"
	"fmt"
)

// Schema returns the JSON schema (draft 2020-12) of the file, made from the same
// table that the decoder reads.
func Schema(o Options) []byte {
	var b bytes.Buffer
	b.WriteString(`{"$schema":"https://json-schema.org/draft/2020-12/schema","title":"penstock.yaml",`)
	b.Write(schemaObject(rootObject, o)[1:])
	var out bytes.Buffer
	if err := json.Indent(&out, b.Bytes(), "", "  "); err != nil {
		panic("config: schema is not JSON: " + err.Error()) // the tests would find it
	}
	out.WriteByte('\n')
	return out.Bytes()
}

func schemaObject(obj *object, o Options) []byte {
	var b bytes.Buffer
	b.WriteString(`{"type":"object","additionalProperties":false,`)
	var req []string
	for i := range obj.fields {
		if obj.fields[i].required {
			req = append(req, obj.fields[i].key)
		}
	}
	if len(req) > 0 {
		fmt.Fprintf(&b, `"required":%s,`, mustJSON(req))
	}
	b.WriteString(`"properties":{`)
	for i := range obj.fields {
		if i > 0 {
			b.WriteByte(',')
		}
		f := &obj.fields[i]
		fmt.Fprintf(&b, "%q:", f.key)
		b.Write(schemaField(f, o))
	}
	b.WriteString("}}")
	return b.Bytes()
}

func schemaField(f *field, o Options) []byte {
	doc := f.doc
	if f.kind != kindObject && f.kind != kindObjects {
		if f.live {
			doc += " A reload applies a change."
		} else {
			doc += " A change needs a restart."
		}
	}
	var b bytes.Buffer
	fmt.Fprintf(&b, `{"description":%s,`, mustJSON(doc))
	b.Write(schemaType(f, o)[1:])
	return b.Bytes()
}

func schemaType(f *field, o Options) []byte {
	var b bytes.Buffer
	switch f.kind {
	case kindObject:
		return schemaObject(f.obj, o)
	case kindObjects:
		fmt.Fprintf(&b, `{"type":"array","items":%s}`, schemaObject(f.obj, o))
		return b.Bytes()
	case kindStrings:
		b.WriteString(`{"type":"array","items":{"type":"string"}`)
	case kindInt:
		b.WriteString(`{"type":"integer"`)
	case kindFloat:
		b.WriteString(`{"type":"number"`)
	case kindBool:
		b.WriteString(`{"type":"boolean"`)
	case kindDuration:
		b.WriteString(`{"type":["string","integer"],"pattern":"^(0|([0-9]+(\\.[0-9]+)?(ns|us|µs|ms|s|m|h))+|[0-9]+(\\.[0-9]+)?d)$","maximum":0,"minimum":0`)
	case kindBytes:
		b.WriteString(`{"type":"string","pattern":"^[0-9]+(\\.[0-9]+)? ?(B|kB|MB|GB|TB|KiB|MiB|GiB|TiB)$"`)
	case kindRatio:
		b.WriteString(`{"type":"string","pattern":"^[0-9]+(\\.[0-9]+)? ?%$"`)
	default:
		b.WriteString(`{"type":"string"`)
		if f.required {
			b.WriteString(`,"minLength":1`)
		}
	}
	if (f.kind == kindInt || f.kind == kindFloat) && (f.min != 0 || f.max != 0) {
		fmt.Fprintf(&b, `,"minimum":%v,"maximum":%.0f`, f.min, f.max)
	}
	schemaValues(&b, f, o)
	b.WriteByte('}')
	return b.Bytes()
}

func schemaValues(b *bytes.Buffer, f *field, o Options) {
	allowed := f.enum
	if f.known != nil {
		allowed = f.known(o)
	}
	if len(allowed) > 0 && f.key != "profile" { // a profile may also be a file
		fmt.Fprintf(b, `,"enum":%s`, mustJSON(allowed))
	}
	switch {
	case f.def != "" && (f.kind == kindInt || f.kind == kindFloat):
		fmt.Fprintf(b, `,"default":%s`, f.def)
	case f.def != "":
		fmt.Fprintf(b, `,"default":%s`, mustJSON(f.def))
	case f.kind == kindString && !f.required:
		b.WriteString(`,"default":""`)
	}
	if f.example != "" {
		ex := mustJSON(f.example)
		if f.kind == kindStrings {
			ex = mustJSON([]string{f.example})
		}
		fmt.Fprintf(b, `,"examples":[%s]`, ex)
	}
}
