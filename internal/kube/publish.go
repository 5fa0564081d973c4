// SPDX-License-Identifier: Apache-2.0

package kube

import (
	"context"
	"fmt"
	"sync"
	"time"

	"github.com/penstock-project/penstock/internal/flow"
)

// PublishHand gives the wanted number to somebody who moves the object: an HPA
// through the external metrics API, or KEDA through its external scaler. It
// implements flow.Hand.
type PublishHand struct {
	base *ScaleHand
	name string // hpa or keda
	wake bool

	mu      sync.Mutex
	own     Memory // what this process published as the leader
	other   Memory // what another one did, as read at
	readAt  time.Time
	changed chan struct{} // closed and replaced when the number changes
	notes   []string
}

// NewPublishHand returns the hand named hpa or keda. With wake this program itself
// takes the object out of zero, and into it where an HPA cannot: an HPA of Kubernetes
// before 1.37 never does, and KEDA goes to one replica first.
func NewPublishHand(name string, wake bool, o HandOptions) *PublishHand {
	base := NewScaleHand(o)
	base.shared = true
	return &PublishHand{base: base, name: name, wake: wake, changed: make(chan struct{})}
}

// Name implements flow.Hand.
func (h *PublishHand) Name() string { return h.name }

// Target is the object that the autoscaler moves.
func (h *PublishHand) Target() Target { return h.base.o.Target }

func (h *PublishHand) reader() Reader {
	return Reader{Metric: h.base.o.Metric, Pool: h.base.o.Pool}
}

// kind is what shall read the number.
func (h *PublishHand) kind() string {
	if h.name == "keda" {
		return "ScaledObject"
	}
	return "HorizontalPodAutoscaler"
}

// State implements flow.Hand.
func (h *PublishHand) State(ctx context.Context) (flow.HandState, error) {
	st, err := h.base.scale.read(ctx)
	if err != nil {
		return flow.HandState{}, err
	}
	owners, err := h.base.o.Cluster.Owners(ctx, h.base.o.Target, h.reader())
	if err != nil {
		return flow.HandState{}, err
	}
	out, err := h.base.pods(ctx, st)
	if err != nil {
		return out, err
	}
	ours := false
	var notes []string
	for _, o := range owners {
		if !o.Reads {
			out.Owner = o.String()
			continue
		}
		ours = true
		notes = append(notes, o.Notes...)
		if o.Idle != "" {
			notes = append(notes, o.String()+": "+o.Idle)
			// At zero an HPA that may not go there is idle by design, and a wake of
			// ours ends it.
			if out.Blocked == "" && !(st.spec == 0 && h.wake) {
				out.Blocked = o.String() + ": " + o.Idle
			}
		}
	}
	if _, leads := h.base.o.Lead.Leads(); !leads && out.Owner == "" {
		out.Leader = h.base.o.Lead.Who()
		out.Owner = (&NotLeaderError{out.Leader}).Error()
	}
	if !ours && out.Blocked == "" {
		out.Blocked = fmt.Sprintf("no %s reads the wanted replicas of pool %s for %s", h.kind(), h.base.o.Pool, h.base.o.Target)
	}
	h.mu.Lock()
	h.notes = notes
	h.mu.Unlock()
	return out, nil
}

// Notes are what was wrong or worth seeing with the autoscaler at the last State.
func (h *PublishHand) Notes() []string {
	h.mu.Lock()
	defer h.mu.Unlock()
	return append([]string(nil), h.notes...)
}

// republish is how old the published number may become before it is confirmed for
// those that read it in other processes.
const republish = 10 * time.Second

// Apply implements flow.Hand.
func (h *PublishHand) Apply(ctx context.Context, want int, victims []string) error {
	now := time.Now()
	h.mu.Lock()
	before := h.own
	h.mu.Unlock()
	if before.At.IsZero() || before.Want != want || now.Sub(before.At) > republish {
		if err := h.base.o.Lead.Remember(ctx, h.base.o.Pool, func(m *Memory) { m.Want, m.At = want, now }); err != nil {
			return err
		}
		h.mu.Lock()
		h.own = Memory{Want: want, At: now}
		if before.At.IsZero() || before.Want != want {
			close(h.changed)
			h.changed = make(chan struct{})
		}
		h.mu.Unlock()
	}
	if !h.wake {
		return nil
	}
	return h.throughZero(ctx, want, victims)
}

// throughZero takes the steps that the autoscaler cannot: from zero to as many as
// are wanted, and to zero.
func (h *PublishHand) throughZero(ctx context.Context, want int, victims []string) error {
	st, err := h.base.scale.read(ctx)
	if err != nil {
		return err
	}
	if (st.spec == 0) == (want == 0) {
		if want > 0 {
			h.base.stay()
		}
		return nil
	}
	owners, err := h.base.o.Cluster.Owners(ctx, h.base.o.Target, h.reader())
	if err != nil {
		return err
	}
	for _, o := range owners {
		if !o.Reads {
			return &OwnedByError{o.String()}
		}
		if want == 0 && o.Min == 0 {
			return nil // it goes there by itself
		}
	}
	return h.base.set(ctx, want, victims)
}

// Claim takes an object back that somebody else moved through zero.
func (h *PublishHand) Claim(ctx context.Context) error { return h.base.Claim(ctx) }

// Published is the number that stands, and when it was confirmed; the zero time where
// there is none. Who does not lead tells what the leader published.
func (h *PublishHand) Published(ctx context.Context) (want int, at time.Time) {
	_, leads := h.base.o.Lead.Leads()
	h.mu.Lock()
	defer h.mu.Unlock()
	if leads && !h.own.At.IsZero() { // a new leader starts with what the last one said
		return h.own.Want, h.own.At
	}
	if time.Since(h.readAt) > time.Second {
		ctx, cancel := context.WithTimeout(ctx, 2*time.Second)
		defer cancel()
		if m, err := h.base.o.Lead.Recall(ctx, h.base.o.Pool); err == nil {
			h.other = m
		}
		h.readAt = time.Now()
	}
	return h.other.Want, h.other.At
}

// Changed is closed when this process publishes another number.
func (h *PublishHand) Changed() <-chan struct{} {
	h.mu.Lock()
	defer h.mu.Unlock()
	return h.changed
}
