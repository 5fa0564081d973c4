// SPDX-License-Identifier: Apache-2.0

package cli

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"syscall"
	"time"

	"github.com/penstock-project/penstock/internal/config"
	"github.com/penstock-project/penstock/internal/engine"
	"github.com/penstock-project/penstock/internal/fleet"
	"github.com/penstock-project/penstock/internal/load"
	"github.com/penstock-project/penstock/internal/observe"
	"github.com/penstock-project/penstock/internal/replica"
	"github.com/penstock-project/penstock/internal/route"
	"github.com/penstock-project/penstock/internal/workload"
)

// The demo is one machine's worth of traffic on a modelled fleet: prefill takes
// hundreds of milliseconds there, so that what a slow or busy machine adds to a
// request is small beside what the placement of the request decides.
const (
	demoReplicas  = 8
	demoFirstPort = 8001
	demoModel     = "llama-3.1-8b"
	demoProfile   = "llama-3.1-8b-rtx4090"
	demoPool      = "demo"

	demoUsers = 32
	// demoShare is the part of the prompt tokens that was sent before, and what the
	// conversations are made for; see demoTraffic.
	demoShare = 0.70
	// demoAware is the part of the shareable tokens that a cache-aware router keeps
	// in the rule of thumb that the demo is compared with.
	demoAware = 0.8
)

// demoTraffic is conversations of seven turns. The share is set a little above
// demoShare, since the first prompt behind every system prompt finds nothing in a
// cold cache and conversations are cut when a phase ends.
func demoTraffic(seed uint64) workload.Spec {
	return workload.Spec{
		Kind: workload.KindChat, Seed: seed, Share: demoShare + 0.03,
		Turns: 7, EvenTurns: true, Apps: 12, Input: 1000, Output: 40,
		Think: 400 * time.Millisecond, MaxContext: 16000,
	}
}

// demoFleet is the simulated fleet with the server in front.
type demoFleet struct {
	env      *Env
	replicas []*replica.Server
	server   *server
	stopped  chan error // what Run of the server returned
	cancel   context.CancelFunc
}

// startDemo starts replicas, which serve the named LoRA adapters, and server and
// waits until all replicas are ready. The caller closes what it returns, also after
// an error.
func startDemo(ctx context.Context, e *Env, listen, admin, policy string, adapters ...string) (*demoFleet, error) {
	f := &demoFleet{env: e, stopped: make(chan error, 1)}
	profile, _ := engine.Lookup(demoProfile)
	for i := range demoReplicas {
		r, err := startReplica(ctx, replica.Options{
			Models: []string{demoModel}, Profile: profile, Listen: fmt.Sprintf("127.0.0.1:%d", demoFirstPort+i), LoRA: adapters,
		})
		if err != nil {
			return f, failf("", "replica %d: %v", i, err)
		}
		f.replicas = append(f.replicas, r)
	}
	cfg := config.Default()
	cfg.Listen.HTTP, cfg.Listen.Admin = listen, admin
	p := config.DefaultPool(demoPool)
	p.Models = []config.Model{{Name: demoModel, Adapters: adapters}}
	p.Engine.Profile, p.Route.Policy = demoProfile, policy
	for _, r := range f.replicas {
		p.Replicas.Static = append(p.Replicas.Static, r.URL())
	}
	cfg.Pools = []config.Pool{p}
	var named observe.Static
	for i, r := range f.replicas {
		t := observe.TargetFor(r.URL())
		t.ID = demoName(i)
		named = append(named, t)
	}
	s, err := buildServer(serverOptions{
		Config: cfg, Interval: 500 * time.Millisecond, DrainTimeout: 2 * time.Second,
		Sources: map[string]observe.Source{demoPool: named},
	})
	if err != nil {
		return f, err
	}
	f.server = s
	run, cancel := context.WithCancel(context.WithoutCancel(ctx))
	f.cancel = cancel
	go func() { f.stopped <- s.Run(run) }()
	return f, f.waitReady(ctx, 0)
}

// demoName is what the router calls replica i.
func demoName(i int) string { return fmt.Sprintf("r%d", i) }

// startReplica takes the preferred address, or any free port where that is taken.
func startReplica(ctx context.Context, o replica.Options) (*replica.Server, error) {
	for {
		r, err := replica.New(o)
		if err != nil {
			return nil, err
		}
		err = r.Start(ctx)
		if err == nil {
			return r, nil
		}
		r.Close()
		if o.Listen == "127.0.0.1:0" || !errors.Is(err, syscall.EADDRINUSE) && !errors.Is(err, syscall.EACCES) {
			return nil, err
		}
		o.Listen = "127.0.0.1:0"
	}
}

// waitReady waits until the router has seen all replicas ready in a scrape after
// the moment since.
func (f *demoFleet) waitReady(ctx context.Context, since fleet.Time) error {
	_, observer := f.server.Pool(demoPool)
	limit := time.NewTimer(15 * time.Second)
	defer limit.Stop()
	tick := time.NewTicker(20 * time.Millisecond)
	defer tick.Stop()
	for {
		ready := 0
		if s := observer.Snapshot(); s != nil {
			for i := range s.Endpoints {
				if ep := &s.Endpoints[i]; ep.Phase == fleet.PhaseReady && ep.ScrapedAt > since {
					ready++
				}
			}
		}
		if ready == len(f.replicas) {
			return nil
		}
		select {
		case <-tick.C:
		case err := <-f.stopped:
			f.stopped <- err
			return failf("", "the server ended: %v", err)
		case <-limit.C:
			return failf("is the machine very busy? try again", "only %d of %d replicas became ready", ready, len(f.replicas))
		case <-ctx.Done():
			return nil
		}
	}
}

// chill restarts every replica in place, which empties its cache and makes the
// router forget what it believed to be there.
func (f *demoFleet) chill(ctx context.Context) error {
	var wg sync.WaitGroup
	errs := make([]error, len(f.replicas))
	for i, r := range f.replicas {
		wg.Go(func() { errs[i] = r.Restart(0) })
	}
	wg.Wait()
	if err := errors.Join(errs...); err != nil {
		return failf("", "restart of the replicas: %v", err)
	}
	return f.waitReady(ctx, f.server.clock())
}

// turnTo makes the fleet ready for phase i: everything cold, its policy in charge.
func (f *demoFleet) turnTo(ctx context.Context, i int) error {
	if i == 0 {
		return nil // as it was started
	}
	if err := f.chill(ctx); err != nil {
		return err
	}
	return f.setPolicy(demoPolicies[i])
}

// setPolicy switches the router as a reload of its configuration does.
func (f *demoFleet) setPolicy(policy string) error {
	next := *f.server.Config()
	next.Pools = append([]config.Pool(nil), next.Pools...)
	next.Pools[0].Route.Policy = policy
	return f.server.Reload(&next)
}

// runner returns a run of the demo's users against the gateway; it ends after
// duration, 0: with its context.
func (f *demoFleet) runner(seed uint64, duration time.Duration, each func(*load.Result)) (*load.Runner, error) {
	return f.play(demoTraffic(seed), workload.FeedOptions{Users: demoUsers, Ramp: 2 * time.Second}, duration, each)
}

// play returns a run of any traffic against the gateway.
func (f *demoFleet) play(spec workload.Spec, o workload.FeedOptions, duration time.Duration, each func(*load.Result)) (*load.Runner, error) {
	target, err := load.ParseTarget(f.server.GatewayURL())
	if err != nil {
		return nil, err
	}
	g, err := workload.NewGenerator(spec)
	if err != nil {
		return nil, err
	}
	return load.New(load.Options{
		Target: target, Model: demoModel, Workload: string(workload.KindChat), Feed: workload.NewFeed(g, o),
		Duration: duration, Grace: 3 * time.Second, Timeout: time.Minute, Each: each,
	}), nil
}

// close ends server and replicas and waits for them.
func (f *demoFleet) close() {
	if f.server != nil {
		f.cancel()
		<-f.stopped
	}
	for _, r := range f.replicas {
		r.Close()
	}
}

// demoPolicies are the phases in their order.
var demoPolicies = [...]string{route.PolicyRandom, route.PolicyPenstock}
