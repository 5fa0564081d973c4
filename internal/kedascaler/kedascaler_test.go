// SPDX-License-Identifier: Apache-2.0

package kedascaler

import (
	"context"
	"errors"
	"io"
	"math"
	"net"
	"sync"
	"testing"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/grpc/encoding"
	"google.golang.org/grpc/mem"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/encoding/protowire"
	"pgregory.net/rapid"
)

// raw carries bytes as they are: the client's side of these tests.
type raw struct{}

var _ encoding.CodecV2 = raw{}

func (raw) Name() string { return "proto" }
func (raw) Marshal(v any) (mem.BufferSlice, error) {
	return mem.BufferSlice{mem.SliceBuffer(v.([]byte))}, nil
}
func (raw) Unmarshal(d mem.BufferSlice, v any) error { *v.(*[]byte) = d.Materialize(); return nil }

func str(b []byte, n protowire.Number, s string) []byte {
	return protowire.AppendString(protowire.AppendTag(b, n, protowire.BytesType), s)
}

// object is a ScaledObjectRef as KEDA sends it.
func object(meta ...string) []byte {
	b := str(str(nil, 1, "so"), 2, "models")
	for i := 0; i < len(meta); i += 2 {
		b = protowire.AppendBytes(protowire.AppendTag(b, 3, protowire.BytesType), str(str(nil, 1, meta[i]), 2, meta[i+1]))
	}
	return b
}

// number reads name and number of the one entry of an answer.
func number(t *testing.T, b []byte) (name string, whole int64, x float64) {
	t.Helper()
	err := fields(b, func(_ protowire.Number, in []byte) error {
		for len(in) > 0 {
			num, kind, n := protowire.ConsumeTag(in)
			in = in[n:]
			switch kind {
			case protowire.BytesType:
				s, k := protowire.ConsumeString(in)
				name, n = s, k
			case protowire.VarintType:
				v, k := protowire.ConsumeVarint(in)
				whole, n = int64(v), k
			default:
				v, k := protowire.ConsumeFixed64(in)
				x, n = math.Float64frombits(v), k
			}
			if num < 1 || num > 3 || n < 0 {
				return errors.New("no such field")
			}
			in = in[n:]
		}
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
	return name, whole, x
}

type rig struct {
	mu sync.Mutex
	w  Wanted
	ch chan struct{}
	c  *grpc.ClientConn
	s  *Server
}

func (r *rig) set(w Wanted) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.w = w
	close(r.ch)
	r.ch = make(chan struct{})
}

func newRig(t *testing.T) *rig {
	t.Helper()
	r := &rig{ch: make(chan struct{})}
	r.s = New(Options{Poll: time.Hour, Repeat: time.Hour,
		Pool: func(_ context.Context, name string) (Wanted, bool) {
			r.mu.Lock()
			defer r.mu.Unlock()
			return r.w, name == "chat"
		},
		Changed: func(string) <-chan struct{} {
			r.mu.Lock()
			defer r.mu.Unlock()
			return r.ch
		}})
	ln, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	g := r.s.GRPC()
	go func() { _ = g.Serve(ln) }()
	t.Cleanup(g.Stop)
	if r.c, err = grpc.NewClient(ln.Addr().String(), grpc.WithTransportCredentials(insecure.NewCredentials()), grpc.WithDefaultCallOptions(grpc.ForceCodecV2(raw{}))); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { r.c.Close() })
	return r
}

func (r *rig) call(method string, in []byte) ([]byte, error) {
	var out []byte
	err := r.c.Invoke(context.Background(), "/externalscaler.ExternalScaler/"+method, in, &out)
	return out, err
}

func (r *rig) stream(t *testing.T, method string, in []byte) (grpc.ClientStream, context.CancelFunc) {
	t.Helper()
	ctx, cancel := context.WithCancel(context.Background())
	st, err := r.c.NewStream(ctx, &grpc.StreamDesc{ServerStreams: true}, "/externalscaler.ExternalScaler/"+method)
	if err == nil {
		err = st.SendMsg(in)
	}
	if err == nil {
		err = st.CloseSend()
	}
	if err != nil {
		t.Fatal(err)
	}
	return st, cancel
}

func recv(t *testing.T, st grpc.ClientStream) []byte {
	t.Helper()
	var out []byte
	if err := st.RecvMsg(&out); err != nil {
		t.Fatal(err)
	}
	return out
}

func metricsFor(ref []byte) []byte {
	return str(protowire.AppendBytes(protowire.AppendTag(nil, 1, protowire.BytesType), ref), 2, "wanted-replicas")
}

func TestAnswers(t *testing.T) {
	r := newRig(t)
	r.set(Wanted{Replicas: 3, At: time.Now(), PerReplica: 0.61234})
	ref := object("pool", "chat", "scalerAddress", "x:1")
	b, err := r.call("IsActive", ref)
	if err != nil || len(b) != 2 || b[1] != 1 {
		t.Errorf("IsActive: %v %v", b, err)
	}
	b, err = r.call("GetMetricSpec", ref)
	if name, whole, x := number(t, b); err != nil || name != "wanted-replicas" || whole != 1 || x != 1 {
		t.Errorf("GetMetricSpec: %v %v %v %v", name, whole, x, err)
	}
	b, err = r.call("GetMetrics", metricsFor(ref))
	if name, whole, x := number(t, b); err != nil || name != "wanted-replicas" || whole != 3 || x != 3 {
		t.Errorf("GetMetrics: %v %v %v %v", name, whole, x, err)
	}
	work := object("pool", "chat", "measure", "work")
	b, _ = r.call("GetMetricSpec", work)
	_, _, target := number(t, b)
	b, _ = r.call("GetMetrics", metricsFor(work))
	_, _, value := number(t, b)
	if n := math.Ceil(value/target - 1e-9); target != 0.612 || n != 3 {
		t.Errorf("work: value %v, target %v make %v replicas, want 3", value, target, n)
	}
	r.set(Wanted{Replicas: 0, At: time.Now()})
	if b, err = r.call("IsActive", ref); err != nil || len(b) != 0 {
		t.Errorf("IsActive at zero: %v %v", b, err)
	}
}

func TestUnknownIsAnError(t *testing.T) {
	r := newRig(t)
	ref := object("pool", "chat")
	for _, w := range []Wanted{{}, {Replicas: 4, At: time.Now().Add(-2 * time.Minute)}} {
		r.set(w)
		if _, err := r.call("IsActive", ref); status.Code(err) != codes.Unavailable {
			t.Errorf("IsActive of %v: %v", w, err)
		}
		if _, err := r.call("GetMetrics", metricsFor(ref)); status.Code(err) != codes.Unavailable {
			t.Errorf("GetMetrics of %v: %v", w, err)
		}
		if _, err := r.call("GetMetricSpec", ref); err != nil {
			t.Errorf("GetMetricSpec of %v: %v; without it KEDA makes no HPA", w, err)
		}
	}
	r.set(Wanted{Replicas: 4, At: time.Now()})
	for _, c := range []struct {
		ref  []byte
		code codes.Code
	}{{object(), codes.InvalidArgument}, {object("pool", "typo"), codes.NotFound}, {object("pool", "chat", "measure", "x"), codes.InvalidArgument}} {
		if _, err := r.call("GetMetrics", metricsFor(c.ref)); status.Code(err) != c.code {
			t.Errorf("%q: %v, want %v", c.ref, err, c.code)
		}
	}
}

func TestStreams(t *testing.T) {
	r := newRig(t)
	r.set(Wanted{Replicas: 0, At: time.Now(), PerReplica: 4})
	st, cancel := r.stream(t, "StreamIsActive", object("pool", "chat"))
	defer cancel()
	if b := recv(t, st); len(b) != 0 {
		t.Errorf("at zero: %v", b)
	}
	r.set(Wanted{Replicas: 2, At: time.Now(), PerReplica: 4})
	if b := recv(t, st); len(b) != 2 {
		t.Errorf("woken: %v", b)
	}
	spec, stop := r.stream(t, "StreamMetricSpec", object("pool", "chat", "measure", "work"))
	if _, _, x := number(t, recv(t, spec)); x != 4 {
		t.Errorf("first target %v", x)
	}
	stop()
	bad, drop := r.stream(t, "StreamIsActive", object("pool", "typo"))
	defer drop()
	var out []byte
	if err := bad.RecvMsg(&out); status.Code(err) != codes.NotFound || errors.Is(err, io.EOF) {
		t.Errorf("a pool that is not there: %v", err)
	}
}

func FuzzRead(f *testing.F) {
	f.Add(object("pool", "chat"))
	f.Add(metricsFor(object("pool", "chat", "measure", "work")))
	f.Fuzz(func(_ *testing.T, b []byte) {
		_ = new(objectRef).read(b)
		_ = new(metricsRequest).read(b)
	})
}

// TestLadder: whatever the target does, an HPA that sees value and target at different
// moments finds the number that is wanted.
func TestLadder(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		var l ladder
		now := time.Now()
		n := rapid.IntRange(0, 100).Draw(t, "n")
		inForce := 0.0
		for range 30 {
			per := rapid.Float64Range(0, 50).Draw(t, "per")
			now = now.Add(time.Duration(rapid.IntRange(1, 20).Draw(t, "s")) * time.Second)
			if now.Sub(l.moved) >= settle {
				inForce = l.target // everybody has seen it by now
			}
			l.step(now, n, per)
			v := l.value(now, n)
			for _, target := range []float64{l.target, inForce} {
				if target == 0 {
					continue
				}
				if got := int(math.Ceil(v/target - 1e-6)); got != n {
					t.Fatalf("value %v by target %v makes %d replicas, want %d", v, target, got, n)
				}
			}
		}
	})
}

func TestLadderArrives(t *testing.T) {
	l := ladder{}
	now := time.Now()
	for range 40 {
		l.step(now, 10, 4)
		now = now.Add(settle)
	}
	for range 40 {
		l.step(now, 10, 2.5)
		now = now.Add(settle)
	}
	if math.Abs(l.target-2.5) > 0.05 {
		t.Errorf("target %v, want 2.5", l.target)
	}
}
