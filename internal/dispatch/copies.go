// SPDX-License-Identifier: Apache-2.0

package dispatch

import (
	"math"
	"math/bits"

	"github.com/penstock-project/penstock/internal/fleet"
	"github.com/penstock-project/penstock/internal/route"
)

// The price of a pick weighs one request. A popular prefix would stay on few replicas
// as long as each request by itself is better off there than where it has to be
// computed again, however many follow. So the router keeps accounts: what requests
// pay for want of a copy of what they begin with. Once that is the price of a copy, one
// is made: rent until the rent paid is the price, then buy, which at worst costs twice
// what would have been best (A. R. Karlin, M. S. Manasse, L. Rudolph and D. D. Sleator,
// Competitive snoopy caching, Algorithmica 3, 1988). That bound is of rent that is
// remembered; these accounts forget.
//
// What a request pays is how much dearer it is at its replica than it would be at
// another one with a copy, in the mean of those without one; where others are dearer
// it earns, so that chance adds up to nothing. It is charged to the prefix by the
// prefix's part in the load of a replica: what is rarely asked for does not cause the
// crowd that it waits in.
const (
	// accounts are kept in a table without chains: a newcomer takes the place.
	accountBits = 14
	// levels are parts of a prompt that double in length. Each has an account, by its
	// first block, which stands for all that goes before it.
	levels = 16
	// rentSeconds is the memory of the accounts.
	rentSeconds = 60
)

// account is what requests paid for want of a copy of one level of a prompt.
type account struct {
	key  uint64
	paid float32 // in copies
	n    float32 // requests, decayed
	at   fleet.Time
	made fleet.Time // when it was opened
}

// rents are the accounts of a pool.
type rents struct {
	accounts []account // nil until a policy that prices has decided
	all      account   // n counts all requests
	credit   []float32 // by slot; memory of credits
	longest  int32     // hit of a candidate at the last question
}

// level returns the level of a block.
func level(block int32) int { return min(levels-1, bits.Len32(uint32(block)+1)-1) }

// begin returns the first block of a level.
func begin(level int) int32 { return 1<<level - 1 }

// of returns the place of the account of a level of a prompt.
func (r *rents) of(blocks []uint64, level int) (a *account, key uint64) {
	key = blocks[begin(level)]
	return &r.accounts[key*0x9e3779b97f4a7c15>>(64-accountBits)], key
}

// kept is what an account remembers of what it knew at a time.
func kept(now, at fleet.Time) float32 { return float32(math.Exp(-now.Seconds(at) / rentSeconds)) }

// age lets an account forget.
func (a *account) age(now fleet.Time) {
	k := kept(now, a.at)
	a.paid, a.n, a.at = a.paid*k, a.n*k, now
}

// credits tells the policy, for each slot, how many of the tokens that the request
// would compute there others have paid for.
func (d *Dispatch) credits(e *entry) {
	r := &d.rents
	r.longest = 0
	least := int32(math.MaxInt32)
	for i, h := range d.hits {
		if d.drops[i] == route.DropNone {
			r.longest, least = max(r.longest, h), min(least, h)
		}
	}
	r.longest = min(r.longest, int32(len(e.req.Blocks)))
	if r.accounts == nil || r.longest <= least {
		return
	}
	var paid [levels]float32
	some := false
	for k := level(least); k <= level(r.longest-1); k++ {
		if a, key := r.of(e.req.Blocks, k); a.key == key && a.paid > 0 {
			paid[k] = min(1, a.paid*kept(d.now, a.at))
			some = true
		}
	}
	if !some {
		return
	}
	for len(r.credit) < len(d.slots) {
		r.credit = append(r.credit, 0)
	}
	last, tokens := int32(-1), float32(0)
	for i, h := range d.hits {
		if h != last { // most slots hit as much as the one before
			last, tokens = h, 0
			for k := level(h); h < r.longest && k <= level(r.longest-1); k++ {
				tokens += paid[k] * float32(min(r.longest, begin(k+1))-max(h, begin(k)))
			}
			tokens *= float32(e.blockTokens)
		}
		r.credit[i] = tokens
	}
	d.in.Credits = r.credit
}

// rent books what a new request pays for want of a copy, or that one is made.
func (d *Dispatch) rent(e *entry, dec *route.Decision) {
	r := &d.rents
	p := dec.Pick()
	if p == nil || !dec.Priced || r.longest == 0 || !d.learned.sure() || len(dec.Candidates) != len(d.slots) {
		return
	}
	if r.accounts == nil {
		r.accounts = make([]account, 1<<accountBits)
	}
	blocks := e.req.Blocks
	for k := level(p.Hit); p.Hit < r.longest && k <= level(r.longest-1); k++ {
		if a, key := r.of(blocks, k); a.key == key {
			a.age(d.now)
			a.paid = max(0, a.paid-1)
		}
	}
	hit := min(p.Hit, r.longest)
	if hit == 0 {
		return
	}
	here := p.AloneMS()
	// By the level at which others cease to hold it.
	var sum, n, work [levels]float64
	for j := range dec.Candidates {
		c := &dec.Candidates[j]
		if c.Drop != route.DropNone || c.Hit >= hit || c.Full || c.Uncached <= 0 {
			continue
		}
		part := min(1, float64(hit-c.Hit)*e.blockTokens/float64(c.Uncached))
		if missing := part * c.PrefillCostMS(); missing > 0 {
			k := level(c.Hit)
			sum[k] += max(-1, min(1, (here-c.AloneMS()+missing)/missing))
			n[k]++
			work[k] += part * float64(c.Terms[route.TermPrefill]) / 1e3
		}
	}
	r.all.age(d.now)
	r.all.n++
	shared := d.pinned[dec.Chosen] // by requests in flight there
	total, others, copying := 0.0, 0.0, 0.0
	for k := 0; k <= level(hit-1); k++ {
		total += sum[k]
		others += n[k]
		copying += work[k]
		if others == 0 {
			continue
		}
		a, key := r.of(blocks, k)
		if a.key != key {
			*a = account{key: key, at: d.now, made: d.now}
		}
		a.age(d.now)
		a.n++
		if begin(k) < shared && d.now.Seconds(a.made)*others >= copying {
			part := min(1, a.n*float32(d.ready)/r.all.n)
			a.paid = max(0, a.paid+part*float32(total/others))
		}
	}
}
