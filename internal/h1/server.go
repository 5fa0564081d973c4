// SPDX-License-Identifier: Apache-2.0

package h1

import (
	"context"
	"errors"
	"log/slog"
	"net"
	"net/http"
	"sync"
	"sync/atomic"
	"time"
)

// Options of a Server. All but Log must be set.
type Options struct {
	// Handler serves the requests. It must not keep a request, its header or its
	// writer after it returned: they are used again. The context of a request ends
	// with its connection, not when the handler returns.
	Handler http.Handler
	// Watch calls left once when the other side of c ends the connection, until stop
	// is called. Where it fails the connection is for Other.
	Watch func(c net.Conn, left func()) (stop func(), err error)
	// Open takes note of a connection and returns the context of its requests; nil:
	// it is one too many and is closed. It is called before the next one is accepted:
	// when Serve has returned, all are noted.
	Open func(c net.Conn) (context.Context, Visitor)
	// Other takes a connection that asks for something unusual, with the bytes that
	// were read from it, which it must copy. Its Visitor hears no more.
	Other func(c net.Conn, read []byte)
	// HeadTime bounds the reading of a head, IdleTime the wait for the next request.
	HeadTime, IdleTime time.Duration
	Log                *slog.Logger
}

// Visitor is told how far a connection is. Its methods must not block.
type Visitor interface {
	Asks()   // the first byte of a request was read
	Rests()  // the connection waits for its next request
	Leaves() // the connection is closed, or the handler has taken it
}

// Server serves connections until it is shut down. It is safe for concurrent use.
type Server struct {
	o      Options
	ending atomic.Bool

	mu    sync.Mutex
	conns map[*conn]struct{}
	none  chan struct{} // closed when the last connection is gone; nil: nobody waits
}

// New returns a Server.
func New(o Options) *Server {
	if o.Log == nil {
		o.Log = slog.New(slog.DiscardHandler)
	}
	return &Server{o: o, conns: map[*conn]struct{}{}}
}

// Serve serves the connections of l until it is closed.
func (s *Server) Serve(l net.Listener) error {
	pause := time.Duration(0)
	for {
		c, err := l.Accept()
		if err == nil {
			pause = 0
			if ctx, v := s.o.Open(c); ctx != nil {
				go s.connection(ctx, c, v)
			} else {
				c.Close()
			}
			continue
		}
		// As net/http does: out of descriptors is no reason to stop.
		var ne net.Error
		//lint:ignore SA1019 net/http goes by it, too, and there is no other word for it
		if !errors.As(err, &ne) || !ne.Temporary() {
			return err
		}
		pause = min(max(2*pause, 5*time.Millisecond), time.Second)
		s.o.Log.Debug("http server", "message", "accept: "+err.Error())
		time.Sleep(pause)
	}
}

// connection serves one connection to its end.
func (s *Server) connection(ctx context.Context, nc net.Conn, v Visitor) {
	c := newConn(ctx, s, nc, v)
	defer c.cancel()
	stop, err := s.o.Watch(nc, c.cancel)
	if err != nil {
		s.o.Other(nc, nil)
		return
	}
	c.unwatch = stop
	s.mu.Lock()
	s.conns[c] = struct{}{}
	s.mu.Unlock()
	c.serve()
	s.mu.Lock()
	delete(s.conns, c)
	if len(s.conns) == 0 && s.none != nil {
		close(s.none)
		s.none = nil
	}
	s.mu.Unlock()
}

// Shutdown closes connections that idle and waits until the others have had their
// answers, or for the end of ctx. The listeners are their owners' to close.
func (s *Server) Shutdown(ctx context.Context) error {
	s.ending.Store(true)
	s.mu.Lock()
	if len(s.conns) == 0 {
		s.mu.Unlock()
		return nil
	}
	if s.none == nil {
		s.none = make(chan struct{})
	}
	none := s.none
	for c := range s.conns {
		c.wakeIdle()
	}
	s.mu.Unlock()
	select {
	case <-none:
		return nil
	case <-ctx.Done():
		return ctx.Err()
	}
}

// Close ends all connections at once.
func (s *Server) Close() {
	s.ending.Store(true)
	s.mu.Lock()
	defer s.mu.Unlock()
	for c := range s.conns {
		c.cut()
	}
}
