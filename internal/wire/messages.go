// SPDX-License-Identifier: Apache-2.0

package wire

import (
	"bytes"
	"errors"
	"fmt"

	"github.com/go-json-experiment/json"
	"github.com/go-json-experiment/json/jsontext"
)

// The Messages API of Anthropic in terms of chat completions, for engines that do not
// speak it. Members that have no counterpart and change the answer are refused, those
// that only hint (cache_control, thinking, beta features) are left out.

type messagesRequest struct {
	Model       string         `json:"model"`
	MaxTokens   jsontext.Value `json:"max_tokens"`
	System      jsontext.Value `json:"system"`
	Messages    []message      `json:"messages"`
	Tools       []messagesTool `json:"tools"`
	ToolChoice  *toolChoice    `json:"tool_choice"`
	Stop        []string       `json:"stop_sequences"`
	Stream      bool           `json:"stream"`
	Temperature jsontext.Value `json:"temperature"`
	TopP        jsontext.Value `json:"top_p"`
	TopK        jsontext.Value `json:"top_k"`
	Metadata    *struct {
		UserID string `json:"user_id"`
	} `json:"metadata"`
	CacheSalt jsontext.Value `json:"cache_salt"`
	Priority  jsontext.Value `json:"priority"`
}

type message struct {
	Role    string         `json:"role"`
	Content jsontext.Value `json:"content"`
}

type messagesTool struct {
	Type        string         `json:"type"`
	Name        string         `json:"name"`
	Description string         `json:"description"`
	InputSchema jsontext.Value `json:"input_schema"`
}

type toolChoice struct {
	Type            string `json:"type"`
	Name            string `json:"name"`
	DisableParallel bool   `json:"disable_parallel_tool_use"`
}

type block struct {
	Type   string         `json:"type"`
	Text   string         `json:"text"`
	ID     string         `json:"id"`
	Name   string         `json:"name"`
	Input  jsontext.Value `json:"input"`
	ToolID string         `json:"tool_use_id"`
	// Content of a tool's result: text, or blocks.
	Content jsontext.Value `json:"content"`
	IsError bool           `json:"is_error"`
	Source  *struct {
		Type      string `json:"type"`
		MediaType string `json:"media_type"`
		Data      string `json:"data"`
		URL       string `json:"url"`
	} `json:"source"`
}

// chat completions, as far as they are written.
type chatRequest struct {
	Model         string         `json:"model"`
	Messages      []chatMessage  `json:"messages"`
	MaxTokens     jsontext.Value `json:"max_tokens,omitzero"`
	Tools         []chatTool     `json:"tools,omitempty"`
	ToolChoice    any            `json:"tool_choice,omitzero"`
	Parallel      *bool          `json:"parallel_tool_calls,omitzero"`
	Stop          []string       `json:"stop,omitempty"`
	Stream        bool           `json:"stream,omitzero"`
	StreamOptions *usageOption   `json:"stream_options,omitzero"`
	Temperature   jsontext.Value `json:"temperature,omitzero"`
	TopP          jsontext.Value `json:"top_p,omitzero"`
	TopK          jsontext.Value `json:"top_k,omitzero"`
	User          string         `json:"user,omitzero"`
	CacheSalt     jsontext.Value `json:"cache_salt,omitzero"`
	Priority      jsontext.Value `json:"priority,omitzero"`
}

type usageOption struct {
	IncludeUsage bool `json:"include_usage"`
}

type chatMessage struct {
	Role       string     `json:"role"`
	Content    any        `json:"content"`
	ToolCalls  []chatCall `json:"tool_calls,omitempty"`
	ToolCallID string     `json:"tool_call_id,omitzero"`
}

type chatCall struct {
	ID       string       `json:"id"`
	Type     string       `json:"type"`
	Function chatFunction `json:"function"`
}

type chatFunction struct {
	Name      string `json:"name"`
	Arguments string `json:"arguments"`
}

type chatTool struct {
	Type     string `json:"type"`
	Function struct {
		Name        string         `json:"name"`
		Description string         `json:"description,omitzero"`
		Parameters  jsontext.Value `json:"parameters,omitzero"`
	} `json:"function"`
}

type chatPart struct {
	Type     string        `json:"type"`
	Text     string        `json:"text,omitzero"`
	ImageURL *chatImageURL `json:"image_url,omitzero"`
}

type chatImageURL struct {
	URL string `json:"url"`
}

func unsupported(param, what string) *BadRequest {
	return &BadRequest{Param: param, Message: what + " is not supported by the engine behind this model", Code: CodeInvalidValue}
}

// MessagesToChat turns a body of the Messages API into one of chat completions. The
// error is a *BadRequest.
func MessagesToChat(body []byte) ([]byte, error) {
	var m messagesRequest
	if err := json.Unmarshal(body, &m); err != nil {
		return nil, badMessages(err)
	}
	out := chatRequest{
		Model: m.Model, MaxTokens: m.MaxTokens, Stop: m.Stop, Stream: m.Stream, Temperature: m.Temperature, TopP: m.TopP, TopK: m.TopK,
		CacheSalt: m.CacheSalt, Priority: m.Priority,
	}
	if m.Stream {
		out.StreamOptions = &usageOption{true}
	}
	if m.Metadata != nil {
		out.User = m.Metadata.UserID
	}
	if text, bad := plainText(m.System, "system"); bad != nil {
		return nil, bad
	} else if text != "" {
		out.Messages = append(out.Messages, chatMessage{Role: "system", Content: text})
	}
	for i := range m.Messages {
		list, bad := chatMessages(&m.Messages[i], fmt.Sprintf("messages[%d]", i))
		if bad != nil {
			return nil, bad
		}
		out.Messages = append(out.Messages, list...)
	}
	for i := range m.Tools {
		t := &m.Tools[i]
		if t.Type != "" && t.Type != "custom" {
			return nil, unsupported(fmt.Sprintf("tools[%d].type", i), "a tool of the type "+t.Type)
		}
		c := chatTool{Type: "function"}
		c.Function.Name, c.Function.Description, c.Function.Parameters = t.Name, t.Description, t.InputSchema
		out.Tools = append(out.Tools, c)
	}
	if bad := out.choose(m.ToolChoice); bad != nil {
		return nil, bad
	}
	b, err := json.Marshal(&out)
	if err != nil {
		return nil, badMessages(err)
	}
	return b, nil
}

func badMessages(err error) *BadRequest {
	bad := &BadRequest{Message: "the body does not fit the Messages API", Code: CodeInvalidType}
	var se *json.SemanticError
	if errors.As(err, &se) {
		bad.Param = string(bytes.TrimLeft([]byte(se.JSONPointer), "/"))
	}
	return bad
}

func (out *chatRequest) choose(c *toolChoice) *BadRequest {
	if c == nil {
		return nil
	}
	switch c.Type {
	case "auto", "none":
		out.ToolChoice = c.Type
	case "any":
		out.ToolChoice = "required"
	case "tool":
		out.ToolChoice = map[string]any{"type": "function", "function": map[string]string{"name": c.Name}}
	default:
		return unsupported("tool_choice", "this choice of tools")
	}
	if c.DisableParallel {
		no := false
		out.Parallel = &no
	}
	return nil
}

// plainText joins a string, or blocks of text.
func plainText(v jsontext.Value, where string) (string, *BadRequest) {
	switch v.Kind() {
	case 0, 'n':
		return "", nil
	case '"':
		var s string
		if json.Unmarshal(v, &s) != nil {
			return "", &BadRequest{Param: where, Message: where + " must be text", Code: CodeInvalidType}
		}
		return s, nil
	}
	var list []block
	if json.Unmarshal(v, &list) != nil {
		return "", &BadRequest{Param: where, Message: where + " must be text or a list of blocks", Code: CodeInvalidType}
	}
	text := ""
	for i := range list {
		if list[i].Type != "text" {
			return "", unsupported(where, "a block of the type "+list[i].Type)
		}
		if text != "" {
			text += "\n"
		}
		text += list[i].Text
	}
	return text, nil
}

// chatMessages turns one message into the one or more that chat completions need:
// results of tools are messages of their own there, and come first.
func chatMessages(m *message, where string) ([]chatMessage, *BadRequest) {
	if m.Content.Kind() == '"' || m.Content.Kind() == 0 || m.Content.Kind() == 'n' {
		text, bad := plainText(m.Content, where+".content")
		return []chatMessage{{Role: m.Role, Content: text}}, bad
	}
	var list []block
	if json.Unmarshal(m.Content, &list) != nil {
		return nil, &BadRequest{Param: where + ".content", Message: where + ".content must be text or a list of blocks", Code: CodeInvalidType}
	}
	var out []chatMessage
	var parts []chatPart
	var calls []chatCall
	for i := range list {
		b := &list[i]
		switch b.Type {
		case "text":
			parts = append(parts, chatPart{Type: "text", Text: b.Text})
		case "image":
			u := b.imageURL()
			if u == "" {
				return nil, unsupported(where+".content", "this source of an image")
			}
			parts = append(parts, chatPart{Type: "image_url", ImageURL: &chatImageURL{u}})
		case "tool_use":
			args := string(b.Input)
			if args == "" {
				args = "{}"
			}
			calls = append(calls, chatCall{ID: b.ID, Type: "function", Function: chatFunction{b.Name, args}})
		case "tool_result":
			text, bad := b.result(where, &parts)
			if bad != nil {
				return nil, bad
			}
			out = append(out, chatMessage{Role: "tool", Content: text, ToolCallID: b.ToolID})
		case "thinking", "redacted_thinking":
			// What a model thought before is not part of what it is told.
		default:
			return nil, unsupported(where+".content", "a block of the type "+b.Type)
		}
	}
	if len(parts) == 0 && len(calls) == 0 {
		if len(out) == 0 {
			out = append(out, chatMessage{Role: m.Role, Content: ""})
		}
		return out, nil
	}
	return append(out, chatMessage{Role: m.Role, Content: contentOf(parts), ToolCalls: calls}), nil
}

// contentOf is a string where there is only text: engines' templates know that best.
func contentOf(parts []chatPart) any {
	if len(parts) == 0 {
		return nil
	}
	text := ""
	for i := range parts {
		if parts[i].Type != "text" {
			return parts
		}
		if i > 0 {
			text += "\n"
		}
		text += parts[i].Text
	}
	return text
}

func (b *block) imageURL() string {
	switch s := b.Source; {
	case s == nil:
		return ""
	case s.Type == "base64":
		return "data:" + s.MediaType + ";base64," + s.Data
	case s.Type == "url":
		return s.URL
	}
	return ""
}

// result returns the text of a tool's result; its images go to the user's own parts,
// since chat completions take none in a result.
func (b *block) result(where string, parts *[]chatPart) (string, *BadRequest) {
	if k := b.Content.Kind(); k == 0 || k == 'n' || k == '"' {
		return plainText(b.Content, where+".content")
	}
	var list []block
	if json.Unmarshal(b.Content, &list) != nil {
		return "", &BadRequest{Param: where + ".content", Message: "the result of a tool must be text or a list of blocks", Code: CodeInvalidType}
	}
	text := ""
	for i := range list {
		switch x := &list[i]; x.Type {
		case "text":
			if text != "" {
				text += "\n"
			}
			text += x.Text
		case "image":
			u := x.imageURL()
			if u == "" {
				return "", unsupported(where+".content", "this source of an image")
			}
			*parts = append(*parts, chatPart{Type: "image_url", ImageURL: &chatImageURL{u}})
		default:
			return "", unsupported(where+".content", "a block of the type "+x.Type)
		}
	}
	return text, nil
}

// CountToTokenize turns a body of count_tokens into one of /tokenize.
func CountToTokenize(body []byte) ([]byte, error) {
	chat, err := MessagesToChat(body)
	if err != nil {
		return nil, err
	}
	var c struct {
		Model    jsontext.Value `json:"model"`
		Messages jsontext.Value `json:"messages"`
		Tools    jsontext.Value `json:"tools,omitzero"`
	}
	if err := json.Unmarshal(chat, &c); err != nil {
		return nil, badMessages(err)
	}
	return json.Marshal(&c)
}

// TokenizeToCount turns the answer of /tokenize into that of count_tokens.
func TokenizeToCount(answer []byte) ([]byte, bool) {
	var t struct {
		Count  *int             `json:"count"`
		Tokens []jsontext.Value `json:"tokens"`
	}
	if json.Unmarshal(answer, &t) != nil || t.Count == nil && t.Tokens == nil {
		return nil, false
	}
	n := len(t.Tokens)
	if t.Count != nil {
		n = *t.Count
	}
	return CountTokens(n), true
}

// CountTokens is the answer of count_tokens.
func CountTokens(n int) []byte { return fmt.Appendf(nil, `{"input_tokens":%d}`, n) }
