// SPDX-License-Identifier: Apache-2.0

package cli

import (
	"context"
	"net"
	"net/http"

	"github.com/penstock-project/penstock/internal/config"
	"github.com/penstock-project/penstock/internal/entry"
	"github.com/penstock-project/penstock/internal/extproc"
	"github.com/penstock-project/penstock/internal/flow"
)

// eppFront is the endpoint picker of a server: the pools of the gateway behind
// another door. A nil eppFront is one that is off.
type eppFront struct {
	srv   *extproc.Server
	ln    net.Listener
	ready func() error
}

// eppCatalogue resolves names as the gateway does.
type eppCatalogue struct {
	front *front
	pools []entry.Target // never changes once the server runs
}

// Resolve implements extproc.Catalogue. A reload takes effect with the next
// request.
func (c *eppCatalogue) Resolve(name string) (entry.Target, bool) {
	return c.front.cat.Load().Resolve(name)
}

// Pools implements extproc.Catalogue.
func (c *eppCatalogue) Pools() []entry.Target { return c.pools }

// openEPP opens the endpoint picker where the configuration turns it on.
func (s *server) openEPP() error {
	addr := s.o.Config.Listen.EPP
	if addr == "" {
		return nil
	}
	ln, err := listen("the endpoint picker", "--epp", addr)
	if err != nil {
		return err
	}
	if !config.IsLoopback(addr) && s.tls == nil {
		s.log.Warn("the endpoint picker speaks plaintext with the network: prompts pass through it; set tls.cert and tls.key", "epp", addr)
	}
	cat := &eppCatalogue{front: s.front}
	for _, p := range s.pools {
		cat.pools = append(cat.pools, entry.Target{Pool: p.flow, PoolName: p.name, Authorization: p.auth})
	}
	s.epp = &eppFront{ln: ln, ready: s.Ready, srv: extproc.New(extproc.Options{
		Catalogue: cat, Rules: s.eppRules, Door: s.front.h.Door(), Optional: s.o.Config.Auth.EPP == "optional",
		Clock: s.clock, Log: s.log, RouterID: s.router, TLS: s.tls,
	})}
	s.reg.MustRegister(s.epp.srv)
	return nil
}

// eppRules returns the objectives and rewrites of a pool; nil where it has none.
func (s *server) eppRules(f *flow.Flow) extproc.Rules {
	for _, p := range s.pools {
		if p.flow == f {
			if c := p.compat.Load(); c != nil {
				return c
			}
		}
	}
	return nil
}

// EPPAddr is where proxies connect, "" where the endpoint picker is off.
func (s *server) EPPAddr() string {
	if s.epp == nil {
		return ""
	}
	return s.epp.ln.Addr().String()
}

// observed tells the proxies whether an endpoint can be picked now. It is called
// after each snapshot and when the server stops.
func (f *eppFront) observed() {
	if f != nil {
		f.srv.SetReady(f.ready() == nil)
	}
}

func (f *eppFront) serve() error {
	if err := f.srv.Serve(f.ln); err != nil {
		return err
	}
	return http.ErrServerClosed
}

// drain lets open streams end until ctx does; the channel is closed when the last
// one did.
func (f *eppFront) drain(ctx context.Context) <-chan struct{} {
	done := make(chan struct{})
	go func() {
		defer close(done)
		if f != nil {
			f.srv.Drain(ctx)
		}
	}()
	return done
}

func (f *eppFront) close() {
	if f != nil {
		f.ln.Close()
	}
}
