// SPDX-License-Identifier: Apache-2.0

package wire

import (
	"bytes"
	"encoding/json"
	"os"
	"regexp"
	"strings"
	"testing"

	"github.com/penstock-project/penstock/internal/testinput"
)

// follow feeds body in pieces of size n (0: all at once) and returns what came out.
func follow(s *AnswerScanner, events bool, alias, body string, n int) string {
	s.Reset(events, alias)
	var out bytes.Buffer
	if n == 0 {
		n = len(body)
	}
	for len(body) > 0 {
		k := min(n, len(body))
		out.Write(s.Feed([]byte(body[:k])))
		body = body[k:]
	}
	s.Close()
	return out.String()
}

// streams splits a file of examples: "### NAME" lines part them.
func streams(t *testing.T, rel string) map[string]string {
	t.Helper()
	b, err := os.ReadFile(testinput.Shared(t, rel))
	if err != nil {
		t.Fatal(err)
	}
	out := map[string]string{}
	parts := regexp.MustCompile(`(?m)^### (\d+).*\n`).FindAllSubmatchIndex(b, -1)
	for i, p := range parts {
		end := len(b)
		if i+1 < len(parts) {
			end = parts[i+1][0]
		}
		out[string(b[p[2]:p[3]])] = string(b[p[1]:end])
	}
	return out
}

func TestUsageShapesOfTheField(t *testing.T) {
	all := streams(t, "cases/39-usage-chunk-shapes/streams.txt")
	if len(all) != 7 {
		t.Fatalf("%d streams", len(all))
	}
	for name, body := range all {
		for _, eol := range []string{"\n", "\r\n", "\r"} {
			text := strings.ReplaceAll(body, "\n", eol)
			for n := range len(text) {
				var s AnswerScanner
				if out := follow(&s, true, "", text, n); out != text {
					t.Fatalf("stream %s: bytes changed", name)
				}
				if s.PromptTokens != 98 || s.OutputTokens != 2 || !s.Complete() || s.ErrorCode != 0 || s.Done != (name != "7") {
					t.Fatalf("stream %s, %q, pieces of %d: %+v", name, eol, n, s.Answer)
				}
				if s.Frames < 1 || s.Frames > 2 {
					t.Fatalf("stream %s: %d frames", name, s.Frames)
				}
			}
		}
	}
}

func TestErrorsInsideStreamsOfTheField(t *testing.T) {
	all := streams(t, "cases/40-midstream-error/streams.txt")
	want := map[string]int{"1": 504, "2": 400, "3": 400, "4": 0}
	for name, code := range want {
		for n := range len(all[name]) {
			var s AnswerScanner
			follow(&s, true, "", all[name], n)
			if s.ErrorCode != code || s.Complete() != (code != 0) {
				t.Fatalf("stream %s in pieces of %d: %+v", name, n, s.Answer)
			}
		}
	}
}

func TestAnswerShapes(t *testing.T) {
	anthropic := `event: message_start
data: {"type":"message_start","message":{"id":"m1","model":"real","usage":{"input_tokens":10,"cache_read_input_tokens":90,"output_tokens":1}}}

event: ping
data: {"type": "ping"}

event: content_block_delta
data: {"type":"content_block_delta","index":0,"delta":{"type":"text_delta","text":"Hi"}}

event: message_delta
data: {"type":"message_delta","delta":{"stop_reason":"end_turn"},"usage":{"output_tokens":7}}

event: message_stop
data: {"type":"message_stop"}

`
	responses := `event: response.created
data: {"type":"response.created","response":{"id":"resp_1","model":"real","status":"in_progress","error":null,"usage":null}}

event: response.output_text.delta
data: {"type":"response.output_text.delta","delta":"Hi"}

event: response.completed
data: {"type":"response.completed","response":{"id":"resp_1","model":"real","status":"completed","usage":{"input_tokens":50,"input_tokens_details":{"cached_tokens":32},"output_tokens":3}}}

`
	for _, c := range []struct {
		name   string
		events bool
		body   string
		want   Answer
	}{
		{"anthropic", true, anthropic, Answer{100, 90, 7, 1, 5, true, true, 0}},
		{"responses", true, responses, Answer{50, 32, 3, 1, 3, true, true, 0}},
		{"responses failed", true, `data: {"type":"response.failed","response":{"status":"failed","error":{"code":"server_error"}}}` + "\n\n", Answer{-1, -1, -1, 0, 1, false, false, 500}},
		{"anthropic error", true, `data: {"type":"error","error":{"type":"overloaded_error","message":"x"}}` + "\n\n", Answer{-1, -1, -1, 0, 1, false, false, 503}},
		{"bare error", true, "data: {\"choices\":[{\"delta\":{\"content\":\"a\"}}]}\n\n{\"error\":{\"code\":\"503\"}}", Answer{-1, -1, -1, 1, 2, false, false, 503}},
		{"error string", true, "data: {\"error\":\"boom\"}\n\n", Answer{-1, -1, -1, 0, 1, false, false, 500}},
		{"fooled by text", true, `data: {"choices":[{"delta":{"content":"\"usage\":{\"prompt_tokens\":1} [DONE] \\"}}],"x":{"usage":{"prompt_tokens":5},"error":{"code":1}}}` + "\n\n", Answer{-1, -1, -1, 1, 1, false, false, 0}},
		{"comments", true, ": keep-alive\n\n: data: [DONE]\n\nid: 7\nretry: 1\n\ndata:[DONE]", Answer{-1, -1, -1, 0, 1, false, true, 0}},
		{"not done", true, "data: [DONE\n\ndata: [DONX]\n\n", Answer{-1, -1, -1, 0, 2, false, false, 0}},
		{"data over lines", true, "data: {\"usage\":\ndata: {\"prompt_tokens\": 4}}\n\n", Answer{4, -1, -1, 0, 1, false, false, 0}},
		{"tool call", true, `data: {"choices":[{"delta":{"tool_calls":[{"index":0}]},"finish_reason":null},{"delta":{},"finish_reason":"stop"}]}` + "\n\n", Answer{-1, -1, -1, 1, 1, true, false, 0}},
		{"completions", true, `data: {"choices":[{"text":"a","finish_reason":null}]}` + "\n\n", Answer{-1, -1, -1, 1, 1, false, false, 0}},
		{"json", false, `{"id":"x","choices":[{"message":{"content":"hi \"usage\""},"finish_reason":"stop","logprobs":{"content":[{"token":"}"}]}}],"usage":{"prompt_tokens":12,"completion_tokens":3,"prompt_tokens_details":{"cached_tokens":8,"x":[1,{"cached_tokens":99}]}}}`, Answer{12, 8, 3, 0, 0, true, false, 0}},
		{"embeddings", false, `{"data":[{"embedding":[0.1,-2e-5,3]}],"usage":{"prompt_tokens":4,"total_tokens":4}}`, Answer{4, -1, -1, 0, 0, false, false, 0}},
		{"engine error", false, `{"object":"error","message":"m","type":"BadRequestError","param":null,"code":400}`, Answer{-1, -1, -1, 0, 0, false, false, 400}},
		{"negative", false, `{"usage":{"prompt_tokens":-4,"completion_tokens":2.9}}`, Answer{-1, -1, 2, 0, 0, false, false, 0}},
	} {
		for n := range len(c.body) {
			var s AnswerScanner
			out := follow(&s, c.events, "", c.body, n)
			if out != c.body || s.Answer != c.want {
				t.Fatalf("%s in pieces of %d: got %+v, want %+v", c.name, n, s.Answer, c.want)
			}
		}
	}
	var s AnswerScanner
	follow(&s, true, "", responses, 7)
	if s.ResponseID() != "resp_1" {
		t.Errorf("response id %q", s.ResponseID())
	}
}

func TestRename(t *testing.T) {
	body := `data: {"model":"real","choices":[{"delta":{"content":"\"model\":\"real\""}}],"x":{"model":"real"}}

data: {"model" : "re\"al","type":"message_start","message":{"model":"real"}}

data: {"model":null}

data: {"model":""}

`
	want := strings.NewReplacer(`{"model":"real","`, `{"model":"an alias","`, `"re\"al"`, `"an alias"`, `"message":{"model":"real"}`,
		`"message":{"model":"an alias"}`, `{"model":""}`, `{"model":"an alias"}`).Replace(body)
	want = strings.Replace(want, `"x":{"model":"an alias"`, `"x":{"model":"real"`, 1)
	for n := range len(body) {
		var s AnswerScanner
		if got := follow(&s, true, "an alias", body, n); got != want {
			t.Fatalf("pieces of %d: got\n%s\nwant\n%s", n, got, want)
		}
	}
}

func TestGap(t *testing.T) {
	for _, c := range []struct{ body, want string }{
		{"", ""}, {"data: a\n\n", ""}, {": c\n\n", ""}, {"data: a\n", "\n"}, {"event: x\n", "\n"}, {"data: a", "\n\n"},
		{"data: a\r", "\n\n"}, {"data: a\r\n", "\n"}, {"da", "\n\n"}, {"data: a\r\r", ""},
	} {
		for n := range 3 {
			var s AnswerScanner
			follow(&s, true, "", c.body, n)
			if got := s.Gap(); got != c.want {
				t.Errorf("%q: gap %q, want %q", c.body, got, c.want)
			}
		}
	}
}

func TestFollowingDoesNotAllocate(t *testing.T) {
	chunk := []byte(`data: {"id":"chatcmpl-1","object":"chat.completion.chunk","created":1,"model":"m","choices":[{"index":0,"delta":{"content":" tok"},"finish_reason":null}]}` + "\n\n")
	for _, alias := range []string{"", "alias"} {
		var s AnswerScanner
		s.Reset(true, alias)
		s.Feed(chunk)
		if n := testing.AllocsPerRun(100, func() { s.Feed(chunk) }); n != 0 {
			t.Errorf("alias %q: %v allocations a chunk", alias, n)
		}
	}
}

func TestErrorBodies(t *testing.T) {
	e := &Error{Status: 404, Code: CodeModelNotFound, Param: "model", Message: "the model \"a\xff\n\x7f\" does not exist"}
	for _, f := range []Family{FamilyOpenAI, FamilyAnthropic, FamilyResponses} {
		var v map[string]any
		if err := json.Unmarshal(e.AppendBody(nil, f, "id-1"), &v); err != nil {
			t.Fatal(err)
		}
		inner := v["error"].(map[string]any)
		if inner["code"] != CodeModelNotFound || !strings.Contains(inner["message"].(string), "does not exist") {
			t.Errorf("%v", v)
		}
		if (f == FamilyAnthropic) != (v["type"] == "error" && v["request_id"] == "id-1" && inner["type"] == "not_found_error") {
			t.Errorf("family %d: %v", f, v)
		}
		// Our own last event is an error to our own scanner.
		var s AnswerScanner
		follow(&s, true, "", string(e.AppendEvent(nil, f, "id-1", "r")), 0)
		if s.ErrorCode == 0 {
			t.Errorf("family %d: %+v", f, s.Answer)
		}
	}
}

func BenchmarkAnswer(b *testing.B) {
	chunk := []byte(`data: {"id":"chatcmpl-1","object":"chat.completion.chunk","created":1700000000,"model":"llama-3.1-8b","choices":[{"index":0,"delta":{"content":" token"},"logprobs":null,"finish_reason":null}]}` + "\n\n")
	b.Run("chunk", func(b *testing.B) {
		var s AnswerScanner
		s.Reset(true, "")
		b.SetBytes(int64(len(chunk)))
		b.ReportAllocs()
		for b.Loop() {
			s.Feed(chunk)
		}
	})
	numbers := []byte(`{"data":[{"embedding":[` + strings.Repeat("-0.01234567,", 1<<17) + `0]}]}`)
	b.Run("embeddings", func(b *testing.B) {
		var s AnswerScanner
		b.SetBytes(int64(len(numbers)))
		for b.Loop() {
			s.Reset(false, "")
			s.Feed(numbers)
		}
	})
}

func FuzzAnswer(f *testing.F) {
	for _, s := range []string{
		"data: {\"choices\":[{\"delta\":{\"content\":\"a\"}}],\"usage\":{\"prompt_tokens\":1}}\n\ndata: [DONE]\n\n",
		"event: x\r\ndata:{\"type\":\"message_start\",\"message\":{\"model\":\"m\"}}\r\r", ":c\n\n{\"error\":{}}",
		`{"object":"error","code":"503","model":"x"}`, `{"a":[[[{}]]],"usage":{"prompt_tokens":-1}}`,
	} {
		f.Add([]byte(s), true, uint8(3), "alias")
		f.Add([]byte(s), false, uint8(1), "")
	}
	f.Fuzz(func(t *testing.T, body []byte, events bool, n uint8, alias string) {
		// However it is split: same findings, same bytes.
		var whole, split AnswerScanner
		a := follow(&whole, events, alias, string(body), 0)
		b := follow(&split, events, alias, string(body), int(n))
		if a != b || whole.Answer != split.Answer || whole.Gap() != split.Gap() {
			t.Fatalf("pieces of %d: %+v %q, whole: %+v %q", n, split.Answer, b, whole.Answer, a)
		}
		if alias == "" && a != string(body) {
			t.Fatalf("bytes changed: %q", a)
		}
		if events || !json.Valid(body) {
			return
		}
		compareUsage(t, &whole, body)
	})
}

// compareUsage compares the usage found with what encoding/json finds, where the
// text leaves no choice (no repeated members).
func compareUsage(t *testing.T, s *AnswerScanner, body []byte) {
	var v struct {
		Usage struct {
			Prompt *int `json:"prompt_tokens"`
		} `json:"usage"`
	}
	if bytes.Count(body, []byte("sage")) != 1 || bytes.Count(body, []byte("_tokens")) != 1 || bytes.ContainsAny(body, `\.eE+-`) == false {
		return
	}
	if json.Unmarshal(body, &v) == nil && v.Usage.Prompt != nil && bytes.Contains(body, []byte(`"prompt_tokens"`)) &&
		bytes.Contains(body, []byte(`"usage"`)) && *v.Usage.Prompt >= 0 && *v.Usage.Prompt < 1e9 && s.PromptTokens != *v.Usage.Prompt {
		t.Fatalf("prompt tokens %d, want %d: %q", s.PromptTokens, *v.Usage.Prompt, body)
	}
}
