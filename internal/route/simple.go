// SPDX-License-Identifier: Apache-2.0

package route

import (
	"fmt"
	"sort"
	"strings"
)

// Names of the simple policies.
const (
	PolicyRandom        = "random"
	PolicyRoundRobin    = "round-robin"
	PolicyLeastRequests = "least-requests"
	PolicyPowerOfTwo    = "power-of-two"
	PolicyAffinity      = "prefix-affinity"
)

// rule chooses among the candidates of d: it returns an index into d.Candidates, of
// one that was not dropped, and says why. open is how many such candidates there
// are, > 0.
type rule func(s *state, in *Input, d *Decision, open int) (index int32, why string)

// simple is a policy that is a rule. Its candidates are priced all the same, so
// that its records can be compared with those of the penstock policy.
type simple struct {
	name string
	rule rule
	state
}

// state is all that a simple policy remembers.
type state struct {
	seed, draws uint64
	last        int32
}

// below returns a number in [0; n), n > 0: a counter through Mix, so that every
// seed is a sequence of its own. The bias is under n/2^32.
func (s *state) below(n int) int {
	s.draws++
	return int(Mix(s.draws, s.seed) >> 32 * uint64(n) >> 32)
}

func (p *simple) Name() string { return p.name }

func (p *simple) Peek(in *Input, d *Decision) {
	kept := p.state
	p.Pick(in, d)
	p.state = kept
}

func (p *simple) Pick(in *Input, d *Decision) {
	d.begin(in, p.name)
	if !in.Bare {
		d.price(in)
	}
	open := 0
	for i := range d.Candidates {
		if d.Candidates[i].Drop == DropNone {
			open++
		}
	}
	if open == 0 {
		d.Why = WhyNoReplica
		return
	}
	index, why := p.rule(&p.state, in, d, open)
	d.Index = index
	if open == 1 {
		why = WhyOnly
	}
	d.take(why)
}

// nth returns the index of the n-th open candidate.
func (d *Decision) nth(n int) int32 {
	for i := range d.Candidates {
		if d.Candidates[i].Drop != DropNone {
			continue
		}
		if n == 0 {
			return int32(i)
		}
		n--
	}
	return -1
}

// Random returns the policy that draws an endpoint uniformly.
func Random(seed uint64) Policy {
	return &simple{PolicyRandom, func(s *state, _ *Input, d *Decision, open int) (int32, string) {
		return d.nth(s.below(open)), WhyRandom
	}, state{seed: seed}}
}

// RoundRobin returns the policy that takes endpoints in turn.
func RoundRobin() Policy {
	return &simple{PolicyRoundRobin, func(s *state, _ *Input, d *Decision, _ int) (int32, string) {
		n := int32(len(d.Candidates))
		for range n {
			s.last++
			if s.last >= n {
				s.last = 0
			}
			if d.Candidates[s.last].Drop == DropNone {
				break
			}
		}
		return s.last, WhyRotation
	}, state{last: -1}}
}

// LeastRequests returns the policy that takes the endpoint with the fewest requests
// in flight, ties at random.
func LeastRequests(seed uint64) Policy {
	return &simple{PolicyLeastRequests, fewest, state{seed: seed}}
}

func fewest(s *state, in *Input, d *Decision, _ int) (int32, string) {
	best, ties := int32(-1), 0
	for i := range d.Candidates {
		if d.Candidates[i].Drop != DropNone {
			continue
		}
		switch l := load(in, i); {
		case best < 0 || l < load(in, int(best)):
			best, ties = int32(i), 1
		case l == load(in, int(best)):
			ties++
			if s.below(ties) == 0 {
				best = int32(i)
			}
		}
	}
	return best, WhyFewest
}

// PowerOfTwo returns the policy that draws two endpoints and takes the one with
// fewer requests in flight.
func PowerOfTwo(seed uint64) Policy {
	return &simple{PolicyPowerOfTwo, func(s *state, in *Input, d *Decision, open int) (int32, string) {
		a := s.below(open)
		if open == 1 {
			return d.nth(a), WhyOnly
		}
		b := s.below(open - 1)
		if b >= a {
			b++
		}
		i, j := d.nth(a), d.nth(b)
		if load(in, int(j)) < load(in, int(i)) {
			i = j
		}
		return i, WhyFewer
	}, state{seed: seed}}
}

// load is the number of requests that an endpoint has: ours and what the scrapes
// show beyond them.
func load(in *Input, i int) float64 {
	s := &in.Slots[i]
	return float64(s.InFlight+s.Queued) + s.ForeignStreams + s.ForeignUnstarted
}

// Affinity returns the policy that takes the endpoint with the longest cached
// prefix, whatever its load, and without one the home of the prompt's beginning by
// rendezvous hash. It shows what pure cache affinity does.
func Affinity() Policy {
	return &simple{PolicyAffinity, deepest, state{}}
}

func deepest(_ *state, in *Input, d *Decision, _ int) (int32, string) {
	best, hit, weight := int32(-1), int32(-1), uint64(0)
	for i := range d.Candidates {
		c := &d.Candidates[i]
		if c.Drop != DropNone {
			continue
		}
		w := Mix(d.TieKey, in.Slots[i].Key)
		if c.Hit > hit || c.Hit == hit && w > weight {
			best, hit, weight = int32(i), c.Hit, w
		}
	}
	if hit > 0 {
		return best, WhyAffinity
	}
	return best, WhyHome
}

// makers are all policies.
func makers(seed uint64) []Policy {
	return append([]Policy{
		LeastRequests(seed), Penstock(), PowerOfTwo(seed), Affinity(), Random(seed), RoundRobin(),
	}, peers(seed)...)
}

// New returns the named policy. seed makes those that draw repeatable.
func New(name string, seed uint64) (Policy, error) {
	for _, p := range makers(seed) {
		if p.Name() == name {
			return p, nil
		}
	}
	return nil, fmt.Errorf("no policy %q; there are %s", name, strings.Join(Names(), ", "))
}

// Names lists the policies that New knows, sorted.
func Names() []string {
	var out []string
	for _, p := range makers(0) {
		out = append(out, p.Name())
	}
	sort.Strings(out)
	return out
}
