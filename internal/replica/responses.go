// SPDX-License-Identifier: Apache-2.0

package replica

import (
	"net/http"
	"strconv"

	"github.com/go-json-experiment/json"
	"github.com/go-json-experiment/json/jsontext"
	"github.com/zeebo/xxh3"
)

// responsesRequest is a request of the Responses API; input is a string or a list of
// items, of which messages count.
type responsesRequest struct {
	params          `json:",inline"`
	Input           jsontext.Value `json:"input"`
	Instructions    *string        `json:"instructions"`
	MaxOutputTokens *int           `json:"max_output_tokens"`
	Tools           jsontext.Value `json:"tools"`
}

func (q *responsesRequest) render() ([]uint32, *apiError) {
	var list []message
	if q.Instructions != nil {
		list = append(list, message{Role: "system", Content: stringValue(*q.Instructions)})
	}
	switch {
	case len(q.Input) == 0 || q.Input.Kind() == 'n':
		return nil, invalidBody("body.input", "Field required at body.input")
	case q.Input.Kind() == '"':
		list = append(list, message{Role: "user", Content: q.Input})
	default:
		var items []struct {
			message `json:",inline"`
			Output  jsontext.Value `json:"output"`
		}
		if json.Unmarshal(q.Input, &items, lenient) != nil {
			return nil, invalidBody("body.input", "Input should be a valid string or list of items at body.input")
		}
		for _, it := range items {
			m := it.message
			if m.Role == "" { // a tool call or its result
				m.Role = "tool"
			}
			if len(m.Content) == 0 {
				m.Content = it.Output
			}
			list = append(list, m)
		}
	}
	return renderChat(list, q.Tools, true)
}

func stringValue(s string) jsontext.Value { return appendString(nil, []byte(s)) }

func (s *Server) responses(w http.ResponseWriter, r *http.Request) {
	f := &responsesFormat{id: requestID(r, "resp_")}
	var q responsesRequest
	c := &call{}
	err := readBody(r, &q)
	if err == nil {
		c.tokens, err = q.render()
	}
	if err == nil {
		q.MaxTokens, q.MaxCompletionTokens = q.MaxOutputTokens, nil
		err = s.finish(c, &q.params)
	}
	s.serve(w, r, c, f, err)
}

// responsesFormat writes the answers of the Responses API.
type responsesFormat struct {
	id   string
	seq  int
	text []byte // streamed so far; its last events repeat it
}

func (f *responsesFormat) item() string { return `"msg_` + f.id[len("resp_"):] + `"` }

// response is the response object; content nil means that it has just begun.
func (f *responsesFormat) response(b []byte, r *result, text []byte, ended bool) []byte {
	b = append(b, `{"id":`...)
	b = append(b, strconv.Quote(f.id)...)
	b = append(b, `,"object":"response","created_at":`...)
	b = strconv.AppendInt(b, r.created, 10)
	b = append(b, `,"model":`...)
	b = appendString(b, []byte(r.call.model))
	b = append(b, `,"instructions":null,"metadata":null,"parallel_tool_calls":true,"temperature":1.0,"tool_choice":"auto","tools":[],"top_p":1.0,"background":false,"max_output_tokens":`...)
	b = strconv.AppendInt(b, int64(r.call.maxTokens), 10)
	b = append(b, `,"max_tool_calls":null,"previous_response_id":null,"prompt":null,"reasoning":null,"service_tier":"auto","text":null,"top_logprobs":null,"truncation":"disabled","user":null,"presence_penalty":0.0,"frequency_penalty":0.0,"kv_transfer_params":null,"ec_transfer_params":null,"input_messages":null,"output_messages":null`...)
	if !ended {
		return append(b, `,"status":"in_progress","incomplete_details":null,"output":[],"usage":null}`...)
	}
	if r.call.reason == "length" {
		b = append(b, `,"status":"incomplete","incomplete_details":{"reason":"max_output_tokens"}`...)
	} else {
		b = append(b, `,"status":"completed","incomplete_details":null`...)
	}
	b = append(b, `,"output":[`...)
	b = f.outputItem(b, text, "completed")
	b = append(b, `],"usage":{"input_tokens":`...)
	b = strconv.AppendInt(b, int64(r.prompt), 10)
	b = append(b, `,"input_tokens_details":{"cached_tokens":`...)
	b = strconv.AppendInt(b, int64(r.cached), 10)
	b = append(b, `,"cache_write_tokens":0,"input_tokens_per_turn":[],"cached_tokens_per_turn":[]},"output_tokens":`...)
	b = strconv.AppendInt(b, int64(r.output), 10)
	b = append(b, `,"output_tokens_details":{"reasoning_tokens":0,"tool_output_tokens":0,"output_tokens_per_turn":[],"tool_output_tokens_per_turn":[]},"total_tokens":`...)
	b = strconv.AppendInt(b, int64(r.total()), 10)
	return append(b, `}}`...)
}

func (f *responsesFormat) outputItem(b, text []byte, status string) []byte {
	b = append(b, `{"id":`+f.item()+`,"type":"message","role":"assistant","status":"`+status+`","content":[`...)
	if status == "completed" {
		b = f.part(b, text)
	}
	return append(b, `],"phase":null}`...)
}

func (f *responsesFormat) part(b, text []byte) []byte {
	b = append(b, `{"type":"output_text","text":`...)
	b = appendString(b, text)
	return append(b, `,"annotations":[],"logprobs":null}`...)
}

// event appends one event whose data carries body after the type and the number.
func (f *responsesFormat) event(b []byte, name, body string) []byte {
	data := `{"type":"` + name + `","sequence_number":` + strconv.Itoa(f.seq) + body + `}`
	f.seq++
	return appendEvent(b, name, data)
}

func (f *responsesFormat) place() string { return `,"output_index":0,"item_id":` + f.item() }

func (f *responsesFormat) appendStart(b []byte, r *result) []byte {
	begun := string(f.response([]byte(`,"response":`), r, nil, false))
	b = f.event(b, "response.created", begun)
	b = f.event(b, "response.in_progress", begun)
	b = f.event(b, "response.output_item.added", `,"output_index":0,"item":`+string(f.outputItem(nil, nil, "in_progress")))
	return f.event(b, "response.content_part.added", f.place()+`,"content_index":0,"part":`+string(f.part(nil, nil)))
}

func (f *responsesFormat) appendDelta(b []byte, _ *result, text []byte) []byte {
	f.text = append(f.text, text...)
	return f.event(b, "response.output_text.delta", f.place()+`,"content_index":0,"logprobs":[],"delta":`+string(appendString(nil, text)))
}

func (f *responsesFormat) appendEnd(b []byte, r *result, text []byte) []byte {
	if len(text) > 0 {
		b = f.appendDelta(b, r, text)
	}
	b = f.event(b, "response.output_text.done", f.place()+`,"content_index":0,"logprobs":[],"text":`+string(appendString(nil, f.text)))
	b = f.event(b, "response.content_part.done", f.place()+`,"content_index":0,"part":`+string(f.part(nil, f.text)))
	b = f.event(b, "response.output_item.done", `,"output_index":0,"item":`+string(f.outputItem(nil, f.text, "completed")))
	last := "response.completed"
	if r.call.reason == "length" {
		last = "response.incomplete"
	}
	return f.event(b, last, string(f.response([]byte(`,"response":`), r, f.text, true)))
}

func (f *responsesFormat) appendFailure(b []byte, e *apiError) []byte {
	return f.event(b, "error", `,"code":"server_error","param":null,"message":`+string(appendString(nil, []byte(e.msg))))
}

func (f *responsesFormat) whole(r *result, text []byte) []byte { return f.response(nil, r, text, true) }

func (f *responsesFormat) refusal(e *apiError) []byte { return e.body() }

// embeddings answers with vectors that the tokens decide. They are computed by the
// engine as a prompt with a single token of output.
func (s *Server) embeddings(w http.ResponseWriter, r *http.Request) {
	var q struct {
		Model      string         `json:"model"`
		Input      jsontext.Value `json:"input"`
		Dimensions *int           `json:"dimensions"`
	}
	f := &embeddingFormat{id: requestID(r, "embd-"), size: 8}
	c := &call{}
	err := readBody(r, &q)
	if err == nil && q.Dimensions != nil {
		if f.size = *q.Dimensions; f.size < 1 || f.size > 4096 {
			err = badRequest("dimensions", "dimensions must be in [1, 4096], got %d.", f.size)
		}
	}
	if err == nil {
		c.tokens, err = f.parse(q.Input)
	}
	if err == nil {
		one := 1
		err = s.finish(c, &params{Model: q.Model, MaxTokens: &one})
	}
	s.serve(w, r, c, f, err)
}

type embeddingFormat struct {
	id    string
	size  int
	seeds []uint64 // one an input
}

// parse takes a string or a list of strings or token ids; the inputs are computed as
// one prompt.
func (f *embeddingFormat) parse(v jsontext.Value) ([]uint32, *apiError) {
	var texts []string
	if len(v) > 0 && v.Kind() == '[' && json.Unmarshal(v, &texts, lenient) == nil && len(texts) > 0 {
		var all []uint32
		for _, t := range texts {
			f.seeds = append(f.seeds, xxh3.HashString(t))
			all = appendTokens(all, t)
		}
		return all, nil
	}
	tokens, err := parsePrompt(v)
	if err != nil {
		return nil, invalidBody("body.input", "Input should be a valid string or list at body.input")
	}
	f.seeds = []uint64{xxh3.Hash(appendBytes(nil, tokens))}
	return tokens, nil
}

func (f *embeddingFormat) whole(r *result, _ []byte) []byte {
	b := appendHeadOf(f.id, "list", r)
	b = append(b, `,"data":[`...)
	for i, seed := range f.seeds {
		if i > 0 {
			b = append(b, ',')
		}
		b = append(b, `{"index":`...)
		b = strconv.AppendInt(b, int64(i), 10)
		b = append(b, `,"object":"embedding","embedding":[`...)
		for k := range f.size {
			if k > 0 {
				b = append(b, ',')
			}
			seed = seed*0x9e3779b97f4a7c15 + 1
			b = strconv.AppendFloat(b, float64(int64(seed>>12)-1<<51)/(1<<51), 'f', 6, 64)
		}
		b = append(b, `]}`...)
	}
	b = append(b, `],"usage":{"prompt_tokens":`...)
	b = strconv.AppendInt(b, int64(r.prompt), 10)
	b = append(b, `,"total_tokens":`...)
	b = strconv.AppendInt(b, int64(r.prompt), 10)
	return append(b, `,"completion_tokens":0,"prompt_tokens_details":null}}`...)
}

func (f *embeddingFormat) refusal(e *apiError) []byte                       { return e.body() }
func (f *embeddingFormat) appendStart(b []byte, _ *result) []byte           { return b }
func (f *embeddingFormat) appendDelta(b []byte, _ *result, _ []byte) []byte { return b }
func (f *embeddingFormat) appendEnd(b []byte, _ *result, _ []byte) []byte   { return b }
func (f *embeddingFormat) appendFailure(b []byte, e *apiError) []byte       { return appendErrorEvent(b, e) }
