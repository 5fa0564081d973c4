// SPDX-License-Identifier: Apache-2.0

// Package extproc is the endpoint picker behind Envoy: it speaks the external
// processing protocol (envoy.service.ext_proc.v3) and the endpoint picker protocol
// of the Gateway API Inference Extension, and asks the same flow that the gateway
// asks.
//
// The cost of an external processor is the copying of bodies through protobuf, so
// frames are read and written by hand: a body stays in the buffers in which gRPC
// received it and goes back in them. Everything else of gRPC is stock.
package extproc

import (
	"fmt"
	"strings"

	"google.golang.org/grpc/mem"
	"google.golang.org/protobuf/encoding/protowire"

	"github.com/penstock-project/penstock/internal/entry"
)

// frameKind is the message inside a ProcessingRequest.
type frameKind uint8

const (
	frameNone frameKind = iota
	frameRequestHeaders
	frameResponseHeaders
	frameRequestBody
	frameResponseBody
	frameRequestTrailers
	frameResponseTrailers
)

// Field numbers of envoy.service.ext_proc.v3.ProcessingRequest.
const (
	reqRequestHeaders   = 2
	reqResponseHeaders  = 3
	reqRequestBody      = 4
	reqResponseBody     = 5
	reqRequestTrailers  = 6
	reqResponseTrailers = 7
	reqMetadataContext  = 8
	reqProtocolConfig   = 11
)

// Body send modes of envoy.extensions.filters.http.ext_proc.v3.ProcessingMode.
const (
	modeNone               = 0
	modeStreamed           = 1
	modeBuffered           = 2
	modeBufferedPartial    = 3
	modeFullDuplexStreamed = 4
)

// header is one HTTP header line in the order in which it arrived.
type header struct{ name, value string }

// subsetHint is what the proxy says about the endpoints that may be picked.
type subsetHint struct {
	present bool     // the key was there; an empty list then means: none
	addrs   []string // ip:port
}

// frame is one ProcessingRequest, as much of it as an endpoint picker reads. The
// body is owned by the frame until it is taken: free it or send it on.
type frame struct {
	kind        frameKind
	endOfStream bool
	headers     []header // those that a picker goes by
	guarded     bool     // credentials are among them; it stays for all frames of a stream
	also        []string // names of more that are kept, in lower case; stays as well
	body        mem.BufferSlice

	subset subsetHint
	served string // endpoint that answered, as the proxy reports it

	hasProtocol  bool
	requestMode  int
	responseMode int
}

func (f *frame) reset() {
	f.body.Free()
	*f = frame{guarded: f.guarded, also: f.also, headers: f.headers[:0], subset: subsetHint{addrs: f.subset.addrs[:0]}}
}

// takeBody hands the body over to the caller.
func (f *frame) takeBody() mem.BufferSlice {
	b := f.body
	f.body = nil
	return b
}

// Names of the endpoint picker protocol.
const (
	destinationHeader    = "x-gateway-destination-endpoint"
	servedKey            = "x-gateway-destination-endpoint-served"
	subsetKey            = "x-gateway-destination-endpoint-subset"
	subsetNamespace      = "envoy.lb.subset_hint"
	destinationNamespace = "envoy.lb"
	// An objective is named by a header; the second name is the older one.
	objectiveHeader    = "x-llm-d-inference-objective"
	objectiveHeaderOld = "x-gateway-inference-objective"
)

// credentialHeaders are those in which clients say who they are.
var credentialHeaders = [...]string{"authorization", "x-api-key", "api-key"}

// loggingHeader is how a client tightens what of its prompt may be recorded.
var loggingHeader = strings.ToLower(entry.HeaderLogging)

var errProto = fmt.Errorf("not an external processing message")

// unmarshal reads a ProcessingRequest. Bodies are referenced, not copied.
func (f *frame) unmarshal(data mem.BufferSlice) error {
	f.reset()
	r := reader{bufs: data, left: data.Len()}
	for r.left > 0 {
		num, typ, err := r.tag()
		if err != nil {
			return err
		}
		if typ != protowire.BytesType {
			if err := r.skip(num, typ); err != nil {
				return err
			}
			continue
		}
		n, err := r.length()
		if err != nil {
			return err
		}
		if err := f.field(num, &r, n); err != nil {
			return err
		}
	}
	return nil
}

func (f *frame) field(num protowire.Number, r *reader, n int) error {
	switch num {
	case reqRequestBody, reqResponseBody:
		f.kind = frameRequestBody
		if num == reqResponseBody {
			f.kind = frameResponseBody
		}
		return f.readBody(r, n)
	case reqRequestHeaders, reqResponseHeaders, reqRequestTrailers, reqResponseTrailers,
		reqMetadataContext, reqProtocolConfig:
		msg, err := r.bytes(n)
		if err != nil {
			return err
		}
		return f.message(num, msg)
	default: // attributes, flow control: nothing that a picker reads
		return r.discard(n)
	}
}

func (f *frame) message(num protowire.Number, msg []byte) error {
	switch num {
	case reqRequestHeaders:
		f.kind = frameRequestHeaders
		return f.readHeaders(msg, 3)
	case reqResponseHeaders:
		f.kind = frameResponseHeaders
		return f.readHeaders(msg, 3)
	case reqRequestTrailers:
		f.kind = frameRequestTrailers
		return nil // trailers pass by; a picker has no use for them
	case reqResponseTrailers:
		f.kind = frameResponseTrailers
		return nil
	case reqMetadataContext:
		return f.readMetadata(msg)
	case reqProtocolConfig:
		f.hasProtocol = true
		return fields(msg, func(num protowire.Number, v uint64, _ []byte) error {
			switch num {
			case 1:
				f.requestMode = int(v)
			case 2:
				f.responseMode = int(v)
			}
			return nil
		})
	}
	return nil
}

// readBody reads HttpBody{body = 1, end_of_stream = 2} without copying the body.
func (f *frame) readBody(r *reader, n int) error {
	end := r.left - n
	for r.left > end {
		num, typ, err := r.tag()
		if err != nil {
			return err
		}
		switch {
		case num == 1 && typ == protowire.BytesType:
			n, err := r.length()
			if err != nil {
				return err
			}
			if n > r.left-end {
				return errProto
			}
			f.body.Free()
			if f.body, err = r.slice(n); err != nil {
				return err
			}
		case num == 2 && typ == protowire.VarintType:
			v, err := r.varint()
			if err != nil {
				return err
			}
			f.endOfStream = v != 0
		default:
			if err := r.skip(num, typ); err != nil {
				return err
			}
		}
	}
	if r.left != end {
		return errProto
	}
	return nil
}

// readHeaders reads HttpHeaders{headers = 1, end_of_stream = eos}. Of the headers
// only those that a picker goes by are kept.
func (f *frame) readHeaders(msg []byte, eos protowire.Number) error {
	return fields(msg, func(num protowire.Number, v uint64, b []byte) error {
		switch num {
		case 1:
			return f.readHeaderMap(b)
		case eos:
			f.endOfStream = v != 0
		}
		return nil
	})
}

// readHeaderMap reads HeaderMap{headers = 1: HeaderValue{key = 1, value = 2,
// raw_value = 3}}. Proxies differ in which of the two values they fill.
func (f *frame) readHeaderMap(msg []byte) error {
	for len(msg) > 0 {
		num, h, rest, err := bytesField(msg)
		if err != nil {
			return err
		}
		msg = rest
		if num != 1 {
			continue
		}
		var name, value []byte
		for len(h) > 0 {
			num, b, rest, err := bytesField(h)
			if err != nil {
				return err
			}
			h = rest
			switch {
			case num == 1:
				name = b
			case num == 3, num == 2 && value == nil:
				value = b
			}
		}
		if n := f.wanted(name); n != "" {
			f.headers = append(f.headers, header{n, text(value)})
		}
	}
	return nil
}

// bytesField takes the first field off msg; num is 0 for one that holds no bytes.
func bytesField(msg []byte) (num protowire.Number, b, rest []byte, err error) {
	num, typ, n := protowire.ConsumeTag(msg)
	if n < 0 {
		return 0, nil, nil, errProto
	}
	msg = msg[n:]
	if typ == protowire.BytesType {
		b, n = protowire.ConsumeBytes(msg)
	} else {
		n, num = protowire.ConsumeFieldValue(num, typ, msg), 0
	}
	if n < 0 {
		return 0, nil, nil, errProto
	}
	return num, b, msg[n:], nil
}

// wanted returns the name of a header that a picker goes by, "" for all others.
func (f *frame) wanted(name []byte) string {
	switch string(name) {
	case ":path":
		return ":path"
	case ":status":
		return ":status"
	case "x-request-id":
		return "x-request-id"
	case "content-type":
		return "content-type"
	case "content-length":
		return "content-length"
	case "content-encoding":
		return "content-encoding"
	case objectiveHeader, objectiveHeaderOld:
		return objectiveHeader
	case loggingHeader:
		return loggingHeader
	case pinHeader:
		return pinHeader
	}
	if f.guarded {
		for _, n := range credentialHeaders {
			if string(name) == n {
				return n
			}
		}
	}
	for _, n := range f.also {
		if string(name) == n {
			return n
		}
	}
	return ""
}

// text makes a string of a header's value; the usual ones cost no allocation.
func text(b []byte) string {
	switch string(b) {
	case "application/json":
		return "application/json"
	case "text/event-stream; charset=utf-8":
		return "text/event-stream; charset=utf-8"
	case "text/event-stream":
		return "text/event-stream"
	case "/v1/chat/completions":
		return "/v1/chat/completions"
	case "/v1/completions":
		return "/v1/completions"
	case "200":
		return "200"
	}
	return string(b)
}

// readMetadata reads the subset hint and the served report from
// Metadata{filter_metadata = 1: map<string, Struct>}.
func (f *frame) readMetadata(msg []byte) error {
	return fields(msg, func(num protowire.Number, _ uint64, b []byte) error {
		if num != 1 {
			return nil
		}
		ns, st, err := mapEntry(b)
		if err != nil || ns != subsetNamespace && ns != destinationNamespace {
			return err
		}
		return fields(st, func(num protowire.Number, _ uint64, b []byte) error {
			if num != 1 {
				return nil
			}
			key, val, err := mapEntry(b)
			switch {
			case err != nil:
				return err
			case ns == subsetNamespace && key == subsetKey:
				f.subset.present = true
				return f.subset.read(val)
			case ns == destinationNamespace && key == servedKey:
				return fields(val, func(num protowire.Number, _ uint64, b []byte) error {
					if num == 3 {
						f.served = string(b)
					}
					return nil
				})
			}
			return nil
		})
	})
}

// read takes a google.protobuf.Value: a list of strings, or one string with
// commas, as some proxies send it.
func (s *subsetHint) read(val []byte) error {
	return fields(val, func(num protowire.Number, _ uint64, b []byte) error {
		switch num {
		case 3:
			s.addList(string(b))
		case 6:
			return fields(b, func(num protowire.Number, _ uint64, b []byte) error {
				if num != 1 {
					return nil
				}
				return fields(b, func(num protowire.Number, _ uint64, b []byte) error {
					if num == 3 {
						s.addList(string(b))
					}
					return nil
				})
			})
		}
		return nil
	})
}

// mapEntry reads one entry of a protobuf map with string keys and message values.
func mapEntry(msg []byte) (key string, val []byte, err error) {
	err = fields(msg, func(num protowire.Number, _ uint64, b []byte) error {
		switch num {
		case 1:
			key = string(b)
		case 2:
			val = b
		}
		return nil
	})
	return key, val, err
}

// fields calls f for every field of a message: v for numbers, b for bytes.
func fields(msg []byte, f func(num protowire.Number, v uint64, b []byte) error) error {
	for len(msg) > 0 {
		num, typ, n := protowire.ConsumeTag(msg)
		if n < 0 {
			return errProto
		}
		msg = msg[n:]
		var v uint64
		var b []byte
		switch typ {
		case protowire.VarintType:
			v, n = protowire.ConsumeVarint(msg)
		case protowire.BytesType:
			b, n = protowire.ConsumeBytes(msg)
		default:
			n = protowire.ConsumeFieldValue(num, typ, msg)
		}
		if n < 0 {
			return errProto
		}
		msg = msg[n:]
		if err := f(num, v, b); err != nil {
			return err
		}
	}
	return nil
}
