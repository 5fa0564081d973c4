// SPDX-License-Identifier: Apache-2.0

package flow

import (
	"context"

	"github.com/penstock-project/penstock/internal/fleet"
)

// A Hand moves the replicas of one pool: processes on this machine, the /scale of a
// Kubernetes object. The scaler loop decides, a Hand does. Its methods may be
// called from one goroutine at a time.
type Hand interface {
	// Name is the word of the configuration: process, scale, hpa, keda.
	Name() string
	// State is what there is at present. An error means that nothing is known: the
	// loop then holds.
	State(ctx context.Context) (HandState, error)
	// Apply asks for want replicas, those that are starting included. victims are
	// IDs of endpoints to take away first, in this order; a Hand that cannot choose
	// ignores them. It returns once the request is made, not once it is fulfilled,
	// and asking again for the same number changes nothing.
	Apply(ctx context.Context, want int, victims []string) error
}

// HandState is what a Hand knows of its replicas.
type HandState struct {
	Replicas int // that exist: ready, starting and draining ones
	Wanted   int // what was asked for last, by whomever
	// Pending are the replicas that exist or were asked for and are not ready,
	// oldest first.
	Pending []Pending
	// Owner names who else moves this object (an HPA, a ScaledObject, another
	// Penstock); "" is nobody. The loop does not act against an owner.
	Owner string
	// Leader is the other Penstock where the owner is one: it acts for this one, too.
	Leader string
	// Blocked says why nothing can be added: a quota, no free accelerator, the
	// maximum of the machine; "" is nothing known.
	Blocked string
}

// Pending is one replica on its way.
type Pending struct {
	ID    string // of the endpoint, or of the process or pod where it has none yet
	Phase string // as fleet.Phase prints: pending, pulling, loading, warming
	Since fleet.Time
	// ExpectedReady is when the Hand believes that it will be ready; zero is
	// unknown: the loop then uses the pool's own start-up times.
	ExpectedReady fleet.Time
	Reason        string // why it does not come, where that is known: "" otherwise
}
