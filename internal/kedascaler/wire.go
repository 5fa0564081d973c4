// SPDX-License-Identifier: Apache-2.0

package kedascaler

import (
	"context"
	"fmt"
	"math"

	"google.golang.org/grpc"
	"google.golang.org/grpc/encoding"
	"google.golang.org/grpc/mem"
	"google.golang.org/protobuf/encoding/protowire"
)

// The messages of the service externalscaler.ExternalScaler, by their field numbers
// as KEDA 2.21 publishes them. They are few and flat, so they are read and written
// here by hand.

// objectRef: 1 name, 2 namespace, 3 metadata of the trigger.
type objectRef struct {
	name, namespace string
	metadata        map[string]string
}

// active: 1 result.
type active struct{ result bool }

// specs: one MetricSpec in field 1, of 1 name, 2 target rounded, 3 target.
type specs struct {
	name   string
	target float64
}

// metricsRequest: 1 objectRef, 2 name of the metric.
type metricsRequest struct {
	ref  objectRef
	name string
}

// values: one MetricValue in field 1, of 1 name, 2 value rounded, 3 value.
type values struct {
	name  string
	value float64
}

// fields calls each for every field of a message; b is the payload of a
// length-delimited one.
func fields(msg []byte, each func(n protowire.Number, b []byte) error) error {
	for len(msg) > 0 {
		num, kind, n := protowire.ConsumeTag(msg)
		if n < 0 {
			return protowire.ParseError(n)
		}
		msg = msg[n:]
		if kind != protowire.BytesType {
			if n = protowire.ConsumeFieldValue(num, kind, msg); n < 0 {
				return protowire.ParseError(n)
			}
			msg = msg[n:]
			continue
		}
		b, n := protowire.ConsumeBytes(msg)
		if n < 0 {
			return protowire.ParseError(n)
		}
		if err := each(num, b); err != nil {
			return err
		}
		msg = msg[n:]
	}
	return nil
}

func (r *objectRef) read(msg []byte) error {
	r.metadata = map[string]string{}
	return fields(msg, func(n protowire.Number, b []byte) error {
		switch n {
		case 1:
			r.name = string(b)
		case 2:
			r.namespace = string(b)
		case 3:
			var k, v string
			err := fields(b, func(n protowire.Number, b []byte) error {
				if n == 1 {
					k = string(b)
				} else if n == 2 {
					v = string(b)
				}
				return nil
			})
			r.metadata[k] = v
			return err
		}
		return nil
	})
}

func (r *metricsRequest) read(msg []byte) error {
	return fields(msg, func(n protowire.Number, b []byte) error {
		switch n {
		case 1:
			return r.ref.read(b)
		case 2:
			r.name = string(b)
		}
		return nil
	})
}

func (a *active) write() []byte {
	if !a.result {
		return nil
	}
	return protowire.AppendVarint(protowire.AppendTag(nil, 1, protowire.VarintType), 1)
}

func (s *specs) write() []byte  { return named(s.name, s.target) }
func (v *values) write() []byte { return named(v.name, v.value) }

// named writes field 1 with a name and a number, which stands there rounded up as a
// whole one, too, for a KEDA that reads only that.
func named(name string, x float64) []byte {
	var b []byte
	b = protowire.AppendString(protowire.AppendTag(b, 1, protowire.BytesType), name)
	b = protowire.AppendVarint(protowire.AppendTag(b, 2, protowire.VarintType), uint64(int64(math.Ceil(x))))
	b = protowire.AppendFixed64(protowire.AppendTag(b, 3, protowire.Fixed64Type), math.Float64bits(x))
	return protowire.AppendBytes(protowire.AppendTag(nil, 1, protowire.BytesType), b)
}

type reader interface{ read([]byte) error }
type writer interface{ write() []byte }

// codec carries these messages; it stands in for the one that needs generated types.
type codec struct{}

var _ encoding.CodecV2 = codec{}

func (codec) Name() string { return "proto" }

func (codec) Marshal(v any) (mem.BufferSlice, error) {
	w, ok := v.(writer)
	if !ok {
		return nil, fmt.Errorf("no message of the external scaler: %T", v)
	}
	return mem.BufferSlice{mem.SliceBuffer(w.write())}, nil
}

func (codec) Unmarshal(data mem.BufferSlice, v any) error {
	r, ok := v.(reader)
	if !ok {
		return fmt.Errorf("no message of the external scaler: %T", v)
	}
	return r.read(data.Materialize())
}

// GRPC returns a gRPC server with the service on it.
func (s *Server) GRPC(o ...grpc.ServerOption) *grpc.Server {
	g := grpc.NewServer(append(o, grpc.ForceServerCodecV2(codec{}))...)
	g.RegisterService(&service, s)
	return g
}

// unary is a method with one answer.
func unary[Q any, P interface {
	*Q
	reader
}, A any](name string, call func(*Server, context.Context, P) (A, error)) grpc.MethodDesc {
	return grpc.MethodDesc{MethodName: name, Handler: func(srv any, ctx context.Context, decode func(any) error, via grpc.UnaryServerInterceptor) (any, error) {
		in := P(new(Q))
		if err := decode(in); err != nil {
			return nil, err
		}
		run := func(ctx context.Context, in any) (any, error) { return call(srv.(*Server), ctx, in.(P)) }
		if via == nil {
			return run(ctx, in)
		}
		return via(ctx, in, &grpc.UnaryServerInfo{Server: srv, FullMethod: "/" + serviceName + "/" + name}, run)
	}}
}

func stream(name string, call func(*Server, *objectRef, grpc.ServerStream) error) grpc.StreamDesc {
	return grpc.StreamDesc{StreamName: name, ServerStreams: true, Handler: func(srv any, st grpc.ServerStream) error {
		in := new(objectRef)
		if err := st.RecvMsg(in); err != nil {
			return err
		}
		return call(srv.(*Server), in, st)
	}}
}

const serviceName = "externalscaler.ExternalScaler"

var service = grpc.ServiceDesc{
	ServiceName: serviceName, HandlerType: (*any)(nil),
	Methods: []grpc.MethodDesc{
		unary("IsActive", (*Server).isActive),
		unary("GetMetricSpec", (*Server).metricSpec),
		unary("GetMetrics", (*Server).metrics),
	},
	Streams: []grpc.StreamDesc{
		stream("StreamIsActive", (*Server).streamIsActive),
		stream("StreamMetricSpec", (*Server).streamMetricSpec),
	},
}
