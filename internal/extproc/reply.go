// SPDX-License-Identifier: Apache-2.0

package extproc

import (
	"strconv"

	"google.golang.org/grpc/mem"
	"google.golang.org/protobuf/encoding/protowire"
)

type fieldNumber = protowire.Number

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

// copiedBody is the length in bytes up to which a body part is copied into its
// reply: below it that costs less than passing references around.
const copiedBody = 1024

// reply is one ProcessingResponse in its wire form. Its memory goes over to gRPC
// when it is sent; the reply itself is used again.
type reply struct{ data mem.BufferSlice }

// marshal hands the wire form over.
func (r *reply) marshal() mem.BufferSlice {
	d := r.data
	r.data = nil
	return d
}

func (r *reply) set(b []byte) { r.data = mem.BufferSlice{mem.SliceBuffer(b)} }

// emptyReplies answer a frame with "go on", by field number. They are never
// changed, so all streams share them.
var emptyReplies = func() (out [respResponseTrailers + 1]mem.BufferSlice) {
	for f := range out {
		out[f] = mem.BufferSlice{mem.SliceBuffer{byte(f)<<3 | byte(protowire.BytesType), 0}}
	}
	return out
}()

// empty is an answer that changes nothing.
func (r *reply) empty(field fieldNumber) { r.data = emptyReplies[field] }

// sizeBytes is the encoded length of a bytes field with a number below 16.
func sizeBytes(n int) int { return 1 + protowire.SizeBytes(n) }

func appendOpen(b []byte, num protowire.Number, size int) []byte {
	b = protowire.AppendTag(b, num, protowire.BytesType)
	return protowire.AppendVarint(b, uint64(size))
}

func appendMessage(b []byte, num protowire.Number, msg []byte) []byte {
	return append(appendOpen(b, num, len(msg)), msg...)
}

func appendString(b []byte, num protowire.Number, s string) []byte {
	return append(appendOpen(b, num, len(s)), s...)
}

func appendVarint(b []byte, num protowire.Number, v uint64) []byte {
	b = protowire.AppendTag(b, num, protowire.VarintType)
	return protowire.AppendVarint(b, v)
}

// Lengths of HeaderValueOption{header: {key, raw_value}, append_action} and of the
// HeaderMutation that sets it.
func sizeHeader(name, value string) (header, option int) {
	header = sizeBytes(len(name)) + sizeBytes(len(value))
	return header, sizeBytes(header) + 2
}

// appendHeader encodes one set_headers element. Values go into raw_value, the only
// field that a proxy reads in every configuration.
func appendHeader(b []byte, name, value string) []byte {
	header, option := sizeHeader(name, value)
	b = appendOpen(b, 1, option)
	b = appendOpen(b, 1, header)
	b = appendString(b, 1, name)
	b = appendString(b, 3, value)
	return appendVarint(b, 3, overwriteIfExistsOrAdd)
}

// change is what is done to the headers of a message on its way.
type change struct {
	set    []header // each overwrites
	remove []string // in lower case
}

// size is the length of the HeaderMutation.
func (c *change) size() (n int) {
	for i := range c.set {
		_, option := sizeHeader(c.set[i].name, c.set[i].value)
		n += sizeBytes(option)
	}
	for _, name := range c.remove {
		n += sizeBytes(len(name))
	}
	return n
}

// append encodes HeaderMutation{set_headers = 1, remove_headers = 2}.
func (c *change) append(b []byte) []byte {
	for i := range c.set {
		b = appendHeader(b, c.set[i].name, c.set[i].value)
	}
	for _, name := range c.remove {
		b = appendString(b, 2, name)
	}
	return b
}

// pick answers request headers, or a buffered body, with the destination in the
// header and in the metadata, and what else changes of the headers. clear_route_cache
// lets a route that depends on the header be chosen again.
func (r *reply) pick(field fieldNumber, dest string, more *change) {
	r.set(pickMessage(field, dest, more, nil))
}

// buffered answers the body in BUFFERED mode: the pick, and the new body where it was
// changed, with the length that the proxy checks.
func (r *reply) buffered(body []byte, dest string, more *change) {
	r.set(pickMessage(respRequestBody, dest, more, body))
}

// pickMessage encodes {field: {response: {header_mutation, body_mutation?,
// clear_route_cache}}, dynamic_metadata}.
func pickMessage(field fieldNumber, dest string, more *change, body []byte) []byte {
	_, option := sizeHeader(destinationHeader, dest)
	mutation := sizeBytes(option) + more.size()
	lengthText := ""
	if body != nil {
		lengthText = strconv.Itoa(len(body))
		_, option := sizeHeader("content-length", lengthText)
		mutation += sizeBytes(option)
	}
	common := sizeBytes(mutation) + 2
	if body != nil {
		common += sizeBytes(sizeBytes(len(body)))
	}
	outer := sizeBytes(common)
	meta := sizeStruct(destinationNamespace, sizeBytes(sizeStruct(destinationHeader, sizeBytes(len(dest)))))
	b := make([]byte, 0, sizeBytes(outer)+sizeBytes(meta))
	b = appendOpen(b, field, outer)
	b = appendOpen(b, 1, common)
	b = appendOpen(b, 2, mutation)
	b = appendHeader(b, destinationHeader, dest)
	if body != nil {
		b = appendHeader(b, "content-length", lengthText)
	}
	b = more.append(b)
	if body != nil {
		b = appendOpen(b, 3, sizeBytes(len(body)))
		b = appendMessage(b, 1, body)
	}
	b = appendVarint(b, 5, 1)
	// dynamic_metadata: {envoy.lb: {x-gateway-destination-endpoint: dest}}
	b = appendOpen(b, respDynamicMetadata, meta)
	inner := sizeStruct(destinationHeader, sizeBytes(len(dest)))
	b = appendEntry(b, destinationNamespace, sizeBytes(inner))
	b = appendOpen(b, 5, inner)
	b = appendEntry(b, destinationHeader, sizeBytes(len(dest)))
	return appendString(b, 3, dest)
}

// headers answers headers with what changes of them: {field: {response:
// {header_mutation}}}.
func (r *reply) headers(field fieldNumber, c *change) {
	mutation := c.size()
	common := sizeBytes(mutation)
	b := make([]byte, 0, sizeBytes(sizeBytes(common)))
	b = appendOpen(b, field, sizeBytes(common))
	b = appendOpen(b, 1, common)
	b = appendOpen(b, 2, mutation)
	r.set(c.append(b))
}

// sizeStruct is the length of a google.protobuf.Struct with one field whose Value
// has the given length.
func sizeStruct(key string, value int) int {
	return sizeBytes(sizeBytes(len(key)) + sizeBytes(value))
}

// appendEntry opens the only field of a google.protobuf.Struct; its Value follows.
func appendEntry(b []byte, key string, value int) []byte {
	b = appendOpen(b, 1, sizeBytes(len(key))+sizeBytes(value))
	b = appendString(b, 1, key)
	return appendOpen(b, 2, value)
}

// part answers with a part of a streamed body: BodyResponse{CommonResponse{
// BodyMutation{StreamedBodyResponse{body, end_of_stream}}}}. The references of body
// go over.
func (r *reply) part(field fieldNumber, body mem.BufferSlice, eos bool) {
	n := body.Len()
	streamed := 0
	if n > 0 {
		streamed = sizeBytes(n)
	}
	if eos {
		streamed += 2
	}
	mutation := sizeBytes(streamed)
	common := sizeBytes(mutation)
	outer := sizeBytes(common)
	total := sizeBytes(outer)
	whole := n <= copiedBody
	size := total
	if !whole {
		size = total - n
	}
	b := make([]byte, 0, size)
	b = appendOpen(b, field, outer)
	b = appendOpen(b, 1, common)
	b = appendOpen(b, 3, mutation)
	b = appendOpen(b, 3, streamed)
	if n > 0 {
		b = appendOpen(b, 1, n)
	}
	if whole {
		for _, p := range body {
			b = append(b, p.ReadOnlyData()...)
		}
		body.Free()
		if eos {
			b = append(b, eosField...)
		}
		r.set(b)
		return
	}
	out := append(make(mem.BufferSlice, 0, len(body)+2), mem.SliceBuffer(b))
	out = append(out, body...)
	if eos {
		out = append(out, eosField)
	}
	r.data = out
}

// eosField is end_of_stream = true of a StreamedBodyResponse.
var eosField = mem.SliceBuffer{2<<3 | byte(protowire.VarintType), 1}

// immediate ends the request with a response of our own.
func (r *reply) immediate(status int, set []header, body []byte, details string) {
	m := appendMessage(nil, 1, appendVarint(nil, 1, uint64(status)))
	c := change{set: set}
	m = appendMessage(m, 2, c.append(nil))
	m = appendMessage(m, 3, body)
	m = appendString(m, 5, details)
	r.set(appendMessage(nil, respImmediate, m))
}
