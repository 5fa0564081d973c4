// SPDX-License-Identifier: Apache-2.0

package replica

import "strconv"

// chatFormat writes chat completions.
type chatFormat struct {
	id   string
	head []byte // what every chunk begins with, up to the choices
}

// noTransfer is what an answer says of caches that moved between engines.
const noTransfer = `"kv_transfer_params":null,"ec_transfer_params":null,"metrics":null`

func appendHeadOf(id, object string, r *result) []byte {
	b := append([]byte(`{"id":`), strconv.Quote(id)...)
	b = append(b, `,"object":"`...)
	b = append(b, object...)
	b = append(b, `","created":`...)
	b = strconv.AppendInt(b, r.created, 10)
	b = append(b, `,"model":`...)
	return appendString(b, []byte(r.call.model))
}

// fingerprint is the system_fingerprint of answers. The real one names the version
// and a digest of the engine's configuration.
const fingerprint = `"system_fingerprint":"vllm-0.32.0-simulated"`

// appendCounts appends the three counts that every usage object has, and leaves it
// open.
func appendCounts(b []byte, r *result) []byte {
	b = append(b, `{"prompt_tokens":`...)
	b = strconv.AppendInt(b, int64(r.prompt), 10)
	b = append(b, `,"total_tokens":`...)
	b = strconv.AppendInt(b, int64(r.total()), 10)
	b = append(b, `,"completion_tokens":`...)
	return strconv.AppendInt(b, int64(r.output), 10)
}

// appendContinuous appends the usage of a chunk that is not the last.
func appendContinuous(b []byte, r *result) []byte {
	return append(appendCounts(append(b, `,"usage":`...), r), '}')
}

// appendUsage appends the last usage object of a stream. Chat tells more than
// completions.
func appendUsage(b []byte, r *result, chat bool) []byte {
	b = append(appendCounts(b, r), `,"prompt_tokens_details":{"cached_tokens":`...)
	b = strconv.AppendInt(b, int64(r.cached), 10)
	if chat {
		b = r.appendCreated(append(b, `,"created_cache_tokens":`...))
	}
	return append(b, '}', '}')
}

// appendWholeUsage appends the usage object of an answer that is not streamed.
func appendWholeUsage(b []byte, r *result, chat bool) []byte {
	b = append(appendCounts(b, r), `,"prompt_tokens_details":{"cached_tokens":`...)
	b = strconv.AppendInt(b, int64(r.cached), 10)
	b = append(b, `,"created_cache_tokens":`...)
	if chat {
		b = r.appendCreated(b)
	} else {
		b = append(b, "null"...)
	}
	return append(b, `,"multimodal_tokens":null},"completion_tokens_details":null}`...)
}

func (r *result) appendCreated(b []byte) []byte {
	return strconv.AppendInt(b, int64(r.prompt/r.block*r.block-r.cached), 10)
}

func appendStop(b []byte, r *result) []byte {
	b = append(b, `"finish_reason":"`...)
	b = append(b, r.call.reason...)
	b = append(b, `","stop_reason":`...)
	if r.call.stopped == "" {
		return append(b, "null"...)
	}
	return appendString(b, []byte(r.call.stopped))
}

func (f *chatFormat) chunk(b []byte, r *result) []byte {
	if f.head == nil {
		f.head = append([]byte("data: "), appendHeadOf(f.id, "chat.completion.chunk", r)...)
		f.head = append(f.head, `,"choices":[`...)
	}
	return append(b, f.head...)
}

func (f *chatFormat) close(b []byte, r *result, last bool) []byte {
	return closeChunk(append(b, ']'), r, last)
}

// closeChunk ends a chunk behind its choices.
func closeChunk(b []byte, r *result, last bool) []byte {
	if r.call.continuous {
		b = appendContinuous(b, r)
	}
	if last && !r.call.usage {
		b = append(b, ","+fingerprint...)
	}
	return append(b, "}\n\n"...)
}

func (f *chatFormat) appendStart(b []byte, r *result) []byte {
	b = f.chunk(b, r)
	b = append(b, `{"index":0,"delta":{"role":"assistant","content":""},"logprobs":null,"finish_reason":null}],"prompt_token_ids":null,"prompt_text":null`...)
	return closeChunk(b, r, false)
}

func (f *chatFormat) appendDelta(b []byte, r *result, text []byte) []byte {
	b = f.chunk(b, r)
	b = append(b, `{"index":0,"delta":{"content":`...)
	b = appendString(b, text)
	b = append(b, `},"logprobs":null,"finish_reason":null,"token_ids":null}`...)
	return f.close(b, r, false)
}

func (f *chatFormat) appendEnd(b []byte, r *result, text []byte) []byte {
	b = f.chunk(b, r)
	b = append(b, `{"index":0,"delta":{"content":`...)
	b = appendString(b, text)
	b = append(b, `},"logprobs":null,`...)
	b = appendStop(b, r)
	b = f.close(append(b, `,"token_ids":null}`...), r, true)
	if r.call.usage {
		b = f.chunk(b, r)
		b = append(b, `],"usage":`...)
		b = append(appendUsage(b, r, true), ","+fingerprint+"}\n\n"...)
	}
	return append(b, "data: [DONE]\n\n"...)
}

func (f *chatFormat) appendFailure(b []byte, e *apiError) []byte { return appendErrorEvent(b, e) }

func appendErrorEvent(b []byte, e *apiError) []byte {
	b = append(b, "data: "...)
	b = append(b, e.body()...)
	return append(b, "\n\ndata: [DONE]\n\n"...)
}

func (f *chatFormat) whole(r *result, text []byte) []byte {
	b := appendHeadOf(f.id, "chat.completion", r)
	b = append(b, `,"choices":[{"index":0,"message":{"role":"assistant","content":`...)
	b = appendString(b, text)
	b = append(b, `,"refusal":null,"annotations":null,"audio":null,"function_call":null,"reasoning":null},"logprobs":null,`...)
	b = appendStop(b, r)
	b = append(b, `,"token_ids":null,"routed_experts":null}],"service_tier":null,`+fingerprint+`,"usage":`...)
	b = appendWholeUsage(b, r, true)
	return append(b, `,"prompt_logprobs":null,"prompt_token_ids":null,"prompt_text":null,`+noTransfer+`}`...)
}

func (f *chatFormat) refusal(e *apiError) []byte { return e.body() }

// completionFormat writes text completions.
type completionFormat struct {
	id   string
	head []byte
}

func (f *completionFormat) chunk(b []byte, r *result, text []byte) []byte {
	if f.head == nil {
		f.head = append([]byte("data: "), appendHeadOf(f.id, "text_completion", r)...)
		f.head = append(f.head, `,"choices":[{"index":0,"text":`...)
	}
	b = append(b, f.head...)
	b = appendString(b, text)
	return append(b, `,"logprobs":null,`...)
}

func (f *completionFormat) close(b []byte, r *result, last bool) []byte {
	return closeChunk(append(b, `,"prompt_token_ids":null,"token_ids":null}]`...), r, last)
}

func (f *completionFormat) appendStart(b []byte, _ *result) []byte { return b }

func (f *completionFormat) appendDelta(b []byte, r *result, text []byte) []byte {
	return f.close(append(f.chunk(b, r, text), `"finish_reason":null,"stop_reason":null`...), r, false)
}

func (f *completionFormat) appendEnd(b []byte, r *result, text []byte) []byte {
	b = f.close(appendStop(f.chunk(b, r, text), r), r, true)
	if r.call.usage {
		b = append(b, "data: "...)
		b = append(b, appendHeadOf(f.id, "text_completion", r)...)
		b = append(b, `,"choices":[],"usage":`...)
		b = append(appendUsage(b, r, false), ","+fingerprint+"}\n\n"...)
	}
	return append(b, "data: [DONE]\n\n"...)
}

func (f *completionFormat) appendFailure(b []byte, e *apiError) []byte { return appendErrorEvent(b, e) }

func (f *completionFormat) whole(r *result, text []byte) []byte {
	b := appendHeadOf(f.id, "text_completion", r)
	b = append(b, `,"choices":[{"index":0,"text":`...)
	b = appendString(b, text)
	b = append(b, `,"logprobs":null,`...)
	b = appendStop(b, r)
	b = append(b, `,"token_ids":null,"prompt_logprobs":null,"prompt_token_ids":null,"routed_experts":null}],"service_tier":null,`+fingerprint+`,"usage":`...)
	b = appendWholeUsage(b, r, false)
	return append(b, ","+noTransfer+"}"...)
}

func (f *completionFormat) refusal(e *apiError) []byte { return e.body() }
