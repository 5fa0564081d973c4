// SPDX-License-Identifier: Apache-2.0

package extproc

import (
	"encoding/json"
	"testing"

	"pgregory.net/rapid"
)

// anyJSON draws a JSON text with all that makes cutting hard: escapes, nesting,
// spaces, numbers at the end.
func anyJSON(t *rapid.T, depth int) string {
	str := rapid.SampledFrom([]string{`""`, `"a"`, `"\\"`, `"\""`, `"\u00e9x"`, `"long text, with: {marks} [in] it"`, `"\\\\\""`, `"é"`})
	kind := rapid.IntRange(0, 5).Draw(t, "kind")
	if depth <= 0 {
		kind = kind % 4
	}
	switch kind {
	case 0, 1:
		return str.Draw(t, "string")
	case 2:
		return rapid.SampledFrom([]string{"0", "-1.5e3", "12345678901234567890"}).Draw(t, "number")
	case 3:
		return rapid.SampledFrom([]string{"true", "false", "null"}).Draw(t, "literal")
	}
	open, end, sep := "[", "]", rapid.SampledFrom([]string{",", " , "}).Draw(t, "sep")
	if kind == 5 {
		open, end = "{", "}"
	}
	out := open
	for i := range rapid.IntRange(0, 4).Draw(t, "members") {
		if i > 0 {
			out += sep
		}
		if kind == 5 {
			out += str.Draw(t, "key") + rapid.SampledFrom([]string{":", " : "}).Draw(t, "colon")
		}
		out += anyJSON(t, depth-1)
	}
	return out + end
}

// TestAnyBeginningCanBeClosed: whatever the cut, in whatever pieces it came, the
// beginning of a JSON text becomes a JSON text.
func TestAnyBeginningCanBeClosed(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		text := `{"a":` + anyJSON(t, 4) + `,"b":` + anyJSON(t, 3) + `}`
		if !json.Valid([]byte(text)) {
			t.Fatalf("the generator is wrong: %s", text)
		}
		n := rapid.IntRange(1, len(text)-1).Draw(t, "cut")
		var tr tracker
		for from := 0; from < n; {
			to := rapid.IntRange(from+1, n).Draw(t, "piece")
			tr.feed([]byte(text[from:to]))
			from = to
		}
		cut, closing, ok := tr.complete()
		if !ok || cut > n {
			t.Fatalf("%q cannot be closed (cut %d)", text[:n], cut)
		}
		if done := text[:cut] + string(closing); !json.Valid([]byte(done)) {
			t.Fatalf("%q became %q", text[:n], done)
		}
	})
}

func TestModelIsCountedAtTheTop(t *testing.T) {
	for text, want := range map[string]int{
		`{"model":"a"}`: 1,
		`{"model":"a","x":{"model":1},"y":["model"]}`:  1,
		`{"model":"a","Model":"b"}`:                    2,
		`{"mod\u0065l":"a" , "messages":[]}`:           1,
		`{"\u006d\u006f\u0064\u0065\u006c" :"a"}`:      1,
		`{"models":"a","mode":"l","x":"model","":"m"}`: 0,
		`{"x":"\"model\":","model" `:                   0,
	} {
		for split := range len(text) {
			var tr tracker
			tr.feed([]byte(text[:split]))
			tr.feed([]byte(text[split:]))
			if tr.models != want {
				t.Errorf("%s split at %d: %d, want %d", text, split, tr.models, want)
			}
		}
	}
}
