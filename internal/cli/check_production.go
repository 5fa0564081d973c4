// SPDX-License-Identifier: Apache-2.0

package cli

import (
	"cmp"
	"context"
	"encoding/json"
	"fmt"
	"os"
	"slices"
	"strings"
	"time"

	"github.com/penstock-project/penstock/internal/config"
	"github.com/penstock-project/penstock/internal/fleet"
	"github.com/penstock-project/penstock/internal/kube"
	"github.com/penstock-project/penstock/internal/metricsapi"
)

// drillAge is how old a failure drill may be before it proves nothing any more.
const drillAge = 90 * 24 * time.Hour

// produce goes through the checklist of production for one pool.
func (p *preflight) produce(ctx context.Context, pool *config.Pool, snap *fleet.Snapshot) {
	p.loadedWeights(ctx, pool, snap)
	p.noCPU(ctx, pool)
	p.prefixCache(pool, snap)
	p.direct(pool, snap)
	p.adapters(pool, snap)
	p.failureMode(ctx, pool)
}

func readyOnes(snap *fleet.Snapshot) (out []*fleet.EndpointState) {
	if snap == nil {
		return nil
	}
	for i := range snap.Endpoints {
		if snap.Endpoints[i].Phase == fleet.PhaseReady {
			out = append(out, &snap.Endpoints[i])
		}
	}
	return out
}

// loadedWeights: readiness must mean that the model answers, for Penstock and for
// Kubernetes.
func (p *preflight) loadedWeights(ctx context.Context, pool *config.Pool, snap *fleet.Snapshot) {
	const name = "loaded-weights"
	if snap == nil || len(snap.Endpoints) == 0 {
		p.rep.add(name, pool.Name, checkFail, "no replica runs, so nothing is known of it", "start one")
		return
	}
	var early []string
	for i := range snap.Endpoints {
		if e := &snap.Endpoints[i]; p.cluster != nil && e.Phase < fleet.PhaseReady {
			early = append(early, e.ID+": "+e.Reason) // only pods that are Ready are listed
		}
	}
	if len(early) > 0 {
		p.rep.add(name, pool.Name, checkFail, "pods are Ready before their model answers: "+strings.Join(early, "; "),
			"let the readiness probe ask /health (or /v1/models) of the engine, and give the start-up a startupProbe")
		return
	}
	if p.cluster != nil && pool.Scale.Target.Name != "" {
		weak, err := p.cluster.WeakReadiness(ctx, p.target(pool))
		if err != nil {
			p.rep.add(name, pool.Name, checkFail, err.Error(), "give the account get of the object")
			return
		}
		if weak != "" {
			p.rep.add(name, pool.Name, checkFail, weak, "let the readiness probe ask /health (or /v1/models) of the engine by httpGet")
			return
		}
	}
	p.rep.when(len(readyOnes(snap)) > 0, name, pool.Name, plural(len(readyOnes(snap)), "replica")+pluralWord(len(readyOnes(snap)), " lists its models", " list their models"), checkFail,
		"no replica is ready", "wait for one, and see `penstock check`")
}

func (p *preflight) noCPU(ctx context.Context, pool *config.Pool) {
	const name = "no-cpu-scaling"
	if p.cluster == nil || pool.Scale.Target.Name == "" {
		p.rep.add(name, pool.Name, checkSkip, "no object in a cluster is named by scale.target", "")
		return
	}
	owners, err := p.cluster.Owners(ctx, p.target(pool), kube.Reader{Metric: metricsapi.WantedReplicas, Pool: pool.Name})
	if err != nil {
		p.rep.add(name, pool.Name, checkFail, err.Error(), "give the account list of horizontalpodautoscalers and scaledobjects")
		return
	}
	for _, o := range owners {
		for _, n := range o.Notes {
			if strings.Contains(n, "CPU") {
				p.rep.add(name, pool.Name, checkFail, o.String()+": "+n, "replace it: docs/how-to/replace-a-cpu-hpa.md")
				return
			}
		}
	}
	p.rep.add(name, pool.Name, checkPass, "no autoscaler of it looks at CPU", "")
}

func (p *preflight) prefixCache(pool *config.Pool, snap *fleet.Snapshot) {
	const name = "prefix-cache"
	var off []string
	for _, e := range readyOnes(snap) {
		if !e.CacheQueries.OK() && !e.HitRate.OK() || e.CacheQueries.OK() && e.CacheQueries.V == 0 && e.Finished.Or(0) > 0 {
			off = append(off, e.ID)
		}
	}
	p.rep.when(len(off) == 0 && len(readyOnes(snap)) > 0, name, pool.Name, "every ready replica counts what its cache saves", checkFail,
		"no sign of a prefix cache at "+cmp.Or(strings.Join(off, ", "), "any replica"), "vLLM: --enable-prefix-caching; SGLang: without --disable-radix-cache, with --enable-metrics")
}

func (p *preflight) direct(pool *config.Pool, snap *fleet.Snapshot) {
	const name = "scraped-directly"
	var bad []string
	seen := map[string]string{}
	for _, e := range readyOnes(snap) {
		if e.ScrapedAt == 0 || e.ScrapeError != "" {
			bad = append(bad, e.ID+": "+cmp.Or(e.ScrapeError, "never read"))
		}
		if other, ok := seen[e.URL]; ok {
			bad = append(bad, e.ID+" and "+other+" have one address")
		}
		seen[e.URL] = e.ID
	}
	p.rep.when(len(bad) == 0 && len(seen) > 0, name, pool.Name, plural(len(seen), "replica")+pluralWord(len(seen), ", at an address of its own", ", each at an address of its own"), checkFail,
		cmp.Or(strings.Join(bad, "; "), "no replica is ready"), "name each replica, not a Service or a proxy in front of them: its metrics would be of one at random")
}

func (p *preflight) adapters(pool *config.Pool, snap *fleet.Snapshot) {
	const name = "adapters-live"
	var missing []string
	n := 0
	for _, m := range pool.Models {
		for _, a := range m.Adapters {
			n++
			if !slices.ContainsFunc(readyOnes(snap), func(e *fleet.EndpointState) bool { return slices.Contains(e.Models, a) }) {
				missing = append(missing, a)
			}
		}
	}
	if n == 0 {
		p.rep.add(name, pool.Name, checkSkip, "the configuration names no adapters", "")
		return
	}
	p.rep.when(len(missing) == 0, name, pool.Name, fmt.Sprintf("%d adapters are listed by a replica", n), checkFail,
		"no ready replica lists "+strings.Join(missing, ", "), "load them on the engines, or take them out of the configuration")
}

// failureMode: what happens without Penstock must be chosen and drilled.
func (p *preflight) failureMode(ctx context.Context, pool *config.Pool) {
	const name = "failure-mode"
	if pool.Replicas.InferencePool == "" {
		if p.cfg.Listen.EPP == "" {
			p.rep.add(name, pool.Name, checkPass, "Penstock is the gateway: without it requests fail closed; run two replicas", "")
		} else {
			p.rep.add(name, pool.Name, checkWarn, "the failure mode stands in the proxy in front of the endpoint picker, which is not seen here", "check the proxy's configuration with penstock lint")
		}
	} else if p.cluster != nil {
		ns, obj, _ := strings.Cut(pool.Replicas.InferencePool, "/")
		mode, err := p.cluster.FailureMode(ctx, ns, obj)
		if err != nil {
			p.rep.add(name, pool.Name, checkFail, err.Error(), "")
		} else {
			p.rep.when(mode != "", name, pool.Name, "the InferencePool says "+mode, checkFail, "the InferencePool names none", "set endpointPickerRef.failureMode")
		}
	}
	if p.f.drill == "" {
		p.rep.add("drill", pool.Name, checkFail, "no report of a failure drill", "keep that of `penstock drill epp -o json` and name it with --drill FILE")
		return
	}
	p.drillReport(pool.Name)
}

func (p *preflight) drillReport(on string) {
	b, err := os.ReadFile(p.f.drill)
	var rep DrillReport
	if err == nil {
		err = json.Unmarshal(b, &rep)
	}
	info, serr := os.Stat(p.f.drill)
	if err != nil || serr != nil || rep.Schema != drillSchema {
		p.rep.add("drill", on, checkFail, p.f.drill+" is no report of a drill", "keep that of `penstock drill epp -o json`")
		return
	}
	age := p.e.Now().Sub(info.ModTime())
	detail := fmt.Sprintf("of %s, %d steps, %d promises broken", info.ModTime().UTC().Format(time.DateOnly), len(rep.Steps), rep.Failed)
	p.rep.when(rep.Failed == 0 && age < drillAge, "drill", on, detail, checkFail, detail, "drill again; a drill older than 90 days, or with broken promises, proves nothing")
}

// policies checks what holds for all pools.
func (p *preflight) policies() {
	var unset []string
	for i := range p.cfg.Tenants {
		if !p.cfg.IsSet(fmt.Sprintf("tenants[%d].logging", i)) {
			unset = append(unset, p.cfg.Tenants[i].Name)
		}
	}
	switch {
	case len(p.cfg.Tenants) == 0:
		p.rep.add("logging-policy", p.cfg.File(), checkFail, "there are no tenants, so nobody chose what of prompts is recorded (metadata is in force)", "add tenants with logging: none, metadata, hash, redacted or full")
	default:
		p.rep.when(len(unset) == 0, "logging-policy", p.cfg.File(), "every tenant has one", checkFail, "no tenants[].logging for "+strings.Join(unset, ", "), "set logging: none, metadata, hash, redacted or full")
	}
	p.rep.when(guarded(p.cfg), "keys", p.cfg.File(), "the gateway lets in whom it knows", checkFail, "the gateway is anonymous", "set auth.keysFile or auth.jwt")
}
