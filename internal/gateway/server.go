// SPDX-License-Identifier: Apache-2.0

package gateway

import (
	"context"
	"crypto/tls"
	"log"
	"log/slog"
	"net"
	"net/http"
	"sync"
	"sync/atomic"
	"time"

	"github.com/penstock-project/penstock/internal/entry"
	"github.com/penstock-project/penstock/internal/fleet"
	"github.com/penstock-project/penstock/internal/prefix"
	"github.com/penstock-project/penstock/internal/relay"
	"github.com/penstock-project/penstock/internal/rollout"
	"github.com/penstock-project/penstock/internal/route"
	"github.com/penstock-project/penstock/internal/wire"
)

// Limits of the client side that are the same everywhere.
const (
	headerTime = 10 * time.Second // for the head of a request
	// idleTime is longer than common client pools keep a connection (90 s), so that
	// the race over idle connections is not moved to the clients.
	idleTime       = 120 * time.Second
	maxHeaderBytes = 64 << 10
	maxStreams     = 1000 // requests at a time over one HTTP/2 connection
)

// Server is an http.Server that also knows of the connections which the relay took
// from it for a stream.
type Server struct {
	*http.Server
	back   *relay.Back
	conns  *connections // nil: not counted
	log    *slog.Logger
	watch  *relay.Client // with an epoll set; nil: net/http serves all connections
	once   sync.Once
	loop   *loop // nil before Serve, and without watch
	ending atomic.Bool

	mu    sync.Mutex
	doors []net.Listener // that Serve and ServeTLS accept from
	loops sync.WaitGroup // of Serve and ServeTLS
}

// backKey finds the relay.Back of a connection in the context of its requests.
type backKey struct{}

// NewServer returns a server for a gateway's handler: HTTP/1.1 and HTTP/2, with TLS
// or in plain text. Bodies and answers have limits of their own, by progress; there
// is none on the length of a stream.
func NewServer(h http.Handler, tlsConfig *tls.Config, logger *slog.Logger) *Server {
	if logger == nil {
		logger = slog.New(slog.DiscardHandler)
	}
	var protocols http.Protocols
	protocols.SetHTTP1(true)
	protocols.SetHTTP2(true)
	protocols.SetUnencryptedHTTP2(true)
	s := &Server{back: relay.NewBack(backAddr{}), log: logger}
	if gh, ok := h.(*Handler); ok {
		s.conns = &gh.conns
		s.conns.away.Store(s.back)
		if gh.o.Relay != nil && gh.o.Relay.Polls() {
			s.watch = gh.o.Relay
		}
	}
	conns := s.conns
	s.Server = &http.Server{
		Handler:           s.lastAnswer(h),
		TLSConfig:         tlsConfig,
		ReadHeaderTimeout: headerTime,
		IdleTimeout:       idleTime,
		MaxHeaderBytes:    conns.headBytes(),
		Protocols:         &protocols,
		HTTP2:             &http.HTTP2Config{MaxConcurrentStreams: maxStreams},
		ErrorLog:          log.New(&serverLog{logger}, "", 0),
		ConnState:         conns.state,
		ConnContext: func(ctx context.Context, c net.Conn) context.Context {
			ctx = conns.context(ctx, c)
			if relay.CanGoBack(c) {
				return context.WithValue(ctx, backKey{}, s.back)
			}
			return ctx
		},
	}
	return s
}

// backAddr is the address of connections that come back.
type backAddr struct{}

// Network implements net.Addr.
func (backAddr) Network() string { return "back" }

// String implements net.Addr.
func (backAddr) String() string { return "connections after a stream" }

// lastAnswer tells clients of a server that ends that this was the last answer over
// their connection, so that their next request opens one to whoever comes after.
func (s *Server) lastAnswer(h http.Handler) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		arrived(r.Context())
		if s.ending.Load() && r.ProtoMajor == 1 {
			w.Header().Set("Connection", "close")
		}
		h.ServeHTTP(w, r)
	})
}

// Serve serves the connections of l and those that come back from streams.
func (s *Server) Serve(l net.Listener) error {
	s.once.Do(s.begin)
	s.hold(l)
	defer s.loops.Done()
	if s.loop != nil {
		return s.ended(s.loop.Serve(l))
	}
	return s.ended(s.Server.Serve(l))
}

// begin starts what serves connections in plain text beside a listener.
func (s *Server) begin() {
	if s.watch == nil {
		go s.Server.Serve(s.back)
		return
	}
	s.mu.Lock()
	s.loop = newLoop(s, s.watch)
	s.mu.Unlock()
	go s.Server.Serve(s.loop.other)
	go s.loop.Serve(s.back)
}

// running returns the loop; nil where there is none.
func (s *Server) running() *loop {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.loop
}

// ServeTLS serves TLS connections of l; see http.Server.ServeTLS.
func (s *Server) ServeTLS(l net.Listener, cert, key string) error {
	s.hold(l)
	defer s.loops.Done()
	return s.ended(s.Server.ServeTLS(l, cert, key))
}

func (s *Server) hold(l net.Listener) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.loops.Add(1)
	s.doors = append(s.doors, l)
	if s.ending.Load() {
		l.Close()
	}
}

func (s *Server) ended(err error) error {
	if s.ending.Load() {
		return http.ErrServerClosed
	}
	return err
}

// settleTime is how long a connection that was just accepted may take to say what it
// wants before a server that ends gives it up.
const settleTime = 2 * time.Second

// Shutdown takes no more connections and waits for requests and streams. Requests of
// connections that were accepted before are answered: http.Server.Shutdown by itself
// drops a request that it has read when it was told to end in that moment.
func (s *Server) Shutdown(ctx context.Context) error {
	s.ending.Store(true)
	s.mu.Lock()
	for _, l := range s.doors {
		l.Close() // again by Shutdown, which does no harm
	}
	s.mu.Unlock()
	s.loops.Wait() // a connection may be accepted and not counted yet
	for end := time.Now().Add(settleTime); s.conns.fresh() > 0 && ctx.Err() == nil && time.Now().Before(end); {
		time.Sleep(5 * time.Millisecond)
	}
	time.Sleep(20 * time.Millisecond) // between the last byte of a head and the handler
	s.back.Close()
	var err error
	if l := s.running(); l != nil {
		l.other.Close()
		err = l.Shutdown(ctx)
	}
	if serr := s.Server.Shutdown(ctx); err == nil {
		err = serr
	}
	if serr := s.back.Wait(ctx); err == nil {
		err = serr
	}
	return err
}

// Close ends everything at once.
func (s *Server) Close() error {
	err := s.Server.Close()
	s.back.Close()
	if l := s.running(); l != nil {
		l.other.Close()
		l.Close()
	}
	s.back.Cut()
	return err
}

// serverLog takes the server's own lines: broken handshakes and the like.
type serverLog struct{ log *slog.Logger }

// Write takes one line.
func (s *serverLog) Write(p []byte) (int, error) {
	s.log.Debug("http server", "message", string(p))
	return len(p), nil
}

// Explain returns the decision on a request that is not sent. An error is a
// *wire.Error, whose StatusCode says whose fault it is.
func (h *Handler) Explain(ctx context.Context, surface fleet.Surface, body []byte) (*route.Record, error) {
	if int64(len(body)) > h.bodies.most {
		return nil, h.bodies.tooLarge()
	}
	var s wire.Scan
	var hasher prefix.Hasher
	if fault := h.door.Scan(&s, surface, "", body); fault != nil {
		return nil, fault
	}
	var t *target
	var err error
	if l := h.rollouts.find(s.Model); l != nil {
		t = l.targets().at[rollout.Baseline]
	}
	if t == nil {
		if t, err = h.place(&s); err != nil {
			return nil, err
		}
	}
	req := &fleet.Request{}
	salt := h.door.Salt(&entry.Identity{}, &s)
	h.door.Fill(req, &s, body, &hasher, &t.Place, salt, t.pool.Flow.BytesPerToken(t.Model))
	req.ID = h.ids.next()
	return t.pool.Flow.Preview(req), nil
}
