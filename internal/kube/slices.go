// SPDX-License-Identifier: Apache-2.0

package kube

import (
	"cmp"
	"context"
	"fmt"
	"net"
	"slices"
	"sort"
	"strconv"
	"time"

	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/informers"
	"k8s.io/client-go/tools/cache"

	"github.com/penstock-project/penstock/internal/observe"
)

// ServiceLabel names the Service that an EndpointSlice belongs to. A selector with it
// asks for the endpoints of that Service, not for pods.
const ServiceLabel = discoveryv1.LabelServiceName

// sliceState is what the EndpointSlices of a namespace say of one pod.
type sliceState struct{ ready, terminating bool }

// readSlices gathers what slices say of pods, by UID, by name where they give none: the
// next pod of a StatefulSet has the name of the last one. A pod may stand in several
// slices, of several Services or while the control plane moves it; it is ready where
// one of them says so. An endpoint without a condition is ready, as the API has it.
func readSlices(list []*discoveryv1.EndpointSlice) map[string]sliceState {
	out := map[string]sliceState{}
	for _, s := range list {
		for i := range s.Endpoints {
			e := &s.Endpoints[i]
			if e.TargetRef == nil || e.TargetRef.Kind != "Pod" {
				continue
			}
			key := cmp.Or(string(e.TargetRef.UID), e.TargetRef.Name)
			st := out[key]
			st.ready = st.ready || isTrue(e.Conditions.Ready, true)
			st.terminating = st.terminating || isTrue(e.Conditions.Terminating, false)
			out[key] = st
		}
	}
	return out
}

// sliceOf finds what was said of a pod.
func sliceOf(said map[string]sliceState, p *corev1.Pod) (st sliceState, named bool) {
	if st, named = said[string(p.UID)]; !named {
		st, named = said[p.Name]
	}
	return st, named
}

func isTrue(b *bool, unset bool) bool {
	if b == nil {
		return unset
	}
	return *b
}

// trimSlice drops what is never read.
func trimSlice(o any) (any, error) {
	if s, ok := o.(*discoveryv1.EndpointSlice); ok {
		s.ManagedFields, s.Annotations = nil, nil
	}
	return o, nil
}

// sliceInformer follows the EndpointSlices of a namespace, those that match selector
// where that is not "". note is called after each change. It is not started.
func (c *Cluster) sliceInformer(namespace, selector, source string, note func()) (informers.SharedInformerFactory, cache.SharedIndexInformer, error) {
	factory := informers.NewSharedInformerFactoryWithOptions(c.Pods, 10*time.Minute, informers.WithNamespace(namespace),
		informers.WithTweakListOptions(func(o *metav1.ListOptions) { o.LabelSelector = selector }))
	inf := factory.Discovery().V1().EndpointSlices().Informer()
	if err := inf.SetTransform(trimSlice); err != nil {
		return nil, nil, err
	}
	if err := inf.SetWatchErrorHandler(c.quiet(source)); err != nil {
		return nil, nil, err
	}
	_, err := inf.AddEventHandler(cache.ResourceEventHandlerFuncs{
		AddFunc: func(any) { note() }, UpdateFunc: func(any, any) { note() }, DeleteFunc: func(any) { note() },
	})
	return factory, inf, err
}

func slicesOf(inf cache.SharedIndexInformer) []*discoveryv1.EndpointSlice {
	var out []*discoveryv1.EndpointSlice
	for _, o := range inf.GetStore().List() {
		if s, ok := o.(*discoveryv1.EndpointSlice); ok {
			out = append(out, s)
		}
	}
	return out
}

// SliceSource finds replicas as the endpoints of a Service: Select.Selector chooses
// EndpointSlices by their labels. It needs no right to see pods, and knows neither
// their labels nor their annotations. It implements observe.Source.
type SliceSource struct {
	Cluster *Cluster
	Select  Selection
}

func (s *SliceSource) String() string {
	return fmt.Sprintf("EndpointSlices %s in %s, ports %v", s.Select.Selector, s.Select.Namespace, s.Select.Ports)
}

// Run implements observe.Source. While the API server is away it keeps silent, so
// the last list goes on serving.
func (s *SliceSource) Run(ctx context.Context, up func([]observe.Target)) error {
	changed := make(chan struct{}, 1)
	factory, inf, err := s.Cluster.sliceInformer(s.Select.Namespace, s.Select.Selector.String(), s.String(), s.Cluster.noteIn(changed))
	if err != nil {
		return err
	}
	factory.Start(ctx.Done())
	defer factory.Shutdown()
	if !cache.WaitForCacheSync(ctx.Done(), inf.HasSynced) {
		return context.Cause(ctx)
	}
	s.Cluster.touch()
	return tell(ctx, changed, up, func() []observe.Target { return SliceTargets(slicesOf(inf), s.Select) })
}

// SliceTargets turns slices into endpoints, ordered by ID: one for each port of each
// address that is ready or that terminates. What stands in several slices counts once.
func SliceTargets(list []*discoveryv1.EndpointSlice, sel Selection) []observe.Target {
	seen := map[string]observe.Target{}
	for _, slice := range list {
		for i := range slice.Endpoints {
			e := &slice.Endpoints[i]
			draining := isTrue(e.Conditions.Terminating, false)
			if len(e.Addresses) == 0 || !draining && !isTrue(e.Conditions.Ready, true) {
				continue
			}
			// All addresses of an endpoint are the same one, by the API.
			name := slice.Namespace + "/" + e.Addresses[0]
			if e.TargetRef != nil && e.TargetRef.Kind == "Pod" {
				name = slice.Namespace + "/" + e.TargetRef.Name
			}
			for rank, port := range sel.Ports {
				t := observe.Target{ID: name, URL: scheme(sel) + "://" + net.JoinHostPort(e.Addresses[0], strconv.Itoa(port)), Rank: -1}
				if len(sel.Ports) > 1 {
					t.ID, t.Rank = t.ID+"#"+strconv.Itoa(rank), rank
				}
				if draining {
					t.Draining, t.Reason = true, "its EndpointSlice says that it is terminating"
				}
				if old, ok := seen[t.ID]; !ok || !old.Draining {
					seen[t.ID] = t
				}
			}
		}
	}
	out := make([]observe.Target, 0, len(seen))
	for _, t := range seen {
		out = append(out, t)
	}
	sort.Slice(out, func(i, j int) bool { return out[i].ID < out[j].ID })
	return out
}

func scheme(sel Selection) string { return cmp.Or(sel.Scheme, "http") }

// noteIn returns what informers call after a change: it leaves one note in changed.
func (c *Cluster) noteIn(changed chan<- struct{}) func() {
	return func() {
		c.touch()
		select {
		case changed <- struct{}{}:
		default:
		}
	}
}

// tell calls up with what list returns, at first and after each change that matters,
// until ctx ends.
func tell(ctx context.Context, changed <-chan struct{}, up func([]observe.Target), list func() []observe.Target) error {
	var last []observe.Target
	for first := true; ; first = false {
		if now := list(); first || !slices.Equal(now, last) {
			last = now
			up(slices.Clone(now))
		}
		select {
		case <-ctx.Done():
			return context.Cause(ctx)
		case <-changed:
		}
		select {
		case <-ctx.Done():
			return context.Cause(ctx)
		case <-time.After(gather):
		}
	}
}
