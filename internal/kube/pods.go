// SPDX-License-Identifier: Apache-2.0

package kube

import (
	"context"
	"fmt"
	"net"
	"slices"
	"sort"
	"strconv"
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/client-go/informers"
	"k8s.io/client-go/tools/cache"

	"github.com/penstock-project/penstock/internal/fleet"
	"github.com/penstock-project/penstock/internal/observe"
)

// ActivePorts are the annotations that switch on only some of the ports of a pod,
// as a list with commas. The first that a pod carries counts.
var ActivePorts = []string{"inference.networking.k8s.io/active-ports", "llm-d.ai/active-ports"}

// roleLabel tells the halves of a split pool apart, as llm-d labels them.
const roleLabel = "llm-d.ai/role"

// Selection is which pods make up a pool.
type Selection struct {
	Namespace string
	Selector  labels.Selector
	Ports     []int  // one endpoint each; several are data-parallel ranks
	Scheme    string // http or https
}

// PodSource finds replicas as pods. It implements observe.Source.
type PodSource struct {
	Cluster *Cluster
	Select  Selection
	// Slices makes it follow the EndpointSlices of the namespace, too: a pod that they
	// call not ready is left out, one that they call terminating drains. They never make
	// a pod ready that says of itself that it is not: a Service may publish addresses
	// that are not ready. Without the right to see them pods alone decide.
	Slices bool
}

func (s *PodSource) String() string {
	return fmt.Sprintf("pods %s in %s, ports %v", s.Select.Selector, s.Select.Namespace, s.Select.Ports)
}

// gather is how long changes are collected before the list is told: a rollout
// changes many pods at once.
const gather = 50 * time.Millisecond

// Run implements observe.Source. While the API server is away it keeps silent, so
// the last list goes on serving.
func (s *PodSource) Run(ctx context.Context, up func([]observe.Target)) error {
	factory := informers.NewSharedInformerFactoryWithOptions(s.Cluster.Pods, 10*time.Minute,
		informers.WithNamespace(s.Select.Namespace),
		informers.WithTweakListOptions(func(o *metav1.ListOptions) { o.LabelSelector = s.Select.Selector.String() }))
	inf := factory.Core().V1().Pods().Informer()
	if err := inf.SetTransform(trim); err != nil {
		return err
	}
	changed := make(chan struct{}, 1)
	note := s.Cluster.noteIn(changed)
	if _, err := inf.AddEventHandler(cache.ResourceEventHandlerFuncs{
		AddFunc: func(any) { note() }, UpdateFunc: func(any, any) { note() }, DeleteFunc: func(any) { note() },
	}); err != nil {
		return err
	}
	if err := inf.SetWatchErrorHandler(s.Cluster.quiet(s.String())); err != nil {
		return err
	}
	said := func() map[string]sliceState { return nil }
	if s.Slices {
		more, sl, err := s.Cluster.sliceInformer(s.Select.Namespace, "", "EndpointSlices in "+s.Select.Namespace, note)
		if err != nil {
			return err
		}
		more.Start(ctx.Done())
		defer more.Shutdown()
		said = func() map[string]sliceState {
			if !sl.HasSynced() {
				return nil // they may come later, or never
			}
			return readSlices(slicesOf(sl))
		}
	}
	factory.Start(ctx.Done())
	defer factory.Shutdown()
	if !cache.WaitForCacheSync(ctx.Done(), inf.HasSynced) {
		return context.Cause(ctx)
	}
	s.Cluster.touch()
	return tell(ctx, changed, up, func() []observe.Target {
		var pods []*corev1.Pod
		for _, o := range inf.GetStore().List() {
			if p, ok := o.(*corev1.Pod); ok {
				pods = append(pods, p)
			}
		}
		return Targets(pods, s.Select, said())
	})
}

// quiet tells of each kind of failure of a watch once, not once a retry.
func (c *Cluster) quiet(source string) cache.WatchErrorHandler {
	last := ""
	return func(_ *cache.Reflector, err error) {
		if msg := err.Error(); msg != last {
			last = msg
			c.Log.Warn("a watch failed; the last list stays in use", "source", source, "error", msg)
		}
	}
}

// trim drops what is never read, so that a thousand pods stay small.
func trim(o any) (any, error) {
	if p, ok := o.(*corev1.Pod); ok {
		p.ManagedFields = nil
		p.Spec = corev1.PodSpec{NodeName: p.Spec.NodeName}
		p.Status.ContainerStatuses, p.Status.InitContainerStatuses = nil, nil
	}
	return o, nil
}

// Targets turns pods into endpoints, ordered by ID: one for each active port of
// each pod that is Ready or that drains. said is what EndpointSlices say of pods, nil
// where nobody asks them.
func Targets(pods []*corev1.Pod, sel Selection, said map[string]sliceState) []observe.Target {
	var out []observe.Target
	for _, p := range pods {
		if p.Status.PodIP == "" || finished(p) {
			continue
		}
		slice, named := sliceOf(said, p)
		draining := p.DeletionTimestamp != nil || slice.terminating
		if !draining && (!podReady(p) || named && !slice.ready) {
			continue
		}
		active := activePorts(p, sel.Ports)
		for rank, port := range sel.Ports {
			if !slices.Contains(active, port) {
				continue
			}
			t := observe.Target{
				ID:   p.Namespace + "/" + p.Name,
				URL:  scheme(sel) + "://" + net.JoinHostPort(p.Status.PodIP, strconv.Itoa(port)),
				Rank: -1, Role: roleOf(p.Labels[roleLabel]),
			}
			if len(sel.Ports) > 1 {
				t.ID += "#" + strconv.Itoa(rank)
				t.Rank = rank
			}
			if draining {
				t.Draining, t.Reason = true, "the pod is being deleted"
				if p.DeletionTimestamp == nil {
					t.Reason = "its EndpointSlice says that it is terminating"
				}
			}
			out = append(out, t)
		}
	}
	sort.Slice(out, func(i, j int) bool { return out[i].ID < out[j].ID })
	return out
}

func podReady(p *corev1.Pod) bool {
	for _, c := range p.Status.Conditions {
		if c.Type == corev1.PodReady {
			return c.Status == corev1.ConditionTrue
		}
	}
	return false
}

// activePorts returns the ports that the pod's annotation switches on; all where
// it carries none.
func activePorts(p *corev1.Pod, all []int) []int {
	for _, name := range ActivePorts {
		v, ok := p.Annotations[name]
		if !ok {
			continue
		}
		var out []int
		for _, f := range strings.Split(v, ",") {
			if n, err := strconv.Atoi(strings.TrimSpace(f)); err == nil {
				out = append(out, n)
			}
		}
		return out
	}
	return all
}

// roleOf reads the label that llm-d uses; a role that is not known is both.
func roleOf(s string) fleet.Role {
	if r, ok := fleet.ParseRole(s); ok {
		return r
	}
	return fleet.RoleBoth
}
