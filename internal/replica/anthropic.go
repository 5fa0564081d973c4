// SPDX-License-Identifier: Apache-2.0

package replica

import (
	"net/http"
	"strconv"

	"github.com/go-json-experiment/json/jsontext"
)

// messagesRequest is a request of the Anthropic Messages API.
type messagesRequest struct {
	Model         string         `json:"model"`
	MaxTokens     *int           `json:"max_tokens"`
	System        jsontext.Value `json:"system"`
	Messages      *[]message     `json:"messages"`
	Tools         jsontext.Value `json:"tools"`
	Stream        bool           `json:"stream"`
	StopSequences []string       `json:"stop_sequences"`
	Temperature   *float64       `json:"temperature"`
	TopP          *float64       `json:"top_p"`
}

func (q *messagesRequest) render() ([]uint32, *apiError) {
	if q.Messages == nil || len(*q.Messages) == 0 {
		return nil, invalidBody("body.messages", "Field required at body.messages")
	}
	list := *q.Messages
	if len(q.System) > 0 {
		list = append([]message{{Role: "system", Content: q.System}}, list...)
	}
	return renderChat(list, q.Tools, true)
}

func (s *Server) messages(w http.ResponseWriter, r *http.Request) {
	f := &messagesFormat{id: requestID(r, "msg_")}
	var q messagesRequest
	c := &call{}
	err := readBody(r, &q)
	if err == nil && q.MaxTokens == nil {
		err = invalidBody("body.max_tokens", "Field required at body.max_tokens")
	}
	if err == nil {
		c.tokens, err = q.render()
	}
	if err == nil {
		p := params{Model: q.Model, MaxTokens: q.MaxTokens, Stream: q.Stream, Temperature: q.Temperature, TopP: q.TopP}
		if len(q.StopSequences) > 0 {
			p.Stop = stringList(q.StopSequences)
		}
		err = s.finish(c, &p)
	}
	s.serve(w, r, c, f, err)
}

func stringList(list []string) jsontext.Value {
	b := []byte{'['}
	for i, v := range list {
		if i > 0 {
			b = append(b, ',')
		}
		b = appendString(b, []byte(v))
	}
	return append(b, ']')
}

func (s *Server) countTokens(w http.ResponseWriter, r *http.Request) {
	var q messagesRequest
	var tokens []uint32
	err := readBody(r, &q)
	if err == nil {
		tokens, err = q.render()
	}
	if err == nil && q.Model != "" && !s.serves(q.Model) && !s.adapters.has(q.Model) {
		err = notFound("model", "The model `%s` does not exist.", q.Model)
	}
	if err != nil {
		writeJSON(w, err.status, err.anthropicBody())
		return
	}
	var out struct {
		Input   int `json:"input_tokens"`
		Context struct {
			Original int `json:"original_input_tokens"`
		} `json:"context_management"`
	}
	out.Input, out.Context.Original = len(tokens), len(tokens)
	writeValue(w, &out)
}

// messagesFormat writes the answers of the Messages API.
type messagesFormat struct{ id string }

func appendEvent(b []byte, name, data string) []byte {
	b = append(b, "event: "...)
	b = append(b, name...)
	b = append(b, "\ndata: "...)
	b = append(b, data...)
	return append(b, "\n\n"...)
}

func (f *messagesFormat) usage(b []byte, r *result) []byte {
	b = append(b, `{"input_tokens":`...)
	b = strconv.AppendInt(b, int64(r.prompt-r.cached), 10)
	b = append(b, `,"output_tokens":`...)
	b = strconv.AppendInt(b, int64(r.output), 10)
	if r.output == 0 { // the start of a stream
		return append(b, '}')
	}
	b = append(b, `,"cache_creation_input_tokens":0,"cache_read_input_tokens":`...)
	b = strconv.AppendInt(b, int64(r.cached), 10)
	return append(b, '}')
}

func (f *messagesFormat) message(b []byte, r *result, content []byte, ended bool) []byte {
	b = append(b, `{"id":`...)
	b = append(b, strconv.Quote(f.id)...)
	b = append(b, `,"type":"message","role":"assistant","content":`...)
	b = append(b, content...)
	b = append(b, `,"model":`...)
	b = appendString(b, []byte(r.call.model))
	b = append(b, ',')
	b = f.stop(b, r, ended, false)
	b = append(b, `,"usage":`...)
	return append(f.usage(b, r), '}')
}

// stop says why an answer ended. A whole one has no stop_sequence where none stopped
// it; events have null there.
func (f *messagesFormat) stop(b []byte, r *result, ended, event bool) []byte {
	switch {
	case ended && r.call.stopped != "":
		return appendString(append(b, `"stop_reason":"stop_sequence","stop_sequence":`...), []byte(r.call.stopped))
	case !ended:
		b, event = append(b, `"stop_reason":null`...), true
	case r.call.reason == "length":
		b = append(b, `"stop_reason":"max_tokens"`...)
	default:
		b = append(b, `"stop_reason":"end_turn"`...)
	}
	if event {
		b = append(b, `,"stop_sequence":null`...)
	}
	return b
}

func (f *messagesFormat) appendStart(b []byte, r *result) []byte {
	start := append(f.message([]byte(`{"type":"message_start","message":`), r, []byte("[]"), false), '}')
	b = appendEvent(b, "message_start", string(start))
	return appendEvent(b, "content_block_start", `{"type":"content_block_start","index":0,"content_block":{"type":"text","text":""}}`)
}

func (f *messagesFormat) appendDelta(b []byte, _ *result, text []byte) []byte {
	b = append(b, "event: content_block_delta\ndata: {\"type\":\"content_block_delta\",\"index\":0,\"delta\":{\"type\":\"text_delta\",\"text\":"...)
	b = appendString(b, text)
	return append(b, "}}\n\n"...)
}

func (f *messagesFormat) appendEnd(b []byte, r *result, text []byte) []byte {
	if len(text) > 0 {
		b = f.appendDelta(b, r, text)
	}
	b = appendEvent(b, "content_block_stop", `{"type":"content_block_stop","index":0}`)
	d := f.stop([]byte(`{"type":"message_delta","delta":{`), r, true, true)
	d = append(f.usage(append(d, `},"usage":`...), r), '}')
	b = appendEvent(b, "message_delta", string(d))
	return appendEvent(b, "message_stop", `{"type":"message_stop"}`)
}

func (f *messagesFormat) appendFailure(b []byte, e *apiError) []byte {
	return appendEvent(b, "error", string(e.anthropicBody()))
}

func (f *messagesFormat) whole(r *result, text []byte) []byte {
	content := append(appendString([]byte(`[{"type":"text","text":`), text), `}]`...)
	return f.message(nil, r, content, true)
}

func (f *messagesFormat) refusal(e *apiError) []byte { return e.anthropicBody() }
