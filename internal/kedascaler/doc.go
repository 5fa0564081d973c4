// SPDX-License-Identifier: Apache-2.0

// Package kedascaler is an external scaler for KEDA: it tells a ScaledObject how many
// replicas a pool should have, at once when that changes, and with what one replica
// carries as the target where the operator wants that.
//
// A number that is unknown or too old is an error, never a 0: KEDA then holds, or
// uses the fallback of the ScaledObject.
package kedascaler

import (
	"cmp"
	"context"
	"log/slog"
	"sync"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
)

// Wanted is what a pool should have.
type Wanted struct {
	Replicas int
	At       time.Time // when that was confirmed; zero: not known
	// PerReplica is the work that one replica carries, in units of PerReplica's own;
	// 0: not known.
	PerReplica float64
}

// Options of a Server.
type Options struct {
	// Pool finds a pool by name; ok is false where there is none.
	Pool func(ctx context.Context, name string) (w Wanted, ok bool)
	// Changed is closed when the number of a pool changes; nil: look every Poll.
	Changed func(name string) <-chan struct{}
	// Poll is the time between two looks of a stream; 0: 250 ms.
	Poll time.Duration
	// Repeat is how often a stream says again that a pool is wanted, for a KEDA that
	// missed it; 0: 10 s.
	Repeat time.Duration
	// MaxAge is the age from which a number is unknown; 0: 60 s.
	MaxAge time.Duration
	Log    *slog.Logger // nil: discard
}

// Server answers KEDA. Safe for concurrent use.
type Server struct {
	o Options

	mu      sync.Mutex
	streams int
	asked   time.Time
	ladders map[string]*ladder // by pool
}

// New returns a server; Register puts it on a gRPC server.
func New(o Options) *Server {
	o.Poll = cmp.Or(o.Poll, 250*time.Millisecond)
	o.Repeat = cmp.Or(o.Repeat, 10*time.Second)
	o.MaxAge = cmp.Or(o.MaxAge, time.Minute)
	if o.Log == nil {
		o.Log = slog.New(slog.DiscardHandler)
	}
	return &Server{o: o, ladders: map[string]*ladder{}}
}

// Streams is how many streams KEDA holds open, and when it last asked for anything.
func (s *Server) Streams() (open int, asked time.Time) {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.streams, s.asked
}

// find answers for the pool that the metadata of a trigger names.
func (s *Server) find(ctx context.Context, ref *objectRef) (Wanted, error) {
	s.mu.Lock()
	s.asked = time.Now()
	s.mu.Unlock()
	name := ref.metadata["pool"]
	if name == "" {
		return Wanted{}, status.Error(codes.InvalidArgument, "the trigger's metadata names no pool: add pool: NAME")
	}
	w, ok := s.o.Pool(ctx, name)
	if !ok {
		return Wanted{}, status.Errorf(codes.NotFound, "there is no pool %q", name)
	}
	if w.At.IsZero() || time.Since(w.At) > s.o.MaxAge {
		return Wanted{}, status.Errorf(codes.Unavailable, "how many replicas pool %q should have is not known at present", name)
	}
	return w, nil
}

// Measures of a trigger, by its metadata measure.
const (
	measureReplicas = "replicas" // the number itself, target 1
	measureWork     = "work"     // the work that so many replicas carry, target what one carries
)

// metric is the name, the value and the target of a pool's metric.
func (s *Server) metric(ref *objectRef, w Wanted) (name string, value, target float64, err error) {
	switch m := cmp.Or(ref.metadata["measure"], measureReplicas); m {
	case measureReplicas:
		return "wanted-replicas", float64(w.Replicas), 1, nil
	case measureWork:
		now := time.Now()
		s.mu.Lock()
		defer s.mu.Unlock()
		l := s.ladders[ref.metadata["pool"]]
		if l == nil {
			l = &ladder{}
			s.ladders[ref.metadata["pool"]] = l
		}
		l.step(now, w.Replicas, w.PerReplica)
		return "work", l.value(now, w.Replicas), l.target, nil
	default:
		return "", 0, 0, status.Errorf(codes.InvalidArgument, "measure %q is unknown: use replicas or work", m)
	}
}

func (s *Server) isActive(ctx context.Context, ref *objectRef) (*active, error) {
	w, err := s.find(ctx, ref)
	if err != nil {
		return nil, err
	}
	return &active{w.Replicas > 0}, nil
}

func (s *Server) metricSpec(ctx context.Context, ref *objectRef) (*specs, error) {
	w, err := s.find(ctx, ref)
	if err != nil {
		// The kind of metric does not depend on how many are wanted now, and without
		// it KEDA builds no HPA at all.
		if status.Code(err) != codes.Unavailable {
			return nil, err
		}
	}
	name, _, target, err := s.metric(ref, w)
	if err != nil {
		return nil, err
	}
	return &specs{name, target}, nil
}

func (s *Server) metrics(ctx context.Context, req *metricsRequest) (*values, error) {
	w, err := s.find(ctx, &req.ref)
	if err != nil {
		return nil, err
	}
	_, value, _, err := s.metric(&req.ref, w)
	if err != nil {
		return nil, err
	}
	return &values{req.name, value}, nil
}

// follow calls look at the start, at each change and every Poll, until the stream
// ends or look fails.
func (s *Server) follow(ctx context.Context, ref *objectRef, look func() error) error {
	s.mu.Lock()
	s.streams++
	s.mu.Unlock()
	defer func() {
		s.mu.Lock()
		s.streams--
		s.mu.Unlock()
	}()
	t := time.NewTicker(s.o.Poll)
	defer t.Stop()
	for {
		var changed <-chan struct{}
		if s.o.Changed != nil {
			changed = s.o.Changed(ref.metadata["pool"])
		}
		if err := look(); err != nil {
			return err
		}
		select {
		case <-ctx.Done():
			return nil
		case <-changed:
		case <-t.C:
		}
	}
}

func (s *Server) streamIsActive(ref *objectRef, st grpc.ServerStream) error {
	sent, last := time.Time{}, false
	return s.follow(st.Context(), ref, func() error {
		w, err := s.find(st.Context(), ref)
		if err != nil {
			if status.Code(err) == codes.Unavailable {
				return nil // silence: a stream that breaks is opened again only after a while
			}
			return err
		}
		now := w.Replicas > 0
		if !sent.IsZero() && now == last && !(now && time.Since(sent) > s.o.Repeat) {
			return nil
		}
		sent, last = time.Now(), now
		return st.SendMsg(&active{now})
	})
}

func (s *Server) streamMetricSpec(ref *objectRef, st grpc.ServerStream) error {
	last := specs{}
	return s.follow(st.Context(), ref, func() error {
		now, err := s.metricSpec(st.Context(), ref)
		if err != nil {
			if status.Code(err) == codes.Unavailable {
				return nil
			}
			return err
		}
		if last == *now {
			return nil
		}
		last = *now
		return st.SendMsg(now)
	})
}
