// SPDX-License-Identifier: Apache-2.0

package workload

import (
	"fmt"
	"strings"
	"time"
)

// Kind names a family of synthetic traffic.
type Kind string

// Kinds of traffic.
const (
	KindChat   Kind = "chat"          // conversations of several turns, each app with its system prompt
	KindShared Kind = "shared-prefix" // single requests behind long popular prefixes
	KindAgent  Kind = "agent"         // closed loops of many steps over a growing context
	KindCode   Kind = "code"          // completion while typing: edits cut the prefix
	KindRAG    Kind = "rag"           // questions behind long documents, some of them popular
	KindReason Kind = "reason"        // short prompts, very long answers
	KindMixed  Kind = "mixed"         // chat, shared-prefix and code or rag at once
)

// Kinds returns all kinds in the order in which help shows them.
func Kinds() []Kind {
	return []Kind{KindChat, KindShared, KindAgent, KindCode, KindRAG, KindReason, KindMixed}
}

// ParseKind is the inverse of string(Kind); "shared" is short for shared-prefix.
func ParseKind(s string) (Kind, error) {
	if s == "shared" {
		return KindShared, nil
	}
	var names []string
	for _, k := range Kinds() {
		if string(k) == s {
			return k, nil
		}
		names = append(names, string(k))
	}
	return "", fmt.Errorf("workload %q is unknown; use one of: %s", s, strings.Join(names, ", "))
}

// Spec describes synthetic traffic. The zero value of a field means the default of
// the kind; lengths are in tokens.
type Spec struct {
	Kind Kind
	Seed uint64

	// Rate is the mean number of requests a second, turns counted; 0 starts all
	// sessions at once, which is what a closed loop over users wants.
	Rate float64
	// CV is the coefficient of variation of the gaps between sessions (Gamma); 0
	// means 1, a Poisson process.
	CV float64

	// Share is the part of all prompt tokens, in 0..0.99, that an earlier prompt
	// begins with: what one endless cache would find. 0 leaves it to the kind. It is
	// reached by the length of the prefix that the sessions of an app share and by
	// cutting sessions short.
	Share float64
	// Apps is the number of shared prefixes and Zipf the exponent of their
	// popularity.
	Apps int
	Zipf float64
	// FlipAt reverses the popularity of the apps at this time; 0: never.
	FlipAt time.Duration
	// Siblings > 1 sends each single-turn prompt that often at once with other
	// outputs (best of n).
	Siblings int

	Turns float64 // mean turns a session
	// EvenTurns gives every session Turns turns instead of a random number.
	EvenTurns bool

	Prefix float64 // median length of an app's prefix
	Input  float64 // median length of what a turn adds
	Output float64 // median length of an answer
	Think  time.Duration
	// MaxContext ends a session before prompt and answer of a turn exceed it; 0:
	// no limit.
	MaxContext int
	// Steady begins in the middle of the traffic: sessions that would have begun
	// earlier are there with their remaining turns, so that the rate holds from the
	// start. It needs a Rate.
	Steady bool
	// Open sends every turn at a time of its own instead of after the answer.
	Open bool

	// Adapters > 0 sends the sessions to that many LoRA adapters, named adapter-0
	// and so on, with popularity Zipf AdapterZipf (0: 1.18, the exponent fitted to
	// a public log of adapter use). AdapterShare is the part of sessions that uses
	// one; 0 means all.
	Adapters     int
	AdapterZipf  float64
	AdapterShare float64
	// Tenants > 0 names each session's tenant, tenant-0 and so on, uniformly.
	Tenants int
}

// adapterZipf is the exponent of adapter popularity where a Spec names none.
const adapterZipf = 1.18

// shape holds the defaults of a kind.
type shape struct {
	apps                  int
	zipf                  float64
	turns                 float64
	prefix, input, output float64
	think                 time.Duration
}

func (k Kind) shape() shape {
	switch k {
	case KindShared:
		return shape{apps: 32, zipf: 1.0, turns: 1, prefix: 2000, input: 150, output: 120}
	case KindAgent:
		return shape{apps: 6, zipf: 0.8, turns: 18, prefix: 5000, input: 500, output: 120, think: time.Second}
	case KindCode:
		return shape{apps: 12, zipf: 0.8, turns: 20, prefix: 300, input: 3000, output: 24, think: 900 * time.Millisecond}
	case KindRAG:
		return shape{apps: 4, zipf: 0.7, turns: 1, prefix: 300, input: 40, output: 200}
	case KindReason:
		return shape{apps: 6, zipf: 0.7, turns: 1, prefix: 200, input: 250, output: 2000}
	default:
		return shape{apps: 20, zipf: 1.0, turns: 5, prefix: 400, input: 60, output: 150, think: 8 * time.Second}
	}
}

// turns draws how many turns a session has.
func (s *Spec) turns(r *Rand) int {
	if s.EvenTurns {
		return max(1, int(s.Turns+0.5))
	}
	return r.Geometric(s.Turns)
}

// withDefaults fills the zero fields of s from the kind's shape.
func (s Spec) withDefaults() Spec {
	d := s.Kind.shape()
	orF := func(v *float64, def float64) {
		if *v == 0 {
			*v = def
		}
	}
	if s.Apps == 0 {
		s.Apps = d.apps
	}
	orF(&s.Zipf, d.zipf)
	orF(&s.CV, 1)
	orF(&s.Turns, d.turns)
	orF(&s.Prefix, d.prefix)
	orF(&s.Input, d.input)
	orF(&s.Output, d.output)
	orF(&s.AdapterZipf, adapterZipf)
	orF(&s.AdapterShare, 1)
	if s.Think == 0 {
		s.Think = d.think
	}
	return s
}

// Validate returns what is wrong with s, by the name of the field.
func (s Spec) Validate() error {
	if _, err := ParseKind(string(s.Kind)); err != nil {
		return err
	}
	type bound struct {
		name   string
		v      float64
		lo, hi float64
	}
	for _, b := range []bound{
		{"rate", s.Rate, 0, 1e6},
		{"cv", s.CV, 0, 50},
		{"share", s.Share, 0, 0.99},
		{"apps", float64(s.Apps), 0, 1e6},
		{"zipf", s.Zipf, 0, 10},
		{"siblings", float64(s.Siblings), 0, 1000},
		{"turns", s.Turns, 0, 10000},
		{"prefix", s.Prefix, 0, 1e6},
		{"input", s.Input, 0, 1e6},
		{"output", s.Output, 0, 1e6},
		{"think", s.Think.Seconds(), 0, 86400},
		{"max context", float64(s.MaxContext), 0, 1e8},
		{"adapters", float64(s.Adapters), 0, 1e6},
		{"adapter zipf", s.AdapterZipf, 0, 10},
		{"adapter share", s.AdapterShare, 0, 1},
		{"tenants", float64(s.Tenants), 0, 1e6},
	} {
		if !(b.v >= b.lo && b.v <= b.hi) {
			return fmt.Errorf("%s %v is out of range; it must be within %v and %v", b.name, b.v, b.lo, b.hi)
		}
	}
	return nil
}
