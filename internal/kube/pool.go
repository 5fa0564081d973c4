// SPDX-License-Identifier: Apache-2.0

package kube

import (
	"context"
	"errors"
	"fmt"
	"strconv"
	"sync"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/client-go/dynamic/dynamicinformer"
	"k8s.io/client-go/tools/cache"
	inference "sigs.k8s.io/gateway-api-inference-extension/api/v1"

	"github.com/penstock-project/penstock/internal/observe"
)

// PoolResource is the InferencePool of the Gateway API Inference Extension, v1.
var PoolResource = schema.GroupVersionResource{Group: "inference.networking.k8s.io", Version: "v1", Resource: "inferencepools"}

// Pool is what is read of an InferencePool.
type Pool struct {
	Namespace, Name string
	Selection
	// FailureMode says what the proxy is asked to do while the picker is down:
	// FailOpen, FailClose, or "" where nothing is set, which means FailClose. The
	// proxy enforces it, or does not: see `penstock drill epp` and `penstock lint`.
	FailureMode string
	// AppProtocol is http or kubernetes.io/h2c.
	AppProtocol string
	// Picker is the Service that the pool names as its endpoint picker; "" none.
	Picker     string
	PickerPort int
}

// ReadPool turns an InferencePool into plain values. It fails on a pool that the
// API server would not have admitted.
func ReadPool(u *unstructured.Unstructured) (Pool, error) {
	var p inference.InferencePool
	if err := runtime.DefaultUnstructuredConverter.FromUnstructured(u.Object, &p); err != nil {
		return Pool{}, fmt.Errorf("InferencePool %s/%s: %w", u.GetNamespace(), u.GetName(), err)
	}
	out := Pool{Namespace: p.Namespace, Name: p.Name, Selection: Selection{Namespace: p.Namespace, Scheme: "http"}}
	set := labels.Set{}
	for k, v := range p.Spec.Selector.MatchLabels {
		set[string(k)] = string(v)
	}
	if len(set) == 0 {
		return Pool{}, fmt.Errorf("InferencePool %s/%s selects nothing: spec.selector.matchLabels is empty", p.Namespace, p.Name)
	}
	out.Selector = labels.SelectorFromSet(set)
	for _, t := range p.Spec.TargetPorts {
		out.Ports = append(out.Ports, int(t.Number))
	}
	if len(out.Ports) == 0 {
		return Pool{}, fmt.Errorf("InferencePool %s/%s has no spec.targetPorts", p.Namespace, p.Name)
	}
	out.AppProtocol, _, _ = unstructured.NestedString(u.Object, "spec", "appProtocol")
	if out.AppProtocol == "" {
		out.AppProtocol = "http"
	}
	ref, _, _ := unstructured.NestedMap(u.Object, "spec", "endpointPickerRef")
	if ref != nil {
		out.Picker, _, _ = unstructured.NestedString(ref, "name")
		out.FailureMode, _, _ = unstructured.NestedString(ref, "failureMode")
		if port, ok, _ := unstructured.NestedInt64(ref, "port", "number"); ok {
			out.PickerPort = int(port)
		}
	}
	return out, nil
}

// PoolSource finds the replicas of an InferencePool and follows its changes. It
// implements observe.Source.
type PoolSource struct {
	Cluster         *Cluster
	Namespace, Name string
	// Changed is told of each version of the pool; nil: nobody.
	Changed func(Pool)
	// Compat is told of the objectives and rewrites of the pool; nil: they are not read.
	Compat func(*Compat)
}

func (s *PoolSource) String() string { return "InferencePool " + s.Namespace + "/" + s.Name }

var errGone = errors.New("the InferencePool changed")

// Run implements observe.Source. A pool that is deleted has no replicas; one that
// does not exist yet is waited for.
func (s *PoolSource) Run(ctx context.Context, up func([]observe.Target)) error {
	pools := make(chan *Pool, 1)
	put := func(p *Pool) {
		s.Cluster.touch()
		for {
			select {
			case pools <- p:
				return
			default:
			}
			select {
			case <-pools:
			default:
			}
		}
	}
	factory := dynamicinformer.NewFilteredDynamicSharedInformerFactory(s.Cluster.Dynamic, 10*time.Minute, s.Namespace,
		func(o *metav1.ListOptions) { o.FieldSelector = "metadata.name=" + s.Name })
	inf := factory.ForResource(PoolResource).Informer()
	read := func(o any) {
		u, ok := o.(*unstructured.Unstructured)
		if !ok {
			return
		}
		p, err := ReadPool(u)
		if err != nil {
			s.Cluster.Log.Error("the InferencePool cannot be used; the last version stays", "error", err.Error())
			return
		}
		put(&p)
	}
	if _, err := inf.AddEventHandler(cache.ResourceEventHandlerFuncs{
		AddFunc: read, UpdateFunc: func(_, o any) { read(o) }, DeleteFunc: func(any) { put(nil) },
	}); err != nil {
		return err
	}
	if err := inf.SetWatchErrorHandler(s.Cluster.quiet(s.String())); err != nil {
		return err
	}
	factory.Start(ctx.Done())
	defer factory.Shutdown()
	if s.Compat != nil {
		var wg sync.WaitGroup
		defer wg.Wait()
		wg.Go(func() { s.followCompat(ctx) })
	}
	return s.follow(ctx, pools, up)
}

// follow runs a PodSource for the current version of the pool, and another one
// when what it selects changes.
func (s *PoolSource) follow(ctx context.Context, pools <-chan *Pool, up func([]observe.Target)) error {
	stop := func() {}
	defer func() { stop() }()
	have := ""
	for {
		select {
		case <-ctx.Done():
			return context.Cause(ctx)
		case p := <-pools:
			if p != nil && s.Changed != nil {
				s.Changed(*p)
			}
			id := identity(p)
			if id == have {
				continue
			}
			have = id
			stop()
			stop = func() {}
			if p == nil {
				up(nil)
				continue
			}
			stop = s.watch(ctx, p.Selection, up)
		}
	}
}

// watch runs a PodSource until the returned function is called, which waits for
// its end.
func (s *PoolSource) watch(ctx context.Context, sel Selection, up func([]observe.Target)) (stop func()) {
	ctx, cancel := context.WithCancelCause(ctx)
	done := make(chan struct{})
	go func() {
		defer close(done)
		src := &PodSource{Cluster: s.Cluster, Select: sel}
		if err := src.Run(ctx, up); err != nil && ctx.Err() == nil {
			s.Cluster.Log.Error("pods cannot be watched", "error", err.Error())
		}
	}()
	return func() {
		cancel(errGone)
		<-done
	}
}

// identity is what a change of decides whether pods have to be watched anew.
func identity(p *Pool) string {
	if p == nil {
		return ""
	}
	id := p.Namespace + " " + p.Selector.String()
	for _, n := range p.Ports {
		id += " " + strconv.Itoa(n)
	}
	return id
}
