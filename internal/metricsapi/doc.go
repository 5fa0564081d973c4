// SPDX-License-Identifier: Apache-2.0

// Package metricsapi serves external.metrics.k8s.io and custom.metrics.k8s.io as an
// aggregated API: the API server of a cluster forwards requests for these groups to
// it, and a HorizontalPodAutoscaler reads from it how many replicas a pool should
// have, or the raw signals behind that number.
//
// What is not known is absent: a reading that is unknown or too old makes an empty
// list, which an HPA takes as an error and holds by. It is never a 0.
//
// Who asks is told by the API server in headers, which count only together with its
// client certificate; whether they may is asked back of the API server.
package metricsapi

import (
	"context"
	"strings"
	"time"
)

// Reading is one number with its age.
type Reading struct {
	Value float64
	At    time.Time // zero: unknown
}

// Pod is one replica with its own readings, by metric name.
type Pod struct {
	Name    string
	Metrics map[string]Reading
}

// Pool is what can be read of one pool.
type Pool struct {
	Name      string
	Namespace string            // of the objects that run it; readings are served there
	Labels    map[string]string // pool and model; selectors of an HPA match them
	Metrics   map[string]Reading
	// Object is what runs the pool, as plural.group/name ("deployments.apps/llm");
	// "" where that is not known.
	Object string
	Pods   []Pod
}

// Subject is who asks, as the API server tells.
type Subject struct {
	User   string
	Groups []string
	Extra  map[string][]string
}

// Question is what a subject wants to do.
type Question struct {
	Verb, Group, Resource, Namespace string
}

// Judge answers whether a subject may do something; an error means that nobody
// knows, and then it may not. It is implemented by package kube.
type Judge interface {
	Allowed(ctx context.Context, who Subject, q Question) (ok bool, why string, err error)
}

// The API groups.
const (
	GroupExternal = "external.metrics.k8s.io"
	GroupCustom   = "custom.metrics.k8s.io"
)

// WantedReplicas is the metric to scale by: the number of replicas that the pool
// should have, to be used with target AverageValue 1.
const WantedReplicas = "penstock_wanted_replicas"

// Metric describes one metric.
type Metric struct {
	Name string
	Help string
	Unit string
	// Sum says that the readings of several pools may be added up, as an HPA does
	// with the items of a list.
	Sum  bool
	Pods bool // exists for each replica, too
}

// Catalogue lists every metric, ordered by name.
var Catalogue = []Metric{
	{Name: "penstock_held_requests", Help: "requests that wait at the router for a replica", Unit: "requests", Sum: true},
	{Name: "penstock_kv_used_share", Help: "share of the KV cache in use; of a pool that of its fullest replica", Unit: "share", Pods: true},
	{Name: "penstock_offered_work", Help: "work offered in the last minute, in replicas' worth of time, net of cache hits", Unit: "replica seconds per second", Sum: true},
	{Name: "penstock_queue_seconds", Help: "mean time that requests of the last minute waited for a place in a batch", Unit: "seconds"},
	{Name: "penstock_running_requests", Help: "requests in the batches of the engines", Unit: "requests", Sum: true, Pods: true},
	{Name: "penstock_tokens_per_second", Help: "prompt and output tokens that the engines worked on in the last minute", Unit: "tokens per second", Sum: true, Pods: true},
	{Name: "penstock_ttft_seconds", Help: "mean time to the first token over the last minute", Unit: "seconds"},
	{Name: "penstock_waiting_requests", Help: "requests that wait in the engines for capacity", Unit: "requests", Sum: true, Pods: true},
	{Name: WantedReplicas, Help: "replicas that the pool should have; use it with target AverageValue 1", Unit: "replicas"},
}

func lookup(name string) (Metric, bool) {
	for _, m := range Catalogue {
		if m.Name == name {
			return m, true
		}
	}
	return Metric{}, false
}

func names() string {
	var s []string
	for _, m := range Catalogue {
		s = append(s, m.Name)
	}
	return strings.Join(s, ", ")
}
