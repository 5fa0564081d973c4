// SPDX-License-Identifier: Apache-2.0

package extproc

import (
	"google.golang.org/grpc/mem"
	"google.golang.org/protobuf/encoding/protowire"
)

// Field numbers of envoy.service.ext_proc.v3.ProcessingResponse.
const (
	respRequestHeaders   = 1
	respResponseHeaders  = 2
	respRequestBody      = 3
	respResponseBody     = 4
	respRequestTrailers  = 5
	respResponseTrailers = 6
	respImmediate        = 7
	respDynamicMetadata  = 8
)

// overwriteIfExistsOrAdd is HeaderValueOption.HeaderAppendAction 2.
const overwriteIfExistsOrAdd = 2

// maxReplyBody keeps a streamed body reply under 64 KiB, the size above which
// proxies have been seen to refuse one.
const maxReplyBody = 62000

// reply is one ProcessingResponse on its way out: small parts as bytes, the body
// as the buffers in which it arrived.
type reply struct {
	field protowire.Number // which response
	head  []byte           // the encoded message before the body
	body  mem.BufferSlice
	tail  []byte // the encoded message after the body
	// size of the length-delimited message that head, body and tail make up.
	meta []byte // encoded dynamic_metadata, after the message
}

// marshal returns the wire form. The references of the body go over to it.
func (r *reply) marshal() mem.BufferSlice {
	n := len(r.head) + r.body.Len() + len(r.tail)
	pre := make([]byte, 0, 2*protowire.SizeVarint(uint64(n))+len(r.head)+8)
	pre = protowire.AppendTag(pre, r.field, protowire.BytesType)
	pre = protowire.AppendVarint(pre, uint64(n))
	pre = append(pre, r.head...)
	if len(r.body) == 0 && len(r.tail) == 0 && len(r.meta) == 0 {
		return mem.BufferSlice{mem.SliceBuffer(pre)}
	}
	out := make(mem.BufferSlice, 0, len(r.body)+2)
	out = append(out, mem.SliceBuffer(pre))
	out = append(out, r.body...)
	if post := append(r.tail[:len(r.tail):len(r.tail)], r.meta...); len(post) > 0 {
		out = append(out, mem.SliceBuffer(post))
	}
	r.body = nil
	return out
}

func appendMessage(b []byte, num protowire.Number, msg []byte) []byte {
	b = protowire.AppendTag(b, num, protowire.BytesType)
	return protowire.AppendBytes(b, msg)
}

func appendString(b []byte, num protowire.Number, s string) []byte {
	b = protowire.AppendTag(b, num, protowire.BytesType)
	return protowire.AppendString(b, s)
}

func appendVarint(b []byte, num protowire.Number, v uint64) []byte {
	b = protowire.AppendTag(b, num, protowire.VarintType)
	return protowire.AppendVarint(b, v)
}

// headerMutation encodes HeaderMutation{set_headers, remove_headers}. Values go
// into raw_value, the only field that a proxy reads in every configuration.
func headerMutation(set []header, remove []string) []byte {
	var m []byte
	for _, h := range set {
		var hv []byte
		hv = appendString(hv, 1, h.name)
		hv = appendString(hv, 3, h.value)
		var opt []byte
		opt = appendMessage(opt, 1, hv)
		opt = appendVarint(opt, 3, overwriteIfExistsOrAdd)
		m = appendMessage(m, 1, opt)
	}
	for _, name := range remove {
		m = appendString(m, 2, name)
	}
	return m
}

// headersReply answers request or response headers.
func headersReply(field protowire.Number, set []header, remove []string, clearRoute bool, destination string) *reply {
	var common []byte
	if m := headerMutation(set, remove); len(m) > 0 {
		common = appendMessage(common, 2, m)
	}
	if clearRoute {
		common = appendVarint(common, 5, 1)
	}
	r := &reply{field: field}
	if len(common) > 0 {
		r.head = appendMessage(nil, 1, common)
	}
	if destination != "" {
		r.meta = appendMessage(nil, respDynamicMetadata, destinationStruct(destination))
	}
	return r
}

// destinationStruct encodes {envoy.lb: {x-gateway-destination-endpoint: dest}}.
func destinationStruct(dest string) []byte {
	value := appendString(nil, 3, dest)
	inner := structOf(destinationHeader, value)
	return structOf(destinationNamespace, appendMessage(nil, 5, inner))
}

// structOf encodes a google.protobuf.Struct with one field.
func structOf(key string, value []byte) []byte {
	entry := appendString(nil, 1, key)
	entry = appendMessage(entry, 2, value)
	return appendMessage(nil, 1, entry)
}

// streamedBody returns replies that carry body as StreamedBodyResponse parts, the
// last one with end_of_stream as given. An empty body yields one empty part.
func streamedBody(field protowire.Number, body mem.BufferSlice, eos bool) []*reply {
	var out []*reply
	for {
		part, rest := cut(body, maxReplyBody)
		last := rest.Len() == 0
		out = append(out, bodyPart(field, part, eos && last))
		if last {
			rest.Free()
			return out
		}
		body = rest
	}
}

// bodyPart nests BodyResponse{1: CommonResponse{3: BodyMutation{3:
// StreamedBodyResponse{1: body, 2: eos}}}} around body without touching it.
func bodyPart(field protowire.Number, body mem.BufferSlice, eos bool) *reply {
	n := body.Len()
	var tail, lead []byte
	if eos {
		tail = appendVarint(nil, 2, 1)
	}
	size := len(tail)
	if n > 0 {
		lead = protowire.AppendTag(nil, 1, protowire.BytesType)
		lead = protowire.AppendVarint(lead, uint64(n))
		size += len(lead) + n
	}
	streamed := protowire.AppendVarint(protowire.AppendTag(nil, 3, protowire.BytesType), uint64(size))
	mutation := protowire.AppendVarint(protowire.AppendTag(nil, 3, protowire.BytesType), uint64(len(streamed)+size))
	common := protowire.AppendVarint(protowire.AppendTag(nil, 1, protowire.BytesType), uint64(len(mutation)+len(streamed)+size))
	head := make([]byte, 0, len(common)+len(mutation)+len(streamed)+len(lead))
	head = append(append(append(append(head, common...), mutation...), streamed...), lead...)
	return &reply{field: field, head: head, body: body, tail: tail}
}

// replaceBody answers BUFFERED mode: the whole body is replaced by body.
func replaceBody(field protowire.Number, set []header, body []byte) *reply {
	var common []byte
	if m := headerMutation(set, nil); len(m) > 0 {
		common = appendMessage(common, 2, m)
	}
	common = appendMessage(common, 3, appendMessage(nil, 1, body))
	return &reply{field: field, head: appendMessage(nil, 1, common)}
}

// emptyReply answers a body or trailers frame with "go on".
func emptyReply(field protowire.Number) *reply { return &reply{field: field} }

// immediate ends the request with a response of our own.
func immediate(status int, set []header, body []byte, details string) *reply {
	m := appendMessage(nil, 1, appendVarint(nil, 1, uint64(status)))
	if h := headerMutation(set, nil); len(h) > 0 {
		m = appendMessage(m, 2, h)
	}
	if len(body) > 0 {
		m = protowire.AppendTag(m, 3, protowire.BytesType)
		m = protowire.AppendBytes(m, body)
	}
	if details != "" {
		m = appendString(m, 5, details)
	}
	return &reply{field: respImmediate, head: m}
}
