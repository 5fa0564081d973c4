// SPDX-License-Identifier: Apache-2.0

package cli

import (
	"cmp"
	"crypto/tls"
	"crypto/x509"
	"os"
	"sync/atomic"

	"github.com/penstock-project/penstock/internal/config"
	"github.com/penstock-project/penstock/internal/entry"
	"github.com/penstock-project/penstock/internal/gateway"
	"github.com/penstock-project/penstock/internal/relay"
)

// front is the gateway of a server with its connections to the replicas.
type front struct {
	h     *gateway.Handler
	relay *relay.Client
	cat   atomic.Pointer[gateway.Catalogue] // what h has, for the endpoint picker
}

// newFront wires the gateway to the pools of s. key keys the hashes of prompts:
// random, so that nobody can find prompts that collide.
func newFront(s *server, key uint64) (*front, error) {
	var pools []config.Pool
	for _, p := range s.pools {
		pools = append(pools, p.cfg)
	}
	cat, err := catalogue(s.pools, pools, s.cfg)
	if err != nil {
		return nil, err
	}
	trust, err := relayTLS(pools)
	if err != nil {
		return nil, err
	}
	f := &front{relay: relay.New(s.relayOptions(s.o.Config.Relay, trust))}
	f.cat.Store(cat)
	f.h = gateway.New(gateway.Options{
		Catalogue: cat, Relay: f.relay, Auth: s.guard.auth, EndStreams: s.o.Config.Auth.EndStreams, Quotas: s.meter, Router: s.router, HashKey: key,
		Registerer: s.reg, Clock: s.clock, Log: s.log, Ready: s.Ready,
		Tracer: s.recording.tracer, Prompts: s.recording.prompts,
		MaxBody: int64(s.cfg.Limits.BodyBytes), MaxBodies: int64(s.cfg.Limits.BodiesBytes),
		Limits: bodyLimits(&s.cfg.Limits), Conns: connLimits(&s.cfg.Limits),
	})
	f.h.SetTenants(tenantPolicies(s.cfg))
	f.h.Door().Tokens, f.h.Door().SessionHeaders = newTokenizers(s), sessionHeaders(s.pools)
	return f, nil
}

// tenantPolicies is what the gateway enforces for tenants beside their quotas.
func tenantPolicies(c *config.Config) map[string]entry.TenantPolicy {
	m := map[string]entry.TenantPolicy{}
	for i := range c.Tenants {
		t := &c.Tenants[i]
		m[t.Name] = entry.TenantPolicy{CacheSalt: t.CacheSalt, QueueCap: t.QueueCap, Deadline: t.Deadline, Logging: t.Logging, Pools: nameSet(t.Pools)}
	}
	return m
}

func nameSet(names []string) map[string]bool {
	if len(names) == 0 {
		return nil
	}
	m := map[string]bool{}
	for _, n := range names {
		m[n] = true
	}
	return m
}

// messagesOf is how the engines of a pool speak the Messages API.
func messagesOf(s string) string {
	if s == "auto" {
		return gateway.MessagesAuto
	}
	return s
}

// relayEnv names the environment variable that overrules relay.streams: for trying
// the other path without a change of the configuration.
const relayEnv = "PENSTOCK_RELAY"

func (s *server) relayOptions(c config.Relay, trust *tls.Config) relay.Options {
	streams := cmp.Or(os.Getenv(relayEnv), c.Streams)
	return relay.Options{TLS: trust, Epoll: streams == "epoll", FirstByte: c.FirstByte, Stall: c.Idle, Dial: s.names.DialContext}
}

// catalogue lists what clients may ask for: live pools under the models of cfg,
// which stand in the same order.
func catalogue(live []*livePool, cfg []config.Pool, whole *config.Config) (*gateway.Catalogue, error) {
	var pools []gateway.Pool
	for i, p := range live {
		gp := gateway.Pool{Name: p.name, Flow: p.flow, Authorization: p.auth, Heartbeat: cfg[i].Route.Heartbeat,
			Fallback: cfg[i].Fallback, FallbackWait: cfg[i].FallbackWait, Spare: whole.Spare(p.name), Messages: messagesOf(p.cfg.Engine.Messages)}
		for _, m := range cfg[i].Models {
			gp.Models = append(gp.Models, gateway.Model{Name: m.Name, Aliases: m.Aliases, Adapters: m.Adapters, Tenants: m.Tenants})
		}
		pools = append(pools, gp)
	}
	c, err := gateway.NewCatalogue(pools)
	if err != nil {
		return nil, usagef("one name leads to one pool", "%v", err)
	}
	return c, nil
}

// relayTLS trusts the system's roots and the CAs of all pools: connections are
// shared by address, so a pool cannot have trust of its own there. nil where no
// pool names a CA.
func relayTLS(pools []config.Pool) (*tls.Config, error) {
	var roots *x509.CertPool
	for i := range pools {
		file := pools[i].Engine.TLS.CA
		if file == "" {
			continue
		}
		if roots == nil {
			var err error
			if roots, err = x509.SystemCertPool(); err != nil {
				roots = x509.NewCertPool()
			}
		}
		b, err := os.ReadFile(file)
		if err != nil {
			return nil, failf("", "%v", err)
		}
		if !roots.AppendCertsFromPEM(b) {
			return nil, failf("", "%s holds no PEM certificate", file)
		}
	}
	if roots == nil {
		return nil, nil
	}
	return &tls.Config{MinVersion: tls.VersionTLS12, RootCAs: roots}, nil
}

// update replaces the names that clients may use.
func (f *front) update(live []*livePool, cfg *config.Config) error {
	c, err := catalogue(live, cfg.Pools, cfg)
	if err != nil {
		return err
	}
	f.h.SetCatalogue(c)
	f.cat.Store(c)
	return nil
}

func (f *front) close() { f.relay.Close() }
