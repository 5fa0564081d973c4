// SPDX-License-Identifier: Apache-2.0

package scale

import (
	"math"
	"slices"

	"github.com/penstock-project/penstock/internal/fleet"
)

// Claim is what one pool would have of a budget of accelerators that several share.
type Claim struct {
	Pool       string
	PerReplica int // accelerators of one replica, at least 1
	Min, Want  int // replicas
	Priority   int // pools of a higher one are served first
	// Offered is the work in units per second and Capacity what n replicas carry, as
	// in Policy. Without a capacity every replica counts the same.
	Offered  float64
	Capacity []float64
	// StartUp is how long a replica takes to start, in seconds: a replica that was
	// given is not taken away again before that.
	StartUp float64
}

// Share is what a pool gets of the budget.
type Share struct {
	Pool         string  `json:"pool"`
	Replicas     int     `json:"replicas"`
	Accelerators int     `json:"accelerators"`
	Missed       float64 `json:"missed_share"`   // of its offered work, that these replicas cannot carry
	Next         float64 `json:"saved_per_next"` // work per second that one more replica would save; 0 at what it wants
	Short        bool    `json:"short"`          // it wants more than it gets
}

// Divide shares out a budget of accelerators. Minima come first, then what is wanted,
// both by priority; inside a priority the next accelerator goes where it saves most
// misses. The sum never exceeds the budget. With replicas of one size no pool gets
// less of a larger budget; with several sizes what each priority serves does not.
// The answer is in the order of the claims.
func Divide(budget int, claims []Claim) []Share {
	d := divider{left: max(0, budget), claims: claims, got: make([]int, len(claims)), gains: make([][]float64, len(claims))}
	for i := range claims {
		d.gains[i] = claims[i].gains()
	}
	tiers := make([]int, 0, len(claims))
	for i := range claims {
		if p := claims[i].Priority; !slices.Contains(tiers, p) {
			tiers = append(tiers, p)
		}
	}
	slices.Sort(tiers)
	slices.Reverse(tiers)
	for _, p := range tiers {
		d.fill(p, func(c *Claim) int { return min(c.Min, c.Want) })
	}
	for _, p := range tiers {
		d.fill(p, func(c *Claim) int { return c.Want })
	}
	return d.shares()
}

type divider struct {
	left   int
	claims []Claim
	got    []int
	gains  [][]float64
}

// fill gives replicas to the pools of one priority, up to a number of each, one at a
// time to the pool whose next one saves most for an accelerator.
func (d *divider) fill(priority int, most func(*Claim) int) {
	for {
		best, gain := -1, -1.0
		for i := range d.claims {
			c := &d.claims[i]
			if c.Priority != priority || d.got[i] >= most(c) || c.size() > d.left {
				continue
			}
			if g := d.next(i) / float64(c.size()); g > gain {
				best, gain = i, g
			}
		}
		if best < 0 {
			return
		}
		d.got[best]++
		d.left -= d.claims[best].size()
	}
}

func (c *Claim) size() int { return max(1, c.PerReplica) }

func (d *divider) next(i int) float64 {
	if g := d.gains[i]; d.got[i] < len(g) {
		return g[d.got[i]]
	}
	return 0
}

// gains is the work that each further replica saves from being missed, made falling:
// what n replicas carry may rise faster than n in small fleets, and then the first of
// them are worth what they carry together.
func (c *Claim) gains() []float64 {
	t := capacity{believed: c.Capacity, factor: 1}
	serve := make([]float64, c.Want+1)
	for n := range serve {
		serve[n] = float64(n)
		if len(c.Capacity) > 1 {
			serve[n] = math.Min(c.Offered, t.carries(n))
		}
	}
	out := make([]float64, 0, c.Want)
	for n := 0; n < c.Want; { // the upper hull from n on
		to, slope := n+1, math.Inf(-1)
		for k := n + 1; k <= c.Want; k++ {
			if s := (serve[k] - serve[n]) / float64(k-n); s > slope+1e-12 {
				to, slope = k, s
			}
		}
		for range to - n {
			out = append(out, slope)
		}
		n = to
	}
	return out
}

func (d *divider) shares() []Share {
	out := make([]Share, len(d.claims))
	for i := range d.claims {
		c := &d.claims[i]
		s := Share{Pool: c.Pool, Replicas: d.got[i], Accelerators: d.got[i] * c.size(), Short: d.got[i] < c.Want, Next: d.next(i)}
		if len(c.Capacity) > 1 && c.Offered > 0 {
			t := capacity{believed: c.Capacity, factor: 1}
			s.Missed = math.Max(0, 1-t.carries(d.got[i])/c.Offered)
		}
		out[i] = s
	}
	return out
}

// Budget divides accelerators over time: what was given to a pool stays with it until a
// replica would have started, so that noise between pools does not throw warm replicas
// away. The zero value is ready. It is not safe for
// concurrent use.
type Budget struct {
	given []given
}

type given struct {
	pool     string
	replicas int
	at       fleet.Time // of its last change
}

// Divide is Divide at now, with what was given before.
func (b *Budget) Divide(now fleet.Time, budget int, claims []Claim) []Share {
	kept := slices.Clone(claims)
	for i := range kept {
		c := &kept[i]
		if g := b.find(c.Pool); g != nil && now.Seconds(g.at) < math.Max(60, c.StartUp) {
			c.Min = max(c.Min, g.replicas)
			c.Want = max(c.Want, c.Min)
		}
	}
	out := Divide(budget, kept)
	for i := range out {
		out[i].Short = out[i].Replicas < claims[i].Want
		b.note(now, out[i].Pool, out[i].Replicas)
	}
	return out
}

func (b *Budget) find(pool string) *given {
	for i := range b.given {
		if b.given[i].pool == pool {
			return &b.given[i]
		}
	}
	return nil
}

func (b *Budget) note(now fleet.Time, pool string, n int) {
	g := b.find(pool)
	if g == nil {
		b.given = append(b.given, given{pool, n, now})
		return
	}
	if g.replicas != n {
		g.replicas, g.at = n, now
	}
}
