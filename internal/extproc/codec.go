// SPDX-License-Identifier: Apache-2.0

package extproc

import (
	"fmt"

	"google.golang.org/grpc/encoding"
	_ "google.golang.org/grpc/encoding/proto" // the codec behind ours
	"google.golang.org/grpc/mem"
)

// codec reads and writes our frames by hand and leaves every other message
// (health checks, reflection) to the stock protobuf codec.
type codec struct{ stock encoding.CodecV2 }

func newCodec() codec { return codec{stock: encoding.GetCodecV2("proto")} }

// Name implements encoding.CodecV2: the content subtype stays "proto".
func (codec) Name() string { return "proto" }

// Marshal implements encoding.CodecV2.
func (c codec) Marshal(v any) (mem.BufferSlice, error) {
	if r, ok := v.(*reply); ok {
		return r.marshal(), nil
	}
	if c.stock == nil {
		return nil, fmt.Errorf("no protobuf codec for %T", v)
	}
	return c.stock.Marshal(v)
}

// Unmarshal implements encoding.CodecV2.
func (c codec) Unmarshal(data mem.BufferSlice, v any) error {
	if f, ok := v.(*frame); ok {
		return f.unmarshal(data)
	}
	if c.stock == nil {
		return fmt.Errorf("no protobuf codec for %T", v)
	}
	return c.stock.Unmarshal(data, v)
}
