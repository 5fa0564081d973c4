// SPDX-License-Identifier: Apache-2.0

package workload

import (
	"cmp"
	"slices"
	"strconv"
	"time"
)

// Generator is an endless Source of synthetic sessions. Session n depends only on
// the specification and n, never on how many were drawn before it or how they ran.
type Generator struct {
	spec     Spec
	apps     *Zipf
	docs     *Zipf // popular documents
	adapters *Zipf
	arrivals Rand
	rate     float64 // sessions per second; 0: all at once
	n        uint64
	clock    float64 // seconds
	burst    []*Session
	carry    []*Session // of a steady start, ordered by Start
	ahead    *Session   // drawn already, behind carry
	mixed    []*Generator
}

// probes is how many sessions are drawn ahead to learn how many requests a session
// has on average, which turns a rate of requests into one of sessions.
const probes = 256

// NewGenerator returns the stream of s.
func NewGenerator(s Spec) (*Generator, error) {
	if err := s.Validate(); err != nil {
		return nil, err
	}
	g := newGenerator(s)
	if s.Kind == KindMixed {
		g.mixed = mixOf(s)
	}
	if s.Rate > 0 {
		turns, longest := 0, time.Duration(0)
		for i := uint64(1); i <= probes; i++ {
			p := g.session(^i, 0)
			n := len(p.Turns)
			longest = max(longest, p.Turns[n-1].At)
			if n == 1 {
				n = max(1, s.Siblings)
			}
			turns += n
		}
		g.rate = s.Rate * probes / float64(turns)
		if s.Steady {
			g.warm(longest)
		}
	}
	return g, nil
}

func newGenerator(s Spec) *Generator {
	if s.Kind == "shared" {
		s.Kind = KindShared
	}
	s = s.withDefaults()
	g := &Generator{
		spec:     s,
		apps:     NewZipf(s.Apps, s.Zipf),
		docs:     NewZipf(200, 1),
		arrivals: *NewRand(s.Seed, "arrivals", 0),
	}
	if s.Adapters > 0 {
		g.adapters = NewZipf(s.Adapters, s.AdapterZipf)
	}
	return g
}

// mixOf returns the two or three parts of mixed traffic.
func mixOf(s Spec) []*Generator {
	r := NewRand(s.Seed, "mix", 0)
	kinds := []Kind{KindChat, KindShared, KindCode, KindRAG}
	first := r.IntN(len(kinds))
	parts := make([]*Generator, 2+r.IntN(2))
	for i := range parts {
		p := s
		p.Kind = kinds[(first+i)%len(kinds)]
		// Lengths belong to a kind: what the caller set for the mix does not fit all.
		p.Turns, p.Prefix, p.Input, p.Output, p.Think = 0, 0, 0, 0, 0
		parts[i] = newGenerator(p)
	}
	return parts
}

// warm draws the sessions that began within the time before the start and are not
// over by then.
func (g *Generator) warm(before time.Duration) {
	const most = 1e5 // sessions, however long one of them may last
	g.clock = -min(before.Seconds(), most/g.rate)
	s := g.draw()
	for ; s.Start < 0; s = g.draw() {
		for len(s.Turns) > 0 && s.Turns[0].At < 0 {
			s.Turns = s.Turns[1:]
		}
		if len(s.Turns) > 0 {
			s.Start = s.Turns[0].At
			g.carry = append(g.carry, s)
		}
	}
	g.ahead = s
	slices.SortStableFunc(g.carry, func(a, b *Session) int { return cmp.Compare(a.Start, b.Start) })
}

// Next implements Source; it never ends.
func (g *Generator) Next() *Session {
	if len(g.carry) == 0 && g.ahead == nil {
		return g.draw()
	}
	if g.ahead == nil {
		g.ahead = g.draw()
	}
	s := g.ahead
	if len(g.carry) > 0 && g.carry[0].Start < s.Start {
		s = g.carry[0]
		g.carry = g.carry[1:]
		return s
	}
	g.ahead = nil
	return s
}

// draw returns the next session by the time of its arrival.
func (g *Generator) draw() *Session {
	if len(g.burst) > 0 {
		s := g.burst[0]
		g.burst = g.burst[1:]
		return s
	}
	if g.rate > 0 {
		g.clock += g.arrivals.Gamma(1/(g.spec.CV*g.spec.CV)) / g.rate
	}
	start := time.Duration(g.clock * 1e9)
	s := g.session(g.n, start)
	g.n++
	if len(s.Turns) == 1 {
		for i := 1; i < g.spec.Siblings; i++ {
			g.burst = append(g.burst, g.sibling(s, i))
		}
	}
	return s
}

// sibling is another sample of the same prompt.
func (g *Generator) sibling(s *Session, i int) *Session {
	c := *s
	c.ID = mix(s.ID + uint64(i))
	t := s.Turns[0]
	r := NewRand(c.ID, "sibling", 0)
	t.OutputTokens = g.output(r)
	if m := g.spec.MaxContext; m > 0 {
		t.OutputTokens = min(t.OutputTokens, m-t.PromptTokens)
	}
	c.Turns = []Turn{t}
	return &c
}

// session draws session n. Each session has a random stream of its own.
func (g *Generator) session(n uint64, start time.Duration) *Session {
	r := randAt(g.spec.Seed, hashString("session"), n)
	b := builder{g: g, r: &r, id: mix(g.spec.Seed ^ mix(n+1)), start: start}
	if g.mixed != nil {
		part := g.mixed[r.IntN(len(g.mixed))]
		b.g = part
	}
	s := b.build()
	g.label(s, n)
	return s
}

// label gives a session its tenant and adapter, from a stream of their own so that
// a workload with adapters has the same prompts as one without.
func (g *Generator) label(s *Session, n uint64) {
	r := randAt(g.spec.Seed, hashString("label"), n)
	if g.adapters != nil && r.Float64() < g.spec.AdapterShare {
		s.Adapter = "adapter-" + strconv.Itoa(g.adapters.Draw(&r))
	}
	if g.spec.Tenants > 0 {
		s.Tenant = "tenant-" + strconv.Itoa(r.IntN(g.spec.Tenants))
	}
}

func (g *Generator) output(r *Rand) int {
	switch g.spec.Kind {
	case KindReason:
		return r.tokens(g.spec.Output, 1.0, 50, 12000)
	case KindCode:
		return r.tokens(g.spec.Output, 0.6, 4, 200)
	default:
		return r.tokens(g.spec.Output, 0.7, 2, 4000)
	}
}

// app draws the app of a session and the id of its prefix text.
func (g *Generator) app(r *Rand, start time.Duration) (rank int, id uint64) {
	rank = g.apps.Draw(r)
	if g.spec.FlipAt > 0 && start >= g.spec.FlipAt {
		rank = g.spec.Apps - 1 - rank
	}
	return rank, mix(g.spec.Seed ^ hashString("app/"+string(g.spec.Kind)) ^ uint64(rank))
}

// prefixTokens is the length of the prefix of an app, the same for all its
// sessions.
func (g *Generator) prefixTokens(app uint64) int {
	r := randAt(g.spec.Seed, hashString("prefix"), app)
	lo, hi := int(g.spec.Prefix/10), int(g.spec.Prefix*12)
	return r.tokens(g.spec.Prefix, 0.8, max(lo, 1), max(hi, 1))
}
