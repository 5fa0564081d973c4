// SPDX-License-Identifier: Apache-2.0

package replica

import (
	"net/http"
	"slices"
	"strings"
	"testing"
	"unicode/utf8"

	"pgregory.net/rapid"
)

func detok(tokens []uint32) string {
	var b []byte
	for _, t := range tokens {
		b = appendText(b, t)
	}
	return string(b)
}

func TestTokensReturnTheirText(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		text := rapid.OneOf(rapid.String(), rapid.Map(rapid.SliceOf(rapid.Byte()), func(b []byte) string { return string(b) })).Draw(t, "text")
		tokens := appendTokens(nil, text)
		if got := detok(tokens); got != text {
			t.Fatalf("%q became %q", text, got)
		}
		for _, id := range tokens {
			if id >= vocabulary {
				t.Fatalf("token %d is outside of the vocabulary", id)
			}
		}
		ascii := len(text) == utf8.RuneCountInString(text) && utf8.ValidString(text)
		if want := (len(text) + 3) / 4; ascii && len(tokens) != want {
			t.Fatalf("%d bytes of ASCII make %d tokens", len(text), len(tokens))
		}
	})
}

// TestConversationKeepsItsTokens checks that a turn is a prefix of the next one and
// that an answer's tokens are the tokens of its text.
func TestConversationKeepsItsTokens(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		start, n := rapid.IntRange(0, 1<<17).Draw(t, "start"), rapid.IntRange(1, 300).Draw(t, "tokens")
		text := string(appendFiller(nil, start, 0, n))
		if len(text) != n*tokenBytes || len(appendTokens(nil, text)) != n {
			t.Fatalf("answer of %d tokens has %d bytes, %d tokens", n, len(text), len(appendTokens(nil, text)))
		}
		k := rapid.IntRange(0, n).Draw(t, "piece")
		if pieces := string(appendFiller(appendFiller(nil, start, 0, k), start, k, n)); pieces != text {
			t.Fatal("pieces of an answer differ from the whole")
		}
		user := message{Role: "user", Content: stringValue("question")}
		first, _ := renderChat([]message{user}, nil, true)
		next, _ := renderChat([]message{user, {Role: "assistant", Content: stringValue(text)}, user}, nil, true)
		all := appendTokens(slices.Clone(first), text)
		if len(next) < len(all) || !slices.Equal(next[:len(all)], all) {
			t.Fatal("the next turn does not begin with the turn before and its answer")
		}
	})
}

func TestNaturalLength(t *testing.T) {
	sum, n := 0, 20000
	for i := range n {
		l := naturalLength(uint64(i)*0x9e3779b97f4a7c15+7, 180)
		if l < 1 || l > 3600 {
			t.Fatalf("length %d", l)
		}
		sum += l
	}
	if mean := float64(sum) / float64(n); mean < 160 || mean > 200 {
		t.Errorf("mean length %.1f, want 180", mean)
	}
}

// FuzzChatBody checks that no body makes the replica panic and that every refusal
// has a status and a type.
func FuzzChatBody(f *testing.F) {
	for _, seed := range []string{
		`{"model":"tiny","messages":[{"role":"user","content":"a"}],"max_tokens":3}`,
		`{"messages":[{"role":"user","content":[{"type":"text","text":"a"},{"type":"image_url","image_url":{"url":"x"}}]}],"stop":["a"]}`,
		`{"messages":[{"role":"assistant","content":null,"tool_calls":[{"id":"1"}]}],"tools":[]}`,
		`{"model":"tiny","messages":[{"role":"user","content":"\ud800"}],"n":1,"seed":-1}`,
		`{"model":"tiny","prompt":[1,2,3],"stop":"x","min_tokens":5}`, `[]`, `{"prompt":[[1]]}`, `null`, ``,
	} {
		f.Add(seed)
	}
	s, err := New(Options{Models: []string{"tiny"}, KVTokens: 4096})
	if err != nil {
		f.Fatal(err)
	}
	f.Cleanup(s.Close)
	f.Fuzz(func(t *testing.T, body string) {
		for _, chat := range []bool{true, false} {
			r, _ := http.NewRequest(http.MethodPost, "/", strings.NewReader(body))
			c := &call{}
			var err *apiError
			if chat {
				var q chatRequest
				if err = readBody(r, &q); err == nil && q.Messages != nil {
					if c.tokens, err = renderChat(*q.Messages, q.Tools, true); err == nil {
						err = s.finish(c, &q.params)
					}
				}
			} else {
				var q completionRequest
				if err = readBody(r, &q); err == nil {
					if c.tokens, err = parsePrompt(q.Prompt); err == nil {
						err = s.finish(c, &q.params)
					}
				}
			}
			switch {
			case err != nil && (err.status < 400 || err.typ == "" || err.msg == ""):
				t.Fatalf("refusal %+v", err)
			case err == nil && c.maxTokens > 0:
				if j := s.job(c); j.seq.OutputTokens < 1 || len(c.text(nil, 0, c.outputTokens)) > c.outputTokens*tokenBytes {
					t.Fatalf("job %+v", j.seq)
				}
			}
		}
	})
}
