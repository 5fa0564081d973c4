// SPDX-License-Identifier: Apache-2.0

// Package kube is the API-server side: it finds replicas as pods, by a plain label
// selector or by an InferencePool, and keeps the last answer while the control
// plane is away.
//
// A pod is eligible when it is Ready and not being deleted. A pod that is being
// deleted drains: it gets nothing new and finishes what it has. Whether its model
// is loaded is for package observe to find out: a pod may be Ready long before.
package kube

import (
	"cmp"
	"context"
	"fmt"
	"log/slog"
	"sync"
	"time"

	"k8s.io/client-go/dynamic"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/clientcmd"
)

// Cluster is a connection to one API server. Safe for concurrent use.
type Cluster struct {
	Pods    kubernetes.Interface
	Dynamic dynamic.Interface
	Log     *slog.Logger
	// Namespace is the one that the kubeconfig or the service account stands in.
	Namespace string

	mu    sync.Mutex
	seen  time.Time
	fault string // why the API server does not answer; "" while it does
}

// Connect uses the kubeconfig at path, or with an empty path what the environment
// says: KUBECONFIG, the default file, or the service account of the pod. It does not
// wait for the API server.
func Connect(path string, log *slog.Logger) (*Cluster, error) {
	rules := clientcmd.NewDefaultClientConfigLoadingRules()
	rules.ExplicitPath = path
	loader := clientcmd.NewNonInteractiveDeferredLoadingClientConfig(rules, nil)
	cfg, err := loader.ClientConfig()
	if err != nil && path == "" {
		var inside error
		if cfg, inside = rest.InClusterConfig(); inside != nil {
			return nil, fmt.Errorf("no way to reach a Kubernetes API server: name a kubeconfig, set KUBECONFIG, or run in a pod with a service account: %w", inside)
		}
	} else if err != nil {
		return nil, fmt.Errorf("kubeconfig %s: %w", path, err)
	}
	cfg.QPS, cfg.Burst = 50, 100
	cfg.UserAgent = "penstock"
	c, err := ConnectTo(cfg, log)
	if err != nil {
		return nil, err
	}
	if ns, _, err := loader.Namespace(); err == nil {
		c.Namespace = ns
	}
	return c, nil
}

// ConnectTo uses a configuration as it is.
func ConnectTo(cfg *rest.Config, log *slog.Logger) (*Cluster, error) {
	pods, err := kubernetes.NewForConfig(cfg)
	if err != nil {
		return nil, err
	}
	dyn, err := dynamic.NewForConfig(cfg)
	if err != nil {
		return nil, err
	}
	if log == nil {
		log = slog.New(slog.DiscardHandler)
	}
	return &Cluster{Pods: pods, Dynamic: dyn, Log: log, Namespace: "default"}, nil
}

// touch notes that the API server answered.
func (c *Cluster) touch() {
	c.mu.Lock()
	c.seen, c.fault = time.Now(), ""
	c.mu.Unlock()
}

// Reach says when the API server last told anything (zero: not yet), and why it
// does not answer now ("" while it does). While it is away the last lists keep
// serving.
func (c *Cluster) Reach() (seen time.Time, fault string) {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.seen, c.fault
}

// Watch asks the API server for its version again and again until ctx ends: a watch
// that is silent looks the same whether nothing changes or nobody is there. every of
// 0 is 5 s.
func (c *Cluster) Watch(ctx context.Context, every time.Duration) {
	every = cmp.Or(every, 5*time.Second)
	t := time.NewTicker(every)
	defer t.Stop()
	for {
		c.look(ctx, every)
		select {
		case <-ctx.Done():
			return
		case <-t.C:
		}
	}
}

func (c *Cluster) look(ctx context.Context, limit time.Duration) {
	done := make(chan error, 1)
	go func() { // the client has no context of its own here
		_, err := c.Pods.Discovery().ServerVersion()
		done <- err
	}()
	var err error
	select {
	case <-ctx.Done():
		return
	case err = <-done:
	case <-time.After(limit):
		err = fmt.Errorf("no answer within %s", limit)
	}
	if err == nil {
		c.touch()
		return
	}
	c.mu.Lock()
	was := c.fault
	c.fault = err.Error()
	c.mu.Unlock()
	if was == "" {
		c.Log.Warn("the API server does not answer; the last lists of pods stay in use", "error", err.Error())
	}
}
