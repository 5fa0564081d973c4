// SPDX-License-Identifier: Apache-2.0

package kube

import (
	"context"
	"fmt"
	"slices"
	"sort"
	"strconv"
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"
	policyv1 "k8s.io/api/policy/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/types"
)

// going is a reduction under way: pods drain, and the number falls as they are done.
type going struct {
	want   int
	since  time.Time
	pods   []string // namespace/name, in the order in which they go
	cancel context.CancelFunc
}

// deletionCost makes the ReplicaSet controller take a pod away before others.
const deletionCost = "controller.kubernetes.io/pod-deletion-cost"

// drainStep is the time between two looks at what still runs on the pods that go.
const drainStep = 250 * time.Millisecond

// reduce takes the object down to want: what is not ready goes at once, the rest
// after its drain, never more than disruption budgets allow.
func (h *ScaleHand) reduce(ctx context.Context, st *scaleState, want int, victims []string) error {
	h.mu.Lock()
	same := h.going != nil && h.going.want == want
	h.mu.Unlock()
	if same {
		return nil // it is under way
	}
	h.stay()
	pods, err := h.o.Cluster.list(ctx, h.o.Target.Namespace, st.selector)
	if err != nil {
		return err
	}
	loose, ready := sortPods(pods, victims, h.o.Target.ordered())
	loose += max(0, st.spec-loose-len(ready)) // those that do not even exist go first of all
	need := max(0, st.spec-want-loose)        // ready ones that must go
	allowed, why, err := h.o.Cluster.budget(ctx, h.o.Target.Namespace, ready, st.spec)
	if err != nil {
		return err
	}
	if allowed >= 0 && need > allowed {
		h.o.Log.Info("a disruption budget holds pods back", "budget", why, "of", need, "allowed", allowed)
		need = allowed
		want = st.spec - loose - need
		if want >= st.spec {
			return fmt.Errorf("PodDisruptionBudget %s allows no disruption now", why)
		}
	}
	if need == 0 || h.o.Drain == nil {
		return h.write(ctx, st, want)
	}
	// The fence stands before the first pod is touched.
	if err := h.o.Lead.Remember(ctx, h.o.Pool, func(m *Memory) { m.Want, m.At = want, time.Now() }); err != nil {
		return err
	}
	g := &going{want: want, since: time.Now()}
	for i, p := range ready[:min(need, len(ready))] {
		g.pods = append(g.pods, podID(p))
		h.cost(ctx, podID(p), -1000+i)
		h.o.Drain.Drain(podID(p))
	}
	run, cancel := context.WithCancel(context.WithoutCancel(ctx))
	g.cancel = cancel
	h.mu.Lock()
	h.going = g
	h.mu.Unlock()
	h.o.Log.Info("pods drain before they go", "from", st.spec, "to", want, "pods", strings.Join(g.pods, " "))
	go h.wait(run, g, st.spec-loose)
	return nil
}

// wait takes replicas away as their pods are done, all of them after DrainFor. from is
// the number without the pods that are not ready, which go with the first step.
func (h *ScaleHand) wait(ctx context.Context, g *going, from int) {
	t := time.NewTicker(drainStep)
	defer t.Stop()
	gone := 0
	for gone < len(g.pods) {
		done := 0 // only a run from the start: the controller takes them in this order
		for done < len(g.pods) && (h.o.Drain.Busy(g.pods[done]) == 0 || time.Since(g.since) > h.o.DrainFor) {
			done++
		}
		if done > gone {
			err := h.take(ctx, from-done)
			if apierrors.IsConflict(err) && !isNotLeader(err) {
				continue // its status changed meanwhile: read it again
			}
			if err != nil {
				if ctx.Err() == nil {
					h.o.Log.Warn("a reduction was given up", "error", err.Error())
					h.stay()
				}
				return
			}
			gone = done
			continue
		}
		select {
		case <-ctx.Done():
			return
		case <-t.C:
		}
	}
	h.mu.Lock()
	if h.going == g {
		h.going = nil
	}
	h.mu.Unlock()
	g.cancel()
}

// take writes a smaller number, unless the object is smaller already.
func (h *ScaleHand) take(ctx context.Context, n int) error {
	ctx, cancel := context.WithTimeout(ctx, 10*time.Second)
	defer cancel()
	st, _, y, err := h.look(ctx)
	if err != nil {
		return err
	}
	if y != nil {
		return &OwnedByError{y.String()}
	}
	if st.spec <= n {
		return nil
	}
	return h.write(ctx, st, n)
}

// stay ends a reduction that is under way: its pods take requests again.
func (h *ScaleHand) stay() {
	h.mu.Lock()
	g := h.going
	h.going = nil
	h.mu.Unlock()
	if g == nil {
		return
	}
	g.cancel()
	ctx, cancel := context.WithTimeout(context.Background(), 5*time.Second)
	defer cancel()
	for _, p := range g.pods {
		h.o.Drain.Undrain(p)
		h.cost(ctx, p, 0)
	}
}

// cost sets the deletion cost of a pod; 0 takes it off. It is advice for the
// controller, so a failure changes nothing.
func (h *ScaleHand) cost(ctx context.Context, pod string, n int) {
	ns, name, _ := strings.Cut(pod, "/")
	value := "null"
	if n != 0 {
		value = strconv.Quote(strconv.Itoa(n))
	}
	patch := fmt.Sprintf(`{"metadata":{"annotations":{%q:%s}}}`, deletionCost, value)
	if _, err := h.o.Cluster.Pods.CoreV1().Pods(ns).Patch(ctx, name, types.MergePatchType, []byte(patch), metav1.PatchOptions{FieldManager: manager}); err != nil {
		h.o.Log.Debug("no deletion cost", "pod", pod, "error", err.Error())
	}
}

// sortPods counts the pods that are not ready, which a controller takes away first,
// and puts the others in the order in which they shall go: the victims as named,
// then the youngest. An ordered set goes from its highest ordinal.
func sortPods(pods []corev1.Pod, victims []string, ordered bool) (loose int, ready []*corev1.Pod) {
	for i := range pods {
		p := &pods[i]
		switch {
		case p.DeletionTimestamp != nil || finished(p):
		case podReady(p) || ordered:
			ready = append(ready, p)
		default:
			loose++
		}
	}
	rank := func(p *corev1.Pod) int {
		k := slices.IndexFunc(victims, func(v string) bool { return v == podID(p) || strings.HasPrefix(v, podID(p)+"#") })
		if k < 0 {
			return len(victims)
		}
		return k
	}
	sort.SliceStable(ready, func(i, j int) bool {
		a, b := ready[i], ready[j]
		if ordered {
			return ordinal(a.Name) > ordinal(b.Name)
		}
		if ra, rb := rank(a), rank(b); ra != rb {
			return ra < rb
		}
		if !a.CreationTimestamp.Equal(&b.CreationTimestamp) {
			return b.CreationTimestamp.Before(&a.CreationTimestamp)
		}
		return a.Name < b.Name
	})
	return loose, ready
}

// ordinal is the number at the end of a name, -1 without one.
func ordinal(name string) int {
	n, err := strconv.Atoi(name[strings.LastIndexByte(name, '-')+1:])
	if err != nil {
		return -1
	}
	return n
}

// budget is how many of the ready pods may go now by the PodDisruptionBudgets that
// select them, and which one says so; -1: no budget. Scaling down is no eviction, so
// the API server would not ask them. The status of a budget lags behind a change of
// replicas, so it counts only as far as spec and the pods bear it out.
func (c *Cluster) budget(ctx context.Context, ns string, pods []*corev1.Pod, spec int) (int, string, error) {
	l, err := c.Pods.PolicyV1().PodDisruptionBudgets(ns).List(ctx, metav1.ListOptions{})
	if err != nil {
		return 0, "", fmt.Errorf("disruption budgets: %w", err)
	}
	least, name := -1, ""
	for i := range l.Items {
		b := &l.Items[i]
		selected := selectedBy(b, pods)
		if selected == 0 {
			continue
		}
		n := max(0, min(int(b.Status.DisruptionsAllowed), min(selected, spec)-int(b.Status.DesiredHealthy)))
		if least < 0 || n < least {
			least, name = n, b.Name
		}
	}
	return least, name, nil
}

func selectedBy(b *policyv1.PodDisruptionBudget, pods []*corev1.Pod) (n int) {
	sel, err := metav1.LabelSelectorAsSelector(b.Spec.Selector)
	if err != nil {
		return 0
	}
	for _, p := range pods {
		if sel.Matches(labels.Set(p.Labels)) {
			n++
		}
	}
	return n
}
