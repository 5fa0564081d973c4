// SPDX-License-Identifier: Apache-2.0

package wire

import (
	"bytes"
	"cmp"

	"github.com/go-json-experiment/json"
	"github.com/go-json-experiment/json/jsontext"
)

// chatAnswer is an answer of chat completions, or a chunk of one, as far as it is read.
type chatAnswer struct {
	ID      string       `json:"id"`
	Choices []chatChoice `json:"choices"`
	Usage   *chatUsage   `json:"usage"`
	Error   *chatError   `json:"error"`
	Message string       `json:"message"` // of an error without an object
	Object  string       `json:"object"`
}

type chatChoice struct {
	Message      *chatDelta     `json:"message"`
	Delta        *chatDelta     `json:"delta"`
	FinishReason string         `json:"finish_reason"`
	StopReason   jsontext.Value `json:"stop_reason"` // vLLM: the sequence that stopped it
}

type chatDelta struct {
	Content   string          `json:"content"`
	Reasoning string          `json:"reasoning_content"`
	Thinking  string          `json:"reasoning"`
	ToolCalls []chatCallDelta `json:"tool_calls"`
}

type chatCallDelta struct {
	Index    int          `json:"index"`
	ID       string       `json:"id"`
	Function chatFunction `json:"function"`
}

type chatUsage struct {
	Prompt  int `json:"prompt_tokens"`
	Output  int `json:"completion_tokens"`
	Details *struct {
		Cached int `json:"cached_tokens"`
	} `json:"prompt_tokens_details"`
}

type chatError struct {
	Message string `json:"message"`
}

// lenient reads what engines write: duplicate members and bytes that are no UTF-8 are
// theirs.
var lenient = json.JoinOptions(jsontext.AllowDuplicateNames(true), jsontext.AllowInvalidUTF8(true))

type messagesUsage struct {
	Input     int `json:"input_tokens"`
	CacheRead int `json:"cache_read_input_tokens"`
	Output    int `json:"output_tokens"`
}

func (u *chatUsage) messages() messagesUsage {
	if u == nil {
		return messagesUsage{}
	}
	m := messagesUsage{Input: u.Prompt, Output: u.Output}
	if u.Details != nil {
		m.CacheRead = u.Details.Cached
		m.Input -= m.CacheRead
	}
	return m
}

// stopReason turns a finish reason into that of the Messages API, with the sequence
// that stopped the answer where the engine tells.
func stopReason(c *chatChoice) (reason string, sequence *string) {
	switch c.FinishReason {
	case "length":
		return "max_tokens", nil
	case "tool_calls", "function_call":
		return "tool_use", nil
	case "content_filter":
		return "refusal", nil
	}
	if c.StopReason.Kind() == '"' {
		var s string
		if json.Unmarshal(c.StopReason, &s) == nil {
			return "stop_sequence", &s
		}
	}
	return "end_turn", nil
}

// ChatToMessages turns a whole answer of chat completions into one of the Messages
// API. model is the name that the client used, id that of the request. It reports
// false where the answer is not what it should be.
func ChatToMessages(answer []byte, model, id string) ([]byte, bool) {
	var a chatAnswer
	if json.Unmarshal(answer, &a, lenient) != nil || len(a.Choices) == 0 || a.Choices[0].Message == nil {
		return nil, false
	}
	c := &a.Choices[0]
	content := []any{}
	if t := cmp.Or(c.Message.Reasoning, c.Message.Thinking); t != "" {
		content = append(content, map[string]any{"type": "thinking", "thinking": t, "signature": ""})
	}
	if c.Message.Content != "" {
		content = append(content, map[string]any{"type": "text", "text": c.Message.Content})
	}
	for _, t := range c.Message.ToolCalls {
		input := jsontext.Value(t.Function.Arguments)
		if !input.IsValid() || input.Kind() != '{' {
			input = jsontext.Value("{}")
		}
		content = append(content, map[string]any{"type": "tool_use", "id": t.ID, "name": t.Function.Name, "input": input})
	}
	reason, sequence := stopReason(c)
	out, err := json.Marshal(map[string]any{
		"id": "msg_" + id, "type": "message", "role": "assistant", "model": model, "content": content,
		"stop_reason": reason, "stop_sequence": sequence, "usage": a.Usage.messages(),
	}, json.Deterministic(true), jsontext.AllowInvalidUTF8(true))
	return out, err == nil
}

// ChatErrorToMessages turns an engine's error of any shape into one of the Messages
// API with the engine's own message.
func ChatErrorToMessages(body []byte, status int, id string) []byte {
	msg := ""
	var a chatAnswer
	if json.Unmarshal(body, &a, lenient) == nil {
		msg = a.Message
		if a.Error != nil {
			msg = a.Error.Message
		}
	}
	if msg == "" {
		msg = string(body[:min(len(body), 2048)])
	}
	e := Error{Status: status, Code: "engine_error", Message: msg}
	return e.AppendBody(nil, FamilyAnthropic, id)
}

// MessagesStream turns an event stream of chat completions into one of the Messages
// API, event by event. Reset before use.
type MessagesStream struct {
	model, id string
	hold      []byte // of the line that is not complete
	out       []byte

	started bool
	kind    blockKind // of the block that is open
	index   int       // of it; -1: there was none
	call    int       // of a tool_use block: index of the call
	finish  *chatChoice
	usage   *chatUsage
	over    bool
}

type blockKind uint8

const (
	blockNone blockKind = iota
	blockText
	blockThinking
	blockTool
)

// Reset begins a new answer.
func (s *MessagesStream) Reset(model, id string) {
	*s = MessagesStream{model: model, id: id, hold: s.hold[:0], out: s.out[:0], index: -1}
}

// maxLine bounds a line of a stream, in bytes; a longer one ends what is translated.
const maxLine = 16 << 20

// Feed takes the next bytes and returns the events that they make, valid until the
// next call.
func (s *MessagesStream) Feed(p []byte) []byte {
	s.out = s.out[:0]
	for len(p) > 0 && !s.over {
		i := bytes.IndexAny(p, "\r\n")
		if i < 0 {
			if len(s.hold)+len(p) > maxLine {
				s.over = true
				break
			}
			s.hold = append(s.hold, p...)
			break
		}
		line := p[:i]
		if len(s.hold) > 0 {
			s.hold = append(s.hold, line...)
			line = s.hold
		}
		s.line(line)
		s.hold = s.hold[:0]
		p = p[i+1:]
	}
	return s.out
}

func (s *MessagesStream) line(line []byte) {
	data, ok := bytes.CutPrefix(line, []byte(dataField))
	if !ok {
		return
	}
	data = bytes.TrimSpace(data)
	if len(data) == 0 {
		return
	}
	if string(data) == "[DONE]" {
		s.end()
		return
	}
	var a chatAnswer
	if json.Unmarshal(data, &a, lenient) != nil {
		return
	}
	if a.Error != nil || a.Object == "error" {
		msg := a.Message
		if a.Error != nil {
			msg = a.Error.Message
		}
		e := Error{Status: 500, Code: "engine_error", Message: msg}
		s.out = e.AppendEvent(s.out, FamilyAnthropic, s.id, "")
		s.over = true
		return
	}
	if a.Usage != nil {
		s.usage = a.Usage
	}
	s.start()
	for i := range a.Choices {
		c := &a.Choices[i]
		if c.Delta != nil {
			s.delta(c.Delta)
		}
		if c.FinishReason != "" {
			kept := *c
			s.finish = &kept
		}
	}
}

func (s *MessagesStream) event(name string, v any) {
	b, err := json.Marshal(v, json.Deterministic(true), jsontext.AllowInvalidUTF8(true))
	if err != nil {
		return
	}
	s.out = append(s.out, "event: "...)
	s.out = append(s.out, name...)
	s.out = append(s.out, "\ndata: "...)
	s.out = append(s.out, b...)
	s.out = append(s.out, "\n\n"...)
}

func (s *MessagesStream) start() {
	if s.started {
		return
	}
	s.started = true
	s.event("message_start", map[string]any{"type": "message_start", "message": map[string]any{
		"id": "msg_" + s.id, "type": "message", "role": "assistant", "model": s.model, "content": []any{},
		"stop_reason": nil, "stop_sequence": nil, "usage": s.usage.messages(),
	}})
}

func (s *MessagesStream) delta(d *chatDelta) {
	if t := cmp.Or(d.Reasoning, d.Thinking); t != "" {
		s.open(blockThinking, 0, map[string]any{"type": "thinking", "thinking": "", "signature": ""})
		s.piece(map[string]any{"type": "thinking_delta", "thinking": t})
	}
	if d.Content != "" {
		s.open(blockText, 0, map[string]any{"type": "text", "text": ""})
		s.piece(map[string]any{"type": "text_delta", "text": d.Content})
	}
	for _, t := range d.ToolCalls {
		if s.kind != blockTool || s.call != t.Index {
			s.open(blockTool, t.Index, map[string]any{"type": "tool_use", "id": t.ID, "name": t.Function.Name, "input": map[string]any{}})
		}
		if t.Function.Arguments != "" {
			s.piece(map[string]any{"type": "input_json_delta", "partial_json": t.Function.Arguments})
		}
	}
}

// open begins a block where another kind, or none, is open.
func (s *MessagesStream) open(k blockKind, call int, v any) {
	if s.kind == k && (k != blockTool || s.call == call) {
		return
	}
	s.close()
	s.kind, s.call = k, call
	s.index++
	s.event("content_block_start", map[string]any{"type": "content_block_start", "index": s.index, "content_block": v})
}

func (s *MessagesStream) piece(v any) {
	s.event("content_block_delta", map[string]any{"type": "content_block_delta", "index": s.index, "delta": v})
}

func (s *MessagesStream) close() {
	if s.kind != blockNone {
		s.event("content_block_stop", map[string]any{"type": "content_block_stop", "index": s.index})
		s.kind = blockNone
	}
}

// end closes the message, once.
func (s *MessagesStream) end() {
	if s.over || s.finish == nil {
		return
	}
	s.over = true
	s.start()
	s.close()
	reason, sequence := stopReason(s.finish)
	s.event("message_delta", map[string]any{
		"type": "message_delta", "delta": map[string]any{"stop_reason": reason, "stop_sequence": sequence}, "usage": s.usage.messages(),
	})
	s.event("message_stop", map[string]any{"type": "message_stop"})
}

// Rest returns the last events of a stream that ended without [DONE], where it came to
// its own end.
func (s *MessagesStream) Rest() []byte {
	s.out = s.out[:0]
	if len(s.hold) > 0 {
		s.line(s.hold)
		s.hold = s.hold[:0]
	}
	s.end()
	return s.out
}
