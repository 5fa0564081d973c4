// SPDX-License-Identifier: Apache-2.0

package share

import (
	"context"
	"math"
	"sync"
	"sync/atomic"
	"time"

	"github.com/penstock-project/penstock/internal/admit"
	"github.com/penstock-project/penstock/internal/fleet"
)

// Limit is a rule and whom it counts together.
type Limit struct {
	Rule   admit.Rule
	PerKey bool   // each key by itself; else all keys of the tenant together
	Model  string // "": all models together; "*": each by itself; or one model
}

// Tenant is what one tenant may use.
type Tenant struct {
	Name      string
	Limits    []Limit
	OutputCap int // most tokens reserved for an answer; 0: no cap
}

// Policy is what a Meter enforces. It is read-only.
type Policy struct {
	Tenants map[string]*Tenant
	// Prices by model, "*" for the rest.
	Prices map[string]admit.Price
}

// Options of a Meter.
type Options struct {
	Policy *Policy
	Clock  func() fleet.Time
	Store  Store // nil: this gateway keeps the limits by itself
	Log    func(msg string, args ...any)
}

// Meter admits requests against the limits of their tenants. It is safe for
// concurrent use.
type Meter struct {
	o      Options
	policy atomic.Pointer[Policy]

	mu      sync.Mutex
	q       admit.Quotas
	lengths map[string]*admit.Lengths
	paces   map[string]float64 // seconds for a token of a model's answers, moving
	remote  *remote            // nil without a store
	drawn   map[drawer][]int32 // accounts of those who were here before
}

// drawer is who draws on accounts.
type drawer struct {
	t          *Tenant // of the policy in force
	key, model string
}

// mostDrawers bounds what is remembered of them.
const mostDrawers = 8192

// NewMeter returns a Meter. With a store, Run keeps its leases alive.
func NewMeter(o Options) *Meter {
	if o.Log == nil {
		o.Log = func(string, ...any) {}
	}
	m := &Meter{o: o, lengths: map[string]*admit.Lengths{}, paces: map[string]float64{}}
	m.policy.Store(o.Policy)
	if o.Store != nil {
		m.remote = newRemote(m, o.Store)
	}
	return m
}

// SetPolicy replaces the limits. What was used and what runs stays counted.
func (m *Meter) SetPolicy(p *Policy) {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.policy.Store(p)
	m.drawn = nil
}

// Ask is a request that wants in.
type Ask struct {
	Tenant, Key string
	Model       string // or adapter, as engines know it
	Prompt      int    // estimated tokens
	MaxTokens   int    // the client's cap on each answer; 0: none
	N           int    // answers; at least 1
}

// Lease is a request that is in: it counts and is settled once. A nil Lease is one
// without limits. Its methods are for one goroutine at a time.
type Lease struct {
	m     *Meter
	id    admit.Lease
	model string
	prompt,
	most, // output tokens that were reserved
	since int64 // output tokens that were not counted yet
	used admit.Usage
	// Head is what the answer's header tells of the limits at admission.
	Head []HeadField
	hard bool
}

// Hard reports whether a limit may end this request while it runs.
func (l *Lease) Hard() bool { return l != nil && l.hard }

// HeadField is one header of an answer, in canonical form.
type HeadField struct{ Name, Value string }

// Refused is why a request may not enter.
type Refused struct {
	admit.Refusal
	Name string // of the account, without the key in it
	Head []HeadField
}

// Metered reports whether a tenant has limits.
func (m *Meter) Metered(tenant string) bool {
	if m == nil {
		return false
	}
	t := m.policy.Load().Tenants[tenant]
	return t != nil && len(t.Limits) > 0
}

// Precheck refuses a request whose tenant has nothing left, before its body is read
// and its model known. It reserves nothing.
func (m *Meter) Precheck(tenant, key string) *Refused {
	if !m.Metered(tenant) || m.remote != nil {
		return nil // what a store has left is known when it is asked
	}
	m.mu.Lock()
	defer m.mu.Unlock()
	now := m.o.Clock()
	t := m.policy.Load().Tenants[tenant]
	accounts := m.accounts(now, t, key, "")
	for _, a := range accounts {
		if m.q.Left(now, a) <= 0 {
			_, no := m.q.Reserve(now, accounts, admit.Usage{Requests: 1, Prompt: 1}, m.price(""))
			if no == nil {
				return nil
			}
			return m.refused(now, no, accounts)
		}
	}
	return nil
}

// Reserve lets a request in, or says why not. It may ask the store, and gives up
// when ctx ends.
func (m *Meter) Reserve(ctx context.Context, a Ask) (*Lease, *Refused) {
	if !m.Metered(a.Tenant) {
		return nil, nil
	}
	policy := m.policy.Load()
	t := policy.Tenants[a.Tenant]
	m.mu.Lock()
	defer m.mu.Unlock()
	now := m.o.Clock()
	learned := 0
	if l := m.lengths[a.Model]; l != nil {
		learned = l.Expect()
	}
	n := int64(max(a.N, 1))
	most := admit.Usage{Requests: 1, Prompt: int64(a.Prompt), Output: n * int64(admit.Cap(a.MaxTokens, t.OutputCap, learned))}
	accounts := m.accounts(now, t, a.Key, a.Model)
	if a.MaxTokens == 0 {
		most.Output = m.fit(accounts, most, n)
	}
	price := policy.price(a.Model)
	id, no := m.q.Reserve(now, accounts, most, price)
	for tries := 0; no != nil && m.remote != nil && tries < maxTries; tries++ {
		if !m.remote.lend(ctx, accounts) { // unlocks while it asks
			break
		}
		now = m.o.Clock()
		id, no = m.q.Reserve(now, accounts, most, price)
	}
	if no != nil {
		return nil, m.refused(now, no, accounts)
	}
	l := &Lease{m: m, id: id, model: a.Model, prompt: int64(a.Prompt), most: most.Output, Head: m.head(now, accounts)}
	for _, k := range accounts {
		l.hard = l.hard || m.q.Rule(k).Hard
	}
	return l, nil
}

// fit lowers what is reserved for an answer of unknown length to what a limit can
// hold at all: nobody asked for more.
func (m *Meter) fit(accounts []int32, most admit.Usage, n int64) int64 {
	out := most.Output
	for _, k := range accounts {
		switch r := m.q.Rule(k); r.Measure {
		case admit.OutputTokens:
			out = min(out, r.Limit)
		case admit.TotalTokens:
			out = min(out, max(r.Limit-most.Prompt, n))
		}
	}
	return out
}

func (p *Policy) price(model string) admit.Price {
	if pr, ok := p.Prices[model]; ok {
		return pr
	}
	return p.Prices["*"]
}

func (m *Meter) price(model string) admit.Price { return m.policy.Load().price(model) }

// accounts returns the accounts that a request draws on, not to be changed. Without a
// model it is those of all models only. m.mu is held.
func (m *Meter) accounts(now fleet.Time, t *Tenant, key, model string) []int32 {
	who := drawer{t, key, model}
	if known, ok := m.drawn[who]; ok {
		return known
	}
	out := m.find(now, t, key, model)
	if m.drawn == nil || len(m.drawn) >= mostDrawers {
		m.drawn = map[drawer][]int32{}
	}
	m.drawn[who] = out
	return out
}

// find makes the accounts of a request, or finds them.
func (m *Meter) find(now fleet.Time, t *Tenant, key, model string) (out []int32) {
	var b [192]byte
	for i := range t.Limits {
		l := &t.Limits[i]
		if l.Model != "" && (model == "" || l.Model != "*" && l.Model != model) {
			continue
		}
		name := append(b[:0], t.Name...)
		name = append(name, '|', byte('0'+l.Rule.Measure), '|')
		name = appendPeriod(name, &l.Rule)
		name = append(name, '|')
		if l.Model != "" {
			name = append(name, model...)
		}
		name = append(name, '|')
		if l.PerKey {
			name = append(name, key...)
		}
		n := m.q.Len()
		k := m.q.Account(now, string(name), l.Rule)
		if m.remote != nil && m.q.Len() > n {
			m.remote.adopt(k, string(name))
		}
		out = append(out, k)
	}
	return out
}

func appendPeriod(b []byte, r *admit.Rule) []byte {
	switch r.Every {
	case admit.Day:
		return append(b, "day"...)
	case admit.Month:
		return append(b, "month"...)
	}
	return append(b, r.Per.String()...)
}

// countEvery is how many output tokens are gathered before the accounts hear of
// them.
const countEvery = 16

// Count says that n more output tokens came. It reports whether a hard limit wants
// the answer to end.
func (l *Lease) Count(n int) (stop bool) {
	if l == nil {
		return false
	}
	l.since += int64(n)
	if l.since < countEvery && !l.hard {
		return false
	}
	l.used = admit.Usage{Requests: 1, Prompt: l.prompt, Output: l.used.Output + l.since}
	l.since = 0
	l.m.mu.Lock()
	defer l.m.mu.Unlock()
	return l.m.q.Count(l.m.o.Clock(), l.id, l.used)
}

// Settle ends the request with what it used. whole says that the answer came to its
// own end, so that its length tells how long answers are. Only the first call
// counts.
func (l *Lease) Settle(u admit.Usage, whole bool) {
	if l == nil || l.m == nil {
		return
	}
	m := l.m
	l.m = nil
	m.mu.Lock()
	defer m.mu.Unlock()
	m.q.Settle(m.o.Clock(), l.id, u)
	if whole && u.Output > 0 {
		h := m.lengths[l.model]
		if h == nil {
			h = &admit.Lengths{}
			m.lengths[l.model] = h
		}
		h.Add(int(min(u.Output, math.MaxInt32)))
	}
}

// Moved says that another model answers than the request was let in for: it costs
// what that one costs.
func (l *Lease) Moved(model string) {
	if l == nil || l.m == nil || l.model == model {
		return
	}
	l.model = model
	l.m.mu.Lock()
	defer l.m.mu.Unlock()
	l.m.q.Reprice(l.id, l.m.price(model))
}

// Pace tells how long an engine was at the answer of a request that came to its own
// end. Later requests that end early are charged by it, see Produced.
func (l *Lease) Pace(output int64, took time.Duration) {
	if l == nil || l.m == nil || output <= 0 || took <= 0 {
		return
	}
	l.m.mu.Lock()
	defer l.m.mu.Unlock()
	pace := took.Seconds() / float64(output)
	if was, ok := l.m.paces[l.model]; ok {
		pace = was + (pace-was)/16
	}
	l.m.paces[l.model] = pace
}

// usualPace is the time for a token where no answer of a model was seen yet: that of
// engines at moderate load.
const usualPace = 0.025

// Produced estimates the tokens that an engine made in a time of an answer that
// nobody saw: at the pace of earlier answers, no more than what was reserved.
func (l *Lease) Produced(took time.Duration) int64 {
	if l == nil || l.m == nil || took <= 0 {
		return 0
	}
	l.m.mu.Lock()
	defer l.m.mu.Unlock()
	pace, ok := l.m.paces[l.model]
	if !ok {
		pace = usualPace
	}
	return min(l.most, int64(took.Seconds()/pace))
}

// Prompt returns the estimate that was reserved for the prompt, in tokens.
func (l *Lease) Prompt() int64 { return l.prompt }

// Stats is the state of a Meter for metrics.
type Stats struct {
	Open     int // requests that hold a reservation
	Balances []admit.Balance
	Store    StoreStats
}

// Stats returns the state at this moment.
func (m *Meter) Stats() Stats {
	m.mu.Lock()
	defer m.mu.Unlock()
	s := Stats{Open: m.q.Open()}
	now := m.o.Clock()
	for i := range m.q.Len() {
		s.Balances = append(s.Balances, m.q.Balance(now, int32(i)))
	}
	if m.remote != nil {
		s.Store = m.remote.stats()
	}
	return s
}

// period names the period of a rule, for people.
func period(r *admit.Rule) string {
	switch {
	case r.Measure == admit.Concurrent:
		return "at a time"
	case r.Every == admit.Day:
		return "a day"
	case r.Every == admit.Month:
		return "a month"
	case r.Per == time.Minute:
		return "a minute"
	}
	return "in " + r.Per.String()
}
