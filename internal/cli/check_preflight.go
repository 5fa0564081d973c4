// SPDX-License-Identifier: Apache-2.0

package cli

import (
	"cmp"
	"context"
	"fmt"
	"log/slog"
	"slices"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"github.com/penstock-project/penstock/internal/config"
	"github.com/penstock-project/penstock/internal/fleet"
	"github.com/penstock-project/penstock/internal/kube"
	"github.com/penstock-project/penstock/internal/observe"
)

// checkFlags are the flags of `penstock check`.
type checkFlags struct {
	config, kubeconfig string
	production         bool
	drill              string
	wait               time.Duration
}

// preflight is one run of the checks.
type preflight struct {
	f       *checkFlags
	e       *Env
	cfg     *config.Config
	rep     *CheckReport
	cluster *kube.Cluster // nil: no pool needs one
}

// runCheck is `penstock check` without a subcommand.
func runCheck(c *cobra.Command, e *Env, f *checkFlags, out string) error {
	cfg, err := loadConfig(e.Stderr, f.config)
	if err != nil {
		return err
	}
	p := &preflight{f: f, e: e, cfg: cfg, rep: &CheckReport{Schema: checkSchema, Checks: []CheckLine{}}}
	p.connect()
	for i := range cfg.Pools {
		pool := &cfg.Pools[i]
		if len(pool.Replicas.Process.Command) > 0 {
			p.rep.add("engines", pool.Name, checkSkip, "penstock serve starts its replicas itself", "")
			if f.production {
				p.failureMode(c.Context(), pool)
			}
			continue
		}
		snap := p.look(c.Context(), pool)
		if f.production {
			p.produce(c.Context(), pool, snap)
			continue
		}
		p.engines(pool, snap)
		if p.cluster != nil {
			p.object(c.Context(), pool)
		}
	}
	if f.production {
		p.policies()
	} else if p.cluster != nil {
		p.apis(c.Context())
		p.rights(c.Context())
	}
	if out == "json" {
		if err := printJSON(e.Stdout, p.rep); err != nil {
			return err
		}
	} else {
		p.rep.print(e.Stdout)
	}
	if p.rep.Failed > 0 {
		return errSilent(ExitFindings)
	}
	return nil
}

func inCluster(p *config.Pool) bool {
	return len(p.Replicas.Selector.Labels) > 0 || p.Replicas.InferencePool != "" || p.Scale.Target.Name != ""
}

func (p *preflight) connect() {
	if !slices.ContainsFunc(p.cfg.Pools, func(q config.Pool) bool { return inCluster(&q) }) {
		return
	}
	c, err := kube.Connect(p.f.kubeconfig, nil)
	if err == nil {
		_, err = c.Pods.Discovery().ServerVersion()
	}
	if err != nil {
		p.rep.add("api-server", "cluster", checkFail, err.Error(), "name a kubeconfig with --kubeconfig, or run in a pod with a service account")
		return
	}
	p.cluster = c
	p.rep.add("api-server", "cluster", checkPass, "it answers", "")
}

// look watches the replicas of a pool for a moment; nil where they cannot be found.
func (p *preflight) look(ctx context.Context, pool *config.Pool) *fleet.Snapshot {
	s := &server{o: serverOptions{Kubeconfig: p.f.kubeconfig}, log: slog.New(slog.DiscardHandler), kube: p.cluster}
	if inCluster(pool) && p.cluster == nil {
		return nil
	}
	src, err := s.source(pool, &livePool{cfg: *pool})
	if err != nil {
		p.rep.add("engines", pool.Name, checkFail, err.Error(), "")
		return nil
	}
	o := observe.Options{Pool: pool.Name, Source: src, Models: modelNames(pool), Interval: 500 * time.Millisecond}
	if pool.Engine.APIKeyFile != "" {
		if o.APIKey, err = config.ReadSecret(pool.Engine.APIKeyFile); err != nil {
			p.rep.add("engines", pool.Name, checkFail, err.Error(), "engine.apiKeyFile names a file with the key of the replicas")
		}
	}
	if o.TLS, err = engineTLS(pool.Engine.TLS); err != nil {
		p.rep.add("engines", pool.Name, checkFail, err.Error(), "engine.tls.ca names a PEM file")
		return nil
	}
	ob := observe.New(o)
	ctx, cancel := context.WithTimeout(ctx, p.f.wait)
	defer cancel()
	done := make(chan struct{})
	go func() { defer close(done); _ = ob.Run(ctx) }()
	defer func() { cancel(); <-done }()
	for {
		snap := ob.Snapshot()
		// A moment after the first answers the metrics have been read twice.
		if snap != nil && len(snap.Endpoints) > 0 && settled(snap) {
			return snap
		}
		select {
		case <-ctx.Done():
			return ob.Snapshot()
		case <-time.After(100 * time.Millisecond):
		}
	}
}

// settled reports whether every replica answered or said why not.
func settled(s *fleet.Snapshot) bool {
	for i := range s.Endpoints {
		if e := &s.Endpoints[i]; e.Phase != fleet.PhaseReady || e.ScrapedAt == 0 && e.ScrapeError == "" {
			return false
		}
	}
	return true
}

// engines checks that the replicas of a pool answer and tell their load.
func (p *preflight) engines(pool *config.Pool, snap *fleet.Snapshot) {
	if snap == nil || len(snap.Endpoints) == 0 {
		if pool.Scale.Min == 0 && pool.Scale.Target.Name != "" {
			p.rep.add("engines", pool.Name, checkSkip, "no replica runs, and the pool may be empty", "")
			return
		}
		p.rep.add("engines", pool.Name, checkFail, "no replica is found", "compare the selector or the addresses under replicas with what runs")
		return
	}
	var bad, stale, blind []string
	for i := range snap.Endpoints {
		e := &snap.Endpoints[i]
		if e.Phase != fleet.PhaseReady {
			bad = append(bad, fmt.Sprintf("%s at %s is %s: %s", e.ID, e.URL, e.Phase, e.Reason))
			continue
		}
		switch {
		case e.ScrapeError != "" || e.ScrapedAt == 0:
			stale = append(stale, e.ID+": "+cmp.Or(e.ScrapeError, "never read"))
		case !e.Running.OK() || !e.Waiting.OK():
			blind = append(blind, e.ID+" ("+cmp.Or(e.Engine, "unknown engine")+")")
		}
	}
	n := len(snap.Endpoints)
	p.rep.when(len(bad) == 0, "engines", pool.Name, plural(n, "replica")+pluralWord(n, " answers with its models", " answer with their models"), checkFail,
		fmt.Sprintf("%d of %d: %s", len(bad), n, strings.Join(bad, "; ")), "curl URL/health and URL/v1/models; the names under models must be those that the engine lists")
	if len(bad) == n {
		return
	}
	p.rep.when(len(stale) == 0, "metrics-fresh", pool.Name, "every ready replica was read just now", checkFail, strings.Join(stale, "; "),
		"open /metrics of the engine to Penstock (SGLang: --enable-metrics, llama.cpp: --metrics)")
	p.rep.when(len(blind) == 0, "metrics-complete", pool.Name, "running and waiting requests are told", checkWarn,
		"no running or waiting requests from "+strings.Join(blind, ", "), "routing goes by its own ledger; scaling sees less: use an engine version that tells")
}

func (p *preflight) target(pool *config.Pool) kube.Target {
	t := pool.Scale.Target
	return kube.Target{APIVersion: t.APIVersion, Kind: t.Kind, Name: t.Name, Namespace: cmp.Or(t.Namespace, pool.Replicas.Selector.Namespace, p.cluster.Namespace)}
}
