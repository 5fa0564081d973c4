// SPDX-License-Identifier: Apache-2.0

package main

import (
	"net"

	corev3 "github.com/envoyproxy/go-control-plane/envoy/config/core/v3"
	extprocv3 "github.com/envoyproxy/go-control-plane/envoy/service/ext_proc/v3"
	"google.golang.org/grpc"
	"google.golang.org/protobuf/types/known/structpb"
)

// floorPicker is the least that a picker on stock gRPC can do: it reads the body,
// returns it and always answers the same endpoint. It scans nothing, decides
// nothing and forgets everything.
type floorPicker struct {
	extprocv3.UnimplementedExternalProcessorServer
	dest *structpb.Struct
}

const (
	destination = "x-gateway-destination-endpoint"
	maxPart     = 62000
)

func newFloor() (*floorPicker, error) {
	st, err := structpb.NewStruct(map[string]any{"envoy.lb": map[string]any{destination: "127.0.0.1:8000"}})
	return &floorPicker{dest: st}, err
}

// Process implements the protocol in full duplex mode.
func (f *floorPicker) Process(s extprocv3.ExternalProcessor_ProcessServer) error {
	var body [][]byte
	for {
		r, err := s.Recv()
		if err != nil {
			return nil
		}
		switch {
		case r.GetRequestHeaders() != nil:
			if r.GetRequestHeaders().GetEndOfStream() {
				err = s.Send(f.pick())
			}
		case r.GetRequestBody() != nil:
			b := r.GetRequestBody()
			body = append(body, b.GetBody())
			if b.GetEndOfStream() {
				if err = s.Send(f.pick()); err == nil {
					err = f.giveBack(s, body)
				}
			}
		case r.GetResponseHeaders() != nil:
			err = s.Send(&extprocv3.ProcessingResponse{Response: &extprocv3.ProcessingResponse_ResponseHeaders{ResponseHeaders: &extprocv3.HeadersResponse{}}})
		case r.GetResponseBody() != nil:
			b := r.GetResponseBody()
			err = s.Send(&extprocv3.ProcessingResponse{Response: &extprocv3.ProcessingResponse_ResponseBody{
				ResponseBody: part(b.GetBody(), b.GetEndOfStream())}})
		}
		if err != nil {
			return err
		}
	}
}

func (f *floorPicker) pick() *extprocv3.ProcessingResponse {
	return &extprocv3.ProcessingResponse{
		Response: &extprocv3.ProcessingResponse_RequestHeaders{RequestHeaders: &extprocv3.HeadersResponse{
			Response: &extprocv3.CommonResponse{ClearRouteCache: true, HeaderMutation: &extprocv3.HeaderMutation{
				SetHeaders: []*corev3.HeaderValueOption{{
					Header:       &corev3.HeaderValue{Key: destination, RawValue: []byte("127.0.0.1:8000")},
					AppendAction: corev3.HeaderValueOption_OVERWRITE_IF_EXISTS_OR_ADD,
				}}}}}},
		DynamicMetadata: f.dest,
	}
}

func (f *floorPicker) giveBack(s extprocv3.ExternalProcessor_ProcessServer, body [][]byte) error {
	for i, b := range body {
		for first := true; first || len(b) > 0; first = false {
			n := min(len(b), maxPart)
			last := i == len(body)-1 && n == len(b)
			if err := s.Send(&extprocv3.ProcessingResponse{Response: &extprocv3.ProcessingResponse_RequestBody{RequestBody: part(b[:n], last)}}); err != nil {
				return err
			}
			b = b[n:]
		}
	}
	return nil
}

func part(b []byte, eos bool) *extprocv3.BodyResponse {
	return &extprocv3.BodyResponse{Response: &extprocv3.CommonResponse{BodyMutation: &extprocv3.BodyMutation{
		Mutation: &extprocv3.BodyMutation_StreamedResponse{StreamedResponse: &extprocv3.StreamedBodyResponse{Body: b, EndOfStream: eos}}}}}
}

func serveFloor(addr string) error {
	f, err := newFloor()
	if err != nil {
		return err
	}
	l, err := net.Listen("tcp", addr)
	if err != nil {
		return err
	}
	g := grpc.NewServer(grpc.MaxRecvMsgSize(128<<20), grpc.MaxConcurrentStreams(1<<20))
	extprocv3.RegisterExternalProcessorServer(g, f)
	return g.Serve(l)
}
