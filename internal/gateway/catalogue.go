// SPDX-License-Identifier: Apache-2.0

package gateway

import (
	"cmp"
	"fmt"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"github.com/penstock-project/penstock/internal/entry"
	"github.com/penstock-project/penstock/internal/fleet"
	"github.com/penstock-project/penstock/internal/flow"
)

// Model is one model of a pool, by the name that its engines know.
type Model struct {
	Name     string
	Aliases  []string // other names that clients may use
	Adapters []string // LoRA adapters on this model, asked for by their own names
	Tenants  []string // who may see and use it, its aliases and adapters; empty: everybody
}

// Pool is a set of replicas that serve the same models.
type Pool struct {
	Name string
	Flow *flow.Flow
	// Models are the names that clients may use. Where there are none, whatever the
	// replicas list is served.
	Models []Model
	// Fallback names the pools that serve instead where this one cannot, in order.
	Fallback []string
	// FallbackWait is the longest predicted wait for a first token that is not worth a
	// fallback; 0: only a pool that takes nothing is left.
	FallbackWait time.Duration
	// Messages says how its engines speak the Messages API, see Messages*.
	Messages string
	// Heartbeat is how often an event stream whose request waits for a replica gets a
	// comment, from the first interval on; 0: never.
	Heartbeat time.Duration
	// Spare says that names which another pool has, too, lead to that one: this one is
	// reached as a fallback or as a version of a rollout.
	Spare bool
	// Authorization replaces a client's Authorization header on the way to the
	// engines; "" leaves the client's.
	Authorization string
}

// Catalogue maps the names that clients use to pools. A name that neither the
// configuration nor an engine knows is never forwarded: engines may take an unknown
// name for a path or a download. It is safe for concurrent use.
type Catalogue struct {
	pools []*poolEntry
	names map[string]*target // of the configuration
}

// target is where a name leads.
type target struct {
	entry.Place
	pool *poolEntry
}

// poolEntry is a pool with what its replicas listed at their last scrape.
type poolEntry struct {
	Pool
	listed atomic.Pointer[listing]
	// noUsage says that its engines do not know how to be asked for usage.
	noUsage atomic.Bool
	// noMessages says that its engines do not know the Messages API.
	noMessages atomic.Bool
	mu         sync.Mutex // one builder of a listing at a time
}

// listing is what the replicas of one snapshot list.
type listing struct {
	of    *fleet.Snapshot
	names map[string]*target
}

// NewCatalogue checks that no name leads to two places.
func NewCatalogue(pools []Pool) (*Catalogue, error) {
	c := &Catalogue{names: map[string]*target{}}
	for _, p := range pools {
		c.pools = append(c.pools, &poolEntry{Pool: p})
	}
	// Spare pools come last, so that a name is its owner's.
	order := slices.Clone(c.pools)
	slices.SortStableFunc(order, func(a, b *poolEntry) int { return boolInt(a.Spare) - boolInt(b.Spare) })
	for _, e := range order {
		for _, m := range e.Models {
			only := nameSet(m.Tenants)
			if err := c.add(&target{pool: e, Place: entry.Place{Name: m.Name, Model: m.Name, Tenants: only}}); err != nil {
				return nil, err
			}
			for _, a := range m.Aliases {
				if err := c.add(&target{pool: e, Place: entry.Place{Name: a, Model: m.Name, Rename: true, Tenants: only}}); err != nil {
					return nil, err
				}
			}
			for _, a := range m.Adapters {
				if err := c.add(&target{pool: e, Place: entry.Place{Name: a, Model: m.Name, Adapter: a, Tenants: only}}); err != nil {
					return nil, err
				}
			}
		}
	}
	return c, nil
}

func boolInt(b bool) int {
	if b {
		return 1
	}
	return 0
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

func (c *Catalogue) add(t *target) error {
	if t.Name == "" {
		return fmt.Errorf("pool %s has a model without a name", t.pool.Name)
	}
	if old := c.names[t.Name]; old != nil {
		if t.pool.Spare && old.pool != t.pool {
			return nil
		}
		return fmt.Errorf("the model name %q stands in pool %s and in pool %s", t.Name, old.pool.Name, t.pool.Name)
	}
	c.names[t.Name] = t
	return nil
}

// Resolve returns where a name leads. An empty name stands for a request that names
// no model: it leads to the only model there is.
func (c *Catalogue) Resolve(name string) (to entry.Target, ok bool) {
	t := c.find([]byte(name))
	if t == nil {
		return entry.Target{}, false
	}
	return entry.Target{Place: t.Place, Pool: t.pool.Flow, PoolName: t.pool.Name, Authorization: t.pool.Authorization}, true
}

// find returns where name leads; nil where it leads nowhere.
func (c *Catalogue) find(name []byte) *target {
	if len(name) == 0 {
		return c.only()
	}
	if t := c.names[string(name)]; t != nil {
		return t
	}
	for _, p := range c.pools {
		if t := p.names()[string(name)]; t != nil {
			return t
		}
	}
	// Before any replica has listed its models, the pool says why none is ready.
	for _, p := range c.pools {
		if len(p.Models) == 0 && len(p.names()) == 0 {
			return &target{pool: p, Place: entry.Place{Name: string(name), Model: string(name)}}
		}
	}
	return nil
}

// only returns the target of the only model; nil where there are several.
func (c *Catalogue) only() *target {
	var found *target
	for _, t := range c.all() {
		if t.Rename || t.Adapter != "" {
			continue
		}
		if found != nil {
			return nil
		}
		found = t
	}
	if found == nil && len(c.pools) == 1 {
		return &target{pool: c.pools[0]}
	}
	return found
}

// all returns every target, by name. Names of the configuration come first where
// two places list one name.
func (c *Catalogue) all() []*target {
	var out []*target
	seen := map[string]bool{}
	add := func(m map[string]*target) {
		for name, t := range m {
			if !seen[name] {
				seen[name] = true
				out = append(out, t)
			}
		}
	}
	add(c.names)
	for _, p := range c.pools {
		add(p.names())
	}
	slices.SortFunc(out, func(a, b *target) int { return cmp.Compare(a.Name, b.Name) })
	return out
}

// names returns what the replicas of the pool list, beyond the configuration: all
// of it where the configuration names no models, else adapters only.
func (p *poolEntry) names() map[string]*target {
	if p.Flow == nil {
		return nil
	}
	snap := p.Flow.Snapshot()
	if snap == nil {
		return nil
	}
	if l := p.listed.Load(); l != nil && l.of == snap {
		return l.names
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	if l := p.listed.Load(); l != nil && l.of == snap {
		return l.names
	}
	l := &listing{of: snap, names: p.read(snap)}
	p.listed.Store(l)
	return l.names
}

// visibility returns who may use the adapters that replicas list on a model: whoever
// may use the model.
func (p *poolEntry) visibility(model string) map[string]bool {
	for i := range p.Models {
		if p.Models[i].Name == model {
			return nameSet(p.Models[i].Tenants)
		}
	}
	return nil
}

// read lists the names of a snapshot. A name that an engine counts as an adapter
// is one; its model is the first other name that the engine lists.
func (p *poolEntry) read(snap *fleet.Snapshot) map[string]*target {
	names := map[string]*target{}
	adapters := map[string]bool{}
	for i := range snap.Endpoints {
		for _, name := range snap.Endpoints[i].AdapterNames {
			adapters[name] = true
		}
		for _, a := range snap.Endpoints[i].Adapters {
			if a.State != fleet.AdapterAbsent {
				adapters[a.Name] = true
			}
		}
	}
	for i := range snap.Endpoints {
		base := ""
		if len(p.Models) > 0 {
			base = p.Models[0].Name
		}
		if base == "" {
			// Lists are sorted: a model may come after its adapters.
			for _, m := range snap.Endpoints[i].Models {
				if !adapters[m] {
					base = m
					break
				}
			}
		}
		for _, m := range snap.Endpoints[i].Models {
			switch {
			case names[m] != nil:
			case adapters[m] && base != "":
				names[m] = &target{pool: p, Place: entry.Place{Name: m, Model: base, Adapter: m, Tenants: p.visibility(base)}}
			case len(p.Models) == 0:
				names[m] = &target{pool: p, Place: entry.Place{Name: m, Model: m}}
			}
		}
	}
	return names
}
