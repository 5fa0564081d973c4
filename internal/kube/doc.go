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

	mu   sync.Mutex
	seen time.Time
}

// Connect uses the kubeconfig at path, or with an empty path what the environment
// says: KUBECONFIG, the default file, or the service account of the pod.
func Connect(path string, log *slog.Logger) (*Cluster, error) {
	rules := clientcmd.NewDefaultClientConfigLoadingRules()
	if path != "" {
		rules.ExplicitPath = path
	}
	cfg, err := clientcmd.NewNonInteractiveDeferredLoadingClientConfig(rules, nil).ClientConfig()
	if err != nil {
		if cfg, err = rest.InClusterConfig(); err != nil {
			return nil, fmt.Errorf("no way to reach a Kubernetes API server: set KUBECONFIG or run in a pod with a service account: %w", err)
		}
	}
	cfg.QPS, cfg.Burst = 50, 100
	cfg.UserAgent = "penstock"
	return ConnectTo(cfg, log)
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
	return &Cluster{Pods: pods, Dynamic: dyn, Log: log}, nil
}

// touch notes that the API server answered.
func (c *Cluster) touch() {
	c.mu.Lock()
	c.seen = time.Now()
	c.mu.Unlock()
}

// LastAnswer is when the API server last told anything; zero before the first
// time. While it is away the last list keeps serving.
func (c *Cluster) LastAnswer() time.Time {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.seen
}
