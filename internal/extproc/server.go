// SPDX-License-Identifier: Apache-2.0

package extproc

import (
	"context"
	"crypto/tls"
	"errors"
	"log/slog"
	"net"
	"sync/atomic"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials"
	"google.golang.org/grpc/health"
	"google.golang.org/grpc/health/grpc_health_v1"
	"google.golang.org/grpc/keepalive"

	"github.com/penstock-project/penstock/internal/entry"
	"github.com/penstock-project/penstock/internal/fleet"
	"github.com/penstock-project/penstock/internal/flow"
	"github.com/penstock-project/penstock/internal/prefix"
)

// streamWorkers is how many goroutines take streams one after another; more streams
// at a time get goroutines of their own.
const streamWorkers = 128

// ServiceName is the gRPC service of the external processing protocol.
const ServiceName = "envoy.service.ext_proc.v3.ExternalProcessor"

// HealthServices are the names under which proxies and manifests of the field ask
// for health. All of them say the same.
var HealthServices = []string{"", "liveness", "readiness", ServiceName, "inference-extension"}

// Catalogue finds the pool of a model.
type Catalogue interface {
	// Resolve returns where the name leads that a client asked for. ok is false for
	// an unknown name.
	Resolve(name string) (to entry.Target, ok bool)
	// Pools returns all pools, without names of models, the default one first: it takes
	// requests that name no model. The caller does not change the list.
	Pools() []entry.Target
}

// Rules are what the operators of a pool said of its requests beside the catalogue.
type Rules interface {
	// Class returns the priority class of requests that name an objective, 0 the
	// most urgent. A client may only choose among the objectives that there are.
	Class(objective string) uint8
	// Rewrite returns the model to use in place of one that a client asked for.
	// exact says that a rule names it, as opposed to one for any model. Where there
	// are shares, key decides.
	Rewrite(model string, key uint64) (to string, exact, ok bool)
}

// Options of a Server.
type Options struct {
	Catalogue Catalogue
	// Rules returns the rules of a pool, nil where it has none. nil: no pool has.
	Rules func(*flow.Flow) Rules
	Clock func() fleet.Time // nil: the wall clock
	Log   *slog.Logger      // nil: discard
	// Door says who may enter and on what terms, shared with the other doors of a
	// server; nil: everybody, without limits.
	Door *entry.Door
	// Optional lets a request without any credential enter as nobody in particular,
	// for proxies that have asked who it is already. One that is not valid is refused
	// all the same.
	Optional bool
	// MaxBody is the largest request body in bytes, default 128 MiB. Larger ones
	// are refused with 413.
	MaxBody int
	// MaxHeld is the most bytes of request bodies that may wait for their pick, all
	// streams together; default 1 GiB. Beyond it requests are refused with 503.
	MaxHeld int64
	// EarlyBody is the length in bytes from which on a body is not waited for: the
	// pick is made on its beginning and the rest passes through. Default 1 MiB.
	EarlyBody int
	// SignalAge is how long the signals of an endpoint count as fresh; default 5 s.
	SignalAge time.Duration
	// PickTimeout bounds how long a request may wait for its pick, default 60 s.
	// A proxy sets no limit of its own in full duplex mode.
	PickTimeout time.Duration
	// Fallbacks is how many endpoints are named behind the first, default 2.
	Fallbacks int
	// RouterID goes into the ids of requests.
	RouterID string
	// TLS is nil for plaintext. Use GetCertificate to reload.
	TLS *tls.Config
}

// Server is the endpoint picker. Make it with New, run it with Serve. It is a
// prometheus.Collector of its own series.
type Server struct {
	o       Options
	grpc    *grpc.Server
	health  *health.Server
	Stats   Stats
	metrics *metrics
	seq     atomic.Uint64
	ready   atomic.Bool
	told    [modeFullDuplexStreamed + 1]atomic.Bool // modes that were warned about
}

// New returns a server that is not serving yet: its health says NOT_SERVING until
// SetReady.
func New(o Options) *Server {
	if o.Clock == nil {
		o.Clock = func() fleet.Time { return fleet.At(time.Now()) }
	}
	if o.Log == nil {
		o.Log = slog.New(slog.DiscardHandler)
	}
	if o.Door == nil {
		o.Door = &entry.Door{Auth: entry.Anonymous{}, BlockBytes: prefix.DefaultBlockBytes, Clock: o.Clock}
	}
	if o.MaxBody <= 0 {
		o.MaxBody = 128 << 20
	}
	if o.MaxHeld <= 0 {
		o.MaxHeld = 1 << 30
	}
	if o.EarlyBody <= 0 {
		o.EarlyBody = 1 << 20
	}
	if o.SignalAge <= 0 {
		o.SignalAge = 5 * time.Second
	}
	if o.PickTimeout <= 0 {
		o.PickTimeout = 60 * time.Second
	}
	if o.Fallbacks == 0 {
		o.Fallbacks = 2
	}
	s := &Server{o: o, health: health.NewServer(), metrics: newMetrics()}
	opts := []grpc.ServerOption{
		grpc.ForceServerCodecV2(newCodec()),
		grpc.MaxConcurrentStreams(1 << 20),
		// A goroutine of its own per request grows its stack each time.
		grpc.NumStreamWorkers(streamWorkers),
		grpc.MaxRecvMsgSize(o.MaxBody + 1<<20),
		grpc.InitialWindowSize(1 << 20),
		grpc.InitialConnWindowSize(4 << 20),
		grpc.KeepaliveEnforcementPolicy(keepalive.EnforcementPolicy{MinTime: 5 * time.Second, PermitWithoutStream: true}),
	}
	if o.TLS != nil {
		opts = append(opts, grpc.Creds(credentials.NewTLS(o.TLS)))
	}
	s.grpc = grpc.NewServer(opts...)
	s.grpc.RegisterService(&grpc.ServiceDesc{
		ServiceName: ServiceName,
		HandlerType: (*any)(nil),
		Streams: []grpc.StreamDesc{{
			StreamName: "Process", ServerStreams: true, ClientStreams: true,
			Handler: func(_ any, st grpc.ServerStream) error { return s.process(st) },
		}},
		Metadata: "envoy/service/ext_proc/v3/external_processor.proto",
	}, s)
	grpc_health_v1.RegisterHealthServer(s.grpc, s.health)
	s.SetReady(false)
	return s
}

// SetReady says whether the pools are synced and an endpoint can be picked.
// Liveness is always SERVING.
func (s *Server) SetReady(ready bool) {
	s.ready.Store(ready)
	st := grpc_health_v1.HealthCheckResponse_NOT_SERVING
	if ready {
		st = grpc_health_v1.HealthCheckResponse_SERVING
	}
	for _, name := range HealthServices {
		s.health.SetServingStatus(name, st)
	}
	s.health.SetServingStatus("liveness", grpc_health_v1.HealthCheckResponse_SERVING)
}

// Serve accepts connections until the server is stopped.
func (s *Server) Serve(l net.Listener) error {
	if err := s.grpc.Serve(l); err != nil && !errors.Is(err, grpc.ErrServerStopped) {
		return err
	}
	return nil
}

// Drain says NOT_SERVING, lets open streams end, and stops; when ctx ends first,
// it cuts them. A plain exit would cut every answer that passes through.
func (s *Server) Drain(ctx context.Context) {
	s.ready.Store(false)
	s.health.Shutdown()
	done := make(chan struct{})
	go func() {
		s.grpc.GracefulStop()
		close(done)
	}()
	look := time.NewTicker(20 * time.Millisecond)
	defer look.Stop()
	for idle := 0; idle < 2; {
		select {
		case <-done:
			return
		case <-ctx.Done():
			idle = 2
		case <-look.C:
			// Whoever watches the health keeps a stream open for ever; twice, so that
			// the last request's stream has ended on the wire too.
			if idle++; s.Stats.Open.Load() > 0 {
				idle = 0
			}
		}
	}
	s.grpc.Stop()
	<-done
}
