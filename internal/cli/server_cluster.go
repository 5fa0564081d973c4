// SPDX-License-Identifier: Apache-2.0

package cli

import (
	"cmp"
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"net"
	"net/http"
	"os"
	"strings"
	"sync/atomic"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials"

	"github.com/penstock-project/penstock/internal/config"
	"github.com/penstock-project/penstock/internal/flow"
	"github.com/penstock-project/penstock/internal/kedascaler"
	"github.com/penstock-project/penstock/internal/kube"
	"github.com/penstock-project/penstock/internal/metricsapi"
	"github.com/penstock-project/penstock/internal/observe"
)

// clusterScaling is what a server does about replicas in a cluster: hands that move
// objects, and the doors at which an HPA and KEDA ask.
type clusterScaling struct {
	s       *server
	lead    *kube.Leader
	hands   map[string]flow.Hand // by pool
	signals *signals

	metrics   *metricsapi.Server // nil: off
	metricsLn net.Listener
	keda      *kedascaler.Server // nil: off
	kedaLn    net.Listener
}

// openCluster wires what pools with a target need; nothing where none has one.
func (s *server) openCluster() error {
	cfg := s.o.Config
	any := cfg.Listen.Metrics != "" || cfg.Listen.KEDA != ""
	for i := range cfg.Pools {
		any = any || cfg.Pools[i].Scale.Target.Name != ""
	}
	if !any {
		return nil
	}
	if err := s.connectKube(); err != nil {
		return failf("name a kubeconfig with --kubeconfig, or run in a pod with a service account", "scaling in a cluster: %v", err)
	}
	host, _ := os.Hostname()
	c := &clusterScaling{s: s, hands: map[string]flow.Hand{}, signals: newSignals(s),
		lead: kube.NewLeader(kube.LeaderOptions{Cluster: s.kube, Namespace: cmp.Or(cfg.Kube.Namespace, s.kube.Namespace), Name: cfg.Kube.Name,
			Identity: cmp.Or(host, "penstock") + "_" + s.router})}
	s.cluster = c
	s.background = append(s.background, c.lead.Run, c.signals.run, c.remember)
	for i := range cfg.Pools {
		if p := &cfg.Pools[i]; p.Scale.Target.Name != "" {
			c.hands[p.Name] = c.hand(p)
		}
	}
	return errors.Join(c.openMetrics(), c.openKEDA())
}

// hand makes the hand of a pool with a target. auto looks who scales the object: an
// HPA or a ScaledObject that reads this pool's number is served, otherwise /scale it
// is, which stops by itself where somebody else owns the object.
func (c *clusterScaling) hand(p *config.Pool) flow.Hand {
	t := p.Scale.Target
	o := kube.HandOptions{Cluster: c.s.kube, Pool: p.Name, Lead: c.lead, DrainFor: p.Scale.DrainFor, Metric: metricsapi.WantedReplicas, Log: c.s.log,
		Drain:  &podDrain{c.s, p.Name},
		Target: kube.Target{APIVersion: t.APIVersion, Kind: t.Kind, Name: t.Name, Namespace: cmp.Or(t.Namespace, p.Replicas.Selector.Namespace, c.s.kube.Namespace)}}
	name := p.Scale.Hand
	if name == "auto" || name == "process" {
		name = "scale"
		ctx, cancel := context.WithTimeout(context.Background(), 5*time.Second)
		defer cancel()
		owners, err := c.s.kube.Owners(ctx, o.Target, kube.Reader{Metric: o.Metric, Pool: p.Name})
		if err != nil {
			c.s.log.Warn("who scales the object is not known yet", "pool", p.Name, "error", err.Error())
		}
		for _, w := range owners {
			if w.Reads && w.Kind == "ScaledObject" {
				name = "keda"
			} else if w.Reads {
				name = "hpa"
			}
		}
	}
	c.s.log.Info("hand", "pool", p.Name, "hand", name, "target", o.Target.String())
	if name == "scale" {
		return kube.NewScaleHand(o)
	}
	return kube.NewPublishHand(name, p.Scale.Wake == "scale", o)
}

// published is the hand of a pool whose number is read by others; nil where it has
// another one.
func (c *clusterScaling) published(pool string) *kube.PublishHand {
	h, _ := c.hands[pool].(*kube.PublishHand)
	return h
}

// podDrain drains the endpoints of a pod. It implements kube.Drainer.
type podDrain struct {
	s    *server
	pool string
}

func (d *podDrain) each(pod string, do func(o *observe.Observer, id string)) {
	_, o := d.s.Pool(d.pool)
	if o == nil {
		return
	}
	snap := o.Snapshot() // one for all: the next may have fewer endpoints
	if snap == nil {
		return
	}
	for i := range snap.Endpoints {
		if id := snap.Endpoints[i].ID; ofPod(id, pod) {
			do(o, id)
		}
	}
}

// ofPod reports whether an endpoint is one of a pod's.
func ofPod(id, pod string) bool { return id == pod || strings.HasPrefix(id, pod+"#") }

func (d *podDrain) Drain(pod string) {
	d.each(pod, func(o *observe.Observer, id string) { _ = o.Drain(id, "the pool scales down") }) // gone is as good
}

func (d *podDrain) Undrain(pod string) {
	d.each(pod, func(o *observe.Observer, id string) { _ = o.Undrain(id) })
}

// Busy counts what other routers told of, too.
func (d *podDrain) Busy(pod string) int {
	f, _ := d.s.Pool(d.pool)
	if f == nil {
		return 0
	}
	n := 0
	for _, e := range f.Stats().Endpoints {
		if ofPod(e.Endpoint, pod) {
			n += e.InFlight + e.PeerInFlight
		}
	}
	return n
}

// openMetrics opens the aggregated API.
func (c *clusterScaling) openMetrics() error {
	cfg := c.s.o.Config
	if cfg.Listen.Metrics == "" {
		return nil
	}
	ns, name, _ := strings.Cut(cfg.Kube.Service, "/")
	var err error
	if c.metricsLn, err = listen("the metrics API", "listen.metrics", cfg.Listen.Metrics); err != nil {
		return err
	}
	var proxies *kube.FrontProxies
	header := func() metricsapi.RequestHeader {
		if proxies == nil {
			return metricsapi.RequestHeader{}
		}
		p := proxies.Now()
		return metricsapi.RequestHeader{CA: p.CA, AllowedNames: p.AllowedNames, User: p.User, Group: p.Group, ExtraPrefix: p.ExtraPrefix}
	}
	if proxies, err = c.s.kube.FollowFrontProxy(context.Background()); err != nil {
		c.s.log.Warn("the metrics API refuses everybody until it can read whom to trust", "error", err.Error())
	}
	c.metrics = metricsapi.New(metricsapi.Options{Pools: c.signals.pools, Judge: judge{c.s.kube}, Header: header, Log: c.s.log, Pods: c.s.kube.PodNames})
	var certs atomic.Pointer[kube.Certificates]
	certificate := func() (*tls.Certificate, error) {
		if k := certs.Load(); k != nil {
			return k.Get()
		}
		return nil, errors.New("there is no certificate yet")
	}
	srv := &http.Server{Handler: c.metrics, TLSConfig: c.metrics.TLS(certificate), ReadHeaderTimeout: 10 * time.Second, IdleTimeout: 2 * time.Minute, MaxHeaderBytes: 64 << 10}
	c.s.background = append(c.s.background, func(ctx context.Context) {
		stop := context.AfterFunc(ctx, func() { srv.Close() })
		defer stop()
		if err := srv.ServeTLS(c.metricsLn, "", ""); !errors.Is(err, http.ErrServerClosed) {
			c.s.log.Error("the metrics API stopped", "error", err.Error())
		}
	}, func(ctx context.Context) {
		if k := c.sharedCA(ctx, ns, name); k != nil {
			certs.Store(k)
			c.register(ctx, ns, name, k.Bundle())
		}
	})
	return nil
}

// sharedCA gets the CA of the metrics API, as soon as the API server has it; nil where
// ctx ends before.
func (c *clusterScaling) sharedCA(ctx context.Context, ns, name string) *kube.Certificates {
	cfg := c.s.o.Config.Kube
	names := []string{name + "." + ns + ".svc", name + "." + ns, name, "localhost"}
	for told := ""; ; {
		k, err := c.s.kube.SharedCA(ctx, cmp.Or(cfg.Namespace, c.s.kube.Namespace), cfg.Name+"-ca", names)
		if err == nil {
			return k
		}
		if text := err.Error(); text != told && ctx.Err() == nil {
			told = text
			c.s.log.Warn("the metrics API has no certificate yet", "error", text)
		}
		select {
		case <-ctx.Done():
			return nil
		case <-time.After(2 * time.Second):
		}
	}
}

// register keeps the APIServices right: every half minute, since somebody may install
// another adapter or delete ours.
func (c *clusterScaling) register(ctx context.Context, ns, name string, ca []byte) {
	told := map[string]string{}
	for {
		for _, gv := range [][2]string{{metricsapi.GroupExternal, "v1beta1"}, {metricsapi.GroupCustom, "v1beta2"}, {metricsapi.GroupCustom, "v1beta1"}} {
			err := c.s.kube.Register(ctx, kube.Registration{Group: gv[0], Version: gv[1], Namespace: ns, Service: name, Port: c.s.o.Config.Kube.Port, CA: ca})
			text := ""
			if err != nil {
				text = err.Error()
			}
			if text != told[gv[1]+gv[0]] && ctx.Err() == nil {
				if told[gv[1]+gv[0]] = text; err != nil {
					c.s.log.Warn("the metrics API is not registered", "group", gv[0], "version", gv[1], "error", text)
				} else {
					c.s.log.Info("the metrics API is registered", "group", gv[0], "version", gv[1])
				}
			}
		}
		select {
		case <-ctx.Done():
			return
		case <-time.After(30 * time.Second):
		}
	}
}

// judge asks the API server. It implements metricsapi.Judge.
type judge struct{ c *kube.Cluster }

func (j judge) Allowed(ctx context.Context, who metricsapi.Subject, q metricsapi.Question) (bool, string, error) {
	return j.c.Allowed(ctx, kube.Asked{User: who.User, Groups: who.Groups, Extra: who.Extra, Verb: q.Verb, Group: q.Group, Resource: q.Resource, Namespace: q.Namespace})
}

// openKEDA opens the external scaler.
func (c *clusterScaling) openKEDA() error {
	addr := c.s.o.Config.Listen.KEDA
	if addr == "" {
		return nil
	}
	if !config.IsLoopback(addr) && c.s.tls == nil && !c.s.o.Config.Listen.KEDAPlaintext {
		return usagef("set tls.cert and tls.key, or listen.kedaPlaintext: true where only KEDA can reach it",
			"refusing to tell %s without TLS how busy the pools are", addr)
	}
	var err error
	if c.kedaLn, err = listen("the external scaler", "listen.keda", addr); err != nil {
		return err
	}
	var opts []grpc.ServerOption
	if c.s.tls != nil {
		opts = append(opts, grpc.Creds(credentials.NewTLS(c.s.tls)))
	}
	c.keda = kedascaler.New(kedascaler.Options{Log: c.s.log,
		Pool: func(ctx context.Context, name string) (kedascaler.Wanted, bool) {
			h := c.published(name)
			if h == nil {
				return kedascaler.Wanted{}, false
			}
			n, at := h.Published(ctx)
			return kedascaler.Wanted{Replicas: n, At: at, PerReplica: c.signals.perReplica(name)}, true
		},
		Changed: func(name string) <-chan struct{} {
			if h := c.published(name); h != nil {
				return h.Changed()
			}
			return nil
		},
	})
	srv := c.keda.GRPC(opts...)
	c.s.background = append(c.s.background, func(ctx context.Context) {
		stop := context.AfterFunc(ctx, srv.Stop)
		defer stop()
		if err := srv.Serve(c.kedaLn); err != nil && ctx.Err() == nil {
			c.s.log.Error("the external scaler stopped", "error", err.Error())
		}
	})
	return nil
}

// Hand is what moves the replicas of a pool in the cluster; nil where nothing does.
func (c *clusterScaling) Hand(pool string) flow.Hand {
	if c == nil {
		return nil
	}
	return c.hands[pool]
}

// Addrs tells where the metrics API and the external scaler listen, "" where they
// are off.
func (c *clusterScaling) Addrs() (metrics, keda string) {
	if c != nil && c.metricsLn != nil {
		metrics = c.metricsLn.Addr().String()
	}
	if c != nil && c.kedaLn != nil {
		keda = c.kedaLn.Addr().String()
	}
	return metrics, keda
}

func (c *clusterScaling) String() string {
	m, k := c.Addrs()
	return fmt.Sprintf("metrics API %q, external scaler %q", m, k)
}

func (c *clusterScaling) close() {
	if c == nil {
		return
	}
	for _, l := range []net.Listener{c.metricsLn, c.kedaLn} {
		if l != nil {
			l.Close()
		}
	}
}
