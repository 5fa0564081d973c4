// SPDX-License-Identifier: Apache-2.0

package flow

import (
	"fmt"
	"slices"
	"sync"

	"github.com/penstock-project/penstock/internal/fleet"
	"github.com/penstock-project/penstock/internal/scale"
)

// Accelerators is a number of accelerators that the loops of several pools share. A
// pool gets what scale.Budget gives it, and of that no more than the others have let
// go of: together they never ask for more than there are. All methods are safe for
// concurrent use.
type Accelerators struct {
	mu     sync.Mutex
	total  int
	budget scale.Budget
	pools  []*sharer
}

// sharer is what a pool said last.
type sharer struct {
	claim scale.Claim
	holds int  // replicas that exist or were asked for
	seen  bool // it has said something
}

// NewAccelerators makes a budget; a total of 0 is none.
func NewAccelerators(total int) *Accelerators { return &Accelerators{total: total} }

// SetTotal changes the number of accelerators; 0: no bound.
func (a *Accelerators) SetTotal(n int) {
	a.mu.Lock()
	a.total = n
	a.mu.Unlock()
}

// join makes a pool known before it says anything: until it has, nobody adds replicas.
func (a *Accelerators) join(pool string) {
	a.mu.Lock()
	a.pools = append(a.pools, &sharer{claim: scale.Claim{Pool: pool, PerReplica: 1}})
	a.mu.Unlock()
}

// ask says what a pool would have and holds, and returns how many replicas it may have
// and why not more; "" where it may have what it wants. One that does not act claims
// what it holds, whatever it wants, and is told what it would get.
func (a *Accelerators) ask(now fleet.Time, c scale.Claim, holds int, acts bool) (most int, why string) {
	a.mu.Lock()
	defer a.mu.Unlock()
	me := slices.IndexFunc(a.pools, func(p *sharer) bool { return p.claim.Pool == c.Pool })
	if me < 0 {
		return c.Want, ""
	}
	p := a.pools[me]
	p.claim, p.holds, p.seen = c, holds, true
	if !acts {
		p.claim.Min, p.claim.Want = holds, holds
	}
	if a.total <= 0 {
		return c.Want, ""
	}
	claims := make([]scale.Claim, len(a.pools))
	free, unseen := a.total, ""
	for i, q := range a.pools {
		claims[i] = q.claim
		if i != me {
			free -= q.holds * q.claim.PerReplica
		}
		if !q.seen {
			unseen = q.claim.Pool
		}
	}
	var share scale.Share
	if acts {
		share = a.budget.Divide(now, a.total, claims)[me]
	} else {
		claims[me] = c
		share = scale.Divide(a.total, claims)[me]
	}
	most = share.Replicas
	if most < c.Want {
		why = fmt.Sprintf("%d of %d accelerators are its share, at %d a replica and priority %d", share.Accelerators, a.total, c.PerReplica, c.Priority)
	}
	// What others still hold is not there yet, whoever it belongs to by now.
	room := max(0, free) / c.PerReplica
	switch {
	case unseen != "" && most > holds:
		most, why = holds, "what pool "+unseen+" holds of the accelerators is not known yet"
	case most > room && most > holds:
		most = max(room, min(holds, share.Replicas))
		why = fmt.Sprintf("%d of %d accelerators are free of other pools, at %d a replica", max(0, free), a.total, c.PerReplica)
	}
	if acts {
		p.holds = max(holds, min(c.Want, most)) // as good as taken before anybody else asks
	}
	return most, why
}

// share bounds a recommendation by the pool's share of the accelerators.
func (s *Scaler) share(x *ScaleRecord, policy *scale.Policy, acts bool) {
	if s.o.Accelerators == nil || s.o.Hand == nil {
		return
	}
	holds := max(s.state.Replicas, s.state.Wanted, x.Counted)
	if s.stateErr != nil {
		return // it wants nothing, and what it held last counts
	}
	c := scale.Claim{
		Pool: s.o.Pool, PerReplica: max(1, policy.AcceleratorsPerReplica), Min: policy.Min, Want: holds, Priority: policy.Priority,
		Offered: x.Offered, Capacity: s.table, StartUp: x.StartP50,
	}
	if x.Desired != nil {
		c.Want = *x.Desired
	}
	c.Min = min(c.Min, c.Want)
	if most, why := s.o.Accelerators.ask(fleet.Time(x.Time), c, holds, acts); x.Desired != nil && most < *x.Desired {
		x.constrain("shared-accelerators", most, why)
	}
}
