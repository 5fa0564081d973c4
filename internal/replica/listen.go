// SPDX-License-Identifier: Apache-2.0

package replica

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/http"
	"sync"
	"sync/atomic"
	"time"
)

// Start goes through the start-up stages, which takes Options.Startup, and then opens
// the port: until that moment connections are refused, as the real server does it. It
// returns when the port is open, or with the reason why it is not.
func (s *Server) Start(ctx context.Context) error {
	ln, err := net.Listen("tcp", s.opt.Listen)
	if err != nil {
		return fmt.Errorf("replica: %w", err)
	}
	s.lnMu.Lock()
	s.listen = ln.Addr().String() // a port that was picked stays
	s.lnMu.Unlock()
	if s.opt.Startup > 0 {
		_ = ln.Close() // reserved only to find a port in use before the wait
	}
	if err := s.startup(ctx); err != nil {
		_ = ln.Close()
		return err
	}
	s.mu.Lock()
	s.born = time.Now()
	s.mu.Unlock()
	if s.opt.Startup > 0 {
		if err := s.listenAgain(); err != nil {
			return err
		}
	} else {
		s.serveOn(ln)
	}
	s.logf("Serving on http://%s", s.Addr())
	s.logf("Application startup complete.")
	return nil
}

// Addr is the host:port that Start listens on; with port 0, known once it has begun.
func (s *Server) Addr() string {
	s.lnMu.Lock()
	defer s.lnMu.Unlock()
	return s.listen
}

// URL is the base URL of the replica, without /v1.
func (s *Server) URL() string { return "http://" + s.Addr() }

func (s *Server) serveOn(ln net.Listener) {
	srv := &http.Server{Handler: s.Handler(), ReadHeaderTimeout: time.Minute, ConnState: s.idle.note}
	s.lnMu.Lock()
	s.ln, s.srv = ln, srv
	s.lnMu.Unlock()
	go func() {
		if err := srv.Serve(ln); err != nil && !errors.Is(err, http.ErrServerClosed) {
			s.logf("Listener failed: %v", err)
		}
	}()
}

func (s *Server) hadListener() bool {
	s.lnMu.Lock()
	defer s.lnMu.Unlock()
	return s.srv != nil
}

func (s *Server) listenAgain() error {
	ln, err := net.Listen("tcp", s.Addr())
	if err != nil {
		return fmt.Errorf("replica: %w", err)
	}
	s.serveOn(ln)
	return nil
}

// closeListener closes the port and, with conns, every connection.
func (s *Server) closeListener(conns bool) {
	s.lnMu.Lock()
	ln, srv := s.ln, s.srv
	s.ln = nil
	s.lnMu.Unlock()
	if ln != nil {
		_ = ln.Close()
	}
	if srv != nil && conns {
		_ = srv.Close()
	}
}

// idleCloser closes connections that have been idle for a while, which net/http can
// do too, but not with a limit that changes.
type idleCloser struct {
	limit atomic.Int64
	mu    sync.Mutex
	conns map[net.Conn]*time.Timer
}

func (c *idleCloser) init(limit time.Duration) {
	c.conns = map[net.Conn]*time.Timer{}
	c.set(limit)
}

func (c *idleCloser) set(limit time.Duration) { c.limit.Store(int64(limit)) }

func (c *idleCloser) note(conn net.Conn, state http.ConnState) {
	c.mu.Lock()
	defer c.mu.Unlock()
	switch state {
	case http.StateIdle:
		limit := time.Duration(c.limit.Load())
		if t := c.conns[conn]; t != nil {
			t.Reset(limit)
			return
		}
		c.conns[conn] = time.AfterFunc(limit, func() { _ = conn.Close() })
	case http.StateActive:
		if t := c.conns[conn]; t != nil {
			t.Stop()
		}
	case http.StateClosed, http.StateHijacked:
		if t := c.conns[conn]; t != nil {
			t.Stop()
			delete(c.conns, conn)
		}
	}
}
