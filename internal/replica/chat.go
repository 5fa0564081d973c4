// SPDX-License-Identifier: Apache-2.0

package replica

import (
	"net/http"
	"strings"

	"github.com/go-json-experiment/json"
	"github.com/go-json-experiment/json/jsontext"
)

type chatRequest struct {
	params     `json:",inline"`
	Messages   *[]message     `json:"messages"`
	Tools      jsontext.Value `json:"tools"`
	Generation *bool          `json:"add_generation_prompt"`
}

// renderChat is the chat template: a head with the role, the content, an end mark
// for each message, and the head of the answer. A conversation that grows keeps the
// tokens of what came before.
func renderChat(messages []message, tools jsontext.Value, generation bool) ([]uint32, *apiError) {
	dst := make([]uint32, 0, 64)
	dst = append(dst, tokBegin)
	if len(tools) > 0 && tools.Kind() == '[' {
		dst = append(dst, tokTools)
		dst = appendTokens(dst, string(tools))
	}
	for i := range messages {
		m := &messages[i]
		if m.Role == "" {
			return nil, invalidBody("body.messages", "Field required at body.messages.%d.role", i)
		}
		dst = appendHead(dst, m.Role)
		var err *apiError
		if dst, err = appendContent(dst, m.Content); err != nil {
			return nil, err
		}
		if len(m.ToolCalls) > 0 && m.ToolCalls.Kind() == '[' {
			dst = append(dst, tokTools)
			dst = appendTokens(dst, string(m.ToolCalls))
		}
		dst = append(dst, tokEnd)
	}
	if generation {
		dst = appendHead(dst, "assistant")
	}
	return dst, nil
}

// part is one part of a message: text, or something else that counts as an image.
type part struct {
	Type     string         `json:"type"`
	Text     string         `json:"text"`
	ImageURL jsontext.Value `json:"image_url"`
	Source   jsontext.Value `json:"source"`
	Content  jsontext.Value `json:"content"`
}

func appendContent(dst []uint32, v jsontext.Value) ([]uint32, *apiError) {
	switch {
	case len(v) == 0 || v.Kind() == 'n':
		return dst, nil
	case v.Kind() == '"':
		var text string
		if err := json.Unmarshal(v, &text, lenient); err != nil {
			return nil, invalidBody("body.messages", "Input should be a valid string at body.messages")
		}
		return appendTokens(dst, text), nil
	case v.Kind() != '[':
		return nil, invalidBody("body.messages", "Input should be a valid string or list of parts at body.messages")
	}
	var parts []part
	if err := json.Unmarshal(v, &parts, lenient); err != nil {
		return nil, invalidBody("body.messages", "Input should be a valid list of parts at body.messages")
	}
	for i := range parts {
		p := &parts[i]
		switch {
		case strings.HasSuffix(p.Type, "text"): // text, input_text, output_text
			dst = appendTokens(dst, p.Text)
		case len(p.ImageURL) > 0:
			dst = appendImage(dst, string(p.ImageURL))
		case len(p.Source) > 0:
			dst = appendImage(dst, string(p.Source))
		case len(p.Content) > 0: // a tool result
			var err *apiError
			if dst, err = appendContent(dst, p.Content); err != nil {
				return nil, err
			}
		case p.Type == "":
			return nil, invalidBody("body.messages", "Field required: type of a content part at body.messages")
		}
	}
	return dst, nil
}

func (s *Server) chat(w http.ResponseWriter, r *http.Request) {
	f := &chatFormat{id: requestID(r, "chatcmpl-")}
	var req chatRequest
	c := &call{}
	err := readBody(r, &req)
	switch {
	case err != nil:
	case req.Messages == nil:
		err = invalidBody("body.messages", "Field required at body.messages")
	case len(*req.Messages) == 0:
		err = badRequest("messages", "messages must not be empty.")
	default:
		if c.tokens, err = renderChat(*req.Messages, req.Tools, req.Generation == nil || *req.Generation); err == nil {
			err = s.finish(c, &req.params)
		}
	}
	s.serve(w, r, c, f, err)
}

type completionRequest struct {
	params `json:",inline"`
	Prompt jsontext.Value `json:"prompt"`
	Suffix *string        `json:"suffix"`
}

// defaultCompletionTokens is the limit of /v1/completions where the client sets none.
const defaultCompletionTokens = 16

func (s *Server) completions(w http.ResponseWriter, r *http.Request) {
	f := &completionFormat{id: requestID(r, "cmpl-")}
	var req completionRequest
	c := &call{}
	err := readBody(r, &req)
	if err == nil {
		c.tokens, err = parsePrompt(req.Prompt)
	}
	if err == nil && req.MaxTokens == nil && req.MaxCompletionTokens == nil {
		n := min(defaultCompletionTokens, max(1, s.profile.MaxModelLen-len(c.tokens)))
		req.MaxTokens = &n
	}
	if err == nil {
		err = s.finish(c, &req.params)
	}
	s.serve(w, r, c, f, err)
}

// parsePrompt takes a string, a list with one string, token ids, or a list with one
// list of token ids.
func parsePrompt(v jsontext.Value) ([]uint32, *apiError) {
	switch {
	case len(v) == 0 || v.Kind() == 'n':
		return nil, badRequest("prompt", "Either prompt or prompt_embeds must be provided and non-empty.")
	case v.Kind() == '"':
		var text string
		if err := json.Unmarshal(v, &text, lenient); err == nil {
			return appendTokens([]uint32{tokBegin}, text), nil
		}
	case v.Kind() == '[':
		var ids []uint32
		if json.Unmarshal(v, &ids, lenient) == nil && len(ids) > 0 {
			return ids, nil
		}
		var list []jsontext.Value
		if json.Unmarshal(v, &list, lenient) != nil || len(list) == 0 {
			break
		}
		if len(list) > 1 {
			return nil, badRequest("prompt", "the simulated replica takes one prompt a request, got %d.", len(list))
		}
		return parsePrompt(list[0])
	}
	return nil, invalidBody("body.prompt", "Input should be a valid string or list of token ids at body.prompt")
}
