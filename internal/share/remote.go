// SPDX-License-Identifier: Apache-2.0

package share

import (
	"context"
	"crypto/rand"
	"math"
	"time"

	"github.com/penstock-project/penstock/internal/admit"
	"github.com/penstock-project/penstock/internal/fleet"
)

// Times of the exchange with a store.
const (
	// exchangeTime bounds one exchange. Only the first requests of an outage wait for
	// it: from then on the background asks alone until the store answers.
	exchangeTime  = time.Second
	exchangeEvery = 200 * time.Millisecond // in the background
	retryAfter    = 200 * time.Millisecond // after one that failed
	emptyFor      = 20 * time.Millisecond  // an account that had nothing is not asked again
	heartbeat     = 5 * time.Second
	maxTries      = 8 // of one reservation
)

// FallbackShare is what part of a limit all gateways together may use at once,
// beyond what they hold, while the store is away. The rate of a limit goes on, split
// over the gateways. What they used is charged to the store when it is back.
const FallbackShare = 0.25

// remote leases the limits of a Meter from a store. Its fields are guarded by the
// Meter's lock, which exchange gives up while it waits.
type remote struct {
	m        *Meter
	store    Store
	gateway  string
	accounts []*leasedAccount // by number in m.q; nil: none
	busy     chan struct{}    // closed when the exchange that runs is over; nil: none runs
	up       bool
	tryAt    fleet.Time // not before
	gateways int
	n        struct{ exchanges, failures uint64 }
}

// leasedAccount is one account whose limit the store keeps.
type leasedAccount struct {
	k        int32
	name     string
	lent     int64 // by the store, in total
	back     int64 // given back, in total
	told     int64 // used, as the store knows it
	borrowed int64 // in use that the store did not lend
	left     int64 // in the store, when last heard
	heard    fleet.Time
	gen      string
	emptyTil fleet.Time
	settling bool
	asked    bool // wanted something since the last exchange in the background
	// The fallback bucket, while the store is away.
	spare   float64
	spareAt fleet.Time // of the last refill; 0: it is full
}

func newRemote(m *Meter, s Store) *remote {
	return &remote{m: m, store: s, gateway: rand.Text()[:12], up: true, gateways: 1}
}

// adopt makes an account of the meter one of the store's.
func (r *remote) adopt(k int32, name string) {
	for int(k) >= len(r.accounts) {
		r.accounts = append(r.accounts, nil)
	}
	r.m.q.Leased(k)
	r.accounts[k] = &leasedAccount{k: k, name: name}
}

// lend gets for accounts what a reservation lacked, from the store or, where that is
// away, from the fallback. It reports whether another try makes sense. The lock is
// held, and given up in between.
func (r *remote) lend(ctx context.Context, accounts []int32) bool {
	now := r.m.o.Clock()
	var want []*leasedAccount
	for _, k := range accounts {
		a := r.accounts[k]
		if r.m.q.HasWanted(k) {
			a.asked = true
			if a.emptyTil > now {
				return false
			}
			want = append(want, a)
		}
	}
	if len(want) == 0 || ctx.Err() != nil {
		return r.busy != nil && r.wait(ctx)
	}
	if r.busy != nil {
		return r.wait(ctx)
	}
	if r.up {
		r.exchange(ctx, want)
	}
	lent := false
	for _, a := range want {
		if !r.up || a.settling {
			lent = r.borrow(a) || lent
		} else {
			lent = lent || a.emptyTil == 0
		}
	}
	return lent
}

// wait waits for the exchange that runs.
func (r *remote) wait(ctx context.Context) bool {
	done := r.busy
	r.m.mu.Unlock()
	defer r.m.mu.Lock()
	select {
	case <-done:
		return true
	case <-ctx.Done():
		return false
	}
}

// exchange talks to the store about accounts. The lock is held, and given up while
// it waits for the answer.
func (r *remote) exchange(ctx context.Context, accounts []*leasedAccount) {
	m := r.m
	items := make([]Item, len(accounts))
	now := m.o.Clock()
	for i, a := range accounts {
		b := m.q.Balance(now, a.k)
		w := m.q.TakeWanted(a.k)
		items[i] = Item{Account: a.name, Rule: b.Rule, Lent: a.lent, Used: b.Charged, Back: a.back,
			One: w.One, All: max(w.All, w.One), Gen: a.gen, Hint: a.hint(now, &b.Rule)}
	}
	done := make(chan struct{})
	r.busy = done
	m.mu.Unlock()
	// A request that is given up must not leave the exchange half known.
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), exchangeTime)
	grants, err := r.store.Exchange(ctx, r.gateway, items)
	cancel()
	m.mu.Lock()
	r.busy = nil
	close(done)
	r.n.exchanges++
	now = m.o.Clock()
	if err != nil {
		r.n.failures++
		r.tryAt = now.Add(retryAfter)
		if r.up {
			r.up = false
			m.o.Log("the store of quotas does not answer; a part of each limit goes on here", "error", err)
		}
		return
	}
	if !r.up {
		r.up = true
		m.o.Log("the store of quotas answers again")
	}
	for i, a := range accounts {
		r.apply(a, &items[i], &grants[i], now)
	}
}

// apply notes what the store said of an account.
func (r *remote) apply(a *leasedAccount, it *Item, g *Grant, now fleet.Time) {
	a.lent += g.Lent
	a.told, a.left, a.heard, a.gen, a.settling = it.Used, g.Left, now, g.Gen, g.Settling
	r.gateways = max(g.Gateways, 1)
	covered := min(g.Over, a.borrowed)
	a.borrowed -= covered
	r.m.q.Lend(a.k, g.Lent-covered)
	a.emptyTil = 0
	if it.One > 0 && g.Lent-g.Over == 0 {
		a.emptyTil = now.Add(emptyFor)
	}
	if g.Settling {
		return
	}
	r.refill(a, now, FallbackShare)
	if idle := min(r.m.q.Balance(now, a.k).Left, a.borrowed); idle > 0 {
		a.borrowed -= idle // nobody uses it, so it was never there
		a.spare += float64(idle)
		r.m.q.Lend(a.k, -idle)
	}
}

// hint is what the store should have left of an account if nothing was lent since it
// was last heard.
func (a *leasedAccount) hint(now fleet.Time, rule *admit.Rule) int64 {
	if a.gen == "" {
		return rule.Limit
	}
	left := float64(a.left)
	if rule.Every == admit.Rolling && rule.Per > 0 && rule.Measure != admit.Concurrent {
		left += float64(rule.Limit) * float64(now-a.heard) / float64(rule.Per)
	}
	return int64(math.Min(left, float64(rule.Limit)))
}

// refill brings the fallback of an account to now. While the store is away it regains
// a share of the rate of the limit, since nobody else hands that out. While the store
// is there it regains speed times that: outages in a row must not each have a full
// one.
func (r *remote) refill(a *leasedAccount, now fleet.Time, speed float64) {
	rule := r.m.q.Rule(a.k)
	most := float64(rule.Limit) * FallbackShare / float64(r.gateways)
	if a.spareAt == 0 {
		a.spare = most
	} else if rule.Measure != admit.Concurrent && now > a.spareAt {
		per := rule.Per
		if rule.Every != admit.Rolling {
			per = 24 * time.Hour
		}
		rate := float64(rule.Limit) / float64(per) / float64(r.gateways)
		a.spare += speed * rate * float64(now-a.spareAt)
	}
	a.spare = min(a.spare, most)
	a.spareAt = max(now, a.spareAt)
}

// borrow takes what is wanted from the fallback. It reports whether there was any.
func (r *remote) borrow(a *leasedAccount) bool {
	m := r.m
	now := m.o.Clock()
	r.refill(a, now, 1)
	// An exchange that failed took the demand with it; what stands is that of the
	// caller, and it is asked for again on the next try.
	n := m.q.TakeWanted(a.k).One
	if n == 0 {
		n = 1
	}
	if float64(n) > a.spare {
		return false
	}
	a.spare -= float64(n)
	a.borrowed += n
	m.q.Lend(a.k, n)
	return true
}

// elsewhere is what is left of an account beside what was lent to this gateway.
func (r *remote) elsewhere(k int32) int64 { return r.accounts[k].left }

func (r *remote) stats() StoreStats {
	s := StoreStats{Used: true, Up: r.up, Exchanges: r.n.exchanges, Failures: r.n.failures, Gateways: r.gateways}
	for _, a := range r.accounts {
		if a != nil {
			s.Borrowed += a.borrowed
		}
	}
	return s
}

// Run keeps the leases of a meter with a store alive until ctx ends: it tells what
// was used and gives back what is not needed. At the end it gives everything back.
func (m *Meter) Run(ctx context.Context) {
	if m.remote == nil {
		return
	}
	t := time.NewTicker(exchangeEvery)
	defer t.Stop()
	for {
		select {
		case <-ctx.Done():
			m.remote.tick(context.WithoutCancel(ctx), true)
			m.o.Store.Close()
			return
		case <-t.C:
			m.remote.tick(ctx, false)
		}
	}
}

// tick is one exchange in the background. last gives everything back.
func (r *remote) tick(ctx context.Context, last bool) {
	m := r.m
	m.mu.Lock()
	defer m.mu.Unlock()
	now := m.o.Clock()
	if r.busy != nil || now < r.tryAt && !last {
		return
	}
	var due []*leasedAccount
	for _, a := range r.accounts {
		if a == nil {
			continue
		}
		b := m.q.Balance(now, a.k)
		if b.Left > 0 && (last || !a.asked) && a.borrowed == 0 && r.up {
			a.back += b.Left
			m.q.Lend(a.k, -b.Left)
			due = append(due, a)
			continue
		}
		held := a.lent - a.back - a.told
		if b.Charged != a.told || a.asked || a.borrowed > 0 || a.settling || !r.up || (held > 0 || now.Sub(a.heard) > 0) && now.Sub(a.heard) > heartbeat {
			due = append(due, a)
		}
		a.asked = false
	}
	if len(due) > 0 {
		r.exchange(ctx, due)
	}
}
