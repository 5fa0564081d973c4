// SPDX-License-Identifier: Apache-2.0

package admit

import (
	"time"

	"github.com/penstock-project/penstock/internal/fleet"
)

// Quotas keeps accounts and the reservations on them. A request reserves before it
// runs what it may use, counts while it runs, and settles what it used: what was
// too much goes back, what was too little becomes debt that the next request finds.
// The zero Quotas is ready. Not safe for concurrent use.
type Quotas struct {
	numbers  map[string]int32
	accounts []account
	leases   []lease
	free     []int32
	open     int
}

// Lease is an open reservation. The zero Lease is none.
type Lease uint64

type lease struct {
	gen    uint32
	open   bool
	price  Price
	claims []claim
}

// claim is what a lease holds of an account.
type claim struct {
	account int32
	amount  int64
}

// Account returns the number of the account with a name, which it makes where there
// is none: full. A rule that differs from the account's replaces it; what was used
// stays used.
func (q *Quotas) Account(now fleet.Time, name string, r Rule) int32 {
	if i, ok := q.numbers[name]; ok {
		if a := &q.accounts[i]; a.rule != r {
			a.refill(now)
			if !a.leased {
				a.level += r.Limit - a.rule.Limit
			}
			a.rule = r
		}
		return i
	}
	if q.numbers == nil {
		q.numbers = map[string]int32{}
	}
	i := int32(len(q.accounts))
	q.numbers[name] = i
	q.accounts = append(q.accounts, account{name: name, rule: r, level: r.Limit, at: now})
	return i
}

// Refusal says which limit keeps a request out.
type Refusal struct {
	Account int32
	Rule    Rule
	Need    int64 // what the request may use
	Left    int64 // what is left; negative: debt
	// RetryAfter is when the account will have what is needed, if nobody else takes
	// it. 0: never, since the request is larger than the limit.
	RetryAfter time.Duration
}

// Reserve takes what a request may use at most from every account, or from none. It
// returns the refusal that lasts longest.
func (q *Quotas) Reserve(now fleet.Time, accounts []int32, most Usage, p Price) (Lease, *Refusal) {
	var worst *Refusal
	for _, i := range accounts {
		a := &q.accounts[i]
		a.refill(now)
		need := a.need(most, p)
		if a.level >= need && a.level > 0 {
			continue
		}
		if a.leased {
			a.wanted.One = max(a.wanted.One, max(need, 1)-a.level)
			a.wanted.All += max(need, 1)
		}
		r := &Refusal{Account: i, Rule: a.rule, Need: need, Left: a.level}
		if need <= a.rule.Limit {
			r.RetryAfter = max(a.until(now, max(need, 1)), time.Millisecond)
		}
		if worst == nil || worst.RetryAfter > 0 && (r.RetryAfter == 0 || r.RetryAfter > worst.RetryAfter) {
			worst = r
		}
	}
	if worst != nil {
		return 0, worst
	}
	n := q.slot()
	l := &q.leases[n]
	l.open, l.price, l.claims = true, p, l.claims[:0]
	for _, i := range accounts {
		a := &q.accounts[i]
		need := a.need(most, p)
		a.level -= need
		a.reserved += need
		l.claims = append(l.claims, claim{i, need})
	}
	q.open++
	return Lease(uint64(l.gen)<<32 | uint64(n)), nil
}

// need is what a request may use of an account at most.
func (a *account) need(most Usage, p Price) int64 {
	if a.rule.Measure == Concurrent {
		return 1
	}
	most.Cached = 0 // what a cache saves is known at the end only
	return a.rule.Measure.of(most, p)
}

func (q *Quotas) slot() int32 {
	if n := len(q.free); n > 0 {
		i := q.free[n-1]
		q.free = q.free[:n-1]
		return i
	}
	q.leases = append(q.leases, lease{gen: 1})
	return int32(len(q.leases) - 1)
}

// find returns an open lease; nil for any other.
func (q *Quotas) find(id Lease) (*lease, int32) {
	n := int32(uint32(id))
	if id == 0 || int(n) >= len(q.leases) || !q.leases[n].open || q.leases[n].gen != uint32(id>>32) {
		return nil, 0
	}
	return &q.leases[n], n
}

// Count says what a running request has used so far, in total. What exceeds its
// reservation is taken at once. It reports whether a hard limit wants it to end.
func (q *Quotas) Count(now fleet.Time, id Lease, u Usage) (stop bool) {
	l, _ := q.find(id)
	if l == nil {
		return false
	}
	for k := range l.claims {
		c := &l.claims[k]
		a := &q.accounts[c.account]
		used := a.rule.Measure.of(u, l.price)
		if used <= c.amount {
			continue
		}
		a.refill(now)
		a.level -= used - c.amount
		a.reserved += used - c.amount
		c.amount = used
		stop = stop || a.rule.Hard && a.level < 0
	}
	return stop
}

// Reprice changes what a token of an open lease costs, for what is counted or settled
// from now on.
func (q *Quotas) Reprice(id Lease, p Price) {
	if l, _ := q.find(id); l != nil {
		l.price = p
	}
}

// Settle ends a lease with what was used. Only the first call counts.
func (q *Quotas) Settle(now fleet.Time, id Lease, u Usage) {
	l, n := q.find(id)
	if l == nil {
		return
	}
	for _, c := range l.claims {
		a := &q.accounts[c.account]
		a.refill(now)
		used := a.rule.Measure.of(u, l.price)
		a.level += c.amount - used
		a.reserved -= c.amount
		a.charged += used
		if !a.leased {
			a.level = min(a.level, a.rule.Limit)
		}
	}
	l.open = false
	if l.gen++; l.gen == 0 {
		l.gen = 1
	}
	q.free = append(q.free, n)
	q.open--
}

// Balance is the state of an account.
type Balance struct {
	Name     string
	Rule     Rule
	Left     int64         // negative: debt
	Reserved int64         // by requests that run
	Charged  int64         // used since the start, in total
	Reset    time.Duration // until it is full again
}

// Balance returns the state of an account.
func (q *Quotas) Balance(now fleet.Time, i int32) Balance {
	a := &q.accounts[i]
	a.refill(now)
	return Balance{Name: a.name, Rule: a.rule, Left: a.level, Reserved: a.reserved, Charged: a.charged, Reset: a.until(now, a.rule.Limit)}
}

// Left returns what is left of an account; negative: debt.
func (q *Quotas) Left(now fleet.Time, i int32) int64 {
	a := &q.accounts[i]
	a.refill(now)
	return a.level
}

// Rule returns the rule of an account.
func (q *Quotas) Rule(i int32) Rule { return q.accounts[i].rule }

// Len returns the number of accounts; they are numbered from 0.
func (q *Quotas) Len() int { return len(q.accounts) }

// Open returns the number of open leases.
func (q *Quotas) Open() int { return q.open }

// Leased makes an account one whose limit a store keeps: it is empty until the
// store lends to it.
func (q *Quotas) Leased(i int32) {
	a := &q.accounts[i]
	if !a.leased {
		a.leased, a.level = true, -a.reserved
	}
}

// Lend adds what a store lent to an account, or with a negative amount takes it
// back.
func (q *Quotas) Lend(i int32, amount int64) {
	q.accounts[i].level += amount
}

// Wanted is what reservations on a leased account lacked.
type Wanted struct {
	One int64 // the largest of them
	All int64 // all of them together
}

// HasWanted reports whether a reservation lacked anything.
func (q *Quotas) HasWanted(i int32) bool { return q.accounts[i].wanted.One > 0 }

// TakeWanted returns what reservations lacked since it was last asked.
func (q *Quotas) TakeWanted(i int32) Wanted {
	w := q.accounts[i].wanted
	q.accounts[i].wanted = Wanted{}
	return w
}

// Cap returns how many tokens of output to reserve: the least of what the client
// asked for at most, the policy's cap, and what answers have taken before. Values
// that are not positive are unknown; with none known it is DefaultOutput.
func Cap(client, policy, learned int) int {
	n := 0
	for _, v := range [...]int{client, policy, learned} {
		if v > 0 && (n == 0 || v < n) {
			n = v
		}
	}
	if n == 0 {
		return DefaultOutput
	}
	return n
}

// DefaultOutput is what is reserved for an answer of which nothing is known, in
// tokens.
const DefaultOutput = 1024
