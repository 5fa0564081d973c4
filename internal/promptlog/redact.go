// SPDX-License-Identifier: Apache-2.0

package promptlog

import (
	"bytes"
	"encoding/json"
	"regexp"
	"strings"
)

// Redactor takes out of a text what must not be recorded.
type Redactor interface {
	Redact(text string) string
}

// pattern replaces what an expression matches with its name in brackets.
type pattern struct {
	name string
	re   *regexp.Regexp
}

type patterns []pattern

// builtIn are the patterns of what is personal or secret whoever writes it. They
// would rather take too much: a long number may be anything.
var builtIn = func() patterns {
	var out patterns
	for _, p := range [][2]string{
		{"key", `-----BEGIN [A-Z ]+-----[\s\S]*?(-----END [A-Z ]+-----|$)`},
		{"key", `\b(sk|pk|rk|psk|ghp|gho|ghs|github_pat|glpat|xox[abprs]|hf|AKIA|ASIA|AIza)[-_]?[A-Za-z0-9_\-]{12,}`},
		{"token", `\beyJ[A-Za-z0-9_\-]+\.[A-Za-z0-9_\-]+\.[A-Za-z0-9_\-]*`},
		{"token", `(?i)\b(bearer|basic)\s+[A-Za-z0-9._~+/=\-]{8,}`},
		{"secret", `(?i)\b(pass(word|wd|phrase)?|secret|api[_-]?key|token|pwd)\b\s*[:=]\s*\S+`},
		{"email", `(?i)[a-z0-9._%+\-]+\s*@\s*[a-z0-9.\-]+\.[a-z]{2,}`},
		{"iban", `\b[A-Z]{2}\d{2}(\s?[A-Z0-9]{4}){2,7}(\s?[A-Z0-9]{1,4})?\b`},
		{"address", `\b\d{1,3}(\.\d{1,3}){3}\b`},
		{"address", `(?i)\b([0-9a-f]{1,4}:){3,7}[0-9a-f]{0,4}\b`},
		{"user", `(?i)([a-z][a-z0-9+.\-]*://)[^\s/@]+@`},
		{"number", `\+?\(?\d(?:[\s().\-/]{0,2}\d){6,}`},
		{"hex", `\b[0-9a-fA-F]{32,}\b`},
		{"data", `[A-Za-z0-9+/_\-]{64,}={0,2}`},
	} {
		out = append(out, pattern{p[0], regexp.MustCompile(p[1])})
	}
	return out
}()

// NewRedactor returns the built-in patterns and further ones, whose matches become
// [custom]. The expressions must compile.
func NewRedactor(more []*regexp.Regexp) Redactor {
	out := append(patterns(nil), builtIn...)
	for _, re := range more {
		out = append(out, pattern{"custom", re})
	}
	return out
}

// Redact implements Redactor.
func (p patterns) Redact(text string) string {
	for i := range p {
		text = p[i].re.ReplaceAllString(text, "["+p[i].name+"]")
	}
	return text
}

// redactBody redacts every string of a JSON body, each by itself and with its escapes
// undone. Media are dropped. What is no JSON is not shown at all.
func redactBody(r Redactor, body []byte) string {
	dec := json.NewDecoder(bytes.NewReader(body))
	dec.UseNumber()
	var v any
	if dec.Decode(&v) != nil {
		return ""
	}
	b, err := json.Marshal(redactValue(r, v))
	if err != nil {
		return ""
	}
	return string(b)
}

func redactValue(r Redactor, v any) any {
	switch v := v.(type) {
	case string:
		if strings.HasPrefix(v, "data:") {
			return "[media]"
		}
		return r.Redact(v)
	case json.Number:
		if len(v) > 12 {
			return "[number]"
		}
		return v
	case []any:
		for i := range v {
			v[i] = redactValue(r, v[i])
		}
		return v
	case map[string]any:
		for k, x := range v {
			if clean := r.Redact(k); clean != k {
				delete(v, k)
				k = clean
			}
			if k == "data" || k == "file_data" {
				v[k] = "[media]"
				continue
			}
			v[k] = redactValue(r, x)
		}
		return v
	}
	return v
}

// answerText returns the text that a model wrote, out of a whole answer or an event
// stream of any family: pieces of a stream are joined, since what is to be redacted is
// spread over them. What it does not know it leaves out.
func answerText(answer []byte) string {
	var out strings.Builder
	one := func(b []byte) {
		var v any
		if json.Unmarshal(b, &v) == nil {
			collect(&out, v, "")
		}
	}
	if t := bytes.TrimLeft(answer, " \t\r\n"); len(t) > 0 && t[0] == '{' {
		one(answer)
		return out.String()
	}
	for _, line := range bytes.FieldsFunc(answer, func(r rune) bool { return r == '\n' || r == '\r' }) {
		if data, ok := bytes.CutPrefix(line, []byte("data:")); ok {
			one(data)
		}
	}
	return out.String()
}

// textKeys name the members that hold written text in answers of the families that are
// served.
var textKeys = map[string]bool{
	"content": true, "text": true, "reasoning": true, "reasoning_content": true, "thinking": true, "arguments": true, "partial_json": true, "delta": true, "refusal": true,
	"output_text": true, "message": true,
}

// whole events of the Responses API repeat what their deltas said.
var repeats = map[string]bool{
	"response.output_text.done": true, "response.content_part.done": true, "response.output_item.done": true, "response.completed": true, "response.incomplete": true,
	"response.function_call_arguments.done": true, "response.reasoning_text.done": true,
}

func collect(out *strings.Builder, v any, key string) {
	switch v := v.(type) {
	case string:
		if textKeys[key] {
			out.WriteString(v)
		}
	case []any:
		for _, x := range v {
			collect(out, x, key)
		}
	case map[string]any:
		if t, _ := v["type"].(string); repeats[t] {
			return
		}
		// In the order in which people read them.
		for _, k := range []string{
			"choices", "output", "delta", "message", "content_block", "part", "reasoning", "reasoning_content", "thinking", "content", "text", "refusal",
			"tool_calls", "function", "arguments", "partial_json", "error", "response",
		} {
			if x, ok := v[k]; ok {
				collect(out, x, k)
			}
		}
	}
}
