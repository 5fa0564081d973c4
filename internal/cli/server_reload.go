// SPDX-License-Identifier: Apache-2.0

package cli

import (
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/penstock-project/penstock/internal/config"
)

// ReloadFile reads the configuration again and applies what can change while it
// runs. A file with errors changes nothing.
func (s *server) ReloadFile(path string) {
	next, err := config.Load(path, configOptions())
	if err == nil {
		err = checkReload(next)
	}
	if err == nil {
		err = s.Reload(next)
	}
	now := time.Now().UTC()
	s.mu.Lock()
	s.state.ReloadedAt, s.state.ReloadOK, s.state.Error = &now, err == nil, ""
	if err != nil {
		s.state.Error = err.Error()
	}
	s.mu.Unlock()
	if err != nil {
		s.auditReload(path, "", err)
	}
	var errs config.Errors
	switch {
	case errors.As(err, &errs):
		for _, e := range errs {
			s.log.Error("the configuration has an error; the old one goes on", "error", e.Error())
		}
	case err != nil:
		s.log.Error("the configuration cannot be applied; the old one goes on", "error", err)
	}
}

func checkReload(c *config.Config) error {
	if len(c.Pools) == 0 {
		return errors.New("there are no pools in it")
	}
	return nil
}

// Reload applies the live part of a configuration: models, where replicas are
// found, and policies. Nothing in flight is lost. The rest is remembered as
// waiting for a restart.
func (s *server) Reload(next *config.Config) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	var live, restart []string
	for _, c := range config.Diff(s.cfg, next) {
		line := fmt.Sprintf("%s: %s -> %s", c.Path, orDash(c.Old), orDash(c.New))
		if c.Live {
			live = append(live, line)
		} else {
			restart = append(restart, line)
		}
	}
	running := *s.cfg
	running.Pools = slices.Clone(s.cfg.Pools)
	for i := range running.Pools {
		p := &running.Pools[i]
		for k := range next.Pools {
			if n := &next.Pools[k]; n.Name == p.Name {
				p.Fallback, p.FallbackWait = n.Fallback, n.FallbackWait
				p.Models, p.Route, p.Scale = n.Models, liveRoute(p.Route, n.Route), liveScale(p.Scale, n.Scale)
				p.Engine.LoadAdapters = n.Engine.LoadAdapters
				if len(p.Replicas.Process.Command) == 0 && len(n.Replicas.Process.Command) == 0 {
					p.Replicas = n.Replicas // processes wait for a restart
				}
			}
		}
	}
	running.Rollouts, running.Accelerators, running.Logging.Rules = next.Rollouts, next.Accelerators, next.Logging.Rules
	if err := s.front.update(s.pools, &running); err != nil {
		return err
	}
	if err := s.front.h.Rollouts().Set(s.rolloutMemory.rolloutOptions(&running)); err != nil {
		return err
	}
	s.accelerators.SetTotal(running.Accelerators.Total)
	for i, lp := range s.pools {
		if err := s.applyPool(lp, running.Pools[i]); err != nil {
			return err
		}
		s.reloadScale(next, lp)
	}
	if s.recording.prompts != nil {
		s.recording.prompts.SetRules(logRules(&running.Logging))
	}
	running.Tenants, running.Prices = applyTenants(s.cfg.Tenants, next.Tenants), next.Prices
	s.meter.SetPolicy(quotaPolicy(&running))
	s.front.h.SetTenants(tenantPolicies(&running))
	s.cfg = &running
	s.state.Digest, s.state.Restart, s.state.Inert = running.Digest(), restart, next.Inert()
	s.auditReload(next.File(), strings.Join(live, "; "), nil)
	s.log.Info("configuration reloaded", "changes", strings.Join(live, "; "), "waits_for_restart", strings.Join(restart, "; "),
		"digest", s.state.Digest)
	return nil
}

// liveRoute takes the keys of the next configuration that may change while it runs.
func liveRoute(old, next config.Route) config.Route {
	next.SessionHeaders, next.Queue, next.QueueMost, next.HoldFor = old.SessionHeaders, old.Queue, old.QueueMost, old.HoldFor
	return next
}

// applyPool changes what differs in one pool; s.mu is held.
func (s *server) applyPool(lp *livePool, p config.Pool) error {
	if p.Route.Policy != lp.cfg.Route.Policy {
		if err := lp.flow.SetPolicy(p.Route.Policy); err != nil {
			return fmt.Errorf("pool %s: %w", p.Name, err)
		}
	}
	if p.Route.Shadow != lp.cfg.Route.Shadow {
		if err := lp.flow.SetShadow(p.Route.Shadow); err != nil {
			return fmt.Errorf("pool %s: %w", p.Name, err)
		}
	}
	if !slices.Equal(modelNames(&p), modelNames(&lp.cfg)) {
		lp.observer.SetModels(modelNames(&p))
	}
	lp.observer.SetAdapters(adapterPlan(&p))
	a, b := &p.Replicas, &lp.cfg.Replicas
	if !slices.Equal(a.Static, b.Static) || a.File != b.File || a.DNS != b.DNS || a.InferencePool != b.InferencePool ||
		a.Selector.Namespace != b.Selector.Namespace || a.Selector.Port != b.Selector.Port || !slices.Equal(a.Selector.Labels, b.Selector.Labels) {
		src, err := s.source(&p, lp)
		if err != nil {
			return fmt.Errorf("pool %s: %w", p.Name, err)
		}
		lp.observer.SetSource(src)
		lp.source = src.String()
	}
	lp.cfg = p
	return nil
}
