// SPDX-License-Identifier: Apache-2.0

// Package fleet is the vocabulary that every other package speaks: requests,
// endpoints, phases, signals, snapshots and outcomes, as plain values.
//
// Nothing here does I/O, reads a clock or starts a goroutine. A Request holds no
// prompt text by construction: only lengths and keyed block hashes leave package
// wire, so no record, log line or panic further in can leak a prompt.
package fleet

import (
	"math"
	"strings"
	"time"
)

// Time is a moment in nanoseconds since the Unix epoch (live) or since the start
// of a run (simulation). The cores never read a clock: whoever calls them passes
// the moment in.
type Time int64

// Never is later than every real moment; it is what "no timer is set" looks like.
const Never Time = math.MaxInt64

// At converts a wall-clock moment.
func At(t time.Time) Time { return Time(t.UnixNano()) }

// Wall converts back to a wall-clock moment. Meaningless in a simulation.
func (t Time) Wall() time.Time { return time.Unix(0, int64(t)) }

// Add returns t+d. Never stays Never.
func (t Time) Add(d time.Duration) Time {
	if t == Never {
		return Never
	}
	return t + Time(d)
}

// AddSeconds returns t + s seconds. Never stays Never.
func (t Time) AddSeconds(s float64) Time {
	if t == Never {
		return Never
	}
	return t + Time(s*1e9)
}

// Sub returns t-u.
func (t Time) Sub(u Time) time.Duration { return time.Duration(t - u) }

// Seconds returns t-u in seconds.
func (t Time) Seconds(u Time) float64 { return float64(t-u) / 1e9 }

// Value is one measured number with the moment it was measured. The zero Value is
// unknown. Unknown is not zero: it never means idle and never causes a scale-down.
type Value struct {
	V  float64
	At Time // 0: unknown
}

// Known returns a Value v measured at t. NaN, infinities and negative numbers
// are not measurements and come back unknown.
func Known(v float64, t Time) Value {
	if math.IsNaN(v) || math.IsInf(v, 0) || v < 0 {
		return Value{}
	}
	return Value{V: v, At: t}
}

// OK reports whether the value is known.
func (v Value) OK() bool { return v.At != 0 }

// Or returns the value, or def where it is unknown.
func (v Value) Or(def float64) float64 {
	if v.At == 0 {
		return def
	}
	return v.V
}

// Age returns how old the value is at now, and false where it is unknown.
func (v Value) Age(now Time) (time.Duration, bool) {
	if v.At == 0 {
		return 0, false
	}
	return now.Sub(v.At), true
}

// Role says which part of a request an endpoint computes.
type Role uint8

// Roles. A pool whose endpoints are not all RoleBoth is a split pool.
const (
	RoleBoth Role = iota
	RolePrefill
	RoleDecode
)

var roleNames = [...]string{"both", "prefill", "decode"}

func (r Role) String() string { return nameOf(roleNames[:], int(r)) }

// ParseRole is the inverse of Role.String.
func ParseRole(s string) (Role, bool) {
	i, ok := indexOf(roleNames[:], s)
	return Role(i), ok
}

// Phase is where a replica is in its life. Only PhaseReady takes new requests.
type Phase uint8

// Phases in the order of a normal life; Failed and Asleep stand beside it.
const (
	PhasePending  Phase = iota // wanted, not scheduled
	PhasePulling               // image or files on their way
	PhaseLoading               // process runs, weights not loaded
	PhaseWarming               // compiling, capturing, warming up
	PhaseReady                 // the model answers
	PhaseDraining              // finishes what it has, gets nothing new
	PhaseFailed                // dead, or not answering as a model server
	PhaseAsleep                // weights off the accelerator, process alive
)

var phaseNames = [...]string{"pending", "pulling", "loading", "warming", "ready", "draining", "failed", "asleep"}

func (p Phase) String() string { return nameOf(phaseNames[:], int(p)) }

// ParsePhase is the inverse of Phase.String.
func ParsePhase(s string) (Phase, bool) {
	i, ok := indexOf(phaseNames[:], s)
	return Phase(i), ok
}

// Surface is the API that a request called; it decides the shape of our errors.
type Surface uint8

// Surfaces that a gateway may forward.
const (
	SurfaceChat Surface = iota
	SurfaceCompletions
	SurfaceModels
	SurfaceEmbeddings
	SurfaceResponses
	SurfaceMessages
	SurfaceRerank
	SurfaceScore
	SurfaceTokenize
	SurfaceDetokenize
	SurfaceTranscriptions
	SurfaceCountTokens
)

var surfaceNames = [...]string{
	"chat", "completions", "models", "embeddings", "responses", "messages",
	"rerank", "score", "tokenize", "detokenize", "transcriptions", "count_tokens",
}

func (s Surface) String() string { return nameOf(surfaceNames[:], int(s)) }

// Generates reports whether answers are text that a model writes: they may be event
// streams, have output tokens, and use the prefix cache.
func (s Surface) Generates() bool {
	switch s {
	case SurfaceChat, SurfaceCompletions, SurfaceResponses, SurfaceMessages:
		return true
	}
	return false
}

// ParseSurface is the inverse of Surface.String.
func ParseSurface(s string) (Surface, bool) {
	i, ok := indexOf(surfaceNames[:], s)
	return Surface(i), ok
}

func nameOf(names []string, i int) string {
	if i < 0 || i >= len(names) {
		return "unknown"
	}
	return names[i]
}

func indexOf(names []string, s string) (int, bool) {
	for i, n := range names {
		if n == s {
			return i, true
		}
	}
	return 0, false
}

// HostPort returns host:port of a base URL such as http://10.0.0.1:8000/x, the form
// in which proxies name endpoints. It does not allocate.
func HostPort(url string) string {
	if _, rest, ok := strings.Cut(url, "://"); ok {
		url = rest
	}
	hp, _, _ := strings.Cut(url, "/")
	return hp
}
