// SPDX-License-Identifier: Apache-2.0

package cli

import (
	"cmp"
	"context"
	"os"
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"

	"github.com/penstock-project/penstock/internal/console"
	"github.com/penstock-project/penstock/internal/diagnose"
	"github.com/penstock-project/penstock/internal/journal"
	"github.com/penstock-project/penstock/internal/kube"
)

// eventsEvery is how often the running system is judged for Events; judgedForEvents is
// how many of the last decisions are read then, as `penstock diagnose` reads.
const (
	eventsEvery     = 15 * time.Second
	judgedForEvents = 1000
)

// openEvents reports findings of the running system as Kubernetes Events, where the
// configuration wants it: the same that `penstock diagnose` and GET /api/v1/findings
// say.
func (s *server) openEvents() error {
	if !s.o.Config.Kube.Events {
		return nil
	}
	if err := s.connectKube(); err != nil {
		return failf("name a kubeconfig with --kubeconfig, or run in a pod with a service account", "kubernetes.events: %v", err)
	}
	host, _ := os.Hostname()
	r := &kube.Reporter{Cluster: s.kube, Instance: cmp.Or(host, "penstock"), Object: s.objectOf}
	s.background = append(s.background, func(ctx context.Context) {
		t := time.NewTicker(eventsEvery)
		defer t.Stop()
		for {
			select {
			case <-ctx.Done():
				return
			case now := <-t.C:
				rep := console.Judge(s.admin.Status(), s.journal.Query(journal.Filter{}, judgedForEvents))
				r.Report(ctx, now, rep.Findings)
			}
		}
	})
	return nil
}

// objectOf says which object a finding is about: the pod of a replica, the
// InferencePool of a pool, the pod that Penstock runs in, and where it runs in none
// the pool by its own name.
func (s *server) objectOf(f *diagnose.Finding) corev1.ObjectReference {
	s.mu.Lock()
	defer s.mu.Unlock()
	kind, rest, _ := strings.Cut(f.Object, " ")
	pool, id, _ := strings.Cut(rest, "/")
	for _, p := range s.pools {
		if p.name != pool || kind != "pool" && kind != "replica" {
			continue
		}
		r := &p.cfg.Replicas
		if len(r.Selector.Labels) == 0 && r.InferencePool == "" {
			break
		}
		id, _, _ = strings.Cut(id, "#")
		if ns, name, ok := strings.Cut(id, "/"); ok && kind == "replica" {
			return corev1.ObjectReference{Kind: "Pod", APIVersion: "v1", Namespace: ns, Name: name}
		}
		if k := p.kube.Load(); k != nil {
			return corev1.ObjectReference{Kind: "InferencePool", APIVersion: kube.PoolResource.GroupVersion().String(), Namespace: k.Namespace, Name: k.Name}
		}
		return corev1.ObjectReference{Kind: "Pool", Namespace: cmp.Or(r.Selector.Namespace, s.kube.Namespace), Name: pool}
	}
	if os.Getenv("KUBERNETES_SERVICE_HOST") != "" {
		if host, err := os.Hostname(); err == nil {
			return corev1.ObjectReference{Kind: "Pod", APIVersion: "v1", Namespace: s.kube.Namespace, Name: host}
		}
	}
	return corev1.ObjectReference{Kind: "Penstock", Namespace: s.kube.Namespace, Name: cmp.Or(pool, "penstock")}
}
