// SPDX-License-Identifier: Apache-2.0

package cli

import (
	"cmp"
	"context"
	"strings"
	"sync"
	"time"

	"github.com/penstock-project/penstock/internal/config"
	"github.com/penstock-project/penstock/internal/fleet"
	"github.com/penstock-project/penstock/internal/metricsapi"
)

// signals turns what is observed into what people who write an HPA of their own
// read: gauges as they are, counters as rates over the last minute.
type signals struct {
	s *server

	mu      sync.Mutex
	seen    map[string]*poolRates
	carries map[string]float64 // in place of what the scaler believes, by pool; for tests
}

// poolRates remembers the counters of a pool for a minute.
type poolRates struct {
	at       []time.Time
	counters []map[string]counters // by endpoint; as long as at
}

// counters of one endpoint; unknown where the engine does not tell.
type counters struct{ prompt, output, queueSum, queueN, ttftSum, ttftN fleet.Value }

const (
	signalStep   = 5 * time.Second
	signalWindow = time.Minute
)

func newSignals(s *server) *signals {
	return &signals{s: s, seen: map[string]*poolRates{}, carries: map[string]float64{}}
}

// run samples the counters until ctx ends.
func (g *signals) run(ctx context.Context) {
	t := time.NewTicker(signalStep)
	defer t.Stop()
	for {
		now := time.Now()
		for _, p := range g.s.consolePools() {
			if snap := p.Observer.Snapshot(); snap != nil {
				g.sample(p.Name, now, snap)
			}
		}
		select {
		case <-ctx.Done():
			return
		case <-t.C:
		}
	}
}

func (g *signals) sample(pool string, now time.Time, snap *fleet.Snapshot) {
	c := map[string]counters{}
	for i := range snap.Endpoints {
		e := &snap.Endpoints[i]
		c[e.ID] = counters{e.PromptTokens, e.OutputTokens, e.QueueSum, e.QueueCount, e.TTFTSum, e.TTFTCount}
	}
	g.mu.Lock()
	defer g.mu.Unlock()
	r := g.seen[pool]
	if r == nil {
		r = &poolRates{}
		g.seen[pool] = r
	}
	r.at, r.counters = append(r.at, now), append(r.counters, c)
	for len(r.at) > 2 && now.Sub(r.at[1]) >= signalWindow {
		r.at, r.counters = r.at[1:], r.counters[1:]
	}
}

// grown is by how much a counter grew over the window, over one endpoint or (id "")
// all; ok is false where no endpoint told it twice. A restart begins again at zero.
func (r *poolRates) grown(id string, of func(*counters) fleet.Value) (sum, seconds float64, ok bool) {
	for k := 1; k < len(r.at); k++ {
		for name, now := range r.counters[k] {
			before, was := r.counters[k-1][name]
			if id != "" && name != id || !was {
				continue
			}
			a, b := of(&before), of(&now)
			if !a.OK() || !b.OK() {
				continue
			}
			ok = true
			if d := b.V - a.V; d >= 0 {
				sum += d
			} else {
				sum += b.V
			}
		}
	}
	if len(r.at) > 1 {
		seconds = r.at[len(r.at)-1].Sub(r.at[0]).Seconds()
	}
	return sum, seconds, ok && seconds > 0
}

// pools lists what the metrics API gives out.
func (g *signals) pools() []metricsapi.Pool {
	var out []metricsapi.Pool
	for _, p := range g.s.consolePools() {
		cfg := g.config(p.Name)
		if cfg == nil {
			continue
		}
		t := cfg.Scale.Target
		mp := metricsapi.Pool{Name: p.Name, Labels: metricsapi.PoolLabels(p.Name, p.Models), Metrics: map[string]metricsapi.Reading{},
			Namespace: cmp.Or(t.Namespace, cfg.Replicas.Selector.Namespace, g.s.kube.Namespace)}
		if ns, _, ok := strings.Cut(cfg.Replicas.InferencePool, "/"); ok && t.Namespace == "" {
			mp.Namespace = ns
		}
		if t.Name != "" {
			mp.Object = objectResource(t.Kind) + "/" + t.Name
		}
		if h := g.s.cluster.published(p.Name); h != nil {
			n, at := h.Published(context.Background())
			mp.Metrics[metricsapi.WantedReplicas] = metricsapi.Reading{Value: float64(n), At: at}
		}
		if r := g.s.cluster.last(p.Name); r != nil {
			mp.Metrics["penstock_offered_work"] = metricsapi.Reading{Value: r.Offered, At: told(r)}
		}
		// What waits here is this process's own knowledge: nobody waiting is a true 0. Any
		// of several routers may be asked, so what others told of counts, too.
		w := p.Flow.Waiting(0)
		mp.Metrics["penstock_held_requests"] = metricsapi.Reading{Value: float64(w.Held + w.Late), At: time.Now()}
		if snap := p.Observer.Snapshot(); snap != nil {
			g.gauges(&mp, snap)
			g.rates(&mp)
		}
		out = append(out, mp)
	}
	return out
}

// objectResource is the resource of a kind of target as metrics of objects name it.
func objectResource(kind string) string {
	switch strings.ToLower(kind) {
	case "statefulset":
		return "statefulsets.apps"
	case "leaderworkerset":
		return "leaderworkersets.leaderworkerset.x-k8s.io"
	}
	return "deployments.apps"
}

// gauges fills in what each engine says now. A sum over a pool is known only where
// every ready replica tells its part.
func (g *signals) gauges(mp *metricsapi.Pool, snap *fleet.Snapshot) {
	pods := map[string]int{}
	set := func(pod *metricsapi.Pod, name string, v fleet.Value, fold func(a, b float64) float64) {
		if !v.OK() {
			return
		}
		r, was := pod.Metrics[name]
		if was {
			v.V = fold(r.Value, v.V)
		}
		pod.Metrics[name] = metricsapi.Reading{Value: v.V, At: v.At.Wall()}
	}
	for i := range snap.Endpoints {
		e := &snap.Endpoints[i]
		if e.Phase != fleet.PhaseReady && e.Phase != fleet.PhaseDraining {
			continue
		}
		id, _, _ := strings.Cut(e.ID, "#")
		_, name, _ := strings.Cut(id, "/")
		k, ok := pods[name]
		if !ok {
			k = len(mp.Pods)
			pods[name] = k
			mp.Pods = append(mp.Pods, metricsapi.Pod{Name: name, Metrics: map[string]metricsapi.Reading{}})
		}
		set(&mp.Pods[k], "penstock_running_requests", e.Running, add)
		set(&mp.Pods[k], "penstock_waiting_requests", e.Waiting, add)
		set(&mp.Pods[k], "penstock_kv_used_share", e.KVUsage, larger)
	}
	for name, fold := range map[string]func(a, b float64) float64{"penstock_running_requests": add, "penstock_waiting_requests": add, "penstock_kv_used_share": larger} {
		var all metricsapi.Reading
		for k := range mp.Pods {
			r, ok := mp.Pods[k].Metrics[name]
			if !ok {
				all = metricsapi.Reading{}
				break
			}
			if all.At.IsZero() {
				all = r
			} else {
				all.Value = fold(all.Value, r.Value)
				if r.At.Before(all.At) {
					all.At = r.At
				}
			}
		}
		mp.Metrics[name] = all
	}
}

func add(a, b float64) float64    { return a + b }
func larger(a, b float64) float64 { return max(a, b) }

// rates fills in what grew over the last minute.
func (g *signals) rates(mp *metricsapi.Pool) {
	g.mu.Lock()
	defer g.mu.Unlock()
	r := g.seen[mp.Name]
	if r == nil || len(r.at) == 0 {
		return
	}
	at := r.at[len(r.at)-1]
	tokens := func(id string) (metricsapi.Reading, bool) {
		p, s, ok := r.grown(id, func(c *counters) fleet.Value { return c.prompt })
		o, _, ok2 := r.grown(id, func(c *counters) fleet.Value { return c.output })
		return metricsapi.Reading{Value: (p + o) / s, At: at}, ok && ok2
	}
	mean := func(name string, sum, n func(*counters) fleet.Value) {
		a, _, ok := r.grown("", sum)
		b, _, ok2 := r.grown("", n)
		if ok && ok2 && b > 0 { // nobody came: there is no mean, and it is not 0
			mp.Metrics[name] = metricsapi.Reading{Value: a / b, At: at}
		}
	}
	if v, ok := tokens(""); ok {
		mp.Metrics["penstock_tokens_per_second"] = v
	}
	mean("penstock_queue_seconds", func(c *counters) fleet.Value { return c.queueSum }, func(c *counters) fleet.Value { return c.queueN })
	mean("penstock_ttft_seconds", func(c *counters) fleet.Value { return c.ttftSum }, func(c *counters) fleet.Value { return c.ttftN })
	for k := range mp.Pods {
		if v, ok := tokens(mp.Namespace + "/" + mp.Pods[k].Name); ok {
			mp.Pods[k].Metrics["penstock_tokens_per_second"] = v
		}
	}
}

// perReplica is the work that one replica carries, as the scaler believes; 0: not
// known.
func (g *signals) perReplica(pool string) float64 {
	g.mu.Lock()
	defer g.mu.Unlock()
	if v, ok := g.carries[pool]; ok {
		return v
	}
	if r := g.s.cluster.last(pool); r != nil {
		return r.PerReplica
	}
	return 0
}

func (g *signals) setPerReplica(pool string, work float64) {
	g.mu.Lock()
	defer g.mu.Unlock()
	g.carries[pool] = work
}

func (g *signals) config(pool string) *config.Pool {
	g.s.mu.Lock()
	defer g.s.mu.Unlock()
	if p := g.s.pool(pool); p != nil {
		c := p.cfg
		return &c
	}
	return nil
}
