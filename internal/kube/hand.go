// SPDX-License-Identifier: Apache-2.0

package kube

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"strings"
	"sync"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"

	"github.com/penstock-project/penstock/internal/flow"
)

// Drainer keeps new requests away from a pod. Pods are named namespace/name.
type Drainer interface {
	Drain(pod string)
	Undrain(pod string)
	// Busy is how many requests are in flight there.
	Busy(pod string) int
}

// HandOptions of a hand.
type HandOptions struct {
	Cluster *Cluster
	Pool    string
	Target  Target
	Lead    *Leader // who of several Penstocks acts
	Drain   Drainer // nil: pods are deleted without a drain
	// DrainFor is the longest wait for requests in flight on a pod that is to go; 0:
	// 5 min.
	DrainFor time.Duration
	// Metric is the external metric with the wanted replicas.
	Metric string
	Log    *slog.Logger // nil: that of the cluster
}

// ScaleHand sets spec.replicas of one object through its subresource /scale, and
// only while nobody else does. It implements flow.Hand.
type ScaleHand struct {
	o     HandOptions
	scale scaler

	// shared says that an autoscaler of the operator moves the object, too, so that a
	// number that is not ours means nothing.
	shared bool

	mu    sync.Mutex
	going *going // pods that drain before they are taken away; nil: none
}

// NewScaleHand returns the hand of one pool.
func NewScaleHand(o HandOptions) *ScaleHand {
	o.DrainFor = cmp.Or(o.DrainFor, 5*time.Minute)
	if o.Log == nil {
		o.Log = o.Cluster.Log
	}
	o.Log = o.Log.With("pool", o.Pool, "target", o.Target.String())
	return &ScaleHand{o: o, scale: scaler{c: o.Cluster, t: o.Target}}
}

// Name implements flow.Hand.
func (h *ScaleHand) Name() string { return "scale" }

// Target is the object that the hand moves.
func (h *ScaleHand) Target() Target { return h.o.Target }

// OwnedByError says that somebody else moves the object.
type OwnedByError struct{ Who string }

func (e *OwnedByError) Error() string {
	return e.Who + " moves this object; nothing is done against it"
}

// State implements flow.Hand.
func (h *ScaleHand) State(ctx context.Context) (flow.HandState, error) {
	st, err := h.scale.read(ctx)
	if err != nil {
		return flow.HandState{}, err
	}
	owners, err := h.o.Cluster.Owners(ctx, h.o.Target, Reader{})
	if err != nil {
		return flow.HandState{}, err
	}
	out, err := h.pods(ctx, st)
	if err != nil {
		return out, err
	}
	h.mu.Lock()
	if h.going != nil { // what was asked for, though it waits for its drain
		out.Wanted = h.going.want
	}
	h.mu.Unlock()
	if len(owners) > 0 {
		out.Owner = owners[0].String()
		return out, nil
	}
	if _, leads := h.o.Lead.Leads(); !leads {
		m, err := h.o.Lead.Recall(ctx, h.o.Pool)
		if err == nil && m.Yield != nil {
			out.Owner = m.Yield.String() // so the leader does not act, either
			return out, nil
		}
		out.Leader = h.o.Lead.Who()
		out.Owner = (&NotLeaderError{out.Leader}).Error()
		return out, err
	}
	out.Owner, err = h.owner(ctx, st)
	return out, err
}

// pods fills in what the pods of the target tell.
func (h *ScaleHand) pods(ctx context.Context, st *scaleState) (flow.HandState, error) {
	out := flow.HandState{Wanted: st.spec, Replicas: st.status}
	pods, err := h.o.Cluster.list(ctx, h.o.Target.Namespace, st.selector)
	if err != nil {
		return out, err
	}
	alive := 0
	for i := range pods {
		if !finished(&pods[i]) && pods[i].DeletionTimestamp == nil {
			alive++
		}
	}
	out.Pending = pendingOf(pods)
	if alive < st.spec {
		out.Blocked = h.o.Cluster.blockedBy(ctx, h.o.Target, time.Now())
	}
	for _, p := range out.Pending {
		if out.Blocked == "" && p.Reason != "" {
			out.Blocked = p.ID + ": " + p.Reason
		}
	}
	return out, nil
}

// owner says who moved the object although no autoscaler does; "" is nobody.
func (h *ScaleHand) owner(ctx context.Context, st *scaleState) (string, error) {
	m, err := h.o.Lead.Recall(ctx, h.o.Pool)
	if err != nil {
		return "", err
	}
	y, err := h.moved(ctx, st, &m)
	if err != nil || y == nil {
		return "", err
	}
	h.stay()
	return y.String(), h.yield(ctx, &m, y)
}

// moved says whether somebody else changed what this program had set. Field managers
// tell who: every write of ours stands under one name.
func (h *ScaleHand) moved(ctx context.Context, st *scaleState, m *Memory) (*Yield, error) {
	if m.Yield != nil || h.shared {
		return m.Yield, nil
	}
	if m.Set == nil || m.Set.UID != st.uid || m.Set.Replicas == st.spec {
		return nil, nil
	}
	movers, err := h.scale.movers(ctx)
	if err != nil {
		return nil, err
	}
	return yieldTo(movers, m.Set.Replicas, st.spec), nil
}

func yieldTo(movers []mover, from, now int) *Yield {
	for _, v := range movers {
		if v.name == manager {
			return nil // a write of ours whose answer was lost
		}
	}
	y := &Yield{To: "somebody", At: time.Now(), From: from, Now: now}
	if len(movers) > 0 {
		if y.To = movers[0].name; !movers[0].at.IsZero() {
			y.At = movers[0].at
		}
		if movers[0].apply {
			y.To += " (server-side apply)"
		}
	}
	return y
}

// yield remembers that the object is left to somebody until an operator says otherwise.
func (h *ScaleHand) yield(ctx context.Context, m *Memory, y *Yield) error {
	if m.Yield != nil {
		return nil
	}
	h.o.Log.Warn("somebody else moved the object; waiting to be told", "who", y.To, "from", y.From, "to", y.Now)
	return h.o.Lead.Remember(ctx, h.o.Pool, func(m *Memory) { m.Yield = y })
}

func (y *Yield) String() string {
	return fmt.Sprintf("%s, which set %d replicas at %s where %d were asked for (say `penstock scale resume` to take it back)",
		y.To, y.Now, y.At.UTC().Format(time.RFC3339), y.From)
}

// Claim takes an object back that was yielded to somebody else.
func (h *ScaleHand) Claim(ctx context.Context) error {
	st, err := h.scale.read(ctx)
	if err != nil {
		return err
	}
	return h.o.Lead.Remember(ctx, h.o.Pool, func(m *Memory) {
		m.Yield, m.Set = nil, &SetScale{UID: st.uid, Replicas: st.spec, At: time.Now()}
	})
}

// Apply implements flow.Hand. Fewer replicas are reached once the pods that go have
// drained; more at once.
func (h *ScaleHand) Apply(ctx context.Context, want int, victims []string) error {
	owners, err := h.o.Cluster.Owners(ctx, h.o.Target, Reader{})
	if err != nil {
		return err
	}
	if len(owners) > 0 {
		h.stay()
		return &OwnedByError{owners[0].String()}
	}
	return h.set(ctx, want, victims)
}

// set moves the object, whoever else scales it: the caller has judged that.
func (h *ScaleHand) set(ctx context.Context, want int, victims []string) error {
	for try := 0; ; try++ {
		err := h.try(ctx, want, victims)
		if try == 3 || !apierrors.IsConflict(err) || isNotLeader(err) {
			return err
		}
	}
}

func isNotLeader(err error) bool {
	var e *NotLeaderError
	return errors.As(err, &e)
}

// look reads the object and what is remembered of it; y says who else moved it.
func (h *ScaleHand) look(ctx context.Context) (st *scaleState, m Memory, y *Yield, err error) {
	if st, err = h.scale.read(ctx); err != nil {
		return nil, m, nil, err
	}
	if m, err = h.o.Lead.Recall(ctx, h.o.Pool); err != nil {
		return nil, m, nil, err
	}
	y, err = h.moved(ctx, st, &m)
	return st, m, y, err
}

func (h *ScaleHand) try(ctx context.Context, want int, victims []string) error {
	st, m, y, err := h.look(ctx)
	if err != nil {
		return err
	}
	if y != nil {
		h.stay()
		if err := h.yield(ctx, &m, y); err != nil {
			return err
		}
		return &OwnedByError{y.String()}
	}
	if want >= st.spec {
		h.stay()
	}
	if want < st.spec {
		return h.reduce(ctx, st, want, victims)
	}
	return h.write(ctx, st, want)
}

// write is the only place that changes replicas: the fence first, then the object in
// the version that was read, both within the time for which this process surely
// leads.
func (h *ScaleHand) write(ctx context.Context, st *scaleState, n int) error {
	until, leads := h.o.Lead.Leads()
	if !leads {
		return &NotLeaderError{h.o.Lead.Who()}
	}
	ctx, cancel := context.WithDeadline(ctx, until)
	defer cancel()
	now := time.Now()
	if err := h.o.Lead.Remember(ctx, h.o.Pool, func(m *Memory) { m.Want, m.At = n, now }); err != nil {
		return err
	}
	if st.spec == n {
		return nil
	}
	if err := h.scale.write(ctx, st, n); err != nil {
		return err
	}
	h.o.Log.Info("scaled", "from", st.spec, "to", n)
	return h.o.Lead.Remember(ctx, h.o.Pool, func(m *Memory) { m.Set = &SetScale{UID: st.uid, Replicas: n, At: now} })
}

// ordered reports whether the object takes its highest ordinals away first, so that
// victims cannot be chosen.
func (t Target) ordered() bool {
	k := strings.ToLower(t.Kind)
	return k != "deployment" && k != "replicaset"
}

func podID(p *corev1.Pod) string { return p.Namespace + "/" + p.Name }
