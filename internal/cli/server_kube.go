// SPDX-License-Identifier: Apache-2.0

package cli

import (
	"cmp"
	"context"
	"strconv"
	"strings"
	"sync"
	"time"

	"k8s.io/apimachinery/pkg/labels"

	"github.com/penstock-project/penstock/internal/config"
	"github.com/penstock-project/penstock/internal/console"
	"github.com/penstock-project/penstock/internal/kube"
	"github.com/penstock-project/penstock/internal/observe"
)

// kubeSource finds the replicas of a pool as pods. All pools share one connection.
func (s *server) kubeSource(p *config.Pool, lp *livePool) (observe.Source, error) {
	if err := s.connectKube(); err != nil {
		return nil, failf("name a kubeconfig with --kubeconfig, or run in a pod with a service account", "pool %s: %v", p.Name, err)
	}
	r := &p.Replicas
	lp.kube.Store(nil)
	lp.compat.Store(nil)
	if r.InferencePool != "" {
		ns, name, _ := strings.Cut(r.InferencePool, "/")
		return &kube.PoolSource{Cluster: s.kube, Namespace: ns, Name: name,
			Changed: func(k kube.Pool) { s.poolChanged(lp, &k) }, Compat: lp.compat.Store}, nil
	}
	sel, err := labels.Parse(strings.Join(r.Selector.Labels, ","))
	if err != nil {
		return nil, usagef("write labels as app=vllm", "pool %s: selector: %v", p.Name, err)
	}
	scheme := "http"
	if p.Engine.TLS.CA != "" {
		scheme = "https"
	}
	choice := kube.Selection{
		Namespace: cmp.Or(r.Selector.Namespace, s.kube.Namespace), Selector: sel, Ports: []int{r.Selector.Port}, Scheme: scheme,
	}
	if _, ok := sel.RequiresExactMatch(kube.ServiceLabel); ok {
		return &kube.SliceSource{Cluster: s.kube, Select: choice}, nil
	}
	return &kube.PodSource{Cluster: s.kube, Select: choice, Slices: true}, nil
}

// connectKube opens the one connection to the API server, where it is not open yet.
func (s *server) connectKube() error {
	if s.kube != nil {
		return nil
	}
	c, err := kube.Connect(s.o.Kubeconfig, s.log)
	if err != nil {
		return err
	}
	s.kube = c
	if s.watchKube != nil {
		s.watchKube(c)
	}
	return nil
}

// followKube watches the connection to the API server, also one that a reload makes,
// until ctx ends.
func (s *server) followKube(ctx context.Context, wg *sync.WaitGroup) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.watchKube = func(c *kube.Cluster) {
		if ctx.Err() == nil {
			wg.Go(func() { c.Watch(ctx, 0) })
		}
	}
	if s.kube != nil {
		s.watchKube(s.kube)
	}
}

// poolChanged takes a new version of an InferencePool in.
func (s *server) poolChanged(lp *livePool, k *kube.Pool) {
	lp.kube.Store(k)
	s.log.Info("InferencePool", "namespace", k.Namespace, "name", k.Name, "api", kube.PoolResource.GroupVersion().String(),
		"selector", k.Selector.String(), "ports", k.Ports, "failure_mode", failureMode(k), "picker", pickerOf(k))
	if k.AppProtocol != "http" {
		s.log.Warn("the InferencePool asks for another protocol than HTTP/1.1; metrics and models are read over HTTP/1.1 all the same",
			"name", k.Name, "app_protocol", k.AppProtocol)
	}
}

// failureMode names the mode that is in force, and whether anybody chose it.
func failureMode(k *kube.Pool) string {
	switch {
	case k.FailureMode != "":
		return k.FailureMode
	case k.Picker == "":
		return ""
	}
	return "FailClose (not set)"
}

func pickerOf(k *kube.Pool) string {
	if k.Picker == "" {
		return ""
	}
	return k.Picker + ":" + strconv.Itoa(k.PickerPort)
}

// control tells of the control plane behind a pool; nil for pools without one.
func (s *server) control(lp *livePool) func() *console.ControlPlane {
	r := &lp.cfg.Replicas
	if s.kube == nil || len(r.Selector.Labels) == 0 && r.InferencePool == "" {
		return nil
	}
	c := s.kube
	return func() *console.ControlPlane {
		seen, fault := c.Reach()
		out := &console.ControlPlane{Fault: fault}
		if !seen.IsZero() {
			age := float64(time.Since(seen).Milliseconds())
			out.AgeMS = &age
		}
		if k := lp.kube.Load(); k != nil {
			out.FailureMode, out.Picker = failureMode(k), pickerOf(k)
		}
		return out
	}
}
