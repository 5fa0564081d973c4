// SPDX-License-Identifier: Apache-2.0

package wire

import (
	"encoding/json"
	"errors"
	"reflect"
	"strings"
	"testing"
)

func same(t *testing.T, what string, got []byte, want string) {
	t.Helper()
	var a, b any
	if err := json.Unmarshal(got, &a); err != nil {
		t.Fatalf("%s: %v: %s", what, err, got)
	}
	if err := json.Unmarshal([]byte(want), &b); err != nil {
		t.Fatalf("%s: %v", what, err)
	}
	if !reflect.DeepEqual(a, b) {
		t.Errorf("%s:\n got %s\nwant %s", what, got, want)
	}
}

func TestMessagesToChat(t *testing.T) {
	for _, c := range [][3]string{
		{"plain", `{"model":"m","max_tokens":5,"messages":[{"role":"user","content":"hi"}]}`, `{"model":"m","max_tokens":5,"messages":[{"role":"user","content":"hi"}]}`},
		{"system blocks, stream, sampling", `{"model":"m","max_tokens":5,"stream":true,"temperature":0.5,"top_k":3,"stop_sequences":["x"],"metadata":{"user_id":"u"},"system":[{"type":"text","text":"a","cache_control":{"type":"ephemeral"}},{"type":"text","text":"b"}],"messages":[{"role":"user","content":[{"type":"text","text":"hi"}]}],"cache_salt":"s"}`,
			`{"model":"m","max_tokens":5,"stream":true,"stream_options":{"include_usage":true},"temperature":0.5,"top_k":3,"stop":["x"],"user":"u","cache_salt":"s","messages":[{"role":"system","content":"a\nb"},{"role":"user","content":"hi"}]}`},
		{"an image", `{"model":"m","max_tokens":5,"messages":[{"role":"user","content":[{"type":"image","source":{"type":"base64","media_type":"image/png","data":"AA=="}},{"type":"text","text":"what"}]}]}`,
			`{"model":"m","max_tokens":5,"messages":[{"role":"user","content":[{"type":"image_url","image_url":{"url":"data:image/png;base64,AA=="}},{"type":"text","text":"what"}]}]}`},
		{"tools", `{"model":"m","max_tokens":5,"tools":[{"name":"w","description":"d","input_schema":{"type":"object","properties":{"z":{},"a":{}}}}],"tool_choice":{"type":"any","disable_parallel_tool_use":true},
			"messages":[{"role":"user","content":"q"},{"role":"assistant","content":[{"type":"thinking","thinking":"hm","signature":"s"},{"type":"text","text":"ok"},{"type":"tool_use","id":"t1","name":"w","input":{"c":1.0}}]},
			{"role":"user","content":[{"type":"tool_result","tool_use_id":"t1","content":[{"type":"text","text":"sunny"}]},{"type":"text","text":"thanks"}]}]}`,
			`{"model":"m","max_tokens":5,"tools":[{"type":"function","function":{"name":"w","description":"d","parameters":{"type":"object","properties":{"z":{},"a":{}}}}}],"tool_choice":"required","parallel_tool_calls":false,
			"messages":[{"role":"user","content":"q"},{"role":"assistant","content":"ok","tool_calls":[{"id":"t1","type":"function","function":{"name":"w","arguments":"{\"c\":1.0}"}}]},
			{"role":"tool","tool_call_id":"t1","content":"sunny"},{"role":"user","content":"thanks"}]}`},
		{"only a call", `{"model":"m","max_tokens":5,"messages":[{"role":"assistant","content":[{"type":"tool_use","id":"t1","name":"w","input":{}}]}]}`,
			`{"model":"m","max_tokens":5,"messages":[{"role":"assistant","content":null,"tool_calls":[{"id":"t1","type":"function","function":{"name":"w","arguments":"{}"}}]}]}`},
		{"one tool", `{"model":"m","max_tokens":5,"tool_choice":{"type":"tool","name":"w"},"messages":[]}`,
			`{"model":"m","max_tokens":5,"tool_choice":{"type":"function","function":{"name":"w"}},"messages":null}`},
	} {
		got, err := MessagesToChat([]byte(c[1]))
		if err != nil {
			t.Errorf("%s: %v", c[0], err)
			continue
		}
		same(t, c[0], got, strings.Replace(c[2], `"messages":null`, `"messages":[]`, 1))
	}
	for _, body := range []string{
		`{"messages":[{"role":"user","content":[{"type":"document","source":{}}]}]}`, `{"messages":[],"tools":[{"type":"web_search_20250305","name":"x"}]}`,
		`{"messages":[],"tool_choice":{"type":"odd"}}`, `{"messages":[{"role":"user","content":7}]}`, `{"messages":[],"messages":[]}`, `{"messages":"x"}`,
	} {
		var bad *BadRequest
		if _, err := MessagesToChat([]byte(body)); !errors.As(err, &bad) {
			t.Errorf("%s: %v", body, err)
		}
	}
}

func TestChatToMessages(t *testing.T) {
	got, ok := ChatToMessages([]byte(`{"id":"c","choices":[{"message":{"role":"assistant","content":"hi","reasoning_content":"hm","tool_calls":[{"id":"t1","type":"function","function":{"name":"w","arguments":"{\"c\":1}"}}]},"finish_reason":"tool_calls"}],"usage":{"prompt_tokens":9,"completion_tokens":4,"prompt_tokens_details":{"cached_tokens":5}}}`), "alias", "r1")
	if !ok {
		t.Fatal("refused")
	}
	same(t, "answer", got, `{"id":"msg_r1","type":"message","role":"assistant","model":"alias","content":[{"type":"thinking","thinking":"hm","signature":""},{"type":"text","text":"hi"},{"type":"tool_use","id":"t1","name":"w","input":{"c":1}}],"stop_reason":"tool_use","stop_sequence":null,"usage":{"input_tokens":4,"cache_read_input_tokens":5,"output_tokens":4}}`)
	for finish, want := range map[string]string{`"stop"`: "end_turn", `"length"`: "max_tokens", `"content_filter"`: "refusal", `"stop","stop_reason":"END"`: "stop_sequence", `"stop","stop_reason":null`: "end_turn"} {
		got, ok := ChatToMessages([]byte(`{"choices":[{"message":{"content":"x"},"finish_reason":`+finish+`}]}`), "m", "r")
		if !ok || !strings.Contains(string(got), `"stop_reason":"`+want+`"`) {
			t.Errorf("%s: %s", finish, got)
		}
	}
	if _, ok := ChatToMessages([]byte(`{"choices":[]}`), "m", "r"); ok {
		t.Error("an answer without a choice passed")
	}
	same(t, "error", ChatErrorToMessages([]byte(`{"object":"error","message":"no","code":400}`), 400, "r1"), `{"type":"error","error":{"type":"invalid_request_error","message":"no","code":"engine_error"},"request_id":"r1"}`)
}

const chatStream = `: ping

data: {"id":"c","choices":[{"index":0,"delta":{"role":"assistant","content":""},"finish_reason":null}]}

data: {"id":"c","choices":[{"index":0,"delta":{"reasoning_content":"hm"}}]}

data: {"id":"c","choices":[{"index":0,"delta":{"content":"Hello"}}]}

data: {"id":"c","choices":[{"index":0,"delta":{"content":" café"}}]}

data: {"id":"c","choices":[{"index":0,"delta":{"tool_calls":[{"index":0,"id":"t1","type":"function","function":{"name":"w","arguments":""}}]}}]}

data: {"id":"c","choices":[{"index":0,"delta":{"tool_calls":[{"index":0,"function":{"arguments":"{\"c\":"}}]}}]}

data: {"id":"c","choices":[{"index":0,"delta":{"tool_calls":[{"index":0,"function":{"arguments":"1}"}}]}}]}

data: {"id":"c","choices":[{"index":0,"delta":{"tool_calls":[{"index":1,"id":"t2","function":{"name":"v","arguments":"{}"}}]}}]}

data: {"id":"c","choices":[{"index":0,"delta":{},"finish_reason":"tool_calls"}]}

data: {"id":"c","choices":[],"usage":{"prompt_tokens":9,"completion_tokens":4,"prompt_tokens_details":{"cached_tokens":5}}}

data: [DONE]

`

// However a stream is cut into reads, it becomes the same events.
func TestMessagesStream(t *testing.T) {
	var want string
	for _, step := range []int{len(chatStream), 1, 2, 3, 7, 64} {
		var s MessagesStream
		s.Reset("alias", "r1")
		got := ""
		for i := 0; i < len(chatStream); i += step {
			got += string(s.Feed([]byte(chatStream[i:min(i+step, len(chatStream))])))
		}
		got += string(s.Rest())
		if want == "" {
			want = got
		}
		if got != want {
			t.Fatalf("step %d:\n%s\nwant\n%s", step, got, want)
		}
	}
	var kinds []string
	for _, line := range strings.Split(want, "\n") {
		if k, ok := strings.CutPrefix(line, "event: "); ok {
			kinds = append(kinds, k)
		}
	}
	if got := strings.Join(kinds, " "); got != "message_start content_block_start content_block_delta content_block_stop content_block_start content_block_delta content_block_delta content_block_stop "+
		"content_block_start content_block_delta content_block_delta content_block_stop content_block_start content_block_delta content_block_stop message_delta message_stop" {
		t.Errorf("%s", got)
	}
	for _, part := range []string{
		`"delta":{"thinking":"hm","type":"thinking_delta"}`, `"text":" café"`, `"content_block":{"id":"t1","input":{},"name":"w","type":"tool_use"},"index":2`, `"partial_json":"{\"c\":"`,
		`"delta":{"stop_reason":"tool_use","stop_sequence":null}`, `"usage":{"input_tokens":4,"cache_read_input_tokens":5,"output_tokens":4}`, `"model":"alias"`,
	} {
		if !strings.Contains(want, part) {
			t.Errorf("no %s in\n%s", part, want)
		}
	}
	var s MessagesStream
	s.Reset("m", "r")
	if got := string(s.Feed([]byte("data: {\"error\":{\"message\":\"boom\"}}\n\ndata: [DONE]\n\n"))); !strings.HasPrefix(got, "event: error\n") || strings.Contains(got, "message_stop") {
		t.Errorf("%s", got)
	}
	s.Reset("m", "r")
	s.Feed([]byte("data: {\"choices\":[{\"delta\":{\"content\":\"x\"}}]}\n\n"))
	if got := string(s.Rest()); got != "" {
		t.Errorf("a stream that broke came to an end: %s", got)
	}
}

func TestCountTokensBodies(t *testing.T) {
	got, err := CountToTokenize([]byte(`{"model":"m","system":"s","messages":[{"role":"user","content":"x"}],"tools":[{"name":"w","input_schema":{}}]}`))
	if err != nil {
		t.Fatal(err)
	}
	same(t, "tokenize", got, `{"model":"m","messages":[{"role":"system","content":"s"},{"role":"user","content":"x"}],"tools":[{"type":"function","function":{"name":"w","parameters":{}}}]}`)
	if b, ok := TokenizeToCount([]byte(`{"count":7,"max_model_len":9,"tokens":[1]}`)); !ok || string(b) != `{"input_tokens":7}` {
		t.Errorf("%s", b)
	}
	if _, ok := TokenizeToCount([]byte(`{"x":1}`)); ok {
		t.Error("an answer without a count passed")
	}
}

func FuzzMessagesStream(f *testing.F) {
	f.Add(chatStream, 3)
	f.Add("data: {\"choices\":[{\"delta\":{\"tool_calls\":[{}]}}]}\r\n\r\ndata: [DONE]\r\n\r\n", 1)
	f.Fuzz(func(t *testing.T, text string, step int) {
		step = max(1, step%64)
		var whole, cut MessagesStream
		whole.Reset("m", "r")
		cut.Reset("m", "r")
		a := string(whole.Feed([]byte(text)))
		a += string(whole.Rest()) // in a statement of its own: it writes over what Feed returned
		b := ""
		for i := 0; i < len(text); i += step {
			b += string(cut.Feed([]byte(text[i:min(i+step, len(text))])))
		}
		if b += string(cut.Rest()); a != b {
			t.Fatalf("%q\n%q", a, b)
		}
	})
}
